//! The fast kernel agrees with one that applies each gate by itself, on registers large enough for blocks,
//! tiles and diagonals that reach across blocks.

use coda_simulator::fuse::{C, Planner};
use coda_simulator::kernel::{State, Stopped};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Debug, Clone, Copy)]
enum Gate {
    Rx(usize, f64),
    Ry(usize, f64),
    Phase(usize, f64),
    Cp(usize, usize, f64),
    Cz(usize, usize),
    Cnot(usize, usize),
    Iswap(usize, usize),
}

fn random_gate(rng: &mut StdRng, n: usize) -> Gate {
    let a = rng.random_range(0..n);
    let b = (a + rng.random_range(1..n)) % n;
    let angle = rng.random_range(-7.0..7.0);
    match rng.random_range(0..7) {
        0 => Gate::Rx(a, angle),
        1 => Gate::Ry(a, angle),
        2 => Gate::Phase(a, angle),
        3 => Gate::Cp(a, b, angle),
        4 => Gate::Cz(a, b),
        5 => Gate::Cnot(a, b),
        _ => Gate::Iswap(a, b),
    }
}

fn fast(gates: &[Gate], n: usize) -> Vec<f64> {
    let mut p = Planner::new(n);
    for gate in gates {
        match *gate {
            Gate::Rx(q, t) => p.rx(q, t),
            Gate::Ry(q, t) => p.ry(q, t),
            Gate::Phase(q, t) => p.phase(q, C::phase(t)),
            Gate::Cp(a, b, t) => p.controlled_phase(a, b, C::phase(t)),
            Gate::Cz(a, b) => p.controlled_phase(a, b, C::MINUS_ONE),
            Gate::Cnot(a, b) => p.cnot(a, b),
            Gate::Iswap(a, b) => p.iswap(a, b),
        }
    }
    let plan = p.finish();
    let mut state = State::zero(n).unwrap();
    state.run(&plan, &mut |_, _| true).unwrap();
    let weights = state.into_weights();
    let total: f64 = weights.iter().sum();
    let moved = |i: usize| (0..n).map(|q| (i >> q & 1) << plan.place(q)).sum::<usize>();
    (0..1 << n).map(|i| weights[moved(i)] / total).collect()
}

fn plain(gates: &[Gate], n: usize) -> Vec<f64> {
    let mut state = vec![(0.0, 0.0); 1 << n];
    state[0] = (1.0, 0.0);
    let times = |x: (f64, f64), y: (f64, f64)| (x.0 * y.0 - x.1 * y.1, x.0 * y.1 + x.1 * y.0);
    let plus = |x: (f64, f64), y: (f64, f64)| (x.0 + y.0, x.1 + y.1);
    for gate in gates {
        let old = state.clone();
        for (i, new) in state.iter_mut().enumerate() {
            let bit = |q: usize| i >> q & 1;
            *new = match *gate {
                Gate::Rx(q, t) => plus(
                    times(((t / 2.0).cos(), 0.0), old[i]),
                    times((0.0, -(t / 2.0).sin()), old[i ^ 1 << q]),
                ),
                Gate::Ry(q, t) => {
                    let s = if bit(q) == 1 { (t / 2.0).sin() } else { -(t / 2.0).sin() };
                    plus(times(((t / 2.0).cos(), 0.0), old[i]), times((s, 0.0), old[i ^ 1 << q]))
                }
                Gate::Phase(q, t) if bit(q) == 1 => times((t.cos(), t.sin()), old[i]),
                Gate::Cp(a, b, t) if bit(a) & bit(b) == 1 => times((t.cos(), t.sin()), old[i]),
                Gate::Cz(a, b) if bit(a) & bit(b) == 1 => (-old[i].0, -old[i].1),
                Gate::Cnot(a, b) => old[i ^ bit(a) << b],
                Gate::Iswap(a, b) if bit(a) != bit(b) => times((0.0, 1.0), old[i ^ (1 << a | 1 << b)]),
                Gate::Phase(..) | Gate::Cp(..) | Gate::Cz(..) | Gate::Iswap(..) => old[i],
            };
        }
    }
    state.iter().map(|x| x.0 * x.0 + x.1 * x.1).collect()
}

fn assert_same(gates: &[Gate], n: usize) {
    let (fast, plain) = (fast(gates, n), plain(gates, n));
    let worst = fast.iter().zip(&plain).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
    assert!(worst < 1e-12, "{n} qubits: probabilities differ by {worst}");
}

#[test]
fn random_circuits_of_all_sizes() {
    let mut rng = StdRng::seed_from_u64(11);
    for n in [2, 3, 5, 11, 12, 13, 15, 20] {
        let gates: Vec<Gate> = (0..if n < 16 { 150 } else { 60 }).map(|_| random_gate(&mut rng, n)).collect();
        assert_same(&gates, n);
    }
}

#[test]
fn layers_on_every_qubit_and_phases_between_all() {
    let n = 14;
    let mut gates = Vec::new();
    for layer in 0..3 {
        gates.extend((0..n).map(|q| Gate::Rx(q, 0.3 + q as f64 + f64::from(layer))));
        for a in 0..n {
            gates.extend((0..a).map(|b| if layer == 1 { Gate::Cz(a, b) } else { Gate::Cp(a, b, 0.1) }));
        }
    }
    assert_same(&gates, n);
}

#[test]
fn thousands_of_gates_neither_overflow_nor_lose_precision() {
    let mut rng = StdRng::seed_from_u64(12);
    let gates: Vec<Gate> = (0..20_000).map(|_| random_gate(&mut rng, 3)).collect();
    assert_same(&gates, 3);
    // Quarter turns lengthen the state most.
    let quarter: Vec<Gate> = (0..5_001)
        .flat_map(|_| [Gate::Ry(0, std::f64::consts::FRAC_PI_2), Gate::Cz(0, 1), Gate::Phase(0, 0.1)])
        .collect();
    assert_same(&quarter, 2);
}

#[test]
fn a_run_stops_when_it_is_told_to() {
    let mut p = Planner::new(4);
    for i in 0..10 {
        p.rx(0, 1.0);
        p.controlled_phase(0, 1 + i % 3, C::MINUS_ONE);
    }
    let plan = p.finish();
    let mut last = 0;
    let stopped = State::zero(4).unwrap().run(&plan, &mut |done, total| {
        assert_eq!(total, plan.stages.len());
        last = done;
        done < 4
    });
    assert_eq!((stopped, last), (Err(Stopped), 4));
}
