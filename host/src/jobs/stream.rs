//! The reader: keeps the link to Redis, claims messages while there are prefetch permits, takes up what was left pending.
//!
//! One task. A blocking read is never dropped: what the server delivers to a dropped read would wait for the
//! next look through the pending list. It is short instead, and stopping waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::message::Message;
use super::redis::{Redis, RedisFailure, masked};
use super::replies::ReplyError;
use crate::backoff::Backoff;
use crate::config::settings::JobSettings;
use crate::executor::ExecutorStatus;
use crate::model::{MessageId, Secret};
use crate::sys;
use crate::telemetry::Metrics;

/// Ids looked at in one question for pending messages.
const PENDING_PAGE: usize = 500;
/// How often free disk space is looked at.
const DISK_CHECK: Duration = Duration::from_secs(1);

/// What the reader tells the driver.
#[derive(Debug)]
pub enum Claim {
    /// Messages that this consumer now holds. Each takes a prefetch permit until the driver returns it.
    Messages(Vec<Message>),
    /// Ids that are pending although their entries are gone.
    Trimmed(Vec<MessageId>),
    /// Which of these does the driver not hold?
    Unheld(Vec<MessageId>, oneshot::Sender<Vec<MessageId>>),
}

/// Why the reader can't claim although Redis is there.
#[derive(Debug, Default)]
pub struct ClaimGate {
    disk_full: AtomicBool,
    store_failing: AtomicBool,
    /// Why the server does not tell about pending messages.
    pending_error: Mutex<Option<String>>,
}

impl ClaimGate {
    /// Whether claiming has stopped for want of disk space.
    pub fn disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Why pending messages can't be looked at.
    pub fn pending_error(&self) -> Option<String> {
        self.pending_error.lock().clone()
    }

    /// Notes why pending messages can't be looked at, and logs each change once.
    fn set_pending_error(&self, error: Option<String>) {
        let mut known = self.pending_error.lock();
        if *known == error {
            return;
        }
        match &error {
            Some(error) => tracing::error!(error, "pending messages can't be looked at; they stay pending"),
            None => tracing::info!("pending messages can be looked at again"),
        }
        *known = error;
    }

    /// Results can't be stored, or can be again: nothing is claimed that could not be finished.
    pub fn set_store_failing(&self, failing: bool) {
        self.store_failing.store(failing, Ordering::Relaxed);
    }
}

/// The reader's parts.
pub struct Reader {
    pub redis: Redis,
    pub url: Secret,
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
}

