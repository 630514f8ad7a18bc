//! The first process of a container: it has the duties of an init, which a program that waits for some of its children
//! can't fulfil beside that.

use std::io;
use std::process::{Command, ExitCode};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, wait};

use super::signals::{STOP_SIGNALS, StopSignal, block_stop_signals, wait_stop_signal};
use super::spawn;

/// Whether this process is the first one of its process namespace.
pub fn is_init() -> bool {
    std::process::id() == 1
}

/// Runs this very program again as a child, passes on the signals that stop it, and reaps every process that is left to the
/// init, until that child has ended. Returns its exit status.
///
/// # Errors
/// When the child can't be started or waited for.
pub fn run_as_init() -> io::Result<ExitCode> {
    block_stop_signals()?;
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments);
    if let Some(name) = name {
        std::os::unix::process::CommandExt::arg0(&mut command, name);
    }
    let child = spawn::spawn(&mut command)?;
    let child = Pid::from_child(&child);
    std::thread::Builder::new().name("init-signals".into()).spawn(move || {
        while let Ok(StopSignal { signal, .. }) = wait_stop_signal() {
            debug_assert!(STOP_SIGNALS.contains(&signal), "only these are waited for");
            if let Some(signal) = Signal::from_named_raw(signal) {
                // It may have ended just now.
                kill_process(child, signal).ok();
            }
        }
    })?;
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        if pid == child {
            let signal = status.terminating_signal().and_then(|signal| u8::try_from(128 + signal).ok());
            let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
            return Ok(ExitCode::from(code.or(signal).unwrap_or(1)));
        }
    }
}
