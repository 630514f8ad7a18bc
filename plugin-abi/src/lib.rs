//! The contract between coda-host and the plugin that drives a QPU.
//!
//! A vendor implements [`Executor`] and exports it with [`export_executor!`]; nothing else of this crate
//! is needed to write a plugin:
//!
//! ```
//! use coda_plugin_abi::{Context, Device, Error, Executor, Job, Outcome, Target, export_executor};
//!
//! struct Acme { device: Device }
//!
//! impl Executor for Acme {
//!     fn device(&self) -> Device { self.device.clone() }
//!     fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
//!         let zeros = "0".repeat(job.program().measurements().len());
//!         Ok(Outcome::from_counts([(zeros, i64::from(job.shots()))]))
//!     }
//! }
//!
//! fn create(ctx: &Context<'_>) -> Result<Acme, Error> {
//!     Ok(Acme { device: Device::new("acme-1", ctx.num_qubits(), [Target::Cz]) })
//! }
//!
//! export_executor! { kind: Hardware, vendor: "Acme", entries: { create_executor => create } }
//! # fn main() {}
//! ```
//!
//! The crate is plain data and glue: no threads, no runtime, no I/O. `raw` is the memory layout that both
//! bindings (Rust here, C in `include/coda_executor.h`) share; `module` is what the Rust binding exports.
//! Memory never changes its owner: each side lends data for the length of a call, the other copies.

// abi_stable 0.11 derives trip this lint; nothing of ours does.
#![allow(non_local_definitions)]

mod author;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod descriptor;
mod device;
mod host_services;
pub mod ir;
mod module;
mod outcome;
pub mod raw;
pub mod version;

pub use author::{BatchRun, Cancel, Context, Evolution, EvolveState, Executor, Job, glue};
pub use device::{Connectivity, Device, Hooks};
pub use host_services::{HostServices, LogLevel};
pub use ir::{Gate, GateKind, IrError, Op, Program, ProgramRef, Target};
pub use module::{ExecutorModule, ExecutorModuleRef, ROOT_MODULE_SYMBOL, v1_0};
pub use outcome::{Error, ErrorCode, Outcome, Stage};
pub use raw::{Amplitude, Operation};

#[doc(hidden)]
pub use abi_stable;
