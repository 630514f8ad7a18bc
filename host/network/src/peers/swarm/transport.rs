//! TCP, Noise and Yamux; names are looked up here, and strangers shake hands here.
//!
//! libp2p counts a connection from its first byte to the end of its handshake against one limit for all, and has no way to
//! end one of them: a few hundred silent ones would shut out everybody for as long as a handshake may take. Here
//! handshakes are run before libp2p learns of the connection. When there are too many, the oldest of the address that
//! has the most goes.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::FuturesUnordered;
use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::core::upgrade::Version;
use libp2p::identity::Keypair;
use libp2p::multiaddr::Protocol as Part;
use libp2p::{Multiaddr, PeerId, Transport, noise, tcp};
use parking_lot::Mutex;

use super::NetworkError;
use super::address::ip_of;
use super::coalesce::CoalescedYamux;
use crate::connections::ConnectionTable;

/// Most handshakes that run at once.
const MAX_HANDSHAKES: usize = 128;
/// How long a handshake may take.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// How long the look-up of a name may take.
const LOOKUP_LIMIT: Duration = Duration::from_secs(10);

type Connection = (PeerId, StreamMuxerBox);

/// The transport of the peer network.
///
/// # Errors
/// When Noise can't use the key.
pub fn transport(key: &Keypair) -> Result<Boxed<Connection>, NetworkError> {
    let noise = noise::Config::new(key).map_err(|e| NetworkError::Setup(e.to_string()))?;
    let tcp = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true));
    let connections = NamedTransport { inner: Arc::new(Mutex::new(tcp)) }
        .upgrade(Version::V1Lazy)
        .authenticate(noise)
        .multiplex(CoalescedYamux::default())
        .timeout(HANDSHAKE_LIMIT)
        .map(|(peer, connection), _| (peer, StreamMuxerBox::new(connection)))
        .boxed();
    Ok(Handshakes::new(connections).boxed())
}

/// The result of a handshake, and the connection that it was for.
struct Ended {
    key: u64,
    upgrade: io::Result<Connection>,
    listener_id: ListenerId,
    local_addr: Multiaddr,
    send_back_addr: Multiaddr,
}

/// Runs handshakes of incoming connections, and passes on those that have ended.
struct Handshakes {
    inner: Boxed<Connection>,
    running: FuturesUnordered<Abortable<BoxFuture<'static, Ended>>>,
    table: ConnectionTable<u64>,
    aborts: HashMap<u64, AbortHandle>,
    next: u64,
    started: Instant,
}

impl Handshakes {
    fn new(inner: Boxed<Connection>) -> Handshakes {
        Handshakes {
            inner,
            running: FuturesUnordered::new(),
            table: ConnectionTable::new(MAX_HANDSHAKES),
            aborts: HashMap::new(),
            next: 0,
            started: Instant::now(),
        }
    }

    fn begin(
        &mut self,
        upgrade: <Boxed<Connection> as Transport>::ListenerUpgrade,
        listener_id: ListenerId,
        local_addr: Multiaddr,
        send_back_addr: Multiaddr,
    ) {
        self.next += 1;
        let (key, now) = (self.next, self.started.elapsed());
        let address = ip_of(&send_back_addr).unwrap_or(IpAddr::from([0, 0, 0, 0]));
        let handshake: BoxFuture<'static, Ended> = Box::pin(async move {
            Ended { key, upgrade: upgrade.await, listener_id, local_addr, send_back_addr }
        });
        let (abort, registration) = AbortHandle::new_pair();
        self.running.push(Abortable::new(handshake, registration));
        self.aborts.insert(key, abort);
        if let Some(evicted) = self.table.insert(key, address, now) {
            // Its future is dropped, and the connection with it, when it is polled next.
            self.aborts.remove(&evicted.key).inspect(AbortHandle::abort);
            if self.table.warns(evicted.address, now) {
                tracing::warn!(
                    address = %evicted.address,
                    limit = MAX_HANDSHAKES,
                    "too many connections that don't become one; closing the oldest of this address"
                );
            }
        }
    }
}

