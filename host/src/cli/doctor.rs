//! `coda-host doctor`: checks what a host needs, and prints how to fix each problem.
//!
//! Nothing is changed. While a host is running its plugin is not opened a second time, because two processes would
//! then drive one device.

mod checks;
mod migration;
mod peer;

use std::process::ExitCode;

use super::kit;
use crate::config::load::ProcessEnv;
use crate::error::{Failure, exit};
use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each line passes, warns or fails, and says how to fix it. Exit status 1 when a check fails.

Examples:
  coda-host doctor
  coda-host --unit coda-host doctor  a host under systemd
  coda-host doctor --no-plugin       don't open the device
  coda-host doctor --json | jq '.[] | select(.result == \"fail\")'")]
pub struct Args {
    /// JSON for machines
    #[arg(long)]
    json: bool,
    /// Read only the plugin's file, without opening the device
    #[arg(long)]
    no_plugin: bool,
}

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Pass,
    Warn,
    Fail,
    Skip,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
            Verdict::Skip => "skip",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone)]
struct Finding {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// How to fix it; `None` when nothing is to be done.
    todo: Option<String>,
}

impl Finding {
    fn pass(name: &'static str, found: impl Into<String>) -> Finding {
        Finding { name, verdict: Verdict::Pass, found: found.into(), todo: None }
    }

    fn skip(name: &'static str, found: impl Into<String>) -> Finding {
        Finding { name, verdict: Verdict::Skip, found: found.into(), todo: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Finding {
        Finding { name, verdict: Verdict::Warn, found: found.into(), todo: Some(todo.into()) }
    }

    fn fail(name: &'static str, found: impl Into<String>, todo: impl Into<String>) -> Finding {
        Finding { name, verdict: Verdict::Fail, found: found.into(), todo: Some(todo.into()) }
    }

    /// A finding that fails with an error of a stage and its hint.
    fn failure(name: &'static str, failure: &Failure) -> Finding {
        let todo = failure.hint.clone().unwrap_or_else(|| "see docs/operations.md".into());
        Finding::fail(name, failure.line(), todo)
    }
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let runtime = kit::runtime()?;
    let findings = runtime.block_on(checks::run_checks(env, args.no_plugin));
    runtime.shutdown_background();
    let text = if args.json { as_json(&findings) } else { as_text(&findings) };
    kit::print(text.as_bytes())?;
    let failed = findings.iter().any(|f| f.verdict == Verdict::Fail);
    Ok(if failed { ExitCode::from(exit::FAILURE) } else { ExitCode::SUCCESS })
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for f in findings {
        text += &format!("{}  {:<12} {}\n", f.verdict.name(), f.name, output::inline(&f.found));
        if let Some(todo) = &f.todo {
            text += &format!("      to do: {}\n", output::inline(todo));
        }
    }
    let count = |v: Verdict| findings.iter().filter(|f| f.verdict == v).count();
    text + &format!(
        "{} passed, {} warned, {} failed, {} skipped\n",
        count(Verdict::Pass),
        count(Verdict::Warn),
        count(Verdict::Fail),
        count(Verdict::Skip)
    )
}

fn as_json(findings: &[Finding]) -> String {
    let rows: Vec<_> = findings
        .iter()
        .map(|f| {
            serde_json::json!({
                "check": f.name, "result": f.verdict.name(), "found": f.found, "to_do": f.todo,
            })
        })
        .collect();
    format!("{}\n", serde_json::Value::from(rows))
}
