//! What is left of jobs: reservations of one that a former process or another coordinator has begun, peers of cancelled
//! ones, reservations whose time is over.
//!
//! A job that goes on has its open reservations ended in the log and cancelled at their peers, in case they still hold a
//! slot. A cancelled job is not run; its peers are told until they know, or can't hold a slot for it any more. Peers
//! take a cancel from the coordinator that made the reservation alone: what another one has left is ended in the log, and
//! at its peer by its ttl, for which nothing waits.

use std::time::{Duration, Instant};

use super::expiry::{OpenTime, ReservationExpiry};
use super::job_view::{JobProgress, JobStatus};
use super::live_jobs::{JobOwnership, LiveJob};
use super::service::Service;
use crate::model::cut;
use crate::peers::wire::MAX_REASON;
use crate::reservation::event::Transition;
use crate::reservation::journal::JobFact;
use crate::reservation::ledger::ReservationCommand;
use crate::reservation::log::{AppendError, LogError, OpenReservation, now_micros};

/// Why a restart cancels a reservation.
const STOPPED: &str = "the coordinator was stopped in the middle of the job";

/// A reservation that has ended in the log, and may hold a slot at its peer.
struct ClosedReservation {
    peer_id: String,
    reservation_id: String,
}

impl Service {
    /// Ends a job here of which nothing goes on: its view is that of the log. When it is cancelled its peers are told;
    /// otherwise it is another coordinator's, and this returns false.
    pub(super) async fn end_interrupted(&self, live: &LiveJob, ownership: JobOwnership) -> bool {
        let job_id = ownership.job_id.clone();
        let ended = async {
            let facts = self.runner.log.job_facts(&job_id).await?;
            let progress = JobProgress::from_facts(&facts);
            if progress.status != JobStatus::Cancelled {
                return Ok(None);
            }
            if live.view.borrow().status != JobStatus::Cancelled {
                // Someone else has cancelled it, in the log that this coordinator shares with others.
                live.view.send_replace(progress);
            }
            self.release(ownership, &facts).await.map(Some)
        };
        let ended: Result<Option<usize>, LogError> = ended.await;
        match ended {
            Ok(Some(reservations)) => {
                tracing::info!(job_id, reservations, "the job is cancelled; its peers are told");
                true
            }
            Ok(None) => {
                tracing::info!(
                    job_id,
                    "the job does not go on here: another coordinator may take it, or has it"
                );
                false
            }
            Err(error) => {
                tracing::warn!(job_id, %error, "the job does not go on here");
                false
            }
        }
    }

    /// Ends the reservations of a cancelled job in the log, and tells their peers in the background; their number. When
    /// that is done it is recorded: until then the coordinator that takes the job does it again.
    pub(super) async fn release(
        &self,
        ownership: JobOwnership,
        facts: &[(i64, JobFact)],
    ) -> Result<usize, LogError> {
        let reason = facts.iter().rev().find_map(|(_, fact)| match fact {
            JobFact::Cancelled { reason } => Some(cut(reason, MAX_REASON).to_string()),
            _ => None,
        });
        let reason = reason.unwrap_or_else(|| STOPPED.into());
        let open = self.close_reservations(facts, &reason).await?;
        let (number, service) = (open.len(), self.clone());
        self.runner.tasks.spawn(async move {
            let runner = &service.runner;
            let cancels = open
                .iter()
                .map(|r| runner.cancel_insisting(&r.peer_id, &r.reservation_id, &reason, &service.stop));
            let is_complete = futures::future::join_all(cancels).await.into_iter().all(|arrived| arrived);
            if !is_complete {
                return;
            }
            let JobOwnership { job_id, token, .. } = &ownership;
            if let Err(error) = runner.log.record_own_job(job_id, token, JobFact::Released).await {
                tracing::debug!(job_id, %error, "the release of its peers is not recorded");
                service.stray_job();
            }
        });
        Ok(number)
    }

