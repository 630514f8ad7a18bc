//! The libp2p shell: TCP, Noise, Yamux; identify, ping, gossip on two topics; the four stream protocols.
//!
//! It runs on a separate thread with everything of the network on it: a request is read, answered by the [`Role`] and
//! written without a change of threads, and neither gossip nor a prepare ever waits for an execution. The rest of
//! the host holds a [`Network`], which sends commands and hides the channels.
//!
//! Bounded: connections in all and per peer, streams per connection, the size of documents and the memory of all
//! that are on their way, the time until a request is whole, gossip. Gossip is passed on only when the role took it.

mod address;
mod behaviour;
mod coalesce;
mod codec;
mod event_loop;
mod transport;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use libp2p::identity::Keypair;
use libp2p::request_response::ResponseChannel;
use libp2p::{Multiaddr, PeerId};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};

use super::registry::{GossipError, Topic};
use super::wire::PeerStep;
use crate::error::{Explain, exit};
use address::dialable;
pub use address::peer_of;
pub use codec::Document;
use event_loop::EventLoop;

/// How this host names itself.
pub const AGENT: &str = concat!("coda-host/", env!("CARGO_PKG_VERSION"));
/// Prefix of the agent version of this project's programs, which read documents of any size.
const AGENT_PREFIX: &str = "coda-";
const COMMAND_QUEUE: usize = 1024;
/// Names of programs that are kept before those of peers that have gone are forgotten.
const MAX_AGENTS: usize = 4096;

/// How the network is to be.
#[derive(Debug, Clone)]
pub struct NetworkSettings {
    pub namespace: String,
    pub listen: Vec<Multiaddr>,
    /// Peers to be connected to always; each ends in `/p2p/<id>`.
    pub bootstrap: Vec<Multiaddr>,
    /// Addresses that are advertised to other peers. When there are none, the listening addresses are advertised.
    pub advertise: Vec<Multiaddr>,
    /// Most connections that others have made and that are kept.
    pub max_connections: usize,
    /// How long a request may take to come whole.
    pub read_limit: Duration,
    /// The longest exchange: a dispatch.
    pub exchange_limit: Duration,
    /// How long an unused connection is kept. A new one is made when it is needed: holds and rights are a
    /// peer's, not a connection's.
    pub idle: Duration,
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
    /// Whether the peer names itself as a program of this project, which reads documents of any size.
    pub ours: bool,
}

/// What answers a request later.
pub type Channel = ResponseChannel<Document>;

/// The answer to a request, and the channel on which it is sent.
pub struct ReadyAnswer {
    pub step: PeerStep,
    pub channel: Channel,
    pub bytes: Vec<u8>,
}

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
    fn request(
        &mut self,
        caller: Caller,
        step: PeerStep,
        document: Document,
        channel: Channel,
    ) -> Option<ReadyAnswer>;

    /// Waits until it has something to do, and does it. May be dropped at any await.
    fn work(&mut self) -> impl Future<Output = ()> + Send;

    /// Answers that became ready.
    fn answers(&mut self) -> Vec<ReadyAnswer>;

    /// Takes gossip that `author` has signed.
    ///
    /// # Errors
    /// When the message is dropped and not passed on.
    fn hear(&mut self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError>;

    /// A peer is connected.
    fn connected(&mut self, _peer: &str) {}

    /// The last connection to a peer was lost, or it can't be reached. Returns whether it is wanted back.
    fn disconnected(&mut self, _peer: &str) -> bool {
        false
    }

    /// Peers that are wanted back, with their addresses.
    fn wanted(&self) -> Vec<(String, Vec<String>)> {
        Vec::new()
    }

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
    #[error("the connection was closed")]
    Closed,
    #[error("it closed the stream without an answer")]
    EmptyAnswer,
    #[error("the stream failed: {0}")]
    Stream(String),
    #[error("it reads documents of at most {limit} bytes (it is not a coda-host), this one has {bytes}")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the network has stopped")]
    Stopped,
}

type CallAnswer = oneshot::Sender<Result<Document, CallError>>;

enum NetworkCommand {
    Dial { peer: PeerId, addresses: Vec<Multiaddr> },
    Call { peer: PeerId, addresses: Vec<Multiaddr>, step: PeerStep, bytes: Vec<u8>, answer: CallAnswer },
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

/// How peers name their programs. A name is kept beyond the connection: the next one is made when it is needed.
#[derive(Debug, Clone, Default)]
struct Agents {
    names: Arc<Mutex<HashMap<PeerId, String>>>,
    changes: watch::Sender<()>,
}

impl Agents {
    /// When there are too many, only those of connected peers are kept: a stranger with ever new identities costs no peer
    /// that is there its name.
    fn insert(&self, peer: PeerId, agent: String, is_connected: impl Fn(&PeerId) -> bool) {
        let mut names = self.names.lock();
        if names.len() >= MAX_AGENTS && !names.contains_key(&peer) {
            names.retain(|known, _| is_connected(known));
        }
        names.insert(peer, agent);
        drop(names);
        self.changes.send_replace(());
    }

    fn get(&self, peer: &PeerId) -> Option<String> {
        self.names.lock().get(peer).cloned()
    }

