//! Waiting for a job: until it ends, or event by event.
//!
//! Events come from memory while the job runs here. Those who come late, lag behind, or follow a job of another
//! coordinator on the same log, reads the log instead; so nothing grows with a reader that does not read. A stop of the
//! service ends every wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::job;
use super::job_events::{EventOrder, JobEvent};
use super::job_view::JobProgress;
use super::service::Service;
use crate::reservation::log::LogError;

/// How often the log is read for a job that runs elsewhere.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// How long an event that is missing may come late before the log is read for it.
const LATE: Duration = Duration::from_millis(50);

/// So many requests wait for jobs already.
#[derive(Debug, thiserror::Error)]
#[error("{0} requests wait for jobs already; ask again without waiting, or later")]
pub struct TooManyWatchers(pub usize);

/// The right to wait for a job. Waiting requests are bounded, so that they leave connections for others.
#[derive(Debug)]
pub struct WatchPermit(#[expect(dead_code, reason = "held until it is dropped")] OwnedSemaphorePermit);

impl Service {
    /// The right to wait for a job.
    ///
    /// # Errors
    /// When too many requests wait.
    pub fn watch_permit(&self) -> Result<WatchPermit, TooManyWatchers> {
        let permit = Semaphore::try_acquire_owned(self.watchers.clone());
        permit.map(WatchPermit).map_err(|_| TooManyWatchers(self.limits.watchers))
    }

    /// Waits until a job has ended, at most so long. Returns at once when the job is unknown.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn wait_for_end(
        &self,
        job_id: &str,
        limit: Duration,
        _permit: &WatchPermit,
    ) -> Result<(), LogError> {
        let waiting = async {
            let mut arrivals = self.jobs.arrivals();
            loop {
                if let Some(live) = self.jobs.get(job_id) {
                    let mut view = live.view.subscribe();
                    tokio::select! {
                        // The sender is held here, so this is no error.
                        _ = view.wait_for(JobProgress::has_ended) => return Ok(()),
                        () = live.left.cancelled() => {}
                    }
                }
                let job = job::from_log(&self.runner.log, job_id).await?;
                if job.is_none_or(|job| job.has_ended()) {
                    return Ok(());
                }
                self.arrival(job_id, &mut arrivals).await;
            }
        };
        tokio::select! {
            waited = waiting => waited,
            () = tokio::time::sleep(limit) => Ok(()),
            () = self.stop.cancelled() => Ok(()),
        }
    }

    /// Waits until a job begins to run here, at most until the log is to be read again.
    async fn arrival(&self, job_id: &str, arrivals: &mut watch::Receiver<()>) {
        let arriving = async {
            while self.jobs.get(job_id).is_none() {
                // The service holds the sender.
                arrivals.changed().await.ok();
            }
        };
        if tokio::time::timeout(LOOK_AGAIN, arriving).await.is_err() {
            tracing::trace!(job_id, "it does not run here");
        }
    }

    /// Follows a job behind the event with this id.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn follow(
        &self,
        job_id: &str,
        after: i64,
        permit: WatchPermit,
    ) -> Result<Option<JobFollower>, LogError> {
        // Before the log is read: what happens meanwhile is in one of both.
        let arrivals = self.jobs.arrivals();
        let live = self.subscribe(job_id);
        let mut follower = JobFollower {
            service: self.clone(),
            job_id: job_id.into(),
            order: EventOrder::after(after),
            live,
            arrivals,
            _permit: permit,
        };
        Ok(follower.read_log().await?.then_some(follower))
    }

    /// The events of a job that runs here, from now on.
    fn subscribe(&self, job_id: &str) -> Option<Receiver<Arc<JobEvent>>> {
        self.jobs.get(job_id).map(|live| live.events.subscribe())
    }
}

/// A reader of one job's events.
pub struct JobFollower {
    service: Service,
    job_id: String,
    order: EventOrder,
    /// None: the job does not run here.
    live: Option<Receiver<Arc<JobEvent>>>,
    arrivals: watch::Receiver<()>,
    _permit: WatchPermit,
}

impl JobFollower {
    /// Whether the reader knows everything, and nothing will follow.
    pub fn is_over(&self) -> bool {
        self.order.has_ended() && !self.order.is_ready()
    }

    /// The next event; none when the job has ended, the service stops, or the log can't be read. May be dropped while it
    /// waits.
    pub async fn next(&mut self) -> Option<Arc<JobEvent>> {
        loop {
            if let Some(event) = self.order.take() {
                return Some(event);
            }
            if self.order.has_ended() || self.service.stop.is_cancelled() {
                return None;
            }
            let stop = self.service.stop.clone();
            let must_read = tokio::select! {
                must_read = self.wait() => must_read,
                () = stop.cancelled() => return None,
            };
            if must_read && let Err(error) = self.read_log().await {
                tracing::warn!(job_id = self.job_id, %error, "an event stream ends");
                return None;
            }
        }
    }

    /// Waits for news. Returns whether they are in the log.
    async fn wait(&mut self) -> bool {
        let Some(live) = &mut self.live else {
            self.service.arrival(&self.job_id, &mut self.arrivals).await;
            // Before the log is read, which has what came before.
            self.live = self.service.subscribe(&self.job_id);
            return true;
        };
        let late = if self.order.has_gap() { LATE } else { Duration::MAX };
        match tokio::time::timeout(late, live.recv()).await {
            Ok(Ok(event)) => {
                self.order.add(event);
                self.order.is_crowded()
            }
            Ok(Err(RecvError::Lagged(_))) | Err(_) => true,
            Ok(Err(RecvError::Closed)) => {
                self.live = None;
                true
            }
        }
    }

    /// Takes what the log has. Returns whether it has the job.
    async fn read_log(&mut self) -> Result<bool, LogError> {
        let facts = self.service.runner.log.job_facts(&self.job_id).await?;
        self.order.add_facts(&self.job_id, &facts);
        Ok(!facts.is_empty())
    }
}
