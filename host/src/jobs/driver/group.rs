//! Effects of one moment, performed together.
//!
//! Under load many jobs reach the same step at once. Each kind of step is then one task and one message back to the
//! driver instead of one for each job: fewer wake-ups, one pipeline, one transaction. When the host is idle a group
//! has one job, and nothing waits to fill it.

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::task::TaskTracker;

use super::perform::row_of;
use crate::failpoint::{Failpoint, pause_at};
use crate::jobs::redis::{Redis, Write};
use crate::jobs::table::{Event, MessageRemoval, Ticket, Unstored};
use crate::model::{JobId, MessageId};
use crate::results::outcome::ShotRule;
use crate::state::db::{JobFacts, Store, StoreError};

/// A result to be judged and stored.
pub(super) struct StoreRequest {
    pub ticket: Ticket,
    pub message_id: MessageId,
    pub result: Unstored,
    pub at: String,
    pub replaces: Option<MessageId>,
    /// For the record of ended jobs.
    pub facts: JobFacts,
}

/// The end of a message: its state, if Redis does not have it, and whether it is no longer pending.
pub(super) struct Acknowledgement {
    pub ticket: Ticket,
    pub message_id: MessageId,
    pub write: Write,
    pub removal: MessageRemoval,
    /// Of a cancelled job, for the record of ended jobs.
    pub cancelled: Option<(JobId, JobFacts)>,
}

/// What was asked for since the last flush.
#[derive(Default)]
pub(super) struct EffectGroup {
    /// Largest result.
    pub max_result_bytes: usize,
    /// Of the executor in use.
    pub shot_rule: ShotRule,
    pub stores: Vec<StoreRequest>,
    pub cancel_keys: Vec<(Ticket, JobId)>,
    pub statuses: Vec<(Ticket, Write)>,
    pub acknowledgements: Vec<Acknowledgement>,
}

impl EffectGroup {
    /// Starts a task for each kind of effect that there is.
    pub fn flush(
        &mut self,
        redis: &Redis,
        store: &Store,
        tasks: &TaskTracker,
        reports: &UnboundedSender<Vec<Event>>,
    ) {
        if !self.stores.is_empty() {
            let (requests, store, reports) =
                (std::mem::take(&mut self.stores), store.clone(), reports.clone());
            let (max_bytes, rule) = (self.max_result_bytes, self.shot_rule);
            tasks.spawn(async move { send(&reports, store_all(requests, store, max_bytes, rule).await) });
        }
        if !self.cancel_keys.is_empty() {
            let (jobs, redis, reports) =
                (std::mem::take(&mut self.cancel_keys), redis.clone(), reports.clone());
            tasks.spawn(async move { send(&reports, read_cancel_keys(jobs, redis).await) });
        }
        if !self.statuses.is_empty() {
            let (writes, redis, reports) =
                (std::mem::take(&mut self.statuses), redis.clone(), reports.clone());
            tasks.spawn(async move { send(&reports, write_statuses(writes, redis).await) });
        }
        if !self.acknowledgements.is_empty() {
            let writes = std::mem::take(&mut self.acknowledgements);
            let (redis, store, reports) = (redis.clone(), store.clone(), reports.clone());
            tasks.spawn(async move { acknowledge(writes, redis, store, &reports).await });
        }
    }
}

fn send(reports: &UnboundedSender<Vec<Event>>, events: Vec<Event>) {
    if !events.is_empty() {
        // A driver that has ended takes no more events.
        reports.send(events).ok();
    }
}

async fn store_all(
    requests: Vec<StoreRequest>,
    store: Store,
    max_bytes: usize,
    rule: ShotRule,
) -> Vec<Event> {
    pause_at(Failpoint::Returned).await;
    let writes = requests.into_iter().map(|request| {
        let StoreRequest { ticket, message_id, result, at, replaces, facts } = request;
        let result = row_of(message_id, result, at, replaces, facts, max_bytes, rule);
        let store = &store;
        async move {
            match store.insert(result.row.clone()).await {
                Ok(()) => Some(Event::Stored { ticket, result }),
                // A database that has closed says nothing more.
                Err(StoreError::Stopped) => None,
                Err(error) => Some(Event::StoreFailed { ticket, result, error: error.to_string() }),
            }
        }
    });
    let events: Vec<Event> = join_all(writes).await.into_iter().flatten().collect();
    if events.iter().any(|event| matches!(event, Event::Stored { .. })) {
        pause_at(Failpoint::Stored).await;
    }
    events
}

