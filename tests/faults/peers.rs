//! Strangers on the peer port.

use std::time::Duration;

use coda_host::peers::swarm::Network;
use coda_host::peers::wire::PeerStep;
use coda_host_tests::load::Load;
use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::process::peak_mib;
use coda_host_tests::{LIMIT, Plan, eventually};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::{Row, Scale};

const PER_SECOND: f64 = 20.0;
/// Identities that send documents, and how many each sends at a time.
const STRANGERS: usize = 3;
const AT_ONCE: usize = 4;
const DOCUMENT: usize = 8 << 20;
/// Connections that say nothing.
const SILENT: usize = 400;
/// Most memory that the flood may take, in MiB, beyond what the host takes without it: CODA_PEER_MAX_MEMORY_MIB for
/// documents that are read, and as much again for what libp2p and the heap keep.
const FLOOD_MIB: f64 = 512.0;

const STEPS: [PeerStep; 4] = [PeerStep::Prepare, PeerStep::Commit, PeerStep::Cancel, PeerStep::Dispatch];

/// Large documents of the kinds that cost a parser most.
fn documents() -> Vec<Vec<u8>> {
    let filled = |head: &str, unit: &str| {
        let mut text = String::from(head);
        while text.len() < DOCUMENT {
            text.push_str(unit);
        }
        text.into_bytes()
    };
    vec![
        filled("", "["),
        filled("{\"payload\":[0", ",0"),
        filled("{\"payload\":{\"state_vector\":[[0,0]", ",[0,0]"),
        filled("{\"a\":\"", "\\u0000"),
        filled("", "\u{0}"),
    ]
}

/// Sends one document after the other until it is aborted.
async fn flood(network: Network, peer: String, documents: Vec<Vec<u8>>, first: usize) {
    for n in first.. {
        let (step, document) = (STEPS[n % STEPS.len()], documents[n % documents.len()].clone());
        // Refused, or the connection was closed: the next one follows.
        network.call(&peer, &[], step, document, LIMIT).await.ok();
    }
}

/// Large hostile documents and silent connections, for as long as jobs are sent: the jobs of the cloud go on.
pub async fn floods(scale: Scale) -> Row {
    let mut load = Load::new();
    let plan = Plan::faulty(&format!("run_ms: 5\nevolve: true\n{}", load.device())).lends();
    let mut host = plan.start().await;
    let (address, peer) = host.peer().await;
    load.send_all(&host, 5).await;
    load.settle(&host, LIMIT).await;
    let before = peak_mib(host.process().pid());

    let mut silent = Vec::new();
    let port: u16 = address.split('/').nth(4).and_then(|port| port.parse().ok()).expect("a port");
    for _ in 0..SILENT {
        silent.push(TcpStream::connect(("127.0.0.1", port)).await.expect("it is accepted"));
    }
    let mut floods = JoinSet::new();
    let mut networks = Vec::new();
    for _ in 0..STRANGERS {
        let network = join(&address, Behave::Idle, &[]).await.network;
        let view = network.view();
        eventually("the stranger is connected", async || view.borrow().connected > 0).await;
        for n in 0..AT_ONCE {
            floods.spawn(flood(network.clone(), peer.clone(), documents(), networks.len() + n));
        }
        networks.push(network);
    }
    load.send_for(&host, PER_SECOND, scale.seconds(20.0).max(Duration::from_secs(2))).await;
    for stream in &mut silent {
        // Closed in favour of a later one, or not.
        stream.write_all(b"\x13/multistream/1.").await.ok();
    }
    let tally = load.settle(&host, LIMIT).await;
    floods.shutdown().await;
    for network in networks {
        network.stop().await;
    }
    let grown = peak_mib(host.process().pid()) - before;
    assert!(grown < FLOOD_MIB, "the flood took {grown:.0} MiB");
    Ok(tally)
}
