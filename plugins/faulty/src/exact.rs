//! Circuits of target cz run exactly, and the faults that show only then.
//!
//! Contract: [`counts`] answers rightly for `Fault::None` and spoils circuit or counts in the one way of any other
//! fault of this kind.

// What stands for the hardware is the same as in the example in Rust.
#[path = "../../example-rust/src/device.rs"]
mod device;

use std::collections::BTreeMap;

use coda_plugin_abi::{Error, ErrorCode, Gate, Job, Op};

use crate::config::Fault;
use device::Qubits;

/// More than this the state is not kept for.
pub const MAX_QUBITS: u16 = 10;

pub fn counts(job: &Job<'_>, fault: Fault, device_qubits: u16) -> Result<Vec<(String, i64)>, Error> {
    let program = job.program();
    if program.num_qubits() > MAX_QUBITS.min(device_qubits) {
        return Err(Error::new(ErrorCode::Unsupported, "too many qubits"));
    }
    let mut qubits = Qubits::zero(program.num_qubits());
    let mut gates: Vec<Gate> = program.gates().to_vec();
    if fault == Fault::GatesReversed {
        gates.reverse();
    }
    for gate in &gates {
        let op = match gate.op() {
            Some(Op::Rx { q, angle }) if fault == Fault::RxSign => Some(Op::Rx { q, angle: -angle }),
            Some(Op::Cz { a, .. }) if fault == Fault::NoCz => Some(Op::Id { q: a, duration_ns: 0.0 }),
            other => other,
        };
        qubits.apply(op).map_err(|what| Error::new(ErrorCode::Unsupported, what))?;
    }
    let shots = if fault == Fault::ShotsCapped { job.shots().min(1000) } else { job.shots() };
    let mut measured = program.measurements().to_vec();
    if fault == Fault::KeysSorted {
        measured.sort_unstable();
    }
    let mut counts = BTreeMap::<String, i64>::new();
    for (shot, result) in (0..shots).zip(qubits.shots()) {
        if shot % 4096 == 0 && job.is_cancelled() {
            return Err(Error::new(ErrorCode::Cancelled, "ended because it was cancelled"));
        }
        let dead = |q: u16| fault == Fault::LastQubitDead && q + 1 == device_qubits;
        let bit = |q: &u16| if result >> q & 1 == 1 && !dead(*q) { '1' } else { '0' };
        let mut key: String = measured.iter().map(bit).collect();
        if fault == Fault::KeysReversed {
            key = key.chars().rev().collect();
        }
        *counts.entry(key).or_default() += 1;
    }
    Ok(counts.into_iter().collect())
}
