//! What counts must say: the conformance suite by groups, pairs of qubits, random circuits, refusals, states.

use std::f64::consts::PI;
use std::sync::Arc;

use coda_plugin_abi::conformance::{Case, Failure, Suite};
use coda_plugin_abi::{Amplitude, ErrorCode, Gate, GateKind, Operation, Program, Target};
use rand::Rng;
use rand::rngs::StdRng;

use super::bench::{Bench, Live, turn};
use super::{Done, Stop, failed, skipped};
use crate::executor::JobContext;
use crate::executor::ffi::CallEvolve;

/// Pairs that are tried where all would be too many.
const PAIRS: usize = 200;
const QUICK_PAIRS: usize = 12;

const BIT_ORDER: &str =
    "character i of a key is the outcome of measurements[i]: check the order of qubits and characters";
const GATES: &str = "compare the gates' matrices, angles and order with the format's definition";

fn group(bench: &Bench, name: &str) -> Done {
    let live = bench.start()?;
    let mut suite = Suite::for_device(&live.device);
    suite.cases.retain(|c| c.group == name);
    if bench.options.quick {
        // Every third, the first among them.
        let mut n = 0;
        suite.cases.retain(|_| {
            n += 1;
            n % 3 == 1
        });
    }
    if suite.cases.is_empty() {
        let why = suite.skipped.first().map_or("the device has nothing for it".into(), |s| s.1.clone());
        return skipped(why);
    }
    let checked = bench.check_all(&live, &suite.cases)?;
    live.end()?;
    Ok(Some(format!("{checked} circuits")))
}

pub fn bit_order(bench: &Bench) -> Done {
    group(bench, "bit order").map_err(|stop| match stop {
        Stop::Failed(failure) if bench.options.python.is_some() => Stop::Failed(Failure {
            change: format!(
                "{}; if all keys are reversed, set CODA_EXECUTOR_BIT_ORDER=reversed",
                failure.change
            ),
            ..failure
        }),
        other => other,
    })
}

pub fn format(bench: &Bench) -> Done {
    group(bench, "format")
}

pub fn one_qubit(bench: &Bench) -> Done {
    group(bench, "one-qubit gates")
}

pub fn two_qubit(bench: &Bench) -> Done {
    group(bench, "two-qubit gates")
}

/// Two qubits with unlike probabilities, read in both orders.
pub fn pairs(bench: &Bench) -> Done {
    let live = bench.start()?;
    let n = live.device.num_qubits;
    if n < 2 {
        return skipped("the device has one qubit");
    }
    let mut pairs: Vec<(u16, u16)> =
        (0..n).flat_map(|a| (0..n).filter(move |b| *b != a).map(move |b| (a, b))).collect();
    let (all, most) = (pairs.len(), if bench.options.quick { QUICK_PAIRS } else { PAIRS });
    let mut random = bench.random("pairs");
    while pairs.len() > most {
        pairs.swap_remove(random.random_range(0..pairs.len()));
    }
    let mut cases = Vec::new();
    for (a, b) in pairs {
        let gates = [Gate::one(GateKind::Ry, a, 0.7), Gate::one(GateKind::Ry, b, 2.3)];
        let program = live.program(a.max(b) + 1, &gates, &[a, b])?;
        cases.push(Case::exact("pairs", format!("qubits {a} and {b}"), BIT_ORDER, program, 2_000));
    }
    let checked = bench.check_all(&live, &cases)?;
    live.end()?;
    Ok(Some(format!("{checked} of {all} pairs")))
}

pub fn shots(bench: &Bench) -> Done {
    let live = bench.start()?;
    let many = bench.shots(&live, 1_000_000);
    let case = |shots, name: &str| {
        Ok::<_, super::Stop>(Case::exact(
            "shots",
            name,
            "return every shot that was asked for",
            live.plain()?,
            shots,
        ))
    };
    bench.check_all(&live, &[case(1, "one shot")?])?;
    bench.check_all(&live, &[case(many, "many shots")?])?;
    live.end()?;
    Ok(Some(format!("1 and {many}")))
}

