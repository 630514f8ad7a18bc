//! The signals that stop the host or make it reload, and what signals are called.
//!
//! Stop signals are blocked in every thread and taken by one that no plugin runs on, so that a plugin's own handlers
//! can't swallow them. Linux keeps a blocked signal pending even where its disposition is to ignore it.

use std::io;

use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

/// The signals that are waited for: those that end the host, and SIGHUP, which makes it reload.
pub const STOP_SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

fn stop_set() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP].into_iter().collect()
}

/// Blocks the stop signals in this thread and all threads that it will start. Call it first thing in `main`.
///
/// # Errors
/// When the kernel refuses, which it does for no valid set.
pub fn block_stop_signals() -> io::Result<()> {
    Ok(stop_set().thread_block()?)
}

/// Has the stop signals end this process again, as they do by default.
///
/// # Errors
/// When the kernel refuses, which it does for no valid set.
pub fn unblock_stop_signals() -> io::Result<()> {
    Ok(stop_set().thread_unblock()?)
}

/// A stop signal that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopSignal {
    pub signal: i32,
    /// It came from this process itself, which sends itself none: a plugin did.
    pub from_itself: bool,
}

/// Waits for the next stop signal. Runs on a separate thread.
///
/// # Errors
/// When the kernel refuses, which it does for no valid set.
pub fn wait_stop_signal() -> io::Result<StopSignal> {
    let set = stop_set();
    loop {
        // SAFETY: siginfo_t is plain data that the call fills; the set lives through the call.
        let (signal, info) = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (libc::sigwaitinfo(set.as_ref(), &mut info), info)
        };
        if signal > 0 {
            // SAFETY: the field is there for every signal that a process has sent, which codes up to 0 stand for.
            let sender = (info.si_code <= 0).then(|| unsafe { info.si_pid() });
            return Ok(StopSignal { signal, from_itself: sender == Some(Pid::this().as_raw()) });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// A signal's usual name.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL (illegal instruction)",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT (abort)",
        libc::SIGBUS => "SIGBUS (bus error)",
        libc::SIGFPE => "SIGFPE (arithmetic error)",
        libc::SIGKILL => "SIGKILL (killed, perhaps for want of memory)",
        libc::SIGSEGV => "SIGSEGV (segmentation fault)",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU (CPU time limit)",
        libc::SIGXFSZ => "SIGXFSZ (file size limit)",
        libc::SIGSYS => "SIGSYS (forbidden system call)",
        other => return format!("signal {other}"),
    };
    name.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stop_signals_are_what_is_waited_for() {
        let set = stop_set();
        assert_eq!(set.iter().count(), STOP_SIGNALS.len());
        assert!(set.iter().all(|signal| STOP_SIGNALS.contains(&(signal as i32))));
    }

    #[test]
    fn a_blocked_stop_signal_is_waited_for_by_its_thread_and_its_sender_is_known() {
        // Directed at this thread alone: the others of this test process don't block it.
        block_stop_signals().unwrap();
        nix::sys::pthread::pthread_kill(nix::sys::pthread::pthread_self(), Signal::SIGHUP).unwrap();
        assert_eq!(wait_stop_signal().unwrap(), StopSignal { signal: libc::SIGHUP, from_itself: true });
    }
}
