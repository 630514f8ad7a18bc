//! Pure: the peers of the network, from the gossip of each.
//!
//! A message counts only when its `peer_id` is its signed author. A peer is stale when neither kind of message came
//! for a while by our clock; without a heartbeat its health is unknown, without an advertisement it has no services.
//! The number of peers is bounded: newcomers take the place of stale ones only.

use std::collections::BTreeMap;

use super::wire::{Advertisement, DocumentError, HealthStatus, PeerHeartbeat, read};

/// Peers kept at most.
const MAX_PEERS: usize = 1024;
/// Most addresses of one peer that are kept.
const MAX_ADDRESSES: usize = 16;
/// Most services of one peer that are kept.
const MAX_SERVICES: usize = 64;
/// Longest gossip message.
pub const MAX_GOSSIP_BYTES: usize = 64 << 10;

/// Why a gossip message is dropped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GossipError {
    #[error("it has {0} bytes")]
    TooLong(usize),
    #[error("it has no author")]
    NoAuthor,
    #[error("it has another topic")]
    Topic,
    #[error(transparent)]
    Document(#[from] DocumentError),
    #[error("it speaks for {claimed}, its author is {author}")]
    Author { claimed: String, author: String },
    #[error("{MAX_PEERS} peers are known already")]
    TooManyPeers,
}

/// The two topics of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    Advertisement,
    Heartbeat,
}

impl Topic {
    pub fn name(self, namespace: &str) -> String {
        match self {
            Topic::Advertisement => format!("{namespace}.peer-advertisement.v1"),
            Topic::Heartbeat => format!("{namespace}.peer-heartbeat.v1"),
        }
    }
}

/// One peer: what it announces, and what it reported for executions of this host.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PeerRecord {
    pub addresses: Vec<String>,
    pub trust_tier: Option<String>,
    pub services: Vec<String>,
    pub health: Option<HealthStatus>,
    pub reservations: u64,
    pub executions: u64,
    /// Milliseconds since our start.
    pub heard_ms: u64,
    pub advertised: bool,
    /// Its connection was lost or it could not be reached, and it was not heard since.
    pub lost: bool,
    /// The last fidelity that it reported, by service.
    pub fidelity: BTreeMap<String, f64>,
}

#[derive(Debug, Clone, Default)]
pub struct Registry {
    peers: BTreeMap<String, PeerRecord>,
    stale_ms: u64,
}

impl Registry {
    pub fn new(stale_ms: u64) -> Registry {
        Registry { peers: BTreeMap::new(), stale_ms }
    }

    /// Takes a message that `author` has signed.
    ///
    /// # Errors
    /// When the message is too long, invalid or not about its author, or too many peers are known.
    pub fn hear(&mut self, now_ms: u64, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError> {
        if bytes.len() > MAX_GOSSIP_BYTES {
            return Err(GossipError::TooLong(bytes.len()));
        }
        let genuine = |peer_id: &str| match peer_id == author {
            true => Ok(()),
            false => Err(GossipError::Author {
                claimed: crate::model::cut(peer_id, 80).into(),
                author: author.into(),
            }),
        };
        match topic {
            Topic::Advertisement => {
                let said: Advertisement = read(bytes)?;
                genuine(&said.peer_id)?;
                let peer = self.peer(now_ms, author)?;
                peer.heard_ms = now_ms;
                peer.lost = false;
                peer.advertised = true;
                peer.trust_tier = Some(said.trust_tier);
                peer.addresses = said.network_addresses.into_iter().take(MAX_ADDRESSES).collect();
                peer.services =
                    said.service_summaries.into_iter().take(MAX_SERVICES).map(|s| s.service_id).collect();
            }
            Topic::Heartbeat => {
                let said: PeerHeartbeat = read(bytes)?;
                genuine(&said.peer_id)?;
                let peer = self.peer(now_ms, author)?;
                peer.heard_ms = now_ms;
                peer.lost = false;
                peer.health = Some(said.health_status);
                // Not negative: the document says so.
                peer.reservations = said.active_reservations.unsigned_abs();
                peer.executions = said.active_executions.unsigned_abs();
            }
        }
        Ok(())
    }

    fn peer(&mut self, now_ms: u64, id: &str) -> Result<&mut PeerRecord, GossipError> {
        if !self.peers.contains_key(id) && self.peers.len() >= MAX_PEERS {
            let stale = self.peers.iter().find(|(_, p)| self.is_stale(p, now_ms)).map(|(id, _)| id.clone());
            let stale = stale.ok_or(GossipError::TooManyPeers)?;
            self.peers.remove(&stale);
        }
        Ok(self.peers.entry(id.into()).or_default())
    }

    /// Takes note of a fidelity that a peer reported for these services.
    pub fn report_fidelity(&mut self, peer: &str, services: &[String], fidelity: f64) {
        let Some(peer) = self.peers.get_mut(peer) else { return };
        for service in services {
            peer.fidelity.insert(service.clone(), fidelity);
        }
    }

    /// Takes note that a peer is connected.
    pub fn connected(&mut self, peer: &str) {
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.lost = false;
        }
    }

