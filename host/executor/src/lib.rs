//! Vendors' code: plugins of every kind are loaded and called here, and checked.
//!
//! `unsafe` is allowed in the modules that say so where they are declared; `host/tests/architecture.rs` lists them.

#![deny(unsafe_code)]

pub mod check;
pub mod executor;

use coda_host_base::{backoff, error, model, output, sys};
