//! What is written to Redis, in order, grouped into pipelines.
//!
//! Under load everything that is ready to be sent goes in one pipeline: a group yields once before it is sent, so that
//! the tasks of the same moment add theirs. When the host is idle that costs nothing.
//!
//! A write is tried once, or kept until Redis has confirmed it, across reconnects and while the server refuses. A
//! state and the acknowledgement that comes with it are sent one after the other: what the server refuses to write is
//! not acknowledged, so that its message stays pending.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::Cmd;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::replies;
use super::status::status_key;
use super::{LinkState, Names, RedisFailure, RedisLink};
use crate::jobs::standing_error::StandingError;
use crate::model::{JobId, MessageId};

/// Most writes of one pipeline.
const GROUP_MAX: usize = 128;
/// Before a server that refuses is asked again.
const REFUSED_PAUSE: Duration = Duration::from_millis(200);
/// The one refusal that stays whatever happens: another key has the name of this job's state.
const KEY_OF_ANOTHER_TYPE: &str = "WRONGTYPE";

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

    pub fn and_ack(mut self, id: MessageId) -> Write {
        self.ack = Some(id);
        self
    }
}

/// What happens to a write that Redis doesn't confirm.
enum Durability {
    /// Tried once, not asked after.
    BestEffort(Option<oneshot::Sender<Result<(), RedisFailure>>>),
    /// Kept until it is confirmed.
    UntilConfirmed(oneshot::Sender<()>),
}

/// Makes the queue, and the task that sends it.
pub(super) fn queue(link: RedisLink, names: Arc<Names>) -> (WriteQueue, Writer) {
    let (writes, queue) = mpsc::unbounded_channel();
    let refusal = Arc::new(Mutex::new(StandingError::default()));
    let groups = GroupWriter { link, names, refusal: refusal.clone(), started: Instant::now() };
    (WriteQueue { writes, refusal }, Writer { groups, queue })
}

/// Where the job path puts its writes; clones share the queue.
#[derive(Clone)]
pub struct WriteQueue {
    writes: mpsc::UnboundedSender<(Write, Durability)>,
    refusal: Arc<Mutex<StandingError>>,
}

impl WriteQueue {
    /// Writes without waiting; nothing happens when Redis is down.
    pub fn best_effort(&self, write: Write) {
        self.push(write, Durability::BestEffort(None));
    }

    /// Writes and waits for the confirmation.
    ///
    /// # Errors
    /// At once when Redis is down, or when it goes down meanwhile or refuses.
    pub async fn once(&self, write: Write) -> Result<(), RedisFailure> {
        let (answer, wait) = oneshot::channel();
        self.push(write, Durability::BestEffort(Some(answer)));
        wait.await.unwrap_or_else(|_| Err(RedisFailure::Down("the host is stopping".into())))
    }

    /// Writes and waits until Redis has confirmed it, however long that takes. False when the host stops.
    pub async fn until_confirmed(&self, write: Write) -> bool {
        let (answer, wait) = oneshot::channel();
        self.push(write, Durability::UntilConfirmed(answer));
        wait.await.is_ok()
    }

    /// Why the server refuses writes now, in its own words.
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().text().map(str::to_string)
    }

    fn push(&self, write: Write, durability: Durability) {
        if self.writes.send((write, durability)).is_err() {
            tracing::debug!("a write to Redis came after its queue had ended");
        }
    }
}

/// The writer's part, to be run as a task.
pub struct Writer {
    groups: GroupWriter,
    queue: mpsc::UnboundedReceiver<(Write, Durability)>,
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

impl Writer {
    /// Sends the queue until every handle is gone.
    pub async fn run(self) {
        let Writer { groups, mut queue } = self;
        let mut fresh = Vec::new();
        // What must happen and was not confirmed. It never stands before what comes fresh: a write that waits for its
        // answer is answered whatever became of the others.
        let mut kept: VecDeque<(Write, Durability)> = VecDeque::new();
        let mut retry_at = Instant::now();
        loop {
            tokio::select! {
                n = queue.recv_many(&mut fresh, GROUP_MAX) => {
                    if n == 0 {
                        return;
                    }
                    join_in(&mut queue, &mut fresh).await;
                    let sent = groups.send(std::mem::take(&mut fresh)).await;
                    kept.extend(sent.kept);
                    groups.note(sent.outcome, kept.is_empty());
                }
                up = groups.retry_time(retry_at), if !kept.is_empty() => {
                    if !up {
                        return;
                    }
                    let group: Vec<_> = kept.drain(..kept.len().min(GROUP_MAX)).collect();
                    let sent = groups.send(group).await;
                    // What a server takes again is sent without pauses.
                    let pause = if sent.kept.is_empty() { Duration::ZERO } else { REFUSED_PAUSE };
                    retry_at = Instant::now() + pause;
                    kept.extend(sent.kept);
                    groups.note(sent.outcome, kept.is_empty());
                }
            }
        }
    }
}

/// What became of a group.
struct Sent {
    /// What must be tried again.
    kept: Vec<(Write, Durability)>,
    outcome: GroupOutcome,
}

/// What the server said to a group.
enum GroupOutcome {
    Confirmed,
    /// At least one write was refused, in these words.
    Refused(String),
    /// It did not answer.
    Unanswered,
}

/// Sends groups of writes.
struct GroupWriter {
    link: RedisLink,
    names: Arc<Names>,
    /// Why the server refuses writes.
    refusal: Arc<Mutex<StandingError>>,
    /// The moment that its times count from.
    started: Instant,
}

impl GroupWriter {
    /// Waits until the link is up and the pause is over; false when the host stops.
    async fn retry_time(&self, at: Instant) -> bool {
        if self.link.changes().wait_for(LinkState::is_up).await.is_err() {
            return false;
        }
        tokio::time::sleep_until(at).await;
        true
    }

