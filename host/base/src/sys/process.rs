//! Signals to other processes, and waiting for the end of one.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};

fn named(signal: i32) -> io::Result<Signal> {
    Signal::from_named_raw(signal).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Sends a signal to one process; never to a group, as the numbers 0 and below would.
///
/// # Errors
/// When there is no such process or it may not be signalled.
pub fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|pid| *pid > 1).and_then(Pid::from_raw);
    let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid, named(signal)?)?)
}

/// Asks a child to stop, as SIGTERM does; one that has ended already is left alone.
///
/// # Errors
/// When the signal can't be sent.
pub fn ask_to_stop(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    // The child has not been waited for, so the number is still its own.
    Ok(rustix::process::kill_process(Pid::from_child(child), Signal::TERM)?)
}

/// Waits for the end of a child that leads a process group, and kills what is left of the group: helpers that it started
/// and did not end.
///
/// # Errors
/// When the child can't be waited for.
pub fn wait_with_group(child: &mut Child) -> io::Result<ExitStatus> {
    let pid = Pid::from_child(child);
    // It is not reaped here, so that the number stays that of its group until the group is killed.
    while let Err(error) =
        rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
    {
        if error != Errno::INTR {
            return Err(error.into());
        }
    }
    match rustix::process::kill_process_group(pid, Signal::KILL) {
        // Nothing but the child, which has ended, or a helper of another account.
        Ok(()) | Err(Errno::SRCH | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    child.wait()
}

/// A process that isn't a child of this one, held by a descriptor: its number can't come to mean another one.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// The process that has this number now; `None` when there is none.
    ///
    /// # Errors
    /// When the kernel can't say.
    pub fn open(pid: u32) -> io::Result<Option<ProcessHandle>> {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Ok(Some(ProcessHandle(descriptor))),
            Err(Errno::SRCH) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a signal; one that has ended already is left alone.
    ///
    /// # Errors
    /// When the signal can't be sent.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&self.0, named(signal)?) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until it has ended, at most so long; says whether it has.
    ///
    /// # Errors
    /// When the kernel can't say.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut ended = [PollFd::new(&self.0, PollFlags::IN)];
            match rustix::event::poll(&mut ended, Some(&timeout)) {
                Ok(0) if left.is_zero() => return Ok(false),
                // A signal, or a timer that was early.
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_held_even_when_its_number_is_gone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = ProcessHandle::open(child.id()).unwrap().unwrap();
        assert!(!process.wait(Duration::from_millis(20)).unwrap());
        process.signal(libc::SIGTERM).unwrap();
        assert!(process.wait(Duration::from_secs(20)).unwrap());
        child.wait().unwrap();
        assert!(ProcessHandle::open(child.id()).unwrap().is_none());
        process.signal(libc::SIGTERM).unwrap();
        assert!(
            ProcessHandle::open(0).unwrap().is_none() && ProcessHandle::open(u32::MAX).unwrap().is_none()
        );
    }

    #[test]
    fn what_a_child_leaves_behind_in_its_group_ends_with_it() {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!"]).process_group(0).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
            .unwrap();
        let helper = ProcessHandle::open(line.trim().parse().unwrap()).unwrap().unwrap();
        assert!(wait_with_group(&mut child).unwrap().success());
        assert!(helper.wait(Duration::from_secs(20)).unwrap());
    }

    #[test]
    fn groups_and_init_are_never_signalled() {
        for pid in [0, 1, u32::MAX] {
            assert_eq!(signal(pid, libc::SIGTERM).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{pid}");
        }
        let own = std::process::id();
        assert_eq!(signal(own, 0).unwrap_err().kind(), io::ErrorKind::InvalidInput, "no signal");
    }
}
