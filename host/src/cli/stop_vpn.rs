//! `coda-host stop-vpn`: ends the OpenVPN daemon that a host or the Python node started.

use std::collections::HashMap;
use std::process::ExitCode;

use super::kit;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::error::{Failure, exit};
use crate::output;
use crate::vpn::command::Programs;
use crate::vpn::openvpn::Openvpn;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Only an openvpn process that runs this host's profile is stopped, whatever the pid file says. A running host is no longer
ready then; its next start brings the tunnel up again. Exit status 1 when there was nothing to stop.

Example:
  coda-host stop && coda-host stop-vpn")]
pub struct Args {}

pub fn run(_: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let path = env.plain("PATH").unwrap_or_default();
    let (vpn, dir) = (&prepared.settings.vpn, &prepared.settings.dirs.credentials);
    if Openvpn::new(vpn, dir, Programs::of_path(path)).stop_now()? {
        kit::say("stopped the VPN");
        return Ok(ExitCode::SUCCESS);
    }
    output::notice("no VPN of this host is running");
    Ok(ExitCode::from(exit::FAILURE))
}
