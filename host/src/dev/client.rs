//! The client of the development cloud's `/dev/jobs`: sends jobs, follows and cancels them.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::cloud::HEALTH;
use crate::cloud::http::{HttpClient, HttpError, Response, Target};
use crate::error::Explain;
use crate::model::cut;

/// Timeout of a request, in addition to the time that the request itself asks to wait.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

#[derive(Debug, thiserror::Error)]
pub enum DevClientError {
    #[error("the development cloud could not be reached")]
    Http(#[from] HttpError),
    #[error("the development cloud refused ({status}): {why}")]
    Refused { status: u16, why: String },
    #[error("the development cloud gave an answer that can't be read")]
    Answer(#[from] serde_json::Error),
}

impl Explain for DevClientError {
    fn code(&self) -> &'static str {
        match self {
            DevClientError::Http(_) => "dev-unreachable",
            DevClientError::Refused { .. } => "dev-refused",
            DevClientError::Answer(_) => "dev-answer",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            DevClientError::Http(HttpError::Url { .. }) => {
                "give the URL that 'coda-host dev' prints, such as http://127.0.0.1:8700".into()
            }
            DevClientError::Http(_) => "check that 'coda-host dev' is still running".into(),
            DevClientError::Refused { .. } => return None,
            DevClientError::Answer(_) => "give the URL of a 'coda-host dev' of this version".into(),
        })
    }
}

/// A state that a job reached.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobStep {
    pub state: String,
    /// The time in the protocol's format.
    pub at: String,
}

impl JobStep {
    pub fn time(&self) -> Option<OffsetDateTime> {
        OffsetDateTime::parse(&self.at, &Rfc3339).ok()
    }
}

/// The state of a job at the development cloud.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DevJob {
    pub job_id: String,
    /// Whether the job was delivered or cancelled, so that no other state will follow.
    pub over: bool,
    /// The states of the job, oldest first.
    pub states: Vec<JobStep>,
    /// The delivered body, null before.
    pub webhook: Value,
    /// The error of a failed job's status hash.
    pub error: Option<String>,
}

impl DevJob {
    pub fn has(&self, state: &str) -> bool {
        self.states.iter().any(|s| s.state == state)
    }

    /// Whether the end of the job is in its states. A webhook may be seen before the status that precedes it.
    pub fn ended(&self) -> bool {
        ["completed", "failed", "cancelled"].iter().any(|state| self.has(state))
    }

    /// The delivered counts.
    pub fn counts(&self) -> Option<Vec<(String, i64)>> {
        let counts = self.webhook.get("counts")?.as_object()?;
        counts.iter().map(|(key, n)| Some((key.clone(), n.as_i64()?))).collect()
    }
}

/// A connection to one development cloud.
pub struct DevClient {
    http: HttpClient,
    base: String,
}

impl DevClient {
    /// `base` is the URL that `coda-host dev` prints.
    pub fn new(base: &str) -> Result<DevClient, DevClientError> {
        // Parsed once here, so that a wrong URL is reported before anything else.
        Target::parse(base)?;
        Ok(DevClient { http: HttpClient::local()?, base: base.trim_end_matches('/').into() })
    }

    /// Whether a cloud answers there.
    pub async fn answers(&self, limit: Duration) -> bool {
        match Target::parse(&format!("{}{HEALTH}", self.base)) {
            Ok(target) => self.http.get(&target, limit).await.is_ok_and(|r| r.status.is_success()),
            Err(_) => false,
        }
    }

    /// Sends a job; the circuit goes as it is. Returns the job's id.
    pub async fn submit(&self, ir_json: &str, shots: u32) -> Result<String, DevClientError> {
        let body = json!({ "ir": ir_json, "shots": shots }).to_string();
        #[derive(Deserialize)]
        struct Sent {
            job_id: String,
        }
        let sent: Sent = serde_json::from_slice(&self.post("/dev/jobs", body).await?)?;
        Ok(sent.job_id)
    }

    /// Returns the state of a job. Waits up to `wait` until the job is over or has more than `states` states.
    pub async fn job(&self, id: &str, states: usize, wait: Duration) -> Result<DevJob, DevClientError> {
        let id = segment(id);
        let path = format!("/dev/jobs/{id}?wait={}&states={states}", wait.as_secs_f64());
        let target = Target::parse(&format!("{}{path}", self.base))?;
        let answer = self.http.get(&target, wait + ANSWER_LIMIT).await?;
        Ok(serde_json::from_slice(&body(answer)?)?)
    }

    /// Asks for a job to be cancelled.
    pub async fn cancel(&self, id: &str) -> Result<(), DevClientError> {
        self.post(&format!("/dev/jobs/{}/cancel", segment(id)), String::new()).await.map(drop)
    }

    async fn post(&self, path: &str, text: String) -> Result<Bytes, DevClientError> {
        let target = Target::parse(&format!("{}{path}", self.base))?;
        body(self.http.post_plain(&target, Bytes::from(text), ANSWER_LIMIT).await?)
    }
}

/// Ids made by the development cloud are plain; others may hold anything.
fn segment(id: &str) -> String {
    url::form_urlencoded::byte_serialize(id.as_bytes()).collect()
}

fn body(answer: Response) -> Result<Bytes, DevClientError> {
    let body = answer.body?;
    if answer.status.is_success() {
        return Ok(body);
    }
    let parsed: Option<Value> = serde_json::from_slice(&body).ok();
    let why = match parsed.as_ref().and_then(|v| v["error"].as_str()) {
        Some(why) => why.to_owned(),
        None => cut(String::from_utf8_lossy(&body).trim(), 400).to_owned(),
    };
    Err(DevClientError::Refused { status: answer.status.as_u16(), why })
}