    /// Takes note that a peer can't be reached. Returns whether it is known.
    pub fn lost(&mut self, peer: &str) -> bool {
        let known = self.peers.get_mut(peer);
        known.map(|peer| peer.lost = true).is_some()
    }

    pub fn is_stale(&self, peer: &PeerRecord, now_ms: u64) -> bool {
        now_ms.saturating_sub(peer.heard_ms) > self.stale_ms
    }

    /// Forgets those that have been stale for long.
    pub fn sweep(&mut self, now_ms: u64) {
        let forget = self.stale_ms.saturating_mul(10);
        self.peers.retain(|_, p| now_ms.saturating_sub(p.heard_ms) <= forget);
    }

    /// Everybody, by peer id.
    pub fn peers(&self) -> &BTreeMap<String, PeerRecord> {
        &self.peers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const A: &str = "12D3KooWpeerA";

    fn heartbeat(peer: &str) -> Vec<u8> {
        json!({"peer_id": peer, "health_status": "healthy", "active_reservations": 1, "active_executions": 2,
               "peer_log_position": 0, "emitted_at": "2026-04-20T00:55:00Z"})
        .to_string()
        .into_bytes()
    }

    fn advertisement(peer: &str) -> Vec<u8> {
        json!({"peer_id": peer, "trust_tier": "external", "network_addresses": ["/ip4/127.0.0.1/tcp/1"],
               "supported_protocols": [], "peer_log_position": 0, "emitted_at": "2026-04-20T00:55:00+00:00",
               "service_summaries": [{"service_id": "qft", "version": "1.0.0", "quantum_capability": "qft",
                                      "benchmark_mode": "sim"}]})
        .to_string()
        .into_bytes()
    }

    #[test]
    fn both_messages_make_a_peer_and_silence_makes_it_stale() {
        let mut r = Registry::new(300_000);
        r.hear(0, A, Topic::Heartbeat, &heartbeat(A)).unwrap();
        assert_eq!((r.peers()[A].advertised, r.peers()[A].services.len()), (false, 0));
        r.hear(1_000, A, Topic::Advertisement, &advertisement(A)).unwrap();
        let peer = r.peers()[A].clone();
        assert_eq!((peer.services, peer.reservations, peer.executions), (vec!["qft".to_string()], 1, 2));
        assert!(!r.is_stale(&r.peers()[A], 301_000) && r.is_stale(&r.peers()[A], 301_001));
        r.sweep(3_001_001);
        assert!(r.peers().is_empty());
    }

    #[test]
    fn who_speaks_for_another_is_dropped() {
        let mut r = Registry::new(300_000);
        let error = r.hear(0, "12D3KooWliar", Topic::Heartbeat, &heartbeat(A)).unwrap_err().to_string();
        assert!(error.contains("speaks for") && r.peers().is_empty(), "{error}");
        for bad in [&b"{}"[..], b"rubbish", br#"{"peer_id": 1}"#] {
            assert!(r.hear(0, A, Topic::Advertisement, bad).is_err());
        }
        let mut unknown: serde_json::Value = serde_json::from_slice(&heartbeat(A)).unwrap();
        unknown["surprise"] = json!(1);
        assert!(r.hear(0, A, Topic::Heartbeat, unknown.to_string().as_bytes()).is_err());
        let mut no_zone: serde_json::Value = serde_json::from_slice(&heartbeat(A)).unwrap();
        no_zone["emitted_at"] = json!("2026-04-20T00:55:00");
        assert!(r.hear(0, A, Topic::Heartbeat, no_zone.to_string().as_bytes()).is_err());
    }

    #[test]
    fn the_number_of_peers_is_bounded() {
        let mut r = Registry::new(1_000);
        for n in 0..MAX_PEERS {
            let id = format!("12D3KooW{n}");
            r.hear(n as u64, &id, Topic::Heartbeat, &heartbeat(&id)).unwrap();
        }
        assert!(r.hear(1_000, A, Topic::Heartbeat, &heartbeat(A)).is_err(), "nobody is stale");
        r.hear(1_001, A, Topic::Heartbeat, &heartbeat(A)).unwrap();
        assert!(!r.peers().contains_key("12D3KooW0") && r.peers().len() == MAX_PEERS);
    }
}
