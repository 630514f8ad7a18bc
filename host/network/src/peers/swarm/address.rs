//! Pure: addresses of peers, and which of them are dialled.

use std::net::IpAddr;

use libp2p::multiaddr::Protocol as Part;
use libp2p::{Multiaddr, PeerId};

/// Parses an address from gossip for dialling. Only a TCP address of this peer is dialled; gossip is not trusted
/// further.
pub fn dialable(text: &str, peer: PeerId) -> Option<Multiaddr> {
    let address: Multiaddr = text.parse().ok()?;
    let mut parts = address.iter();
    let host =
        matches!(parts.next()?, Part::Ip4(_) | Part::Ip6(_) | Part::Dns(_) | Part::Dns4(_) | Part::Dns6(_));
    let port = matches!(parts.next()?, Part::Tcp(_));
    let own = match parts.next() {
        Some(Part::P2p(id)) => id == peer,
        None => true,
        Some(_) => false,
    };
    (host && port && own && parts.next().is_none()).then_some(address)
}

/// The IP address at the beginning of an address.
pub fn ip_of(address: &Multiaddr) -> Option<IpAddr> {
    match address.iter().next()? {
        Part::Ip4(ip) => Some(ip.into()),
        Part::Ip6(ip) => Some(ip.into()),
        _ => None,
    }
}

/// The peer id at the end of an address.
pub fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    match address.iter().last() {
        Some(Part::P2p(id)) => Some(id),
        _ => None,
    }
}
