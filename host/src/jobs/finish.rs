//! The end of a job, in the order that a crash anywhere leaves an answer to.
//!
//! ```text
//! result:     store (fsync) -> GET cancel -> not set: HSET terminal state -> to the outbox -> ... -> XACK
//!                                         -> set:     discard, HSET cancelled + XACK
//! cancelled:  HSET cancelled + XACK
//! ```
//!
//! The point of no return is that look at the cancel key. When Redis can't be asked the result goes out all
//! the same, marked `announced` on disk instead of in the status hash, and the HSET goes with the XACK.

use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;

use super::message::Envelope;
use super::redis::Redis;
use super::writes::Write;
use crate::failpoint::{self, Failpoint};
use crate::model::{JobId, MessageId, iso_time};
use crate::results::dispatcher::{Outbox, PendingDelivery, UnwrittenStatus};
use crate::results::outcome::Conclusion;
use crate::state::db::{DeadLetter, ResultRow, Status, Store, StoreError};

/// What the ends of jobs need.
#[derive(Clone)]
pub(super) struct Finisher {
    pub redis: Redis,
    pub store: Store,
    pub outbox: Outbox,
    pub retry: Duration,
}

/// How a stored result went on.
pub(super) enum Stored {
    /// It is with the outbox; `written` says whether the status hash has the terminal state.
    Sending {
        written: bool,
    },
    Cancelled,
    /// The host is stopping.
    Stopped,
}

pub(super) fn now() -> String {
    iso_time(OffsetDateTime::now_utc())
}

/// Fields of the status hash at the start of a run.
pub(super) fn executing(id: MessageId, qpu_id: &str) -> Vec<(&'static str, String)> {
    vec![
        ("state", "executing".into()),
        ("started_at", now()),
        ("message_id", id.to_string()),
        ("qpu_id", qpu_id.into()),
    ]
}

/// Fields of the status hash at the end.
pub(super) fn terminal(
    id: MessageId,
    qpu_id: &str,
    status: Status,
    error: Option<&str>,
    at: &str,
) -> Vec<(&'static str, String)> {
    let mut fields = vec![("state", status.name().to_string())];
    match status {
        Status::Completed => fields.push(("completed_at", at.into())),
        Status::Failed => {
            fields.push(("error", error.unwrap_or_default().into()));
            fields.push(("failed_at", at.into()));
        }
    }
    // Also for jobs that never ran, so that recovery can tell whose end it was.
    fields.push(("message_id", id.to_string()));
    fields.push(("qpu_id", qpu_id.into()));
    fields
}

impl Finisher {
    /// Stores a conclusion and sends it on its way, or drops it for a cancel that came in time.
    pub async fn conclude(&self, id: MessageId, envelope: &Envelope, conclusion: Conclusion) -> Stored {
        let row = ResultRow {
            message_id: id,
            job_id: envelope.job_id.clone(),
            callback_url: envelope.callback_url.clone(),
            status: conclusion.status,
            error: conclusion.error,
            finished_at: now(),
            body: conclusion.body,
        };
        loop {
            match self.store.insert(row.clone()).await {
                Ok(()) => break,
                Err(StoreError::Stopped) => return Stored::Stopped,
                // Not on disk is not finished: neither announced nor acknowledged.
                Err(error) => {
                    tracing::error!(job_id = &*row.job_id, %error, "a result can't be stored; trying again");
                    tokio::time::sleep(self.retry).await;
                }
            }
        }
        failpoint::pause_at(Failpoint::Stored).await;
        self.announce(row, envelope.origin.clone(), 0).await
    }

    /// Goes on with a result that a former process stored: what the status hash says of this message was
    /// decided before.
    pub async fn resume(&self, row: ResultRow, origin: Arc<str>, attempts: u32) -> Stored {
        let seen = self.redis.seen(std::slice::from_ref(&row.job_id)).await;
        match seen.as_deref() {
            Ok([seen]) if seen.ended_as(row.message_id) => {
                self.outbox.send(pending_delivery(row, origin, attempts, true));
                Stored::Sending { written: true }
            }
            Ok([seen]) if seen.state.as_deref() == Some("cancelled") => {
                self.drop_cancelled(&row.job_id, row.message_id).await
            }
            _ => self.announce(row, origin, attempts).await,
        }
    }

