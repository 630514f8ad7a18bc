//! Follows every job on the QPU's stream, whoever sent it, from its status hash and the webhooks seen.
//!
//! It only reads, over a separate connection, often enough to appear live. The times that it reports are those of the
//! states themselves.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::streams::{StreamRangeReply, StreamReadReply};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::cloud::DevCloud;
use crate::model::MessageId;

/// How long a read waits for a new job while no job is followed.
const BLOCK_MS: u32 = 200;
/// Pause between two reads of the followed jobs.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const REDIS_LIMIT: Duration = Duration::from_secs(5);
/// Number of new messages, and of followed jobs, that are read at once.
const AT_ONCE: usize = 500;
/// A finished job whose result goes elsewhere is no longer looked at after this time.
const FORGET: Duration = Duration::from_secs(60);
/// A webhook may be seen before the status that precedes it; the status is waited for this long.
const STATUS_LAG: Duration = Duration::from_secs(1);
/// Status fields that hold a state's time.
const STATES: [(&str, &str); 4] = [
    ("started_at", "executing"),
    ("completed_at", "completed"),
    ("failed_at", "failed"),
    ("cancelled_at", "cancelled"),
];

/// A job has reached a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    pub job_id: String,
    pub state: &'static str,
    /// Since it was queued; `None` when the time can't be read.
    pub after: Option<time::Duration>,
    /// The error of a failed job.
    pub error: Option<String>,
}

struct Active {
    job_id: String,
    queued: OffsetDateTime,
    reported: Vec<&'static str>,
    /// When the end of the job was seen first.
    ended: Option<Instant>,
}

/// The jobs of one development cloud.
pub struct Follower {
    redis: ConnectionManager,
    stream: String,
    last: MessageId,
    active: BTreeMap<MessageId, Active>,
}

