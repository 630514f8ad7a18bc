//! Pure: what has happened with each peer, and what follows from it: which peers are left alone for a while, how long
//! an answer is waited for, when another peer is asked as well, and how far a peer moves down in the order.
//!
//! A circuit breaker for each peer:
//!
//! | breaker | the peer | becomes |
//! |---|---|---|
//! | closed | takes blocks like every other | open when it is silent, far too slow or answers what can't be used; also after three failures in a row that it reported |
//! | open | takes none while others are there | half-open after a pause, or when it connects again |
//! | half-open | takes one block at a time | closed when it completes it; else open again, twice as long |
//!
//! A peer that nothing is known of is half-open. Time is elapsed time.

use std::collections::BTreeMap;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use crate::peers::pace::Pace;

/// How long a peer is left alone at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(30);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How long a first answer is waited for, and any answer at least: a prepare is answered from memory.
const FIRST_ANSWER: Duration = Duration::from_secs(5);
const SHORTEST_LIMIT: Duration = Duration::from_secs(1);
/// Failures in a row that open the breaker when the peer reported them itself.
const REPORTED_FAILURES: u32 = 3;
/// Weight of the newest outcome in the reliability.
const NEWEST: f64 = 0.2;
/// Another peer is asked as well when a dispatch takes so many times as long as others of its size did, and at least so
/// long; and after the last of these when nothing is known.
const OVERDUE_FACTOR: f64 = 4.0;
const OVERDUE_AT_LEAST: Duration = Duration::from_secs(2);
const OVERDUE_UNKNOWN: Duration = Duration::from_secs(5);

/// How a peer failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerFailure {
    /// It did not answer in time.
    Silent,
    /// Another peer was asked later and was ready sooner.
    Overtaken,
    /// Its answer broke the contract.
    Invalid,
    /// It said that it failed, or closed the stream.
    Reported,
}

/// The state of a breaker, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Breaker {
    Closed,
    Open { until: Duration, pause: Duration },
    HalfOpen { pause: Duration, trial: bool },
}

/// Smoothed answer times, as TCP has them (RFC 6298), in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct AnswerTime {
    smoothed: f64,
    deviation: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct TrackRecord {
    breaker: Breaker,
    /// Share of good outcomes, the newer the more weight.
    reliability: f64,
    reported_in_a_row: u32,
    answers: Option<AnswerTime>,
    /// Time-outs since the last answer.
    timeouts: u32,
    pace: Pace,
}

impl Default for TrackRecord {
    fn default() -> TrackRecord {
        TrackRecord {
            breaker: Breaker::HalfOpen { pause: FIRST_PAUSE, trial: false },
            reliability: 1.0,
            reported_in_a_row: 0,
            answers: None,
            timeouts: 0,
            pace: Pace::default(),
        }
    }
}

/// Whether a peer may be given a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerAdmission {
    Yes,
    /// Yes, as the one block that shows what becomes of it.
    Trial,
    /// Not before the block that it has now has ended.
    TrialUnderWay,
    /// Only when there is no other peer.
    LastResort,
}

/// The records of all peers.
#[derive(Debug, Clone, Default)]
pub struct TrackRecords {
    peers: BTreeMap<String, TrackRecord>,
}

impl TrackRecords {
    fn record(&mut self, peer: &str) -> &mut TrackRecord {
        self.peers.entry(peer.into()).or_default()
    }

    pub fn admission(&self, now: Duration, peer: &str) -> PeerAdmission {
        match self.peers.get(peer).map(|record| record.breaker) {
            None | Some(Breaker::HalfOpen { trial: false, .. }) => PeerAdmission::Trial,
            Some(Breaker::Closed) => PeerAdmission::Yes,
            Some(Breaker::HalfOpen { trial: true, .. }) => PeerAdmission::TrialUnderWay,
            Some(Breaker::Open { until, .. }) if until <= now => PeerAdmission::Trial,
            Some(Breaker::Open { .. }) => PeerAdmission::LastResort,
        }
    }

    /// The peer is about to get a block that it is tried with.
    pub fn trial_begins(&mut self, peer: &str) {
        let record = self.record(peer);
        if let Breaker::HalfOpen { pause, .. } | Breaker::Open { pause, .. } = record.breaker {
            record.breaker = Breaker::HalfOpen { pause, trial: true };
        }
    }

    /// That block has ended without telling anything of the peer.
    pub fn trial_ends(&mut self, peer: &str) {
        if let Some(TrackRecord { breaker: Breaker::HalfOpen { trial, .. }, .. }) = self.peers.get_mut(peer) {
            *trial = false;
        }
    }

