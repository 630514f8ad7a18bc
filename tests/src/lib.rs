//! The harness of the scenarios: real processes, a real Redis, real plugins.
//!
//! A [`TestHost`] has a redis-server, a development cloud and directories of its own, and starts the release binary
//! of coda-host as a child. Scenarios wait for conditions and never for a time; what must NOT happen is shown by
//! a later job that went through. Everything listens on loopback and ends with its `TestHost`.

#![forbid(unsafe_code)]

pub mod account;
pub mod artifacts;
pub mod browser;
pub mod checkpoints;
mod circuits;
mod host_process;
pub mod iqm_server;
pub mod load;
pub mod misbehaving_peers;
pub mod net;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod proxy;
pub mod python;
pub mod qdmi;
pub mod qiskit;
pub mod random;
pub mod raw;
pub mod refusing_redis;
pub mod run_record;
pub mod simulated_peers;
mod state;
pub mod swaps;
pub mod systemd;
mod test_host;
pub mod tree;
pub mod tunnel;
mod wait;

pub use circuits::{Circuit, Job, bell, bytes_of, example, flips, ghz};
pub use host_process::{Exit, HostProcess, Said, command, output, said, said_within};
pub use state::{DeadLetter, Kept, StateFile, StateLock};
pub use test_host::{Plan, TOKEN, TestHost};
pub use wait::{LIMIT, eventually, eventually_some};
