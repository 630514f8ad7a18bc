//! The coordinator's role in the network: it serves no requests and collects gossip of all peers.
//!
//! The gossip is kept in the [`Directory`], which planning and the API read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::plan::Candidate;
use crate::peers::registry::{GossipError, PeerRecord, Registry, Topic};
use crate::peers::swarm::{Announcement, Caller, Channel, Document, ReadyAnswer, Role};
use crate::peers::wire::{HealthStatus, PeerStep};

/// The peers of the network, shared between the network's thread, planning and the API.
#[derive(Clone)]
pub struct Directory {
    registry: Arc<Mutex<Registry>>,
    started: Instant,
}

/// A peer, with how long ago it was heard.
#[derive(Debug, Clone)]
pub struct KnownPeer {
    pub record: PeerRecord,
    pub stale: bool,
    pub heard_seconds_ago: u64,
}

impl Directory {
    pub fn new(stale: Duration) -> Directory {
        let stale_ms = u64::try_from(stale.as_millis()).unwrap_or(u64::MAX);
        Directory { registry: Arc::new(Mutex::new(Registry::new(stale_ms))), started: Instant::now() }
    }

    /// A panic elsewhere leaves the registry whole: each change is one call.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Takes a gossip message that `author` has signed.
    ///
    /// # Errors
    /// When the message is invalid, speaks for another peer, or too many peers are known.
    pub fn hear(&self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError> {
        self.registry().hear(self.now_ms(), author, topic, bytes)
    }

    pub fn sweep(&self) {
        self.registry().sweep(self.now_ms());
    }

    /// Everybody, by peer id.
    pub fn known_peers(&self) -> BTreeMap<String, KnownPeer> {
        let (registry, now) = (self.registry(), self.now_ms());
        let known = |record: &PeerRecord| KnownPeer {
            record: record.clone(),
            stale: registry.is_stale(record, now),
            heard_seconds_ago: now.saturating_sub(record.heard_ms) / 1000,
        };
        registry.peers().iter().map(|(id, p)| (id.clone(), known(p))).collect()
    }

    /// Those that may be planned on.
    pub fn candidates(&self) -> Vec<Candidate> {
        let (registry, now) = (self.registry(), self.now_ms());
        let healthy = |p: &PeerRecord| !registry.is_stale(p, now) && p.health == Some(HealthStatus::Healthy);
        let candidate = |(id, p): (&String, &PeerRecord)| Candidate {
            peer_id: id.clone(),
            services: p.services.clone(),
            fidelity: p.fidelity.clone(),
            load: p.reservations.saturating_add(p.executions),
        };
        registry.peers().iter().filter(|(_, p)| healthy(p)).map(candidate).collect()
    }

    pub fn addresses(&self, peer: &str) -> Vec<String> {
        self.registry().peers().get(peer).map(|p| p.addresses.clone()).unwrap_or_default()
    }

    pub fn report_fidelity(&self, peer: &str, services: &[String], fidelity: f64) {
        self.registry().report_fidelity(peer, services, fidelity);
    }
}

/// What the network calls.
pub struct Listener {
    directory: Directory,
    sweep: tokio::time::Interval,
}

impl Listener {
    /// To be called on the network's thread.
    pub fn new(directory: Directory, sweep: Duration) -> Listener {
        Listener { directory, sweep: tokio::time::interval(sweep) }
    }
}

impl Role for Listener {
    fn serves(&self) -> bool {
        false
    }

    fn request(&mut self, caller: Caller, step: PeerStep, _: Document, _: Channel) -> Option<ReadyAnswer> {
        tracing::debug!(peer = caller.peer, step = step.name(), "a coordinator has nothing to lend");
        None
    }

    async fn work(&mut self) {
        self.sweep.tick().await;
        self.directory.sweep();
    }

    fn answers(&mut self) -> Vec<ReadyAnswer> {
        Vec::new()
    }

    fn hear(&mut self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError> {
        self.directory.hear(author, topic, bytes)
    }

    fn announcement(&self, _: &[String]) -> Option<Announcement> {
        None
    }
}
