//! The life of one job, as a pure state machine.
//!
//! ```text
//!            admit                 start             return            stored          announced
//! Claimed ──────────> Waiting ──────────> Running ──────────> Storing ────────> Stored ────────> Sending ──> Ended
//!    │ (settled,         │ cancel            │ cancel                              │ cancel key
//!    │  dead letter)     v                   v (result thrown away)                v
//!    └────────────────> Closing <────────────┴─────────────────────────────────────┘ ──────────────────────> Ended
//! ```
//!
//! Acknowledge last; every job ends once. After `announced` a cancel is ignored: that is the point of no
//! return, and it comes only when the result is on disk. Decisions about a message that was seen before are
//! in [`admit`].

use crate::model::MessageId;
use crate::state::db::{HistoryEntry, Status};

/// What Redis says of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// `state` of the status hash.
    pub state: Option<String>,
    /// `message_id` of the status hash.
    pub message_id: Option<String>,
    /// Whether the cancel key exists.
    pub cancelled: bool,
}

impl Seen {
    /// Whether the status hash says that this very message has ended with a result.
    pub fn ended_as(&self, id: MessageId) -> bool {
        let ended = matches!(self.state.as_deref(), Some("completed" | "failed"));
        ended && self.message_id.as_deref() == Some(&id.to_string())
    }
}

/// What to do with a claimed message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// Run it.
    Run,
    /// It ended before: acknowledge.
    Duplicate,
    /// It ended here, but Redis doesn't know: write the state again and acknowledge.
    Settle { status: Status, error: Option<String>, finished_at: String },
    /// Cancelled before it ran: write that state and acknowledge.
    Cancel,
    /// The process died too often while it ran this: a failure webhook.
    GiveUp { deaths: u32 },
}

/// Decides on a claimed message. `deaths` counts process deaths during its runs, `max_deaths` allows so many.
pub fn admit(
    id: MessageId,
    job_id: &str,
    seen: &Seen,
    past: Option<&HistoryEntry>,
    deaths: u32,
    max_deaths: u32,
) -> Admission {
    match seen.state.as_deref() {
        Some("completed" | "cancelled") => return Admission::Duplicate,
        Some("failed") if seen.message_id.as_deref() == Some(&id.to_string()) => return Admission::Duplicate,
        _ => {}
    }
    if let Some(past) = past.filter(|p| &*p.job_id == job_id) {
        return Admission::Settle {
            status: past.status,
            error: past.error.clone(),
            finished_at: past.finished_at.clone(),
        };
    }
    if seen.cancelled {
        return Admission::Cancel;
    }
    if deaths >= max_deaths {
        return Admission::GiveUp { deaths };
    }
    Admission::Run
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Read from the stream, being checked.
    Claimed,
    /// Ready to run.
    Waiting,
    /// In the plugin.
    Running,
    /// Its result is being written to disk, or looked at for a last cancel.
    Storing,
    /// Its result is going to the cloud, whatever comes.
    Sending,
    /// Ends without a result: cancelled, duplicate or dead letter.
    Closing,
}

/// What happens to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Admitted,
    /// Will end without running and without a result.
    Rejected,
    /// Has a result without running: what is wrong with it.
    Unfit,
    Started,
    Returned,
    Announced,
    /// The cancel key was seen.
    Cancel,
}

/// What a cancel leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing beyond the new phase.
    Go,
    /// Close it as cancelled now.
    CloseCancelled,
    /// Tell the plugin, throw the answer away when it comes.
    TellPlugin,
}

/// A move that the state machine does not allow, or has no use for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// Too late, or already known; harmless.
    Ignored,
    /// A bug of the caller.
    Illegal { phase: Phase, event: Event },
}

/// One job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Life {
    pub phase: Phase,
    pub cancelled: bool,
}

impl Life {
    pub fn new() -> Life {
        Life { phase: Phase::Claimed, cancelled: false }
    }

    /// A result found on disk at the start.
    pub fn stored() -> Life {
        Life { phase: Phase::Storing, cancelled: false }
    }

    /// Whether its cancel key is worth looking at.
    pub fn heeds_cancel(&self) -> bool {
        !self.cancelled && matches!(self.phase, Phase::Waiting | Phase::Running)
    }

