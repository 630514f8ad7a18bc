//! What the peer role needs: a key, a free address to listen on, bootstrap peers that answer, somebody who may reserve.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use libp2p::Multiaddr;
use libp2p::multiaddr::Protocol;

use super::Finding;
use crate::config::settings::{AllowSetting, PeerSettings};
use crate::peers::identity;

/// Looks at each; only what can't be is tried is left to the start.
pub async fn peer(peer: &PeerSettings, state: &Path, running: bool, limit: Duration) -> Vec<Finding> {
    let mut findings = vec![match identity::look(state) {
        Ok(Some(key)) => Finding::pass("identity", format!("peer {}", key.public().to_peer_id())),
        Ok(None) => Finding::skip("identity", "the first start makes the key"),
        Err(e) => Finding::failure("identity", &e.into()),
    }];
    for address in &peer.listen {
        findings.push(match socket(address) {
            _ if running => Finding::skip("listen", format!("{address}: the running host has it")),
            None => Finding::skip("listen", format!("{address}: not looked at")),
            Some(at) => match std::net::TcpListener::bind(at) {
                Ok(_) => Finding::pass("listen", format!("{address} is free")),
                Err(e) => {
                    Finding::fail("listen", format!("{address}: {e}"), "choose another with CODA_PEER_LISTEN")
                }
            },
        });
    }
    for address in &peer.network.bootstrap {
        let Some(at) = socket(address) else {
            findings.push(Finding::skip("bootstrap", format!("{address}: not looked at")));
            continue;
        };
        let connected = tokio::time::timeout(limit, tokio::net::TcpStream::connect(at)).await;
        let trouble = match connected {
            Ok(Ok(_)) => None,
            Ok(Err(e)) => Some(e.to_string()),
            Err(_) => Some(format!("no answer within {limit:?}")),
        };
        findings.push(match trouble {
            None => Finding::pass("bootstrap", format!("{address} takes connections")),
            Some(why) => Finding::fail(
                "bootstrap",
                format!("{address}: {why}"),
                "see that the coordinator runs there, and that no firewall is between",
            ),
        });
    }
    findings.push(match &peer.allow {
        AllowSetting::Any => Finding::warn(
            "allow",
            "every peer that can connect may reserve the QPU",
            "list who may with CODA_PEER_ALLOW, unless that is meant",
        ),
        AllowSetting::Listed(ids) => Finding::pass("allow", format!("{} peer(s) may reserve", ids.len())),
        AllowSetting::Bootstrap if peer.network.bootstrap.is_empty() => Finding::warn(
            "allow",
            "no peer may reserve",
            "set CODA_PEER_BOOTSTRAP to the coordinator's address, or CODA_PEER_ALLOW to its peer id",
        ),
        AllowSetting::Bootstrap => Finding::pass(
            "allow",
            format!("the {} bootstrap peer(s) may reserve", peer.network.bootstrap.len()),
        ),
    });
    findings
}

/// Where a TCP address leads.
fn socket(address: &Multiaddr) -> Option<SocketAddr> {
    let mut parts = address.iter();
    let ip: IpAddr = match parts.next()? {
        Protocol::Ip4(ip) => ip.into(),
        Protocol::Ip6(ip) => ip.into(),
        _ => return None,
    };
    match parts.next()? {
        Protocol::Tcp(port) => Some(SocketAddr::new(ip, port)),
        _ => None,
    }
}
