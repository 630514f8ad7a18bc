//! The peers of the network as the coordinator uses them: who is there, which of their slots its jobs hold, and what has
//! happened with each.
//!
//! One owner under one lock, shared between the network's thread, the jobs and the API: a block's peer is chosen and
//! its slot counted in one step, so that no two blocks take one free slot for theirs. Whatever may make a peer usable,
//! such as gossip, a connection or a slot that comes free, wakes the blocks that wait.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::plan::{Block, Candidate, RankedCandidate, Ties, rank};
use super::probe::{Proofs, StatementKind};
use super::slot_book::SlotBook;
use super::track_record::{BreakerState, PeerAdmission, PeerFailure, TrackRecords};
use super::waiting_line::{LineTicket, WaitingLine};
use crate::peers::registry::{GossipError, PeerRecord, Registry, Topic};
use crate::peers::wire::HealthStatus;

/// When a peer that is being tried is looked at again, if nothing tells before.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Peers whose ranks differ by less are equals, for each peer that was full and not found out otherwise.
const EQUAL_RANKS: f64 = 0.02;

/// The handle.
#[derive(Clone)]
pub struct Directory {
    peers: Arc<Mutex<Peers>>,
    changes: watch::Sender<()>,
    /// The time since a fixed moment.
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// What makes this coordinator prefer other peers than others do.
    salt: u128,
}

struct Peers {
    registry: Registry,
    book: SlotBook,
    records: TrackRecords,
    proofs: Proofs,
    line: WaitingLine<Arc<BlockNeeds>>,
}

/// What a block that waits could use.
struct BlockNeeds {
    block: Block,
    kinds: BTreeSet<StatementKind>,
    apart: BTreeSet<String>,
}

impl BlockNeeds {
    /// Whether every peer that is able to run this other block is able to run the one that waits.
    fn can_use_all(&self, block: &Block, kinds: &BTreeSet<StatementKind>, apart: &BTreeSet<String>) -> bool {
        self.block.services.iter().all(|service| block.services.contains(service))
            && self.kinds.is_subset(kinds)
            && self.apart.is_subset(apart)
    }
}

/// A block's place among those that look for a slot. Dropped, it is given up.
pub struct PlaceInLine {
    directory: Directory,
    ticket: LineTicket,
}

impl Drop for PlaceInLine {
    fn drop(&mut self) {
        let others_look = self.directory.peers().line.leave(self.ticket);
        if others_look {
            self.directory.changed();
        }
    }
}

/// A peer, with how long ago it was heard.
#[derive(Debug, Clone)]
pub struct KnownPeer {
    pub record: PeerRecord,
    pub stale: bool,
    pub heard_seconds_ago: u64,
    pub breaker: BreakerState,
    /// By how much its rank is worse for what happened with it.
    pub penalty: f64,
}

/// What there is for a block now.
pub enum SlotChoice {
    /// The best peer that may have a slot free.
    Peer(SlotClaim),
    /// Every candidate is full or is being tried; one of them is asked again after this time.
    Full(Duration),
    /// No candidate.
    None,
}

/// A slot of a peer that is counted as held. Dropped, it is given back.
pub struct SlotClaim {
    directory: Directory,
    pub peer: String,
    open: bool,
    /// The peer's breaker was not closed.
    trial: bool,
    /// The block's place in the line, to which it returns when the peer has no slot.
    place: Option<(LineTicket, Arc<BlockNeeds>)>,
}

impl SlotClaim {
    /// The peer has given the slot.
    pub fn accepted(&self) {
        self.directory.peers().book.accepted(&self.peer);
    }

    /// The peer had no slot.
    pub fn declined(mut self) {
        self.open = false;
        let (now, mut peers) = (self.directory.now(), self.directory.peers());
        // Before anyone else looks: it is not passed while it records the refusal.
        if let Some((ticket, needs)) = self.place.take() {
            peers.line.wait(ticket, needs);
        }
        peers.book.declined(now, &self.peer);
        if self.trial {
            peers.records.trial_ends(&self.peer);
        }
        drop(peers);
        self.directory.changed();
    }
}

impl Drop for SlotClaim {
    fn drop(&mut self) {
        if self.open {
            let mut peers = self.directory.peers();
            peers.book.released(&self.peer);
            if self.trial {
                peers.records.trial_ends(&self.peer);
            }
            drop(peers);
            self.directory.changed();
        }
    }
}

impl Directory {
    pub fn new(stale: Duration) -> Directory {
        let started = Instant::now();
        Directory::with_clock(stale, uuid::Uuid::new_v4().as_u128(), move || started.elapsed())
    }

