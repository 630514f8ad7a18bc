//! System calls: signals, processes and their descriptors, accounts and rights, free space.
//!
//! ```text
//! signals       what is waited for, and how signals are called
//! dispositions  what a plugin changed of signal handling is put back   (unsafe)
//! exit_guard    an end that no one asked for is a failure              (unsafe)
//! handover      descriptors that go through a socket
//! open_files    the limit on open files
//! process       signals to other processes, and waiting for their end
//! spawn         children that die with their parent; workers           (unsafe)
//! account       accounts of this machine, and giving up rights
//! c_library     heap, environment, locale                              (unsafe)
//! disk          free space
//! init          the duties of a container's first process
//! ```
//!
//! Most calls are those of `rustix` and `nix`; what these crates can't do safely is in the five modules that are
//! marked.

mod account;
#[allow(unsafe_code)]
mod c_library;
mod disk;
#[allow(unsafe_code)]
mod dispositions;
#[allow(unsafe_code)]
mod exit_guard;
mod handover;
mod init;
mod open_files;
mod process;
#[allow(unsafe_code)]
mod signals;
#[allow(unsafe_code)]
mod spawn;

pub use account::{Account, KeptCapabilities, account, act_as_owner, effective_user, give_up_rights};
pub use c_library::{forget_variable, keep_heap_small, locale};
pub use disk::free_bytes;
pub use dispositions::{Dispositions, outlive_file_size_limit, outlive_stop_signals};
pub use exit_guard::{allow_exit_guard, exit, exit_at_once, expect_exit, guard_exit};
pub use handover::{receive_descriptors, send_descriptors};
pub use init::{is_init, run_as_init};
pub use open_files::raise_open_files;
pub use process::{ProcessHandle, ask_to_stop, signal, wait_with_group};
pub use signals::{
    STOP_SIGNALS, StopSignal, block_stop_signals, signal_name, unblock_stop_signals, wait_stop_signal,
};
pub use spawn::{inherited, spawn, spawn_detached, spawn_dying_with_parent, spawn_worker};
