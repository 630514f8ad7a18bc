//! `coda-host reload`: loads a new library or device config into the running host, and prints the outcome.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{kit, running_host};
use crate::app;
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock;
use crate::error::{Failure, exit};
use crate::output;

/// Time for the end and the new start of the plugin, beyond the drain timeout of its runs.
const GRACE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);
/// How long a host that no longer answers may take to end.
const LOCK_WAIT: Duration = Duration::from_secs(10);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The device config is read again, and the plugin that it names is checked in a separate process. Then, between two
runs, the former executor is shut down and the new one is created. Jobs, Redis and the cloud are not affected. If the
new executor can't be created, the former one is created again. Needs a plugin in a separate process
(CODA_EXECUTOR_ISOLATION=process). SIGHUP does the same.

Exit status: 0 reloaded, 1 not reloaded (the former executor stays in use) or no host is running.

Example:
  mv libacme.so.new /usr/lib/coda-host/libacme.so && coda-host reload")]
pub struct Args {}

pub fn run(_: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let state = &prepared.settings.dirs.state;
    let holder = instance_lock::holder(state)?;
    let Some((holder, address)) = holder.and_then(|h| h.address.clone().map(|a| (h, a))) else {
        output::notice(format!("no coda-host is up with {}", state.display()));
        output::notice("  to do: start it; under systemd name the unit: coda-host --unit coda-host reload");
        return Ok(ExitCode::from(exit::FAILURE));
    };
    let runtime = kit::runtime()?;
    let ask = || runtime.block_on(running_host::fetch_ready(&address));
    let count = |ready: &Value| ready["reloads"]["count"].as_u64().unwrap_or(0);
    let before = count(&ask()?);
    running_host::signal(&holder, libc::SIGHUP)?;
    let (start, limit) = (Instant::now(), prepared.settings.shutdown.drain + GRACE);
    let stop = CancellationToken::new();
    runtime.block_on(async { app::watch_signals(stop.clone()) });
    while start.elapsed() < limit {
        if stop.is_cancelled() {
            output::notice("no longer waiting; the reload goes on in the host, see `coda-host status`");
            return Ok(ExitCode::from(exit::FAILURE));
        }
        let ready = match ask() {
            Ok(ready) => ready,
            // Its service ends a moment before its lock.
            Err(_) if running_host::ends_within(state, &holder, LOCK_WAIT) => {
                output::notice("the host stopped before it had reloaded");
                return Ok(ExitCode::from(exit::FAILURE));
            }
            Err(failure) => return Err(failure),
        };
        if count(&ready) > before {
            let message = ready["reloads"]["message"].as_str().unwrap_or_default();
            return Ok(match ready["reloads"]["ok"] == true {
                true => {
                    kit::say(message);
                    ExitCode::SUCCESS
                }
                false => {
                    output::notice(format!("not reloaded, the former executor stays: {message}"));
                    ExitCode::from(exit::FAILURE)
                }
            });
        }
        std::thread::sleep(LOOK);
    }
    output::notice(format!("no answer within {limit:?}; see the log of process {}", holder.pid));
    Ok(ExitCode::from(exit::FAILURE))
}
