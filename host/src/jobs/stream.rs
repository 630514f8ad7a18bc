//! The reader: keeps the link to Redis, claims messages while there are prefetch permits, takes up what was left pending.
//!
//! One task. A blocking read is never dropped: what the server delivers to a dropped read would wait for the
//! next look through the pending list. It is short instead, and stopping waits for it.

mod fetch_pages;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::claim_gate::{ClaimGate, ClaimStep};
use super::message::Message;
use super::redis::replies::ReplyError;
use super::redis::{Redis, RedisFailure, StreamConnection};
use super::table::ClaimOrigin;
use crate::backoff::Backoff;
use crate::config::settings::JobSettings;
use crate::executor::ExecutorStatus;
use crate::model::MessageId;
use crate::sys;
use crate::telemetry::Metrics;
use fetch_pages::FetchPages;

/// Ids looked at in one question for pending messages.
const PENDING_PAGE: usize = 500;
/// How often free disk space is looked at.
const DISK_CHECK: Duration = Duration::from_secs(1);
/// A message that could not be fetched is left alone for so many looks through the pending list.
const REST_INTERVALS: u32 = 10;

/// What the reader tells the driver.
#[derive(Debug)]
pub enum Claim {
    /// Messages that this consumer now holds. Each takes a prefetch permit until the driver returns it.
    Messages(Vec<Message>, ClaimOrigin),
    /// Ids that are pending although their entries are gone.
    Trimmed(Vec<MessageId>),
    /// Which of these does the driver not hold?
    Unheld(Vec<MessageId>, oneshot::Sender<Vec<MessageId>>),
}

/// The reader's parts.
pub struct Reader {
    pub redis: Redis,
    pub settings: JobSettings,
    /// How many more messages may be read ahead.
    pub prefetch: Arc<Semaphore>,
    /// Most messages of one read.
    pub read_max: usize,
    pub claims: mpsc::Sender<Claim>,
    pub stop: CancellationToken,
    pub gate: Arc<ClaimGate>,
    pub state_dir: PathBuf,
    pub metrics: Arc<Metrics>,
    pub executor: ExecutorStatus,
}

/// Why a look through the pending list went no further.
enum SweepError {
    End(End),
    Redis(RedisFailure),
}

impl From<End> for SweepError {
    fn from(end: End) -> SweepError {
        SweepError::End(end)
    }
}

impl From<RedisFailure> for SweepError {
    fn from(failure: RedisFailure) -> SweepError {
        SweepError::Redis(failure)
    }
}

/// Why serving ended.
enum End {
    Stopped,
    Lost(String),
    /// The server has refused for long: another connection may lead to its successor.
    Refused,
}

/// What the reader remembers from one connection to the next.
struct Progress {
    pages: FetchPages,
    next_sweep: Instant,
    /// Grows while new messages are refused.
    refused: Backoff,
}

impl Reader {
    /// Runs until stopped.
    pub async fn run(self) {
        let settings = &self.settings;
        let new_backoff = || Backoff::new(settings.redis_backoff, settings.redis_backoff_max);
        let mut backoff = new_backoff();
        let mut progress = Progress {
            pages: FetchPages::new(self.read_max, settings.recover_interval * REST_INTERVALS),
            next_sweep: Instant::now(),
            refused: new_backoff(),
        };
        let mut connected_before = false;
        let mut renewing = false;
        while !self.stop.is_cancelled() {
            let lost = match self.redis.stream.connect().await {
                Ok(stream) => {
                    if !std::mem::take(&mut renewing) {
                        tracing::info!(stream = self.redis.names.stream, "connected to Redis");
                        if std::mem::replace(&mut connected_before, true) {
                            self.metrics.redis_reconnects.inc();
                        }
                    }
                    let since = Instant::now();
                    match self.serve(stream, &mut progress).await {
                        // The link stays for what the drain still has to write.
                        End::Stopped => return,
                        // Nor is it down while its successor is being made.
                        End::Refused => {
                            renewing = true;
                            continue;
                        }
                        End::Lost(why) => {
                            // A link that held longer than a pause works: its loss begins a new count.
                            if since.elapsed() > backoff.longest_next() {
                                backoff.reset();
                            }
                            why
                        }
                    }
                }
                Err(RedisFailure::Down(why)) => why,
                Err(RedisFailure::Reply(refused)) => refused.to_string(),
            };
            renewing = false;
            self.redis.link.set_down(&lost);
            if self.stop.is_cancelled() {
                return;
            }
            let pause = backoff.after_failure(rand::random());
            tracing::warn!(
                error = lost,
                retry_in_ms = pause.as_millis() as u64,
                "no connection to Redis; jobs in flight go on, new ones wait"
            );
            if timeout(pause, self.stop.cancelled()).await.is_ok() {
                return;
            }
        }
    }