    /// Ends the reservations that a job left open before it is resumed, and tells their peers in the background.
    pub(super) async fn free_peers(&self, facts: &[(i64, JobFact)]) -> Result<(), LogError> {
        for closed in self.close_reservations(facts, STOPPED).await? {
            let (runner, stop) = (self.runner.clone(), self.stop.clone());
            self.runner.tasks.spawn(async move {
                runner.cancel_insisting(&closed.peer_id, &closed.reservation_id, STOPPED, &stop).await;
            });
        }
        Ok(())
    }

    /// Ends in the log what a job left open, and returns every reservation whose peer may not know its end and would take a
    /// cancel from this coordinator.
    async fn close_reservations(
        &self,
        facts: &[(i64, JobFact)],
        reason: &str,
    ) -> Result<Vec<ClosedReservation>, LogError> {
        let mut closed = Vec::new();
        let me = self.runner.network.peer_id();
        for (_, fact) in facts {
            let JobFact::Attempted { peer_id, reservation_id, .. } = fact else { continue };
            let Some(state) = self.runner.log.state(reservation_id).await? else { continue };
            let is_completed = matches!(&state.execution, Some(e) if e.outcome == Some(Ok(())));
            // Only the peer's own word frees its slot for sure: an end that was recorded here comes before the cancel
            // that tells the peer, and that one may not have left any more.
            if is_completed || state.transition == Transition::Rejected {
                continue;
            }
            self.close(reservation_id, state.execution.map(|e| e.execution_id), reason).await?;
            if state.request.requesting_peer_id != me {
                continue;
            }
            let (peer_id, reservation_id) = (peer_id.clone(), reservation_id.clone());
            closed.push(ClosedReservation { peer_id, reservation_id });
        }
        Ok(closed)
    }

    /// Ends a reservation in the log, as far as it isn't.
    async fn close(&self, id: &str, execution: Option<String>, reason: &str) -> Result<(), LogError> {
        let command = match execution {
            Some(execution_id) => ReservationCommand::Fail { execution_id, error: reason.into() },
            None => ReservationCommand::Cancel { reason: reason.into() },
        };
        match self.runner.log.execute(id, command).await {
            Err(AppendError::Log(error)) => Err(error),
            // A committed one is terminal without more.
            _ => Ok(()),
        }
    }

    /// Looks after reservations whose time is over, and after a log that could not be written, until stopped.
    pub async fn expire(self) {
        let mut tick = tokio::time::interval(self.limits.expiry_interval);
        let (start, mut expiry) = (Instant::now(), ReservationExpiry::default());
        let mut is_failing = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.stop.cancelled() => return,
            }
            match self.expire_once(&mut expiry, start.elapsed()).await {
                Ok(()) => is_failing = false,
                // Said once; `/ready` says it as long as it is so.
                Err(error) if !is_failing => {
                    is_failing = true;
                    tracing::warn!(%error, "expired reservations can't be looked for");
                }
                Err(_) => {}
            }
            // A coordinator that says in `/ready` that it can't record is sent no job, whose record would show that it
            // can again.
            if !self.runner.log.is_writable()
                && let Err(error) = self.runner.log.check_write().await
            {
                tracing::debug!(%error, "the event log can't be written yet");
            }
        }
    }

    /// Records the end of the reservations whose time is over.
    async fn expire_once(&self, expiry: &mut ReservationExpiry, now: Duration) -> Result<(), LogError> {
        let log = &self.runner.log;
        let (mut open, mut new) = (Vec::new(), Vec::new());
        for OpenReservation { reservation_id, until } in log.open_reservations().await? {
            if !expiry.is_known(&reservation_id)
                && let Some(state) = log.state(&reservation_id).await?
            {
                let left = u64::try_from(until.saturating_sub(now_micros())).unwrap_or(0);
                new.push(OpenTime {
                    reservation_id: reservation_id.clone(),
                    ttl: Duration::from_secs(state.request.ttl_seconds),
                    left: Duration::from_micros(left),
                });
            }
            open.push(reservation_id);
        }
        for id in expiry.look(now, &open, new) {
            match log.execute(&id, ReservationCommand::Expire).await {
                Ok(_) => tracing::info!(reservation = id, "it was not committed in time and has expired"),
                // It came to its end just now.
                Err(error) => tracing::debug!(reservation = id, %error, "not expired"),
            }
        }
        Ok(())
    }
}
