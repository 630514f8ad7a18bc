//! coda-host: the daemon beside a QPU. The modules follow the order of a job's path; see
//! `docs/architecture.md`.
//!
//! Four crates are compiled for themselves and appear here as modules: `base` (what every part stands on), `qasm`,
//! `network` (reservations, peer, coordinator) and `executor` (plugins and their checks).

#![forbid(unsafe_code)]

pub mod activity;
pub mod api;
pub mod app;
pub mod availability;
pub mod cli;
pub mod cloud;
pub mod config;
pub mod daemon;
pub mod dev;
pub mod failpoint;
pub mod jobs;
pub mod page;
pub mod request_guard;
pub mod results;
pub mod supervise;
pub mod telemetry;
pub mod vpn;

pub use coda_host_base::{backoff, connections, error, model, output, state, sys};
pub use coda_host_executor::{check, executor};
pub use coda_host_network::{coordinator, peers, reservation};
pub use coda_host_qasm::qasm;

#[cfg(test)]
mod error_tests;
