//! What runs on every connection: limits, gossip, identify, ping, and the four protocols with their codecs.

use std::time::Duration;

use libp2p::connection_limits::{self, ConnectionLimits};
use libp2p::gossipsub::{self, MessageAuthenticity};
use libp2p::identity::Keypair;
use libp2p::request_response::{self, ProtocolSupport};
use libp2p::swarm::NetworkBehaviour;
use libp2p::{identify, ping};

use super::codec::{Budget, Codec, Protocol};
use super::{AGENT, NetworkError, NetworkSettings};
use crate::peers::wire::PeerStep;

/// Bytes of a prepare, commit or cancel.
const SMALL_DOCUMENT: usize = 32 << 10;
const MAX_STREAMS: usize = 1024;
const MAX_PER_PEER: u32 = 8;

#[derive(NetworkBehaviour)]
pub struct Behaviour {
    limits: connection_limits::Behaviour,
    pub gossip: gossipsub::Behaviour,
    identify: identify::Behaviour,
    ping: ping::Behaviour,
    prepare: request_response::Behaviour<Codec>,
    commit: request_response::Behaviour<Codec>,
    cancel: request_response::Behaviour<Codec>,
    dispatch: request_response::Behaviour<Codec>,
}

impl Behaviour {
    pub fn step(&mut self, step: PeerStep) -> &mut request_response::Behaviour<Codec> {
        match step {
            PeerStep::Prepare => &mut self.prepare,
            PeerStep::Commit => &mut self.commit,
            PeerStep::Cancel => &mut self.cancel,
            PeerStep::Dispatch => &mut self.dispatch,
        }
    }
}

/// Everything that runs on one connection, within its bounds.
///
/// # Errors
/// When gossip can't be set up with these settings.
pub fn behaviour(key: &Keypair, settings: &NetworkSettings, serves: bool) -> Result<Behaviour, NetworkError> {
    let setup = |e: &dyn std::fmt::Display| NetworkError::Setup(e.to_string());
    let gossip = gossipsub::ConfigBuilder::default()
        .validation_mode(gossipsub::ValidationMode::Strict)
        .validate_messages()
        .heartbeat_interval(Duration::from_secs(1))
        .max_transmit_size(crate::peers::registry::MAX_GOSSIP_BYTES)
        .build()
        .map_err(|e| setup(&e))?;
    let about = identify::Config::new("/qb2/1.0.0".into(), key.public()).with_agent_version(AGENT.into());
    let budget = Budget::new(settings.max_memory);
    let support = if serves { ProtocolSupport::Full } else { ProtocolSupport::Outbound };
    let step = |step: PeerStep| {
        let max_bytes = if step == PeerStep::Dispatch { settings.max_document } else { SMALL_DOCUMENT };
        let codec = Codec { max_bytes, read_limit: settings.read_limit, budget: budget.clone() };
        let config = request_response::Config::default()
            .with_request_timeout(settings.exchange_limit)
            .with_max_concurrent_streams(MAX_STREAMS);
        let protocol = Protocol(step.protocol(&settings.namespace).into());
        request_response::Behaviour::with_codec(codec, [(protocol, support.clone())], config)
    };
    // Far above: the event loop closes unused ones before.
    let let_in = u32::try_from(settings.max_connections.saturating_mul(2)).unwrap_or(u32::MAX);
    let limits = ConnectionLimits::default()
        .with_max_pending_incoming(Some(let_in))
        .with_max_established_incoming(Some(let_in))
        .with_max_established_per_peer(Some(MAX_PER_PEER));
    Ok(Behaviour {
        limits: connection_limits::Behaviour::new(limits),
        gossip: gossipsub::Behaviour::new(MessageAuthenticity::Signed(key.clone()), gossip)
            .map_err(|e| setup(&e))?,
        identify: identify::Behaviour::new(about),
        ping: ping::Behaviour::default(),
        prepare: step(PeerStep::Prepare),
        commit: step(PeerStep::Commit),
        cancel: step(PeerStep::Cancel),
        dispatch: step(PeerStep::Dispatch),
    })
}
