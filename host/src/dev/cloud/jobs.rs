//! `/dev/jobs`: sends jobs to the QPU's stream as the cloud does, follows and cancels them.
//!
//! `POST /dev/jobs {"ir": object or text, "shots": n}` answers `{"job_id"}`. `GET /dev/jobs/<id>` answers the
//! states so far with their times, oldest first, and the delivered body; with `?wait=SECONDS` it answers when
//! the job is over, or as soon as it has more than `&states=N` states. `POST /dev/jobs/<id>/cancel` sets the
//! cancel key.

use std::collections::HashMap;
use std::time::Duration;

use http::Method;
use redis::AsyncCommands as _;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use serde::Deserialize;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::time::Instant;

use super::{Options, Reply, Shared, SubmittedJob, WEBHOOK, error, reply};
use crate::model::iso_time;

/// Longest wait of one request.
const LONGEST: Duration = Duration::from_secs(600);
/// Of one command, so that a dead Redis is told and not waited for.
const REDIS_LIMIT: Duration = Duration::from_secs(5);

/// The connection to the QPU's Redis, made with the first job.
pub(super) struct Jobs {
    client: redis::Client,
    connection: tokio::sync::Mutex<Option<ConnectionManager>>,
}

#[derive(Deserialize)]
struct NewJob {
    ir: Value,
    shots: Value,
    job_id: Option<String>,
    callback_url: Option<String>,
}

impl Jobs {
    pub(super) fn new(options: &Options) -> Result<Jobs, redis::RedisError> {
        // The URL goes to the Redis client.
        let client = redis::Client::open(options.redis_url.expose())?;
        Ok(Jobs { client, connection: tokio::sync::Mutex::default() })
    }

    async fn redis(&self) -> Result<ConnectionManager, redis::RedisError> {
        let mut connection = self.connection.lock().await;
        if let Some(connection) = &*connection {
            return Ok(connection.clone());
        }
        let config = ConnectionManagerConfig::new()
            .set_response_timeout(Some(REDIS_LIMIT))
            .set_connection_timeout(Some(REDIS_LIMIT))
            .set_number_of_retries(1);
        let made = ConnectionManager::new_with_config(self.client.clone(), config).await?;
        Ok(connection.insert(made).clone())
    }
}

impl Shared {
    pub(super) async fn dev_jobs(
        &self,
        method: &Method,
        rest: &str,
        query: Option<&str>,
        body: &[u8],
    ) -> Reply {
        let answer = match (method, rest.trim_start_matches('/').split_once('/')) {
            (&Method::POST, None) if rest.trim_matches('/').is_empty() => self.submit(body).await,
            (&Method::GET, None) => self.follow(rest.trim_matches('/'), query).await,
            (&Method::POST, Some((id, "cancel"))) => self.cancel(id).await,
            _ => return error(404, "POST /dev/jobs, GET /dev/jobs/<id> or POST /dev/jobs/<id>/cancel"),
        };
        answer.unwrap_or_else(|e| error(503, &format!("the development Redis failed: {e}")))
    }

    async fn submit(&self, body: &[u8]) -> Result<Reply, redis::RedisError> {
        let job: NewJob = match serde_json::from_slice(body) {
            Ok(job) => job,
            Err(e) => {
                return Ok(error(400, &format!("not a job such as {{\"ir\": {{}}, \"shots\": 1}}: {e}")));
            }
        };
        let text = |value: Value| match value {
            Value::String(text) => text,
            other => other.to_string(),
        };
        let job_id = job.job_id.unwrap_or_else(|| format!("dev-{:016x}", rand::random::<u64>()));
        let callback = job.callback_url.unwrap_or_else(|| format!("{}{WEBHOOK}", self.base));
        let fields = [
            ("job_id", job_id.clone()),
            ("callback_url", callback),
            ("ir_json", text(job.ir)),
            ("shots", text(job.shots)),
        ];
        // Before it can come back through the webhook.
        let at = OffsetDateTime::now_utc();
        let submitted = SubmittedJob { at, message_id: String::new() };
        self.state().submitted.insert(job_id.as_str().into(), submitted);
        let mut redis = self.jobs.redis().await?;
        let id: Option<String> =
            redis.xadd(format!("qpu:{}:jobs", self.options.qpu_id), "*", &fields).await?;
        if let Some(known) = self.state().submitted.get_mut(job_id.as_str()) {
            known.message_id = id.unwrap_or_default();
        }
        Ok(reply(200, &json!({ "job_id": job_id })))
    }

