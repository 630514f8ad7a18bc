//! What is written to Redis, and asked before a job's end: two queues, each in order, grouped into pipelines.
//!
//! Under load everything that is ready to be sent goes in one pipeline: a group yields once before it is sent, so that
//! the tasks of the same moment add theirs. When the host is idle that costs nothing.
//!
//! A write is tried once, or kept until Redis has confirmed it, across reconnects and while the server refuses for
//! reasons that pass (loading, out of memory, no longer the master). What it refuses for good (an account's
//! rights, a key of another type) is logged and given up: trying again would change nothing.

use std::time::Duration;

use redis::Value;
use tokio::sync::{mpsc, oneshot};

use super::redis::{Link, Redis, RedisFailure, status_key};
use super::replies::{ReplyError, server_words};
use crate::model::{JobId, MessageId};

/// Most writes of one pipeline.
const GROUP_MAX: usize = 128;
/// Before a server that refuses is asked again.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// Errors that trying again can't mend.
const FOR_GOOD: [&str; 4] = ["WRONGTYPE", "NOPERM", "NOAUTH", "ERR"];

/// One job's change of state, and the acknowledgement that may come with it.
#[derive(Debug, Clone, Default)]
pub struct Write {
    pub status: Option<(JobId, Vec<(&'static str, String)>)>,
    pub ack: Option<MessageId>,
}

impl Write {
    pub fn status(job: &JobId, fields: Vec<(&'static str, String)>) -> Write {
        Write { status: Some((job.clone(), fields)), ack: None }
    }

    pub fn ack(id: MessageId) -> Write {
        Write { status: None, ack: Some(id) }
    }

    pub fn and_ack(mut self, id: MessageId) -> Write {
        self.ack = Some(id);
        self
    }
}

/// What happens to a write that Redis doesn't confirm.
pub(super) enum Durability {
    /// Tried once, not asked after.
    BestEffort(Option<oneshot::Sender<Result<(), RedisFailure>>>),
    /// Kept until it is confirmed.
    UntilConfirmed(oneshot::Sender<()>),
}

/// Has this job a cancel key?
pub(super) type Question = (JobId, oneshot::Sender<Result<bool, RedisFailure>>);

/// The writer's part, to be run as a task.
pub struct Writer {
    pub(super) redis: Redis,
    pub(super) queue: mpsc::UnboundedReceiver<(Write, Durability)>,
    pub(super) questions: mpsc::UnboundedReceiver<Question>,
}

impl Writer {
    /// Sends both queues until every handle is gone.
    pub async fn run(self) {
        let Writer { redis, queue, questions } = self;
        tokio::join!(ask(redis.clone(), questions), Writes { redis, queue }.run());
    }
}

async fn ask(redis: Redis, mut questions: mpsc::UnboundedReceiver<Question>) {
    let mut group = Vec::new();
    while questions.recv_many(&mut group, GROUP_MAX).await > 0 {
        join_in(&mut questions, &mut group).await;
        let jobs: Vec<JobId> = group.iter().map(|(job, _)| job.clone()).collect();
        let answers = match redis.cancelled(&jobs).await {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(down) => vec![Err(down); jobs.len()],
        };
        for ((_, wait), answer) in group.drain(..).zip(answers) {
            // Nobody waits for it when the host stops.
            wait.send(answer).ok();
        }
    }
}

/// Lets every task that is ready run once, and takes what they have added.
async fn join_in<T>(queue: &mut mpsc::UnboundedReceiver<T>, group: &mut Vec<T>) {
    tokio::task::yield_now().await;
    while group.len() < GROUP_MAX
        && let Ok(more) = queue.try_recv()
    {
        group.push(more);
    }
}

struct Writes {
    redis: Redis,
    queue: mpsc::UnboundedReceiver<(Write, Durability)>,
}

impl Writes {
    async fn run(mut self) {
        let mut group = Vec::new();
        let mut kept: Vec<(Write, Durability)> = Vec::new();
        loop {
            if !kept.is_empty() {
                // What must happen waits for the link; what comes meanwhile is answered at once.
                let mut link = self.redis.inner.link.subscribe();
                tokio::select! {
                    up = link.wait_for(Link::is_up) => if up.is_err() { return },
                    n = self.queue.recv_many(&mut group, GROUP_MAX) => if n == 0 { return },
                }
                if self.redis.is_up() {
                    tokio::time::sleep(REFUSED_PAUSE).await;
                }
            } else if self.queue.recv_many(&mut group, GROUP_MAX).await == 0 {
                return;
            }
            join_in(&mut self.queue, &mut group).await;
            group.splice(0..0, kept.drain(..));
            kept = self.send(std::mem::take(&mut group)).await;
        }
    }

    /// Sends one group and returns what must be tried again.
    async fn send(&self, mut group: Vec<(Write, Durability)>) -> Vec<(Write, Durability)> {
        let rest = group.split_off(group.len().min(GROUP_MAX));
        let names = &self.redis.inner.names;
        let mut pipe = redis::pipe();
        let mut owners = Vec::new();
        for (i, (write, _)) in group.iter().enumerate() {
            if let Some((job, fields)) = &write.status {
                pipe.cmd("HSET").arg(status_key(job)).arg(fields);
                owners.push(i);
            }
            if let Some(id) = write.ack {
                pipe.cmd("XACK").arg(&names.stream).arg(&names.group).arg(id.to_string());
                owners.push(i);
            }
        }
        // What became of each write: done, refused for now, or not sent.
        let mut failed: Vec<Option<RedisFailure>> = vec![None; group.len()];
        match self.redis.ask(&pipe).await {
            Ok(replies) => {
                for (owner, reply) in owners.iter().zip(&replies) {
                    if let Value::ServerError(error) = reply {
                        let job_id = group[*owner].0.status.as_ref().map(|(job, _)| &**job);
                        let again = !FOR_GOOD.contains(&error.code());
                        let error = server_words(error);
                        tracing::error!(job_id, error, again, "Redis refused to write a job's state");
                        if again {
                            failed[*owner] =
                                Some(ReplyError::Refused { command: "HSET or XACK", text: error }.into());
                        }
                    }
                }
            }
            Err(down) => failed.fill(Some(down)),
        }
        let mut kept = Vec::new();
        for ((write, durability), failed) in group.into_iter().zip(failed) {
            match (durability, failed) {
                (Durability::BestEffort(Some(answer)), failed) => {
                    drop(answer.send(failed.map_or(Ok(()), Err)))
                }
                (Durability::BestEffort(None), _) => {}
                (Durability::UntilConfirmed(answer), None) => drop(answer.send(())),
                (Durability::UntilConfirmed(answer), Some(_)) => {
                    kept.push((write, Durability::UntilConfirmed(answer)))
                }
            }
        }
        kept.extend(rest);
        kept
    }
}
