//! Children that die with their parent, and the plugin's process with its descriptors.
//!
//! `unsafe` is left for two things: what is done between fork and exec, and taking over descriptors by number.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender, SyncSender};

use nix::sys::signal::SigSet;
use parking_lot::Mutex;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::set_no_new_privs;

/// A process to start, and where its handle goes.
type SpawnRequest = (Command, SyncSender<io::Result<Child>>);

/// The thread that starts such processes. The kernel takes the death of the thread that forked for the death of the
/// parent, so it must be one that lives as long as the process.
static SPAWNER: Mutex<Option<Sender<SpawnRequest>>> = Mutex::new(None);

/// Starts a process with no signal blocked. This program blocks the signals that stop it, and a child that inherited that
/// could be ended by SIGKILL alone.
///
/// # Errors
/// When it can't be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    unblock_signals(command);
    command.spawn()
}

/// Has the child begin with no signal blocked.
fn unblock_signals(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one async-signal-safe system call and allocates nothing.
    unsafe {
        command.pre_exec(|| Ok(SigSet::empty().thread_set_mask()?));
    }
}

/// Starts a process that the kernel kills when this one dies, however it dies.
///
/// # Errors
/// When it can't be started.
pub fn spawn_dying_with_parent(mut command: Command) -> io::Result<Child> {
    unblock_signals(&mut command);
    let parent = std::process::id().cast_signed();
    // SAFETY: between fork and exec the closure makes two async-signal-safe system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the call; then no one would send the signal.
            match getppid().is_some_and(|pid| pid.as_raw_pid() == parent) {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
    let (answer, answered) = mpsc::sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes has ended");
    spawner()?.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

fn spawner() -> io::Result<Sender<SpawnRequest>> {
    let mut known = SPAWNER.lock();
    if let Some(requests) = &*known {
        return Ok(requests.clone());
    }
    let (requests, inbox) = mpsc::channel::<SpawnRequest>();
    std::thread::Builder::new().name("spawner".into()).spawn(move || {
        for (mut command, answer) in inbox {
            // Whoever asked waits for the answer; one that is gone has died, and the child with it.
            if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                child.kill().ok();
                child.wait().ok();
            }
        }
    })?;
    Ok(known.insert(requests).clone())
}

/// Starts a process as [`spawn_dying_with_parent`] does, with these descriptors under the numbers that they have here, and
/// none besides. It gains no privileges by what it executes, and leads a session: a terminal's Ctrl-C is for the host alone,
/// and what it leaves behind can be found.
///
/// # Errors
/// When it can't be started.
pub fn spawn_worker(mut command: Command, descriptors: Vec<OwnedFd>) -> io::Result<Child> {
    // SAFETY: between fork and exec the closure makes async-signal-safe system calls on descriptors that it owns, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            // Also descriptors that this process was given without its knowledge. A kernel before 5.11 can't.
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            for fd in &descriptors {
                if libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            rustix::process::setsid()?;
            Ok(set_no_new_privs(true)?)
        });
    }
    spawn_dying_with_parent(command)
}

/// The descriptors of these numbers, which [`spawn_worker`] gave to this process. Call it once.
///
/// # Errors
/// When one of them isn't there.
pub fn inherited(numbers: &[i32]) -> io::Result<Vec<OwnedFd>> {
    let own = |fd: &i32| {
        if *fd <= 2 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: a plain system call; nothing that the plugin starts shall inherit it.
        match unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) } {
            // SAFETY: the descriptor is open, and no one else in this process knows of it.
            0 => Ok(unsafe { OwnedFd::from_raw_fd(*fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    numbers.iter().map(own).collect()
}

/// Starts a process in a separate session, which neither the caller's terminal nor its end touches.
///
/// # Errors
/// When it can't be started.
pub fn spawn_detached(mut command: Command) -> io::Result<Child> {
    unblock_signals(&mut command);
    // SAFETY: between fork and exec the closure makes one async-signal-safe system call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::setsid()?;
            Ok(())
        });
    }
    command.spawn()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;
    use crate::sys::ask_to_stop;

    #[test]
    fn no_child_begins_with_a_blocked_signal() {
        // In a separate thread, whose mask ends with it.
        let blocked = std::thread::spawn(|| {
            crate::sys::block_stop_signals().unwrap();
            let mask = "/^SigBlk/{print $2}";
            let mut command = Command::new("awk");
            command.args([mask, "/proc/self/status"]).stdout(std::process::Stdio::piped());
            let output = spawn(&mut command).unwrap().wait_with_output().unwrap();
            let mut detached = Command::new("awk");
            detached.args([mask, "/proc/self/status"]).stdout(std::process::Stdio::piped());
            let second = spawn_detached(detached).unwrap().wait_with_output().unwrap();
            [output.stdout, second.stdout].map(|text| String::from_utf8(text).unwrap().trim().to_string())
        });
        assert_eq!(blocked.join().unwrap(), ["0000000000000000", "0000000000000000"]);
    }

    #[test]
    fn children_outlive_the_thread_that_asked_for_them_and_stop_when_asked() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            spawn_dying_with_parent(command)
        };
        let mut child = std::thread::spawn(start).join().unwrap().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "the asking thread's end killed it");
        ask_to_stop(&mut child).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
        assert!(ask_to_stop(&mut child).is_ok());
        assert!(spawn_dying_with_parent(Command::new("/no/such/program")).is_err());
    }
}
