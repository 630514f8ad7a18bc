//! Following a job of a running `coda-host dev` to its end.

use std::time::Duration;

use tokio::time::Instant;

use super::histogram;
use super::terminal::{Terminal, one_line};
use crate::dev::client::{DevClient, DevJob, JobStep};
use crate::error::Failure;

/// How long one request waits for news.
const WAIT: Duration = Duration::from_secs(20);
/// Pause before another look, because a webhook may be seen before the status that precedes it.
const LAG: Duration = Duration::from_millis(20);
/// How often a missing status is looked for.
const LAG_LOOKS: u32 = 50;

/// When to cancel which jobs.
pub struct CancelPlan<'a> {
    /// `None` when nothing is to be cancelled, or everything was.
    pub at: &'a mut Option<Instant>,
    pub ids: &'a [String],
}

/// Follows a job to its end and calls `report` for each new step, with the job's first step beside it.
///
/// # Errors
/// The development cloud can't be asked, or `report` fails.
pub async fn follow(
    client: &DevClient,
    id: &str,
    cancel: CancelPlan<'_>,
    mut report: impl FnMut(&JobStep, &JobStep) -> Result<(), Failure>,
) -> Result<DevJob, Failure> {
    let (mut reported, mut looks) = (0, 0);
    // The newest answer, when only the status is still missing.
    let mut over: Option<DevJob> = None;
    loop {
        let wait = cancel.at.map_or(WAIT, |at| at.saturating_duration_since(Instant::now()).min(WAIT));
        let view = match (client.job(id, reported, wait).await, over.take()) {
            // A dev that ends doesn't take back what was delivered.
            (Err(_), Some(newest)) => {
                looks = LAG_LOOKS;
                newest
            }
            (view, _) => view?,
        };
        if view.over && !view.ended() && looks < LAG_LOOKS {
            looks += 1;
            over = Some(view);
            tokio::time::sleep(LAG).await;
            continue;
        }
        if let Some(queued) = view.states.first() {
            for step in view.states.get(reported..).unwrap_or_default() {
                report(step, queued)?;
            }
        }
        reported = reported.max(view.states.len());
        if view.over {
            return Ok(view);
        }
        if cancel.at.take_if(|at| *at <= Instant::now()).is_some() {
            cancel_all(client, cancel.ids).await?;
        }
    }
}

/// Asks for several jobs to be cancelled.
///
/// # Errors
/// The development cloud can't be asked.
pub async fn cancel_all(client: &DevClient, ids: &[String]) -> Result<(), Failure> {
    for id in ids {
        client.cancel(id).await?;
    }
    Ok(())
}

/// The time between the first step and this one.
pub fn since(step: &JobStep, queued: &JobStep) -> Option<time::Duration> {
    Some((step.time()? - queued.time()?).max(time::Duration::ZERO))
}

/// Shows the outcome of a job: its histogram, or its error.
///
/// # Errors
/// Standard output can't be written.
pub fn show_outcome(out: &mut Terminal, view: &DevJob) -> Result<(), Failure> {
    if let Some(counts) = view.counts() {
        let shots: i64 = counts.iter().map(|(_, n)| n).sum();
        let on_device = view.webhook["execution_time_ms"].as_f64();
        let on_device = on_device.map_or(String::new(), |ms| format!(", {ms:.3} ms on the device"));
        out.text(&histogram::render(&counts))?;
        return out.line(&format!("  {shots} shots{on_device}"));
    }
    match error_line(view) {
        Some(error) => out.line(&format!("  {error}")),
        None => Ok(()),
    }
}

/// The error of a failed job, in one line.
pub fn error_line(view: &DevJob) -> Option<String> {
    let text = view.webhook["error"].as_str().or(view.error.as_deref().filter(|_| view.has("failed")))?;
    Some(one_line(text))
}
