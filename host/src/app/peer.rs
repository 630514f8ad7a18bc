//! The peer stage: the executor's slots, lent through the network.
//!
//! A stop declines new reservations, lets running executions come back within the drain time, then leaves the network;
//! the open reservations end with it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use coda_plugin_abi::descriptor::Kind;
use coda_plugin_abi::{Amplitude, Operation};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::api::PeerSources;
use crate::config::settings::{AllowSetting, PeerSettings, SiteLimits};
use crate::error::Failure;
use crate::executor::{EvolveJob, EvolveOutcome, Executor, JobContext, LeaseRefusal, SlotLease, SlotLender};
use crate::model::JobId;
use crate::peers::executing::ExecutionError;
use crate::peers::identity;
use crate::peers::peer::{FragmentExecutor, FragmentResult, FragmentWork, Peer, PeerView};
use crate::peers::protocol::{Allow, NoSlot, PeerLimits, ReservationTable, Slots};
use crate::peers::swarm::{Network, NetworkSettings, NetworkView, peer_of};
use crate::reservation::log::{Log, now_micros};

/// Tickets of executions for peers begin here, far from those of cloud jobs.
const FIRST_TICKET: u64 = 1 << 63;

/// The running stage.
pub struct PeerStage {
    network: Network,
    executor: Arc<PeerExecutor>,
    log: Log,
    pub network_view: watch::Receiver<NetworkView>,
    pub view: watch::Receiver<PeerView>,
}

/// Starts lending.
///
/// # Errors
/// When the identity, the log or the listening address can't be used.
pub async fn start(
    settings: &PeerSettings,
    site: &SiteLimits,
    executor: &Executor,
    state_dir: &Path,
) -> Result<PeerStage, Failure> {
    let key = identity::load(state_dir)?;
    let peer_id = key.public().to_peer_id().to_string();
    let log = Log::sqlite(&Log::default_path(state_dir))?;
    let lost = log.release_lost_holds("the peer was stopped while it held the slot").await?;
    if lost > 0 {
        tracing::warn!(
            lost,
            "a former process held slots for other peers when it ended: their ends are recorded"
        );
    }
    let lent = Arc::new(PeerExecutor {
        lender: executor.slot_lender(),
        running: Arc::default(),
        closing: AtomicBool::new(false),
    });
    let allow = match &settings.allow {
        AllowSetting::Any => Allow::Any,
        AllowSetting::Listed(ids) => Allow::Listed(ids.iter().cloned().collect()),
        AllowSetting::Bootstrap => {
            let ids = settings.network.bootstrap.iter().filter_map(peer_of).map(|p| p.to_string());
            Allow::Listed(ids.collect())
        }
    };
    if allow == Allow::Listed(Default::default()) {
        tracing::warn!("no peer may reserve here: set CODA_PEER_BOOTSTRAP or CODA_PEER_ALLOW");
    }
    if lent.max_qubits().is_none() {
        tracing::warn!(
            plugin = executor.active_plugin().info.name,
            "the plugin can't take over a quantum state (no evolve_state), so every reservation is declined"
        );
    }
    let limits = PeerLimits {
        peer_id: peer_id.clone(),
        allow,
        services: settings.services.clone(),
        max_ttl_seconds: settings.max_ttl_seconds,
        max_slots: settings.max_slots,
        max_per_peer: settings.max_per_peer,
        max_seconds: site
            .max_run
            .map_or(settings.max_execution, |max| max.min(settings.max_execution))
            .as_secs_f64(),
        max_operations: site.max_gates,
    };
    // Larger than in any former run: microseconds go faster than reservations.
    let table = ReservationTable::new(limits, now_micros().unsigned_abs());
    let (viewed, view) = watch::channel(PeerView::default());
    let network = {
        let (lent, log, namespace) = (lent.clone(), log.clone(), settings.network.namespace.clone());
        let net = network_settings(&settings.network, &settings.listen, settings.max_connections);
        Network::start(key, net, move || Peer::new(table, lent, log, viewed, &namespace)).await?
    };
    tracing::info!(
        peer_id,
        namespace = settings.network.namespace,
        "this host lends its slots to the peer network"
    );
    let network_view = network.view();
    Ok(PeerStage { network, executor: lent, log, network_view, view })
}

