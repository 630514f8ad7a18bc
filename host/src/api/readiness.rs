//! Pure: why a host takes no jobs now. The one place that decides what `/ready` answers, with and without a cloud.
//!
//! ```text
//! what each stage publishes ─ api ─> ReadinessInputs ─ reasons ─> [Reason]      none: ready, 200; else 503
//! ```
//!
//! A reason says what is wrong and what to do, in the operator's words. Reasons are ordered by how much depends on them.

use std::fmt;
use std::time::Duration;

use crate::availability::Hold;

/// What readiness depends on, as it was at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadinessInputs {
    /// What has panicked in the host, if anything has. It is ending then.
    pub panic: Option<String>,
    pub executor: ExecutorHealth,
    /// Why no run begins, because of a person or the device itself.
    pub hold: Option<Hold>,
    /// `None` in a host that only lends its slots to peers.
    pub cloud: Option<CloudHealth>,
}

/// The executor's part of readiness.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecutorHealth {
    /// A control call of the plugin that does not return.
    pub stuck_call: Option<StuckControlCall>,
    /// A run in this process that does not end.
    pub stuck_run: Option<StuckJob>,
    /// The plugin's own process has died and does not answer yet.
    pub worker: Option<WorkerDeaths>,
}

/// A call of the plugin that should have returned by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckControlCall {
    /// Such as `cancel of job J1`.
    pub call: String,
    pub plugin: String,
    pub seconds: u64,
    /// After which time the plugin's process is killed, where the plugin has one.
    pub killed_after: Option<Duration>,
}

/// A job whose run does not end although it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckJob {
    pub job_id: String,
    /// Since the run was asked to end.
    pub seconds: u64,
}

/// The deaths of the plugin's process since it answered last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerDeaths {
    pub in_a_row: u32,
    /// How the process died last, as a verb phrase.
    pub last: String,
}

/// What a host that is connected to a cloud depends on besides its executor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloudHealth {
    /// Why there is no connection to Redis.
    pub redis_error: Option<String>,
    /// Why results can't be stored.
    pub store_error: Option<String>,
    /// Why the server refuses writes.
    pub write_refusal: Option<String>,
    /// Why cancels can't be read.
    pub cancel_error: Option<String>,
    /// Why claimed messages can't be checked.
    pub check_error: Option<String>,
    /// Why new messages can't be claimed.
    pub read_error: Option<String>,
    /// Why pending messages can't be looked at.
    pub pending_error: Option<String>,
    /// Events that fitted no job's state.
    pub faults: Vec<String>,
    pub is_state_disk_full: bool,
    pub vpn: VpnHealth,
}

/// The VPN's part of readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VpnHealth {
    Usable,
    /// Not usable, with the reason of the last check if there was one.
    Unusable(Option<String>),
}

/// One reason why no jobs are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// The host has not connected to its cloud yet.
    Starting,
    Held(Hold),
    RedisUnreachable(String),
    Panicked(String),
    StuckCall(StuckControlCall),
    StuckJob(StuckJob),
    WorkerDied(WorkerDeaths),
    StoreFailed(String),
    CancelsUnread(String),
    ChecksFail(String),
    WritesRefused(String),
    ReadRefused(String),
    PendingUnreadable(String),
    Fault(String),
    StateDiskFull,
    VpnUnusable(Option<String>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Starting => f.write_str("starting: not connected to the cloud yet"),
            Reason::Held(hold) => hold.fmt(f),
            Reason::RedisUnreachable(error) => {
                write!(
                    f,
                    "Redis is not reachable, so no new jobs are taken: {error}; check the network and the login to it"
                )
            }
            Reason::StuckCall(StuckControlCall { call, plugin, seconds, killed_after: None }) => write!(
                f,
                "the plugin {plugin} has not returned from its {call} for {seconds} s: restart coda-host"
            ),
            Reason::StuckCall(StuckControlCall { call, plugin, seconds, killed_after: Some(limit) }) => {
                write!(
                    f,
                    "the plugin {plugin} has not returned from its {call} for {seconds} s; its process is killed after \
                 {limit:?}"
                )
            }
            Reason::Panicked(panic) => {
                write!(f, "the host is ending, because {panic}: report this as a bug with its log")
            }
            Reason::StuckJob(StuckJob { job_id, seconds }) => write!(
                f,
                "the executor is stuck in job {job_id} for {seconds} s: restart coda-host (with \
                 CODA_EXECUTOR_ISOLATION=process it would be ended by itself)"
            ),
            Reason::WorkerDied(WorkerDeaths { in_a_row: 1, last }) => {
                write!(f, "the plugin's process {last}; it is started again")
            }
            Reason::WorkerDied(WorkerDeaths { in_a_row, last }) => write!(
                f,
                "the plugin's process has died {in_a_row} times in a row, the last time it {last}; it is started \
                 again"
            ),
            Reason::StoreFailed(error) => {
                write!(f, "results can't be stored, so nothing more is run: {error}; free space or unlock it")
            }
            Reason::WritesRefused(error) => write!(
                f,
                "Redis refuses to write states and acknowledgements: {error}; correct what it names, they are kept"
            ),
            Reason::CancelsUnread(error) => {
                write!(
                    f,
                    "cancels can't be read, so jobs that were cancelled may run on: {error}; allow GET or wait \
                     for the server"
                )
            }
            Reason::ChecksFail(error) => {
                write!(
                    f,
                    "claimed messages can't be checked and stay pending: {error}; correct what it names"
                )
            }
            Reason::ReadRefused(error) => {
                write!(f, "new jobs can't be claimed: {error}; allow the command or wait for the server")
            }
            Reason::PendingUnreadable(error) => write!(
                f,
                "messages that were left pending can't be looked at: {error}; allow the command or wait for the server"
            ),
            Reason::Fault(fault) => write!(f, "{fault}: report this as a bug, then restart"),
            Reason::StateDiskFull => {
                f.write_str("the state disk is nearly full: free space, no jobs are claimed until then")
            }
            Reason::VpnUnusable(why) => {
                let why = why.as_deref().unwrap_or("not checked yet");
                write!(f, "the VPN to Coda is not usable: {why}; see the log and coda-node-openvpn.log")
            }
        }
    }
}

