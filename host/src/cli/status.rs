//! `coda-host status`: what the running host says of itself.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use crate::app;
use crate::cloud::http::{HttpClient, Target};
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock;
use crate::error::{Failure, exit};

const LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 running and ready, 1 not running, 2 running and not ready.

Examples:
  coda-host status
  coda-host --unit coda-host status                  a host under systemd
  coda-host status --json | jq .plugin")]
pub struct Args {
    /// JSON for machines: the body of /ready, with the process
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let state = &prepared.settings.dirs.state;
    let Some(holder) = instance_lock::holder(state)? else {
        let text = match args.json {
            true => "{\"running\":false}\n".to_string(),
            false => format!(
                "not running (state in {})\n  under systemd name the unit: coda-host --unit coda-host status\n",
                state.display()
            ),
        };
        super::put(text.as_bytes())?;
        return Ok(ExitCode::from(exit::FAILURE));
    };
    let ready = match &holder.address {
        Some(address) => super::runtime()?.block_on(fetch_ready(address))?,
        None => {
            serde_json::json!({ "ready": false, "reasons": ["starting: the local service isn't up yet"] })
        }
    };
    let text = match args.json {
        true => {
            let mut body = ready.clone();
            if let Value::Object(map) = &mut body {
                map.insert("running".into(), true.into());
                map.insert("pid".into(), holder.pid.into());
                map.insert("address".into(), holder.address.clone().into());
            }
            format!("{body}\n")
        }
        false => render(&ready, holder.pid, holder.address.as_deref()),
    };
    super::put(text.as_bytes())?;
    Ok(if ready["ready"] == true { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// The body of `/ready`, whatever its status.
pub async fn fetch_ready(address: &str) -> Result<Value, Failure> {
    // A host that listens everywhere is asked on this machine.
    let address = address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:");
    let target = Target::parse(&format!("http://{address}/ready"))?;
    let answer = HttpClient::local()?.get(&target, LIMIT).await?;
    let body = answer.body?;
    Ok(serde_json::from_slice(&body).unwrap_or_else(
        |_| serde_json::json!({ "ready": false, "reasons": ["the local service gave no JSON"] }),
    ))
}

fn render(ready: &Value, pid: u32, address: Option<&str>) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String can't fail.
        writeln!(out, "{name:<14}{value}").ok();
    };
    let text = |v: &Value| match v {
        Value::Null => "none".to_string(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    };
    line("running", format!("process {pid}, {}", address.unwrap_or("no address yet")));
    line("ready", if ready["ready"] == true { "yes".into() } else { "no".into() });
    for reason in ready["reasons"].as_array().into_iter().flatten() {
        line("", text(reason));
    }
    let p = &ready["plugin"];
    if p.is_object() {
        line(
            "plugin",
            format!(
                "{} {} by {}, {}",
                text(&p["name"]),
                text(&p["version"]),
                text(&p["vendor"]),
                text(&p["path"])
            ),
        );
        let (busy, slots) = (text(&ready["slots_busy"]), text(&ready["slots"]));
        let ahead = match &ready["waiting"] {
            Value::Null => String::new(),
            n => format!(", {n} job(s) read ahead"),
        };
        line("slots", format!("{busy} of {slots} busy{ahead}"));
    }
    if ready["qpu_id"].is_string() {
        line("qpu", text(&ready["qpu_id"]));
        line("job", text(&ready["current_job"]));
        if let (Some(done), Some(total)) =
            (ready["progress"]["done"].as_u64(), ready["progress"]["total"].as_u64())
        {
            line("progress", format!("{done} of {total}"));
        }
        line("undelivered", text(&ready["undelivered"]));
        line(
            "redis",
            if ready["redis_healthy"] == true { "connected".into() } else { "not connected".into() },
        );
        line("vpn", text(&ready["vpn_state"]));
        let beat = &ready["heartbeat"];
        line(
            "heartbeat",
            match beat["last_accepted_seconds_ago"].as_u64() {
                Some(s) => format!("accepted {s} s ago"),
                None => "none accepted yet".into(),
            },
        );
        if beat["error"].is_string() {
            line("", text(&beat["error"]));
        }
    }
    let peer = &ready["peer"];
    if peer.is_object() {
        line("peer", text(&peer["peer_id"]));
        let (connected, held) = (text(&peer["connected"]), text(&peer["reservations"]));
        line("", format!("{connected} peer(s) connected, {held} reservation(s) held"));
        line(
            "",
            format!(
                "since its start: {} reserved, {} declined, {} run, {} failed",
                text(&peer["accepted"]),
                text(&peer["declined"]),
                text(&peer["completed"]),
                text(&peer["failed"])
            ),
        );
    }
    out
}
