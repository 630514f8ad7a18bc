//! `coda-host history`: the jobs that ended, one row each.

use std::collections::HashMap;
use std::process::ExitCode;

use super::kit;
use super::record_window::{self, RecordWindow, WindowEdge, now_ms, utc};
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::Failure;
use crate::model::iso_time;
use crate::output::{self, inline};
use crate::state::db::{Database, Delivery, EndedJob, JobFilter, RecordedOutcome};

/// Output is written in pieces of so many bytes.
const PIECE: usize = 1 << 16;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The last job comes last. Times are in UTC. WAITED is the time from the claim to the first run, RUN how long the plugin had
the job in all its runs (of a batch its share), RUNS how often the plugin answered. --json prints one object for each job, in
a line of its own. Exit status 0, also when no job matches.

Examples:
  coda-host history
  coda-host history --since 7d --state failed
  coda-host history --since 2026-11-01 --until 2026-12-01 --json | jq -s 'map(.run_seconds) | add'
  coda-host history -n 20")]
pub struct Args {
    /// Jobs that ended since then: a length (24h, 7d), a day (UTC) or a time (RFC 3339). With -n alone: all
    #[arg(long, value_name = "TIME", value_parser = record_window::edge)]
    since: Option<WindowEdge>,
    /// Jobs that ended before then
    #[arg(long, value_name = "TIME", value_parser = record_window::edge)]
    until: Option<WindowEdge>,
    /// Jobs that ended so
    #[arg(long, value_enum, value_name = "STATE")]
    state: Option<StateFilter>,
    /// Only the last N jobs
    #[arg(short, value_name = "N")]
    n: Option<u64>,
    /// JSON lines for machines
    #[arg(long)]
    json: bool,
}

/// What `--state` may name: how a job ended, or what became of its result.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum StateFilter {
    Completed,
    Failed,
    Cancelled,
    /// Kept as a dead letter
    Unanswerable,
    /// Its result is not delivered yet
    Undelivered,
    /// Its result was refused by the receiver
    Refused,
    /// Its result was dropped by the operator
    Dropped,
}

impl StateFilter {
    fn parts(self) -> (Option<RecordedOutcome>, Option<Delivery>) {
        match self {
            StateFilter::Completed => (Some(RecordedOutcome::Completed), None),
            StateFilter::Failed => (Some(RecordedOutcome::Failed), None),
            StateFilter::Cancelled => (Some(RecordedOutcome::Cancelled), None),
            StateFilter::Unanswerable => (Some(RecordedOutcome::Unanswerable), None),
            StateFilter::Undelivered => (None, Some(Delivery::Pending)),
            StateFilter::Refused => (None, Some(Delivery::Refused)),
            StateFilter::Dropped => (None, Some(Delivery::Dropped)),
        }
    }
}

const DAY_MS: i64 = 86_400_000;

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let settings = app::prepare(env, HashMap::new())?.settings;
    let default = if args.n.is_some() { WindowEdge::At(0) } else { WindowEdge::Ago(DAY_MS) };
    let window = RecordWindow::new(args.since.unwrap_or(default), args.until, now_ms())?;
    let (outcome, delivery) = args.state.map_or((None, None), StateFilter::parts);
    let RecordWindow { since, until } = window;
    let filter = JobFilter { since, until, outcome, delivery, last: args.n };

    let (mut text, mut found) = (String::new(), false);
    // A look makes no database.
    if Database::exists(&settings.dirs.state) {
        Database::open(&settings.dirs.state)?.ended_jobs(&filter, |job| {
            if !found && !args.json {
                text += HEAD;
            }
            found = true;
            text += &if args.json { json_line(&job) } else { table_line(&job) };
            if text.len() > PIECE {
                output::print(std::mem::take(&mut text).as_bytes());
            }
        })?;
    }
    if !found && !args.json {
        text += &format!("no such job ended since {} UTC\n", utc(since, "%Y-%m-%d %H:%M"));
    }
    kit::print(text)
}

const HEAD: &str = "ENDED (UTC)          JOB                      QUBITS   GATES    SHOTS    WAITED       RUN  RUNS  OUTCOME       DELIVERY\n";

fn number<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".into(), |value| value.to_string())
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.3}s")
}

fn table_line(job: &EndedJob) -> String {
    let facts = &job.facts;
    let id = if job.job_id.is_empty() { format!("message {}", job.message_id) } else { job.job_id.clone() };
    let why = match (&facts.reason, &job.error) {
        (Some(reason), Some(error)) => format!("  {}: {}", inline(reason), inline(error)),
        (None, Some(error)) => format!("  {}", inline(error)),
        (_, None) => String::new(),
    };
    format!(
        "{:<19}  {:<24} {:>6} {:>7} {:>8} {:>9} {:>9} {:>5}  {:<12}  {}{why}\n",
        utc(job.at, "%Y-%m-%d %H:%M:%S"),
        inline(&id),
        number(facts.qubits),
        number(facts.gates),
        number(facts.shots),
        number(facts.waited_ms.map(|ms| seconds(ms as f64 / 1e3))),
        seconds(facts.run_us as f64 / 1e6),
        facts.runs,
        inline(&job.outcome),
        inline(&job.delivery),
    )
}

fn json_line(job: &EndedJob) -> String {
    let facts = &job.facts;
    let ended = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(job.at) * 1_000_000);
    let line = serde_json::json!({
        "job_id": (!job.job_id.is_empty()).then_some(&job.job_id),
        "message_id": job.message_id,
        "qpu_id": job.qpu_id,
        "ended_at": ended.ok().map(iso_time),
        "outcome": job.outcome,
        "delivery": job.delivery,
        "qubits": facts.qubits,
        "gates": facts.gates,
        "shots": facts.shots,
        "waited_seconds": facts.waited_ms.map(|ms| ms as f64 / 1e3),
        "run_seconds": facts.run_us as f64 / 1e6,
        "runs": facts.runs,
        "reason": facts.reason,
        "error": job.error,
    });
    format!("{line}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::db::JobFacts;

    #[test]
    fn a_row_is_one_line_and_columns_stand_below_their_names() {
        let facts = JobFacts {
            qubits: Some(2),
            gates: Some(7),
            shots: Some(1000),
            waited_ms: Some(1500),
            run_us: 250_000,
            runs: 3,
            reason: Some("hardware".into()),
        };
        let job = EndedJob {
            qpu_id: "q".into(),
            message_id: "1-0".into(),
            job_id: "J1\u{1b}[31m".into(),
            at: 1_795_996_800_000,
            outcome: "failed".into(),
            delivery: "delivered".into(),
            facts,
            error: Some("cold\nfake row".into()),
        };
        let line = table_line(&job);
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains("hardware: cold") && !line.contains('\u{1b}'), "{line}");
        let value: serde_json::Value = serde_json::from_str(&json_line(&job)).expect("JSON");
        assert_eq!(
            (value["run_seconds"].as_f64(), value["waited_seconds"].as_f64()),
            (Some(0.25), Some(1.5))
        );
        assert_eq!(value["ended_at"], "2026-11-30T00:00:00+00:00");
        let plain = EndedJob { job_id: "J1".into(), ..job };
        let line = table_line(&plain);
        for (name, value) in [("OUTCOME", "failed"), ("DELIVERY", "delivered"), ("JOB", "J1")] {
            assert_eq!(HEAD.find(name), line.find(value), "{name}\n{HEAD}{line}");
        }
    }
}