    /// Sends one group.
    async fn send(&self, group: Vec<(Write, Durability)>) -> Sent {
        let mut failed: Vec<Option<RedisFailure>> = vec![None; group.len()];
        let mut refused = None;
        // A pipeline is not a transaction: a refused state must not be acknowledged all the same.
        let first = |write: &Write| {
            let status = write.status.as_ref().map(|(job, fields)| ("HSET", hset(job, fields)));
            status.or_else(|| write.ack.map(|id| ("XACK", self.xack(id))))
        };
        let second = |write: &Write| write.status.as_ref().and(write.ack).map(|id| ("XACK", self.xack(id)));
        self.send_step(&group, &first, &mut failed, &mut refused).await;
        self.send_step(&group, &second, &mut failed, &mut refused).await;
        let outcome = match refused {
            Some(error) => GroupOutcome::Refused(error),
            None if failed.iter().any(Option::is_some) => GroupOutcome::Unanswered,
            None => GroupOutcome::Confirmed,
        };

        let mut kept = Vec::new();
        for ((write, durability), failed) in group.into_iter().zip(failed) {
            match (durability, failed) {
                (Durability::BestEffort(Some(answer)), failed) => {
                    drop(answer.send(failed.map_or(Ok(()), Err)));
                }
                (Durability::BestEffort(None), _) => {}
                (Durability::UntilConfirmed(answer), None) => drop(answer.send(())),
                (Durability::UntilConfirmed(answer), Some(_)) => {
                    kept.push((write, Durability::UntilConfirmed(answer)));
                }
            }
        }
        Sent { kept, outcome }
    }

    /// Sends one command of each write that has one and did not fail before.
    async fn send_step(
        &self,
        group: &[(Write, Durability)],
        command: &(dyn Fn(&Write) -> Option<(&'static str, Cmd)> + Sync),
        failed: &mut [Option<RedisFailure>],
        refused: &mut Option<String>,
    ) {
        let mut pipe = redis::pipe();
        let mut owners = Vec::new();
        for (i, (write, _)) in group.iter().enumerate() {
            if failed[i].is_none()
                && let Some((name, command)) = command(write)
            {
                pipe.add_command(command);
                owners.push((i, name));
            }
        }
        if owners.is_empty() {
            return;
        }
        let replies = match self.link.ask(&pipe).await {
            Ok(replies) => replies,
            Err(down) => return owners.iter().for_each(|(owner, _)| failed[*owner] = Some(down.clone())),
        };
        for ((owner, name), reply) in owners.into_iter().zip(replies) {
            let Err(error) = replies::number_of_changes(name, reply) else { continue };
            if name == "HSET" && error.code() == Some(KEY_OF_ANOTHER_TYPE) {
                let job_id = group[owner].0.status.as_ref().map(|(job, _)| &**job);
                tracing::error!(job_id, %error, "the job's state can't be written; its key is in use");
                continue;
            }
            *refused = Some(error.to_string());
            failed[owner] = Some(error.into());
        }
    }

    /// Notes whether the server refuses writes. That is over only when nothing that it refused is left: a state that it
    /// takes says nothing about an acknowledgement that it does not.
    fn note(&self, outcome: GroupOutcome, none_is_kept: bool) {
        let mut refusal = self.refusal.lock();
        match outcome {
            GroupOutcome::Refused(error) => {
                if refusal.fails(self.started.elapsed(), error.clone()) {
                    tracing::error!(error, "Redis refuses writes; they are kept and tried again");
                }
            }
            GroupOutcome::Confirmed if none_is_kept => {
                if refusal.works() {
                    tracing::info!("Redis takes writes again");
                }
            }
            GroupOutcome::Confirmed | GroupOutcome::Unanswered => {}
        }
    }

    fn xack(&self, id: MessageId) -> Cmd {
        let mut cmd = redis::cmd("XACK");
        cmd.arg(&self.names.stream).arg(&self.names.group).arg(id.to_string());
        cmd
    }
}

fn hset(job: &JobId, fields: &[(&'static str, String)]) -> Cmd {
    let mut cmd = redis::cmd("HSET");
    cmd.arg(status_key(job)).arg(fields);
    cmd
}
