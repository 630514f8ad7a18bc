//! The ceiling for peers: streams that carry a document there and one back, and nothing that decides anything.
//!
//! Once as libp2p comes (its defaults, the loop on its events without a hand-over between threads), once on the host's
//! own network, whose answer is there already. The other side is this program in a separate process.

use std::io::{self, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use coda_host::peers::registry::{GossipError, Topic};
use coda_host::peers::swarm::{Announcement, Caller, Channel, Document, Network, ReadyAnswer, Role};
use coda_host::peers::wire::PeerStep;
use coda_host_tests::misbehaving_peers;
use futures::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, StreamExt as _};
use libp2p::identity::Keypair;
use libp2p::request_response::{self, Message, ProtocolSupport};
use libp2p::swarm::SwarmEvent;
use libp2p::{Multiaddr, Swarm, noise, tcp, yamux};
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::number;

/// The variable that makes this program the other side.
pub const ENV: &str = "CODA_BENCH_STREAMS";
/// About what the documents of prepare and its answer have.
const REQUEST: usize = 400;
const ANSWER: usize = 250;
/// What an address ends with.
const P2P: &str = "/p2p/";

fn document(bytes: usize) -> Vec<u8> {
    format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8)).into_bytes()
}

#[derive(Clone)]
struct Codec;

impl Codec {
    async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(512);
        io.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }
}

impl request_response::Codec for Codec {
    type Protocol = &'static str;
    type Request = Vec<u8>;
    type Response = Vec<u8>;

    async fn read_request<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &&'static str,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        Codec::read(io).await
    }

    async fn read_response<T: AsyncRead + Unpin + Send>(
        &mut self,
        _: &&'static str,
        io: &mut T,
    ) -> io::Result<Vec<u8>> {
        Codec::read(io).await
    }

    async fn write_request<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &&'static str,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&bytes).await
    }

    async fn write_response<T: AsyncWrite + Unpin + Send>(
        &mut self,
        _: &&'static str,
        io: &mut T,
        bytes: Vec<u8>,
    ) -> io::Result<()> {
        io.write_all(&bytes).await
    }
}

type Plain = Swarm<request_response::Behaviour<Codec>>;

fn plain() -> Plain {
    let protocol = "/qb2/quantum-backend/reservation/prepare/1.0.0";
    libp2p::SwarmBuilder::with_existing_identity(Keypair::generate_ed25519())
        .with_tokio()
        .with_tcp(tcp::Config::default().nodelay(true), noise::Config::new, yamux::Config::default)
        .expect("a transport")
        .with_behaviour(|_| {
            let all = [(protocol, ProtocolSupport::Full)];
            request_response::Behaviour::with_codec(Codec, all, request_response::Config::default())
        })
        .expect("a behaviour")
        .with_swarm_config(|c| c.with_idle_connection_timeout(Duration::from_secs(60)))
        .build()
}

/// Tells the program that started this one where it listens.
fn tell(address: &str) {
    println!("{address}");
    io::stdout().flush().expect("it is heard");
}

/// Is the other side, until the process is killed.
pub fn serve(how: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    match how {
        "libp2p" => runtime.block_on(async {
            let mut swarm = plain();
            swarm.listen_on("/ip4/127.0.0.1/tcp/0".parse().expect("an address")).expect("it can listen");
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::NewListenAddr { address, .. } => {
                        tell(&format!("{address}{P2P}{}", swarm.local_peer_id()));
                    }
                    SwarmEvent::Behaviour(request_response::Event::Message {
                        message: Message::Request { channel, .. },
                        ..
                    }) => {
                        let answered = swarm.behaviour_mut().send_response(channel, document(ANSWER));
                        answered.expect("the asker is there");
                    }
                    _ => {}
                }
            }
        }),
        _ => runtime.block_on(async {
            let mut settings = misbehaving_peers::settings("/ip4/127.0.0.1/tcp/1");
            settings.bootstrap.clear();
            let network = Network::start(Keypair::generate_ed25519(), settings, || Echo).await;
            let network = network.expect("it can listen");
            tell(&network.view().borrow().addresses[0]);
            std::future::pending::<()>().await;
        }),
    }
}

struct Echo;

impl Role for Echo {
    fn serves(&self) -> bool {
        true
    }

    fn request(&mut self, _: Caller, step: PeerStep, _: Document, channel: Channel) -> Option<ReadyAnswer> {
        Some(ReadyAnswer { step, channel, bytes: document(ANSWER) })
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

    fn announcement(&self, _: &[String]) -> Option<Announcement> {
        None
    }
}

/// Prints both ceilings, one request at a time, in loops of three requests.
pub async fn measure(seconds: f64) {
    for (how, name) in [("libp2p", "libp2p as it comes"), ("ours", "the host's network")] {
        let mut child = tokio::process::Command::new(std::env::current_exe().expect("this program"))
            .env(ENV, how)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program again");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let address = lines.next_line().await.expect("a line").expect("it starts");
        let limit = Duration::from_secs_f64(seconds);
        let requests = match how {
            "libp2p" => tokio::task::spawn_blocking(move || bare(&address, limit)).await.expect("a client"),
            _ => through_network(&address, limit).await,
        };
        println!(
            "  {:<10} {:<46} {} loops/s",
            "ceiling",
            format!("{name}, documents without meaning"),
            number(requests / 3.0 / seconds)
        );
    }
}

fn bare(address: &str, limit: Duration) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut swarm = plain();
        let peer = address.rsplit(P2P).next().and_then(|id| id.parse().ok()).expect("a peer id");
        swarm.dial(address.parse::<Multiaddr>().expect("an address")).expect("it can be dialled");
        while !swarm.is_connected(&peer) {
            swarm.select_next_some().await;
        }
        let (start, mut count) = (Instant::now(), 0.0);
        while start.elapsed() < limit {
            swarm.behaviour_mut().send_request(&peer, document(REQUEST));
            loop {
                match swarm.select_next_some().await {
                    SwarmEvent::Behaviour(request_response::Event::Message {
                        message: Message::Response { .. },
                        ..
                    }) => break,
                    SwarmEvent::Behaviour(request_response::Event::OutboundFailure { error, .. }) => {
                        panic!("{error}")
                    }
                    _ => {}
                }
            }
            count += 1.0;
        }
        count
    })
}

async fn through_network(address: &str, limit: Duration) -> f64 {
    let client = misbehaving_peers::join(address, misbehaving_peers::Behave::Idle, &[]).await.network;
    client.view().wait_for(|v| v.connected > 0).await.expect("the network lives");
    let peer = address.rsplit(P2P).next().expect("a peer id").to_string();
    let caller = client.clone();
    let calls = async move {
        let (start, mut count) = (Instant::now(), 0.0);
        while start.elapsed() < limit {
            let answer =
                caller.call(&peer, &[], PeerStep::Prepare, document(REQUEST), Duration::from_secs(10));
            answer.await.expect("an answer");
            count += 1.0;
        }
        count
    };
    let count = client.runtime().spawn(calls).await.expect("a client");
    client.stop().await;
    count
}
