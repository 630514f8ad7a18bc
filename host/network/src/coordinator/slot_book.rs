//! Pure: which slots of each peer this coordinator holds, for all of its jobs, and when a full peer is asked again.
//!
//! What always holds:
//! - a slot is counted from the moment a peer is chosen until the reservation has ended there: two blocks never take
//!   the same free slot for theirs;
//! - a peer that declined because it was full is asked again when one of the own slots there has come free, or after a
//!   pause: others may have held the slots. The pause doubles while nothing changes, and is longer where more peers are
//!   full, so that many coordinators that wait don't spend their time and the peers' on questions;
//! - a peer that has declined counts as one to be asked after all others for a while, since its slots are most often still
//!   taken, until an own one comes free there;
//! - holds of others are what the peer reports less the most that was held here since its report before, so that a report
//!   that comes late does not count an own slot twice.
//!
//! Time is elapsed time.

use std::collections::BTreeMap;
use std::time::Duration;

/// How long a full peer is left alone at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Between two questions to full peers, on average, where there are many: hundreds of coordinators ask them too.
const QUESTION_INTERVAL: Duration = Duration::from_millis(50);
const MAX_CONTENTION: u32 = 5;
/// How long a declined question tells that others ask for the same peers.
const CONTENDED: Duration = Duration::from_secs(60);
/// How long others are preferred to a peer that has declined: most often its slots are still taken.
const RECENT: Duration = Duration::from_secs(10);

/// The slots of one peer, as this coordinator sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct PeerSlots {
    /// Slots that this coordinator holds there, or has asked for.
    held: u64,
    /// The most that were held since the last report.
    peak: u64,
    others: u64,
    full: Option<Full>,
}

/// A peer has declined for want of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Full {
    /// So many slots were held here without the one that was declined.
    held: u64,
    since: Duration,
    ask_again: Duration,
    pause: Duration,
}

/// The slots of all peers.
#[derive(Debug, Clone, Default)]
pub struct SlotBook {
    peers: BTreeMap<String, PeerSlots>,
    /// More declined than accepted of late.
    contention: u32,
    last_declined: Option<Duration>,
}

impl SlotBook {
    /// Whether a slot of this peer may be free.
    pub fn may_ask(&self, now: Duration, peer: &str) -> bool {
        let Some(slots) = self.peers.get(peer) else { return true };
        slots.full.as_ref().is_none_or(|full| slots.held < full.held || full.ask_again <= now)
    }

    /// When a full peer is asked again, if no own slot comes free before.
    pub fn ask_again(&self, peer: &str) -> Option<Duration> {
        self.peers.get(peer)?.full.as_ref().map(|full| full.ask_again)
    }

    /// When the peer declined, if that was a short while ago and none of the own slots there has come free since.
    pub fn declined_recently(&self, now: Duration, peer: &str) -> Option<Duration> {
        let slots = self.peers.get(peer)?;
        let full = slots.full.as_ref().filter(|full| slots.held >= full.held)?;
        (now < full.since.saturating_add(RECENT)).then_some(full.since)
    }

    /// Own slots and those that others hold.
    pub fn load(&self, peer: &str) -> u64 {
        self.peers.get(peer).map_or(0, |slots| slots.held.saturating_add(slots.others))
    }

    /// From 0, where peers give the slots that are asked for, to 5, where they are full more often than not.
    pub fn contention(&self) -> u32 {
        self.contention
    }

    /// Whether a peer has declined within the last minute: others seem to ask for the same ones.
    pub fn is_contended(&self, now: Duration) -> bool {
        self.last_declined.is_some_and(|at| now < at.saturating_add(CONTENDED))
    }

    /// A slot is about to be asked for.
    pub fn hold(&mut self, now: Duration, peer: &str) {
        let slots = self.peers.entry(peer.into()).or_default();
        slots.held += 1;
        slots.peak = slots.peak.max(slots.held);
        // One block tries a full peer; the others wait for what it finds.
        if let Some(full) = &mut slots.full
            && slots.held > full.held
        {
            full.ask_again = now.saturating_add(full.pause);
        }
    }

