//! Peers inside the test program that behave as they shouldn't, on a real libp2p network.

use coda_host::peers::protocol::PeerTime;
use coda_host::peers::registry::{GossipError, Topic};
use coda_host::peers::swarm::{
    Announcement, Caller, Channel, Document, Network, NetworkSettings, ReadyAnswer, Role,
};
use coda_host::peers::wire::{
    self, Advertisement, HealthStatus, PeerHeartbeat, PeerStep, ReceivedDispatch, ServiceSummary,
};
use coda_host::peers::{executing, protocol};
use libp2p::identity::Keypair;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::mpsc;

/// What goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum Behave {
    /// Everything is accepted; the state comes back as it was.
    Idle,
    Decline,
    /// Never answers this step.
    Silent(PeerStep),
    /// Answers a commit, and is gone.
    DieAfterCommit,
    /// Is gone when a dispatch comes.
    DieInDispatch,
    /// Answers this step with this text; empty: closes without an answer.
    Rubbish(PeerStep, String),
    /// Answers this step with a good answer that is changed at this pointer.
    Patched(PeerStep, &'static str, Value),
    Failed,
}

/// What a misbehaving_peers peer heard.
#[derive(Debug, Clone, PartialEq)]
pub struct Heard {
    pub step: PeerStep,
    pub from: String,
    pub document: Value,
}

pub struct Crooked {
    pub network: Network,
    pub peer_id: String,
    pub heard: mpsc::UnboundedReceiver<Heard>,
}

struct CrookedRole {
    me: String,
    behave: Behave,
    heard: mpsc::UnboundedSender<Heard>,
    /// Channels that are never answered.
    kept: Vec<Channel>,
    gone: bool,
    end: mpsc::UnboundedSender<()>,
}

/// Joins with a peer id that sorts before these, so that it is planned on first; a load above 0 ranks it later.
pub async fn join(bootstrap: &str, behave: Behave, before: &[&str]) -> Crooked {
    let key = loop {
        let key = Keypair::generate_ed25519();
        let id = key.public().to_peer_id().to_string();
        if before.iter().all(|other| id.as_str() < *other) {
            break key;
        }
    };
    start(key, settings(bootstrap), behave).await
}

/// Joins a network with these settings.
pub async fn join_with(settings: NetworkSettings, behave: Behave) -> Crooked {
    start(Keypair::generate_ed25519(), settings, behave).await
}

async fn start(key: Keypair, settings: NetworkSettings, behave: Behave) -> Crooked {
    let me = key.public().to_peer_id().to_string();
    let (heard, hears) = mpsc::unbounded_channel();
    let (end, mut ends) = mpsc::unbounded_channel();
    let role = CrookedRole { me: me.clone(), behave, heard, kept: Vec::new(), gone: false, end };
    let network = Network::start(key, settings, move || role).await.expect("the peer can listen");
    let dying = network.clone();
    tokio::spawn(async move {
        if ends.recv().await.is_some() {
            dying.stop().await;
        }
    });
    Crooked { network, peer_id: me, heard: hears }
}

/// A network on loopback that dials this address.
pub fn settings(bootstrap: &str) -> NetworkSettings {
    let second = Duration::from_secs(1);
    NetworkSettings {
        namespace: "quantum-backend".into(),
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().expect("an address")],
        bootstrap: vec![bootstrap.parse().expect("an address")],
        advertise: Vec::new(),
        max_connections: 256,
        read_limit: 5 * second,
        exchange_limit: 60 * second,
        idle: 600 * second,
        redial: second / 10,
        heartbeat: second / 5,
        max_document: 64 << 20,
        max_memory: 256 << 20,
    }
}

