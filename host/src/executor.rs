//! The executor stage: find the vendor's library, load it through the stable ABI, and drive it on threads
//! of its own.
//!
//! ```text
//! locate  what `executor_factory` names      -> a file
//! elf     what the file says of itself        -> Descriptor, before any of its code runs
//! loader  checks, private copy, dlopen        -> Library
//! pool    create, describe, run, cancel       -> Executor, the one handle the rest of the host holds
//! queue   what waits for a slot, and who holds one
//! slot    one slot's thread
//! evolve  a state in, operations, a state out
//! turn    when the cancel hook may be called
//! ffi     the calls into the library, and the copies of what it lends
//! gauges  quantities that the plugin reports of its device
//! ```

pub mod elf;
mod evolve;
mod ffi;
pub mod gauges;
pub mod loader;
pub mod locate;
pub mod pool;
mod queue;
mod slot;
mod turn;

pub use evolve::{EvolveDone, EvolveJob, Lending};
pub use ffi::JobContext;
pub use pool::{Answer, Executor, PluginInfo, RunDone, RunJob, StartRequest};
pub use queue::{Hold, Load};
pub use slot::Witness;
