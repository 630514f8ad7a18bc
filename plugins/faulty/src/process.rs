//! Faults that concern the whole process: signals, locale, working directory, threads, output, death.
//!
//! Contract: [`commit`] does what a careless control library might do to its host and ignores everything
//! that isn't of this kind.

use std::ffi::CStr;
use std::io::Write;
use std::os::raw::c_int;

use crate::config::Fault;

/// A library that reads the fault from the environment commits it before any call reaches it.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    // Unset means that nothing is wanted; a wrong name is told by `create`, which can reply.
    if let Some(fault) =
        std::env::var("CODA_FAULTY_AT_LOAD").ok().and_then(|name| Fault::from_name(&name).ok())
    {
        commit(fault);
    }
}

/// Commits a fault of the process, if it is one.
pub fn commit(fault: Fault) {
    match fault {
        Fault::SigtermIgnore => [libc::SIGTERM, libc::SIGINT].into_iter().for_each(ignore),
        Fault::SigtermHandler => [libc::SIGTERM, libc::SIGINT].into_iter().for_each(handle),
        Fault::SigchldIgnore => ignore(libc::SIGCHLD),
        Fault::BlockSignals => block_signals(),
        Fault::Setlocale => set_locale(),
        Fault::Chdir => drop(std::env::set_current_dir("/")),
        Fault::Umask => {
            // SAFETY: umask takes any mode and can't fail.
            unsafe { libc::umask(0o777) };
        }
        Fault::Leak => std::mem::forget(std::hint::black_box(vec![1u8; 256 << 10])),
        Fault::SlowLoad => std::thread::sleep(std::time::Duration::from_millis(1300)),
        Fault::SegfaultSometimes if one_in_ten() => commit(Fault::Segfault),
        Fault::LeaveThreads => leave_threads(),
        Fault::Print10mb => print_10mb(),
        Fault::CloseStdio => {
            for descriptor in 0..=2 {
                // SAFETY: closing a descriptor that others use is the fault; nothing here uses it afterwards.
                unsafe { libc::close(descriptor) };
            }
        }
        Fault::CloseDescriptors => {
            for descriptor in 3..10 {
                // SAFETY: closing descriptors that others use is the fault; nothing here uses them.
                unsafe { libc::close(descriptor) };
            }
        }
        Fault::SignalItself => {
            // SAFETY: a signal to the own process; what it does there is what is asked for.
            unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
        }
        Fault::Exit => std::process::exit(3),
        Fault::ExitZero => std::process::exit(0),
        // SAFETY: ends the process, which is what is asked for.
        Fault::ExitAtOnce => unsafe { libc::_exit(0) },
        Fault::HangLoad => loop {
            std::thread::park();
        },
        Fault::Abort => std::process::abort(),
        Fault::Segfault => {
            // SAFETY: raise takes any signal; what follows is the death that is asked for.
            unsafe {
                libc::signal(libc::SIGSEGV, libc::SIG_DFL);
                libc::raise(libc::SIGSEGV);
            }
        }
        Fault::StackOverflow => {
            std::hint::black_box(overflow(1));
        }
        _ => {}
    }
}

fn ignore(signal: c_int) {
    // SAFETY: SIG_IGN is a disposition that may be set for any of these signals.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

extern "C" fn swallow(_: c_int) {}

fn handle(signal: c_int) {
    let handler: extern "C" fn(c_int) = swallow;
    // SAFETY: the handler does nothing, so it is async-signal-safe; the library is never unloaded.
    unsafe { libc::signal(signal, handler as libc::sighandler_t) };
}

fn block_signals() {
    // SAFETY: a zeroed sigset_t is a place for sigfillset to fill; all pointers are to it or null.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

fn set_locale() {
    // One with a decimal comma where the machine has it.
    let names: [&CStr; 3] = [c"de_DE.UTF-8", c"C.UTF-8", c""];
    for name in names {
        // SAFETY: a NUL-terminated name; the returned text is not used.
        if !unsafe { libc::setlocale(libc::LC_ALL, name.as_ptr()) }.is_null() {
            return;
        }
    }
}

fn leave_threads() {
    for i in 0..4 {
        let spawned = std::thread::Builder::new().name(format!("faulty-{i}")).spawn(|| {
            loop {
                std::thread::park();
            }
        });
        // Fewer threads are less of a fault, and no reason to behave differently.
        drop(spawned);
    }
}

fn print_10mb() {
    let line = format!("{}\n", "faulty ".repeat(145));
    for _ in 0..10 * 1024 * 1024 / line.len() {
        // A closed output is not a concern of a plugin that floods it.
        drop(std::io::stdout().write_all(line.as_bytes()));
        drop(std::io::stderr().write_all(line.as_bytes()));
    }
}

#[expect(unconditional_recursion, reason = "to overflow the stack")]
fn overflow(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 512]);
    overflow(depth + 1) + std::hint::black_box(frame)[7]
}

/// Chance, by the randomness that every hash map begins with.
fn one_in_ten() -> bool {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish().is_multiple_of(10)
}
