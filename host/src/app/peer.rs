//! The peer stage: the executor's slots, lent through the network.
//!
//! A stop declines what comes new, lets what runs come back within the drain time, then leaves the network; holds end
//! with it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use coda_plugin_abi::descriptor::Kind;
use coda_plugin_abi::{Amplitude, Operation};
use tokio::sync::watch;

use crate::api::PeerSources;
use crate::config::settings::{AllowSetting, PeerSettings};
use crate::error::Failure;
use crate::executor::{EvolveJob, Executor, JobContext, SlotLease, SlotLender};
use crate::peers::identity;
use crate::peers::peer::{Evolve, Evolved, Lender, Peer, PeerView};
use crate::peers::protocol::{Allow, NoSlot, PeerLimits, Table};
use crate::peers::swarm::{Network, NetworkSettings, NetworkView, peer_of};
use crate::reservation::log::{Log, now_micros};

/// Tickets of lent slots, unlike those of cloud jobs.
const FIRST_TICKET: u64 = 1 << 63;

/// The running stage.
pub struct PeerStage {
    network: Network,
    lender: Arc<PeerExecutor>,
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
    executor: &Executor,
    state_dir: &Path,
) -> Result<PeerStage, Failure> {
    let key = identity::load(state_dir)?;
    let peer_id = key.public().to_peer_id().to_string();
    let log = Log::sqlite(&Log::default_path(state_dir))?;
    let lender = Arc::new(PeerExecutor {
        slot_lender: executor.slot_lender(),
        slots: Arc::default(),
        next: AtomicU64::new(FIRST_TICKET),
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
    if lender.max_qubits().is_none() {
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
        max_seconds: settings.max_execution.as_secs_f64(),
    };
    // Larger than in any former run: microseconds go faster than reservations.
    let table = Table::new(limits, now_micros().unsigned_abs());
    let (viewed, view) = watch::channel(PeerView::default());
    let network = {
        let (lender, log, namespace) = (lender.clone(), log.clone(), settings.network.namespace.clone());
        let net = network_settings(&settings.network, &settings.listen);
        Network::start(key, net, move || Peer::new(table, lender, log, viewed, &namespace)).await?
    };
    tracing::info!(
        peer_id,
        namespace = settings.network.namespace,
        "this host lends its slots to the peer network"
    );
    let network_view = network.view();
    Ok(PeerStage { network, lender, log, network_view, view })
}

/// What the shell needs of the settings.
pub fn network_settings(
    basics: &crate::config::settings::NetworkBasics,
    listen: &[libp2p::Multiaddr],
) -> NetworkSettings {
    NetworkSettings {
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
    pub fn of(stage: &PeerStage) -> PeerSources {
        PeerSources { network: stage.network_view.clone(), peer: stage.view.clone() }
    }
}

impl PeerStage {
    /// Lends nothing new; waits for what runs, at most so long; leaves the network.
    pub async fn end(mut self, limit: Duration) {
        self.lender.closing.store(true, Ordering::Release);
        let idle = self.view.wait_for(|v| v.load.executions == 0);
        if tokio::time::timeout(limit, idle).await.is_err() {
            tracing::warn!("stopped while the executor still ran fragments of peers");
        }
        self.network.stop().await;
        self.log.close().await;
    }
}

/// An execution's ticket, what tells it to end, and its slot.
type InPlugin = (u64, Arc<JobContext>, SlotLease);

/// The slots that are lent.
#[derive(Default)]
struct Lent {
    /// Interchangeable: one for each reservation that isn't over and doesn't run.
    holds: Mutex<Vec<SlotLease>>,
    /// Executions in the plugin, with their holds.
    running: Mutex<HashMap<String, InPlugin>>,
}

/// The executor's slots as the peer role takes them.
struct PeerExecutor {
    slots: Arc<Lent>,
    slot_lender: SlotLender,
    next: AtomicU64,
    closing: AtomicBool,
}

/// A panic elsewhere leaves these whole: each change is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PeerExecutor {
    fn failed(work: Evolve, text: &str) {
        (work.done)(Evolved { answer: Err(text.into()), run_time: Duration::ZERO });
    }
}

impl Lender for PeerExecutor {
    fn hold(&self) -> Result<(), NoSlot> {
        if self.closing.load(Ordering::Acquire) {
            return Err(NoSlot::Closing);
        }
        match self.slot_lender.try_lease() {
            Some(hold) => {
                lock(&self.slots.holds).push(hold);
                Ok(())
            }
            None if self.slot_lender.load().waiting > 0 => Err(NoSlot::JobsWait),
            None => Err(NoSlot::Full),
        }
    }

    fn release(&self) {
        let hold = lock(&self.slots.holds).pop();
        drop(hold);
    }

    fn evolve(&self, work: Evolve) {
        let Some(hold) = lock(&self.slots.holds).pop() else {
            return PeerExecutor::failed(work, "its slot is gone; please report this as a bug of the peer");
        };
        let ticket = self.next.fetch_add(1, Ordering::Relaxed);
        let context = Arc::new(self.slot_lender.context(work.execution_id.as_str().into()));
        let entry = (ticket, context.clone(), hold.clone());
        lock(&self.slots.running).insert(work.execution_id.clone(), entry);
        let amplitude = |[re, im]: [f64; 2]| Amplitude { re, im };
        let operations = work.steps.iter().map(|u| Operation {
            controls: u.controls,
            target: u.target,
            reserved: 0,
            matrix: u.matrix.map(amplitude),
        });
        let (slots, done, execution_id) = (self.slots.clone(), work.done, work.execution_id.clone());
        let job = EvolveJob {
            ticket,
            job_id: work.execution_id.into(),
            num_qubits: work.num_qubits,
            amplitudes: work.amplitudes.into_iter().map(amplitude).collect(),
            operations: operations.collect(),
            context,
            answer: Box::new(move |end| {
                // Held as before, until the record says that it is free.
                let hold = lock(&slots.running).remove(&execution_id).map(|(_, _, hold)| hold);
                lock(&slots.holds).extend(hold);
                let answer = end.answer.map_err(|e| e.text);
                let answer = answer.map(|state| state.into_iter().map(|a| [a.re, a.im]).collect());
                done(Evolved { answer, run_time: end.run_time });
            }),
        };
        self.slot_lender.evolve_state(&hold, job);
    }

    fn stop(&self, execution_id: &str) {
        let running = lock(&self.slots.running).get(execution_id).map(|(t, c, _)| (*t, c.clone()));
        if let Some((ticket, context)) = running {
            context.set_cancelled();
            self.slot_lender.cancel(ticket);
        }
    }

    fn max_qubits(&self) -> Option<u16> {
        self.slot_lender.active_plugin().hooks.evolve_qubits
    }

    fn fidelity(&self) -> Option<f64> {
        // A simulator applies operations exactly; what hardware does is not known here.
        (self.slot_lender.active_plugin().info.kind == Kind::Simulator).then_some(1.0)
    }
}
