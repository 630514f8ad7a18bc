//! Runs each case in a child process: this program again, which loads the plugin and writes its verdict to a file.
//!
//! A child that dies, exits or takes too long is a verdict too. What it printed is kept for the reader of the failure.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::bench::AN_EXECUTOR;
use super::{Case, CaseVerdict, CheckOptions};
use crate::sys;

/// How often a child is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Of a child's output, its end.
const KEPT_OUTPUT: u64 = 4096;

/// What became of one case.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CaseResult {
    pub case: String,
    pub about: String,
    #[serde(flatten)]
    pub end: ChildEnd,
    pub seconds: f64,
    /// The last lines that the plugin or its host printed, when it failed.
    pub output: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChildEnd {
    Said(CaseVerdict),
    /// A word for what happened to the child: `died`, `exited` or `timed_out`, and the rest of it.
    Lost {
        verdict: Lost,
        got: String,
        change: String,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lost {
    Died,
    Exited,
    TimedOut,
}

impl CaseResult {
    /// One that was not run.
    pub fn not_run(case: &Case, why: &str) -> CaseResult {
        CaseResult {
            case: case.name.into(),
            about: case.about.into(),
            end: ChildEnd::Said(CaseVerdict::Skipped { why: why.into() }),
            seconds: 0.0,
            output: None,
        }
    }

    /// Why no later case could say anything else, after this one.
    pub fn is_the_end(&self) -> Option<&'static str> {
        match (self.case.as_str(), &self.end) {
            ("load", _) if self.is_failure() => Some("the library can't be loaded, see above"),
            ("create", ChildEnd::Said(CaseVerdict::Failed { expected, .. })) if expected == AN_EXECUTOR => {
                Some("no executor can be created, see above")
            }
            _ => None,
        }
    }

    pub fn is_failure(&self) -> bool {
        !matches!(self.end, ChildEnd::Said(CaseVerdict::Passed { .. } | CaseVerdict::Skipped { .. }))
    }
}

/// Runs the case; `program` is this program and `look` is called while it runs.
///
/// # Errors
/// When no child could be started at all.
pub fn run(
    case: &Case,
    options: &CheckOptions,
    program: &Path,
    look: &mut dyn FnMut(),
) -> std::io::Result<CaseResult> {
    let dir = tempfile::tempdir()?;
    let (order, answer) = (dir.path().join("order.json"), dir.path().join("answer.json"));
    File::create(&order)?.write_all(&serde_json::to_vec(options)?)?;
    let mut output = tempfile::tempfile()?;
    let mut command = Command::new(program);
    command.args(["plugin", "check-case", case.name]).arg(&order).arg(&answer);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
    let start = Instant::now();
    let mut child = sys::spawn_dying_with_parent(command)?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if start.elapsed() > options.time_limit {
            child.kill()?;
            child.wait()?;
            break None;
        }
        look();
        std::thread::sleep(LOOK_EVERY);
    };
    let said =
        std::fs::read(&answer).ok().and_then(|bytes| serde_json::from_slice::<CaseVerdict>(&bytes).ok());
    let end = end(status, said, options.time_limit);
    let mut result = CaseResult {
        case: case.name.into(),
        about: case.about.into(),
        end,
        seconds: start.elapsed().as_secs_f64(),
        output: None,
    };
    if result.is_failure() {
        let length = output.seek(SeekFrom::End(0))?;
        output.seek(SeekFrom::Start(length.saturating_sub(KEPT_OUTPUT)))?;
        let mut bytes = Vec::new();
        output.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes).trim().to_string();
        result.output = (!text.is_empty()).then_some(text);
    }
    Ok(result)
}

fn end(status: Option<ExitStatus>, said: Option<CaseVerdict>, limit: Duration) -> ChildEnd {
    let Some(status) = status else {
        let got = format!("no answer within {limit:?}");
        return ChildEnd::Lost {
            verdict: Lost::TimedOut,
            got,
            change: "return from every call; --time-limit sets this limit".into(),
        };
    };
    match (status.signal(), status.code(), said) {
        (Some(signal), ..) => ChildEnd::Lost {
            verdict: Lost::Died,
            got: format!("the process died of {}", sys::signal_name(signal)),
            change: match signal {
                libc::SIGABRT => "let no exception and no failed assertion leave the plugin".into(),
                _ => "find the crash; a debugger shows it in `coda-host run`".into(),
            },
        },
        (None, Some(0), Some(verdict)) => ChildEnd::Said(verdict),
        (None, code, _) => ChildEnd::Lost {
            verdict: Lost::Exited,
            got: format!("the process ended with status {}", code.unwrap_or_default()),
            change: "never end the process from a plugin".into(),
        },
    }
}
