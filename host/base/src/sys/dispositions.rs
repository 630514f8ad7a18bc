//! Signal dispositions that the host depends on, as they were at one moment; a plugin's changes are put back.
//!
//! By `libc` directly: a disposition must be put back exactly as the C library reported it, whatever it is.

use std::io;

use nix::sys::signal::SigSet;

use super::signals::STOP_SIGNALS;

/// The dispositions that the host depends on.
const WATCHED: [(i32, &str); 6] = [
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGCHLD, "SIGCHLD"),
    (libc::SIGPIPE, "SIGPIPE"),
    (libc::SIGXFSZ, "SIGXFSZ"),
];

/// Lets a write beyond the limit on the size of files (`ulimit -f`, LimitFSIZE=) fail like one on a full disk, instead of
/// ending the process. By a handler: to ignore the signal would be inherited by every program that is started.
pub fn outlive_file_size_limit() {
    handle_by_nothing(libc::SIGXFSZ);
}

/// Lets this process outlive the signals that stop the host, with none of them blocked: for a plugin's process, which
/// ends when the host says so. A plugin's own helper processes would inherit a blocked or ignored signal, and could then
/// be ended by SIGKILL alone. Call it before another thread is started.
///
/// # Errors
/// When the kernel refuses, which it does for no valid set.
pub fn outlive_stop_signals() -> io::Result<()> {
    for signal in STOP_SIGNALS {
        handle_by_nothing(signal);
    }
    Ok(SigSet::empty().thread_set_mask()?)
}

/// Installs a handler that does nothing. A program that is started begins with the signal's default again.
fn handle_by_nothing(signal: libc::c_int) {
    extern "C" fn nothing(_: libc::c_int) {}
    let handler: extern "C" fn(libc::c_int) = nothing;
    // SAFETY: the handler does nothing, so it is async-signal-safe; the action is plain data.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// Set by the C library on whatever it installs; says nothing about who did.
const SA_RESTORER: i32 = 0x0400_0000;

/// The dispositions of the watched signals at one moment.
pub struct Dispositions([libc::sigaction; WATCHED.len()]);

impl Dispositions {
    /// The dispositions that are set now.
    pub fn capture() -> Dispositions {
        Dispositions(WATCHED.map(|(signal, _)| current(signal)))
    }

    /// Puts back what differs from the captured dispositions, and returns the names of the signals concerned.
    pub fn restore(&self) -> Vec<&'static str> {
        let mut changed = Vec::new();
        for (wanted, (signal, name)) in self.0.iter().zip(WATCHED) {
            let now = current(signal);
            let flags = |a: &libc::sigaction| a.sa_flags & !SA_RESTORER;
            if now.sa_sigaction != wanted.sa_sigaction || flags(&now) != flags(wanted) {
                // SAFETY: `wanted` was returned by sigaction for this signal in this process.
                unsafe { libc::sigaction(signal, wanted, std::ptr::null_mut()) };
                changed.push(name);
            }
        }
        changed
    }
}

fn current(signal: i32) -> libc::sigaction {
    // SAFETY: sigaction is plain data; with a null new action the call only reads.
    unsafe {
        let mut now = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now);
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_disposition_is_put_back_and_named() {
        let captured = Dispositions::capture();
        // SAFETY: ignoring a signal is always allowed.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        assert_eq!(captured.restore(), ["SIGHUP"]);
        assert!(captured.restore().is_empty());
    }
}
