//! The libp2p shell: TCP, Noise, Yamux; identify, ping, gossip on two topics; the four stream protocols.
//!
//! It has a thread of its own with everything of the network on it: a request is read, answered by the [`Role`] and
//! written without a change of threads, and neither gossip nor a prepare ever waits for an execution. The rest of
//! the host holds a [`Network`], which sends orders and hides the channels.
//!
//! Bounded: connections in all and per peer, streams per connection, the size of documents and the memory of all
//! that are on their way, the time until a request is whole, gossip. Gossip is passed on only when the role took it.

mod address;
mod behaviour;
mod codec;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use libp2p::gossipsub::{self, IdentTopic, MessageAcceptance, TopicHash};
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol as Part;
use libp2p::request_response::{self, Message, OutboundRequestId, ResponseChannel};
use libp2p::swarm::SwarmEvent;
use libp2p::swarm::dial_opts::{DialOpts, PeerCondition};
use libp2p::{Multiaddr, PeerId, Swarm, identify, noise, tcp, yamux};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::registry::Topic;
use super::wire::{SINGLE_READ_BYTES, Step};
use crate::error::{Explain, exit};
use address::dialable;
pub use address::peer_of;
use behaviour::{Behaviour, BehaviourEvent, behaviour};
pub use codec::Document;

/// How this host names itself.
pub const AGENT: &str = concat!("coda-host/", env!("CARGO_PKG_VERSION"));
/// How everything of this project begins: such peers read documents of any size.
const AGENT_PREFIX: &str = "coda-";
const ORDERS: usize = 1024;
/// How long answers may take to leave when the network stops.
const LAST_ANSWERS: Duration = Duration::from_secs(1);
/// What has been written may take so long to leave.
const LINGER: Duration = Duration::from_millis(200);
/// How long an idle connection is kept: a coordinator may think between prepare and commit.
const IDLE: Duration = Duration::from_secs(600);

/// How the network is to be.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    pub namespace: String,
    pub listen: Vec<Multiaddr>,
    /// Peers to be connected to always; each ends in `/p2p/<id>`.
    pub bootstrap: Vec<Multiaddr>,
    /// Addresses that others are told, besides those that are listened on; none: those that are listened on.
    pub advertise: Vec<Multiaddr>,
    /// How long a request may take to come whole.
    pub read_limit: Duration,
    /// The longest exchange: a dispatch.
    pub exchange_limit: Duration,
    pub redial: Duration,
    pub heartbeat: Duration,
    pub max_document: usize,
    pub max_memory: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("the peer network can't listen on {address}: {text}")]
    Listen { address: String, text: String },
    #[error("the peer network could not be set up: {0}")]
    Setup(String),
}

impl Explain for NetworkError {
    fn code(&self) -> &'static str {
        match self {
            NetworkError::Listen { .. } => "peer-listen",
            NetworkError::Setup(_) => "peer-setup",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            NetworkError::Listen { .. } => {
                "choose an address of this machine and a free port: /ip4/0.0.0.0/tcp/4001".into()
            }
            NetworkError::Setup(_) => "report this as a bug of coda-host".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Authenticated by the transport.
    pub peer: String,
    /// A peer of this project, by what it says of itself: it reads documents of any size.
    pub ours: bool,
}

/// What answers a request later.
pub type Channel = ResponseChannel<Document>;

/// An answer that is ready.
pub type Ready = (Step, Channel, Vec<u8>);

/// What is said of this host.
pub struct Announcement {
    pub advertisement: Vec<u8>,
    pub heartbeat: Vec<u8>,
}

/// What this host is in the network; called on the network's thread, so nothing in it may block.
pub trait Role: Send + 'static {
    /// Whether the four protocols are served.
    fn serves(&self) -> bool;

    /// Answers a request now, or keeps the channel for [`Role::answers`]. Dropped, the stream is closed without an
    /// answer: the refusal of the contract.
    fn request(&mut self, caller: Caller, step: Step, document: Document, channel: Channel) -> Option<Ready>;

    /// Waits until it has something to do, and does it. May be dropped at any await.
    fn work(&mut self) -> impl Future<Output = ()> + Send;

