//! The host that `coda-host dev` runs: this very binary as a child process, its log in a file.
//!
//! The child dies with this process. It has a separate process group, so that a Ctrl-C reaches it once, through this
//! process, and not a second time from the terminal.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::error::Explain;
use crate::sys;

const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Bytes at the end of a log in which its last lines are looked for.
const TAIL: u64 = 64 << 10;

#[derive(Debug, thiserror::Error)]
pub enum DevHostError {
    #[error("the path of this program is unknown")]
    Binary(#[source] io::Error),
    #[error("the log {} can't be written", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("{} could not be started", path.display())]
    Spawn { path: PathBuf, source: io::Error },
    #[error("the host's process could not be waited for")]
    Wait(#[source] io::Error),
    #[error("the host's process could not be asked to stop")]
    Stop(#[source] io::Error),
}

impl Explain for DevHostError {
    fn code(&self) -> &'static str {
        "dev-host"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            DevHostError::Binary(_) => "mount /proc".into(),
            DevHostError::Log { .. } => "check --dir, TMPDIR and the space there (df -h)".into(),
            DevHostError::Spawn { .. } => {
                "start it again; the program may have been replaced while it ran".into()
            }
            DevHostError::Wait(_) | DevHostError::Stop(_) => return None,
        })
    }
}

/// The arguments and variables of the child, in addition to the inherited ones.
pub struct HostCommand {
    pub arguments: Vec<String>,
    /// Variables that the child must not inherit.
    pub without: Vec<String>,
    pub with: Vec<(&'static str, String)>,
}

impl HostCommand {
    fn command(&self) -> Result<(Command, PathBuf), DevHostError> {
        let binary = std::env::current_exe().map_err(DevHostError::Binary)?;
        let mut command = Command::new(&binary);
        command.args(&self.arguments).stdin(Stdio::null()).process_group(0);
        for name in &self.without {
            command.env_remove(name);
        }
        for (name, value) in &self.with {
            command.env(name, value);
        }
        Ok((command, binary))
    }

    /// Runs the child to its end; its stderr is that of this process.
    pub async fn output(&self, into: &Path) -> Result<(ExitStatus, Vec<u8>), DevHostError> {
        let log = |source| DevHostError::Log { path: into.to_path_buf(), source };
        let (mut command, path) = self.command()?;
        command.stdout(open(File::options().write(true).truncate(true), into).map_err(log)?);
        let child =
            sys::spawn_dying_with_parent(command).map_err(|source| DevHostError::Spawn { path, source })?;
        let mut running = DevHost { child, log: into.to_path_buf() };
        let status = running.ended().await?;
        Ok((status, std::fs::read(into).map_err(log)?))
    }

    /// Starts the child with its output appended to the file `log`.
    pub fn start(&self, log: &Path) -> Result<DevHost, DevHostError> {
        let failed = |source| DevHostError::Log { path: log.to_path_buf(), source };
        let (mut command, path) = self.command()?;
        let file = open(File::options().append(true), log).map_err(failed)?;
        command.stderr(file.try_clone().map_err(failed)?).stdout(file);
        let child =
            sys::spawn_dying_with_parent(command).map_err(|source| DevHostError::Spawn { path, source })?;
        Ok(DevHost { child, log: log.to_path_buf() })
    }
}

fn open(how: &mut OpenOptions, path: &Path) -> io::Result<File> {
    how.create(true).mode(0o600).open(path)
}

/// A started host; dropped, it is killed.
pub struct DevHost {
    child: Child,
    log: PathBuf,
}

impl DevHost {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its exit status if it has ended.
    pub fn try_ended(&mut self) -> Result<Option<ExitStatus>, DevHostError> {
        self.child.try_wait().map_err(DevHostError::Wait)
    }

    /// Waits until the child ends by itself.
    pub async fn ended(&mut self) -> Result<ExitStatus, DevHostError> {
        loop {
            if let Some(status) = self.try_ended()? {
                return Ok(status);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// Asks the child to stop and waits for its end. It finishes its jobs first, within its own limit.
    pub async fn stop(&mut self) -> Result<ExitStatus, DevHostError> {
        sys::ask_to_stop(&mut self.child).map_err(DevHostError::Stop)?;
        self.ended().await
    }

    /// The last lines of its log.
    pub fn last_lines(&self, lines: usize) -> String {
        let read = || {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
            let mut text = Vec::new();
            file.take(TAIL).read_to_end(&mut text)?;
            io::Result::Ok(String::from_utf8_lossy(&text).into_owned())
        };
        match read() {
            Ok(text) => {
                let all: Vec<&str> = text.lines().collect();
                all[all.len().saturating_sub(lines)..].join("\n")
            }
            Err(error) => format!("(its log {} can't be read: {error})", self.log.display()),
        }
    }
}

impl Drop for DevHost {
    fn drop(&mut self) {
        // It has ended already, mostly; nothing more can be done about an error here.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
