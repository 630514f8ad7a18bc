//! Between claim and decision: reads messages, and asks Redis and the history what is known about their jobs.
//!
//! Runs beside the driver, for all messages of one read together: one question to Redis, one to the history.
//! What follows from the answers is decided by [`admit`] and by the job table. Large circuits are parsed on a
//! blocking thread, and a job that ended before is not parsed at all.

use std::sync::Arc;

use super::admission::{Admission, JobRecord, MessageFacts, admit, died_error};
use super::message::{self, Envelope, Message, Work};
use super::redis::Redis;
use super::table::{CheckOutcome, CheckRequest, Event, Subject, Ticket, Verdict};
use crate::model::{JobId, MessageId};
use crate::state::db::{HistoryEntry, Store};

/// Circuits larger than this are parsed on a blocking thread.
const LARGE_IR_BYTES: usize = 32 << 10;

/// Judges a callback URL: its origin, or why no result may be sent there.
pub type CallbackRule = Arc<dyn Fn(&str) -> Result<Arc<str>, String> + Send + Sync>;

/// What a check needs.
#[derive(Clone)]
pub(super) struct Checker {
    pub redis: Redis,
    pub store: Store,
    pub callback: CallbackRule,
    pub max_deaths: u32,
}

/// A message whose sender is known.
struct Addressed {
    ticket: Ticket,
    message_id: MessageId,
    deaths: u32,
    left_pending: bool,
    envelope: Envelope,
    subject: Subject,
}

impl Checker {
    /// Checks the messages of one read; an event for each, or one for all when Redis or the database can't be asked.
    /// The keys of one job may be refused and those of others not.
    pub async fn check(&self, requests: Vec<CheckRequest>) -> Vec<Event> {
        let tickets: Vec<Ticket> = requests.iter().map(|r| r.ticket).collect();
        self.events(requests).await.unwrap_or_else(|error| vec![Event::CheckFailed { tickets, error }])
    }

    async fn events(&self, requests: Vec<CheckRequest>) -> Result<Vec<Event>, String> {
        let mut events = Vec::with_capacity(requests.len());
        let mut addressed: Vec<Addressed> = Vec::with_capacity(requests.len());
        for CheckRequest { ticket, message_id, deaths, left_pending, subject } in requests {
            let envelope = match &subject {
                Subject::Message(message) => message::envelope(message, |url| (self.callback)(url)),
                Subject::Parsed(envelope, _) => Ok(envelope.clone()),
            };
            match (envelope, subject) {
                (Ok(envelope), subject) => {
                    addressed.push(Addressed { ticket, message_id, deaths, left_pending, envelope, subject });
                }
                (Err(reason), Subject::Message(message)) => {
                    let fields = message.to_json();
                    let outcome = CheckOutcome::Unanswerable { reason, fields };
                    events.push(Event::Checked { ticket, outcome });
                }
                (Err(reason), Subject::Parsed(..)) => {
                    let outcome = CheckOutcome::Unanswerable { reason, fields: String::new() };
                    events.push(Event::Checked { ticket, outcome });
                }
            }
        }
        if addressed.is_empty() {
            return Ok(events);
        }

        let jobs: Vec<JobId> = addressed.iter().map(|m| m.envelope.job_id.clone()).collect();
        let ids: Vec<MessageId> = addressed.iter().map(|m| m.message_id).collect();
        let records = self.redis.status.records(&jobs).await.map_err(|e| e.to_string())?;
        let history = self.store.history_of(ids).await.map_err(|e| e.to_string())?;
        for ((message, record), past) in addressed.into_iter().zip(&records).zip(history) {
            let ticket = message.ticket;
            events.push(match record {
                Ok(record) => {
                    let outcome = self.outcome(message, record, past.as_ref()).await;
                    Event::Checked { ticket, outcome }
                }
                Err(refused) => Event::CheckFailed { tickets: vec![ticket], error: refused.to_string() },
            });
        }
        Ok(events)
    }

    async fn outcome(
        &self,
        message: Addressed,
        record: &JobRecord,
        past: Option<&HistoryEntry>,
    ) -> CheckOutcome {
        let Addressed { message_id, deaths, left_pending, envelope, mut subject, .. } = message;
        let facts = MessageFacts { past, left_pending, deaths };
        let admission = admit(message_id, &envelope.job_id, record, facts, self.max_deaths);
        if admission == Admission::RunAgain {
            tracing::warn!(
                job_id = &*envelope.job_id,
                %message_id,
                "the job's result was announced and is not in the state database; the job runs again"
            );
        }
        let verdict = match admission {
            Admission::Duplicate => Verdict::Duplicate,
            Admission::Settle(end) => Verdict::Settle(end),
            Admission::Cancel => Verdict::Cancelled,
            Admission::GiveUp { deaths } => Verdict::Fail(died_error(deaths)),
            Admission::Run | Admission::RunAgain => {
                let work = match subject {
                    Subject::Message(message) => read_work(message).await,
                    Subject::Parsed(_, work) => work,
                };
                subject = Subject::Parsed(envelope.clone(), work.clone());
                work.map_or_else(Verdict::Fail, Verdict::Run)
            }
        };
        let replaces = record.replaced_by(message_id);
        CheckOutcome::Answerable { envelope, verdict, subject, replaces }
    }
}

async fn read_work(message: Message) -> Result<Work, String> {
    let size: usize = message.fields.iter().map(|(_, value)| value.len()).sum();
    if size < LARGE_IR_BYTES {
        return message::work(&message);
    }
    match tokio::task::spawn_blocking(move || message::work(&message)).await {
        Ok(work) => work,
        Err(e) => Err(format!("the circuit could not be read: {e}")),
    }
}
