//! `coda-host stop`: asks the running host to finish and waits for it.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::failed;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock::{self, LockHolder};
use crate::error::{Failure, exit};

/// Beyond the drain timeout, before the process is killed.
const GRACE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The job in the plugin is finished and its result sent, for up to CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC (30); 5 s later
the process is killed, which loses nothing: what ran runs again. Exit status 1 when nothing was running.

Example:
  coda-host stop && coda-host start --daemon")]
pub struct Args {}

pub fn run(_: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let state = &prepared.settings.dirs.state;
    let Some(holder) = instance_lock::holder(state)? else {
        eprintln!("no coda-host is running with {}", state.display());
        return Ok(ExitCode::from(exit::FAILURE));
    };
    let signal = |holder: &LockHolder, number| {
        holder.signal(number).map_err(|e| {
            let message = format!("process {} can't be signalled", holder.pid);
            Failure {
                hint: Some("run this as the user who started it".into()),
                ..failed("stop", &message, &e)
            }
        })
    };
    signal(&holder, libc::SIGTERM)?;
    let gone = |limit: Duration| -> Result<bool, Failure> {
        let start = Instant::now();
        while start.elapsed() < limit {
            if instance_lock::holder(state).map(|now| now.as_ref() != Some(&holder)).unwrap_or(false) {
                return Ok(true);
            }
            std::thread::sleep(LOOK);
        }
        Ok(false)
    };
    if gone(prepared.settings.shutdown.drain + GRACE)? {
        println!("stopped (process {})", holder.pid);
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("process {} did not end in time and is killed; what it ran runs again", holder.pid);
    signal(&holder, libc::SIGKILL)?;
    gone(GRACE)?;
    Ok(ExitCode::SUCCESS)
}
