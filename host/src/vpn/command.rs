//! Runs programs of this machine: finds them in PATH, waits for their end within a limit, and returns their output.
//!
//! Blocking. Output goes through files instead of pipes, because a daemon that a program leaves behind would
//! hold a pipe open for ever.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::Explain;
use crate::sys;

/// How many bytes of an output are kept.
const KEPT: u64 = 64 << 10;
/// Directories of system programs, which are missing in the PATH of some users.
const SYSTEM: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("the command '{0}' was not found in PATH")]
    NotFound(String),
    #[error("{} could not be run", .path.display())]
    Run { path: PathBuf, source: io::Error },
    #[error("{} did not end within {limit:?} and was killed", .path.display())]
    TimedOut { path: PathBuf, limit: Duration },
}

impl Explain for CommandError {
    fn code(&self) -> &'static str {
        match self {
            CommandError::NotFound(_) => "command-not-found",
            CommandError::Run { .. } => "command-run",
            CommandError::TimedOut { .. } => "command-timeout",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            CommandError::NotFound(name) if name == "ip" => "install the package iproute2".into(),
            CommandError::NotFound(name) => format!("install {name}, or add its directory to PATH"),
            CommandError::Run { path, .. } => {
                format!("check that this user may run it: ls -l {}", path.display())
            }
            CommandError::TimedOut { path, .. } => format!("run {} by hand and see why", path.display()),
        })
    }
}

/// The exit status and the output of a program.
#[derive(Debug)]
pub struct CommandOutput {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

/// The directories that are searched for programs.
#[derive(Debug, Clone)]
pub struct Programs(Vec<PathBuf>);

impl Programs {
    /// Searches the directories of a PATH and those of system programs.
    pub fn of_path(path: &str) -> Programs {
        let named = path.split(':').filter(|d| d.starts_with('/'));
        Programs(named.chain(SYSTEM).map(PathBuf::from).collect())
    }

    /// Searches only these directories.
    pub fn within(dirs: Vec<PathBuf>) -> Programs {
        Programs(dirs)
    }

    /// Returns the path of a program.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let runnable = |path: &Path| {
            path.metadata().is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o111 != 0)
        };
        self.0.iter().map(|dir| dir.join(name)).find(|path| runnable(path))
    }

    /// Runs a program to its end. A program that fails is not an error; its status is returned.
    ///
    /// # Errors
    /// The program is not installed, can't be started, or takes longer than `limit`.
    pub fn run(
        &self,
        name: &str,
        arguments: &[&OsStr],
        limit: Duration,
    ) -> Result<CommandOutput, CommandError> {
        let path = self.find(name).ok_or_else(|| CommandError::NotFound(name.into()))?;
        run(&path, arguments, limit)
            .map_err(|source| CommandError::Run { path: path.clone(), source })?
            .ok_or(CommandError::TimedOut { path, limit })
    }
}

/// Runs a program; returns `None` when it took longer than `limit`.
fn run(path: &Path, arguments: &[&OsStr], limit: Duration) -> io::Result<Option<CommandOutput>> {
    let until = Instant::now() + limit;
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut command = Command::new(path);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?);
    let mut child = sys::spawn(&mut command)?;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() >= until => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    Ok(Some(CommandOutput {
        success: status.success(),
        stdout: read_bounded(&mut stdout)?,
        stderr: read_bounded(&mut stderr)?,
    }))
}

fn read_bounded(file: &mut File) -> io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(KEPT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<CommandOutput, CommandError> {
        Programs::of_path("/usr/bin:/bin").run("sh", &["-c".as_ref(), script.as_ref()], limit)
    }

    #[test]
    fn output_and_status_come_back_even_when_something_is_left_running() {
        let limit = Duration::from_secs(20);
        let output = shell("echo out; echo err >&2; exit 3", limit).unwrap();
        assert_eq!((output.success, &*output.stdout, &*output.stderr), (false, "out\n", "err\n"));
        let began = Instant::now();
        let output = shell("sleep 15 & echo $!", limit).unwrap();
        assert!(output.success && began.elapsed() < Duration::from_secs(10), "it waited for the sleep");
        shell(&format!("kill {}", output.stdout), limit).unwrap();
    }

    #[test]
    fn what_is_missing_or_hangs_is_an_error() {
        let error = Programs::within(vec!["/nowhere".into()]).run("ip", &[], Duration::from_secs(1));
        let failure = crate::error::Failure::from(error.unwrap_err());
        assert!(failure.message.contains("'ip'") && failure.hint.unwrap().contains("iproute2"));
        let error = shell("exec sleep 600", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
    }
}
