//! What the simulator's device config asks for is what it does: modes, times, limits, noise, cancelling.

use std::sync::mpsc;
use std::time::Duration;

use coda_plugin_abi::conformance::{Linked, Setup};
use coda_plugin_abi::{Connectivity, Error, ErrorCode, Executor, Gate, GateKind, LogLevel, Program, Target};

/// Far longer than anything here takes; reached only when something hangs.
const TOO_LONG: Duration = Duration::from_secs(60);

fn make(config: &str) -> Result<Linked, Error> {
    make_for(config, "cz", 5)
}

fn make_for(config: &str, target: &str, num_qubits: u16) -> Result<Linked, Error> {
    let factory =
        |ctx: &coda_plugin_abi::Context<'_>| Ok(Box::new(coda_simulator::create(ctx)?) as Box<dyn Executor>);
    Linked::create(factory, &Setup::new(config, target, num_qubits))
}

fn config_error(config: &str) -> String {
    let error = make(config).err().expect("a config error");
    assert_eq!(error.code, ErrorCode::Config);
    error.text
}

fn rx(q: u16, angle: f64) -> Gate {
    Gate::one(GateKind::Rx, q, angle)
}

fn cz(a: u16, b: u16) -> Gate {
    Gate::two(GateKind::Cz, a, b, 0.0)
}

fn circuit(num_qubits: u16, gates: &[Gate], measurements: &[u16]) -> Program {
    Program::new(Target::Cz, num_qubits, gates, measurements).unwrap()
}

fn counts(linked: &Linked, id: &str, program: &Program, shots: u32) -> Vec<(String, i64)> {
    linked.run(id, program, shots).unwrap().counts
}

fn key(text: &str, n: i64) -> Vec<(String, i64)> {
    vec![(text.to_string(), n)]
}

/// Runs a job on its own thread, waits until it has reached the executor, calls `end`, returns its answer.
fn ended_by(linked: &Linked, program: &Program, end: impl FnOnce()) -> Result<i64, Error> {
    std::thread::scope(|s| {
        let (send, receive) = mpsc::channel();
        s.spawn(move || {
            let answer = linked.run("job", program, 10);
            send.send(answer.map(|o| o.counts.iter().map(|c| c.1).sum())).unwrap();
        });
        // Ending too early would be an unknown id, which is ignored: the job logs when it has entered.
        while linked.log_lines(Some("job")).is_empty() {
            std::thread::yield_now();
        }
        end();
        receive.recv_timeout(TOO_LONG).expect("the run returns once it is ended")
    })
}

#[test]
fn worked_example_and_defaults() {
    let sim = make("").unwrap();
    let (device, hooks) = sim.device().unwrap();
    assert_eq!((device.name.as_str(), device.num_qubits, device.slots), ("coda-simulator", 5, 1));
    assert_eq!((device.targets, device.connectivity), (vec![Target::Cz], Connectivity::Unknown));
    assert!(hooks.cancel && !hooks.batch_run);
    let program = circuit(3, &[rx(2, std::f64::consts::PI)], &[2, 0]);
    let outcome = sim.run("a", &program, 100).unwrap();
    assert_eq!(outcome.counts, key("10", 100));
    assert_eq!(outcome.shots_completed, Some(100));
    assert!(outcome.execution_time_ms.unwrap() >= 0.0);
    assert!(matches!(&sim.log_lines(None)[..], [(LogLevel::Info, line)] if line.contains("coda-simulator")));
}

#[test]
fn only_qubits_that_gates_touch_cost_anything() {
    let sim = make_for("max_memory_mb: 1", "cz", 50).unwrap();
    assert_eq!(counts(&sim, "a", &circuit(50, &[], &[49]), 7), key("0", 7));
    let three = circuit(50, &[rx(49, std::f64::consts::PI), cz(49, 7), cz(0, 7)], &[49, 48, 0]);
    assert_eq!(counts(&sim, "b", &three, 9), key("100", 9));
    let idle: Vec<Gate> = (0..50).map(|q| Gate::one(GateKind::Id, q, 10.0)).collect();
    assert_eq!(counts(&sim, "c", &circuit(50, &idle, &[0]), 3), key("0", 3));
}

