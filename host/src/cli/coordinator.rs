//! `coda-host coordinator`: plans circuits onto the peers of a network.

use std::collections::HashMap;
use std::process::ExitCode;

use super::kit::{self, CliError};
use crate::app;
use crate::config::load::{self, ProcessEnv};
use crate::error::Failure;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host coordinator                                                on 4002 for peers, 127.0.0.1:8090 for jobs
  coda-host coordinator --listen /ip4/0.0.0.0/tcp/4002 --http 127.0.0.1:8090
  coda-host coordinate bell.qasm --shots 1000                          a job for it, from another terminal
  curl -s 127.0.0.1:8090/api/v1/peers | jq                             who is there

Its address with the peer id is in the log; peers join with CODA_PEER_BOOTSTRAP. See docs/peers.md.")]
pub struct Args {
    /// Where peers connect (CODA_COORDINATOR_LISTEN, /ip4/0.0.0.0/tcp/4002)
    #[arg(long, value_name = "MULTIADDR")]
    listen: Option<String>,
    /// Where the HTTP API is served (CODA_COORDINATOR_HTTP, 127.0.0.1:8090)
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// The event log: a file, or a postgres:// URL shared with other coordinators (CODA_COORDINATOR_STORE)
    #[arg(long, value_name = "PATH|URL")]
    store: Option<String>,
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    let given = [
        ("CODA_COORDINATOR_LISTEN", args.listen),
        ("CODA_COORDINATOR_HTTP", args.http),
        ("CODA_COORDINATOR_STORE", args.store),
    ];
    let flags: HashMap<&'static str, String> =
        given.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let (settings, _) = load::settings(&env, flags, load::dirs(&env)?, None)?;
    let runtime = kit::runtime()?;
    let result = runtime.block_on(async { tokio::spawn(app::coordinator::run(settings)).await });
    runtime.shutdown_background();
    result.unwrap_or_else(|e| Err(CliError::TaskEnded { task: "the coordinator", source: e }.into()))
}
