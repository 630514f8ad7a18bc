//! Prints how long the kernel takes for 20 qubits and 20 layers of rx and cz, on one thread.

use std::time::Instant;

use coda_simulator::fuse::{C, Planner};
use coda_simulator::kernel::State;

const QUBITS: usize = 20;
const LAYERS: usize = 20;
const REPEATS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut times_ms = Vec::new();
    for _ in 0..REPEATS {
        let start = Instant::now();
        let mut planner = Planner::new(QUBITS);
        for layer in 0..LAYERS {
            for q in 0..QUBITS {
                planner.rx(q, 0.1 + 0.37 * (layer * QUBITS + q) as f64);
            }
            for q in 0..QUBITS - 1 {
                planner.controlled_phase(q, q + 1, C::MINUS_ONE);
            }
        }
        let plan = planner.finish();
        let mut state = State::zero(QUBITS)?;
        state.run(&plan, &mut |_, _| true).map_err(|_| "stopped")?;
        let weights = state.into_weights();
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
        std::hint::black_box(weights);
    }
    times_ms.sort_by(f64::total_cmp);
    println!(
        "{QUBITS} qubits, {LAYERS} layers of rx and cz, {REPEATS} runs: best {:.0} ms, median {:.0} ms, worst {:.0} ms",
        times_ms[0],
        times_ms[REPEATS / 2],
        times_ms[REPEATS - 1]
    );
    Ok(())
}
