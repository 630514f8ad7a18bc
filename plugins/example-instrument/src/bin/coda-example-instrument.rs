//! The instrument server for the example: a simulated device of ten qubits behind a TCP port of this machine.
//!
//! `coda-example-instrument [ADDRESS]` prints the address it listens at; the default is any free port. It serves until
//! it is killed.

// What stands for the hardware is the same as in the example in Rust.
#[path = "../../../example-rust/src/device.rs"]
mod device;

use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use coda_example_instrument::wire::{Answer, Request};
use coda_plugin_abi::Gate;
use device::Qubits;

const NUM_QUBITS: u16 = 10;

/// Jobs to end early.
type Aborted = Arc<Mutex<HashSet<String>>>;

fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".into());
    let listener = TcpListener::bind(&address)?;
    println!("{}", listener.local_addr()?);
    let aborted = Aborted::default();
    for stream in listener.incoming() {
        let (stream, aborted) = (stream?, aborted.clone());
        std::thread::spawn(move || {
            if let Err(e) = serve(stream, &aborted) {
                eprintln!("a connection ended: {e}");
            }
        });
    }
    Ok(())
}

fn serve(stream: TcpStream, aborted: &Aborted) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut writer = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(Request::Hello) => Answer::Hello { num_qubits: NUM_QUBITS, fridge_kelvin: 0.011 },
            Ok(Request::Abort { job }) => {
                aborted.lock().unwrap_or_else(PoisonError::into_inner).insert(job);
                Answer::Aborted
            }
            Ok(Request::Run { job, num_qubits, gates, measurements, shots }) => {
                let answer = run(&job, num_qubits, &gates, &measurements, shots, aborted);
                aborted.lock().unwrap_or_else(PoisonError::into_inner).remove(&job);
                answer
            }
            Err(e) => Answer::Refused { text: format!("the request can't be read: {e}") },
        };
        let mut text = serde_json::to_string(&answer)?;
        text.push('\n');
        writer.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn run(
    job: &str,
    num_qubits: u16,
    gates: &[(u16, u16, u16, f64)],
    measurements: &[u16],
    shots: u32,
    aborted: &Aborted,
) -> Answer {
    let refused = |text: String| Answer::Refused { text };
    let start = Instant::now();
    if num_qubits > NUM_QUBITS || measurements.iter().any(|q| *q >= num_qubits) {
        return refused(format!("this device has {NUM_QUBITS} qubits"));
    }
    let mut qubits = Qubits::zero(num_qubits);
    for (index, &(kind, q0, q1, param)) in gates.iter().enumerate() {
        let gate = Gate { kind, q0, q1, reserved: 0, param };
        if q0.max(q1) >= num_qubits {
            return refused(format!("gate {index}: there is no such qubit"));
        }
        if let Err(what) = qubits.apply(gate.op()) {
            return refused(format!("gate {index}: {what}"));
        }
    }
    let mut counts = BTreeMap::<String, i64>::new();
    let mut seen = BTreeMap::<usize, i64>::new();
    for (shot, result) in (0..shots).zip(qubits.shots()) {
        if shot % 4096 == 0 && aborted.lock().unwrap_or_else(PoisonError::into_inner).contains(job) {
            return Answer::Aborted;
        }
        *seen.entry(result).or_default() += 1;
    }
    for (result, n) in seen {
        let bit = |q: &u16| if result >> q & 1 == 1 { '1' } else { '0' };
        *counts.entry(measurements.iter().map(bit).collect()).or_default() += n;
    }
    Answer::Counts { counts: counts.into_iter().collect(), ms: start.elapsed().as_secs_f64() * 1e3 }
}
