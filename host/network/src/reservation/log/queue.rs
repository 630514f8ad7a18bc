//! The queue of jobs in the event log, and the leases of the coordinators that share it.
//!
//! Every job without an end is in the queue at the position of its first fact. It has an owner while a coordinator works
//! on it: the token of that coordinator's lease (see `lease`). A coordinator that holds a lease may take the first jobs without an
//! owner; what belongs to a lease that is over gets free again. Facts of a job are appended by its owner alone,
//! but for its submission and its cancel.
//!
//! An SQLite file has one coordinator at a time, by a file lock that ends with its process. So its lease is never over,
//! and jobs of a former process are free as soon as the next one has the lock.

use tokio::sync::{broadcast, oneshot};

use super::error::LogError;
use super::{Log, LogStore, StoreRequest};
use crate::reservation::lease::{LeaseAnswer, LeaseClaimant};

/// Changes that are kept for a listener. One that lags behind looks at everything.
const KEPT_CHANGES: usize = 256;

/// Jobs that are to be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSelection {
    /// The first ones, at most so many.
    First(usize),
    /// The same, when no other coordinator holds a lease.
    FirstIfAlone(usize),
    /// This one.
    Only(String),
}

/// A job that was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenJob {
    pub position: i64,
    pub job_id: String,
    /// When it was taken, by the clock that writes the times of facts, in microseconds since 1970.
    pub at: i64,
}

/// A job that the queue assigns to a coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AssignedJob {
    pub job_id: String,
    pub is_cancelled: bool,
}

/// What has changed in the queue, as far as the store tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueChange {
    /// A job waits.
    Waiting,
    Cancelled(String),
    /// Changes may have been missed.
    Unknown,
}

/// What a store is asked about its queue.
pub enum QueueRequest {
    Acquire(LeaseClaimant, oneshot::Sender<Result<LeaseAnswer, LogError>>),
    /// Answered by whether the lease was not over.
    Renew(LeaseClaimant, oneshot::Sender<Result<bool, LogError>>),
    /// Ends a lease; its jobs are free.
    Release {
        peer_id: String,
        token: String,
        answer: oneshot::Sender<Result<(), LogError>>,
    },
    Take {
        token: String,
        which: JobSelection,
        answer: oneshot::Sender<Result<Vec<TakenJob>, LogError>>,
    },
    /// Frees the jobs of leases that are over; answered by their number.
    FreeAbandoned(oneshot::Sender<Result<usize, LogError>>),
    /// Frees these jobs of a coordinator.
    GiveBack {
        token: String,
        job_ids: Vec<String>,
        answer: oneshot::Sender<Result<(), LogError>>,
    },
    Assigned {
        token: String,
        answer: oneshot::Sender<Result<Vec<AssignedJob>, LogError>>,
    },
    /// The number of jobs without an owner.
    Waiting(oneshot::Sender<Result<usize, LogError>>),
}

impl QueueRequest {
    /// Answers it with an error.
    pub(super) fn fail(self, error: LogError) {
        match self {
            QueueRequest::Acquire(_, answer) => drop(answer.send(Err(error))),
            QueueRequest::Renew(_, answer) => drop(answer.send(Err(error))),
            QueueRequest::Release { answer, .. } | QueueRequest::GiveBack { answer, .. } => {
                drop(answer.send(Err(error)));
            }
            QueueRequest::Take { answer, .. } => drop(answer.send(Err(error))),
            QueueRequest::FreeAbandoned(answer) | QueueRequest::Waiting(answer) => {
                drop(answer.send(Err(error)));
            }
            QueueRequest::Assigned { answer, .. } => drop(answer.send(Err(error))),
        }
    }
}

/// Tells listeners what has changed.
pub(super) fn change_channel() -> broadcast::Sender<QueueChange> {
    broadcast::Sender::new(KEPT_CHANGES)
}

impl Log {
    /// Whether coordinators of other processes may use the same log.
    pub fn is_shared(&self) -> bool {
        matches!(self.store, LogStore::Postgres(_))
    }

    /// What changes in the queue by others. It may miss changes, so the queue is looked at now and then as well.
    pub fn queue_changes(&self) -> broadcast::Receiver<QueueChange> {
        if let LogStore::Postgres(store) = &self.store {
            store.listen();
        }
        self.changes.subscribe()
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, LogError>>) -> QueueRequest,
    ) -> Result<T, LogError> {
        let (answer, wait) = oneshot::channel();
        self.submit(StoreRequest::Queue(request(answer)))?;
        wait.await.map_err(|_| self.unanswered())?
    }

    /// Asks for the lease of a coordinator's identity.
    ///
    /// # Errors
    /// When the log can't be written, or another coordinator has an SQLite file.
    pub async fn acquire_lease(&self, claimant: &LeaseClaimant) -> Result<LeaseAnswer, LogError> {
        self.ask(|answer| QueueRequest::Acquire(claimant.clone(), answer)).await
    }

    /// Renews a lease; false when it was over before.
    ///
    /// # Errors
    /// When the log can't be written.
    pub async fn renew_lease(&self, claimant: &LeaseClaimant) -> Result<bool, LogError> {
        self.ask(|answer| QueueRequest::Renew(claimant.clone(), answer)).await
    }

    /// Ends a lease: its jobs are free for others.
    ///
    /// # Errors
    /// When the log can't be written.
    pub async fn release_lease(&self, peer_id: &str, token: &str) -> Result<(), LogError> {
        let (peer_id, token) = (peer_id.to_string(), token.to_string());
        self.ask(|answer| QueueRequest::Release { peer_id, token, answer }).await
    }

    /// Takes jobs that have no owner, for the holder of a lease; in the order of their submission.
    ///
    /// # Errors
    /// When the log can't be written.
    pub async fn take_jobs(&self, token: &str, which: JobSelection) -> Result<Vec<TakenJob>, LogError> {
        let token = token.to_string();
        let mut taken = self.ask(|answer| QueueRequest::Take { token, which, answer }).await?;
        taken.sort_by_key(|job| job.position);
        Ok(taken)
    }

    /// Frees the jobs of leases that are over; their number.
    ///
    /// # Errors
    /// When the log can't be written.
    pub async fn free_abandoned_jobs(&self) -> Result<usize, LogError> {
        self.ask(QueueRequest::FreeAbandoned).await
    }

    /// Frees jobs that were taken under this token.
    ///
    /// # Errors
    /// When the log can't be written.
    pub async fn give_back_jobs(&self, token: &str, job_ids: Vec<String>) -> Result<(), LogError> {
        let token = token.to_string();
        self.ask(|answer| QueueRequest::GiveBack { token, job_ids, answer }).await
    }

    /// The jobs that were taken under this token.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn assigned_jobs(&self, token: &str) -> Result<Vec<AssignedJob>, LogError> {
        let token = token.to_string();
        self.ask(|answer| QueueRequest::Assigned { token, answer }).await
    }

    /// How many jobs have no owner.
    ///
    /// # Errors
    /// When the log can't be read.
    pub async fn waiting_jobs(&self) -> Result<usize, LogError> {
        self.ask(QueueRequest::Waiting).await
    }
}
