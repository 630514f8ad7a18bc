//! `coda-host maintenance`: the times of maintenance that come, as the host reads them from its calendar.

use std::collections::HashMap;
use std::process::ExitCode;

use chrono::{DateTime, Local};
use serde_json::json;
use time::OffsetDateTime;

use super::kit;
use crate::app;
use crate::availability::calendar::Window;
use crate::availability::calendar_file;
use crate::config::load::ProcessEnv;
use crate::error::{Failure, exit};
use crate::model::iso_time;
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The calendar is the iCalendar file (RFC 5545) of CODA_MAINTENANCE_CALENDAR, with recurrence and time zones. In each of its
events the host is paused by itself, and no run is begun that would overlap the beginning. The file is read again when it
changes; one that can't be used keeps the windows of the last good one.

Exit status: 0 printed, 1 no calendar is set, 2 the calendar can't be used.

Examples:
  coda-host maintenance
  coda-host maintenance --json | jq -r '.[0].begin'")]
pub struct Args {
    /// Print so many
    #[arg(short = 'n', long, default_value_t = 20, value_name = "N")]
    lines: usize,
    /// Print JSON: a list of begin, end and summary
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let settings = app::prepare(env, HashMap::new())?.settings;
    let Some(path) = settings.availability.calendar else {
        output::notice("no calendar is set");
        output::notice("  to do: set CODA_MAINTENANCE_CALENDAR to an iCalendar file");
        return Ok(ExitCode::from(exit::FAILURE));
    };
    let now = OffsetDateTime::now_utc();
    let windows = calendar_file::read(&path, now)?;
    let shown = windows.iter().take(args.lines);
    let text = match args.json {
        true => {
            let list: Vec<_> = shown
                .map(|w| json!({ "begin": iso_time(w.begin), "end": iso_time(w.end), "summary": w.summary }))
                .collect();
            format!("{}\n", json!(list))
        }
        false if windows.is_empty() => format!("no maintenance in the next 400 days ({})\n", path.display()),
        false => shown.map(|window| line(window, now)).collect(),
    };
    kit::print(text.as_bytes())
}

/// One window, by this machine's clock.
fn line(window: &Window, now: OffsetDateTime) -> String {
    let local = |at: OffsetDateTime| {
        let at = DateTime::from_timestamp(at.unix_timestamp(), 0).unwrap_or_default();
        at.with_timezone(&Local).format("%a %Y-%m-%d %H:%M").to_string()
    };
    let mark = if window.begin <= now { "  (now)" } else { "" };
    format!("{} to {}  {}{mark}\n", local(window.begin), local(window.end), window.summary)
}
