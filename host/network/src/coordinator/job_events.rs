//! Pure: what happens to a job, as those who follow it are told.
//!
//! Each fact of a job is one event, whose id is the fact's number in the job: ids are the same after a restart, and one
//! that is missing was not told. Facts that are of no interest outside are events that show nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::job_view::{BlockCounts, BlockView, JobProgress, JobSummary};
use crate::reservation::journal::JobFact;

/// Most events that wait for one that comes late.
const MAX_EARLY: usize = 64;

/// What an event tells.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum EventContent {
    /// The job was accepted, planned, or begun again by a restart.
    Status(JobSummary),
    Block(BlockEvent),
    /// The job has ended; nothing follows.
    End(JobSummary),
}

/// What happened to a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BlockEvent {
    pub block: BlockView,
    pub progress: BlockCounts,
}

impl EventContent {
    /// The name of the event's kind.
    pub fn name(&self) -> &'static str {
        match self {
            EventContent::Status(_) => "status",
            EventContent::Block(_) => "block",
            EventContent::End(_) => "end",
        }
    }
}

/// One event of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobEvent {
    pub id: i64,
    /// None: it shows nothing.
    pub content: Option<EventContent>,
}

impl JobEvent {
    /// The event of a fact, which `progress` contains already.
    pub fn new(id: i64, job_id: &str, progress: &JobProgress, fact: &JobFact) -> JobEvent {
        let content = match fact {
            JobFact::Submitted { .. } | JobFact::Planned { .. } | JobFact::Resumed { .. } => {
                Some(EventContent::Status(progress.summary(job_id)))
            }
            JobFact::Attempted { block_id, .. }
            | JobFact::BlockCompleted { block_id, .. }
            | JobFact::BlockFailed { block_id, .. } => progress
                .block(block_id)
                .map(|block| EventContent::Block(BlockEvent { block, progress: progress.counts() })),
            JobFact::StageCompleted { .. } | JobFact::Released => None,
            JobFact::Completed { .. } | JobFact::Failed { .. } | JobFact::Cancelled { .. } => {
                Some(EventContent::End(progress.summary(job_id)))
            }
        };
        JobEvent { id, content }
    }

    fn is_end(&self) -> bool {
        matches!(self.content, Some(EventContent::End(_)))
    }
}

/// The events of a job in their order, without gaps, behind the last one that a reader knows.
#[derive(Debug, Default)]
pub struct EventOrder {
    /// Everything up to this id is in `ready`, or was taken from it.
    last: i64,
    ready: VecDeque<Arc<JobEvent>>,
    /// Events that came before one that precedes them.
    early: BTreeMap<i64, Arc<JobEvent>>,
    has_ended: bool,
}

impl EventOrder {
    /// For a reader that knows the events up to this id.
    pub fn after(last: i64) -> EventOrder {
        EventOrder { last, ..EventOrder::default() }
    }

    /// Adds an event.
    pub fn add(&mut self, event: Arc<JobEvent>) {
        if event.id > self.last {
            self.early.insert(event.id, event);
        }
        while let Some(event) = self.early.remove(&(self.last + 1)) {
            self.last = event.id;
            self.has_ended |= event.is_end();
            if event.content.is_some() {
                self.ready.push_back(event);
            }
        }
    }

    /// Adds the events of a job's facts, from its first one on.
    pub fn add_facts(&mut self, job_id: &str, facts: &[(i64, JobFact)]) {
        // A reader can't know more than there is.
        self.last = self.last.min(i64::try_from(facts.len()).unwrap_or(i64::MAX));
        let mut progress = JobProgress::default();
        for (id, (at, fact)) in (1..).zip(facts) {
            progress.apply(*at, fact);
            if id > self.last {
                self.add(Arc::new(JobEvent::new(id, job_id, &progress, fact)));
            }
        }
        self.has_ended |= progress.has_ended();
        self.early.clear();
    }

    /// The next event to tell.
    pub fn take(&mut self) -> Option<Arc<JobEvent>> {
        self.ready.pop_front()
    }

    /// Whether there is an event to tell now.
    pub fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether every event up to the job's end was added.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Whether an event is missing while later ones have come.
    pub fn has_gap(&self) -> bool {
        !self.early.is_empty()
    }

    /// Whether so many events have come early that the missing one should be read from the log.
    pub fn is_crowded(&self) -> bool {
        self.early.len() > MAX_EARLY
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reservation::job_options::JobOptions;

    fn facts() -> Vec<(i64, JobFact)> {
        let attempted = JobFact::Attempted {
            block_id: "block-1".into(),
            attempt: 1,
            peer_id: "a".into(),
            reservation_id: "res-1".into(),
        };
        let facts = [
            JobFact::Submitted {
                qasm: "x".into(),
                shots: 7,
                coordinator: "me".into(),
                options: JobOptions::default(),
            },
            attempted,
            JobFact::StageCompleted { stages: 1, components: Vec::new() },
            JobFact::Cancelled { reason: "enough".into() },
            JobFact::Released,
        ];
        (1..).zip(facts).collect()
    }

    fn told(order: &mut EventOrder) -> Vec<(i64, &'static str)> {
        let mut told = Vec::new();
        while let Some(event) = order.take() {
            told.push((event.id, event.content.as_ref().unwrap().name()));
        }
        told
    }

    fn live() -> Vec<Arc<JobEvent>> {
        let mut progress = JobProgress::default();
        let event = |(id, (at, fact)): (i64, &(i64, JobFact))| {
            progress.apply(*at, fact);
            Arc::new(JobEvent::new(id, "job-1", &progress, fact))
        };
        (1..).zip(&facts()).map(event).collect()
    }

    #[test]
    fn facts_become_events_with_the_same_ids_live_and_from_the_log() {
        let expected = [(1, "status"), (2, "block"), (4, "end")];
        let mut order = EventOrder::default();
        order.add_facts("job-1", &facts());
        assert_eq!(told(&mut order), expected);
        let mut order = EventOrder::default();
        live().into_iter().for_each(|event| order.add(event));
        assert_eq!(told(&mut order), expected);
        assert!(order.has_ended());
    }

    #[test]
    fn a_reader_goes_on_behind_what_it_knows() {
        let mut order = EventOrder::after(2);
        order.add_facts("job-1", &facts());
        assert_eq!(told(&mut order), [(4, "end")]);
        let mut order = EventOrder::after(5);
        order.add_facts("job-1", &facts());
        assert!(told(&mut order).is_empty() && order.has_ended(), "it knows the end already");
        let mut order = EventOrder::after(1_000);
        order.add_facts("job-1", &facts()[..1]);
        live().into_iter().for_each(|event| order.add(event));
        assert_eq!(told(&mut order), [(2, "block"), (4, "end")], "an id that was not told");
    }

    #[test]
    fn events_that_come_early_wait_and_none_is_told_twice() {
        let events = live();
        let mut order = EventOrder::default();
        for n in [0, 3, 2] {
            order.add(events[n].clone());
        }
        assert_eq!(told(&mut order), [(1, "status")]);
        assert!(order.has_gap() && !order.has_ended());
        order.add(events[1].clone());
        assert_eq!(told(&mut order), [(2, "block"), (4, "end")]);
        assert!(!order.has_gap() && order.has_ended());
        order.add_facts("job-1", &facts());
        order.add(events[1].clone());
        assert!(told(&mut order).is_empty());
    }
}