impl Follower {
    /// Follows the jobs that come from now on.
    ///
    /// # Errors
    /// Redis doesn't answer.
    pub async fn new(redis_url: &str, qpu_id: &str) -> Result<Follower, redis::RedisError> {
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(REDIS_LIMIT))
            .set_connection_timeout(Some(REDIS_LIMIT));
        let client = redis::Client::open(redis_url)?;
        let mut redis = ConnectionManager::new_with_config(client, config).await?;
        let stream = format!("qpu:{qpu_id}:jobs");
        let mut newest = redis::cmd("XREVRANGE");
        newest.arg(&stream).arg("+").arg("-").arg("COUNT").arg(1);
        let newest: StreamRangeReply = newest.query_async(&mut redis).await?;
        let last = newest.ids.first().and_then(|e| e.id.parse().ok()).unwrap_or(MessageId::ZERO);
        Ok(Follower { redis, stream, last, active: BTreeMap::new() })
    }

    /// Waits for the next changes, and returns at least one.
    ///
    /// # Errors
    /// Redis fails. The follower can be used again.
    pub async fn next(&mut self, cloud: &DevCloud) -> Result<Vec<StateChange>, redis::RedisError> {
        loop {
            let mut moved = self.arrivals(cloud).await?;
            moved.extend(self.state_changes(cloud).await?);
            if !moved.is_empty() {
                return Ok(moved);
            }
            if !self.active.is_empty() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    async fn arrivals(&mut self, cloud: &DevCloud) -> Result<Vec<StateChange>, redis::RedisError> {
        let mut read = redis::cmd("XREAD");
        read.arg("COUNT").arg(AT_ONCE);
        if self.active.is_empty() {
            read.arg("BLOCK").arg(BLOCK_MS);
        }
        read.arg("STREAMS").arg(&self.stream).arg(self.last.to_string());
        let reply: Option<StreamReadReply> = read.query_async(&mut self.redis).await?;
        let mut moved = Vec::new();
        for entry in reply.into_iter().flat_map(|r| r.keys).flat_map(|k| k.ids) {
            let Ok(id) = entry.id.parse::<MessageId>() else { continue };
            self.last = id;
            // One without an id has no way to be followed.
            let Some(job_id) = entry.get::<String>("job_id") else { continue };
            // A message's id holds milliseconds; jobs sent through the cloud have a finer time.
            let sent = cloud.state().submitted.get(job_id.as_str()).map(|s| s.at);
            let Some(queued) = sent
                .or_else(|| OffsetDateTime::from_unix_timestamp_nanos(i128::from(id.ms) * 1_000_000).ok())
            else {
                continue;
            };
            let after = Some(time::Duration::ZERO);
            moved.push(StateChange { job_id: job_id.clone(), state: "queued", after, error: None });
            self.active.insert(id, Active { job_id, queued, reported: vec![], ended: None });
        }
        Ok(moved)
    }

    async fn state_changes(&mut self, cloud: &DevCloud) -> Result<Vec<StateChange>, redis::RedisError> {
        if self.active.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        let mut ids = Vec::new();
        for (id, job) in self.active.iter().take(AT_ONCE) {
            pipeline.cmd("HGETALL").arg(format!("qpu:job:{}:status", job.job_id));
            ids.push(*id);
        }
        let hashes: Vec<HashMap<String, String>> = pipeline.query_async(&mut self.redis).await?;
        let mut moved = Vec::new();
        for (id, hash) in ids.into_iter().zip(hashes) {
            let Some(job) = self.active.get_mut(&id) else { continue };
            let accepted = cloud.state().jobs.get(job.job_id.as_str()).and_then(|j| j.accepted_at);
            if job.update(id, &hash, accepted, &mut moved) {
                self.active.remove(&id);
            }
        }
        Ok(moved)
    }
}

impl Active {
    /// Adds the new states to `moved`. Returns whether no other state will follow.
    fn update(
        &mut self,
        id: MessageId,
        hash: &HashMap<String, String>,
        accepted: Option<OffsetDateTime>,
        moved: &mut Vec<StateChange>,
    ) -> bool {
        // A job id that was used before has a hash of an earlier message.
        let ours = hash.get("message_id").is_none_or(|m| *m == id.to_string());
        for (field, state) in STATES.iter().filter(|_| ours) {
            let Some(at) = hash.get(*field) else { continue };
            let at = OffsetDateTime::parse(at, &Rfc3339).ok();
            // Fields are merged, so a field of an earlier run remains.
            let earlier = at.is_some_and(|at| at + Duration::from_secs(1) < self.queued);
            if !earlier && !self.reported.contains(state) {
                let error = if *state == "failed" { hash.get("error").cloned() } else { None };
                moved.push(self.reached(state, at, error));
            }
        }
        let ended = ["completed", "failed", "cancelled"].iter().any(|s| self.reported.contains(s));
        let accepted = accepted.filter(|at| *at >= self.queued);
        if ended || accepted.is_some() {
            self.ended.get_or_insert_with(Instant::now);
        }
        let since_end = self.ended.map_or(Duration::ZERO, |at| at.elapsed());
        if let Some(at) = accepted.filter(|_| ended || since_end > STATUS_LAG) {
            moved.push(self.reached("delivered", Some(at), None));
            return true;
        }
        self.reported.contains(&"cancelled") || since_end > FORGET
    }

    fn reached(
        &mut self,
        state: &'static str,
        at: Option<OffsetDateTime>,
        error: Option<String>,
    ) -> StateChange {
        self.reported.push(state);
        let after = at.map(|at| (at - self.queued).max(time::Duration::ZERO));
        StateChange { job_id: self.job_id.clone(), state, after, error }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    const QUEUED: OffsetDateTime = datetime!(2026-01-01 0:00:00 UTC);
    const ID: MessageId = MessageId { ms: 5, seq: 0 };

    fn job() -> Active {
        Active { job_id: "j".into(), queued: QUEUED, reported: vec![], ended: None }
    }

    fn hash(fields: &[(&str, &str)]) -> HashMap<String, String> {
        fields.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect()
    }

    fn states(moved: &[StateChange]) -> Vec<&'static str> {
        moved.iter().map(|m| m.state).collect()
    }

    #[test]
    fn each_state_is_reported_once_with_its_time() {
        let (mut job, mut moved) = (job(), Vec::new());
        let started = ("started_at", "2026-01-01T00:00:00.002500+00:00");
        assert!(!job.update(ID, &hash(&[started]), None, &mut moved));
        assert!(!job.update(ID, &hash(&[started]), None, &mut moved));
        assert_eq!(states(&moved), ["executing"]);
        assert_eq!(moved[0].after, Some(time::Duration::microseconds(2500)));
        let done = ("completed_at", "2026-01-01T00:00:00.010000+00:00");
        let accepted = Some(datetime!(2026-01-01 0:00:00.012 UTC));
        assert!(job.update(ID, &hash(&[started, done]), accepted, &mut moved));
        assert_eq!(states(&moved), ["executing", "completed", "delivered"]);
    }

    #[test]
    fn a_webhook_waits_for_the_status_before_it() {
        let (mut job, mut moved) = (job(), Vec::new());
        let accepted = Some(datetime!(2026-01-01 0:00:00.012 UTC));
        assert!(!job.update(ID, &hash(&[]), accepted, &mut moved) && moved.is_empty());
        let failed = [("failed_at", "2026-01-01T00:00:00+00:00"), ("error", "no")];
        assert!(job.update(ID, &hash(&failed), accepted, &mut moved));
        assert_eq!(states(&moved), ["failed", "delivered"]);
        assert_eq!(moved[0].error.as_deref(), Some("no"));
    }

    #[test]
    fn hashes_and_webhooks_of_earlier_runs_are_not_taken_for_this_one() {
        let (mut job, mut moved) = (job(), Vec::new());
        let old = hash(&[("completed_at", "2025-01-01T00:00:00+00:00"), ("message_id", "4-0")]);
        assert!(!job.update(ID, &old, Some(datetime!(2025-01-01 0:00:00 UTC)), &mut moved));
        assert!(moved.is_empty());
        let now = hash(&[("cancelled_at", "2026-01-01T00:00:00+00:00"), ("message_id", "5-0")]);
        assert!(job.update(ID, &now, None, &mut moved));
        assert_eq!(states(&moved), ["cancelled"]);
    }
}
