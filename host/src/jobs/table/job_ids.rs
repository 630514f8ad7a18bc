//! Which message owns a job id, and which messages wait for it. Pure.
//!
//! Two messages with one job id are never in flight together: the first one owns the id until its terminal state
//! is written (or it leaves without one); later ones are parked in stream order and checked again then. A bounded
//! number is parked; beyond it a message is left pending in Redis, where the next look through the pending list
//! finds it.

use std::collections::{BTreeSet, HashMap};

use super::Ticket;
use crate::model::JobId;

/// The answer to a claim of a job id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdClaim {
    /// The ticket owns the id now.
    Owned,
    /// Another message owns it: the ticket is parked.
    Parked,
    /// Another message owns it, and as many messages are parked as may be.
    TooMany,
}

/// Owners of job ids and the parked messages behind them.
#[derive(Debug)]
pub struct JobIds {
    /// One owner, or several results of one job that were on disk at the start.
    owners: HashMap<JobId, BTreeSet<Ticket>>,
    parked: HashMap<JobId, BTreeSet<Ticket>>,
    parked_count: usize,
    max_parked: usize,
}

impl JobIds {
    pub fn new(max_parked: usize) -> JobIds {
        JobIds { owners: HashMap::new(), parked: HashMap::new(), parked_count: 0, max_parked }
    }

    /// Claims a job id for a ticket, or parks the ticket behind the owner.
    pub fn claim(&mut self, job_id: &JobId, ticket: Ticket) -> IdClaim {
        match self.owners.get(job_id) {
            None => {
                self.own_beside_others(job_id, ticket);
                IdClaim::Owned
            }
            Some(owners) if owners.contains(&ticket) => IdClaim::Owned,
            Some(_) if self.is_full() => IdClaim::TooMany,
            Some(_) => {
                self.parked.entry(job_id.clone()).or_default().insert(ticket);
                self.parked_count += 1;
                IdClaim::Parked
            }
        }
    }

    /// Claims a job id for a ticket that does not wait, beside others that own the id.
    pub fn own_beside_others(&mut self, job_id: &JobId, ticket: Ticket) {
        self.owners.entry(job_id.clone()).or_default().insert(ticket);
    }

    /// Gives up a ticket's ownership. Returns the parked tickets, in stream order, that are to be checked again: none
    /// when the ticket does not own the id, or another one still does.
    pub fn release(&mut self, job_id: &JobId, ticket: Ticket) -> Vec<Ticket> {
        let Some(owners) = self.owners.get_mut(job_id) else { return Vec::new() };
        if !owners.remove(&ticket) || !owners.is_empty() {
            return Vec::new();
        }
        self.owners.remove(job_id);
        let parked = self.parked.remove(job_id).unwrap_or_default();
        self.parked_count -= parked.len();
        parked.into_iter().collect()
    }

    /// Takes back a parked ticket, which then waits for nothing.
    pub fn unpark(&mut self, job_id: &JobId, ticket: Ticket) {
        let Some(parked) = self.parked.get_mut(job_id) else { return };
        if parked.remove(&ticket) {
            self.parked_count -= 1;
        }
        if parked.is_empty() {
            self.parked.remove(job_id);
        }
    }

    /// The ticket that owns a job id.
    #[cfg(test)]
    pub fn owner(&self, job_id: &str) -> Option<Ticket> {
        self.owners.get(job_id)?.first().copied()
    }

    /// Whether as many messages are parked as may be.
    pub fn is_full(&self) -> bool {
        self.parked_count >= self.max_parked
    }

    /// How many messages are parked.
    pub fn parked(&self) -> usize {
        self.parked_count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [Ticket; 0] = [];

    fn job() -> JobId {
        "J".into()
    }

    #[test]
    fn the_first_claim_owns_the_id_and_later_ones_are_parked_in_order() {
        let mut ids = JobIds::new(10);
        assert_eq!(ids.claim(&job(), 1), IdClaim::Owned);
        assert_eq!(ids.claim(&job(), 1), IdClaim::Owned, "claiming again changes nothing");
        assert_eq!(ids.claim(&job(), 3), IdClaim::Parked);
        assert_eq!(ids.claim(&job(), 2), IdClaim::Parked);
        assert_eq!(ids.claim(&"K".into(), 4), IdClaim::Owned, "another job is not concerned");
        assert_eq!(ids.release(&job(), 2), NONE, "only the owner can release");
        assert_eq!(ids.release(&job(), 1), [2, 3]);
        assert_eq!((ids.owner("J"), ids.parked()), (None, 0));
    }

    #[test]
    fn parked_messages_wait_for_every_owner() {
        let mut ids = JobIds::new(2);
        ids.own_beside_others(&job(), 1);
        ids.own_beside_others(&job(), 2);
        assert_eq!(ids.claim(&job(), 3), IdClaim::Parked);
        assert_eq!(ids.release(&job(), 1), NONE);
        assert_eq!(ids.release(&job(), 2), [3]);
    }

    #[test]
    fn a_bounded_number_is_parked() {
        let mut ids = JobIds::new(2);
        ids.claim(&job(), 1);
        assert_eq!(
            [2, 3, 4].map(|t| ids.claim(&job(), t)),
            [IdClaim::Parked, IdClaim::Parked, IdClaim::TooMany]
        );
        ids.unpark(&job(), 3);
        assert_eq!(ids.claim(&job(), 5), IdClaim::Parked);
        assert_eq!(ids.release(&job(), 1), [2, 5]);
    }
}