/// What the shell needs of the settings.
pub fn network_settings(
    basics: &crate::config::settings::NetworkBasics,
    listen: &[libp2p::Multiaddr],
    max_connections: usize,
) -> NetworkSettings {
    NetworkSettings {
        max_connections,
        namespace: basics.namespace.clone(),
        listen: listen.to_vec(),
        bootstrap: basics.bootstrap.clone(),
        advertise: basics.advertise.clone(),
        read_limit: basics.read_limit,
        exchange_limit: basics.exchange_limit,
        idle: basics.idle,
        redial: basics.redial,
        heartbeat: basics.heartbeat,
        max_document: basics.max_document_bytes,
        max_memory: basics.max_memory_bytes,
    }
}

impl PeerSources {
    /// What the local service reads of a stage.
    pub fn from_stage(stage: &PeerStage) -> PeerSources {
        PeerSources { network: stage.network_view.clone(), peer: stage.view.clone() }
    }
}

impl PeerStage {
    /// Lends nothing new; waits for what runs, at most so long; leaves the network.
    pub async fn end(mut self, limit: Duration) {
        self.executor.closing.store(true, Ordering::Release);
        let idle = self.view.wait_for(|v| v.load.executions == 0);
        if tokio::time::timeout(limit, idle).await.is_err() {
            tracing::warn!("stopped while the executor still ran fragments of peers");
        }
        self.network.stop().await;
        self.log.close().await;
    }
}

/// The executor's slots as the peer role takes them.
struct PeerExecutor {
    lender: SlotLender,
    /// What the executions in the plugin share with it, by their keys.
    running: Arc<Mutex<HashMap<u64, Arc<JobContext>>>>,
    /// Nothing new is lent: the host is stopping.
    closing: AtomicBool,
}

impl Slots for PeerExecutor {
    type Lease = SlotLease;

    fn try_acquire(&self) -> Result<SlotLease, NoSlot> {
        if self.closing.load(Ordering::Acquire) {
            return Err(NoSlot::Closing);
        }
        self.lender.try_lease().map_err(|refusal| match refusal {
            LeaseRefusal::Full => NoSlot::Full,
            LeaseRefusal::JobsWait => NoSlot::JobsWait,
            LeaseRefusal::Held => NoSlot::Paused,
            LeaseRefusal::Stopping => NoSlot::Closing,
        })
    }

    fn acquired_at(&self, _: i64) -> i64 {
        now_micros()
    }

    fn max_qubits(&self) -> Option<u16> {
        self.lender.active_plugin().hooks.evolve_qubits
    }

    fn is_paused(&self) -> bool {
        self.lender.is_held()
    }
}

impl FragmentExecutor for PeerExecutor {
    fn evolve(&self, work: FragmentWork<SlotLease>) {
        let FragmentWork { key, lease, execution_id, num_qubits, amplitudes, steps, done } = work;
        // A name that the host makes up and that can't be guessed: the plugin knows cloud jobs by the same kind of name, and
        // a peer that chose a job's id would cancel the customer's job with its own execution.
        let name: JobId = format!("peer-execution-{}", uuid::Uuid::new_v4()).into();
        tracing::debug!(execution = execution_id, job_id = &*name, "an execution of a peer starts");
        let context = Arc::new(self.lender.context(name.clone()));
        self.running.lock().insert(key, context.clone());
        let amplitude = |[re, im]: [f64; 2]| Amplitude { re, im };
        let operations = steps.iter().map(|u| Operation {
            controls: u.controls,
            target: u.target,
            reserved: 0,
            matrix: u.matrix.map(amplitude),
        });
        let running = self.running.clone();
        let job = EvolveJob {
            ticket: ticket(key),
            job_id: name,
            num_qubits,
            amplitudes: amplitudes.into_iter().map(amplitude).collect(),
            operations: operations.collect(),
            context,
            answer: Box::new(move |outcome| {
                running.lock().remove(&key);
                let EvolveOutcome { answer, run_time, lease } = outcome;
                let answer = answer.map_err(|e| ExecutionError::Executor(e.text));
                let answer = answer.map(|state| state.into_iter().map(|a| [a.re, a.im]).collect());
                // The lease goes on to the peer: the slot is free when the end is recorded.
                done(FragmentResult { lease, answer, run_time });
            }),
        };
        self.lender.evolve_state(lease, job);
    }

    fn stop(&self, key: u64) {
        let context = self.running.lock().get(&key).cloned();
        if let Some(context) = context {
            context.set_cancelled();
            self.lender.cancel(ticket(key));
        }
    }

    fn fidelity(&self) -> Option<f64> {
        // A simulator applies operations exactly; what hardware does is not known here.
        (self.lender.active_plugin().info.kind == Kind::Simulator).then_some(1.0)
    }
}

/// The executor's ticket of an execution.
fn ticket(key: u64) -> u64 {
    FIRST_TICKET + key
}
