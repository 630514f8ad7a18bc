//! `coda-host logs`: the daemon's log.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::kit;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock::LOG_FILE;
use crate::error::{Explain, Failure, exit};
use crate::output;

const LOOK: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Shows the log of `coda-host start --daemon`. Under systemd the log is in the journal: journalctl -u coda-host.

Examples:
  coda-host logs -n 100
  coda-host logs --follow")]
pub struct Args {
    /// Number of lines
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: usize,
    /// Print new lines as they are added, until Ctrl-C
    #[arg(short, long)]
    follow: bool,
}

/// A log that can't be shown.
#[derive(Debug, thiserror::Error)]
#[error("the log {} can't be shown", path.display())]
pub struct LogsError {
    pub path: PathBuf,
    pub source: io::Error,
}

impl Explain for LogsError {
    fn code(&self) -> &'static str {
        "logs"
    }

    fn hint(&self) -> Option<String> {
        Some("run this as the user who started the daemon".into())
    }
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let path = prepared.settings.dirs.credentials.join(LOG_FILE);
    if !path.is_file() {
        output::notice(format!("there is no log {}: no daemon was started here", path.display()));
        return Ok(ExitCode::from(exit::FAILURE));
    }
    show(&path, &args).map_err(|source| LogsError { path, source })?;
    // With an error of standard output, if there was one.
    kit::print("")
}

fn show(path: &Path, args: &Args) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut last: VecDeque<Vec<u8>> = VecDeque::new();
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line)? > 0 {
        if last.len() == args.lines {
            last.pop_front();
        }
        last.push_back(std::mem::take(&mut line));
    }
    for line in last {
        output::print(&line);
    }
    if !args.follow {
        return Ok(());
    }
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    let mut file = reader.into_inner();
    let mut at = file.stream_position()?;
    while !stop.is_cancelled() && output::is_open() {
        let length = file.metadata()?.len();
        if length < at {
            // The log was rotated.
            at = file.seek(SeekFrom::Start(0))?;
        }
        if length > at {
            let mut more = Vec::new();
            (&mut file).take(length - at).read_to_end(&mut more)?;
            at += more.len() as u64;
            output::print(&more);
        } else {
            std::thread::sleep(LOOK);
        }
    }
    Ok(())
}