    async fn serve(&self, mut stream: StreamConnection, progress: &mut Progress) -> End {
        let mut next_disk_check = Instant::now();
        let mut group_lost = 0u32;
        progress.next_sweep = Instant::now();
        match stream.create_group().await {
            // An account that may not create the group can use one that is there: the read will tell.
            Ok(()) | Err(RedisFailure::Reply(_)) => {}
            Err(RedisFailure::Down(why)) => return End::Lost(why),
        }
        loop {
            if self.stop.is_cancelled() {
                return End::Stopped;
            }
            if let Some(why) = self.redis.link.error() {
                return End::Lost(why);
            }
            if Instant::now() >= progress.next_sweep {
                if let Err(end) = self.sweep(&mut stream, &mut progress.pages).await {
                    return end;
                }
                progress.next_sweep = Instant::now() + self.settings.recover_interval;
            }
            if self.gate.is_held() {
                // What was left pending is older than what is new, so it is looked at first.
                progress.next_sweep = Instant::now();
                tokio::select! {
                    () = self.gate.wait_not_held() => continue,
                    () = self.stop.cancelled() => return End::Stopped,
                    why = self.redis.link.wait_failed() => return End::Lost(why),
                }
            }
            if self.executor.stuck_run().is_some() || self.gate.store_failing() {
                // Nothing runs beside a run that hasn't come back, or while results can't be stored.
                if timeout(DISK_CHECK, self.stop.cancelled()).await.is_ok() {
                    return End::Stopped;
                }
                continue;
            }
            if Instant::now() >= next_disk_check {
                next_disk_check = Instant::now() + DISK_CHECK;
                if self.disk_is_full() {
                    if timeout(DISK_CHECK, self.stop.cancelled()).await.is_ok() {
                        return End::Stopped;
                    }
                    continue;
                }
            }
            // Asked first: each wait that is prepared costs something, and this is the path of every message.
            if self.gate.is_full() {
                tokio::select! {
                    () = self.gate.wait_not_full() => {}
                    () = self.stop.cancelled() => return End::Stopped,
                    why = self.redis.link.wait_failed() => return End::Lost(why),
                    () = sleep_until(progress.next_sweep) => continue,
                }
            }
            let permits = tokio::select! {
                permits = self.take_permits(self.read_max) => match permits {
                    Ok(permits) => permits,
                    Err(end) => return end,
                },
                () = sleep_until(progress.next_sweep) => continue,
            };

            let refused = match stream.read_new(permits.num_permits()).await {
                Ok(messages) => {
                    group_lost = 0;
                    progress.refused.reset();
                    self.gate.set_error(ClaimStep::Read, None);
                    if let Err(end) = self.hand_over(messages, permits, ClaimOrigin::New).await {
                        return end;
                    }
                    continue;
                }
                Err(RedisFailure::Down(why)) => return End::Lost(why),
                // After a flush or failover, seen before or during the blocking read. Once is repaired at once, again
                // and again with pauses.
                Err(RedisFailure::Reply(error)) if is_group_missing(&error) => {
                    drop(permits);
                    tracing::warn!(group = self.redis.names.group, "consumer group missing; recreating it");
                    group_lost += 1;
                    match stream.create_group().await {
                        Ok(()) if group_lost == 1 => continue,
                        Ok(()) => error,
                        Err(RedisFailure::Down(why)) => return End::Lost(why),
                        Err(RedisFailure::Reply(refused)) => refused,
                    }
                }
                Err(RedisFailure::Reply(error)) => error,
            };
            self.gate.set_error(ClaimStep::Read, Some(refused.to_string()));
            let is_longest = progress.refused.longest_next() >= self.settings.redis_backoff_max;
            let pause = progress.refused.after_failure(rand::random());
            if timeout(pause, self.stop.cancelled()).await.is_ok() {
                return End::Stopped;
            }
            if is_longest {
                return End::Refused;
            }
        }
    }

    /// At least one permit, and as many more as are free, up to `max`.
    async fn take_permits(&self, max: usize) -> Result<OwnedSemaphorePermit, End> {
        let first = tokio::select! {
            first = self.prefetch.clone().acquire_owned() => first,
            () = self.stop.cancelled() => return Err(End::Stopped),
            why = self.redis.link.wait_failed() => return Err(End::Lost(why)),
        };
        let Ok(mut permits) = first else { return Err(End::Stopped) };
        // Jobs that start in this moment give theirs too: one read instead of several.
        tokio::task::yield_now().await;
        let more = self.prefetch.available_permits().min(max.saturating_sub(1));
        if let Ok(more) = self.prefetch.clone().try_acquire_many_owned(more as u32) {
            permits.merge(more);
        }
        Ok(permits)
    }

    /// Gives messages to the driver; each takes one of the permits.
    async fn hand_over(
        &self,
        messages: Vec<Message>,
        mut permits: OwnedSemaphorePermit,
        origin: ClaimOrigin,
    ) -> Result<(), End> {
        if messages.is_empty() || self.stop.is_cancelled() {
            return Ok(());
        }
        if let Some(taken) = permits.split(messages.len().min(permits.num_permits())) {
            taken.forget();
        }
        drop(permits);
        self.tell(Claim::Messages(messages, origin)).await
    }

