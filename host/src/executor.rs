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
//! plugin  the executor in this process, or in one of its own
//! worker  that process: start, end, and start again
//! account whose rights it has
//! wire    what is said to it
//! watchdog runs that take too long
//! status  what others see of the executor, and the swap
//! in_flight when the cancel hook may be called
//! schema  the device config against the plugin's JSON schema
//! ffi     the calls into the library, and the copies of what it lends
//! gauges  quantities that the plugin reports of its device
//! ```

pub mod account;
pub mod elf;
mod evolve;
pub(crate) mod ffi;
pub mod gauges;
mod in_flight;
pub mod loader;
pub mod locate;
mod plugin;
pub mod pool;
mod queue;
pub mod schema;
mod slot;
pub mod status;
pub mod watchdog;
mod wire;
pub mod worker;

pub use evolve::{EvolveDone, EvolveJob, SlotLender};
pub use ffi::JobContext;
pub use pool::{Answer, Executor, PluginInfo, RunJob, SlotReport, StartRequest};
pub use queue::{SlotLease, SlotLoad};
pub use slot::RunObserver;