/// A random circuit on qubits that are connected.
fn random_program(live: &Live, random: &mut StdRng, depth: usize) -> Result<Program, super::Stop> {
    let target = live.target();
    let pairs: Vec<(u16, u16)> = match live.device.connectivity.edges() {
        Some(edges) => edges.iter().copied().filter(|(a, b)| *a < 6 && *b < 6).collect(),
        None => (1..live.device.num_qubits.min(5)).map(|b| (b - 1, b)).collect(),
    };
    let qubits = live.device.num_qubits.min(if pairs.is_empty() { 2 } else { 6 });
    let of = |count: usize| target.gates().iter().copied().filter(move |g| g.num_qubits() == count);
    let (ones, twos): (Vec<GateKind>, Vec<GateKind>) = (of(1).collect(), of(2).collect());
    let mut gates = Vec::new();
    for _ in 0..depth {
        let angle = |kind: GateKind, random: &mut StdRng| match (kind, kind.num_params()) {
            (_, 0) => 0.0,
            (GateKind::Id, _) => random.random_range(0.0..100.0),
            _ => random.random_range(-PI..PI),
        };
        for q in 0..qubits {
            let kind = ones[random.random_range(0..ones.len())];
            gates.push(Gate::one(kind, q, angle(kind, random)));
        }
        if !pairs.is_empty() && !twos.is_empty() {
            let ((a, b), kind) =
                (pairs[random.random_range(0..pairs.len())], twos[random.random_range(0..twos.len())]);
            gates.push(Gate::two(kind, a, b, angle(kind, random)));
        }
    }
    let mut measured: Vec<u16> = (0..qubits).collect();
    for i in (1..measured.len()).rev() {
        measured.swap(i, random.random_range(0..=i));
    }
    measured.truncate(4);
    live.program(qubits, &gates, &measured)
}

pub fn random(bench: &Bench) -> Done {
    let live = bench.start()?;
    let mut random = bench.random("random");
    let count = if bench.options.quick { 4 } else { 25 };
    let mut cases = Vec::new();
    for i in 0..count {
        let program = random_program(&live, &mut random, 1 + i % 6)?;
        cases.push(Case::exact("random", format!("random circuit {i}"), GATES, program, 10_000));
    }
    let checked = bench.check_all(&live, &cases)?;
    live.end()?;
    Ok(Some(format!("{checked} circuits")))
}

pub fn largest_qubit(bench: &Bench) -> Done {
    let live = bench.start()?;
    let last = live.device.num_qubits - 1;
    let change = "serve every qubit that `device` reports";
    let mut cases = vec![Case::exact(
        "last",
        "the last qubit alone",
        change,
        live.program(last + 1, &[turn(last)], &[last])?,
        2_000,
    )];
    if last > 0 {
        let gates = [Gate::one(GateKind::Ry, 0, 0.7), turn(last)];
        let program = live.program(last + 1, &gates, &[last, 0])?;
        cases.push(Case::exact("last", "the last and the first qubit", change, program, 2_000));
    }
    bench.check_all(&live, &cases)?;
    live.end()?;
    Ok(Some(format!("qubit {last}")))
}

/// Circuits that the host would never send: a plugin that runs them all the same answers for another device.
pub fn refusals(bench: &Bench) -> Done {
    let live = bench.start()?;
    let mut tried = Vec::new();
    let mut refuse = |name: String, program: Program| {
        let error = match live.run(&program, 10) {
            Ok(_) => {
                return failed(
                    format!("an error for {name}"),
                    "counts, as though nothing were wrong",
                    "check target, gates and number of qubits in `run` (error code unsupported)",
                );
            }
            Err(error) => error,
        };
        if matches!(error.code, ErrorCode::Panic | ErrorCode::Contract) || error.text.trim().is_empty() {
            return failed(
                format!("an error with a text for {name}"),
                format!("'{}' ({})", error.text, error.code),
                "return an error that says what the device lacks",
            );
        }
        tried.push(name);
        Ok(())
    };
    for target in Target::ALL.into_iter().filter(|t| !live.device.targets.contains(t)) {
        let known = |g: &GateKind| live.device.targets.iter().any(|t| t.gates().contains(g));
        let Some(gate) = target.gates().iter().find(|g| g.num_qubits() == 2 && !known(g)) else { continue };
        if live.device.num_qubits < 2 {
            continue;
        }
        let angle = if gate.num_params() == 0 { 0.0 } else { 1.0 };
        if let Ok(program) = Program::new(target, 2, [Gate::two(*gate, 0, 1, angle)], [0, 1]) {
            refuse(format!("the gate {gate} of target {target}"), program)?;
        }
    }
    let more = live.device.num_qubits + 1;
    if let Ok(program) = Program::new(live.target(), more, [turn(more - 1)], [more - 1]) {
        refuse(format!("a circuit of {more} qubits"), program)?;
    }
    live.good_job(bench, "after refused ones")?;
    live.end()?;
    if tried.is_empty() { skipped("it takes every target and size") } else { Ok(Some(tried.join(", "))) }
}