    /// The peer has given the slot.
    pub fn accepted(&mut self, peer: &str) {
        self.contention = self.contention.saturating_sub(1);
        let Some(slots) = self.peers.get_mut(peer) else { return };
        if slots.full.as_ref().is_some_and(|full| slots.held > full.held) {
            slots.full = None;
        }
    }

    /// The peer had no slot. The hold is given back.
    pub fn declined(&mut self, now: Duration, peer: &str) {
        self.contention = (self.contention + 1).min(MAX_CONTENTION);
        self.last_declined = Some(now);
        self.released(peer);
        let full = self.peers.values().filter(|slots| slots.full.is_some()).count();
        let longest = LONGEST_PAUSE.max(QUESTION_INTERVAL * u32::try_from(full).unwrap_or(u32::MAX));
        let slots = self.peers.entry(peer.into()).or_default();
        let pause = match &slots.full {
            Some(full) => full.pause.saturating_mul(2).min(longest),
            None => FIRST_PAUSE,
        };
        slots.full = Some(Full { held: slots.held, since: now, ask_again: now.saturating_add(pause), pause });
    }

    /// The reservation has ended at the peer, or was never made.
    pub fn released(&mut self, peer: &str) {
        let Some(slots) = self.peers.get_mut(peer) else { return };
        debug_assert!(slots.held > 0, "a slot is given back once");
        slots.held = slots.held.saturating_sub(1);
        if *slots == (PeerSlots { peak: slots.peak, ..PeerSlots::default() }) {
            self.peers.remove(peer);
        }
    }

    /// The peer reports so many reservations and executions, of everybody.
    pub fn reported(&mut self, peer: &str, load: u64) {
        let slots = self.peers.entry(peer.into()).or_default();
        slots.others = load.saturating_sub(slots.peak);
        slots.peak = slots.held;
        if *slots == PeerSlots::default() {
            self.peers.remove(peer);
        }
    }

    /// The peer has started again or is connected again: what it declined before tells nothing.
    pub fn returned(&mut self, peer: &str) {
        if let Some(slots) = self.peers.get_mut(peer) {
            slots.full = None;
            slots.others = 0;
        }
    }