async fn read_cancel_keys(jobs: Vec<(Ticket, JobId)>, redis: Redis) -> Vec<Event> {
    let ids: Vec<JobId> = jobs.iter().map(|(_, job_id)| job_id.clone()).collect();
    let answers: Vec<Result<bool, String>> = match redis.status.cancelled(&ids).await {
        Ok(answers) => answers.into_iter().map(|answer| answer.map_err(|e| e.to_string())).collect(),
        Err(failure) => vec![Err(failure.to_string()); ids.len()],
    };
    if answers.iter().any(|answer| !matches!(answer, Ok(true))) {
        pause_at(Failpoint::Decided).await;
    }
    let read = |((ticket, _), cancelled)| Event::CancelKeyRead { ticket, cancelled };
    jobs.into_iter().zip(answers).map(read).collect()
}

async fn write_statuses(writes: Vec<(Ticket, Write)>, redis: Redis) -> Vec<Event> {
    let redis = &redis;
    let writes = writes.into_iter().map(|(ticket, write)| async move {
        let written = redis.writes.once(write).await.is_ok();
        Event::StatusWritten { ticket, written }
    });
    let events = join_all(writes).await;
    if events.iter().any(|event| matches!(event, Event::StatusWritten { written: true, .. })) {
        pause_at(Failpoint::Announced).await;
    }
    events
}

/// Each as soon as Redis has confirmed it; without a confirmation the host is stopping, and the message stays
/// pending.
async fn acknowledge(
    ends: Vec<Acknowledgement>,
    redis: Redis,
    store: Store,
    reports: &UnboundedSender<Vec<Event>>,
) {
    pause_at(Failpoint::Delivered).await;
    let (redis, store) = (&redis, &store);
    let writes = ends.into_iter().map(|end| async move {
        let Acknowledgement { ticket, message_id, write, removal, cancelled } = end;
        // First: nothing brings the message back once it is acknowledged. A cancel does not wait for a disk that fails.
        if let Some((job_id, facts)) = cancelled
            && let Err(error) = store.record_cancelled(message_id, job_id.clone(), facts).await
        {
            let job_id = &*job_id;
            tracing::warn!(job_id, %message_id, %error, "a cancelled job is missing in the history");
        }
        let removes = match removal {
            MessageRemoval::Remove => true,
            MessageRemoval::RemoveIfOf(job_id) => is_entry_of(redis, message_id, &job_id).await,
            MessageRemoval::Leave => false,
        };
        let write = if removes { write.and_ack(message_id) } else { write };
        let confirmed = redis.writes.until_confirmed(write).await;
        confirmed.then_some(Event::Acknowledged { ticket })
    });
    let count = writes.len();
    let mut confirmed = writes.collect::<FuturesUnordered<_>>().ready_chunks(count);
    while let Some(events) = confirmed.next().await {
        send(reports, events.into_iter().flatten().collect());
    }
}

/// Whether the stream's entry is of this job, or is gone. What can't be read stays pending: the next look finds the
/// job in history, or another job that is to run.
async fn is_entry_of(redis: &Redis, message_id: MessageId, job_id: &JobId) -> bool {
    match redis.stream.entry(message_id).await {
        Ok(None) => true,
        Ok(Some(message)) if message.job_id() == Some(job_id.as_bytes()) => true,
        Ok(Some(_)) => {
            tracing::warn!(
                job_id = &**job_id,
                %message_id,
                "another message has the id of one that has ended; it stays pending and is looked at again"
            );
            false
        }
        Err(error) => {
            tracing::debug!(%message_id, %error, "an ended message could not be looked at; it stays pending");
            false
        }
    }
}
