//! `coda-host pause` and `coda-host resume`: keep the host from beginning runs, for as long as someone works on the device.

use std::collections::HashMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use chrono::{DateTime, Local, NaiveDateTime, NaiveTime, TimeZone as _};
use serde_json::Value;
use time::OffsetDateTime;
use tokio_util::sync::CancellationToken;

use super::kit;
use super::running_host::fetch_ready;
use crate::app;
use crate::availability::pause::{self, MAX_NOTE, Pause};
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock;
use crate::error::{Failure, exit};
use crate::model::iso_time;
use crate::output;

/// Length of a pause without a limit.
const DEFAULT_LENGTH: Duration = Duration::from_secs(8 * 3600);
const LOOK: Duration = Duration::from_millis(50);
/// How long a host may take to notice, beyond the interval at which it looks.
const NOTICE_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
What runs is finished; nothing more is begun or claimed. Jobs that were read ahead keep their order, and jobs of the
stream wait there. Results are delivered, heartbeats go on, and peers are declined with the reason `paused`. /ready
answers 503 with the note and the end. A pause lasts over restarts, and can be begun while no host runs: the next start
is paused then. A second pause takes the place of the first.

Exit status: 0 paused (with --wait: and nothing runs), 1 interrupted, or the host has not noticed.

Examples:
  coda-host pause --for 2h --note 'new cables in the fridge' --wait
  coda-host pause --until 18:30
  coda-host pause --until 2026-12-24T12:00:00Z
  coda-host resume")]
pub struct Args {
    /// Length of the pause, such as 90m, 2h or 3days (without a limit: 8h)
    #[arg(long = "for", value_name = "DURATION", value_parser = length, conflicts_with = "until")]
    length: Option<Duration>,
    /// End of the pause: HH:MM or YYYY-MM-DD HH:MM by this machine's clock, or a time as in RFC 3339
    #[arg(long, value_name = "TIME", value_parser = until)]
    until: Option<OffsetDateTime>,
    /// What is done meanwhile; shown in /ready, status, page and log
    #[arg(long, value_name = "TEXT", value_parser = note)]
    note: Option<String>,
    /// Return when nothing runs any more
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 the pause is over, or there was none.

Example:
  coda-host resume")]
pub struct ResumeArgs {}

/// A length of time, as people write it.
fn length(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(length) if length.is_zero() => Err("a pause has a length".into()),
        Ok(length) if length > Duration::from_secs(366 * 86_400) => Err("a pause is at most a year".into()),
        Ok(length) => Ok(length),
        Err(error) => Err(format!("{error}; write it such as 90m, 2h or 3days")),
    }
}

fn note(text: &str) -> Result<String, String> {
    let text = text.trim();
    match text.len() {
        0 => Err("a note has some text".into()),
        bytes if bytes > MAX_NOTE => Err(format!("a note has at most {MAX_NOTE} bytes")),
        _ if text.chars().any(char::is_control) => Err("a note is one line of text".into()),
        _ => Ok(text.into()),
    }
}

fn until(text: &str) -> Result<OffsetDateTime, String> {
    end_of(text, Local::now())
}

