//! In which order admitted jobs go to the executor. Pure.
//!
//! Jobs run in the order of the stream: an admitted job waits until every message before it has been checked.
//! A message that the process died on is a suspect and runs alone, so that a death has one cause and the jobs
//! beside it are not blamed.

use std::collections::BTreeSet;

use super::Ticket;

/// Admitted jobs that are not with the executor yet, and what holds them back.
#[derive(Debug, Default)]
pub struct HandOver {
    /// Messages in their first check.
    unchecked: BTreeSet<Ticket>,
    /// Admitted jobs, in stream order.
    queued: BTreeSet<Ticket>,
    suspects: BTreeSet<Ticket>,
    /// Jobs with the executor: in its queue or in a slot.
    with_executor: BTreeSet<Ticket>,
}

impl HandOver {
    /// A message is being checked for the first time.
    pub fn check_started(&mut self, ticket: Ticket) {
        self.unchecked.insert(ticket);
    }

    /// The first check of a message is over, however it ended.
    pub fn check_ended(&mut self, ticket: Ticket) {
        self.unchecked.remove(&ticket);
    }

    /// Queues an admitted job, or one that the executor gave back.
    pub fn queue(&mut self, ticket: Ticket, suspect: bool) {
        self.with_executor.remove(&ticket);
        self.queued.insert(ticket);
        if suspect {
            self.suspects.insert(ticket);
        }
    }

    /// Forgets a job that has left the executor or will not go there.
    pub fn remove(&mut self, ticket: Ticket) {
        self.queued.remove(&ticket);
        self.suspects.remove(&ticket);
        self.with_executor.remove(&ticket);
    }

    /// Takes the jobs that go to the executor now, in stream order.
    pub fn take_ready(&mut self) -> Vec<Ticket> {
        let mut ready = Vec::new();
        loop {
            let Some(&next) = self.queued.first() else { return ready };
            let waits_for_check = self.unchecked.first().is_some_and(|first| *first < next);
            let suspect_is_there = self.with_executor.intersection(&self.suspects).next().is_some();
            let must_wait_for_others = self.suspects.contains(&next) && !self.with_executor.is_empty();
            if waits_for_check || suspect_is_there || must_wait_for_others {
                return ready;
            }
            self.queued.remove(&next);
            self.with_executor.insert(next);
            ready.push(next);
        }
    }

    /// The earliest message in its first check.
    #[cfg(test)]
    pub fn first_unchecked(&self) -> Option<Ticket> {
        self.unchecked.first().copied()
    }

    /// How many jobs wait here.
    pub fn queued(&self) -> usize {
        self.queued.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [Ticket; 0] = [];

    #[test]
    fn a_job_waits_for_the_checks_before_it() {
        let mut order = HandOver::default();
        (1..=3).for_each(|t| order.check_started(t));
        order.check_ended(2);
        order.queue(2, false);
        assert_eq!(order.take_ready(), NONE, "1 is still being checked");
        order.check_ended(1);
        assert_eq!(order.take_ready(), [2]);
        order.check_ended(3);
        order.queue(3, false);
        order.queue(1, false);
        assert_eq!(order.take_ready(), [1, 3], "in stream order");
    }

    #[test]
    fn a_suspect_runs_alone() {
        let mut order = HandOver::default();
        order.queue(1, false);
        order.queue(2, true);
        order.queue(3, false);
        assert_eq!(order.take_ready(), [1]);
        assert_eq!(order.take_ready(), NONE, "the suspect waits until the executor is idle");
        order.remove(1);
        assert_eq!(order.take_ready(), [2]);
        assert_eq!(order.take_ready(), NONE, "nothing joins a suspect");
        order.remove(2);
        assert_eq!(order.take_ready(), [3]);
    }

    #[test]
    fn a_job_that_came_back_is_handed_over_again() {
        let mut order = HandOver::default();
        order.queue(1, false);
        order.queue(2, false);
        assert_eq!(order.take_ready(), [1, 2]);
        order.queue(1, false);
        assert_eq!(order.queued(), 1);
        assert_eq!(order.take_ready(), [1]);
    }
}