#[test]
fn a_state_that_needs_more_memory_than_allowed_is_refused() {
    let sim = make_for("max_memory_mb: 1", "cz", 50).unwrap();
    let gates: Vec<Gate> = (0..50).map(|q| rx(q, 0.1)).collect();
    let allowed = circuit(50, &gates[..16], &[0]);
    assert!(sim.run("a", &allowed, 1).is_ok());
    for (n, needs) in
        [(17, "17 qubits, whose state needs 2 MiB"), (50, "50 qubits, whose state needs 17179869184 MiB")]
    {
        let error = sim.run("b", &circuit(50, &gates[..n], &[0]), 1).unwrap_err();
        assert_eq!(error.code, ErrorCode::Resources);
        assert!(error.text.contains(needs) && error.text.contains("allows 1 MiB"), "{}", error.text);
    }
}

#[test]
fn outcomes_that_need_more_memory_than_allowed_are_refused() {
    let sim = make("{max_memory_mb: 1, num_qubits: 14}").unwrap();
    let gates: Vec<Gate> = (0..14).map(|q| rx(q, 1.5)).collect();
    let long: Vec<u16> = (0..1000).map(|i| i % 14).collect();
    let error = sim.run("a", &circuit(14, &gates, &long), 10_000).unwrap_err();
    assert_eq!(error.code, ErrorCode::Resources);
    assert!(error.text.contains("distinct outcomes"), "{}", error.text);
    assert_eq!(counts(&sim, "b", &circuit(14, &gates, &long), 20).iter().map(|c| c.1).sum::<i64>(), 20);
}

#[test]
fn the_greatest_number_of_shots_adds_up() {
    let sim = make("seed: 3").unwrap();
    let shots = (1u32 << 31) - 1;
    let counts = counts(&sim, "a", &circuit(4, &[rx(0, 1.0), rx(1, 2.0), rx(3, 0.1)], &[0, 1, 3]), shots);
    assert_eq!(counts.len(), 8);
    assert_eq!(counts.iter().map(|c| c.1).sum::<i64>(), i64::from(shots));
}

#[test]
fn a_seed_makes_counts_depend_on_the_job_alone() {
    let program = circuit(3, &[rx(0, 1.0), rx(1, 1.5), rx(2, 2.0)], &[0, 1, 2]);
    let run = |config: &str, id: &str| counts(&make(config).unwrap(), id, &program, 1000);
    assert_eq!(run("seed: 1", "a"), run("seed: 1", "a"));
    assert_ne!(run("seed: 1", "a"), run("seed: 1", "b"));
    assert_ne!(run("seed: 1", "a"), run("seed: 2", "a"));
    assert_ne!(run("", "a"), run("", "a"));
}

#[test]
fn noop_answers_zeros_and_raise_fails() {
    let program = circuit(3, &[rx(0, 3.0)], &[0, 0, 2]);
    let sim = make("{mode: noop, execution_time_ms: 0}").unwrap();
    let outcome = sim.run("a", &program, 5).unwrap();
    assert_eq!((outcome.counts, outcome.execution_time_ms), (key("000", 5), Some(0.0)));
    let error = make("mode: raise").unwrap().run("a", &program, 5).unwrap_err();
    assert_eq!(error.code, ErrorCode::Hardware);
    assert!(error.text.contains("mode: raise"));
}

#[test]
fn a_waiting_run_ends_when_cancelled_or_marked_or_shut_down() {
    let program = circuit(1, &[], &[0]);
    for config in ["mode: hang", "{mode: noop, execution_time_ms: 86400000}", "{execution_time_ms: 86400000}"]
    {
        let sim = make(config).unwrap();
        let cancel = ended_by(&sim, &program, || {
            sim.cancel("another job").unwrap();
            sim.cancel("job").unwrap();
        });
        let marked = ended_by(&sim, &program, || assert!(sim.mark_cancelled("job")));
        let down = ended_by(&sim, &program, || sim.shutdown().unwrap());
        for answer in [cancel, marked, down] {
            assert_eq!(answer.unwrap_err().code, ErrorCode::Cancelled, "{config}");
        }
    }
}