impl Transport for Handshakes {
    type Output = Connection;
    type Error = io::Error;
    type ListenerUpgrade = Ready<io::Result<Connection>>;
    type Dial = <Boxed<Connection> as Transport>::Dial;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        self.inner.dial(address, options)
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        while let Poll::Ready(event) = Pin::new(&mut self.inner).poll(cx) {
            match event {
                TransportEvent::Incoming { listener_id, upgrade, local_addr, send_back_addr } => {
                    self.begin(upgrade, listener_id, local_addr, send_back_addr);
                }
                other => {
                    // Not an incoming connection, so there is nothing to be made ready.
                    let none = |_| ready(Err(io::ErrorKind::Other.into()));
                    return Poll::Ready(other.map_upgrade(none));
                }
            }
        }
        while let Poll::Ready(Some(ended)) = self.running.poll_next_unpin(cx) {
            // One that was aborted is forgotten already.
            let Ok(Ended { key, upgrade, listener_id, local_addr, send_back_addr }) = ended else { continue };
            self.table.remove(key);
            self.aborts.remove(&key);
            let upgrade = ready(upgrade);
            return Poll::Ready(TransportEvent::Incoming {
                listener_id,
                upgrade,
                local_addr,
                send_back_addr,
            });
        }
        Poll::Pending
    }
}

/// TCP to addresses with a name in them: `/dns4/host/tcp/4001`.
struct NamedTransport<T> {
    inner: Arc<Mutex<T>>,
}

impl<T> Transport for NamedTransport<T>
where
    T: Transport<Error = io::Error> + Send + Unpin + 'static,
    T::Dial: Send,
    T::Output: 'static,
{
    type Output = T::Output;
    type Error = io::Error;
    type ListenerUpgrade = T::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<T::Output>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.lock().listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.lock().remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        let Some(name) = NamedAddress::of(&address) else {
            return Ok(Box::pin(self.inner.lock().dial(address, options)?));
        };
        let inner = self.inner.clone();
        Ok(Box::pin(async move {
            let mut last =
                io::Error::new(io::ErrorKind::NotFound, format!("{} has no such address", name.host));
            for address in name.resolve().await? {
                let dial = match inner.lock().dial(address, options) {
                    Ok(dial) => dial,
                    Err(TransportError::MultiaddrNotSupported(address)) => {
                        last = io::Error::other(format!("{address} can't be dialled"));
                        continue;
                    }
                    Err(TransportError::Other(error)) => {
                        last = error;
                        continue;
                    }
                };
                match dial.await {
                    Ok(output) => return Ok(output),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }))
    }

    fn poll(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut *self.inner.lock()).poll(cx)
    }
}

/// An address that begins with a name.
struct NamedAddress {
    host: String,
    /// Which addresses of the name are meant.
    family: Family,
    port: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    V4,
    V6,
    Any,
}

impl NamedAddress {
    fn of(address: &Multiaddr) -> Option<NamedAddress> {
        let mut parts = address.iter();
        let (host, family) = match parts.next()? {
            Part::Dns(host) => (host.to_string(), Family::Any),
            Part::Dns4(host) => (host.to_string(), Family::V4),
            Part::Dns6(host) => (host.to_string(), Family::V6),
            _ => return None,
        };
        let Part::Tcp(port) = parts.next()? else { return None };
        Some(NamedAddress { host, family, port })
    }

    /// The addresses of the name, as the system knows them.
    async fn resolve(&self) -> io::Result<Vec<Multiaddr>> {
        let look_up = tokio::net::lookup_host((self.host.as_str(), self.port));
        let found = tokio::time::timeout(LOOKUP_LIMIT, look_up).await;
        let found = found.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let found = found.map_err(|e| io::Error::new(e.kind(), format!("the name {}: {e}", self.host)))?;
        let meant = found.filter(|address| match self.family {
            Family::V4 => address.is_ipv4(),
            Family::V6 => address.is_ipv6(),
            Family::Any => true,
        });
        let address = |ip: IpAddr| Multiaddr::from(ip).with(Part::Tcp(self.port));
        Ok(meant.map(|found| address(found.ip())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_are_looked_up_in_the_family_that_is_meant() {
        let resolve = async |text: &str| {
            let name = NamedAddress::of(&text.parse().unwrap()).unwrap();
            let found = name.resolve().await.unwrap_or_default();
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(resolve("/dns4/localhost/tcp/4001").await, ["/ip4/127.0.0.1/tcp/4001"]);
        assert!(resolve("/dns6/localhost/tcp/1").await.iter().all(|a| a.starts_with("/ip6/")));
        assert!(resolve("/dns/localhost/tcp/1").await.contains(&"/ip4/127.0.0.1/tcp/1".to_string()));
        for plain in ["/ip4/127.0.0.1/tcp/1", "/dns4/localhost/udp/1", "/dns4/localhost"] {
            assert!(NamedAddress::of(&plain.parse().unwrap()).is_none(), "{plain}");
        }
    }
}
