//! Pure: who may hold the lease of a coordinator's identity, and when a lease is over.
//!
//! A coordinator runs jobs while it holds the lease of its identity, its peer id. The store keeps the lease and measures
//! its time; the holder renews it. Each time that it is granted it has a new token. A job belongs to the token under
//! which it was taken, and the log refuses facts of a job under any other one. So a coordinator that was paused
//! longer than its lease records nothing more about jobs that others have taken.
//!
//! The holder measures from the moment before it asked, so by its own reckoning the lease is over before it is over in
//! the store. It stops its jobs then, and others take them later.

use std::time::Duration;

/// Renewals in the time of one lease: two may fail.
const RENEWALS: u32 = 3;
/// The holder's last part of a lease, one of so many, is for stopping its jobs.
const STOP_PART: u32 = 8;

/// Who asks for a lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseClaimant {
    pub peer_id: String,
    /// Names the new lease, and no other one.
    pub token: String,
    /// What only one living process has at a time: the lock of a state directory.
    pub holder: String,
    pub lease: Duration,
}

/// A lease as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    pub token: String,
    pub holder: String,
    /// When it ends, in microseconds of the store's clock.
    pub until: i64,
    /// How long it is until then; zero when it is over.
    pub left: Duration,
}

/// The answer to a claimant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseAnswer {
    Granted,
    /// Someone has it for so long.
    Held {
        left: Duration,
        until: i64,
    },
}

/// Whether a claimant gets the lease, given the one that the store has.
pub fn decide(stored: Option<&StoredLease>, claimant: &LeaseClaimant) -> LeaseAnswer {
    match stored {
        None => LeaseAnswer::Granted,
        Some(stored) if stored.left.is_zero() => LeaseAnswer::Granted,
        // The former process of this state directory has ended: its lock is the claimant's now.
        Some(stored) if stored.holder == claimant.holder => LeaseAnswer::Granted,
        Some(stored) => LeaseAnswer::Held { left: stored.left, until: stored.until },
    }
}

/// The lease as its holder reckons it. Times are elapsed since any fixed moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseTerm {
    pub token: String,
    lease: Duration,
    /// Before it was last granted or renewed.
    since: Duration,
}

impl LeaseTerm {
    /// A lease that was granted to a request sent at this moment.
    pub fn new(token: String, lease: Duration, asked_at: Duration) -> LeaseTerm {
        LeaseTerm { token, lease, since: asked_at }
    }

    /// It was renewed by a request sent at this moment.
    pub fn renewed(&mut self, asked_at: Duration) {
        self.since = self.since.max(asked_at);
    }

    /// How often it is to be renewed.
    pub fn renew_interval(&self) -> Duration {
        self.lease / RENEWALS
    }

    /// When the holder stops its jobs.
    pub fn ends_at(&self) -> Duration {
        self.since + (self.lease - self.lease / STOP_PART)
    }

    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.ends_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn claimant(holder: &str) -> LeaseClaimant {
        LeaseClaimant { peer_id: "me".into(), token: "new".into(), holder: holder.into(), lease: 15 * SECOND }
    }

    #[test]
    fn one_process_at_a_time_has_the_lease_of_an_identity() {
        let stored = |left: Duration| StoredLease {
            token: "old".into(),
            holder: "there".into(),
            until: 1_000_000,
            left,
        };
        assert_eq!(decide(None, &claimant("here")), LeaseAnswer::Granted);
        assert_eq!(decide(Some(&stored(Duration::ZERO)), &claimant("here")), LeaseAnswer::Granted);
        let held = LeaseAnswer::Held { left: SECOND, until: 1_000_000 };
        assert_eq!(decide(Some(&stored(SECOND)), &claimant("here")), held);
        let same = decide(Some(&stored(SECOND)), &claimant("there"));
        assert_eq!(same, LeaseAnswer::Granted, "a restart in the same state directory");
    }

    #[test]
    fn a_lease_is_over_for_its_holder_before_it_is_over_in_the_store() {
        let mut term = LeaseTerm::new("t".into(), 16 * SECOND, 100 * SECOND);
        assert!(term.renew_interval() * 2 < 14 * SECOND, "two renewals may fail");
        assert!(!term.is_over(113 * SECOND) && term.is_over(114 * SECOND));
        term.renewed(105 * SECOND);
        // An answer that comes late.
        term.renewed(103 * SECOND);
        assert_eq!(term.ends_at(), 119 * SECOND);
    }
}