impl Reader {
    /// Runs until stopped.
    pub async fn run(self) {
        let mut backoff = Backoff::new(self.settings.redis_backoff, self.settings.redis_backoff_max);
        let mut connected_before = false;
        while !self.stop.is_cancelled() {
            let lost = match self.redis.connect().await {
                Ok(conn) => {
                    tracing::info!(stream = self.redis.names().stream, "connected to Redis");
                    if std::mem::replace(&mut connected_before, true) {
                        self.metrics.redis_reconnects.inc();
                    }
                    let since = Instant::now();
                    match self.serve(conn).await {
                        // The link stays for what the drain still has to write.
                        End::Stopped => return,
                        End::Lost(why) => {
                            self.redis.set_down();
                            // A link that held longer than a pause works: its loss begins a new count.
                            if since.elapsed() > backoff.longest_next() {
                                backoff.reset();
                            }
                            why
                        }
                    }
                }
                Err(e) => masked(&e, &self.url),
            };
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

    async fn serve(&self, mut conn: MultiplexedConnection) -> End {
        let mut next_sweep = Instant::now();
        let mut next_disk_check = Instant::now();
        let mut group_lost = 0u32;
        loop {
            if self.stop.is_cancelled() {
                return End::Stopped;
            }
            if !self.redis.is_up() {
                return End::Lost("a command was not answered".into());
            }
            if Instant::now() >= next_sweep {
                if let Err(end) = self.sweep().await {
                    return end;
                }
                next_sweep = Instant::now() + self.settings.recover_interval;
            }
            if self.executor.stuck_run().is_some() || self.gate.store_failing.load(Ordering::Relaxed) {
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
            let permits = tokio::select! {
                permits = self.take_permits(self.read_max) => match permits {
                    Ok(permits) => permits,
                    Err(end) => return end,
                },
                () = sleep_until(next_sweep) => continue,
            };
            match self.redis.read_new(&mut conn, permits.num_permits()).await {
                Ok(messages) => {
                    group_lost = 0;
                    if let Err(end) = self.hand_over(messages, permits).await {
                        return end;
                    }
                }
                Err(e) if matches!(e.code(), Some("NOGROUP" | "UNBLOCKED")) => {
                    // After a flush or failover, seen before or during the blocking read. Once is repaired at
                    // once, again and again with pauses.
                    tracing::warn!(group = self.redis.names().group, "consumer group missing; recreating it");
                    if let Err(e) = self.redis.make_group(&mut conn).await {
                        return End::Lost(masked(&e, &self.url));
                    }
                    if group_lost > 0
                        && timeout(self.settings.redis_backoff, self.stop.cancelled()).await.is_ok()
                    {
                        return End::Stopped;
                    }
                    group_lost += 1;
                }
                Err(e) => return End::Lost(masked(&e, &self.url)),
            }
        }
    }

    /// At least one permit, and as many more as are free, up to `max`.
    async fn take_permits(&self, max: usize) -> Result<OwnedSemaphorePermit, End> {
        let first = tokio::select! {
            first = self.prefetch.clone().acquire_owned() => first,
            () = self.stop.cancelled() => return Err(End::Stopped),
            () = self.redis.wait_failed() => return Err(End::Lost("a command was not answered".into())),
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
    async fn hand_over(&self, messages: Vec<Message>, mut permits: OwnedSemaphorePermit) -> Result<(), End> {
        if messages.is_empty() || self.stop.is_cancelled() {
            return Ok(());
        }
        if let Some(taken) = permits.split(messages.len().min(permits.num_permits())) {
            taken.forget();
        }
        drop(permits);
        self.tell(Claim::Messages(messages)).await
    }

    async fn tell(&self, claim: Claim) -> Result<(), End> {
        self.claims.send(claim).await.map_err(|_| End::Stopped)
    }

    /// Takes up this consumer's own pending messages, except those that the driver holds. A server that refuses to
    /// tell about them is no reason to claim nothing new: they stay pending, and are looked at again.
    async fn sweep(&self) -> Result<(), End> {
        match self.take_up_pending().await {
            Ok(()) => self.gate.set_pending_error(None),
            Err(SweepError::End(end)) => return Err(end),
            Err(SweepError::Redis(RedisFailure::Down(why))) => return Err(End::Lost(why)),
            // The group is created again by the read that finds it missing.
            Err(SweepError::Redis(RedisFailure::Reply(ReplyError::Refused { text, .. })))
                if text.starts_with("NOGROUP") => {}
            Err(SweepError::Redis(RedisFailure::Reply(error))) => {
                self.gate.set_pending_error(Some(error.to_string()));
            }
        }
        Ok(())
    }

    async fn take_up_pending(&self) -> Result<(), SweepError> {
        let mut from = MessageId::ZERO;
        loop {
            let ids = self.redis.pending(from, PENDING_PAGE).await?;
            let Some(last) = ids.last() else { return Ok(()) };
            from = last.next();
            let full = ids.len() == PENDING_PAGE;
            let (answer, wait) = oneshot::channel();
            self.tell(Claim::Unheld(ids, answer)).await?;
            let mut unheld = wait.await.map_err(|_| End::Stopped)?;
            if !unheld.is_empty() {
                tracing::info!(messages = unheld.len(), "taking up messages that were left pending");
            }
            while !unheld.is_empty() {
                if self.disk_is_full() || self.gate.store_failing.load(Ordering::Relaxed) {
                    // What could not be stored is not run; the next look finds it again.
                    return Ok(());
                }
                let permits = self.take_permits(unheld.len().min(self.read_max)).await?;
                let ids: Vec<MessageId> = unheld.drain(..permits.num_permits().min(unheld.len())).collect();
                let entries = self.redis.entries(&ids).await?;
                let absent: Vec<MessageId> =
                    ids.iter().zip(&entries).filter(|(_, e)| e.is_none()).map(|(id, _)| *id).collect();
                self.give_up_trimmed(absent).await?;
                self.hand_over(entries.into_iter().flatten().collect(), permits).await?;
            }
            if !full {
                return Ok(());
            }
        }
    }

    /// A message whose entry is gone can't be run. Giving it up is final, so the server is asked twice.
    async fn give_up_trimmed(&self, absent: Vec<MessageId>) -> Result<(), SweepError> {
        if absent.is_empty() {
            return Ok(());
        }
        let again = self.redis.entries(&absent).await?;
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
        if full != self.gate.disk_full.swap(full, Ordering::Relaxed) {
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
