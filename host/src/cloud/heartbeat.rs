//! The heartbeat: reports to the cloud at an interval that this QPU is alive, and what it does.
//!
//! One loop, one request at a time: the first at once, then one each interval, each with its own timeout. A
//! hanging one is given up at its timeout and doesn't pile up; a beat whose time came meanwhile is sent next,
//! missed ones are not made up for. Nothing but the stop ends the loop. The outcome of each beat is published:
//! results that were held because the cloud refused our tokens go out again once a beat is accepted.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::http::{Bearer, HttpClient, HttpError, Response, Target, header_map};
use super::jwt::Signer;
use crate::config::settings::CloudSettings;
use crate::model::{JobId, cut};

/// How many characters of a refusal are logged.
const DETAIL: usize = 800;

/// What a heartbeat reports; the job driver publishes it.
#[derive(Debug, Clone, Default)]
pub struct HeartbeatState {
    pub current_job: Option<JobId>,
    /// The time of the last job, in the protocol's format.
    pub last_job_at: Option<String>,
    pub redis_healthy: bool,
    pub connectivity: Option<Arc<[(u16, u16)]>>,
}

/// The outcome of the heartbeats so far.
#[derive(Debug, Clone, Default)]
pub struct HeartbeatOutcome {
    /// Heartbeats sent so far.
    pub sent: u64,
    /// When the last accepted one was accepted.
    pub accepted_at: Option<Instant>,
    /// Number of accepted heartbeats. An increase means that the cloud accepts the tokens.
    pub accepted: u64,
    /// Why the last one was not accepted; `None` when it was.
    pub error: Option<String>,
}

/// Sends the heartbeats. Its settings are checked when it is created, so that the loop can't fail.
pub struct HeartbeatSender {
    client: HttpClient,
    signer: Signer,
    target: Target,
    extra: http::HeaderMap,
    settings: CloudSettings,
    state: watch::Receiver<HeartbeatState>,
    outcome: watch::Sender<HeartbeatOutcome>,
}

impl HeartbeatSender {
    pub fn new(
        client: HttpClient,
        signer: Signer,
        cloud: &CloudSettings,
        state: watch::Receiver<HeartbeatState>,
    ) -> Result<HeartbeatSender, HttpError> {
        let target = Target::parse(&format!("{}{}", cloud.webapp_url, cloud.heartbeat_path))?;
        let extra = header_map(&cloud.connect_headers)?;
        let outcome = watch::Sender::new(HeartbeatOutcome::default());
        Ok(HeartbeatSender { client, signer, target, extra, settings: cloud.clone(), state, outcome })
    }

    pub fn outcome(&self) -> watch::Receiver<HeartbeatOutcome> {
        self.outcome.subscribe()
    }

    /// Sends heartbeats until `stop` is cancelled. A request that is being sent is dropped then.
    pub async fn run(self, stop: CancellationToken) {
        if stop.run_until_cancelled(self.beat_for_ever()).await.is_none() {
            tracing::debug!("heartbeats stopped");
        }
    }

    async fn beat_for_ever(&self) {
        let mut ticks = tokio::time::interval(self.settings.heartbeat_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let result = self.beat().await;
            let error = result.err();
            match &error {
                None => tracing::debug!(to = %self.target.origin(), "heartbeat accepted"),
                Some(error) => tracing::warn!(to = %self.target.origin(), "{error}"),
            }
            self.outcome.send_modify(|o| {
                o.sent += 1;
                if error.is_none() {
                    o.accepted += 1;
                    o.accepted_at = Some(Instant::now());
                }
                o.error = error;
            });
        }
    }

    async fn beat(&self) -> Result<(), String> {
        let body = body(&self.state.borrow());
        let mut bearer = self.signer.bearer().map_err(|e| format!("heartbeat not sent: {e}"))?;
        let mut answer = self.post(&bearer, body.clone()).await?;
        if answer.status == StatusCode::UNAUTHORIZED {
            bearer = self.signer.fresh().map_err(|e| format!("heartbeat not sent: {e}"))?;
            answer = self.post(&bearer, body).await?;
        }
        if answer.status.is_success() {
            return Ok(());
        }
        Err(format!(
            "HTTP {} from heartbeat endpoint: {} (align the qubits registered for this QPU in Coda with the \
             connectivity that the executor reports, or correct the settings)",
            answer.status.as_u16(),
            detail(&answer, &bearer)
        ))
    }

    async fn post(&self, bearer: &Bearer, body: Bytes) -> Result<Response, String> {
        let limit = self.settings.heartbeat_timeout;
        let sent = self.client.post_json(&self.target, bearer, &self.extra, body, limit).await;
        sent.map_err(|e| format!("heartbeat failed: {}", e.line()))
    }
}

fn body(state: &HeartbeatState) -> Bytes {
    json!({
        "current_job": state.current_job.as_deref(),
        "last_job_at": state.last_job_at,
        "redis_healthy": state.redis_healthy,
        "connectivity": state.connectivity.as_deref(),
    })
    .to_string()
    .into()
}

