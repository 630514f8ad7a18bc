//! Conflicting hosts: other processes on this machine that serve the same QPU, a Python coda-node or a coda-host with
//! another state directory.
//!
//! Two of them would run two jobs on one device at once. A coda-node is looked for among the processes (see
//! [`super::python_node`]). A coda-host holds a socket whose abstract name stands for stream and consumer; the
//! kernel removes the socket with its process, however that ends.

use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::python_node::{self, PythonNode};
use crate::error::{Explain, exit};
use crate::model::Secret;

/// Another process serves the same QPU.
#[derive(Debug, thiserror::Error)]
pub enum ConflictError {
    #[error("a Python coda-node (process {pid}) serves this QPU on this machine, with {}", dir.display())]
    PythonNode { pid: u32, dir: PathBuf },
    #[error("another coda-host on this machine serves QPU {qpu_id} as consumer {consumer}")]
    Host { qpu_id: String, consumer: String },
}

impl Explain for ConflictError {
    fn code(&self) -> &'static str {
        match self {
            ConflictError::PythonNode { .. } => "coda-node-running",
            ConflictError::Host { .. } => "consumer-taken",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            ConflictError::PythonNode { .. } => {
                "stop it first (coda-node stop, or the service that runs it); its credentials are taken over"
                    .into()
            }
            ConflictError::Host { .. } => {
                "stop it first, or give this one its own CODA_CONSUMER_NAME if it drives another device"
                    .into()
            }
        })
    }

    fn exit(&self) -> u8 {
        exit::FAILURE
    }
}

/// Lock of one consumer of one stream on this machine, held until it is dropped.
pub struct ConsumerLock {
    _socket: UnixDatagram,
}

impl ConsumerLock {
    /// Acquires the lock.
    ///
    /// # Errors
    /// Another process has the lock.
    pub fn acquire(redis_url: &Secret, qpu_id: &str, consumer: &str) -> Result<Option<Self>, ConflictError> {
        let mut key = Sha256::new();
        for part in [server(redis_url).as_str(), qpu_id, consumer] {
            key.update(part.as_bytes());
            key.update([0]);
        }
        let name = format!("coda-host-{}", hex::encode(key.finalize()));
        match SocketAddr::from_abstract_name(&name).and_then(|address| UnixDatagram::bind_addr(&address)) {
            Ok(socket) => Ok(Some(ConsumerLock { _socket: socket })),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_left_behind(&name) => {
                tracing::warn!(
                    "a process that an ended host left behind still has its consumer's lock; going on without that lock"
                );
                Ok(None)
            }
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                Err(ConflictError::Host { qpu_id: qpu_id.into(), consumer: consumer.into() })
            }
            Err(error) => {
                tracing::warn!(%error, "could not check for another host on this QPU; continuing");
                Ok(None)
            }
        }
    }
}

/// Whether the socket of this abstract name belongs to no host any more, but to a process that a plugin forked. A host
/// has a thread that waits for signals; a forked process has none of its parent's threads.
fn is_left_behind(name: &str) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let named = sockets.lines().find(|line| line.split_whitespace().last() == Some(&format!("@{name}")));
    let Some(inode) = named.and_then(|line| line.split_whitespace().nth(6)) else { return false };
    let link = PathBuf::from(format!("socket:[{inode}]"));
    let has_it = |process: &Path| {
        let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.into_iter().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == link))
    };
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    let is_host = |process: &Path| {
        if process == own {
            return true;
        }
        let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
        threads.into_iter().any(|thread| {
            std::fs::read(thread.path().join("comm")).is_ok_and(|name| name.trim_ascii() == b"signals")
        })
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let owners: Vec<PathBuf> = processes.filter(|process| has_it(process)).collect();
    // None was found where another user's processes can't be looked into: that may be a host.
    !owners.is_empty() && !owners.iter().any(|process| is_host(process))
}

/// Server and database of a URL; an account or another spelling doesn't make it another stream.
fn server(url: &Secret) -> String {
    match url::Url::parse(url.expose()) {
        Ok(u) => format!("{}:{}{}", u.host_str().unwrap_or_default(), u.port().unwrap_or(6379), u.path()),
        Err(_) => url.expose().to_string(),
    }
}

/// Looks for a coda-node that uses `dir`, or serves `qpu_id` from another directory.
///
/// # Errors
/// Such a process runs.
pub fn no_python_node(dir: &Path, qpu_id: Option<&str>) -> Result<(), ConflictError> {
    match python_node::find(dir, qpu_id) {
        Some(node) => Err(node.into()),
        None => Ok(()),
    }
}

impl From<PythonNode> for ConflictError {
    fn from(node: PythonNode) -> ConflictError {
        ConflictError::PythonNode { pid: node.pid, dir: node.dir }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_consumer_of_a_stream_has_one_lock() {
        let take = |url: &str, consumer: &str| {
            ConsumerLock::acquire(&Secret::new(url), "conflicts-test", consumer).map_err(|e| e.to_string())
        };
        let first = take("redis://u:a@127.0.0.1:1/0", "worker-0").unwrap();
        let taken = take("redis://127.0.0.1:1/0", "worker-0").err().unwrap();
        assert!(taken.contains("QPU conflicts-test as consumer worker-0"), "{taken}");
        assert!(take("redis://127.0.0.1:1/0", "worker-1").is_ok());
        assert!(take("redis://127.0.0.1:2/0", "worker-0").is_ok(), "another server");
        drop(first);
        assert!(take("redis://127.0.0.1:1/0", "worker-0").is_ok());
    }
}