#[test]
fn a_computing_run_ends_when_cancelled() {
    let sim = make_for("", "cz", 20).unwrap();
    let layer: Vec<Gate> = (0..20).map(|q| rx(q, 0.3)).chain((1..20).map(|q| cz(q - 1, q))).collect();
    // Would take hours.
    let program = circuit(20, &layer.repeat(50_000 / layer.len() * 20), &[0]);
    let answer = ended_by(&sim, &program, || sim.cancel("job").unwrap());
    assert_eq!(answer.unwrap_err().code, ErrorCode::Cancelled);
}

#[test]
fn the_simulated_time_is_kept() {
    let sim = make("{mode: noop, execution_time_ms: 30}").unwrap();
    let start = std::time::Instant::now();
    let outcome = sim.run("a", &circuit(1, &[], &[0]), 1).unwrap();
    // A lower bound only, which no load on the machine can break.
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(outcome.execution_time_ms, Some(30.0));
}

#[test]
fn a_batch_answers_each_job_by_itself() {
    let sim = make("{batch: true, seed: 1}").unwrap();
    assert!(sim.device().unwrap().1.batch_run);
    let good = circuit(1, &[rx(0, std::f64::consts::PI)], &[0]);
    let too_large = circuit(6, &[], &[5]);
    let answers = sim.batch_run(&[("a", &good, 10), ("b", &too_large, 10), ("c", &good, 20)]).unwrap();
    assert_eq!(answers[0].as_ref().unwrap().counts, key("1", 10));
    assert_eq!(answers[1].as_ref().unwrap_err().code, ErrorCode::Unsupported);
    assert_eq!(answers[2].as_ref().unwrap().counts, key("1", 20));
    assert_eq!(sim.batch_run(&[]).unwrap(), []);
    let single = make("").unwrap().batch_run(&[("a", &good, 1)]).unwrap_err();
    assert_eq!(single.code, ErrorCode::Contract);
}

#[test]
fn progress_reaches_the_host() {
    let sim = make_for("execution_time_ms: 86400000", "cz", 4).unwrap();
    let program = circuit(4, &[rx(0, 0.3), cz(0, 1), rx(1, 0.2), cz(1, 2), rx(2, 0.1)], &[0]);
    let mut seen = Vec::new();
    let answer = ended_by(&sim, &program, || {
        while sim.progress("job").is_empty() {
            std::thread::yield_now();
        }
        seen = sim.progress("job");
        sim.cancel("job").unwrap();
    });
    assert!(answer.is_err());
    assert!(seen.iter().all(|(done, total)| done <= total && *total > 0), "{seen:?}");
}

#[test]
fn gates_on_pairs_that_are_not_connected_are_refused() {
    let refused = |config: &str, a, b| {
        let answer = make(config).unwrap().run("a", &circuit(5, &[rx(0, 0.1), cz(a, b)], &[0]), 1);
        answer.err().map(|e| {
            assert_eq!(e.code, ErrorCode::Unsupported);
            e.text
        })
    };
    assert_eq!(refused("connectivity: line", 3, 2), None);
    let text = refused("connectivity: line", 0, 2).unwrap();
    assert_eq!(text, "gate 1: qubits 0 and 2 are not connected on this device");
    assert_eq!(refused("{connectivity: [[3, 1]], directed: true}", 3, 1), None);
    let text = refused("{connectivity: [[3, 1]], directed: true}", 1, 3).unwrap();
    assert_eq!(text, "gate 1: qubits 1 and 3 are not connected on this device in this direction");
    let grid = "{num_qubits: 6, connectivity: {grid: [2, 3]}}";
    assert_eq!((refused(grid, 0, 3), refused(grid, 1, 2)), (None, None));
    assert!(refused(grid, 2, 3).is_some(), "the end of a row is not a neighbour of the next row's start");
}

