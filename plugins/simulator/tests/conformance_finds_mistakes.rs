//! The conformance suite finds the mistakes it is there for: the simulator passes it, and each of these
//! alterations of its circuits or answers fails.

use std::f64::consts::{FRAC_PI_2, PI};

use coda_plugin_abi::conformance::{Failure, Linked, Setup, Suite, Verdict};
use coda_plugin_abi::{Error, Executor, Gate, GateKind, Op, Outcome, Program};

type Parts = (Vec<Gate>, Vec<u16>);

/// Failures of a simulator whose circuits or answers are altered.
fn failures(
    target: &str,
    alter: &dyn Fn(&[Gate], &[u16]) -> Parts,
    answer: &dyn Fn(Outcome) -> Outcome,
) -> Vec<(String, Failure)> {
    let factory =
        |ctx: &coda_plugin_abi::Context<'_>| Ok(Box::new(coda_simulator::create(ctx)?) as Box<dyn Executor>);
    let linked = Linked::create(factory, &Setup::new("seed: 9", target, 4)).unwrap();
    let suite = Suite::for_device(&linked.device().unwrap().0);
    let mut runner = |program: &Program, shots: u32| -> Result<Outcome, Error> {
        let (gates, measurements) = alter(program.gates(), program.measurements());
        let altered = Program::new(program.target(), program.num_qubits(), gates, measurements).unwrap();
        linked.run("case", &altered, shots).map(answer)
    };
    let mut failed = Vec::new();
    suite.run(&mut runner, &mut |case, verdict| {
        if let Verdict::Failed(why) = verdict {
            failed.push((case.name.clone(), why.clone()));
        }
    });
    failed
}

fn with_gates(target: &str, change: impl Fn(Op) -> Option<Vec<Gate>>) -> Vec<(String, Failure)> {
    let alter = |gates: &[Gate], measurements: &[u16]| {
        let changed = |g: &Gate| change(g.op().unwrap()).unwrap_or_else(|| vec![*g]);
        (gates.iter().flat_map(changed).collect(), measurements.to_vec())
    };
    failures(target, &alter, &|o| o)
}

fn with_answer(answer: impl Fn(Outcome) -> Outcome) -> Vec<(String, Failure)> {
    failures("cz", &|g, m| (g.to_vec(), m.to_vec()), &answer)
}

fn assert_found(what: &str, failed: &[(String, Failure)], in_case: &str) {
    let names: Vec<&str> = failed.iter().map(|f| f.0.as_str()).collect();
    assert!(
        names.iter().any(|n| n.contains(in_case)),
        "{what} was not found by '{in_case}', only by {names:?}"
    );
}

#[test]
fn unaltered_passes() {
    for target in ["cz", "iswap", "pcz", "cnot"] {
        assert_eq!(with_gates(target, |_| None), []);
    }
}

#[test]
fn wrong_gates() {
    let one = |kind, q, angle| Some(vec![Gate::one(kind, q, angle)]);
    let found = with_gates("cz", |op| match op {
        Op::Rx { q, angle } => one(GateKind::Rx, q, -angle),
        _ => None,
    });
    // A sign that is wrong in every rx shows only together with gates about the other two axes.
    assert_found("the sign of rx", &found, "rz(0.900) seen by rx");
    let found = with_gates("cz", |op| match op {
        Op::Ry { q, angle } => one(GateKind::Ry, q, -angle),
        _ => None,
    });
    assert_found("the sign of ry", &found, "rz(0.900) seen by ry");
    let found = with_gates("cnot", |op| match op {
        Op::Rz { q, angle } => one(GateKind::Rz, q, -angle),
        _ => None,
    });
    assert_found("the sign of rz", &found, "rz(0.900) seen by");
    let found = with_gates("cnot", |op| match op {
        Op::VirtualZ { q, .. } => one(GateKind::Id, q, 0.0),
        _ => None,
    });
    assert_found("a virtual_z left out", &found, "virtual_z(0.900) seen by");
    let found = with_gates("cnot", |op| match op {
        Op::X90 { q } => one(GateKind::Rx, q, -FRAC_PI_2),
        Op::YMinus90 { q } => one(GateKind::Ry, q, FRAC_PI_2),
        _ => None,
    });
    assert_found("the sign of x90", &found, "x90 seen by");
    assert_found("the sign of y_minus_90", &found, "y_minus_90 seen by");
    let found = with_gates("cnot", |op| match op {
        Op::Cnot { control, target } => Some(vec![Gate::two(GateKind::Cnot, target, control, 0.0)]),
        _ => None,
    });
    assert_found("control and target exchanged", &found, "cnot on 0, 1, on |10>");
    let found = with_gates("pcz", |op| match op {
        Op::Cp { a, b, angle } => Some(vec![Gate::two(GateKind::Cp, a, b, -angle)]),
        _ => None,
    });
    assert_found("the sign of cp", &found, "cp(0.900) on 0, 1, turned");
    let found = with_gates("iswap", |op| match op {
        // The inverse of iswap is iswap between two qubits turned by pi about z.
        Op::Iswap { a, b } => Some(vec![
            Gate::two(GateKind::Iswap, a, b, 0.0),
            Gate::one(GateKind::Rz, a, PI),
            Gate::one(GateKind::Rz, b, PI),
        ]),
        _ => None,
    });
    assert_found("the sign of iswap", &found, "iswap on 0, 1, turned");
    let found = with_gates("cz", |op| match op {
        Op::Cz { .. } => Some(vec![]),
        _ => None,
    });
    assert_found("a cz left out", &found, "cz on 0, 1, turned");
}

