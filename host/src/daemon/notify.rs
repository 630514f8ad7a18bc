//! Notifies the service manager that the host is up, stopping or alive, by systemd's notification protocol.
//!
//! One datagram per message to the socket that `NOTIFY_SOCKET` names, as sd_notify(3) describes. `start --daemon`
//! listens in the same way, so there is one means for both.
//!
//! The crate `sd-notify` is not used: it reads `NOTIFY_SOCKET` from the environment at each message, and the host takes
//! that variable out of its environment before a plugin or a child could see it.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Variables that are meant for this process alone, and are taken out of its environment. OpenVPN, for one, takes
/// `NOTIFY_SOCKET` as a sign that systemd started it, and then never goes into the background.
pub const VARIABLES: [&str; 3] = ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];

/// The process that started the host, if it listens.
#[derive(Debug)]
pub struct Notifier {
    socket: Option<(UnixDatagram, SocketAddr)>,
    watchdog: Option<Duration>,
}

impl Notifier {
    /// A notifier for the values of `NOTIFY_SOCKET` and `WATCHDOG_USEC`.
    pub fn new(socket: Option<&str>, watchdog_usec: Option<&str>) -> Notifier {
        let socket = socket.filter(|s| !s.is_empty()).and_then(|name| {
            let address = match name.strip_prefix('@') {
                Some(name) => SocketAddr::from_abstract_name(name),
                None => SocketAddr::from_pathname(name),
            };
            match (UnixDatagram::unbound(), address) {
                (Ok(socket), Ok(address)) => Some((socket, address)),
                (Err(error), _) | (_, Err(error)) => {
                    tracing::warn!(name, %error, "the socket of NOTIFY_SOCKET can't be used");
                    None
                }
            }
        });
        let watchdog =
            watchdog_usec.and_then(|n| n.parse().ok()).filter(|n| *n > 0).map(Duration::from_micros);
        Notifier { socket, watchdog }
    }

    /// Interval for calls of [`Notifier::alive`]: half of the watchdog's limit.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.socket.as_ref().and(self.watchdog).map(|d| d / 2)
    }

    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={status}\nMAINPID={}", std::process::id()));
    }

    pub fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=stopping: finishing what runs");
    }

    pub fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    fn send(&self, message: &str) {
        if let Some((socket, address)) = &self.socket
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::debug!(%error, "the process that started the host could not be notified");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_a_socket_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("coda-host-test-{}", std::process::id());
        let by_name = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let mut buffer = [0; 200];
        for (socket, listener) in
            [(path.to_str().unwrap().to_string(), by_path), (format!("@{name}"), by_name)]
        {
            let notifier = Notifier::new(Some(&socket), Some("3000000"));
            assert_eq!(notifier.watchdog_interval(), Some(Duration::from_millis(1500)));
            notifier.ready("up");
            let n = listener.recv(&mut buffer).unwrap();
            assert!(buffer[..n].starts_with(b"READY=1\nSTATUS=up\nMAINPID="));
        }
        let none = Notifier::new(None, Some("3000000"));
        assert_eq!(none.watchdog_interval(), None);
        none.ready("no socket");
    }
}
