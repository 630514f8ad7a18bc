//! OpenQASM for the peer network. A crate that needs neither network nor plugin, so that it is compiled beside them.

#![forbid(unsafe_code)]

pub mod qasm;

use coda_host_base::model;
