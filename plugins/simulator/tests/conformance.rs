//! The simulator passes the suite that every executor must pass, for every target and form of connectivity.

use coda_plugin_abi::Executor;
use coda_plugin_abi::conformance::{Linked, Setup, Suite, Verdict};

fn passes(config: &str, target: &str, num_qubits: u16) {
    let factory =
        |ctx: &coda_plugin_abi::Context<'_>| Ok(Box::new(coda_simulator::create(ctx)?) as Box<dyn Executor>);
    let mut linked = Linked::create(factory, &Setup::new(config, target, num_qubits)).unwrap();
    let (device, _) = linked.device().unwrap();
    let suite = Suite::for_device(&device);
    assert!(suite.cases.len() > 20, "{} cases", suite.cases.len());
    let mut failed = Vec::new();
    suite.run(&mut linked, &mut |case, verdict| {
        if let Verdict::Failed(why) = verdict {
            failed.push(format!("{}: {why}", case.name));
        }
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_target() {
    for target in ["cz", "iswap", "pcz", "cnot"] {
        passes("seed: 1", target, 5);
    }
}

#[test]
fn the_largest_and_the_smallest_device() {
    passes("seed: 2", "cnot", 50);
    passes("seed: 3", "cz", 1);
}

#[test]
fn limited_connectivity() {
    passes("{seed: 4, connectivity: line, directed: true}", "cnot", 4);
    passes("{seed: 5, connectivity: {grid: [2, 3]}}", "pcz", 6);
    passes("{seed: 6, connectivity: [[7, 3]], directed: true}", "iswap", 9);
}

#[test]
fn one_trajectory_without_errors_is_exact() {
    passes("{seed: 7, noise: {depolarizing: 0, readout: 0, trajectories: 1}}", "cz", 3);
}