    /// Whether it is a program of this project; None when it has not said what it is.
    fn is_ours(&self, peer: &PeerId) -> Option<bool> {
        self.names.lock().get(peer).map(|agent| is_ours(agent))
    }
}

/// Whether an agent is a program of this project.
pub fn is_ours(agent: &str) -> bool {
    agent.starts_with(AGENT_PREFIX)
}

/// The handle.
#[derive(Clone)]
pub struct Network {
    agents: Agents,
    commands: mpsc::Sender<NetworkCommand>,
    view: watch::Receiver<NetworkView>,
    runtime: tokio::runtime::Handle,
    thread: Arc<Mutex<Option<std::thread::JoinHandle<()>>>>,
}

impl Network {
    /// Starts the network's thread; returns when it listens.
    ///
    /// # Errors
    /// When the thread or the transport can't be set up, or an address can't be listened on.
    pub async fn start<R: Role>(
        key: Keypair,
        settings: NetworkSettings,
        role: impl FnOnce() -> R + Send + 'static,
    ) -> Result<Network, NetworkError> {
        let (commands, inbox) = mpsc::channel(COMMAND_QUEUE);
        let (viewed, view) = watch::channel(NetworkView::default());
        let (up, started) = oneshot::channel();
        let agents = Agents::default();
        let known_agents = agents.clone();
        let body = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(e) => return drop(up.send(Err(NetworkError::Setup(e.to_string())))),
            };
            let life = async move {
                match EventLoop::new(key, settings, role(), inbox, viewed, known_agents).await {
                    Ok(event_loop) => {
                        if up.send(Ok(tokio::runtime::Handle::current())).is_ok() {
                            event_loop.run().await;
                        }
                    }
                    Err(error) => drop(up.send(Err(error))),
                }
            };
            // As a task: to wake the future of `block_on` itself takes a system call, from this thread too.
            if let Err(ended) = runtime.block_on(async { tokio::spawn(life).await })
                && let Ok(panic) = ended.try_into_panic()
            {
                std::panic::resume_unwind(panic);
            }
        };
        let thread = std::thread::Builder::new().name("peers".into()).spawn(body);
        let thread = thread.map_err(|e| NetworkError::Setup(e.to_string()))?;
        let runtime = started.await.map_err(|_| NetworkError::Setup("its thread ended".into()))??;
        Ok(Network { agents, commands, view, runtime, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// The network's own thread, for tasks that only talk: a call from there changes no thread. A task that computes
    /// holds up every peer. It ends with the network.
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    pub fn view(&self) -> watch::Receiver<NetworkView> {
        self.view.clone()
    }

    pub fn peer_id(&self) -> String {
        self.view.borrow().peer_id.clone()
    }

    /// Whether the peer reads a document of any size, and not only the first part of it. Only a peer that has named itself
    /// is known to.
    pub fn reads_whole_documents(&self, peer: &str) -> bool {
        peer.parse().is_ok_and(|peer| self.agents.is_ours(&peer) == Some(true))
    }

    /// How a peer names its program; none when it does not say within the limit. Connects to it if need be.
    pub async fn agent(&self, peer: &str, addresses: &[String], limit: Duration) -> Option<String> {
        let peer: PeerId = peer.parse().ok()?;
        let mut changes = self.agents.changes.subscribe();
        if let Some(agent) = self.agents.get(&peer) {
            return Some(agent);
        }
        let addresses = addresses.iter().filter_map(|a| dialable(a, peer)).collect();
        self.commands.send(NetworkCommand::Dial { peer, addresses }).await.ok()?;
        let named = async {
            loop {
                if let Some(agent) = self.agents.get(&peer) {
                    return Some(agent);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(limit, named).await.ok().flatten()
    }

    /// Sends a document and waits for the answer.
    ///
    /// # Errors
    /// When the peer can't be reached, does not answer within the limit, or the stream fails.
    pub async fn call(
        &self,
        peer: &str,
        addresses: &[String],
        step: PeerStep,
        bytes: Vec<u8>,
        limit: Duration,
    ) -> Result<Document, CallError> {
        let peer: PeerId =
            peer.parse().map_err(|_| CallError::Unreachable(format!("{peer} is not a peer id")))?;
        let addresses = addresses.iter().filter_map(|a| dialable(a, peer)).collect();
        let (answer, wait) = oneshot::channel();
        let command = NetworkCommand::Call { peer, addresses, step, bytes, answer };
        let exchange = async {
            self.commands.send(command).await.map_err(|_| CallError::Stopped)?;
            wait.await.map_err(|_| CallError::Stopped)?
        };
        tokio::time::timeout(limit, exchange).await.unwrap_or(Err(CallError::Timeout(limit)))
    }

    /// Ends the network's thread, whatever it waits for; returns when it has.
    pub async fn stop(&self) {
        if self.commands.send(NetworkCommand::Stop).await.is_err() {
            tracing::debug!("the peer network had stopped before");
        }
        let thread = self.thread.lock().take();
        let Some(thread) = thread else { return };
        let joined = tokio::task::spawn_blocking(move || thread.join().is_err()).await;
        if joined.unwrap_or(true) {
            tracing::error!("the peer network's thread has panicked; please report this as a bug");
        }
    }
}