    async fn drop_cancelled(&self, job: &JobId, id: MessageId) -> Stored {
        if let Err(error) = self.store.discard(id).await {
            tracing::warn!(job_id = &**job, %error, "a cancelled job's result could not be removed");
        }
        match self.close_cancelled(job, id).await {
            true => Stored::Cancelled,
            false => Stored::Stopped,
        }
    }

    /// Goes on with a result that is on disk.
    async fn announce(&self, row: ResultRow, origin: Arc<str>, attempts: u32) -> Stored {
        let id = row.message_id;
        let asked = self.redis.is_cancelled(&row.job_id).await;
        if matches!(asked, Ok(true)) {
            return self.drop_cancelled(&row.job_id, id).await;
        }
        failpoint::pause_at(Failpoint::Decided).await;
        let written = match asked {
            Ok(_) => {
                let qpu = &self.redis.names().qpu_id;
                let fields = terminal(id, qpu, row.status, row.error.as_deref(), &row.finished_at);
                self.redis.write(Write::status(&row.job_id, fields)).await.is_ok()
            }
            Err(_) => false,
        };
        if !written && let Err(error) = self.store.mark_announced(id).await {
            tracing::warn!(job_id = &*row.job_id, %error, "a result's announcement could not be noted on disk");
        }
        failpoint::pause_at(Failpoint::Announced).await;
        self.outbox.send(pending_delivery(row, origin, attempts, written));
        Stored::Sending { written }
    }

    /// Writes the state of a job that ended here before, and acknowledges. False when the host stops.
    pub async fn settle(
        &self,
        job: &JobId,
        id: MessageId,
        status: Status,
        error: Option<&str>,
        at: &str,
    ) -> bool {
        let fields = terminal(id, &self.redis.names().qpu_id, status, error, at);
        self.redis.write_until_confirmed(Write::status(job, fields).and_ack(id)).await
    }

    /// Acknowledges. False when the host stops.
    pub async fn acknowledge(&self, id: MessageId) -> bool {
        failpoint::pause_at(Failpoint::Delivered).await;
        self.redis.write_until_confirmed(Write::ack(id)).await
    }

    /// Writes the state `cancelled` and acknowledges. False when the host stops.
    pub async fn close_cancelled(&self, job: &JobId, id: MessageId) -> bool {
        let fields = vec![
            ("state", "cancelled".to_string()),
            ("cancelled_at", now()),
            ("message_id", id.to_string()),
            ("qpu_id", self.redis.names().qpu_id.clone()),
        ];
        self.redis.write_until_confirmed(Write::status(job, fields).and_ack(id)).await
    }

    /// Keeps a message that can't be answered, then acknowledges it. False when the host stops.
    pub async fn dead_letter(&self, id: MessageId, reason: String, fields: String) -> bool {
        tracing::error!(message_id = %id, reason, "a message can't be answered; it is kept as a dead letter");
        let letter = DeadLetter { message_id: id, reason, fields };
        loop {
            match self.store.store_dead_letter(letter.clone()).await {
                Ok(()) => return self.acknowledge(id).await,
                Err(StoreError::Stopped) => return false,
                Err(error) => {
                    tracing::error!(message_id = %id, %error, "a dead letter can't be stored; trying again");
                    tokio::time::sleep(self.retry).await;
                }
            }
        }
    }
}

/// `written`: whether the status hash has the terminal state.
pub(super) fn pending_delivery(
    row: ResultRow,
    origin: Arc<str>,
    attempts: u32,
    written: bool,
) -> PendingDelivery {
    PendingDelivery {
        message_id: row.message_id,
        job_id: row.job_id,
        callback_url: row.callback_url,
        origin,
        status: row.status,
        body: Some(row.body),
        attempts,
        unwritten: (!written).then_some(UnwrittenStatus { error: row.error, finished_at: row.finished_at }),
    }
}
