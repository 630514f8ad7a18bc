//! `coda-host stop`: asks the running host to finish and waits for it.

use std::collections::HashMap;
use std::process::ExitCode;

use super::running_host;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::Failure;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The host finishes the job in the plugin and sends its result, for up to CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC (30), then it
stops its VPN. A process that does not end is killed. Nothing is lost then: an interrupted job runs again. A host that
is stopping already is waited for; a second SIGTERM would end it at once.

Exit status: 0 stopped, 1 no host was running.

Example:
  coda-host stop && coda-host start --daemon")]
pub struct Args {}

pub fn run(_: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let settings = app::prepare(env, HashMap::new())?.settings;
    running_host::stop(&settings.dirs.state, running_host::end_limit(&settings))
}
