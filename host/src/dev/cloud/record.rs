//! What the development cloud has seen, and how its behaviour is changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::Value;
use time::OffsetDateTime;

/// One webhook attempt.
#[derive(Debug, Clone)]
pub struct ReceivedWebhook {
    pub at: Instant,
    pub time: OffsetDateTime,
    pub job_id: Arc<str>,
    /// `completed` or `failed`; empty when the body has none.
    pub status: Arc<str>,
    pub body: Bytes,
    /// Whether the token was good, and why not.
    pub jwt: Result<(), &'static str>,
    /// 1 for the job's first attempt.
    pub attempt: u32,
    /// HTTP status; `None` when the connection was dropped or left hanging.
    pub answered: Option<u16>,
}

impl ReceivedWebhook {
    /// The body, null when it isn't JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

#[derive(Debug, Clone)]
pub struct ReceivedHeartbeat {
    pub at: Instant,
    pub body: Value,
    pub jwt: Result<(), &'static str>,
    pub answered: Option<u16>,
}

#[derive(Debug, Clone)]
pub struct ReceivedConnect {
    pub at: Instant,
    /// Whether a signed token was shown, by its two dots.
    pub jwt: bool,
    pub body: Value,
    pub answered: Option<u16>,
}

/// The deliveries of one job.
#[derive(Debug, Clone, Default)]
pub struct JobDeliveries {
    pub attempts: u32,
    /// Attempts that were answered 2xx.
    pub accepted: u32,
    pub accepted_at: Option<OffsetDateTime>,
    /// The first accepted body.
    pub body: Bytes,
}

/// A job sent through the development cloud itself.
#[derive(Debug, Clone)]
pub struct SubmittedJob {
    pub at: OffsetDateTime,
    pub message_id: String,
}

/// Everything seen since the start. Lists keep the newest `Options::keep` entries, counters count all.
#[derive(Debug, Default)]
pub struct DevCloudState {
    pub webhooks: Vec<ReceivedWebhook>,
    pub heartbeats: Vec<ReceivedHeartbeat>,
    pub connects: Vec<ReceivedConnect>,
    pub jobs: HashMap<Arc<str>, JobDeliveries>,
    pub submitted: HashMap<Arc<str>, SubmittedJob>,
    /// Webhook attempts in all.
    pub webhook_count: u64,
    /// Jobs with an accepted webhook.
    pub accepted_jobs: u64,
    /// Attempts whose token was not good.
    pub bad_tokens: u64,
    /// One-time tokens; true once used.
    pub(super) tokens: HashMap<String, bool>,
}

impl DevCloudState {
    pub fn accepted(&self, job_id: &str) -> bool {
        self.jobs.get(job_id).is_some_and(|job| job.accepted > 0)
    }

    /// A job's attempts, oldest first.
    pub fn attempts<'a>(&'a self, job_id: &'a str) -> impl Iterator<Item = &'a ReceivedWebhook> {
        self.webhooks.iter().filter(move |w| &*w.job_id == job_id)
    }

    /// Drops the older half of what is beyond the limit; jobs go with their last attempt.
    pub(super) fn trim(&mut self, keep: usize) {
        if self.webhooks.len() > keep.saturating_mul(2) {
            let gone: Vec<ReceivedWebhook> = self.webhooks.drain(..self.webhooks.len() - keep).collect();
            for webhook in gone {
                let last = self.jobs.get(&webhook.job_id).is_some_and(|j| j.attempts == webhook.attempt);
                if last {
                    self.jobs.remove(&webhook.job_id);
                    self.submitted.remove(&webhook.job_id);
                }
            }
        }
        if self.heartbeats.len() > keep.saturating_mul(2) {
            self.heartbeats.drain(..self.heartbeats.len() - keep);
        }
        if self.connects.len() > keep.saturating_mul(2) {
            self.connects.drain(..self.connects.len() - keep);
        }
    }
}

/// What a behaviour hook wants done with a request instead of the usual.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) end: End,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Option<String>,
    pub(super) latency: Duration,
    pub(super) processed: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// As if there were no hook; only the latency is the hook's.
    Usual,
    Status(u16),
    Drop,
    Hang,
}

impl Answer {
    fn new(end: End) -> Answer {
        Answer { end, headers: Vec::new(), body: None, latency: Duration::ZERO, processed: false }
    }

    /// The usual answer; with [`Answer::after`] a slow one.
    pub fn usual() -> Answer {
        Answer::new(End::Usual)
    }

    /// This status instead. A 2xx for a webhook counts as accepted.
    pub fn status(status: u16) -> Answer {
        Answer::new(End::Status(status))
    }

    /// The request is read, then the connection closed without an answer.
    pub fn drop_connection() -> Answer {
        Answer::new(End::Drop)
    }

    /// The connection stays open without an answer until the client gives up.
    pub fn hang() -> Answer {
        Answer::new(End::Hang)
    }

    pub fn header(mut self, name: &str, value: &str) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    pub fn body(mut self, body: impl Into<String>) -> Answer {
        self.body = Some(body.into());
        self
    }

    /// Waits before it answers, drops or hangs.
    pub fn after(mut self, latency: Duration) -> Answer {
        self.latency = latency;
        self
    }

    /// The request takes its effect first (a token is used up, a result counts as accepted), and only the
    /// answer goes wrong.
    pub fn having_processed(mut self) -> Answer {
        self.processed = true;
        self
    }
}

/// `None`: the usual answer.
pub type Hook<T> = Arc<dyn Fn(&T) -> Option<Answer> + Send + Sync>;
/// Changes a bundle before it is sent.
pub type BundleEdit = Arc<dyn Fn(&mut Value) + Send + Sync>;

#[derive(Clone, Default)]
pub(super) struct Hooks {
    pub(super) webhook: Option<Hook<ReceivedWebhook>>,
    pub(super) heartbeat: Option<Hook<ReceivedHeartbeat>>,
    pub(super) connect: Option<Hook<ReceivedConnect>>,
    pub(super) bundle: Option<BundleEdit>,
}
