//! `coda-host usage`: jobs, shots, hardware time and utilisation, by day or another unit.

pub(crate) mod report;

use std::collections::HashMap;
use std::process::ExitCode;

use super::kit;
use super::record_window::{self, RecordWindow, WindowEdge, now_ms, utc};
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::Failure;
use crate::model::iso_time;
use crate::state::db::{Database, JobFilter};
use report::{Report, Unit, UsageRow};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Days, hours and months are in UTC, and the first one is whole. A job counts where it ended. RUN is how long the plugin had
jobs, AVAILABLE the time in which runs could begin, times the slots, and USED the share of RUN in it. HELD is the time in
which the host was up and began nothing (pauses, maintenance), STOPPED the time in which it was not up. Runs for peers are not counted.

Examples:
  coda-host usage
  coda-host usage --since 2026-11-01 --until 2026-12-01 --by total
  coda-host usage --since 90d --by month --csv > usage.csv
  coda-host usage --since 24h --by hour --json")]
pub struct Args {
    /// Begin: a length (30d), a day (UTC) or a time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = record_window::edge, default_value = "30d")]
    since: WindowEdge,
    /// End (now)
    #[arg(long, value_name = "TIME", value_parser = record_window::edge)]
    until: Option<WindowEdge>,
    /// One row for each of these
    #[arg(long, value_enum, default_value = "day")]
    by: Unit,
    /// Comma-separated values, with a line of names
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// JSON for machines: a list of rows
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let settings = app::prepare(env, HashMap::new())?.settings;
    let now = now_ms();
    let asked = RecordWindow::new(args.since, args.until, now)?;
    let mut report = Report::new(args.by, asked);
    // A look makes no database.
    if Database::exists(&settings.dirs.state) {
        let database = Database::open(&settings.dirs.state)?;
        let RecordWindow { since, until } = report.window();
        let filter = JobFilter { since, until, outcome: None, delivery: None, last: None };
        database.ended_jobs(&filter, |job| report.add_job(&job))?;
        let recorded_since = database.recorded_since()?;
        report.add_availability(&database.availability(since, until)?, recorded_since, now);
    }
    let rows = report.rows();
    let text = match (args.csv, args.json) {
        (true, _) => csv(&rows),
        (_, true) => format!("{}\n", serde_json::Value::from_iter(rows.iter().map(json))),
        _ if rows.is_empty() => {
            format!("nothing is recorded since {} UTC\n", utc(asked.since, "%Y-%m-%d %H:%M"))
        }
        _ => table(&rows, args.by),
    };
    kit::print(text)
}

fn moment(ms: i64) -> String {
    time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000)
        .map_or_else(|_| String::new(), iso_time)
}

fn hours(seconds: f64) -> String {
    let minutes = (seconds / 60.0).round() as u64;
    if minutes >= 60 { format!("{}h{:02}m", minutes / 60, minutes % 60) } else { format!("{seconds:.1}s") }
}

fn table(rows: &[UsageRow], by: Unit) -> String {
    let mut text = format!(
        "{:<16} {:>7} {:>9} {:>7} {:>9} {:>5} {:>10} {:>10} {:>9} {:>7} {:>9} {:>9}  FAILURES\n",
        "FROM (UTC)",
        "JOBS",
        "COMPLETED",
        "FAILED",
        "CANCELLED",
        "OTHER",
        "SHOTS",
        "RUN",
        "AVAILABLE",
        "USED",
        "HELD",
        "STOPPED"
    );
    for row in rows {
        let used = row.utilisation().map_or_else(|| "-".into(), |share| format!("{:.1}%", share * 100.0));
        text += &format!(
            "{:<16} {:>7} {:>9} {:>7} {:>9} {:>5} {:>10} {:>10} {:>9} {used:>7} {:>9} {:>9}  {}\n",
            utc(row.from, by.form()),
            row.jobs(),
            row.completed,
            row.failed,
            row.cancelled,
            row.unanswerable,
            row.shots,
            hours(row.run_seconds()),
            hours(row.available_seconds()),
            hours(row.held_seconds()),
            hours(row.stopped_seconds()),
            counts(row),
        );
    }
    text
}

/// The failures by reason, in a field of text.
fn counts(row: &UsageRow) -> String {
    let each =
        row.failures.iter().map(|(reason, count)| format!("{}={count}", crate::output::inline(reason)));
    each.collect::<Vec<_>>().join(" ")
}

fn csv(rows: &[UsageRow]) -> String {
    let mut text = String::from(
        "from,jobs,completed,failed,cancelled,unanswerable,shots,runs,run_seconds,available_seconds,utilisation,\
         held_seconds,stopped_seconds,failures\n",
    );
    for row in rows {
        let utilisation = row.utilisation().map_or_else(String::new, |share| format!("{share:.6}"));
        // Reasons are words without a comma or a quotation mark, but the database may hold anything.
        let failures = counts(row).replace(['"', ','], "_");
        text += &format!(
            "{},{},{},{},{},{},{},{},{:.6},{:.3},{utilisation},{:.3},{:.3},{failures}\n",
            moment(row.from),
            row.jobs(),
            row.completed,
            row.failed,
            row.cancelled,
            row.unanswerable,
            row.shots,
            row.runs,
            row.run_seconds(),
            row.available_seconds(),
            row.held_seconds(),
            row.stopped_seconds(),
        );
    }
    text
}

fn json(row: &UsageRow) -> serde_json::Value {
    serde_json::json!({
        "from": moment(row.from),
        "until": moment(row.until),
        "jobs": row.jobs(),
        "completed": row.completed,
        "failed": row.failed,
        "cancelled": row.cancelled,
        "unanswerable": row.unanswerable,
        "shots": row.shots,
        "runs": row.runs,
        "run_seconds": row.run_seconds(),
        "available_seconds": row.available_seconds(),
        "utilisation": row.utilisation(),
        "held_seconds": row.held_seconds(),
        "held": row.held.iter().map(|(why, ms)| (why.clone(), (*ms as f64 / 1e3).into()))
            .collect::<serde_json::Map<String, serde_json::Value>>(),
        "stopped_seconds": row.stopped_seconds(),
        "failures": row.failures,
    })
}
