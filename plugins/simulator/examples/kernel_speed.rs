//! Prints how long the kernel takes for 20 qubits and 20 layers, on one thread: rx and cz, the usual yardstick,
//! and rotations about all axes with cnot, its most general work.

use std::time::Instant;

use coda_simulator::fuse::{C, Planner};
use coda_simulator::kernel::State;

const QUBITS: usize = 20;
const LAYERS: usize = 20;
const REPEATS: usize = 9;

fn rx_and_cz(planner: &mut Planner) {
    for layer in 0..LAYERS {
        for q in 0..QUBITS {
            planner.rx(q, 0.1 + 0.37 * (layer * QUBITS + q) as f64);
        }
        for q in 1..QUBITS {
            planner.controlled_phase(q - 1, q, C::MINUS_ONE);
        }
    }
}

fn all_axes_and_cnot(planner: &mut Planner) {
    for layer in 0..LAYERS {
        for q in 0..QUBITS {
            let angle = 0.1 + 0.37 * (layer * QUBITS + q) as f64;
            planner.rx(q, angle);
            planner.ry(q, 2.0 * angle);
            planner.phase(q, C::phase(3.0 * angle));
        }
        for q in (layer % 2..QUBITS - 1).step_by(2) {
            planner.cnot(q, q + 1);
        }
    }
}

type Circuit = (&'static str, fn(&mut Planner));

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let circuits: [Circuit; 2] = [("rx and cz", rx_and_cz), ("rx, ry, rz and cnot", all_axes_and_cnot)];
    for (name, gates) in circuits {
        let mut times_ms = Vec::new();
        for _ in 0..REPEATS {
            let start = Instant::now();
            let mut planner = Planner::new(QUBITS);
            gates(&mut planner);
            let mut state = State::zero(QUBITS)?;
            state.run(&planner.finish(), &mut |_, _| true).map_err(|_| "stopped")?;
            let weights = state.into_weights();
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            std::hint::black_box(weights);
        }
        times_ms.sort_by(f64::total_cmp);
        let (best, median, worst) = (times_ms[0], times_ms[REPEATS / 2], times_ms[REPEATS - 1]);
        println!(
            "{QUBITS} qubits, {LAYERS} layers of {name}, {REPEATS} runs: \
             best {best:.0} ms, median {median:.0} ms, worst {worst:.0} ms"
        );
    }
    Ok(())
}
