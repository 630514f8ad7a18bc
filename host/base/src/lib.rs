//! What every part of coda-host stands on: circuits and results, errors and how they are shown, stored state, system
//! calls. It knows no plugin, no cloud and no peer.
//!
//! `unsafe` is allowed in the modules that say so where they are declared; `host/tests/architecture.rs` lists them.

#![deny(unsafe_code)]

pub mod backoff;
pub mod connections;
pub mod error;
pub mod model;
pub mod output;
pub mod state;
pub mod sys;
