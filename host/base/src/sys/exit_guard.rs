//! An end of this process that the host did not ask for is never taken for success.
//!
//! A plugin in this process may call `exit(0)`. A supervisor that starts the host again after a failure would take that
//! for an orderly stop, and leave the QPU without a host. So every orderly end is announced, and any other one has the
//! status of a failure:
//!
//! - `exit`: a handler that the C library calls;
//! - `_exit`, `_Exit`, `quick_exit`: the host's own functions of these names, which a plugin finds before those of the C
//!   library (`build.rs` exports them).
//!
//! A plugin that makes the system call itself can't be stopped here.

use std::os::raw::c_int;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The process whose ends are guarded, and the status of an end that no one asked for; 0 for none.
static GUARDED: AtomicU32 = AtomicU32::new(0);
static STATUS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Has this process guarded from the first plugin on that is loaded in it, with this status for an end that no one asked
/// for. For a program that announces its own ends.
pub fn allow_exit_guard(status: u8) {
    STATUS.store(status.into(), Ordering::Release);
}

/// Guards this process from now on, if its program allows it. Call it before a plugin is loaded.
///
/// # Errors
/// When the C library can't take the handler.
pub fn guard_exit() -> std::io::Result<()> {
    if STATUS.load(Ordering::Acquire) == 0 {
        return Ok(());
    }
    GUARDED.store(std::process::id(), Ordering::Release);
    if REGISTERED.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    // SAFETY: the handler lives as long as the program, and makes only system calls.
    match unsafe { libc::atexit(at_exit) } {
        0 => Ok(()),
        _ => Err(std::io::Error::other("no more handlers can be registered")),
    }
}

/// Announces an orderly end with this status.
pub fn expect_exit(status: ExitCode) -> ExitCode {
    GUARDED.store(0, Ordering::Release);
    status
}

/// Ends this process in an orderly way.
pub fn exit(status: u8) -> ! {
    GUARDED.store(0, Ordering::Release);
    std::process::exit(status.into())
}

/// Ends this process at once, without handlers and destructors: for when something holds up an orderly end.
pub fn exit_at_once(status: u8) -> ! {
    GUARDED.store(0, Ordering::Release);
    end(status.into())
}

extern "C" fn at_exit() {
    if let Some(status) = unasked() {
        end(status);
    }
}

/// The status of an end that no one asked for; `None` for an orderly one, and for a process that this one has forked.
fn unasked() -> Option<c_int> {
    if GUARDED.load(Ordering::Acquire) != std::process::id() {
        return None;
    }
    let text = b"error: the plugin ended the process of coda-host by exit, which no one asked for\n  \
                 to do: tell the vendor; with CODA_EXECUTOR_ISOLATION=process it would end its own process alone\n";
    // SAFETY: a plain system call with bytes that live as long as the program; whether they arrive changes nothing.
    unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
    Some(STATUS.load(Ordering::Relaxed).cast_signed())
}

fn end(status: c_int) -> ! {
    loop {
        // SAFETY: ends every thread of the process; it does not return.
        unsafe { libc::syscall(libc::SYS_exit_group, status) };
    }
}

/// In the place of the C library's function.
#[unsafe(no_mangle)]
pub extern "C" fn _exit(status: c_int) -> ! {
    end(unasked().unwrap_or(status))
}

/// In the place of the C library's function.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is the C library's")]
pub extern "C" fn _Exit(status: c_int) -> ! {
    end(unasked().unwrap_or(status))
}

/// In the place of the C library's function. What a plugin registered by `at_quick_exit` is not called.
#[unsafe(no_mangle)]
pub extern "C" fn quick_exit(status: c_int) -> ! {
    end(unasked().unwrap_or(status))
}