/// Random controlled operations, against plain arithmetic.
pub fn evolve(bench: &Bench) -> Done {
    let live = bench.start()?;
    let Some(most) = live.hooks.evolve_qubits else { return skipped("it does not offer evolve_state") };
    let mut random = bench.random("evolve");
    for qubits in 1..=most.min(5) {
        let mut state = vec![Amplitude::default(); 1 << qubits];
        state[0].re = 1.0;
        let operations: Vec<Operation> = (0..20).map(|_| random_operation(&mut random, qubits)).collect();
        let wants = operations.iter().fold(state.clone(), applied);
        let context = Arc::new(JobContext::new("check".into(), "check-state".into()));
        let call = CallEvolve {
            job_id: "check-state",
            num_qubits: qubits,
            amplitudes: &state,
            operations: &operations,
            context: &context,
        };
        let got = match live.instance.evolve_state(&call) {
            Ok(got) => got,
            Err(e) => {
                return failed(
                    "a state",
                    format!("the error '{}'", e.text),
                    "evolve every state up to evolve_qubits",
                );
            }
        };
        let near =
            |a: &Amplitude, b: &Amplitude| (a.re - b.re).hypot(a.im - b.im) < 1e-9 + bench.options.tolerance;
        if got.len() != wants.len() || !got.iter().zip(&wants).all(|(a, b)| near(a, b)) {
            let show = |s: &[Amplitude]| {
                s.iter().take(4).map(|a| format!("{:.4}{:+.4}i", a.re, a.im)).collect::<Vec<_>>().join(", ")
            };
            return failed(
                format!("{} amplitudes, from {}", wants.len(), show(&wants)),
                format!("{}, from {}", got.len(), show(&got)),
                "bit k of an index is qubit k; matrices are given row by row; all controls must be 1",
            );
        }
    }
    live.end()?;
    Ok(Some(format!("up to {} of {most} qubits", most.min(5))))
}

fn random_operation(random: &mut StdRng, qubits: u16) -> Operation {
    let target = random.random_range(0..u32::from(qubits));
    let controls =
        random.random_range(0..1u64 << qubits) & random.random_range(0..1u64 << qubits) & !(1 << target);
    let angle = |random: &mut StdRng| random.random_range(-PI..PI);
    let (t, phi, lambda) = (angle(random), angle(random), angle(random));
    let polar = |r: f64, a: f64| Amplitude { re: r * a.cos(), im: r * a.sin() };
    let matrix =
        [polar(t.cos(), 0.0), polar(-t.sin(), lambda), polar(t.sin(), phi), polar(t.cos(), phi + lambda)];
    Operation { controls, target, reserved: 0, matrix }
}

fn applied(state: Vec<Amplitude>, o: &Operation) -> Vec<Amplitude> {
    let (bit, mut next) = (1usize << o.target, state.clone());
    for (i, slot) in next.iter_mut().enumerate().filter(|(i, _)| *i as u64 & o.controls == o.controls) {
        let row = 2 * usize::from(i & bit != 0);
        let (x, y) = (state[i & !bit], state[i | bit]);
        let (a, b) = (o.matrix[row], o.matrix[row + 1]);
        slot.re = a.re * x.re - a.im * x.im + b.re * y.re - b.im * y.im;
        slot.im = a.re * x.im + a.im * x.re + b.re * y.im + b.im * y.re;
    }
    next
}