    async fn tell(&self, claim: Claim) -> Result<(), End> {
        self.claims.send(claim).await.map_err(|_| End::Stopped)
    }

    /// Takes up this consumer's own pending messages, except those that the driver holds. A server that refuses to
    /// tell about them is not a reason to claim nothing new: they stay pending, and are looked at again.
    async fn sweep(&self, stream: &mut StreamConnection, pages: &mut FetchPages) -> Result<(), End> {
        let error = match self.take_up_pending(stream, pages).await {
            Ok(None) => None,
            Ok(Some(resting)) => Some(format!(
                "message {resting} could not be fetched in time; set a longer CODA_REDIS_TIMEOUT_SEC"
            )),
            Err(SweepError::End(end)) => return Err(end),
            Err(SweepError::Redis(RedisFailure::Down(why))) => return Err(End::Lost(why)),
            // The group is created again by the read that finds it missing.
            Err(SweepError::Redis(RedisFailure::Reply(error))) if is_group_missing(&error) => return Ok(()),
            Err(SweepError::Redis(RedisFailure::Reply(error))) => Some(error.to_string()),
        };
        self.gate.set_error(ClaimStep::Pending, error);
        Ok(())
    }

    /// Returns a message that is pending and can't be fetched, if there is one.
    async fn take_up_pending(
        &self,
        stream: &mut StreamConnection,
        pages: &mut FetchPages,
    ) -> Result<Option<MessageId>, SweepError> {
        let mut from = MessageId::ZERO;
        let mut pending = HashSet::new();
        loop {
            let ids = stream.pending(from, PENDING_PAGE).await?;
            let Some(last) = ids.last() else { break };
            from = last.next();
            let full = ids.len() == PENDING_PAGE;
            let (answer, wait) = oneshot::channel();
            self.tell(Claim::Unheld(ids, answer)).await?;
            let mut unheld = wait.await.map_err(|_| End::Stopped)?;
            pending.extend(unheld.iter().copied());
            unheld.retain(|id| !pages.is_resting(Instant::now(), *id));
            if !unheld.is_empty() && !self.gate.is_full() {
                tracing::info!(messages = unheld.len(), "taking up messages that were left pending");
            }
            while !unheld.is_empty() {
                if self.gate.is_held()
                    || self.disk_is_full()
                    || self.gate.store_failing()
                    || self.gate.is_full()
                {
                    // What could not be stored is not run, what can't be held is not fetched; the next look finds it
                    // again.
                    return Ok(None);
                }
                let permits = self.take_permits(unheld.len().min(pages.size())).await?;
                let ids: Vec<MessageId> = unheld.drain(..permits.num_permits().min(unheld.len())).collect();
                let entries = match stream.entries(&ids).await {
                    Ok(entries) => entries,
                    Err(failure) => {
                        if matches!(failure, RedisFailure::Down(_)) {
                            pages.failed(Instant::now(), &ids);
                        }
                        return Err(failure.into());
                    }
                };
                pages.arrived(&ids);
                let absent: Vec<MessageId> =
                    ids.iter().zip(&entries).filter(|(_, e)| e.is_none()).map(|(id, _)| *id).collect();
                self.give_up_trimmed(stream, absent).await?;
                let messages = entries.into_iter().flatten().collect();
                self.hand_over(messages, permits, ClaimOrigin::LeftPending).await?;
            }
            if !full {
                break;
            }
        }
        Ok(pages.keep_pending(|id| pending.contains(id)))
    }

    /// A message whose entry is gone can't be run. Giving it up is final, so the server is asked twice.
    async fn give_up_trimmed(
        &self,
        stream: &mut StreamConnection,
        absent: Vec<MessageId>,
    ) -> Result<(), SweepError> {
        if absent.is_empty() {
            return Ok(());
        }
        let again = stream.entries(&absent).await?;
        let gone: Vec<MessageId> =
            absent.iter().zip(&again).filter(|(_, e)| e.is_none()).map(|(id, _)| *id).collect();
        if !gone.is_empty() {
            self.tell(Claim::Trimmed(gone)).await?;
        }
        Ok(())
    }

    fn disk_is_full(&self) -> bool {
        let full = match sys::free_bytes(&self.state_dir) {
            Ok(free) => free < self.settings.min_free_bytes,
            // The next write will tell.
            Err(_) => false,
        };
        if self.gate.set_disk_full(full) {
            let dir = self.state_dir.display();
            let min_mib = self.settings.min_free_bytes >> 20;
            match full {
                true => {
                    tracing::error!(%dir, min_mib, "the state disk is nearly full; claiming no jobs until space is freed")
                }
                false => tracing::info!(%dir, "the state disk has space again; claiming jobs"),
            }
        }
        full
    }
}

/// Whether the server says that the group, or its stream, is not there.
fn is_group_missing(error: &ReplyError) -> bool {
    // The second one ends a read that was blocked when the group went away.
    matches!(error.code(), Some("NOGROUP" | "UNBLOCKED"))
}
