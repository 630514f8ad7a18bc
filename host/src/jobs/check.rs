//! Between claim and run: is the message answerable, has the job ended before, can it run here?
//!
//! Runs beside the driver, for all messages of one read together: one question to Redis, one to history.
//! Large circuits are parsed off the async threads.

use std::collections::HashMap;
use std::sync::Arc;

use super::lifecycle::{Admission, admit, died_error};
use super::message::{self, Envelope, Message, Work};
use super::redis::Redis;
use crate::executor::view::View;
use crate::model::{JobId, MessageId};
use crate::state::db::{Status, Store};

/// Circuits larger than this are parsed on a blocking thread.
const LARGE_IR_BYTES: usize = 32 << 10;

/// Judges a callback URL: its origin, or why no result may go there.
pub type CallbackRule = Arc<dyn Fn(&str) -> Result<Arc<str>, String> + Send + Sync>;

/// What a check needs to know.
#[derive(Clone)]
pub(super) struct Checker {
    pub redis: Redis,
    pub store: Store,
    pub executor: View,
    pub callback: CallbackRule,
    pub max_deaths: u32,
}

/// What to do with a message.
pub(super) enum Verdict {
    Run(Envelope, Work),
    /// A result without a run: this error.
    Unfit(Envelope, String),
    Duplicate(Envelope),
    Settle(Envelope, Status, Option<String>, String),
    Cancelled(Envelope),
    /// Nobody can be told.
    DeadLetter {
        reason: String,
        fields: String,
    },
}

impl Checker {
    /// Judges the messages of one read. `deaths` has those that the process died on.
    ///
    /// # Errors
    /// When Redis or the database can't be asked; the messages stay pending then.
    pub async fn check(
        &self,
        messages: Vec<Message>,
        deaths: HashMap<MessageId, u32>,
    ) -> Result<Vec<(MessageId, Verdict)>, String> {
        let mut verdicts = Vec::with_capacity(messages.len());
        let mut open: Vec<(Message, Envelope)> = Vec::with_capacity(messages.len());
        for m in messages {
            match message::envelope(&m, |url| (self.callback)(url)) {
                Ok(envelope) => open.push((m, envelope)),
                Err(reason) => {
                    let fields = m.to_json();
                    verdicts.push((m.id, Verdict::DeadLetter { reason, fields }));
                }
            }
        }
        if open.is_empty() {
            return Ok(verdicts);
        }
        let jobs: Vec<JobId> = open.iter().map(|(_, e)| e.job_id.clone()).collect();
        let ids: Vec<MessageId> = open.iter().map(|(m, _)| m.id).collect();
        let seen = self.redis.seen(&jobs).await.map_err(|e| e.to_string())?;
        let known = self.store.history_of(ids).await.map_err(|e| e.to_string())?;
        for ((m, envelope), (seen, past)) in open.into_iter().zip(seen.iter().zip(known)) {
            let id = m.id;
            let deaths = deaths.get(&id).copied().unwrap_or(0);
            let admission = admit(id, &envelope.job_id, seen, past.as_ref(), deaths, self.max_deaths);
            let verdict = match admission {
                Admission::Duplicate => Verdict::Duplicate(envelope),
                Admission::Settle { status, error, finished_at } => {
                    Verdict::Settle(envelope, status, error, finished_at)
                }
                Admission::Cancel => Verdict::Cancelled(envelope),
                Admission::GiveUp { deaths } => Verdict::Unfit(envelope, died_error(deaths)),
                Admission::Run => match self.work(m).await {
                    Ok(work) => Verdict::Run(envelope, work),
                    Err(error) => Verdict::Unfit(envelope, error),
                },
            };
            verdicts.push((id, verdict));
        }
        Ok(verdicts)
    }

    /// Judges once more a message that was parked behind another one of the same job.
    ///
    /// # Errors
    /// When Redis can't be asked; the message stays pending then.
    pub async fn again(&self, id: MessageId, envelope: Envelope, work: Work) -> Result<Verdict, String> {
        let seen =
            self.redis.seen(std::slice::from_ref(&envelope.job_id)).await.map_err(|e| e.to_string())?;
        let seen = seen.into_iter().next().unwrap_or_default();
        Ok(match admit(id, &envelope.job_id, &seen, None, 0, self.max_deaths) {
            Admission::Duplicate => Verdict::Duplicate(envelope),
            Admission::Cancel => Verdict::Cancelled(envelope),
            _ => Verdict::Run(envelope, work),
        })
    }

    async fn work(&self, m: Message) -> Result<Work, String> {
        let size: usize = m.fields.iter().map(|(_, v)| v.len()).sum();
        if size < LARGE_IR_BYTES {
            return message::work(&m, &self.executor.described().device);
        }
        let described = self.executor.described();
        match tokio::task::spawn_blocking(move || message::work(&m, &described.device)).await {
            Ok(work) => work,
            Err(e) => Err(format!("the circuit could not be read: {e}")),
        }
    }
}
