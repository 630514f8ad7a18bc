//! `coda-host status`: prints the status of the running host.

use std::collections::HashMap;
use std::process::ExitCode;

use serde_json::Value;

use super::kit;
use super::running_host::fetch_ready;
use crate::app;
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock;
use crate::error::{Failure, exit};
use crate::executor::python::spec::node_text;
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Exit status: 0 running and ready, 1 not running, 2 running and not ready.

Examples:
  coda-host status
  coda-host --unit coda-host status                  a host under systemd
  coda-host status --json | jq .plugin")]
pub struct Args {
    /// Print JSON: the body of /ready, with the process
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
        kit::print(text.as_bytes())?;
        return Ok(ExitCode::from(exit::FAILURE));
    };
    let ready = match &holder.address {
        Some(address) => kit::runtime()?.block_on(fetch_ready(address))?,
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
    kit::print(text.as_bytes())?;
    Ok(if ready["ready"] == true { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// The status as lines of a name and a value.
fn render(ready: &Value, pid: u32, address: Option<&str>) -> String {
    let mut lines = Lines(String::new());
    lines.add("running", &format!("process {pid}, {}", address.unwrap_or("no address yet")));
    lines.add("ready", if ready["ready"] == true { "yes" } else { "no" });
    for reason in ready["reasons"].as_array().into_iter().flatten() {
        lines.add("", &text(reason));
    }
    let next = &ready["next_maintenance"];
    if next.is_object() {
        let of = |key: &str| text(&next[key]);
        lines.add("maintenance", &format!("{} to {}: {}", of("begin"), of("end"), of("summary")));
    }
    if ready["plugin"].is_object() {
        add_plugin(&mut lines, ready);
    }
    if ready["qpu_id"].is_string() {
        add_cloud(&mut lines, ready);
    }
    if ready["peer"].is_object() {
        add_peer(&mut lines, &ready["peer"]);
    }
    lines.0
}

fn add_plugin(lines: &mut Lines, ready: &Value) {
    let plugin = &ready["plugin"];
    let (name, version) = (text(&plugin["name"]), text(&plugin["version"]));
    let (vendor, path) = (text(&plugin["vendor"]), text(&plugin["path"]));
    lines.add("plugin", &format!("{name} {version} by {vendor}, {path}"));

    let python = &plugin["python"];
    if python.is_object() {
        let of = |key: &str| text(&python[key]);
        lines.add("python", &format!("{} of {}", of("factory"), of("package")));
        let node = node_text(python["coda_node"].as_str().unwrap_or_default());
        lines.add("", &format!("Python {}, {node}, chosen by {}", of("python"), of("chosen_by")));
    }

    let (busy, slots) = (text(&ready["slots_busy"]), text(&ready["slots"]));
    let read_ahead = match &ready["waiting"] {
        Value::Null => String::new(),
        n => format!(", {n} job(s) read ahead"),
    };
    lines.add("slots", &format!("{busy} of {slots} busy{read_ahead}"));
}

fn add_cloud(lines: &mut Lines, ready: &Value) {
    lines.add("qpu", &text(&ready["qpu_id"]));
    lines.add("job", &text(&ready["current_job"]));
    let progress = &ready["progress"];
    if let (Some(done), Some(total)) = (progress["done"].as_u64(), progress["total"].as_u64()) {
        lines.add("progress", &format!("{done} of {total}"));
    }
    lines.add("undelivered", &text(&ready["undelivered"]));
    lines.add("redis", if ready["redis_healthy"] == true { "connected" } else { "not connected" });
    lines.add("vpn", &text(&ready["vpn_state"]));

    let heartbeat = &ready["heartbeat"];
    let accepted = heartbeat["last_accepted_seconds_ago"].as_u64();
    lines.add(
        "heartbeat",
        &accepted.map_or("none accepted yet".into(), |seconds| format!("accepted {seconds} s ago")),
    );
    if heartbeat["error"].is_string() {
        lines.add("", &text(&heartbeat["error"]));
    }
}

fn add_peer(lines: &mut Lines, peer: &Value) {
    lines.add("peer", &text(&peer["peer_id"]));
    let (connected, held) = (text(&peer["connected"]), text(&peer["reservations"]));
    lines.add("", &format!("{connected} peer(s) connected, {held} reservation(s) held"));

    let (accepted, declined) = (text(&peer["accepted"]), text(&peer["declined"]));
    let (completed, failed) = (text(&peer["completed"]), text(&peer["failed"]));
    lines.add(
        "",
        &format!(
            "since its start: {accepted} reserved, {declined} declined, {completed} run, {failed} failed"
        ),
    );
}

/// Lines in two columns.
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, value: &str) {
        self.0 += &format!("{name:<14}{}\n", output::inline(value));
    }
}

/// A value for a person: texts without quotes, null as `none`.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "none".to_string(),
        Value::String(s) => s.clone(),
        other => other.to_string(),
    }
}
