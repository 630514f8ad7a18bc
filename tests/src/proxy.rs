//! A TCP proxy that delays every byte, for links that are longer than loopback.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

/// Dropped, it closes its port; connections end with it.
pub struct Proxy {
    port: u16,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Forwards to a port of loopback, `delay` in each direction.
    pub async fn start(to: u16, delay: Duration) -> io::Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { continue };
                if near.set_nodelay(true).is_err() || far.set_nodelay(true).is_err() {
                    continue;
                }
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                connections.spawn(forward(near_read, far_write, delay));
                connections.spawn(forward(far_read, near_write, delay));
            }
        });
        Ok(Proxy { port, task })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads at once and writes each piece when its time has come, so that the delay costs no throughput.
async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let due = waiting.front().map(|(at, _)| *at);
        tokio::select! {
            biased;
            () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                let Some((_, piece)) = waiting.pop_front() else { continue };
                if to.write_all(&piece).await.is_err() {
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