    /// Moves on.
    ///
    /// # Errors
    /// When the move is too late to matter, or illegal.
    pub fn on(&mut self, event: Event) -> Result<Step, Denied> {
        let (phase, step) = match (self.phase, event) {
            (Phase::Claimed, Event::Admitted) => (Phase::Waiting, Step::Go),
            (Phase::Claimed | Phase::Waiting, Event::Rejected) => (Phase::Closing, Step::Go),
            (Phase::Claimed, Event::Unfit) => (Phase::Storing, Step::Go),
            (Phase::Waiting, Event::Started) => (Phase::Running, Step::Go),
            (Phase::Running, Event::Returned) if self.cancelled => (Phase::Closing, Step::CloseCancelled),
            (Phase::Running, Event::Returned) => (Phase::Storing, Step::Go),
            (Phase::Storing, Event::Announced) => (Phase::Sending, Step::Go),
            (Phase::Waiting, Event::Cancel) => (Phase::Closing, Step::CloseCancelled),
            (Phase::Running, Event::Cancel) if !self.cancelled => (Phase::Running, Step::TellPlugin),
            (_, Event::Cancel) => return Err(Denied::Ignored),
            (phase, event) => return Err(Denied::Illegal { phase, event }),
        };
        self.phase = phase;
        self.cancelled |= event == Event::Cancel;
        Ok(step)
    }
}

impl Default for Life {
    fn default() -> Self {
        Life::new()
    }
}

/// The error of a job that the process did not survive.
pub fn died_error(deaths: u32) -> String {
    format!("the executor died {deaths} times while running this job")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: MessageId = MessageId { ms: 7, seq: 0 };

    fn seen(state: &str, id: &str) -> Seen {
        Seen { state: Some(state.into()), message_id: Some(id.into()), cancelled: false }
    }

    fn past(job: &str) -> HistoryEntry {
        HistoryEntry {
            job_id: job.into(),
            status: Status::Failed,
            error: Some("e".into()),
            finished_at: "t".into(),
        }
    }

    #[test]
    fn what_ended_is_not_run_again() {
        let admit = |s: &Seen, p: Option<&HistoryEntry>| super::admit(ID, "J", s, p, 0, 3);
        assert_eq!(admit(&Seen::default(), None), Admission::Run);
        assert_eq!(admit(&seen("executing", "7-0"), None), Admission::Run);
        assert_eq!(admit(&seen("completed", "1-0"), None), Admission::Duplicate);
        assert_eq!(admit(&seen("cancelled", "1-0"), None), Admission::Duplicate);
        assert_eq!(admit(&seen("failed", "7-0"), None), Admission::Duplicate);
        // A resubmission of a failed job is a new attempt.
        assert_eq!(admit(&seen("failed", "6-0"), None), Admission::Run);
        let again =
            Admission::Settle { status: Status::Failed, error: Some("e".into()), finished_at: "t".into() };
        assert_eq!(admit(&seen("executing", "7-0"), Some(&past("J"))), again);
        // The same message id of another stream's job says nothing.
        assert_eq!(admit(&Seen::default(), Some(&past("K"))), Admission::Run);
        let key = Seen { cancelled: true, ..Seen::default() };
        assert_eq!(admit(&key, None), Admission::Cancel);
        assert_eq!(super::admit(ID, "J", &Seen::default(), None, 3, 3), Admission::GiveUp { deaths: 3 });
        assert_eq!(super::admit(ID, "J", &Seen::default(), None, 2, 3), Admission::Run);
    }

    #[test]
    fn a_cancel_counts_until_the_result_is_announced() {
        let mut waiting = Life::new();
        waiting.on(Event::Admitted).unwrap();
        assert_eq!(waiting.on(Event::Cancel), Ok(Step::CloseCancelled));
        let mut running = Life::new();
        running.on(Event::Admitted).unwrap();
        running.on(Event::Started).unwrap();
        assert_eq!(running.on(Event::Cancel), Ok(Step::TellPlugin));
        assert_eq!(running.on(Event::Cancel), Err(Denied::Ignored), "the hook is called at most once");
        assert_eq!(running.on(Event::Returned), Ok(Step::CloseCancelled));
        let mut sending = Life::stored();
        sending.on(Event::Announced).unwrap();
        assert_eq!(sending.on(Event::Cancel), Err(Denied::Ignored));
    }

    proptest! {
        #[test]
        fn no_sequence_of_events_ends_twice_or_forgets_a_cancel(events in prop::collection::vec(0..7usize, 0..20)) {
            let all = [Event::Admitted, Event::Rejected, Event::Started, Event::Returned, Event::Announced, Event::Cancel, Event::Unfit];
            let mut life = Life::new();
            let (mut closed, mut told) = (0, 0);
            for e in events {
                let before = life;
                match life.on(all[e]) {
                    Ok(Step::CloseCancelled) => closed += 1,
                    Ok(Step::TellPlugin) => told += 1,
                    Ok(Step::Go) => {}
                    Err(_) => prop_assert_eq!(life, before, "a denied move changes nothing"),
                }
                // A cancelled job never gets to send a result.
                prop_assert!(!(life.cancelled && matches!(life.phase, Phase::Storing | Phase::Sending)));
            }
            prop_assert!(closed <= 1 && told <= 1);
        }
    }
}
