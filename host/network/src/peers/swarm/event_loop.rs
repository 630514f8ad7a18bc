//! The swarm's event loop: libp2p's events go to [`EventLoop::event`], commands of the host are handled in the loop.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::core::transport::ListenerId;
use libp2p::core::upgrade::{NegotiationError, Version};
use libp2p::gossipsub::{self, IdentTopic, MessageAcceptance, TopicHash};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol as Part;
use libp2p::request_response::{self, Message, OutboundFailure, OutboundRequestId};
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::swarm::{ConnectionError, ConnectionId, SwarmEvent};
use libp2p::{Multiaddr, PeerId, Swarm, identify};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::address::{dialable, ip_of, peer_of};
use super::behaviour::{Behaviour, BehaviourEvent, behaviour};
use super::codec::{Document, EmptyDocument};
use super::transport::transport;
use super::{
    Agents, CallAnswer, CallError, Caller, NetworkCommand, NetworkError, NetworkSettings, NetworkView,
    ReadyAnswer, Role,
};
use crate::connections::ConnectionTable;
use crate::peers::registry::{GossipError, Topic};
use crate::peers::wire::{PeerStep, SINGLE_READ_BYTES};

/// How long answers may take to leave when the network stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// Time for written answers to leave the connection's buffers before it is closed.
const LINGER: Duration = Duration::from_millis(200);

type Exchange = request_response::Event<Document, Document>;

pub struct EventLoop<R> {
    swarm: Swarm<Behaviour>,
    role: R,
    settings: NetworkSettings,
    commands: mpsc::Receiver<NetworkCommand>,
    view: watch::Sender<NetworkView>,
    topics: [(Topic, IdentTopic); 2],
    agents: Agents,
    /// Peers whose gossip was dropped.
    warned: HashSet<PeerId>,
    calls: HashMap<(PeerStep, OutboundRequestId), CallAnswer>,
    beats: u64,
    /// Answers that are on their way.
    responding: usize,
    /// Connections that others have made.
    incoming: ConnectionTable<ConnectionId>,
    started: Instant,
}

impl<R: Role> EventLoop<R> {
    /// Sets up the network and returns when it listens on every address.
    ///
    /// # Errors
    /// When the transport or gossip can't be set up, or an address can't be listened on.
    pub async fn new(
        key: Keypair,
        settings: NetworkSettings,
        role: R,
        commands: mpsc::Receiver<NetworkCommand>,
        view: watch::Sender<NetworkView>,
        agents: Agents,
    ) -> Result<EventLoop<R>, NetworkError> {
        let topics = [Topic::Advertisement, Topic::Heartbeat]
            .map(|t| (t, IdentTopic::new(t.name(&settings.namespace))));
        let mut swarm = build_swarm(key, &settings, role.serves())?;
        for (_, topic) in &topics {
            let subscribed = swarm.behaviour_mut().gossip.subscribe(topic);
            subscribed.map_err(|e| NetworkError::Setup(e.to_string()))?;
        }
        let mut listeners = HashSet::new();
        for address in &settings.listen {
            let fail = |text: String| NetworkError::Listen { address: address.to_string(), text };
            listeners.insert(swarm.listen_on(address.clone()).map_err(|e| fail(chain(&e)))?);
        }
        let peer_id = swarm.local_peer_id().to_string();
        view.send_replace(NetworkView { peer_id, ..NetworkView::default() });
        let incoming = ConnectionTable::new(settings.max_connections);
        let mut event_loop = EventLoop {
            swarm,
            role,
            settings,
            commands,
            view,
            topics,
            agents,
            warned: HashSet::new(),
            calls: HashMap::new(),
            beats: 0,
            responding: 0,
            incoming,
            started: Instant::now(),
        };
        event_loop.wait_for_listeners(listeners).await?;
        Ok(event_loop)
    }

