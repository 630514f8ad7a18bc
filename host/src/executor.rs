//! The executor stage: find the vendor's library, load it through the stable ABI, and drive it on threads
//! of its own.
//!
//! ```text
//! locate  what `executor_factory` names      -> a file
//! elf     what the file says of itself        -> Descriptor, before any of its code runs
//! loader  checks, private copy, dlopen        -> Library
//! pool    create, describe, run, cancel       -> Executor, the one handle the rest of the host holds
//! queue   what waits for a slot
//! slot    one slot's thread
//! turn    when the cancel hook may be called
//! ffi     the calls into the library, and the copies of what it lends
//! ```

pub mod elf;
mod ffi;
pub mod loader;
pub mod locate;
pub mod pool;
mod queue;
mod slot;
mod turn;

pub use ffi::JobContext;
pub use pool::{Answer, Executor, PluginInfo, RunDone, RunJob, StartRequest};
pub use slot::Witness;