/// The moment that `text` names, as read at `now`. A time of day is the next such one.
fn end_of(text: &str, now: DateTime<Local>) -> Result<OffsetDateTime, String> {
    let text = text.trim();
    let local = |naive: NaiveDateTime| match Local.from_local_datetime(&naive).latest() {
        Some(time) => Ok(time.timestamp()),
        None => Err(format!("there is no {naive} here: the clock is set forward then")),
    };
    let seconds = if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        time.timestamp()
    } else if let Ok(time) = NaiveTime::parse_from_str(text, "%H:%M") {
        let today = now.date_naive().and_time(time);
        match local(today) {
            Ok(at) if at > now.timestamp() => at,
            _ => local(today + chrono::Days::new(1))?,
        }
    } else if let Ok(naive) = NaiveDateTime::parse_from_str(&text.replacen('T', " ", 1), "%Y-%m-%d %H:%M") {
        local(naive)?
    } else {
        return Err("write HH:MM, YYYY-MM-DD HH:MM, or a time as in RFC 3339 (2026-12-24T12:00:00Z)".into());
    };
    if seconds <= now.timestamp() {
        return Err("that is over already".into());
    }
    OffsetDateTime::from_unix_timestamp(seconds).map_err(|_| "that is beyond the calendar".into())
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let settings = app::prepare(env, HashMap::new())?.settings;
    let since = OffsetDateTime::now_utc();
    let end = args.until.unwrap_or_else(|| since + args.length.unwrap_or(DEFAULT_LENGTH));
    // To the second, as it is shown.
    let end = end.replace_nanosecond(0).unwrap_or(end);
    let pause = Pause { since, until: end, note: args.note };
    let state = &settings.dirs.state;
    pause::write(state, &pause)?;
    if args.length.is_none() && args.until.is_none() {
        output::notice("no limit was given, so the pause ends in 8 h; --for and --until set another end");
    }

    let limit = settings.availability.interval + NOTICE_LIMIT;
    let is_noticed = |ready: &Value| ready["hold"]["until"] == iso_time(pause.until);
    let until = iso_time(pause.until);
    match follow(state, limit, args.wait, is_noticed)? {
        Followed::NoHost => {
            kit::say(format!("paused until {until}; no host runs now, the next start is paused"))
        }
        Followed::Noticed { running: 0 } => kit::say(format!("paused until {until}; nothing runs")),
        Followed::Noticed { running } => {
            kit::say(format!("paused until {until}; {running} run(s) in the plugin are finished"));
        }
        Followed::Interrupted => {
            output::notice(format!("no longer waiting; paused until {until}"));
            return Ok(ExitCode::from(exit::FAILURE));
        }
        Followed::NotNoticed => {
            output::notice("the host has not noticed the pause; see `coda-host status` and its log");
            return Ok(ExitCode::from(exit::FAILURE));
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub fn resume(_: ResumeArgs, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let settings = app::prepare(env, HashMap::new())?.settings;
    let state = &settings.dirs.state;
    // Also one that can't be read.
    let is_over = matches!(pause::read(state), Ok(Some(pause)) if pause.until <= OffsetDateTime::now_utc());
    if !pause::remove(state)? || is_over {
        kit::say("there was no pause");
        return Ok(ExitCode::SUCCESS);
    }
    let limit = settings.availability.interval + NOTICE_LIMIT;
    match follow(state, limit, false, |ready| ready["hold"]["state"] != "paused")? {
        Followed::NotNoticed => {
            output::notice(
                "the host has not noticed the end of the pause; see `coda-host status` and its log",
            );
            Ok(ExitCode::from(exit::FAILURE))
        }
        _ => {
            kit::say("the pause is over");
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// What came of a change that a running host is to notice.
enum Followed {
    /// No host runs with this state directory, or none that is up.
    NoHost,
    /// The host goes by it; so many slots are busy.
    Noticed {
        running: u64,
    },
    NotNoticed,
    Interrupted,
}

/// Waits until the host goes by what was written, and with `wait` until no slot is busy.
fn follow(
    state: &Path,
    limit: Duration,
    wait: bool,
    is_noticed: impl Fn(&Value) -> bool,
) -> Result<Followed, Failure> {
    let holder = instance_lock::holder(state)?;
    let Some(address) = holder.and_then(|holder| holder.address) else { return Ok(Followed::NoHost) };
    let runtime = kit::runtime()?;
    let stop = CancellationToken::new();
    runtime.block_on(async { app::watch_signals(stop.clone()) });
    let start = Instant::now();
    let mut is_known = false;
    loop {
        if stop.is_cancelled() {
            return Ok(Followed::Interrupted);
        }
        let ready = match runtime.block_on(fetch_ready(&address)) {
            Ok(ready) => ready,
            Err(_) if !instance_lock::holder(state).is_ok_and(|now| now.is_some()) => {
                return Ok(Followed::NoHost);
            }
            Err(failure) => return Err(failure),
        };
        let running = ready["slots_busy"].as_u64();
        is_known |= is_noticed(&ready);
        match running {
            Some(running) if is_known && (running == 0 || !wait) => return Ok(Followed::Noticed { running }),
            // A host that starts reads the pause before it begins anything.
            None if !wait => return Ok(Followed::NoHost),
            _ if !is_known && start.elapsed() > limit => return Ok(Followed::NotNoticed),
            _ => std::thread::sleep(LOOK),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_written_as_people_write_them() {
        let now = Local.with_ymd_and_hms(2026, 12, 1, 12, 0, 0).unwrap();
        let local =
            |day, hour, minute| Local.with_ymd_and_hms(2026, 12, day, hour, minute, 0).unwrap().timestamp();
        for (text, expected) in [
            ("18:30", local(1, 18, 30)),
            ("07:00", local(2, 7, 0)),
            ("12:00", local(2, 12, 0)),
            ("2026-12-24 12:00", local(24, 12, 0)),
            ("2026-12-24T12:00", local(24, 12, 0)),
            ("2126-12-24T12:00:00+02:00", 4_953_780_000),
        ] {
            assert_eq!(end_of(text, now).map(OffsetDateTime::unix_timestamp), Ok(expected), "{text}");
        }
        for text in ["", "tomorrow", "25:00", "2026-11-30 12:00", "1999-01-01T00:00:00Z", "2026-12-01 12:00"]
        {
            assert!(end_of(text, now).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_have_a_unit_and_a_limit() {
        assert_eq!(length("90m"), Ok(Duration::from_secs(5400)));
        assert_eq!(length("1h 30min"), Ok(Duration::from_secs(5400)));
        for text in ["", "0s", "2", "-1h", "2 years", "99999999999999999999h"] {
            assert!(length(text).is_err(), "{text}");
        }
    }
}