    /// One that lives by another clock, which tells the time since a fixed moment. Those with different salts prefer different
    /// peers among equals.
    pub fn with_clock(
        stale: Duration,
        salt: u128,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Directory {
        let stale_ms = u64::try_from(stale.as_millis()).unwrap_or(u64::MAX);
        let registry = Registry::new(stale_ms);
        let (book, records, proofs) = (SlotBook::default(), TrackRecords::default(), Proofs::default());
        let peers = Peers { registry, book, records, proofs, line: WaitingLine::default() };
        Directory {
            peers: Arc::new(Mutex::new(peers)),
            changes: watch::Sender::new(()),
            clock: Arc::new(clock),
            salt,
        }
    }

    /// A panic elsewhere leaves the tables whole: each change is one call.
    fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap_or(u64::MAX)
    }

    fn changed(&self) {
        self.changes.send_replace(());
    }

    /// The time at which a job was accepted whose age is known, for [`Directory::place_in_line`].
    pub fn accepted_at(&self, age: Duration) -> i64 {
        let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        millis(self.now()).saturating_sub(millis(age))
    }

    /// A place in the line for a block of a job that was accepted then.
    pub fn place_in_line(&self, accepted: i64) -> PlaceInLine {
        let ticket = self.peers().line.ticket(accepted);
        PlaceInLine { directory: self.clone(), ticket }
    }

    /// Tells when a peer may have become usable. To be taken before the look that finds nothing.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    /// Blocks that look for a peer with a free slot: each has one of [`Directory::changes`] meanwhile.
    pub fn waiting_blocks(&self) -> usize {
        self.changes.receiver_count()
    }

    /// Slots of peers that are held or asked for.
    pub fn held_slots(&self) -> u64 {
        self.peers().book.held()
    }

    /// Takes a gossip message that `author` has signed.
    ///
    /// # Errors
    /// When the message is invalid, speaks for another peer, or too many peers are known.
    pub fn hear(&self, author: &str, topic: Topic, bytes: &[u8]) -> Result<(), GossipError> {
        let now_ms = self.now_ms();
        let mut peers = self.peers();
        peers.registry.hear(now_ms, author, topic, bytes)?;
        if topic == Topic::Heartbeat
            && let Some(peer) = peers.registry.peers().get(author)
        {
            let load = peer.reservations.saturating_add(peer.executions);
            peers.book.reported(author, load);
        }
        drop(peers);
        self.changed();
        Ok(())
    }

    /// A peer is connected.
    pub fn connected(&self, peer: &str) {
        let mut peers = self.peers();
        peers.registry.connected(peer);
        peers.book.returned(peer);
        peers.records.returned(peer);
        drop(peers);
        self.changed();
    }

    /// A peer can't be reached: it isn't planned on until it is connected or heard again. Returns whether it is known.
    pub fn lost(&self, peer: &str) -> bool {
        self.peers().registry.lost(peer)
    }

    /// Peers that were lost and have not been silent for long, with their addresses.
    pub fn lost_peers(&self) -> Vec<(String, Vec<String>)> {
        let (now_ms, peers) = (self.now_ms(), self.peers());
        let lost = |p: &PeerRecord| p.lost && !peers.registry.is_stale(p, now_ms);
        let known = peers.registry.peers().iter().filter(|(_, p)| lost(p));
        known.map(|(id, p)| (id.clone(), p.addresses.clone())).collect()
    }

    pub fn sweep(&self) {
        let now_ms = self.now_ms();
        let mut guard = self.peers();
        let Peers { registry, records, proofs, .. } = &mut *guard;
        registry.sweep(now_ms);
        records.retain(|peer| registry.peers().contains_key(peer));
        proofs.retain(|peer| registry.peers().contains_key(peer));
    }

    /// Everybody, by peer id.
    pub fn known_peers(&self) -> BTreeMap<String, KnownPeer> {
        let (now, now_ms, peers) = (self.now(), self.now_ms(), self.peers());
        let known = |(id, record): (&String, &PeerRecord)| {
            let known = KnownPeer {
                record: record.clone(),
                stale: peers.registry.is_stale(record, now_ms),
                heard_seconds_ago: now_ms.saturating_sub(record.heard_ms) / 1000,
                breaker: peers.records.state(now, id),
                penalty: peers.records.penalty(id),
            };
            (id.clone(), known)
        };
        peers.registry.peers().iter().map(known).collect()
    }

    /// Those that may be planned on.
    pub fn candidates(&self) -> Vec<Candidate> {
        let now_ms = self.now_ms();
        self.peers().candidates(now_ms, |_, _| true)
    }