    /// Handles events until every listener has an address.
    async fn wait_for_listeners(&mut self, mut waiting: HashSet<ListenerId>) -> Result<(), NetworkError> {
        while !waiting.is_empty() {
            match self.swarm.select_next_some().await {
                SwarmEvent::ListenerClosed { addresses, reason, .. } => {
                    let address = addresses.first().or(self.settings.listen.first()).map(ToString::to_string);
                    let text = reason.err().map_or_else(|| "it was closed".into(), |e| chain(&e));
                    return Err(NetworkError::Listen { address: address.unwrap_or_default(), text });
                }
                SwarmEvent::NewListenAddr { listener_id, address } => {
                    waiting.remove(&listener_id);
                    self.listens(&address);
                }
                other => self.event(other),
            }
        }
        Ok(())
    }

    /// Runs until the network is stopped or its last handle is dropped.
    pub async fn run(mut self) {
        let mut redial = tokio::time::interval(self.settings.redial);
        let mut beat =
            tokio::time::interval_at(Instant::now() + self.settings.heartbeat, self.settings.heartbeat);
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.event(event),
                command = self.commands.recv() => match command {
                    Some(NetworkCommand::Call { peer, addresses, step, bytes, answer }) => {
                        self.call(peer, addresses, step, bytes, answer);
                    }
                    Some(NetworkCommand::Dial { peer, addresses }) => self.dial(peer, addresses),
                    Some(NetworkCommand::Stop) | None => return self.last_answers().await,
                },
                () = self.role.work() => self.answer_all(),
                _ = redial.tick() => self.redial(),
                _ = beat.tick() => {
                    self.beats += 1;
                    self.announce(self.beats.is_multiple_of(5), true);
                }
            }
        }
    }

    /// Sends the answers that are ready, then closes every connection.
    async fn last_answers(mut self) {
        self.answer_all();
        let end = Instant::now() + LAST_ANSWERS;
        // Written is not sent: a connection that is closed at once takes with it what lies in its buffers.
        let mut linger: Option<Instant> = None;
        let mut leaving = false;
        loop {
            if self.responding == 0 && linger.is_none() {
                linger = Some(Instant::now() + LINGER);
            }
            if !leaving && linger.is_some_and(|at| Instant::now() >= at) {
                leaving = true;
                let peers: Vec<PeerId> = self.swarm.connected_peers().copied().collect();
                for peer in peers {
                    // Refused when it has gone by itself.
                    self.swarm.disconnect_peer_id(peer).ok();
                }
            }
            if self.swarm.network_info().num_peers() == 0 {
                return;
            }
            let next = if leaving { end } else { linger.unwrap_or(end) };
            tokio::select! {
                event = self.swarm.select_next_some() => self.event(event),
                () = tokio::time::sleep_until(next) => if next == end { return },
            }
        }
    }

    /// Connects to the bootstrap peers that aren't connected.
    fn redial(&mut self) {
        for address in self.settings.bootstrap.clone() {
            let Some(peer) = peer_of(&address) else { continue };
            if peer == *self.swarm.local_peer_id() || self.swarm.is_connected(&peer) {
                continue;
            }
            let dial = DialOpts::peer_id(peer)
                .condition(PeerCondition::DisconnectedAndNotDialing)
                .addresses(vec![address.clone()])
                .build();
            if let Err(error) = self.swarm.dial(dial) {
                tracing::debug!(%address, %error, "a bootstrap peer is not dialled");
            }
        }
        self.dial_wanted(None);
    }

    /// Dials the peers that the role wants back; all, or the one.
    fn dial_wanted(&mut self, only: Option<PeerId>) {
        for (peer, addresses) in self.role.wanted() {
            let Ok(peer) = peer.parse::<PeerId>() else { continue };
            if only.is_some_and(|only| only != peer) || self.swarm.is_connected(&peer) {
                continue;
            }
            let addresses: Vec<Multiaddr> = addresses.iter().filter_map(|a| dialable(a, peer)).collect();
            if !addresses.is_empty() {
                self.dial(peer, addresses);
            }
        }
    }

    /// Connects to a peer, unless there is a connection or one is being made.
    fn dial(&mut self, peer: PeerId, addresses: Vec<Multiaddr>) {
        let dial = DialOpts::peer_id(peer)
            .condition(PeerCondition::DisconnectedAndNotDialing)
            .addresses(addresses)
            .build();
        if let Err(error) = self.swarm.dial(dial) {
            tracing::debug!(%peer, %error, "a peer is not dialled");
        }
    }

    fn announce(&mut self, advertisement: bool, heartbeat: bool) {
        let addresses = self.view.borrow().addresses.clone();
        let Some(said) = self.role.announcement(&addresses) else { return };
        for (topic, name) in self.topics.clone() {
            let (wanted, bytes) = match topic {
                Topic::Advertisement => (advertisement, &said.advertisement),
                Topic::Heartbeat => (heartbeat, &said.heartbeat),
            };
            if wanted && let Err(error) = self.swarm.behaviour_mut().gossip.publish(name, bytes.clone()) {
                // No one listens yet, most often.
                tracing::debug!(?topic, %error, "nothing was said to the network");
            }
        }
    }

    fn call(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        step: PeerStep,
        bytes: Vec<u8>,
        answer: CallAnswer,
    ) {
        if bytes.len() > SINGLE_READ_BYTES && self.agents.is_ours(&peer) == Some(false) {
            return drop(
                answer.send(Err(CallError::TooLarge { bytes: bytes.len(), limit: SINGLE_READ_BYTES })),
            );
        }
        let behaviour = self.swarm.behaviour_mut().step(step);
        let id = behaviour.send_request_with_addresses(&peer, Document::new(bytes), addresses);
        self.calls.insert((step, id), answer);
    }

    fn respond(&mut self, ready: ReadyAnswer) {
        let ReadyAnswer { step, channel, bytes } = ready;
        let answer = Document::new(bytes);
        if self.swarm.behaviour_mut().step(step).send_response(channel, answer).is_err() {
            tracing::debug!(step = step.name(), "the asker of a request has gone");
        } else {
            self.responding += 1;
        }
    }

    fn answer_all(&mut self) {
        for ready in self.role.answers() {
            self.respond(ready);
        }
    }

    fn listens(&mut self, address: &Multiaddr) {
        let me = *self.swarm.local_peer_id();
        let full = |a: &Multiaddr| match peer_of(a) {
            Some(_) => a.to_string(),
            None => a.clone().with(Part::P2p(me)).to_string(),
        };
        tracing::info!(address = full(address), "the peer network listens");
        let mut addresses: Vec<String> = match self.settings.advertise.is_empty() {
            true => self.swarm.listeners().map(&full).collect(),
            false => self.settings.advertise.iter().map(&full).collect(),
        };
        let new = full(address);
        if self.settings.advertise.is_empty() && !addresses.contains(&new) {
            addresses.push(new);
        }
        self.view.send_modify(|v| v.addresses = addresses);
    }

    fn event(&mut self, event: SwarmEvent<BehaviourEvent>) {
        match event {
            SwarmEvent::Behaviour(BehaviourEvent::Prepare(e)) => self.exchange(PeerStep::Prepare, e),
            SwarmEvent::Behaviour(BehaviourEvent::Commit(e)) => self.exchange(PeerStep::Commit, e),
            SwarmEvent::Behaviour(BehaviourEvent::Cancel(e)) => self.exchange(PeerStep::Cancel, e),
            SwarmEvent::Behaviour(BehaviourEvent::Dispatch(e)) => self.exchange(PeerStep::Dispatch, e),
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(e)) => self.gossip(e),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                ..
            })) => {
                let agent = crate::model::cut(&info.agent_version, 80).to_string();
                tracing::debug!(peer = %peer_id, agent, "a peer says what it is");
                self.agents.insert(peer_id, agent, |known| self.swarm.is_connected(known));
            }
            SwarmEvent::NewListenAddr { address, .. } => self.listens(&address),
            SwarmEvent::ConnectionEstablished { peer_id, connection_id, endpoint, .. } => {
                tracing::debug!(peer = %peer_id, address = %endpoint.get_remote_address(), "connected");
                self.role.connected(&peer_id.to_string());
                if endpoint.is_listener() {
                    self.let_in(connection_id, endpoint.get_remote_address());
                }
                self.count();
            }
            SwarmEvent::ConnectionClosed { peer_id, connection_id, num_established, cause, .. } => {
                self.incoming.remove(connection_id);
                // One that this side closes, because it is unused, says nothing about the peer.
                let lost = matches!(cause, Some(ConnectionError::IO(_)));
                let cause = cause.map(|c| c.to_string()).unwrap_or_default();
                tracing::debug!(peer = %peer_id, cause, "a connection has ended");
                if num_established == 0 {
                    self.warned.remove(&peer_id);
                    // It may have closed an unused connection, or be gone: which of them a dial tells.
                    if lost && self.role.disconnected(&peer_id.to_string()) {
                        self.dial_wanted(Some(peer_id));
                    }
                }
                self.count();
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                let (now, ip) = (self.started.elapsed(), ip_of(&send_back_addr));
                let error = chain(&error);
                // Once aloud for each address: anybody may try as often as they like.
                if ip.is_none_or(|ip| self.incoming.warns(ip, now)) {
                    tracing::warn!(address = %send_back_addr, error, "a peer could not connect");
                } else {
                    tracing::debug!(address = %send_back_addr, error, "a peer could not connect");
                }
            }
            SwarmEvent::OutgoingConnectionError { peer_id, error, .. } => {
                let peer = peer_id.map(|p| p.to_string()).unwrap_or_default();
                if peer_id.is_some_and(|p| !self.swarm.is_connected(&p)) {
                    // Dialled again by and by.
                    self.role.disconnected(&peer);
                }
                tracing::warn!(peer, error = chain(&error), "a peer can't be reached");
            }
            _ => {}
        }
    }

    /// Takes note of a connection that another peer has made, and closes an unused one if there are too many.
    fn let_in(&mut self, connection: ConnectionId, address: &Multiaddr) {
        let now = self.started.elapsed();
        let Some(ip) = ip_of(address) else { return };
        let Some(evicted) = self.incoming.insert(connection, ip, now) else { return };
        self.swarm.close_connection(evicted.key);
        if self.incoming.warns(evicted.address, now) {
            tracing::warn!(
                address = %evicted.address,
                limit = self.settings.max_connections,
                "too many connections; closing the longest unused one of this address"
            );
        }
    }

    fn count(&self) {
        let connected = self.swarm.network_info().num_peers();
        self.view.send_if_modified(|v| std::mem::replace(&mut v.connected, connected) != connected);
    }

    fn exchange(&mut self, step: PeerStep, event: Exchange) {
        match event {
            request_response::Event::Message { peer, connection_id, message } => match message {
                Message::Request { request, channel, .. } => {
                    self.incoming.touch(connection_id, self.started.elapsed());
                    let ours = self.agents.is_ours(&peer) == Some(true);
                    let caller = Caller { peer: peer.to_string(), ours };
                    if let Some(ready) = self.role.request(caller, step, request, channel) {
                        self.respond(ready);
                    }
                    self.answer_all();
                }
                Message::Response { request_id, response } => {
                    self.called(step, request_id, Ok(response));
                }
            },
            request_response::Event::OutboundFailure { request_id, error, .. } => {
                let error = self.call_error(step, error);
                self.called(step, request_id, Err(error));
            }
            request_response::Event::InboundFailure { peer, error, .. } => {
                tracing::debug!(peer = %peer, step = step.name(), %error, "a request came to nothing");
            }
            request_response::Event::ResponseSent { .. } => {
                self.responding = self.responding.saturating_sub(1);
            }
        }
    }

    /// Why a call has no answer, by what libp2p reports of its stream.
    fn call_error(&self, step: PeerStep, failure: OutboundFailure) -> CallError {
        match failure {
            OutboundFailure::DialFailure => CallError::Unreachable("no connection could be made".into()),
            OutboundFailure::Timeout => CallError::Timeout(self.settings.exchange_limit),
            OutboundFailure::ConnectionClosed => CallError::Closed,
            OutboundFailure::UnsupportedProtocols => self.unserved(step),
            // The refusal of a protocol is read where the answer should be.
            OutboundFailure::Io(e) if is_refusal(&e) => self.unserved(step),
            OutboundFailure::Io(e) => stream_error(&e),
        }
    }

    fn unserved(&self, step: PeerStep) -> CallError {
        CallError::Stream(format!("it does not serve {}", step.protocol(&self.settings.namespace)))
    }

    fn called(&mut self, step: PeerStep, id: OutboundRequestId, result: Result<Document, CallError>) {
        if let Some(answer) = self.calls.remove(&(step, id))
            && answer.send(result).is_err()
        {
            tracing::debug!(step = step.name(), "an answer came after its time");
        }
    }

    fn gossip(&mut self, event: gossipsub::Event) {
        match event {
            gossipsub::Event::Message { propagation_source, message_id, message } => {
                let accepted = self.hear(&message);
                if let Err(why) = &accepted {
                    let author = message.source.map(|a| a.to_string()).unwrap_or_default();
                    // Once aloud for each peer that is connected: it may go on for ever.
                    if self.warned.insert(propagation_source) {
                        tracing::warn!(from = %propagation_source, author, %why, "gossip is dropped");
                    } else {
                        tracing::debug!(from = %propagation_source, author, %why, "gossip is dropped");
                    }
                }
                let acceptance =
                    if accepted.is_ok() { MessageAcceptance::Accept } else { MessageAcceptance::Reject };
                let gossip = &mut self.swarm.behaviour_mut().gossip;
                gossip.report_message_validation_result(&message_id, &propagation_source, acceptance);
            }
            gossipsub::Event::Subscribed { topic, .. } => {
                let of = |t: Topic| self.topics.iter().any(|(x, n)| *x == t && n.hash() == topic);
                self.announce(of(Topic::Advertisement), of(Topic::Heartbeat));
            }
            _ => {}
        }
    }

    fn hear(&mut self, message: &gossipsub::Message) -> Result<(), GossipError> {
        let author = message.source.ok_or(GossipError::NoAuthor)?;
        let topic = self.topic(&message.topic).ok_or(GossipError::Topic)?;
        self.role.hear(&author.to_string(), topic, &message.data)
    }

    fn topic(&self, hash: &TopicHash) -> Option<Topic> {
        self.topics.iter().find(|(_, name)| name.hash() == *hash).map(|(topic, _)| *topic)
    }
}

