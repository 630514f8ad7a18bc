//! The peer network: reservations and their log, the peer that lends a QPU, the coordinator that runs circuits on peers.

#![forbid(unsafe_code)]

pub mod coordinator;
pub mod peers;
pub mod reservation;

use coda_host_base::{backoff, connections, error, model, state};
use coda_host_qasm::qasm;

#[cfg(test)]
mod qasm_tests;
