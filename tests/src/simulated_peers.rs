//! Peers for networks of a thousand: real libp2p, a given number of slots, a fixed time for each block, and no computation:
//! the state comes back as it was.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coda_host::peers::protocol::FULL;
use coda_host::peers::registry::{GossipError, Topic};
use coda_host::peers::swarm::{
    Announcement, Caller, Channel, Document, Network, NetworkSettings, ReadyAnswer, Role,
};
use coda_host::peers::wire::PeerStep;
use libp2p::identity::Keypair;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::misbehaving_peers::{announcement, good_answer};

/// What happened at a peer.
#[derive(Debug, Default)]
pub struct PeerCounts {
    /// Gossip of others that arrived, once each.
    pub heard: AtomicU64,
    /// Prepares that were declined for want of a slot.
    pub declined: AtomicU64,
    /// Slots that are held.
    pub held: AtomicU64,
}

/// A peer of such a network.
pub struct SimulatedPeer {
    pub network: Network,
    pub peer_id: String,
    pub counts: Arc<PeerCounts>,
}

impl SimulatedPeer {
    /// Starts one that has so many slots and takes so long for each block.
    pub async fn start(settings: NetworkSettings, slots: usize, run: Duration) -> SimulatedPeer {
        let key = Keypair::generate_ed25519();
        let peer_id = key.public().to_peer_id().to_string();
        let counts = Arc::new(PeerCounts::default());
        let (held, running) = (BTreeSet::new(), VecDeque::new());
        let role = PeerRole { me: peer_id.clone(), slots, run, counts: counts.clone(), held, running };
        let network = Network::start(key, settings, move || role).await.expect("the peer can listen");
        SimulatedPeer { network, peer_id, counts }
    }

    /// What it says of itself now.
    pub fn announcement(&self) -> Announcement {
        let addresses = self.network.view().borrow().addresses.clone();
        announcement(&self.peer_id, &addresses, self.counts.held.load(Ordering::Relaxed) as i64)
    }
}

struct PeerRole {
    me: String,
    slots: usize,
    run: Duration,
    counts: Arc<PeerCounts>,
    /// Reservations that hold a slot.
    held: BTreeSet<String>,
    /// Answers to dispatches, in the order in which they are due, and whose slot each frees.
    running: VecDeque<(Instant, String, ReadyAnswer)>,
}

impl PeerRole {
    fn count_held(&self) {
        self.counts.held.store(self.held.len() as u64, Ordering::Relaxed);
    }
}

impl Role for PeerRole {
    fn serves(&self) -> bool {
        true
    }

    fn request(
        &mut self,
        _: Caller,
        step: PeerStep,
        document: Document,
        channel: Channel,
    ) -> Option<ReadyAnswer> {
        let document: Value = serde_json::from_slice(&document.bytes).expect("the coordinator sends JSON");
        let id = document["reservation_id"].as_str().expect("an id").to_string();
        let mut answer = good_answer(&self.me, step, &document);
        match step {
            PeerStep::Prepare if self.held.len() >= self.slots && !self.held.contains(&id) => {
                self.counts.declined.fetch_add(1, Ordering::Relaxed);
                answer["transition"] = json!("rejected");
                answer["reason"] = json!(FULL);
            }
            PeerStep::Prepare => {
                self.held.insert(id.clone());
            }
            PeerStep::Cancel => {
                self.held.remove(&id);
            }
            PeerStep::Commit | PeerStep::Dispatch => {}
        }
        self.count_held();
        let ready = ReadyAnswer { step, channel, bytes: answer.to_string().into_bytes() };
        if step != PeerStep::Dispatch {
            return Some(ready);
        }
        self.running.push_back((Instant::now() + self.run, id, ready));
        None
    }

    async fn work(&mut self) {
        match self.running.front() {
            Some((due, _, _)) => tokio::time::sleep_until(*due).await,
            None => std::future::pending().await,
        }
    }

    fn answers(&mut self) -> Vec<ReadyAnswer> {
        let mut ready = Vec::new();
        while self.running.front().is_some_and(|(due, _, _)| *due <= Instant::now()) {
            let Some((_, id, answer)) = self.running.pop_front() else { break };
            self.held.remove(&id);
            ready.push(answer);
        }
        self.count_held();
        ready
    }

    fn hear(&mut self, _: &str, _: Topic, _: &[u8]) -> Result<(), GossipError> {
        self.counts.heard.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn announcement(&self, addresses: &[String]) -> Option<Announcement> {
        Some(announcement(&self.me, addresses, self.held.len() as i64))
    }
}