#[test]
fn readout_errors_flip_measured_bits() {
    let sim = make("{seed: 1, noise: {readout: 0.1}}").unwrap();
    let counts = counts(&sim, "a", &circuit(3, &[rx(0, std::f64::consts::PI)], &[0, 2, 0]), 100_000);
    let of = |k: &str| counts.iter().find(|c| c.0 == k).map_or(0, |c| c.1);
    assert_eq!(of("101") + of("000") + of("111") + of("010"), 100_000, "both characters of qubit 0 agree");
    // 0.9 * 0.9, 0.1 * 0.9, 0.9 * 0.1, 0.1 * 0.1; six standard deviations are under 800.
    for (k, expected) in [("101", 81_000), ("000", 9_000), ("111", 9_000), ("010", 1_000)] {
        assert!(of(k).abs_diff(expected) < 800, "{counts:?}");
    }
}

#[test]
fn depolarising_errors_have_their_probability() {
    let shots = 20_000;
    let sim = make(&format!("{{seed: 1, noise: {{depolarizing: 0.3, trajectories: {shots}}}}}")).unwrap();
    let one = counts(&sim, "a", &circuit(1, &[rx(0, std::f64::consts::PI)], &[0]), shots);
    let zeros = one.iter().find(|c| c.0 == "0").map_or(0, |c| c.1);
    // X and Y flip the bit, Z doesn't: 0.3 * 2/3. Six standard deviations are 340.
    assert!(zeros.abs_diff(4_000) < 340, "{one:?}");
    let two = counts(&sim, "b", &circuit(2, &[cz(0, 1)], &[0]), shots);
    let ones = two.iter().find(|c| c.0 == "1").map_or(0, |c| c.1);
    // 8 of the 15 errors flip the first qubit: 0.3 * 8/15 = 0.16.
    assert!(ones.abs_diff(3_200) < 340, "{two:?}");
    // Few trajectories still give every shot.
    let few = make("{seed: 1, noise: {depolarizing: 0.5, trajectories: 7}}").unwrap();
    let sum: i64 = counts(&few, "a", &circuit(2, &[cz(0, 1)], &[0, 1]), 1000).iter().map(|c| c.1).sum();
    assert_eq!(sum, 1000);
}

#[test]
fn bad_configs_are_named() {
    for (config, wants) in [
        ("nam: x", "unknown field `nam`"),
        ("target: xy", "unknown variant `xy`"),
        ("mode: slow", "unknown variant `slow`"),
        ("num_qubits: 51", "`num_qubits` is 51; set it to 1 to 50"),
        ("execution_time_ms: -1", "`execution_time_ms` is -1"),
        ("execution_time_ms: .nan", "`execution_time_ms` is NaN"),
        ("slots: 0", "`slots` is 0"),
        ("max_memory_mb: 0", "`max_memory_mb` is 0"),
        ("noise: {readout: 1.5}", "`noise.readout` is 1.5"),
        ("noise: {gain: 1}", "unknown field `gain`"),
        ("connectivity: ring", "expected `line`"),
        ("connectivity: {grid: [2, 2]}", "a grid of 2 x 2, but the device has 5 qubits"),
        ("connectivity: [[0, 5]]", "the pair [0, 5]"),
        ("connectivity: [[1, 1]]", "the pair [1, 1]"),
        ("directed: true", "`directed` says nothing without `connectivity`"),
    ] {
        let text = config_error(config);
        assert!(text.starts_with("device.yaml") && text.contains(wants), "{config}: {text}");
    }
    let text = make_for("", "xy", 5).err().unwrap().text;
    assert!(text.contains("gate set 'xy'"), "{text}");
    let text = make_for("", "cz", 0).err().unwrap().text;
    assert!(text.contains("`num_qubits` is 0"), "{text}");
    assert!(make("target: iswap").is_ok(), "its own target overrides the registered one");
}