    async fn cancel(&self, id: &str) -> Result<Reply, redis::RedisError> {
        if !self.state().submitted.contains_key(id) {
            return Ok(error(404, "no such job was sent from here"));
        }
        let () = self.jobs.redis().await?.set(format!("qpu:job:cancelled:{id}"), "1").await?;
        Ok(reply(200, &json!({ "job_id": id, "cancel_requested": true })))
    }

    async fn follow(&self, id: &str, query: Option<&str>) -> Result<Reply, redis::RedisError> {
        let parameter = |name: &str| {
            let pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
            pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
        };
        let wait = parameter("wait").map(|text| text.parse::<f64>()).transpose();
        let states = parameter("states").map(|text| text.parse::<usize>()).transpose();
        let (Ok(wait), Ok(states)) = (wait, states) else {
            return Ok(error(400, "wait and states are numbers"));
        };
        let wait = Duration::try_from_secs_f64(wait.unwrap_or(0.0)).unwrap_or_default().min(LONGEST);
        let deadline = Instant::now() + wait;
        let mut ticks = self.tick.subscribe();
        loop {
            ticks.borrow_and_update();
            let Some(view) = self.job_status(id).await? else {
                return Ok(error(404, "no such job was sent from here"));
            };
            let enough = states.is_some_and(|n| view.states.len() > n);
            if view.over || enough || Instant::now() >= deadline {
                return Ok(reply(200, &view.json(id)));
            }
            let next = (Instant::now() + self.options.poll).min(deadline);
            // Either a webhook came or it is time to look at Redis again.
            tokio::time::timeout_at(next, ticks.changed()).await.ok();
        }
    }

    async fn job_status(&self, id: &str) -> Result<Option<JobStatus>, redis::RedisError> {
        let Some(submitted) = self.state().submitted.get(id).cloned() else { return Ok(None) };
        let mut redis = self.jobs.redis().await?;
        let hash: HashMap<String, String> = redis.hgetall(format!("qpu:job:{id}:status")).await?;
        let job = self.state().jobs.get(id).cloned().unwrap_or_default();
        let mut states = vec![("queued", iso_time(submitted.at))];
        for (field, state) in [
            ("started_at", "executing"),
            ("completed_at", "completed"),
            ("failed_at", "failed"),
            ("cancelled_at", "cancelled"),
        ] {
            // A job id that was used before brings times of an earlier run.
            if let Some(at) = hash.get(field).filter(|at| not_before(at, submitted.at)) {
                states.push((state, at.clone()));
            }
        }
        if let Some(at) = job.accepted_at {
            states.push(("delivered", iso_time(at)));
        }
        let over = states.iter().any(|(state, _)| matches!(*state, "delivered" | "cancelled"));
        let webhook = serde_json::from_slice(&job.body).unwrap_or(Value::Null);
        let error = hash.get("error").cloned();
        Ok(Some(JobStatus {
            states,
            over,
            attempts: job.attempts,
            webhook,
            error,
            message_id: submitted.message_id,
        }))
    }
}

struct JobStatus {
    states: Vec<(&'static str, String)>,
    over: bool,
    attempts: u32,
    webhook: Value,
    error: Option<String>,
    message_id: String,
}

impl JobStatus {
    fn json(&self, id: &str) -> Value {
        let states: Vec<Value> =
            self.states.iter().map(|(state, at)| json!({ "state": state, "at": at })).collect();
        json!({
            "job_id": id,
            "message_id": self.message_id,
            "state": self.states.last().map_or("queued", |(state, _)| state),
            "over": self.over,
            "states": states,
            "attempts": self.attempts,
            "webhook": self.webhook,
            "error": self.error,
        })
    }
}

/// The node's clock is this machine's. A time that can't be read is shown all the same.
fn not_before(at: &str, submitted: OffsetDateTime) -> bool {
    OffsetDateTime::parse(at, &Rfc3339).map_or(true, |at| at + Duration::from_secs(1) >= submitted)
}
