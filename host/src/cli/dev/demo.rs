//! `coda-host dev --demo`: runs three circuits end to end, shows the states and the histogram of each, and checks the
//! results.

use std::time::{Duration, Instant};

use super::DevError;
use crate::cli::dev_session::DevSession;
use crate::cli::follow_job::{CancelPlan, follow, show_outcome, since};
use crate::cli::terminal::Terminal;
use crate::dev::client::{DevClient, DevJob};
use crate::dev::cloud::DevCloud;
use crate::error::Failure;

const SHOTS: u32 = 1000;
/// A job is acknowledged shortly after its result was accepted.
const ACK_LIMIT: Duration = Duration::from_secs(10);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

struct Circuit {
    title: &'static str,
    json: &'static str,
    /// The only bit strings that may be counted.
    only: Option<[&'static str; 2]>,
}

const CIRCUITS: [Circuit; 3] = [
    Circuit {
        title: "bell: two qubits, entangled",
        json: include_str!("../../../../tests/circuits/bell.json"),
        only: Some(["00", "11"]),
    },
    Circuit {
        title: "ghz5: five qubits, all or none",
        json: include_str!("../../../../tests/circuits/ghz5.json"),
        only: Some(["00000", "11111"]),
    },
    Circuit {
        title: "random12: twelve qubits, eight random layers",
        json: include_str!("../../../../tests/circuits/random12.json"),
        only: None,
    },
];

/// Runs the circuits one after the other. Returns whether every check passed.
pub async fn run(cloud: &DevCloud, session: &DevSession, out: &mut Terminal) -> Result<bool, Failure> {
    let client = DevClient::new(&session.url)?;
    let mut wrong = Vec::new();
    for circuit in &CIRCUITS {
        let id = client.submit(circuit.json, SHOTS).await?;
        out.line(&format!("{}  {id}", out.bold(circuit.title)))?;
        let plan = CancelPlan { at: &mut None, ids: &[] };
        let view = follow(&client, &id, plan, |step, queued| {
            out.line(&format!("  {}", out.step(&step.state, since(step, queued))))
        })
        .await?;
        show_outcome(out, &view)?;
        out.line("")?;
        if let Err(why) = check(circuit, &view) {
            wrong.push(format!("{}: {why}", circuit.title));
        }
    }
    let bad_tokens = cloud.state().bad_tokens;
    if bad_tokens > 0 {
        wrong.push(format!("{bad_tokens} webhooks came with a token that doesn't verify"));
    }
    let pending = pending(session).await?;
    if pending > 0 {
        wrong.push(format!("{pending} messages are not acknowledged"));
    }
    if wrong.is_empty() {
        let text = "all three delivered: counts are possible, tokens verified, messages acknowledged";
        out.line(&format!("{}\n", out.bold(text)))?;
    }
    for what in &wrong {
        out.line(&format!("WRONG: {what}"))?;
    }
    Ok(wrong.is_empty())
}

fn check(circuit: &Circuit, view: &DevJob) -> Result<(), String> {
    for state in ["executing", "completed", "delivered"] {
        if !view.has(state) {
            return Err(format!("never seen as {state}"));
        }
    }
    let counts = view.counts().ok_or("no counts were delivered")?;
    let shots: i64 = counts.iter().map(|(_, n)| n).sum();
    if shots != i64::from(SHOTS) {
        return Err(format!("the counts make {shots} shots, not {SHOTS}"));
    }
    match circuit.only.and_then(|only| counts.iter().find(|(key, _)| !only.contains(&key.as_str()))) {
        Some((key, n)) => Err(format!("{key} was counted {n} times, which is impossible")),
        None => Ok(()),
    }
}

/// Counts the messages that are still not acknowledged after [`ACK_LIMIT`].
async fn pending(session: &DevSession) -> Result<u64, Failure> {
    let client = redis::Client::open(session.redis_url.as_str()).map_err(DevError::Redis)?;
    let mut connection = client.get_multiplexed_async_connection().await.map_err(DevError::Redis)?;
    let since = Instant::now();
    loop {
        let mut ask = redis::cmd("XPENDING");
        ask.arg(format!("qpu:{}:jobs", session.qpu_id)).arg(format!("qpu:{}:workers", session.qpu_id));
        let (pending, _, _, _): (u64, redis::Value, redis::Value, redis::Value) =
            ask.query_async(&mut connection).await.map_err(DevError::Redis)?;
        if pending == 0 || since.elapsed() > ACK_LIMIT {
            return Ok(pending);
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}
