//! Pure: how many jobs a coordinator takes from the queue and when, and which of its jobs are still its own.
//!
//! Accepted jobs wait in the event log, in the order of their submission; coordinators on one log share them. A
//! coordinator takes as many as it has running places free. A job that is submitted to a coordinator with a free place
//! while no other waits is taken with its submission, which spares a look at the queue.

use std::collections::{BTreeMap, BTreeSet};

/// The running places of a coordinator, and what it knows of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningPlaces {
    free: usize,
    /// Jobs may wait that have not been looked for.
    may_wait: bool,
    /// The places that a look at the queue may fill; none: no look is under way.
    looking: Option<usize>,
}

impl RunningPlaces {
    pub fn new(places: usize) -> RunningPlaces {
        RunningPlaces { free: places, may_wait: true, looking: None }
    }

    /// A job is submitted: whether it is taken at once. A job that waits longer goes first.
    pub fn take_submitted(&mut self) -> bool {
        let is_taken = self.free > 0 && !self.may_wait && self.looking.is_none();
        if is_taken {
            self.free -= 1;
        }
        is_taken
    }

    /// Jobs may wait in the queue.
    pub fn job_waits(&mut self) {
        self.may_wait = true;
    }

    /// Begins a look at the queue; the number of jobs to take, if there is reason for one.
    pub fn begin_look(&mut self) -> Option<usize> {
        if self.free == 0 || !self.may_wait || self.looking.is_some() {
            return None;
        }
        let places = std::mem::take(&mut self.free);
        self.may_wait = false;
        self.looking = Some(places);
        Some(places)
    }

    /// So many jobs were taken in the look.
    pub fn end_look(&mut self, taken: usize) {
        let Some(places) = self.looking.take() else { return };
        self.free += places.saturating_sub(taken);
        // With every place filled others may be left.
        self.may_wait |= taken >= places;
    }

    /// The look has failed.
    pub fn look_failed(&mut self) {
        self.end_look(0);
        self.may_wait = true;
    }

    /// A job has left its place.
    pub fn leave(&mut self) {
        self.free += 1;
    }
}

/// What is to be done about this coordinator's jobs, by the queue.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OwnershipCheck {
    /// Jobs that are not its own any more, or are cancelled: nothing of them goes on here.
    pub interrupted: Vec<String>,
    /// Jobs that it owns by the queue, and that it does not know: they go back to it.
    pub unknown: Vec<String>,
}

/// Compares the jobs that this coordinator works on with those that the queue says it owns, and whether those are
/// cancelled. Jobs that were begun or ended since the queue was read are in `changed`.
pub fn check_ownership(
    local: &BTreeSet<String>,
    changed: &BTreeSet<String>,
    queue: &BTreeMap<String, bool>,
) -> OwnershipCheck {
    let is_settled = |id: &&String| !changed.contains(*id);
    let is_interrupted = |id: &&String| queue.get(*id).is_none_or(|is_cancelled| *is_cancelled);
    OwnershipCheck {
        interrupted: local.iter().filter(is_settled).filter(is_interrupted).cloned().collect(),
        unknown: queue.keys().filter(is_settled).filter(|id| !local.contains(*id)).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submitted_job_is_taken_at_once_when_none_waits_longer() {
        let mut places = RunningPlaces::new(2);
        assert!(!places.take_submitted(), "the queue has not been looked at");
        assert_eq!(places.begin_look(), Some(2));
        assert!(!places.take_submitted(), "a look may find an older one");
        places.end_look(0);
        assert!(places.take_submitted() && places.take_submitted() && !places.take_submitted());
        places.job_waits();
        assert_eq!(places.begin_look(), None, "no place is free");
        places.leave();
        assert!(!places.take_submitted(), "the one that waits goes first");
        assert_eq!(places.begin_look(), Some(1));
    }

    #[test]
    fn a_look_is_taken_again_while_jobs_may_be_left() {
        let mut places = RunningPlaces::new(2);
        assert_eq!(places.begin_look(), Some(2));
        places.end_look(2);
        places.leave();
        assert_eq!(places.begin_look(), Some(1), "both places were filled, so others may wait");
        places.end_look(0);
        assert_eq!(places.begin_look(), None);
        places.job_waits();
        assert_eq!(places.begin_look(), Some(1));
        places.job_waits();
        places.end_look(0);
        assert_eq!(places.begin_look(), Some(1), "one was submitted during the look");
        places.look_failed();
        assert_eq!(places.begin_look(), Some(1), "nothing is known of the queue");
        // No place is lost or made.
        places.end_look(0);
        places.leave();
        assert_eq!(places, RunningPlaces { free: 2, may_wait: false, looking: None });
    }

    #[test]
    fn jobs_that_others_have_are_interrupted_and_unknown_ones_go_back() {
        let ids = |ids: &[&str]| ids.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
        let queue = [("mine", false), ("cancelled", true), ("left", false), ("new", false)];
        let queue = queue.map(|(id, cancelled)| (id.to_string(), cancelled)).into();
        let local = ids(&["mine", "cancelled", "taken-over", "ended"]);
        let check = check_ownership(&local, &ids(&["new", "ended"]), &queue);
        assert_eq!(check.interrupted, ["cancelled", "taken-over"]);
        assert_eq!(check.unknown, ["left"]);
        assert_eq!(check_ownership(&ids(&[]), &ids(&[]), &BTreeMap::new()), OwnershipCheck::default());
    }
}