impl CrookedRole {
    fn bytes(&self, step: PeerStep, document: &Value) -> Option<Vec<u8>> {
        match &self.behave {
            Behave::Rubbish(at, text) if *at == step => (!text.is_empty()).then(|| text.clone().into_bytes()),
            Behave::Decline if step == PeerStep::Prepare => {
                let mut answer = good_answer(&self.me, step, document);
                answer["transition"] = json!("rejected");
                answer["reason"] = json!("not today");
                Some(answer.to_string().into_bytes())
            }
            Behave::Failed if step == PeerStep::Dispatch => {
                let request = ReceivedDispatch::read(document.to_string()).expect("a good dispatch");
                Some(wire::write(&protocol::failed(
                    &self.me,
                    &request.head,
                    "the cryostat is warm",
                    PeerTime::default(),
                )))
            }
            Behave::Patched(at, pointer, value) if *at == step => {
                let mut answer = good_answer(&self.me, step, document);
                match answer.pointer_mut(pointer) {
                    Some(place) => *place = value.clone(),
                    None => answer[pointer.trim_start_matches('/')] = value.clone(),
                }
                Some(answer.to_string().into_bytes())
            }
            _ => Some(good_answer(&self.me, step, document).to_string().into_bytes()),
        }
    }

    fn die(&mut self) {
        self.gone = true;
        self.end.send(()).ok();
    }
}

impl Role for CrookedRole {
    fn serves(&self) -> bool {
        true
    }

    fn request(
        &mut self,
        caller: Caller,
        step: PeerStep,
        document: Document,
        channel: Channel,
    ) -> Option<ReadyAnswer> {
        let document: Value = serde_json::from_slice(&document.bytes).expect("the coordinator sends JSON");
        self.heard.send(Heard { step, from: caller.peer, document: document.clone() }).ok();
        if self.gone || self.behave == Behave::Silent(step) {
            self.kept.push(channel);
            return None;
        }
        if self.behave == Behave::DieInDispatch && step == PeerStep::Dispatch {
            self.kept.push(channel);
            self.die();
            return None;
        }
        let bytes = self.bytes(step, &document)?;
        if self.behave == Behave::DieAfterCommit && step == PeerStep::Commit {
            self.die();
        }
        Some(ReadyAnswer { step, channel, bytes })
    }

    async fn work(&mut self) {
        std::future::pending().await
    }

    fn answers(&mut self) -> Vec<ReadyAnswer> {
        Vec::new()
    }

    fn hear(&mut self, _: &str, _: Topic, _: &[u8]) -> Result<(), GossipError> {
        Ok(())
    }

    fn announcement(&self, addresses: &[String]) -> Option<Announcement> {
        Some(announcement(&self.me, addresses, 0))
    }
}

/// A good answer to a step; the state of a dispatch comes back as it was.
pub fn good_answer(me: &str, step: PeerStep, document: &Value) -> Value {
    let now = wire::time(0);
    let id = &document["reservation_id"];
    match step {
        PeerStep::Prepare => json!({
            "reservation_id": id, "accepting_peer_id": me, "transition": "accepted", "reason": null,
            "replied_at": now,
        }),
        PeerStep::Commit => json!({ "reservation_id": id, "transition": "committed", "replied_at": now }),
        PeerStep::Cancel => json!({ "reservation_id": id, "transition": "cancelled", "replied_at": now }),
        PeerStep::Dispatch => {
            let request = ReceivedDispatch::read(document.to_string()).expect("a good dispatch");
            let job = executing::read(&request, 20).expect("a good payload");
            let state = job.amplitudes.clone();
            let bytes = executing::answer(job, &state, me, 1.0, Some(1.0), PeerTime::default());
            serde_json::from_slice(&bytes).expect("JSON")
        }
    }
}

/// What a healthy peer of every service says of itself.
pub fn announcement(me: &str, addresses: &[String], active_reservations: i64) -> Announcement {
    let emitted_at = wire::time(0);
    let summary = |service: &&str| ServiceSummary {
        service_id: service.to_string(),
        version: "1.0.0".into(),
        quantum_capability: service.to_string(),
        benchmark_mode: "sim".into(),
    };
    let advertisement = Advertisement {
        peer_id: me.into(),
        trust_tier: "external".into(),
        network_addresses: addresses.to_vec(),
        supported_protocols: Vec::new(),
        service_summaries: coda_host::model::SERVICES.iter().map(summary).collect(),
        peer_log_position: 0,
        emitted_at: emitted_at.clone(),
    };
    let heartbeat = PeerHeartbeat {
        peer_id: me.into(),
        health_status: HealthStatus::Healthy,
        active_reservations,
        active_executions: 0,
        peer_log_position: 0,
        emitted_at,
    };
    Announcement { advertisement: wire::write(&advertisement), heartbeat: wire::write(&heartbeat) }
}