    /// Slots that are held in all.
    pub fn held(&self) -> u64 {
        self.peers.values().map(|slots| slots.held).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const P: &str = "12D3KooWp";

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_full_peer_is_asked_again_when_an_own_slot_comes_free_or_after_a_pause() {
        let mut book = SlotBook::default();
        assert!(book.may_ask(ms(0), P));
        book.hold(ms(0), P);
        book.hold(ms(0), P);
        book.accepted(P);
        book.declined(ms(0), P);
        assert!(!book.may_ask(ms(19), P) && book.may_ask(ms(20), P));
        book.released(P);
        assert!(book.may_ask(ms(1), P), "the own slot is free");
        // Others hold it: the pause grows.
        book.hold(ms(1), P);
        book.declined(ms(1), P);
        assert_eq!(book.ask_again(P), Some(ms(41)));
        for _ in 0..20 {
            book.hold(ms(100), P);
            book.declined(ms(100), P);
        }
        assert_eq!(book.ask_again(P), Some(ms(1100)));
        // One tries it; the others wait for what it finds.
        book.hold(ms(1100), P);
        assert!(!book.may_ask(ms(1100), P));
        book.accepted(P);
        assert!(book.may_ask(ms(1100), P), "it has more slots than it was thought to have");
    }

    #[test]
    fn a_late_report_does_not_count_own_slots_as_those_of_others() {
        let mut book = SlotBook::default();
        book.hold(ms(0), P);
        book.hold(ms(0), P);
        book.released(P);
        book.reported(P, 3);
        assert_eq!(book.load(P), 2, "one own, one of others");
        book.reported(P, 3);
        assert_eq!(book.load(P), 3, "one own, two of others");
        book.returned(P);
        book.released(P);
        book.reported(P, 0);
        assert_eq!((book.load(P), book.peers.len()), (0, 0));
    }

    #[test]
    fn a_peer_that_has_declined_is_known_for_a_while_unless_an_own_slot_comes_free() {
        let mut book = SlotBook::default();
        assert_eq!((book.declined_recently(ms(0), P), book.contention()), (None, 0));
        assert!(!book.is_contended(ms(0)));
        book.hold(ms(5), P);
        book.declined(ms(5), P);
        assert_eq!((book.declined_recently(ms(10_004), P), book.contention()), (Some(ms(5)), 1));
        assert_eq!(book.declined_recently(ms(10_005), P), None);
        // With one own slot there and none for a second block.
        book.hold(ms(20), P);
        book.accepted(P);
        book.hold(ms(20), P);
        book.declined(ms(20), P);
        assert_eq!(book.declined_recently(ms(30), P), Some(ms(20)));
        book.released(P);
        assert_eq!(book.declined_recently(ms(30), P), None, "the own slot is free");
        (0..20).for_each(|_| {
            book.hold(ms(40), P);
            book.declined(ms(40), P);
        });
        assert_eq!(book.contention(), MAX_CONTENTION);
        assert!(book.is_contended(ms(0)));
    }

    #[test]
    fn a_thousand_full_peers_are_not_asked_more_often_than_twenty() {
        let mut book = SlotBook::default();
        let peers: Vec<String> = (0..1000).map(|n| format!("12D3KooW{n:04}")).collect();
        let mut asked = 0;
        // Two minutes in steps of 10 ms.
        for step in 0..12_000 {
            let now = ms(10 * step);
            for peer in &peers {
                if book.may_ask(now, peer) {
                    book.hold(now, peer);
                    book.declined(now, peer);
                    asked += u32::from(now >= ms(60_000));
                }
            }
        }
        assert!((300..2_000).contains(&asked), "{asked} questions in a minute");
    }

    /// Peers with a few slots, others that take and leave them, answers in any order: every slot is counted once, a
    /// block that waits is served while slots come free, and a full peer is not asked for ever.
    #[test]
    fn random_answers_in_any_order_leave_no_slot_counted_and_no_peer_closed() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for round in 0..500 {
            let (slots, mut book) = (1 + random(4), SlotBook::default());
            let (mut others, mut running) = (0, 0_u64);
            let mut asked: VecDeque<bool> = VecDeque::new();
            let (mut now, mut asks) = (ms(0), 0);
            for _ in 0..300 {
                now += ms(random(30));
                match random(6) {
                    0 | 1 => {
                        if book.may_ask(now, P) {
                            book.hold(now, P);
                            asks += 1;
                            let taken = asked.iter().filter(|given| **given).count() as u64;
                            asked.push_back(running + others + taken < slots);
                        }
                    }
                    2 | 3 if !asked.is_empty() => {
                        let at = random(asked.len() as u64) as usize;
                        match asked.remove(at) {
                            Some(true) => {
                                running += 1;
                                book.accepted(P);
                            }
                            _ => book.declined(now, P),
                        }
                    }
                    4 if running > 0 => {
                        running -= 1;
                        book.released(P);
                    }
                    _ => {
                        let taken = asked.iter().filter(|given| **given).count() as u64;
                        others = random(1 + slots.saturating_sub(running + taken));
                        book.reported(P, running + others);
                    }
                }
                assert_eq!(book.held(), running + asked.len() as u64, "round {round}");
            }
            while let Some(given) = asked.pop_front() {
                match given {
                    true => book.released(P),
                    false => book.declined(now, P),
                }
            }
            (0..running).for_each(|_| book.released(P));
            assert_eq!(book.held(), 0);
            assert!(book.may_ask(now + LONGEST_PAUSE, P), "round {round}: {asks} asks");
        }
    }
}
