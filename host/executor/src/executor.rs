//! The executor stage: find the vendor's library, load it through the stable ABI, and drive it on threads
//! of its own.
//!
//! ```text
//! locate    what `executor_factory` names      -> a file, or Python code and its interpreter
//! python    executors in Python code: interpreter, bridge, what the host knows of them
//! elf       what the file says of itself       -> Descriptor, before any of its code runs
//! trust     files that no other user can exchange
//! loader    checks, private copy, dlopen       -> Library
//! schema    the device config against the plugin's JSON schema
//! ffi       the calls into the library, and the copies of what it lends
//! plugin    the executor in this process, or in one of its own
//! worker    that process: start, end, and start again; `account`: whose rights it has; `wire`: what is said to it
//!
//! lease     a leased slot                          \
//! job       jobs, answers and reports              |  the vocabulary
//! in_flight when the cancel hook may be called     |
//! active    the plugin and device in use           /
//! queue     what waits for a slot, and the count of leases
//! shared    what the threads below share
//! slot      one slot's thread; `evolve`: what may come back as a state
//! control   the control thread
//! watchdog  runs that take too long; has the device asked for again
//!
//! start     how an executor is created, and why it can't be
//! status    what others see of the executor, read-only
//! usage     how long each slot has worked
//! refresh   asks for the device again, and publishes what has changed
//! run_pace  how long a run will take, by the last one of its kind
//! reload    replaces the executor
//! hold      keeps calls from beginning while the device is paused
//! lender    what the peer network may use of it
//! pool      Executor, the one handle the rest of the host holds
//! output_budget  how much a plugin may log
//! direct    an executor that one caller drives by itself, for checks and tools
//! gauges    quantities that the plugin reports of its device
//! ```

pub mod account;
mod active;
mod control;
mod direct;
pub mod elf;
mod evolve;
#[allow(unsafe_code)]
pub(crate) mod ffi;
pub mod gauges;
mod hold;
mod in_flight;
mod job;
mod lease;
mod lender;
pub mod loader;
pub mod locate;
mod output_budget;
mod plugin;
mod pool;
pub mod python;
mod queue;
mod refresh;
mod reload;
mod run_pace;
pub mod schema;
mod shared;
mod signals;
mod slot;
mod start;
mod status;
mod trust;
mod usage;
mod watchdog;
mod wire;
pub mod worker;

pub(crate) use active::check_device;
pub use active::{ActivePlugin, PluginInfo, PythonInfo};
pub use control::ControlCall;
pub use direct::{DirectExecutor, inspect_python};
pub use ffi::JobContext;
pub use hold::{StartHold, UpcomingWindow};
pub use job::{Answer, EvolveJob, EvolveOutcome, Generation, RunJob, SlotReport};
pub use lease::{LeaseRefusal, SlotLease, SlotLoad};
pub use lender::SlotLender;
pub use pool::Executor;
pub use reload::{ExecutorReloader, Reload, ReloadError, ReloadReport};
pub use shared::{RunLimits, RunObserver, StuckRun, WhenStuck};
pub use start::{PythonRequest, StartError, StartRequest};
pub use status::ExecutorStatus;
