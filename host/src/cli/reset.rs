//! `coda-host reset`: removes everything that the first start created, except kept results.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::ExitCode;

use super::{kit, running_host};
use crate::app;
use crate::cloud::fingerprint;
use crate::config::load::{self, ProcessEnv};
use crate::daemon::instance_lock::{self, LOG_FILE, PID_FILE};
use crate::daemon::rotate;
use crate::error::Failure;
use crate::state::credentials::{self, CONFIG_FILE, KEY_FILE, TOKEN_FILE};
use crate::state::db::{Database, Delivery};
use crate::state::files;
use crate::vpn::command::Programs;
use crate::vpn::openvpn::Openvpn;

/// Files of OpenVPN in the credentials directory, which the Python node shares.
const OPENVPN_FILES: [&str; 3] = ["coda-node-openvpn.pid", "coda-node-openvpn.log", "coda-node.ovpn"];

#[derive(Debug, Default, clap::Args)]
#[command(after_help = "\
Stops the host and removes its credentials; the next start needs a new one-time node token. Undelivered and refused
results are kept.

Examples:
  coda-host reset
  coda-host reset --discard-results")]
pub struct Args {
    /// Also drop undelivered and refused results and dead letters; their number is printed
    #[arg(long)]
    discard_results: bool,
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let dirs = load::dirs(env)?;
    if instance_lock::holder(&dirs.state)?.is_some() {
        let settings = app::prepare(env, HashMap::new())?.settings;
        running_host::stop(&dirs.state, running_host::end_limit(&settings))?;
    }
    // The settings may be what is broken; the directories are known without them.
    let prepared = app::prepare(env, HashMap::new()).ok();
    let mut gone: BTreeSet<PathBuf> =
        [CONFIG_FILE, KEY_FILE, TOKEN_FILE, fingerprint::FILE, PID_FILE, LOG_FILE]
            .iter()
            .chain(&OPENVPN_FILES)
            .map(|name| dirs.credentials.join(name))
            .collect();
    gone.insert(dirs.credentials.join(format!("{LOG_FILE}{}", rotate::OLD_SUFFIX)));
    // The two paths that the stored config names.
    if let Ok(Some(stored)) = credentials::load(&dirs.credentials) {
        gone.insert(stored.key_path);
        gone.extend(stored.config.node_vpn_profile_path);
    }
    if let Some(prepared) = prepared {
        // Before the pid file is removed, because the daemon can't be found without it.
        let path = env.plain("PATH").unwrap_or_default();
        let vpn = &prepared.settings.vpn;
        if Openvpn::new(vpn, &dirs.credentials, Programs::of_path(path)).stop_now()? {
            kit::say("stopped the VPN");
        }
        gone.insert(prepared.settings.vpn.profile_path);
    }
    let mut removed = 0;
    for path in gone {
        removed += u32::from(files::remove(&path)?);
    }
    kit::say(format!("removed {removed} file(s); the next start needs a new node token"));
    results(&dirs.state, args.discard_results)
}

fn results(state: &std::path::Path, discard: bool) -> Result<ExitCode, Failure> {
    if !Database::exists(state) {
        return Ok(ExitCode::SUCCESS);
    }
    let mut database = Database::open(state)?;
    let kept = database.list()?;
    if kept.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    if !discard {
        kit::say(format!("kept {} result(s) and dead letter(s): see coda-host results list", kept.len()));
        return Ok(ExitCode::SUCCESS);
    }
    kit::say(format!("dropping {} result(s) and dead letter(s)", kept.len()));
    for row in &kept {
        database.end(row, Delivery::Dropped)?;
    }
    Ok(ExitCode::SUCCESS)
}
