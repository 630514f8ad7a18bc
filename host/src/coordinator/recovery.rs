//! What is left of jobs: open ones after a restart, peers of cancelled ones, reservations whose time is over.
//!
//! After a restart the log says which reservations were open and which jobs had no end. Those reservations are
//! cancelled at their peers, in case they still hold a slot, and in the log; those jobs are run within their deadline, from
//! the last stage whose states are in the log or from their start. A cancelled job is not run; its peers are told until
//! they know, or can't hold a slot for it any more.

use std::time::{Duration, Instant};

use super::expiry::{OpenTime, ReservationExpiry};
use super::job_view::{JobProgress, JobStatus};
use super::resume::JobStart;
use super::service::{AcceptedJob, JobSource, LiveJob, Service};
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
    /// Goes on with the jobs that a former process left open. Before the first new job.
    ///
    /// # Errors
    /// When the log can't be read or written.
    pub async fn recover(&self) -> Result<(), LogError> {
        let log = &self.runner.log;
        let me = self.runner.network.peer_id();
        let mut open = Vec::new();
        for job_id in log.open_jobs().await? {
            let facts = log.job_facts(&job_id).await?;
            // Another coordinator on the same log looks after its own.
            let own = |f: &JobFact| matches!(f, JobFact::Submitted { coordinator, .. } if *coordinator == me);
            if facts.iter().any(|(_, f)| own(f)) {
                open.push((job_id, facts));
            }
        }
        // In the order in which they were accepted.
        open.sort_by_key(|(_, facts)| facts.first().map(|(at, _)| *at));
        let (jobs, mut reservations) = (open.len(), 0);
        for (job_id, facts) in open {
            let is_cancelled = facts.iter().any(|(_, fact)| matches!(fact, JobFact::Cancelled { .. }));
            if is_cancelled {
                reservations += self.release(&job_id, &facts).await?;
                continue;
            }
            for closed in self.close_reservations(&facts, STOPPED).await? {
                reservations += 1;
                let (runner, stop) = (self.runner.clone(), self.stop.clone());
                self.runner.tasks.spawn(async move {
                    runner.cancel_insisting(&closed.peer_id, &closed.reservation_id, STOPPED, &stop).await;
                });
            }
            self.resume(job_id, facts).await?;
        }
        if jobs > 0 {
            tracing::warn!(
                jobs,
                reservations,
                "a former coordinator was stopped in the middle of jobs: their reservations are cancelled, and those that are not \
                 cancelled go on"
            );
        }
        Ok(())
    }

    /// Ends a job that is cancelled: its view is that of the log, and its peers are told.
    pub(super) async fn end_cancelled(&self, job_id: &str, live: &LiveJob) {
        let ended = async {
            let facts = self.runner.log.job_facts(job_id).await?;
            if live.view.borrow().status != JobStatus::Cancelled {
                // Someone else has cancelled it, in the log that this coordinator shares with others.
                live.view.send_replace(JobProgress::from_facts(&facts));
            }
            self.release(job_id, &facts).await
        };
        match ended.await {
            Ok(reservations) => {
                tracing::info!(job_id, reservations, "the job is cancelled; its peers are told")
            }
            Err(error) => {
                tracing::warn!(job_id, %error, "the peers of a cancelled job are told after a restart");
            }
        }
    }

    /// Ends the reservations of a cancelled job in the log, and tells their peers in the background; their number. When
    /// that is done it is recorded: until then a restart does it again.
    async fn release(&self, job_id: &str, facts: &[(i64, JobFact)]) -> Result<usize, LogError> {
        let reason = facts.iter().rev().find_map(|(_, fact)| match fact {
            JobFact::Cancelled { reason } => Some(cut(reason, MAX_REASON).to_string()),
            _ => None,
        });
        let reason = reason.unwrap_or_else(|| STOPPED.into());
        let open = self.close_reservations(facts, &reason).await?;
        let (number, service, job_id) = (open.len(), self.clone(), job_id.to_string());
        self.runner.tasks.spawn(async move {
            let runner = &service.runner;
            let cancels = open
                .iter()
                .map(|r| runner.cancel_insisting(&r.peer_id, &r.reservation_id, &reason, &service.stop));
            let is_complete = futures::future::join_all(cancels).await.into_iter().all(|arrived| arrived);
            if !is_complete {
                return;
            }
            if let Err(error) = runner.log.record_job(&job_id, JobFact::Released).await {
                tracing::debug!(job_id, %error, "the release of its peers is not recorded");
            }
        });
        Ok(number)
    }

    /// Ends in the log what a job left open, and returns every reservation whose peer may not know its end.
    async fn close_reservations(
        &self,
        facts: &[(i64, JobFact)],
        reason: &str,
    ) -> Result<Vec<ClosedReservation>, LogError> {
        let mut closed = Vec::new();
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
            let (peer_id, reservation_id) = (peer_id.clone(), reservation_id.clone());
            closed.push(ClosedReservation { peer_id, reservation_id });
        }
        Ok(closed)
    }

    /// Runs a job of a former process from where it was.
    async fn resume(&self, job_id: String, facts: Vec<(i64, JobFact)>) -> Result<(), LogError> {
        let Some((submitted_at, JobFact::Submitted { qasm, shots, options, .. })) = facts.first().cloned()
        else {
            return Ok(());
        };
        let mut view = JobProgress::from_facts(&facts);
        let start = JobStart::from_facts(facts.iter().map(|(_, fact)| fact));
        let resumed = JobFact::Resumed { stages: start.stages };
        match self.runner.log.record_job(&job_id, resumed.clone()).await {
            Ok(_) => view.apply(now_micros(), &resumed),
            Err(AppendError::Log(error)) => return Err(error),
            // It has an end by now.
            Err(_) => return Ok(()),
        }
        self.spawn_resumed(
            AcceptedJob { job_id, source: JobSource::Text(qasm), shots, options, submitted_at, start },
            view,
        );
        Ok(())
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
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = self.stop.cancelled() => return,
            }
            if let Err(error) = self.expire_once(&mut expiry, start.elapsed()).await {
                tracing::warn!(%error, "expired reservations could not be looked for");
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
