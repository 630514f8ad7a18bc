//! Pure: why a host takes no jobs now. The one place that decides what `/ready` answers, with and without a cloud.
//!
//! ```text
//! what each stage publishes ─ api ─> ReadinessInputs ─ reasons ─> [Reason]      none: ready, 200; else 503
//! ```
//!
//! A reason says what is wrong and what to do, in the operator's words. Reasons are ordered by how much depends on them.

use std::fmt;

/// What readiness depends on, as it was at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadinessInputs {
    /// What has panicked in the host, if anything has. It is ending then.
    pub panic: Option<String>,
    pub executor: ExecutorHealth,
    /// `None` in a host that only lends its slots to peers.
    pub cloud: Option<CloudHealth>,
}

/// The executor's part of readiness.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecutorHealth {
    /// A run in this process that does not end.
    pub stuck_run: Option<StuckJob>,
    /// The plugin's own process has died and does not answer yet.
    pub worker: Option<WorkerDeaths>,
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
    pub is_redis_up: bool,
    /// A control call of the plugin that does not return.
    pub stuck_call: Option<String>,
    /// Why results can't be stored.
    pub store_error: Option<String>,
    /// Why the server refuses writes.
    pub write_refusal: Option<String>,
    /// Why claimed messages can't be checked.
    pub check_error: Option<String>,
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
    RedisUnreachable,
    Panicked(String),
    StuckCall(String),
    StuckJob(StuckJob),
    WorkerDied(WorkerDeaths),
    StoreFailed(String),
    ChecksFail(String),
    WritesRefused(String),
    PendingUnreadable(String),
    Fault(String),
    StateDiskFull,
    VpnUnusable(Option<String>),
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Starting => f.write_str("starting: not connected to the cloud yet"),
            Reason::RedisUnreachable => {
                f.write_str("Redis is not reachable: no new jobs; see the log for its error")
            }
            Reason::Panicked(panic) => {
                write!(f, "the host is ending, because {panic}: report this as a bug with its log")
            }
            Reason::StuckCall(call) => write!(f, "the executor is stuck in its {call}: restart coda-host"),
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
            Reason::ChecksFail(error) => {
                write!(
                    f,
                    "claimed messages can't be checked and stay pending: {error}; correct what it names"
                )
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
    let ReadinessInputs { panic, executor, cloud } = inputs;
    let mut reasons = Vec::new();
    reasons.extend(panic.clone().map(Reason::Panicked));

    if let Some(cloud) = cloud {
        reasons.extend((!cloud.is_redis_up).then_some(Reason::RedisUnreachable));
        reasons.extend(cloud.stuck_call.clone().map(Reason::StuckCall));
    }

    reasons.extend(executor.stuck_run.clone().map(Reason::StuckJob));
    reasons.extend(executor.worker.clone().map(Reason::WorkerDied));

    if let Some(cloud) = cloud {
        reasons.extend(cloud.store_error.clone().map(Reason::StoreFailed));
        reasons.extend(cloud.write_refusal.clone().map(Reason::WritesRefused));
        reasons.extend(cloud.check_error.clone().map(Reason::ChecksFail));
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
            is_redis_up: true,
            stuck_call: None,
            store_error: None,
            write_refusal: None,
            check_error: None,
            pending_error: None,
            faults: Vec::new(),
            is_state_disk_full: false,
            vpn: VpnHealth::Usable,
        }
    }

    fn texts(executor: ExecutorHealth, cloud: Option<CloudHealth>) -> Vec<String> {
        reasons(&ReadinessInputs { panic: None, executor, cloud }).iter().map(Reason::to_string).collect()
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
        let stuck = ExecutorHealth { stuck_run: Some(job), worker: None };
        let dead = |n| ExecutorHealth { stuck_run: None, worker: Some(deaths(n)) };
        let fine = ExecutorHealth::default;
        let no_vpn = |why: Option<&str>| VpnHealth::Unusable(why.map(String::from));
        let table: [(ExecutorHealth, CloudHealth, &[&str]); 13] = [
            (
                fine(),
                CloudHealth { is_redis_up: false, ..healthy() },
                &["Redis is not reachable", "see the log"],
            ),
            (
                fine(),
                CloudHealth { stuck_call: Some("device call".into()), ..healthy() },
                &["stuck in its device call", "restart coda-host"],
            ),
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
                CloudHealth { check_error: Some("Redis refused HGET: NOPERM".into()), ..healthy() },
                &["can't be checked and stay pending", "NOPERM"],
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
            stuck_run: Some(StuckJob { job_id: "J1".into(), seconds: 1 }),
            worker: Some(WorkerDeaths { in_a_row: 1, last: "ended".into() }),
        };
        let cloud = CloudHealth {
            is_redis_up: false,
            stuck_call: Some("device call".into()),
            store_error: Some("disk".into()),
            write_refusal: Some("refused".into()),
            check_error: Some("refused".into()),
            pending_error: Some("refused".into()),
            faults: vec!["a".into(), "b".into()],
            is_state_disk_full: true,
            vpn: VpnHealth::Unusable(None),
        };
        let all = reasons(&ReadinessInputs {
            panic: Some("x".into()),
            executor: executor.clone(),
            cloud: Some(cloud),
        });
        assert_eq!(all.len(), 13);
        assert_eq!(all[0], Reason::Panicked("x".into()), "first what most depends on");
        assert_eq!(all[1], Reason::RedisUnreachable);
        let alone = reasons(&ReadinessInputs { panic: None, executor, cloud: None });
        assert!(matches!(alone[..], [Reason::StuckJob(_), Reason::WorkerDied(_)]), "{alone:?}");
    }
}
