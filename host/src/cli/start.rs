//! `coda-host start`: the daemon in the foreground.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::ExitCode;

use super::kit::{self, CliError};
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::Failure;

#[derive(Debug, Default, PartialEq, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host start --device site/device.yaml --token TOKEN   the first start, with the one-time token
  coda-host start --daemon                                  later ones, in the background
  CODA_LOG=debug coda-host start                            in the foreground, with a verbose log
  coda-host start --peer --no-cloud                         lend the QPU to a peer network only")]
pub struct Args {
    /// The device config (CODA_DEVICE_CONFIG; ./site/device.yaml when it exists)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    device: Option<PathBuf>,
    /// The interpreter of Python code, or its virtual environment (CODA_EXECUTOR_PYTHON)
    #[arg(long, value_name = "PATH", value_hint = clap::ValueHint::AnyPath)]
    python: Option<String>,
    /// One-time node token of the first start (CODA_NODE_TOKEN)
    #[arg(short, long, value_name = "TOKEN")]
    token: Option<String>,
    /// Address of the local service (CODA_HOST, 0.0.0.0)
    #[arg(short = 'H', long, value_name = "HOST")]
    host: Option<String>,
    /// Port of the local service (CODA_PORT, 8080)
    #[arg(short, long, value_name = "PORT")]
    port: Option<u16>,
    /// Lend the QPU's slots to a peer network as well (CODA_PEER); see docs/peers.md
    #[arg(long)]
    peer: bool,
    /// Join only the peer network: no cloud, no token (CODA_NO_CLOUD)
    #[arg(long, requires = "peer")]
    no_cloud: bool,
    /// Run in the background; the command returns when the host is up or has failed
    #[arg(short, long)]
    daemon: bool,
}

impl Args {
    /// The values of the flags, by the names of the variables that they stand for.
    fn flags(self) -> Result<HashMap<&'static str, String>, Failure> {
        let device = self.device.map(|path| kit::device_flag(&path)).transpose()?;
        let given = [
            ("CODA_NODE_TOKEN", self.token),
            ("CODA_EXECUTOR_PYTHON", self.python),
            ("CODA_HOST", self.host),
            ("CODA_PORT", self.port.map(|p| p.to_string())),
            ("CODA_PEER", self.peer.then(|| "true".into())),
            ("CODA_NO_CLOUD", self.no_cloud.then(|| "true".into())),
        ];
        let given = given.into_iter().filter_map(|(name, value)| Some((name, value?)));
        Ok(given.chain(device).collect())
    }
}

pub fn run(args: Args, env: ProcessEnv) -> Result<ExitCode, Failure> {
    if args.daemon {
        return super::daemonize::run(&env, args.flags()?);
    }
    let runtime = kit::runtime()?;
    // On a worker thread, because the driver would otherwise be woken across threads for every event.
    let host = runtime.spawn(app::run(env, args.flags()?));
    let result = runtime.block_on(host);
    // A plugin call that never returns must not keep the process.
    runtime.shutdown_background();
    result.unwrap_or_else(|e| Err(CliError::TaskEnded { task: "the host", source: e }.into()))
}