#[test]
fn wrong_order() {
    let reversed = failures("cz", &|g, m| (g.iter().rev().copied().collect(), m.to_vec()), &|o| o);
    assert_found("gates backwards", &reversed, "gates in order");
    let sorted = |g: &[Gate], m: &[u16]| {
        let mut m = m.to_vec();
        m.sort_unstable();
        (g.to_vec(), m)
    };
    assert_found("measurements sorted", &failures("cz", &sorted, &|o| o), "measurements permuted");
    let flipped = with_answer(|mut o| {
        for (key, _) in &mut o.counts {
            *key = key.chars().rev().collect();
        }
        o
    });
    assert_found("keys reversed", &flipped, "the worked example");
    let why = &flipped.iter().find(|f| f.0.contains("first qubit set")).unwrap().1;
    assert!(why.change.contains("reversed"), "{why}");
}

#[test]
fn wrong_form() {
    type Damage<'a> = &'a dyn Fn(&mut Outcome);
    let cases: [(&str, Damage<'_>, &str); 8] = [
        ("a shot lost", &|o| o.counts[0].1 -= 1, "add up to 100 shots"),
        ("a key twice", &|o| o.counts.push((o.counts[0].0.clone(), 0)), "each key once"),
        ("a key of words", &|o| o.counts[0].0 = "0x2".into(), "each 0 or 1"),
        ("a key too long", &|o| o.counts[0].0.push('0'), "each 0 or 1"),
        ("a negative count", &|o| o.counts.extend([("11".into(), -1)]), "counts of 0 or more"),
        ("shots_completed", &|o| o.shots_completed = Some(1), "shots_completed to be the sum"),
        ("no time", &|o| o.execution_time_ms = Some(f64::NAN), "a finite execution time"),
        ("a time before", &|o| o.execution_time_ms = Some(-1.0), "a finite execution time"),
    ];
    for (what, damage, expected) in cases {
        let failed = with_answer(|mut o| {
            damage(&mut o);
            o
        });
        let why = failed.iter().find(|f| f.0.contains("the worked example")).map(|f| &f.1);
        assert!(why.is_some_and(|w| w.expected.contains(expected)), "{what}: {why:?}");
    }
    let unequal = with_answer(|mut o| {
        if let Some((key, _)) = o.counts.first_mut().filter(|c| c.0.len() == 3) {
            key.replace_range(.., "110");
        }
        o
    });
    assert_found("one qubit, two outcomes", &unequal, "a qubit measured three times");
}

#[test]
fn the_allowance_for_hardware_forgives_small_errors_only() {
    let factory =
        |ctx: &coda_plugin_abi::Context<'_>| Ok(Box::new(coda_simulator::create(ctx)?) as Box<dyn Executor>);
    let run = |noise: f64, allowed: f64| {
        let config = format!("{{seed: 5, noise: {{readout: {noise}}}}}");
        let mut linked = Linked::create(factory, &Setup::new(config, "cz", 4)).unwrap();
        Suite::for_device(&linked.device().unwrap().0).allowing(allowed).run(&mut linked, &mut |_, _| {})
    };
    assert!(run(0.002, 0.1));
    assert!(!run(0.002, 0.0));
    assert!(!run(0.3, 0.1));
}