    /// Chooses the best peer for a block that is not in `apart` and does none of these kinds of statements wrong, and counts a
    /// slot of it as held. `ran_on` has the peers that the block's state comes from. A slot that a block with an earlier place
    /// waits for is left to it; a block without a place comes after all.
    pub fn claim(
        &self,
        place: Option<&PlaceInLine>,
        block: &Block,
        kinds: &BTreeSet<StatementKind>,
        apart: &BTreeSet<String>,
        ran_on: &BTreeSet<String>,
    ) -> SlotChoice {
        let before = ran_on.iter().map(String::as_str).collect();
        let (now, now_ms) = (self.now(), self.now_ms());
        let mut guard = self.peers();
        let peers = &mut *guard;
        let able = |id: &str, p: &PeerRecord| {
            block.is_offered_by(&p.services)
                && !apart.contains(id)
                && !peers.proofs.does_wrong(now, id, kinds)
        };
        let may_ask = |id: &str| peers.book.may_ask(now, id);
        let admission = |id: &str| peers.records.admission(now, id);
        let admitted = |id: &str| matches!(admission(id), PeerAdmission::Yes | PeerAdmission::Trial);
        let ticket = place.map(|place| place.ticket);
        let needs = || BlockNeeds { block: block.clone(), kinds: kinds.clone(), apart: apart.clone() };
        let waiting = ticket.map(|ticket| (ticket, Arc::new(needs())));
        // Without a look at the peers: hundreds of blocks may wait, and each change wakes them all.
        if peers.line.is_left_to_another(ticket, |earlier| earlier.can_use_all(block, kinds, apart)) {
            if let Some((ticket, needs)) = waiting {
                peers.line.wait(ticket, needs);
            }
            return SlotChoice::Full(LOOK_AGAIN);
        }
        let mut free = peers.candidates(now_ms, |id, p| able(id, p) && may_ask(id) && admitted(id));
        let found = free.len();
        let is_left = |peer: &Candidate| {
            peers.line.is_left_to_another(ticket, |needs| {
                needs.block.is_offered_by(&peer.services)
                    && !needs.apart.contains(&peer.peer_id)
                    && !peers.proofs.does_wrong(now, &peer.peer_id, &needs.kinds)
            })
        };
        free.retain(|peer| !is_left(peer));
        let is_held_back = free.len() < found && free.is_empty();
        if free.is_empty() && !is_held_back {
            let mut all = peers.usable(now_ms).filter(|(id, p)| able(id, p));
            // Of those that are left alone one is better than none.
            if all.all(|(id, _)| admission(id) == PeerAdmission::LastResort) {
                free = peers.candidates(now_ms, |id, p| able(id, p) && may_ask(id));
            }
        }
        // The book has the load of blocks that are on their way already.
        let Some(best) = self.best(block, free, &before, &peers.book) else {
            // A peer whose pause is over is left for another reason: a block that looked again at once would look for ever.
            let again = |id: &String| {
                let pause = peers.book.ask_again(id).filter(|again| *again > now);
                pause.unwrap_or(now + LOOK_AGAIN)
            };
            let again = match is_held_back {
                // The earlier block tells when it has its slot.
                true => Some(now + LOOK_AGAIN),
                false => peers.usable(now_ms).filter(|(id, p)| able(id, p)).map(|(id, _)| again(id)).min(),
            };
            let Some(again) = again else { return SlotChoice::None };
            if let Some((ticket, needs)) = waiting {
                peers.line.wait(ticket, needs);
            }
            return SlotChoice::Full(again.saturating_sub(now));
        };
        let trial = admission(&best.peer_id) != PeerAdmission::Yes;
        if trial {
            peers.records.trial_begins(&best.peer_id);
        }
        peers.book.hold(now, &best.peer_id);
        if ticket.is_some_and(|ticket| peers.line.leave(ticket)) {
            self.changed();
        }
        SlotChoice::Peer(SlotClaim {
            directory: self.clone(),
            peer: best.peer_id,
            open: true,
            trial,
            place: waiting,
        })
    }