/// The `error` of a JSON object, else the body's beginning, else what the status means.
fn detail(answer: &Response, bearer: &Bearer) -> String {
    let text = answer.excerpt(bearer, usize::MAX);
    if let Ok(Value::Object(object)) = serde_json::from_str(&text)
        && let Some(error) = object.get("error")
    {
        let error = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
        return cut(&error, DETAIL).to_owned();
    }
    if text.is_empty() {
        return answer.status.canonical_reason().unwrap_or("unknown error").to_owned();
    }
    cut(&text, DETAIL).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::jwt::PrivateKey;
    use crate::cloud::testing::{self, Reply, Scripted, answer, scripted};
    use crate::model::Secret;
    use std::time::Duration;

    struct Running {
        server: Scripted,
        state: watch::Sender<HeartbeatState>,
        outcome: watch::Receiver<HeartbeatOutcome>,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<()>,
    }

    async fn prepare(
        replies: Vec<Reply>,
        change: impl Fn(&mut CloudSettings),
    ) -> (Scripted, HeartbeatSender, watch::Sender<HeartbeatState>) {
        let server = scripted(replies, None).await;
        let mut settings = testing::settings(&server.url);
        change(&mut settings);
        let key = PrivateKey::parse(&Secret::new(testing::private_pem())).unwrap();
        let signer = Signer::new(key, "q1", None, settings.jwt_reuse);
        let (state, receiver) = watch::channel(HeartbeatState::default());
        let client = HttpClient::new(&settings).unwrap();
        (server, HeartbeatSender::new(client, signer, &settings, receiver).unwrap(), state)
    }

    async fn run(replies: Vec<Reply>, change: impl Fn(&mut CloudSettings)) -> Running {
        let (server, heartbeat, state) = prepare(replies, change).await;
        let (outcome, stop) = (heartbeat.outcome(), CancellationToken::new());
        let task = tokio::spawn(heartbeat.run(stop.clone()));
        Running { server, state, outcome, stop, task }
    }

    impl Running {
        async fn wait(&mut self, done: impl Fn(&HeartbeatOutcome) -> bool) -> HeartbeatOutcome {
            let waiting = self.outcome.wait_for(|o| done(o));
            tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap().clone()
        }
    }

    fn parts(request: &str) -> (&str, Value) {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        (head, serde_json::from_str(body).unwrap())
    }

    #[tokio::test]
    async fn the_first_beat_goes_out_at_once_and_tells_the_state() {
        let mut r = run(vec![answer("200 OK", "{}")], |s| {
            s.heartbeat_interval = Duration::from_secs(3600);
            s.connect_headers = vec![("x-bypass".into(), Secret::new("b1"))];
        })
        .await;
        let (_, request) = r.server.seen.recv().await.unwrap();
        let (head, body) = parts(&request);
        assert!(head.starts_with("POST /api/internal/qpu/heartbeat HTTP/1.1"), "{head}");
        assert!(head.contains("x-bypass: b1") && head.contains("authorization: Bearer ey"), "{head}");
        assert_eq!(
            body,
            json!({"current_job": null, "last_job_at": null, "redis_healthy": false, "connectivity": null})
        );
        let outcome = r.wait(|o| o.accepted == 1).await;
        assert!(outcome.error.is_none() && outcome.accepted_at.is_some());
        r.stop.cancel();
        r.task.await.unwrap();
    }

    #[tokio::test]
    async fn later_beats_carry_what_has_changed() {
        let mut r = run(vec![answer("204 No Content", "")], |_| ()).await;
        r.wait(|o| o.accepted >= 1).await;
        r.state.send_replace(HeartbeatState {
            current_job: Some("j\"1".into()),
            last_job_at: Some("2026-04-27T00:00:00+00:00".into()),
            redis_healthy: true,
            connectivity: Some(Arc::from([(1, 0), (2, 1)])),
        });
        let expected = json!({
            "current_job": "j\"1", "last_job_at": "2026-04-27T00:00:00+00:00", "redis_healthy": true,
            "connectivity": [[1, 0], [2, 1]],
        });
        let seen = async { while parts(&r.server.seen.recv().await.unwrap().1).1 != expected {} };
        tokio::time::timeout(Duration::from_secs(20), seen).await.unwrap();
    }

    #[tokio::test]
    async fn a_hanging_beat_is_given_up_and_the_next_one_follows() {
        let mut r = run(vec![Reply::Hang, Reply::Hang, answer("200 OK", "")], |s| {
            s.heartbeat_timeout = Duration::from_millis(50);
        })
        .await;
        let outcome = r.wait(|o| o.accepted > 0).await;
        assert!(outcome.error.is_none() && outcome.sent >= 3, "{outcome:?}");
        let mut connections = Vec::new();
        while connections.len() < 3 {
            connections.push(r.server.seen.recv().await.unwrap().0);
        }
        assert_eq!(connections, [0, 1, 2], "one request after the other, each hanging one on its own");
    }

    #[tokio::test]
    async fn refusals_are_told_with_the_clouds_own_words() {
        let replies = vec![
            answer("422 Unprocessable Entity", r#"{"error":"qubit 7 unknown","x":1}"#),
            answer("500 Internal Server Error", ""),
            answer("400 Bad Request", &"é".repeat(900)),
            answer("401 Unauthorized", r#"{"error":["no"]}"#),
            answer("401 Unauthorized", r#"{"error":["still no"]}"#),
            answer("302 Found", "[1]"),
            answer("200 OK", ""),
        ];
        let (_server, heartbeat, _state) = prepare(replies, |_| ()).await;
        let expected = [
            "422 f: qubit 7 unknown (align",
            "500 f: Internal Server Error (",
            &format!("400 f: {} (", "é".repeat(800)),
            r#"401 f: ["still no"] ("#,
            "302 f: [1] (",
        ];
        for text in expected {
            let text = text.replace(" f:", " from heartbeat endpoint:");
            let error = heartbeat.beat().await.unwrap_err();
            assert!(error.starts_with(&format!("HTTP {text}")), "{error} instead of {text}");
        }
        heartbeat.beat().await.unwrap();
    }
}
