//! The running host as other commands use it: its `/ready`, signals to it, and waiting for its end.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::kit;
use crate::cloud::http::{HttpClient, Target};
use crate::config::Settings;
use crate::daemon::instance_lock::{self, LockHolder};
use crate::error::{Explain, Failure, exit};
use crate::output;

/// Limit of one request to the local service.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// How long a host may take beyond its own limits before it is killed.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// Pause between two looks at the instance lock.
const POLL: Duration = Duration::from_millis(20);

/// Why a command could not reach the running host's process.
#[derive(Debug, thiserror::Error)]
pub enum RunningHostError {
    #[error("process {pid} can't be signalled")]
    Signal { pid: u32, source: io::Error },
}

impl Explain for RunningHostError {
    fn code(&self) -> &'static str {
        match self {
            RunningHostError::Signal { .. } => "signal",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            RunningHostError::Signal { .. } => Some("run this as the user who started it".into()),
        }
    }
}

/// Asks the local service for the body of `/ready`, whatever its status.
///
/// # Errors
/// The address is not a URL's host and port, or the service does not answer in time.
pub async fn fetch_ready(address: &str) -> Result<Value, Failure> {
    // A host that listens on every address is asked over loopback.
    let address = address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
    let target = Target::parse(&format!("http://{address}/ready"))?;
    let answer = HttpClient::local()?.get(&target, REQUEST_LIMIT).await?;
    let body = answer.body?;
    Ok(serde_json::from_slice(&body).unwrap_or_else(
        |_| serde_json::json!({ "ready": false, "reasons": ["the local service gave no JSON"] }),
    ))
}

/// Sends a signal to the host's process.
///
/// # Errors
/// The process belongs to another user, or is gone.
pub fn signal(holder: &LockHolder, number: i32) -> Result<(), RunningHostError> {
    holder.signal(number).map_err(|source| RunningHostError::Signal { pid: holder.pid, source })
}

/// How long a host may take to end: its drain, then the end of its VPN, which is asked to stop and then killed.
pub fn end_limit(settings: &Settings) -> Duration {
    settings.shutdown.drain + 2 * settings.vpn.stop_timeout
}

/// Stops the host that holds the lock of this state directory: it is asked to finish, and killed when it does not end
/// within this limit. A killed host loses nothing; what it ran is run again.
///
/// # Errors
/// The lock can't be read, or the process can't be signalled.
pub fn stop(state: &Path, limit: Duration) -> Result<ExitCode, Failure> {
    let Some(holder) = instance_lock::holder(state)? else {
        output::notice(format!("no coda-host is running with {}", state.display()));
        return Ok(ExitCode::from(exit::FAILURE));
    };
    // A second signal would end it at once, and what runs would run again.
    match holder.stopping {
        true => output::notice(format!("process {} is stopping already; waiting for its end", holder.pid)),
        false => signal(&holder, libc::SIGTERM)?,
    }
    if ends_within(state, &holder, limit + KILL_GRACE) {
        kit::say(format!("stopped (process {})", holder.pid));
        return Ok(ExitCode::SUCCESS);
    }
    output::notice(format!(
        "process {} did not end in time and is killed; what it ran runs again",
        holder.pid
    ));
    signal(&holder, libc::SIGKILL)?;
    ends_within(state, &holder, KILL_GRACE);
    Ok(ExitCode::SUCCESS)
}

/// Waits until the lock is free or has another holder. A lock that can't be read is looked at again: the host removes
/// its files while it ends.
pub fn ends_within(state: &Path, holder: &LockHolder, limit: Duration) -> bool {
    let start = Instant::now();
    while start.elapsed() < limit {
        if instance_lock::holder(state).is_ok_and(|now| !now.is_some_and(|now| now.is_process_of(holder))) {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}
