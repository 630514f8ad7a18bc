//! The coordinator's role in the network: it serves no requests and collects gossip of all peers.
//!
//! What it hears is kept in the [`Directory`], which the jobs and the API use.

use std::time::Duration;

use super::directory::Directory;
use crate::peers::registry::{GossipError, Topic};
use crate::peers::swarm::{Announcement, Caller, Channel, Document, ReadyAnswer, Role};
use crate::peers::wire::PeerStep;

/// What the network calls.
pub struct Listener {
    directory: Directory,
    sweep: tokio::time::Interval,
}

impl Listener {
    /// To be called on the network's thread.
    pub fn new(directory: Directory, sweep: Duration) -> Listener {
        Listener { directory, sweep: tokio::time::interval(sweep) }
    }
}

impl Role for Listener {
    fn serves(&self) -> bool {
        false
    }

    fn request(&mut self, caller: Caller, step: PeerStep, _: Document, _: Channel) -> Option<ReadyAnswer> {
        tracing::debug!(peer = caller.peer, step = step.name(), "a coordinator has nothing to lend");
        None
    }

    async fn work(&mut self) {
        self.sweep.tick().await;
        self.directory.sweep();
    }

    fn answers(&mut self) -> Vec<ReadyAnswer> {
        Vec::new()
    }

    fn hear(&mut self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError> {
        self.directory.hear(author, topic, bytes)
    }

    fn connected(&mut self, peer: &str) {
        self.directory.connected(peer);
    }

    fn disconnected(&mut self, peer: &str) -> bool {
        self.directory.lost(peer)
    }

    fn wanted(&self) -> Vec<(String, Vec<String>)> {
        self.directory.lost_peers()
    }

    fn announcement(&self, _: &[String]) -> Option<Announcement> {
        None
    }
}
