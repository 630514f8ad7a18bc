//! coda-host: the daemon beside a QPU. The modules follow the order of a job's path; see
//! `docs/architecture.md`.
//!
//! `unsafe` is allowed in the modules that say so where they are declared; `host/tests/architecture.rs` lists them.

#![deny(unsafe_code)]

pub mod activity;
pub mod api;
pub mod app;
pub mod backoff;
pub mod check;
pub mod cli;
pub mod cloud;
pub mod config;
pub mod connections;
pub mod coordinator;
pub mod daemon;
pub mod dev;
pub mod error;
pub mod executor;
pub mod failpoint;
pub mod jobs;
pub mod model;
pub mod output;
pub mod page;
pub mod peers;
pub mod qasm;
pub mod request_guard;
pub mod reservation;
pub mod results;
pub mod state;
pub mod supervise;
pub mod sys;
pub mod telemetry;
pub mod vpn;