    /// Answers that became ready.
    fn answers(&mut self) -> Vec<Ready>;

    /// Takes gossip that `author` has signed.
    ///
    /// # Errors
    /// Why it is dropped and not passed on.
    fn hear(&mut self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), String>;

    /// What is to be said of this host now, if anything.
    fn announcement(&self, addresses: &[String]) -> Option<Announcement>;
}

/// Why a call has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    #[error("it can't be reached: {0}")]
    Unreachable(String),
    #[error("it did not answer within {0:?}")]
    Timeout(Duration),
    #[error("the stream failed: {0}")]
    Stream(String),
    #[error("it reads documents of at most {limit} bytes (it is no coda-host), this one has {bytes}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the network has stopped")]
    Stopped,
}

type CallAnswer = oneshot::Sender<Result<Document, CallError>>;

enum Order {
    Call { peer: PeerId, addresses: Vec<Multiaddr>, step: Step, bytes: Vec<u8>, answer: CallAnswer },
    Stop,
}

/// What others may know of the network.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NetworkView {
    pub peer_id: String,
    /// With `/p2p/<id>`.
    pub addresses: Vec<String>,
    pub connected: usize,
}

/// The handle.
#[derive(Clone)]
pub struct Network {
    orders: mpsc::Sender<Order>,
    view: watch::Receiver<NetworkView>,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Network {
    /// Starts the network's thread; returns when it listens.
    ///
    /// # Errors
    /// When an address can't be listened on.
    pub async fn start<R: Role>(
        key: Keypair,
        settings: NetworkSettings,
        role: impl FnOnce() -> R + Send + 'static,
    ) -> Result<Network, NetworkError> {
        let (orders, inbox) = mpsc::channel(ORDERS);
        let (viewed, view) = watch::channel(NetworkView::default());
        let (up, started) = oneshot::channel();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(e) => return drop(up.send(Err(NetworkError::Setup(e.to_string())))),
            };
            runtime.block_on(async move {
                match Shell::new(key, settings, role(), inbox, viewed).await {
                    Ok(shell) => {
                        if up.send(Ok(())).is_ok() {
                            shell.run().await;
                        }
                    }
                    Err(error) => drop(up.send(Err(error))),
                }
            });
        };
        let thread = std::thread::Builder::new().name("peers".into()).spawn(body);
        let thread = thread.map_err(|e| NetworkError::Setup(e.to_string()))?;
        started.await.map_err(|_| NetworkError::Setup("its thread ended".into()))??;
        Ok(Network { orders, view, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    pub fn view(&self) -> watch::Receiver<NetworkView> {
        self.view.clone()
    }

    pub fn peer_id(&self) -> String {
        self.view.borrow().peer_id.clone()
    }

    /// Sends a document and waits for the answer.
    ///
    /// # Errors
    /// When there is none, within the limit.
    pub async fn call(
        &self,
        peer: &str,
        addresses: &[String],
        step: Step,
        bytes: Vec<u8>,
        limit: Duration,
    ) -> Result<Document, CallError> {
        let peer: PeerId =
            peer.parse().map_err(|_| CallError::Unreachable(format!("{peer} is no peer id")))?;
        let addresses = addresses.iter().filter_map(|a| dialable(a, peer)).collect();
        let (answer, wait) = oneshot::channel();
        let order = Order::Call { peer, addresses, step, bytes, answer };
        let exchange = async {
            self.orders.send(order).await.map_err(|_| CallError::Stopped)?;
            wait.await.map_err(|_| CallError::Stopped)?
        };
        tokio::time::timeout(limit, exchange).await.unwrap_or(Err(CallError::Timeout(limit)))
    }

    /// Ends the network's thread, whatever it waits for; returns when it has.
    pub async fn stop(&self) {
        if self.orders.send(Order::Stop).await.is_err() {
            tracing::debug!("the peer network had stopped before");
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let joined = tokio::task::spawn_blocking(move || thread.join().is_err()).await;
        if joined.unwrap_or(true) {
            tracing::error!("the peer network's thread ended badly; please report this as a bug");
        }
    }
}

type Exchange = request_response::Event<Document, Document>;

struct Shell<R> {
    swarm: Swarm<Behaviour>,
    role: R,
    settings: NetworkSettings,
    orders: mpsc::Receiver<Order>,
    view: watch::Sender<NetworkView>,
    topics: [(Topic, IdentTopic); 2],
    agents: HashMap<PeerId, String>,
    calls: HashMap<(Step, OutboundRequestId), CallAnswer>,
    beats: u64,
    /// Answers that are on their way.
    responding: usize,
}

impl<R: Role> Shell<R> {
    async fn new(
        key: Keypair,
        settings: NetworkSettings,
        role: R,
        orders: mpsc::Receiver<Order>,
        view: watch::Sender<NetworkView>,
    ) -> Result<Shell<R>, NetworkError> {
        let setup = |e: &dyn std::fmt::Display| NetworkError::Setup(e.to_string());
        let topics = [Topic::Advertisement, Topic::Heartbeat]
            .map(|t| (t, IdentTopic::new(t.name(&settings.namespace))));
        let behaviour = behaviour(&key, &settings, role.serves())?;
        let mut swarm = libp2p::SwarmBuilder::with_existing_identity(key)
            .with_tokio()
            .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)
            .map_err(|e| setup(&e))?
            .with_behaviour(|_| behaviour)
            .map_err(|e| setup(&e))?
            .with_swarm_config(|c| c.with_idle_connection_timeout(IDLE))
            .build();
        for (_, topic) in &topics {
            swarm.behaviour_mut().gossip.subscribe(topic).map_err(|e| setup(&e))?;
        }
        let mut waiting = HashSet::new();
        for address in &settings.listen {
            let fail = |text: String| NetworkError::Listen { address: address.to_string(), text };
            waiting.insert(swarm.listen_on(address.clone()).map_err(|e| fail(e.to_string()))?);
        }
        let peer_id = swarm.local_peer_id().to_string();
        view.send_replace(NetworkView { peer_id, ..NetworkView::default() });
        let mut shell = Shell {
            swarm,
            role,
            settings,
            orders,
            view,
            topics,
            agents: HashMap::new(),
            calls: HashMap::new(),
            beats: 0,
            responding: 0,
        };
        while !waiting.is_empty() {
            match shell.swarm.select_next_some().await {
                SwarmEvent::ListenerClosed { listener_id, addresses, reason } => {
                    let address = addresses.first().map(ToString::to_string);
                    let address = address.unwrap_or_else(|| shell.settings.listen[0].to_string());
                    let text = reason.err().map_or_else(|| "it was closed".into(), |e| e.to_string());
                    waiting.remove(&listener_id);
                    return Err(NetworkError::Listen { address, text });
                }
                SwarmEvent::NewListenAddr { listener_id, address } => {
                    waiting.remove(&listener_id);
                    shell.listens(&address);
                }
                other => shell.event(other),
            }
        }
        Ok(shell)
    }

    async fn run(mut self) {
        let mut redial = tokio::time::interval(self.settings.redial);
        let mut beat =
            tokio::time::interval_at(Instant::now() + self.settings.heartbeat, self.settings.heartbeat);
        loop {
            tokio::select! {
                event = self.swarm.select_next_some() => self.event(event),
                order = self.orders.recv() => match order {
                    Some(Order::Call { peer, addresses, step, bytes, answer }) => {
                        self.call(peer, addresses, step, bytes, answer);
                    }
                    Some(Order::Stop) | None => return self.last_answers().await,
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

    /// What is answered already still goes out.
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
                // Nobody listens yet, most often.
                tracing::debug!(?topic, %error, "nothing was said to the network");
            }
        }
    }

    fn call(
        &mut self,
        peer: PeerId,
        addresses: Vec<Multiaddr>,
        step: Step,
        bytes: Vec<u8>,
        answer: CallAnswer,
    ) {
        if bytes.len() > SINGLE_READ_BYTES
            && let Some(agent) = self.agents.get(&peer)
            && !agent.starts_with(AGENT_PREFIX)
        {
            return drop(
                answer.send(Err(CallError::TooLarge { bytes: bytes.len(), limit: SINGLE_READ_BYTES })),
            );
        }
        let behaviour = self.swarm.behaviour_mut().step(step);
        let id = behaviour.send_request_with_addresses(&peer, Document::new(bytes), addresses);
        self.calls.insert((step, id), answer);
    }

    fn respond(&mut self, (step, channel, bytes): Ready) {
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
            SwarmEvent::Behaviour(BehaviourEvent::Prepare(e)) => self.exchange(Step::Prepare, e),
            SwarmEvent::Behaviour(BehaviourEvent::Commit(e)) => self.exchange(Step::Commit, e),
            SwarmEvent::Behaviour(BehaviourEvent::Cancel(e)) => self.exchange(Step::Cancel, e),
            SwarmEvent::Behaviour(BehaviourEvent::Dispatch(e)) => self.exchange(Step::Dispatch, e),
            SwarmEvent::Behaviour(BehaviourEvent::Gossip(e)) => self.gossip(e),
            SwarmEvent::Behaviour(BehaviourEvent::Identify(identify::Event::Received {
                peer_id,
                info,
                ..
            })) => {
                let agent = crate::model::cut(&info.agent_version, 80).to_string();
                tracing::debug!(peer = %peer_id, agent, "a peer says what it is");
                self.agents.insert(peer_id, agent);
            }
            SwarmEvent::NewListenAddr { address, .. } => self.listens(&address),
            SwarmEvent::ConnectionEstablished { peer_id, endpoint, .. } => {
                tracing::debug!(peer = %peer_id, address = %endpoint.get_remote_address(), "connected");
                self.count();
            }
            SwarmEvent::ConnectionClosed { peer_id, num_established, cause, .. } => {
                let cause = cause.map(|c| c.to_string()).unwrap_or_default();
                tracing::debug!(peer = %peer_id, cause, "a connection has ended");
                if num_established == 0 {
                    self.agents.remove(&peer_id);
                }
                self.count();
            }
            SwarmEvent::IncomingConnectionError { send_back_addr, error, .. } => {
                tracing::warn!(address = %send_back_addr, error = chain(&error), "a peer could not connect");
            }
            SwarmEvent::OutgoingConnectionError { peer_id, error, .. } => {
                let peer = peer_id.map(|p| p.to_string()).unwrap_or_default();
                tracing::warn!(peer, error = chain(&error), "a peer can't be reached");
            }
            _ => {}
        }
    }

    fn count(&self) {
        let connected = self.swarm.network_info().num_peers();
        self.view.send_if_modified(|v| std::mem::replace(&mut v.connected, connected) != connected);
    }

    fn exchange(&mut self, step: Step, event: Exchange) {
        match event {
            request_response::Event::Message { peer, message, .. } => match message {
                Message::Request { request, channel, .. } => {
                    let ours = self.agents.get(&peer).is_some_and(|a| a.starts_with(AGENT_PREFIX));
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
                use request_response::OutboundFailure as Out;
                let error = match error {
                    Out::DialFailure => CallError::Unreachable("no connection could be made".into()),
                    Out::Timeout => CallError::Timeout(self.settings.exchange_limit),
                    Out::ConnectionClosed => CallError::Stream("the connection was closed".into()),
                    Out::UnsupportedProtocols => CallError::Stream(format!(
                        "it does not serve {}",
                        step.protocol(&self.settings.namespace)
                    )),
                    Out::Io(e) => CallError::Stream(e.to_string()),
                };
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

    fn called(&mut self, step: Step, id: OutboundRequestId, result: Result<Document, CallError>) {
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
                    tracing::debug!(from = %propagation_source, author = ?message.source, why, "gossip is dropped");
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

    fn hear(&mut self, message: &gossipsub::Message) -> Result<(), String> {
        let author = message.source.ok_or("it has no author")?;
        let topic = self.topic(&message.topic).ok_or("it has another topic")?;
        self.role.hear(&author.to_string(), topic, &message.data)
    }

    fn topic(&self, hash: &TopicHash) -> Option<Topic> {
        self.topics.iter().find(|(_, name)| name.hash() == *hash).map(|(topic, _)| *topic)
    }
}

/// An error with its causes, for one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let more = cause.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = cause.source();
    }
    text
}
