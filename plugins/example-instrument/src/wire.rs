//! What plugin and instrument server say to each other: one line of JSON each way.

use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Hello,
    Run {
        job: String,
        num_qubits: u16,
        /// Kind, first and second qubit, parameter, as in the plugin interface.
        gates: Vec<(u16, u16, u16, f64)>,
        measurements: Vec<u16>,
        shots: u32,
    },
    Abort {
        job: String,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Hello { num_qubits: u16, fridge_kelvin: f64 },
    Counts { counts: Vec<(String, i64)>, ms: f64 },
    Aborted,
    Refused { text: String },
}