/// Every reason why no jobs are taken; none when the host is ready.
pub fn reasons(inputs: &ReadinessInputs) -> Vec<Reason> {
    let ReadinessInputs { panic, executor, hold, cloud } = inputs;
    let mut reasons = Vec::new();
    reasons.extend(panic.clone().map(Reason::Panicked));

    reasons.extend(hold.clone().map(Reason::Held));

    if let Some(cloud) = cloud {
        reasons.extend(cloud.redis_error.clone().map(Reason::RedisUnreachable));
    }

    reasons.extend(executor.stuck_call.clone().map(Reason::StuckCall));
    reasons.extend(executor.stuck_run.clone().map(Reason::StuckJob));
    reasons.extend(executor.worker.clone().map(Reason::WorkerDied));

    if let Some(cloud) = cloud {
        reasons.extend(cloud.store_error.clone().map(Reason::StoreFailed));
        reasons.extend(cloud.write_refusal.clone().map(Reason::WritesRefused));
        reasons.extend(cloud.cancel_error.clone().map(Reason::CancelsUnread));
        reasons.extend(cloud.check_error.clone().map(Reason::ChecksFail));
        reasons.extend(cloud.read_error.clone().map(Reason::ReadRefused));
        reasons.extend(cloud.pending_error.clone().map(Reason::PendingUnreadable));
        reasons.extend(cloud.faults.iter().cloned().map(Reason::Fault));
        reasons.extend(cloud.is_state_disk_full.then_some(Reason::StateDiskFull));
        if let VpnHealth::Unusable(why) = &cloud.vpn {
            reasons.push(Reason::VpnUnusable(why.clone()));
        }
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn healthy() -> CloudHealth {
        CloudHealth {
            redis_error: None,
            store_error: None,
            write_refusal: None,
            cancel_error: None,
            check_error: None,
            read_error: None,
            pending_error: None,
            faults: Vec::new(),
            is_state_disk_full: false,
            vpn: VpnHealth::Usable,
        }
    }

    fn texts(executor: ExecutorHealth, cloud: Option<CloudHealth>) -> Vec<String> {
        reasons(&ReadinessInputs { executor, cloud, ..ReadinessInputs::default() })
            .iter()
            .map(Reason::to_string)
            .collect()
    }

    #[test]
    fn a_host_without_trouble_is_ready_with_and_without_a_cloud() {
        assert!(texts(ExecutorHealth::default(), None).is_empty());
        assert!(texts(ExecutorHealth::default(), Some(healthy())).is_empty());
    }

    #[test]
    fn each_trouble_is_one_reason_that_says_what_to_do() {
        let job = StuckJob { job_id: "J1".into(), seconds: 7 };
        let deaths = |in_a_row| WorkerDeaths { in_a_row, last: "was killed by signal 9".into() };
        let stuck = ExecutorHealth { stuck_run: Some(job), ..ExecutorHealth::default() };
        let dead = |n| ExecutorHealth { worker: Some(deaths(n)), ..ExecutorHealth::default() };
        let in_call = |killed_after| ExecutorHealth {
            stuck_call: Some(StuckControlCall {
                call: "cancel of job J1".into(),
                plugin: "acme".into(),
                seconds: 7,
                killed_after,
            }),
            ..ExecutorHealth::default()
        };
        let fine = ExecutorHealth::default;
        let no_vpn = |why: Option<&str>| VpnHealth::Unusable(why.map(String::from));
        let table: [(ExecutorHealth, CloudHealth, &[&str]); 16] = [
            (
                fine(),
                CloudHealth { redis_error: Some("connection refused".into()), ..healthy() },
                &["Redis is not reachable", "connection refused", "check the network and the login"],
            ),
            (in_call(None), healthy(), &["plugin acme", "its cancel of job J1 for 7 s", "restart coda-host"]),
            (in_call(Some(Duration::from_secs(9))), healthy(), &["plugin acme", "killed after 9s"]),
            (stuck, healthy(), &["stuck in job J1 for 7 s", "restart coda-host"]),
            (dead(1), healthy(), &["the plugin's process was killed by signal 9", "started again"]),
            (dead(3), healthy(), &["has died 3 times in a row", "was killed by signal 9", "started again"]),
            (
                fine(),
                CloudHealth { store_error: Some("database is locked".into()), ..healthy() },
                &["results can't be stored", "database is locked", "free space"],
            ),
            (
                fine(),
                CloudHealth { write_refusal: Some("OOM command not allowed".into()), ..healthy() },
                &["refuses to write", "OOM", "they are kept"],
            ),
            (
                fine(),
                CloudHealth { cancel_error: Some("Redis refused GET: NOPERM".into()), ..healthy() },
                &["cancels can't be read", "NOPERM", "allow GET"],
            ),
            (
                fine(),
                CloudHealth { check_error: Some("Redis refused HGET: NOPERM".into()), ..healthy() },
                &["can't be checked and stay pending", "NOPERM"],
            ),
            (
                fine(),
                CloudHealth { read_error: Some("Redis refused XREADGROUP: BUSY".into()), ..healthy() },
                &["new jobs can't be claimed", "BUSY", "wait for the server"],
            ),
            (
                fine(),
                CloudHealth { pending_error: Some("Redis refused XRANGE: NOPERM".into()), ..healthy() },
                &["left pending can't be looked at", "NOPERM"],
            ),
            (
                fine(),
                CloudHealth {
                    faults: vec!["job J2 got the event Started in the state Parked".into()],
                    ..healthy()
                },
                &["job J2 got the event Started", "report this as a bug"],
            ),
            (
                fine(),
                CloudHealth { is_state_disk_full: true, ..healthy() },
                &["disk is nearly full", "free space"],
            ),
            (fine(), CloudHealth { vpn: no_vpn(None), ..healthy() }, &["VPN to Coda", "not checked yet"]),
            (fine(), CloudHealth { vpn: no_vpn(Some("no tun0")), ..healthy() }, &["VPN to Coda", "no tun0"]),
        ];
        for (executor, cloud, parts) in table {
            let found = texts(executor.clone(), Some(cloud.clone()));
            assert_eq!(found.len(), 1, "{executor:?} {cloud:?}: {found:?}");
            assert!(parts.iter().all(|part| found[0].contains(part)), "{found:?} {parts:?}");
            assert!(!found[0].contains("  "), "{found:?}");
        }
    }

    #[test]
    fn all_reasons_are_given_and_a_host_without_a_cloud_gives_those_of_its_executor() {
        let executor = ExecutorHealth {
            stuck_call: Some(StuckControlCall {
                call: "shutdown".into(),
                plugin: "acme".into(),
                seconds: 6,
                killed_after: None,
            }),
            stuck_run: Some(StuckJob { job_id: "J1".into(), seconds: 1 }),
            worker: Some(WorkerDeaths { in_a_row: 1, last: "ended".into() }),
        };
        let cloud = CloudHealth {
            redis_error: Some("refused".into()),
            store_error: Some("disk".into()),
            write_refusal: Some("refused".into()),
            cancel_error: Some("refused".into()),
            check_error: Some("refused".into()),
            read_error: Some("refused".into()),
            pending_error: Some("refused".into()),
            faults: vec!["a".into(), "b".into()],
            is_state_disk_full: true,
            vpn: VpnHealth::Unusable(None),
        };
        let all = reasons(&ReadinessInputs {
            panic: Some("x".into()),
            executor: executor.clone(),
            hold: Some(Hold::PauseUnreadable("no JSON".into())),
            cloud: Some(cloud),
        });
        assert_eq!(all.len(), 16);
        assert_eq!(all[0], Reason::Panicked("x".into()), "first what most depends on");
        assert_eq!(all[2], Reason::RedisUnreachable("refused".into()));
        let alone = reasons(&ReadinessInputs { executor, ..ReadinessInputs::default() });
        assert!(
            matches!(alone[..], [Reason::StuckCall(_), Reason::StuckJob(_), Reason::WorkerDied(_)]),
            "{alone:?}"
        );
    }
}
