//! States that are handed over are evolved exactly: against dense matrices, whole and in pieces.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use coda_plugin_abi::conformance::{Linked, Setup};
use coda_plugin_abi::{Amplitude, ErrorCode, Executor, Operation};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

fn simulator(config: &str, qubits: u16) -> Linked {
    let factory =
        |ctx: &coda_plugin_abi::Context<'_>| Ok(Box::new(coda_simulator::create(ctx)?) as Box<dyn Executor>);
    Linked::create(factory, &Setup::new(config, "cz", qubits)).unwrap()
}

fn c(re: f64, im: f64) -> Amplitude {
    Amplitude { re, im }
}

fn operation(controls: u64, target: u32, matrix: [Amplitude; 4]) -> Operation {
    Operation { controls, target, reserved: 0, matrix }
}

fn zero(qubits: u16) -> Vec<Amplitude> {
    let mut state = vec![c(0.0, 0.0); 1 << qubits];
    state[0] = c(1.0, 0.0);
    state
}

fn hadamard() -> [Amplitude; 4] {
    [c(FRAC_1_SQRT_2, 0.0), c(FRAC_1_SQRT_2, 0.0), c(FRAC_1_SQRT_2, 0.0), c(-FRAC_1_SQRT_2, 0.0)]
}

fn x() -> [Amplitude; 4] {
    [c(0.0, 0.0), c(1.0, 0.0), c(1.0, 0.0), c(0.0, 0.0)]
}

/// A random unitary, by three angles and a phase.
fn unitary(rng: &mut StdRng) -> [Amplitude; 4] {
    let angle = |rng: &mut StdRng| rng.random_range(-PI..PI);
    let (t, phi, lambda, g) = (angle(rng), angle(rng), angle(rng), angle(rng));
    let e = |r: f64, a: f64| c(r * a.cos(), r * a.sin());
    [e(t.cos(), g), e(-t.sin(), g + lambda), e(t.sin(), g + phi), e(t.cos(), g + phi + lambda)]
}

fn random(rng: &mut StdRng, qubits: u32, count: usize) -> Vec<Operation> {
    let make = |_| {
        let target = rng.random_range(0..qubits);
        let controls = rng.random_range(0..1u64 << qubits) & rng.random_range(0..1u64 << qubits);
        operation(controls & !(1 << target), target, unitary(rng))
    };
    (0..count).map(make).collect()
}

/// One operation by its matrix over the whole register, element by element.
fn dense(state: &[Amplitude], o: &Operation) -> Vec<Amplitude> {
    let element = |to: usize, from: usize| {
        let on = from as u64 & o.controls == o.controls;
        let (a, b) = (to >> o.target & 1, from >> o.target & 1);
        match () {
            () if to & !(1 << o.target) != from & !(1 << o.target) => c(0.0, 0.0),
            () if on => o.matrix[2 * a + b],
            () => c(f64::from(u8::from(a == b)), 0.0),
        }
    };
    (0..state.len())
        .map(|to| {
            state.iter().enumerate().fold(c(0.0, 0.0), |sum, (from, s)| {
                let m = element(to, from);
                c(sum.re + m.re * s.re - m.im * s.im, sum.im + m.re * s.im + m.im * s.re)
            })
        })
        .collect()
}

fn near(a: &[Amplitude], b: &[Amplitude]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a.re - b.re).hypot(a.im - b.im) < 1e-12)
}

#[test]
fn a_bell_pair_has_its_first_qubit_in_bit_0() {
    let sim = simulator("", 3);
    let (device, hooks) = sim.device().unwrap();
    assert_eq!((device.num_qubits, hooks.evolve_qubits), (3, Some(3)));
    let ops = [operation(0, 0, hadamard()), operation(1, 1, x())];
    let bell = sim.evolve_state("a", 2, &zero(2), &ops).unwrap();
    let half = c(FRAC_1_SQRT_2, 0.0);
    assert!(near(&bell, &[half, c(0.0, 0.0), c(0.0, 0.0), half]), "{bell:?}");
    let flipped = sim.evolve_state("b", 2, &zero(2), &[operation(0, 1, x())]).unwrap();
    assert_eq!(flipped[2], c(1.0, 0.0), "qubit 1 is bit 1");
}

#[test]
fn random_operations_agree_with_dense_matrices_and_pieces_with_the_whole() {
    let mut rng = StdRng::seed_from_u64(11);
    let sim = simulator("", 6);
    for qubits in 1..=6u16 {
        let ops = random(&mut rng, qubits.into(), 30);
        let start = sim.evolve_state("s", qubits, &zero(qubits), &ops[..5]).unwrap();
        let wants = ops.iter().fold(start.clone(), |s, o| dense(&s, o));
        let whole = sim.evolve_state("w", qubits, &start, &ops).unwrap();
        assert!(near(&whole, &wants), "{qubits} qubits");
        let part = sim.evolve_state("p", qubits, &start, &ops[..12]).unwrap();
        assert!(near(&sim.evolve_state("q", qubits, &part, &ops[12..]).unwrap(), &wants));
        assert!((whole.iter().map(|a| a.re * a.re + a.im * a.im).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}

#[test]
fn what_cannot_be_evolved_is_refused() {
    let small = simulator("max_memory_mb: 1", 50);
    assert_eq!(small.device().unwrap().1.evolve_qubits, Some(16));
    let error = small.evolve_state("a", 17, &zero(17), &[]).unwrap_err();
    assert_eq!(error.code, ErrorCode::Resources);
    assert!(error.text.contains("17 qubits, this simulator evolves 16"), "{error}");
    let noisy = simulator("noise: {readout: 0.1}", 2);
    assert_eq!(noisy.device().unwrap().1.evolve_qubits, None);
    assert_eq!(noisy.evolve_state("a", 1, &zero(1), &[]).unwrap_err().code, ErrorCode::Contract);
    let broken = simulator("mode: raise", 2);
    assert_eq!(broken.evolve_state("a", 1, &zero(1), &[]).unwrap_err().code, ErrorCode::Hardware);
}

#[test]
fn a_cancel_ends_it() {
    let sim = simulator("mode: hang", 2);
    std::thread::scope(|scope| {
        let run = scope.spawn(|| sim.evolve_state("a", 1, &zero(1), &[]));
        while !sim.mark_cancelled("a") {
            std::thread::yield_now();
        }
        assert_eq!(run.join().unwrap().unwrap_err().code, ErrorCode::Cancelled);
    });
}
