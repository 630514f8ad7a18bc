//! The host as a child process.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::wait::{LIMIT, eventually, eventually_some};

/// How a process ended: its exit status, or the signal that ended it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl From<ExitStatus> for Exit {
    fn from(status: ExitStatus) -> Exit {
        match status.signal() {
            Some(signal) => Exit::Signal(signal),
            None => Exit::Code(status.code().unwrap_or(-1)),
        }
    }
}

/// A running process; killed when dropped.
pub struct HostProcess {
    child: Child,
}

impl HostProcess {
    /// Starts the binary with this environment alone; its output is added to the log.
    pub fn spawn(arguments: &[&str], env: &BTreeMap<String, String>, cwd: &Path, log: &Path) -> HostProcess {
        HostProcess::spawn_within(&[], arguments, env, cwd, log)
    }

    /// The same, by a command that replaces itself by the one that it is given (`unshare`, `sh -c 'exec "$@"'`).
    pub fn spawn_within(
        wrapper: &[String],
        arguments: &[&str],
        env: &BTreeMap<String, String>,
        cwd: &Path,
        log: &Path,
    ) -> HostProcess {
        let file = OpenOptions::new().create(true).append(true).open(log).expect("the log can be opened");
        let mut command = match wrapper.split_first() {
            None => command(arguments, env, cwd),
            Some((program, before)) => {
                let mut command = plain(program.as_ref(), env, cwd);
                command.args(before).arg(crate::artifacts::binary_for(env)).args(arguments);
                command
            }
        };
        command.stdout(second(&file)).stderr(second(&file)).stdin(Stdio::null());
        HostProcess { child: command.spawn().expect("coda-host can be started") }
    }

    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn signal(&self, signal: i32) {
        // The child is not reaped yet, so the id is still its own.
        let sent = coda_host::sys::signal(self.child.id(), signal);
        sent.unwrap_or_else(|e| panic!("signal {signal}: {e}"));
    }

    /// Waits until the process takes signals, which is one of the first things it does.
    pub async fn wait_signal_thread(&self) {
        let tasks = format!("/proc/{}/task", self.pid());
        let named = |task: std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "signals")
        };
        eventually("the host takes signals", async || {
            std::fs::read_dir(&tasks).is_ok_and(|tasks| tasks.flatten().any(named))
        })
        .await;
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<Exit> {
        self.child.try_wait().expect("the child can be waited for").map(Exit::from)
    }

    pub async fn wait_exit(&mut self) -> Exit {
        eventually_some("the host ends", async || self.ended()).await
    }

    /// SIGKILL, as the kernel's out-of-memory killer would.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().expect("the child can be waited for");
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

fn second(file: &File) -> Stdio {
    Stdio::from(file.try_clone().expect("a file can be shared"))
}

/// The binary under test with these arguments and this environment alone.
pub fn command(arguments: &[&str], env: &BTreeMap<String, String>, cwd: &Path) -> Command {
    let mut command = plain(&crate::artifacts::binary_for(env), env, cwd);
    command.args(arguments);
    command
}

fn plain(program: &Path, env: &BTreeMap<String, String>, cwd: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(cwd);
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", cwd).envs(env);
    command
}

/// What a command came to.
#[derive(Debug, Clone)]
pub struct Said {
    /// Exit status; -1 when a signal ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Everything that it wrote.
    pub fn text(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// Runs a command that ends by itself, and returns what it said.
pub async fn said(arguments: &[&str], env: &BTreeMap<String, String>, cwd: &Path) -> Said {
    said_within(LIMIT, arguments, env, cwd).await
}

/// As [`said`], for a command that takes longer than most.
pub async fn said_within(
    limit: Duration,
    arguments: &[&str],
    env: &BTreeMap<String, String>,
    cwd: &Path,
) -> Said {
    let Output { status, stdout, stderr } = output_within(limit, arguments, env, cwd).await;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: status.code().unwrap_or(-1), out: text(&stdout), err: text(&stderr) }
}

/// Runs a command that ends by itself, and returns what it wrote.
pub async fn output(arguments: &[&str], env: &BTreeMap<String, String>, cwd: &Path) -> Output {
    output_within(LIMIT, arguments, env, cwd).await
}

async fn output_within(
    limit: Duration,
    arguments: &[&str],
    env: &BTreeMap<String, String>,
    cwd: &Path,
) -> Output {
    let mut command = tokio::process::Command::from(command(arguments, env, cwd));
    command.stdin(Stdio::null()).kill_on_drop(true);
    let done = tokio::time::timeout(limit, command.output()).await;
    done.expect("the command ends").expect("the command can be started")
}