/// The transport with everything that runs on each connection.
fn build_swarm(
    key: Keypair,
    settings: &NetworkSettings,
    serves: bool,
) -> Result<Swarm<Behaviour>, NetworkError> {
    let behaviour = behaviour(&key, settings, serves)?;
    // The request leaves together with the proposal of its protocol, which saves one round trip. This applies to every
    // protocol of the connection: a peer without gossip is taken for one with its oldest version, and gossip that is
    // sent to it is lost.
    let config = libp2p::swarm::Config::with_tokio_executor()
        .with_idle_connection_timeout(settings.idle)
        .with_substream_upgrade_protocol_override(Version::V1Lazy);
    let me = key.public().to_peer_id();
    Ok(Swarm::new(transport(&key)?, behaviour, me, config))
}

/// Why a stream failed, by the error's type and never by its text.
fn stream_error(error: &std::io::Error) -> CallError {
    match error.get_ref().is_some_and(|inner| inner.is::<EmptyDocument>()) {
        true => CallError::EmptyAnswer,
        false => CallError::Stream(error.to_string()),
    }
}

/// Whether the other side has refused the protocol of a stream.
fn is_refusal(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<NegotiationError>());
    matches!(inner, Some(NegotiationError::Failed))
}

/// An error with its causes, for one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            // Some errors of libp2p say nothing themselves.
            text.push_str(if text.is_empty() { "" } else { ": " });
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// Defect H of the review: the text of an error decided what it was.
    #[test]
    fn an_empty_answer_is_known_by_its_type() {
        let empty = io::Error::new(io::ErrorKind::UnexpectedEof, EmptyDocument);
        assert!(matches!(stream_error(&empty), CallError::EmptyAnswer));
        let same_text = io::Error::other(EmptyDocument.to_string());
        assert!(matches!(stream_error(&same_text), CallError::Stream(_)));
    }
}