    /// The best of these peers. Coordinators that think the same peers the best would all ask those and be declined. So each
    /// prefers others among equals, the more it is declined the more peers are equals, and one that has just declined is
    /// asked after all others.
    fn best(
        &self,
        block: &Block,
        mut free: Vec<Candidate>,
        before: &BTreeSet<&str>,
        book: &SlotBook,
    ) -> Option<RankedCandidate> {
        let (now, step) = (self.now(), EQUAL_RANKS * f64::from(book.contention()));
        let declined = |peer: &Candidate| book.declined_recently(now, &peer.peer_id);
        if free.iter().any(|peer| declined(peer).is_none()) {
            free.retain(|peer| declined(peer).is_none());
        } else if let Some(longest_ago) = free.iter().filter_map(declined).min() {
            free.retain(|peer| declined(peer) == Some(longest_ago));
        }
        let is_alone = !book.is_contended(now);
        let preference = |peer: &str| {
            // No one else asks for these peers: the contract's order, which is that of the plan.
            if is_alone {
                return 0;
            }
            let mut hasher = DefaultHasher::new();
            (self.salt, peer).hash(&mut hasher);
            hasher.finish()
        };
        rank(block, &free, before, &BTreeMap::new(), &Ties { step, preference }).into_iter().next()
    }

    /// Counts a further slot of a peer as held, if one may be free.
    pub fn claim_of(&self, peer: &str) -> Option<SlotClaim> {
        let (now, mut peers) = (self.now(), self.peers());
        if !peers.book.may_ask(now, peer) {
            return None;
        }
        let trial = match peers.records.admission(now, peer) {
            PeerAdmission::Yes => false,
            PeerAdmission::Trial => true,
            PeerAdmission::TrialUnderWay | PeerAdmission::LastResort => return None,
        };
        if trial {
            peers.records.trial_begins(peer);
        }
        peers.book.hold(now, peer);
        Some(SlotClaim { directory: self.clone(), peer: peer.into(), open: true, trial, place: None })
    }

    /// The first of these kinds of statements that a peer with this agent has not shown that it does right.
    pub fn unproven(
        &self,
        peer: &str,
        agent: &str,
        kinds: &BTreeSet<StatementKind>,
    ) -> Option<StatementKind> {
        let now = self.now();
        self.peers().proofs.unproven(now, peer, agent, kinds)
    }

    /// A peer with this agent has shown whether it does this kind of statement right.
    pub fn proved(&self, peer: &str, agent: &str, kind: StatementKind, right: bool) {
        let now = self.now();
        self.peers().proofs.record(now, peer, agent, kind, right);
    }

    /// A peer answered a prepare, commit or cancel.
    pub fn answered(&self, peer: &str, after: Duration) {
        self.peers().records.answered(peer, after);
    }

    /// A peer completed a block of so much work: amplitudes times operations.
    pub fn completed(&self, peer: &str, work: f64, after: Duration) {
        self.peers().records.completed(peer, work, after);
    }

    pub fn failed(&self, peer: &str, failure: PeerFailure) {
        let (now, mut peers) = (self.now(), self.peers());
        let before = peers.records.state(now, peer);
        peers.records.failed(now, peer, failure);
        let after = peers.records.state(now, peer);
        drop(peers);
        if before != after && after == BreakerState::Open {
            tracing::warn!(peer, ?failure, "the peer is left alone for a while; others take its blocks");
        }
    }

    /// How long a prepare, commit or cancel of this peer may take, at most so long.
    pub fn call_limit(&self, peer: &str, most: Duration) -> Duration {
        self.peers().records.call_limit(peer, most)
    }

    /// How long a block of so much work may take there before another peer is asked as well.
    pub fn overdue_after(&self, peer: &str, work: f64) -> Duration {
        self.peers().records.overdue_after(peer, work)
    }

    pub fn addresses(&self, peer: &str) -> Vec<String> {
        self.peers().registry.peers().get(peer).map(|p| p.addresses.clone()).unwrap_or_default()
    }

    pub fn report_fidelity(&self, peer: &str, services: &[String], fidelity: f64) {
        self.peers().registry.report_fidelity(peer, services, fidelity);
    }
}

impl Peers {
    /// Those that may be planned on.
    fn usable(&self, now_ms: u64) -> impl Iterator<Item = (&String, &PeerRecord)> {
        let usable = move |p: &PeerRecord| {
            !p.lost && !self.registry.is_stale(p, now_ms) && p.health == Some(HealthStatus::Healthy)
        };
        self.registry.peers().iter().filter(move |(_, p)| usable(p))
    }

    /// Those of them that are wanted.
    fn candidates(&self, now_ms: u64, wanted: impl Fn(&str, &PeerRecord) -> bool) -> Vec<Candidate> {
        let candidate = |(id, p): (&String, &PeerRecord)| Candidate {
            peer_id: id.clone(),
            services: p.services.clone(),
            fidelity: p.fidelity.clone(),
            load: self.book.load(id),
            penalty: self.records.penalty(id),
        };
        self.usable(now_ms).filter(|(id, p)| wanted(id, p)).map(candidate).collect()
    }
}
