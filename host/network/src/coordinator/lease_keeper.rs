//! Keeps the lease of this coordinator's identity: granted at the start, renewed at an interval, asked for again after it
//! was lost. Without it this coordinator runs no job.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::fallback::uuid4;
use super::live_jobs::LiveJobs;
use crate::reservation::lease::{LeaseAnswer, LeaseClaimant, LeaseTerm};
use crate::reservation::log::{Log, LogError};

/// Pause before a renewal or an acquisition that failed is tried again, at most.
const RETRY: Duration = Duration::from_secs(1);

/// The handle; clones share the lease.
#[derive(Clone)]
pub struct LeaseKeeper {
    log: Log,
    peer_id: Arc<str>,
    holder: Arc<str>,
    lease: Duration,
    state: watch::Sender<LeaseState>,
    start: Instant,
}

/// Whether the lease is held.
#[derive(Debug, Clone)]
pub(super) enum LeaseState {
    Held(LeaseTerm),
    /// Why.
    Lost(String),
}

impl LeaseKeeper {
    /// Asks for the lease at the start. While a former process may have it, waits until that one's time is over; a process
    /// that lives renews it meanwhile. None when it was stopped.
    ///
    /// # Errors
    /// When another coordinator has the lease, or the log can't be written.
    pub async fn acquire(
        log: Log,
        peer_id: String,
        holder: String,
        lease: Duration,
        stop: &CancellationToken,
    ) -> Result<Option<LeaseKeeper>, LogError> {
        let state = watch::Sender::new(LeaseState::Lost("it was not asked for yet".into()));
        let (peer_id, holder) = (peer_id.into(), holder.into());
        let keeper = LeaseKeeper { log, peer_id, holder, lease, state, start: Instant::now() };
        let mut first_until = None;
        loop {
            let left = match keeper.ask().await? {
                LeaseAnswer::Granted => return Ok(Some(keeper)),
                LeaseAnswer::Held { left, until } => {
                    if *first_until.get_or_insert(until) != until {
                        return Err(keeper.held_by_another());
                    }
                    left
                }
            };
            tracing::info!(?left, "the lease of this identity is not over yet; waiting for its end");
            // Someone who lives renews it well before it ends.
            let pause = left.min(lease / 6).max(Duration::from_millis(10));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return Ok(None),
            }
        }
    }

    fn held_by_another(&self) -> LogError {
        LogError::Leased { location: self.log.location().into(), peer_id: self.peer_id.to_string() }
    }

    fn claimant(&self, token: String) -> LeaseClaimant {
        let (peer_id, holder) = (self.peer_id.to_string(), self.holder.to_string());
        LeaseClaimant { peer_id, token, holder, lease: self.lease }
    }

    /// Asks for a new lease.
    async fn ask(&self) -> Result<LeaseAnswer, LogError> {
        let (token, asked_at) = (uuid4(), self.start.elapsed());
        let answer = self.log.acquire_lease(&self.claimant(token.clone())).await?;
        if answer == LeaseAnswer::Granted {
            self.state.send_replace(LeaseState::Held(LeaseTerm::new(token, self.lease, asked_at)));
        }
        Ok(answer)
    }

    /// The token of the lease; none while this coordinator does not hold it.
    pub fn token(&self) -> Option<String> {
        self.term().map(|term| term.token)
    }

    fn term(&self) -> Option<LeaseTerm> {
        match &*self.state.borrow() {
            // A file is locked for as long as the process lives.
            LeaseState::Held(term) if !self.log.is_shared() || !term.is_over(self.start.elapsed()) => {
                Some(term.clone())
            }
            LeaseState::Held(_) | LeaseState::Lost(_) => None,
        }
    }

    /// Why this coordinator does not hold the lease; none when it does.
    pub fn lost(&self) -> Option<String> {
        match &*self.state.borrow() {
            LeaseState::Lost(why) => Some(why.clone()),
            LeaseState::Held(_) => self.term().is_none().then(|| "it was not renewed in time".into()),
        }
    }

    /// Changes with each lease that is granted or lost.
    pub(super) fn changes(&self) -> watch::Receiver<LeaseState> {
        self.state.subscribe()
    }

    /// Renews the lease until stopped. When it is over nothing of any job goes on here.
    pub(super) async fn keep(self, jobs: LiveJobs, stop: CancellationToken) {
        if !self.log.is_shared() {
            return stop.cancelled().await;
        }
        tokio::select! {
            () = self.renew(&jobs) => {}
            () = stop.cancelled() => {}
        }
    }

    async fn renew(&self, jobs: &LiveJobs) {
        let mut failure = None;
        loop {
            let Some(mut term) = self.term() else {
                self.lose(jobs, failure.take());
                self.ask_again().await;
                continue;
            };
            let pause = match &failure {
                None => term.renew_interval(),
                Some(_) => RETRY.min(term.renew_interval() / 4),
            };
            let end = term.ends_at().saturating_sub(self.start.elapsed());
            tokio::time::sleep(pause.min(end)).await;
            let (asked_at, end) = (self.start.elapsed(), term.ends_at().saturating_sub(self.start.elapsed()));
            let claimant = self.claimant(term.token.clone());
            match tokio::time::timeout(end, self.log.renew_lease(&claimant)).await {
                Ok(Ok(true)) => {
                    failure = None;
                    term.renewed(asked_at);
                    // A renewal is no news for those who wait for the lease.
                    self.state.send_if_modified(|state| {
                        *state = LeaseState::Held(term);
                        false
                    });
                }
                Ok(Ok(false)) => {
                    let why = "its time was over before it was renewed".to_string();
                    self.state.send_replace(LeaseState::Lost(why.clone()));
                    failure = Some(why);
                }
                Ok(Err(error)) => failure = Some(error.to_string()),
                Err(_) => failure = Some("the event log did not answer in time".into()),
            }
        }
    }

    /// Takes note of a lease that is over.
    fn lose(&self, jobs: &LiveJobs, why: Option<String>) {
        let why = why.unwrap_or_else(|| "it was not renewed in time".into());
        let jobs = jobs.interrupt_all();
        tracing::warn!(
            jobs,
            why,
            "the lease of this coordinator is over: its jobs are stopped here, and others may take them"
        );
        self.state.send_replace(LeaseState::Lost(why));
    }

    /// Asks for the lease until it is granted.
    async fn ask_again(&self) {
        loop {
            let why = match self.ask().await {
                Ok(LeaseAnswer::Granted) => {
                    tracing::info!("this coordinator has its lease again, and takes jobs");
                    return;
                }
                Ok(LeaseAnswer::Held { .. }) => self.held_by_another().to_string(),
                Err(error) => error.to_string(),
            };
            let is_new = !matches!(&*self.state.borrow(), LeaseState::Lost(known) if *known == why);
            if is_new {
                tracing::warn!(why, "the lease of this coordinator is not granted; it is asked for again");
                self.state.send_replace(LeaseState::Lost(why));
            }
            tokio::time::sleep(RETRY.min(self.lease / 4)).await;
        }
    }

    /// Ends the lease at the end of the process: others may take its jobs at once.
    pub(super) async fn release(&self, limit: Duration) {
        let Some(token) = self.token() else { return };
        let releasing = self.log.release_lease(&self.peer_id, &token);
        match tokio::time::timeout(limit, releasing).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, "the lease could not be released; it ends by its time");
            }
            Err(_) => tracing::warn!("the lease was not released within {limit:?}; it ends by its time"),
        }
    }
}
