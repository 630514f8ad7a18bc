//! The checks of `coda-host doctor` for a host that lends its slots to a peer network.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;
use tokio::net::TcpStream;

use super::Finding;
use crate::config::settings::{AllowSetting, PeerSettings};
use crate::peers::identity;

/// Runs every check of a peer.
pub async fn peer_checks(
    settings: &PeerSettings,
    state: &Path,
    running: bool,
    limit: Duration,
) -> Vec<Finding> {
    let mut findings = vec![known_as(state), rights(settings)];
    if !running {
        findings.extend(settings.listen.iter().map(listens));
    }
    for address in &settings.network.bootstrap {
        findings.push(reachable(address, limit).await);
    }
    findings
}

fn known_as(state: &Path) -> Finding {
    match identity::stored(state) {
        Ok(Some(key)) => Finding::pass("peer", format!("known as {}", key.public().to_peer_id())),
        Ok(None) => Finding::pass("peer", "the first start creates its identity"),
        Err(e) => Finding::failure("peer", &e.into()),
    }
}

fn rights(settings: &PeerSettings) -> Finding {
    match &settings.allow {
        AllowSetting::Any => Finding::warn(
            "peer rights",
            "every peer that reaches this host may reserve its slots",
            "set CODA_PEER_ALLOW to the peer ids of the coordinators, unless this is intended",
        ),
        AllowSetting::Bootstrap if settings.network.bootstrap.is_empty() => Finding::warn(
            "peer rights",
            "no peer may reserve here",
            "set CODA_PEER_BOOTSTRAP to a coordinator's address, or CODA_PEER_ALLOW to its peer id",
        ),
        AllowSetting::Bootstrap => Finding::pass("peer rights", "the bootstrap peers may reserve"),
        AllowSetting::Listed(ids) => {
            Finding::pass("peer rights", format!("{} peer(s) may reserve", ids.len()))
        }
    }
}

fn listens(address: &Multiaddr) -> Finding {
    let Some((host, port)) = tcp(address) else {
        return Finding::fail(
            "peer port",
            format!("{address} is not a TCP address"),
            "CODA_PEER_LISTEN takes /ip4/ADDRESS/tcp/PORT",
        );
    };
    match TcpListener::bind((host.as_str(), port)) {
        Ok(_) => Finding::pass("peer port", format!("{address} is free")),
        Err(e) => {
            Finding::fail("peer port", format!("{address}: {e}"), "choose another with CODA_PEER_LISTEN")
        }
    }
}

async fn reachable(address: &Multiaddr, limit: Duration) -> Finding {
    let unreachable = |why: String| {
        let todo = "check that the peer runs and listens there, and the network and firewalls on the way";
        Finding::fail("bootstrap", format!("{address}: {why}"), todo)
    };
    let Some((host, port)) = tcp(address) else {
        return unreachable("not a TCP address".into());
    };
    match tokio::time::timeout(limit, TcpStream::connect((host.as_str(), port))).await {
        Ok(Ok(_)) => Finding::pass("bootstrap", format!("{address} is reachable")),
        Ok(Err(e)) => unreachable(e.to_string()),
        Err(_) => unreachable(format!("no answer within {limit:?}")),
    }
}

/// Host and port of a TCP multiaddress; `None` for other addresses.
fn tcp(address: &Multiaddr) -> Option<(String, u16)> {
    let mut parts = address.iter();
    let host = match parts.next()? {
        Protocol::Ip4(ip) => ip.to_string(),
        Protocol::Ip6(ip) => ip.to_string(),
        Protocol::Dns(name) | Protocol::Dns4(name) | Protocol::Dns6(name) => name.into_owned(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some((host, port)),
        _ => None,
    }
}