    /// The peer answered a call that is answered from memory.
    pub fn answered(&mut self, peer: &str, after: Duration) {
        let (record, seconds) = (self.record(peer), after.as_secs_f64());
        record.timeouts = 0;
        record.answers = Some(match record.answers {
            None => AnswerTime { smoothed: seconds, deviation: seconds / 2.0 },
            Some(AnswerTime { smoothed, deviation }) => AnswerTime {
                smoothed: 0.875 * smoothed + 0.125 * seconds,
                deviation: 0.75 * deviation + 0.25 * (smoothed - seconds).abs(),
            },
        });
    }

    /// The peer has completed a block of so much work: amplitudes times operations.
    pub fn completed(&mut self, peer: &str, work: f64, after: Duration) {
        let record = self.record(peer);
        record.breaker = Breaker::Closed;
        record.reported_in_a_row = 0;
        record.reliability += NEWEST * (1.0 - record.reliability);
        record.pace.observe(work, after.as_secs_f64());
    }

    pub fn failed(&mut self, now: Duration, peer: &str, failure: PeerFailure) {
        let record = self.record(peer);
        record.reliability -= NEWEST * record.reliability;
        if failure == PeerFailure::Silent {
            record.timeouts = record.timeouts.saturating_add(1);
        }
        if failure == PeerFailure::Reported {
            record.reported_in_a_row = record.reported_in_a_row.saturating_add(1);
            let is_tried = matches!(record.breaker, Breaker::HalfOpen { trial: true, .. });
            if record.reported_in_a_row < REPORTED_FAILURES && !is_tried {
                return;
            }
        }
        record.breaker = match record.breaker {
            Breaker::Closed => Breaker::Open { until: now.saturating_add(FIRST_PAUSE), pause: FIRST_PAUSE },
            // Blocks that were with it when it failed say nothing new.
            Breaker::Open { until, pause } if until > now => Breaker::Open { until, pause },
            Breaker::Open { pause, .. } | Breaker::HalfOpen { pause, .. } => {
                let next = pause.saturating_mul(2).min(LONGEST_PAUSE);
                Breaker::Open { until: now.saturating_add(pause), pause: next }
            }
        };
    }

    /// The peer is connected again: it may be another process.
    pub fn returned(&mut self, peer: &str) {
        if let Some(record) = self.peers.get_mut(peer) {
            record.timeouts = 0;
            if let Breaker::Open { pause, .. } = record.breaker {
                record.breaker = Breaker::HalfOpen { pause, trial: false };
            }
        }
    }

    /// When the first of the open breakers of these peers is half-open.
    pub fn next_trial<'a>(&self, peers: impl Iterator<Item = &'a String>) -> Option<Duration> {
        let until = |peer: &String| match self.peers.get(peer)?.breaker {
            Breaker::Open { until, .. } => Some(until),
            _ => None,
        };
        peers.filter_map(until).min()
    }

    /// How long an answer from memory is waited for, at most so long.
    pub fn call_limit(&self, peer: &str, most: Duration) -> Duration {
        let (limit, timeouts) = match self.peers.get(peer) {
            Some(TrackRecord { answers: Some(times), timeouts, .. }) => {
                let usual = Duration::try_from_secs_f64(times.smoothed + 4.0 * times.deviation);
                (usual.unwrap_or(most).max(SHORTEST_LIMIT), *timeouts)
            }
            Some(record) => (FIRST_ANSWER, record.timeouts),
            None => (FIRST_ANSWER, 0),
        };
        limit.saturating_mul(1_u32.checked_shl(timeouts).unwrap_or(u32::MAX)).min(most)
    }

    /// How long a dispatch of so much work may take before another peer is asked as well.
    pub fn overdue_after(&self, peer: &str, work: f64) -> Duration {
        let estimate = self.peers.get(peer).and_then(|record| record.pace.estimate(work));
        let overdue = estimate.and_then(|s| Duration::try_from_secs_f64(OVERDUE_FACTOR * s).ok());
        overdue.map_or(OVERDUE_UNKNOWN, |overdue| overdue.max(OVERDUE_AT_LEAST))
    }

    /// By how much a peer's rank is worse for what happened with it: from 0, for one that never failed and answers at once,
    /// to 0.6.
    pub fn penalty(&self, peer: &str) -> f64 {
        let Some(record) = self.peers.get(peer) else { return 0.0 };
        let slow = record.answers.map_or(0.0, |times| times.smoothed.min(1.0));
        0.5 * (1.0 - record.reliability) + 0.1 * slow
    }

    pub fn state(&self, now: Duration, peer: &str) -> BreakerState {
        match self.admission(now, peer) {
            PeerAdmission::Yes => BreakerState::Closed,
            PeerAdmission::Trial | PeerAdmission::TrialUnderWay => BreakerState::HalfOpen,
            PeerAdmission::LastResort => BreakerState::Open,
        }
    }

    /// Forgets all but these peers.
    pub fn retain(&mut self, known: impl Fn(&str) -> bool) {
        self.peers.retain(|peer, _| known(peer));
    }
}

#[cfg(test)]
#[path = "track_record_tests.rs"]
mod tests;
