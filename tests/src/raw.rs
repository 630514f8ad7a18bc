//! A libp2p client without anything of the host's: two protocols, no gossip, documents as bytes, and gossip messages
//! written by hand.

use std::io;
use std::time::Duration;

use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, StreamExt as _};
use libp2p::identity::Keypair;
use libp2p::request_response::{self, Message, OutboundRequestId, ProtocolSupport};
use libp2p::swarm::{NetworkBehaviour, SwarmEvent};
use libp2p::{Multiaddr, PeerId, StreamProtocol, Swarm, noise, tcp, yamux};

use crate::wait::LIMIT;

#[derive(Clone)]
struct Bytes;

impl Bytes {
    async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }
}

impl request_response::Codec for Bytes {
    type Protocol = StreamProtocol;
    type Request = Vec<u8>;
    type Response = Vec<u8>;

    async fn read_request<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        Bytes::read(io).await
    }

    async fn read_response<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        Bytes::read(io).await
    }

    async fn write_request<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&bytes).await
    }

    async fn write_response<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &StreamProtocol,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&bytes).await
    }
}

#[derive(NetworkBehaviour)]
struct Two {
    first: request_response::Behaviour<Bytes>,
    second: request_response::Behaviour<Bytes>,
}

/// Which of the client's protocols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    First,
    Second,
}

pub struct Raw {
    swarm: Swarm<Two>,
    peer: PeerId,
    address: Multiaddr,
    /// Connections made and lost so far.
    pub made: usize,
    pub lost: usize,
}

impl Raw {
    /// Connects; an unused connection is closed by this side after `idle`.
    pub async fn connect(key: &Keypair, address: &str, protocols: [&str; 2], idle: Duration) -> Raw {
        let behaviour = |name: &str| {
            let protocol = StreamProtocol::try_from_owned(name.into()).expect("a protocol's name");
            let all = [(protocol, ProtocolSupport::Outbound)];
            request_response::Behaviour::with_codec(Bytes, all, request_response::Config::default())
        };
        let [first, second] = protocols.map(behaviour);
        let swarm = libp2p::SwarmBuilder::with_existing_identity(key.clone())
            .with_tokio()
            .with_tcp(tcp::Config::default(), noise::Config::new, yamux::Config::default)
            .expect("a transport")
            .with_behaviour(|_| Two { first, second })
            .expect("a behaviour")
            .with_swarm_config(|c| c.with_idle_connection_timeout(idle))
            .build();
        let peer = address.rsplit('/').next().and_then(|id| id.parse().ok()).expect("a peer id");
        let address = address.parse().expect("an address");
        let mut raw = Raw { swarm, peer, address, made: 0, lost: 0 };
        raw.swarm.dial(raw.address.clone()).expect("it can be dialled");
        raw.until("a connection", |raw, _| (raw.made > 0).then_some(())).await;
        raw
    }

    /// Closes the connection.
    pub async fn leave(&mut self) {
        let peer = self.peer;
        self.swarm.disconnect_peer_id(peer).expect("there is a connection");
        self.until("the connection's end", |raw, _| (raw.lost == raw.made).then_some(())).await;
    }

    /// Does nothing for so long.
    pub async fn rest(&mut self, time: Duration) {
        let turn = async {
            loop {
                self.turn().await;
            }
        };
        tokio::time::timeout(time, turn).await.unwrap_or(());
    }

    /// Sends on a new stream and reads to the end of the answer; connects again where needed.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn request(&mut self, which: Which, bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        let (peer, address) = (self.peer, self.address.clone());
        let behaviour = self.swarm.behaviour_mut();
        let behaviour = match which {
            Which::First => &mut behaviour.first,
            Which::Second => &mut behaviour.second,
        };
        let id = behaviour.send_request_with_addresses(&peer, bytes, vec![address]);
        self.until("an answer", |_, event| match (which, event) {
            (Which::First, Some(TwoEvent::First(event))) | (Which::Second, Some(TwoEvent::Second(event))) => {
                answer_of(id, event)
            }
            _ => None,
        })
        .await
    }

    /// Lets the network go on until something is so.
    async fn until<T>(
        &mut self,
        what: &str,
        mut so: impl FnMut(&Raw, Option<&mut TwoEvent>) -> Option<T>,
    ) -> T {
        let turn = async {
            loop {
                let mut event = self.turn().await;
                if let Some(found) = so(self, event.as_mut()) {
                    return found;
                }
            }
        };
        tokio::time::timeout(LIMIT, turn).await.unwrap_or_else(|_| panic!("waited in vain for {what}"))
    }

    async fn turn(&mut self) -> Option<TwoEvent> {
        match self.swarm.select_next_some().await {
            SwarmEvent::ConnectionEstablished { .. } => self.made += 1,
            SwarmEvent::ConnectionClosed { .. } => self.lost += 1,
            SwarmEvent::OutgoingConnectionError { error, .. } => panic!("no connection: {error}"),
            SwarmEvent::Behaviour(said) => return Some(said),
            _ => {}
        }
        None
    }
}

/// What became of a request, when this event tells it.
fn answer_of(
    id: OutboundRequestId,
    event: &mut request_response::Event<Vec<u8>, Vec<u8>>,
) -> Option<Result<Vec<u8>, String>> {
    match event {
        request_response::Event::Message { message: Message::Response { request_id, response }, .. } => {
            (*request_id == id).then(|| Ok(std::mem::take(response)))
        }
        request_response::Event::OutboundFailure { request_id, error, .. } => {
            (*request_id == id).then(|| Err(error.to_string()))
        }
        _ => None,
    }
}

/// What is wrong with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    None,
    Unsigned,
    /// Changed after it was signed.
    Tampered,
}

/// One gossip message as it travels, from the holder of `key`.
pub fn gossip(key: &Keypair, seqno: u64, topic: &str, data: &[u8], flaw: Flaw) -> Vec<u8> {
    let author = key.public().to_peer_id().to_bytes();
    let message = |data: &[u8]| {
        let mut bytes = Vec::new();
        for (number, value) in [(1, &author[..]), (2, data), (3, &seqno.to_be_bytes()), (4, topic.as_bytes())]
        {
            field(&mut bytes, number, value);
        }
        bytes
    };
    let signed = [b"libp2p-pubsub:", &message(data)[..]].concat();
    let signature = key.sign(&signed).expect("a key that can sign");
    let mut bytes = message(data);
    match flaw {
        Flaw::None => field(&mut bytes, 5, &signature),
        Flaw::Unsigned => {}
        Flaw::Tampered => {
            bytes = message(&[data, b" "].concat());
            field(&mut bytes, 5, &signature);
        }
    }
    let mut call = Vec::new();
    field(&mut call, 2, &bytes);
    let mut framed = Vec::new();
    varint(&mut framed, call.len());
    framed.extend(call);
    framed
}

/// A field of protobuf that has a length.
fn field(to: &mut Vec<u8>, number: u8, value: &[u8]) {
    to.push(number << 3 | 2);
    varint(to, value.len());
    to.extend_from_slice(value);
}

fn varint(to: &mut Vec<u8>, mut n: usize) {
    while n >= 0x80 {
        to.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}
