//! A TCP proxy: delays every byte, for links that are longer than loopback, and breaks in the ways that links do.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until};

/// What the link does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    Pass,
    /// Open connections are cut, new ones refused.
    Refuse,
    /// Connections stay and are accepted, but nothing goes through: what is sent meanwhile comes later.
    Freeze,
}

/// Dropped, it closes its port; connections end with it.
pub struct Proxy {
    port: u16,
    link: watch::Sender<Link>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Forwards to a port of loopback, `delay` in each direction.
    pub async fn start(to: u16, delay: Duration) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let link = watch::Sender::new(Link::Pass);
        let task = tokio::spawn(serve(listener, port, to, delay, link.subscribe()));
        Ok(Proxy { port, link, task })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on the link is so.
    pub fn set(&self, link: Link) {
        self.link.send_replace(link);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut listener: TcpListener,
    port: u16,
    to: u16,
    delay: Duration,
    mut link: watch::Receiver<Link>,
) {
    let state = link.clone();
    loop {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                changed = refused(&mut link) => match changed {
                    true => break,
                    false => return,
                },
                accepted = listener.accept() => accepted,
            };
            let Ok((near, _)) = accepted else { continue };
            let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
            if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
                continue;
            }
            let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
            connections.spawn(forward(near_read, far_write, delay, state.clone()));
            connections.spawn(forward(far_read, near_write, delay, state.clone()));
        }
        drop((listener, connections));
        if link.wait_for(|l| *l != Link::Refuse).await.is_err() {
            return;
        }
        listener = match TcpListener::bind(("127.0.0.1", port)).await {
            Ok(listener) => listener,
            Err(e) => panic!("the proxy's port {port} is somebody else's now: {e}"),
        };
    }
}

/// True when the link refuses, false when no one can say so any more.
async fn refused(link: &mut watch::Receiver<Link>) -> bool {
    link.wait_for(|l| *l == Link::Refuse).await.is_ok()
}

/// Reads at once and writes each piece when its time has come, so that the delay costs no throughput.
async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    mut link: watch::Receiver<Link>,
) {
    let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let due = waiting.front().map(|(at, _)| *at);
        tokio::select! {
            biased;
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let Some((_, piece)) = waiting.pop_front() else { continue };
                if link.wait_for(|l| *l != Link::Freeze).await.is_err() || to.write_all(&piece).await.is_err() {
                    return;
                }
            }
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(n) => waiting.push_back((Instant::now() + delay, buffer[..n].to_vec())),
            },
        }
    }
}
