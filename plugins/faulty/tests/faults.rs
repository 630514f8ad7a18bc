//! The faults are what they say, and none of them gets past the glue on this side of the boundary.
//! What they do to a process is for tests that start one.

use coda_plugin_abi::conformance::{Linked, Setup};
use coda_plugin_abi::{Error, ErrorCode, Executor, Outcome, Program, Stage, Target};

fn make(config: &str) -> Result<Linked, Error> {
    let factory =
        |ctx: &coda_plugin_abi::Context<'_>| Ok(Box::new(coda_faulty::create(ctx)?) as Box<dyn Executor>);
    Linked::create(factory, &Setup::new(config, "cz", 3))
}

fn program() -> Program {
    Program::new(Target::Cz, 3, [], [2, 0]).unwrap()
}

fn run(config: &str) -> Result<Outcome, Error> {
    make(config).unwrap().run("a", &program(), 10)
}

fn fault(name: &str) -> Outcome {
    run(&format!("fault: {name}")).unwrap()
}

const PAYLOADS: [(&str, &str); 4] = [
    ("str", "the plugin panicked: a panic that was asked for"),
    ("string", "the plugin panicked: a panic that was asked for"),
    ("other", "the plugin panicked: (no message)"),
    ("drop_bomb", "the plugin panicked: (no message)"),
];

#[test]
fn every_panic_is_an_error_with_its_text_and_stage() {
    for (payload, text) in PAYLOADS {
        let config = |fault: &str| format!("{{fault: {fault}, payload: {payload}}}");
        let made = |fault: &str| make(&config(fault)).unwrap();
        let (p, mut seen) = (program(), Vec::new());
        seen.push((Stage::Create, make(&config("panic_create")).err()));
        seen.push((Stage::Run, made("panic_run").run("a", &p, 1).err()));
        seen.push((Stage::Run, made("panic_batch").batch_run(&[("a", &p, 1)]).err()));
        seen.push((Stage::Cancel, made("panic_cancel").cancel("a").err()));
        seen.push((Stage::Describe, made("panic_device").device().err()));
        seen.push((Stage::Shutdown, made("panic_shutdown").shutdown().err()));
        seen.push((Stage::Shutdown, made("panic_drop").destroy().err()));
        for (stage, error) in seen {
            let error = error.unwrap_or_else(|| panic!("{payload} at {stage}: no error"));
            assert_eq!((error.code, error.stage, error.text.as_str()), (ErrorCode::Panic, stage, text));
        }
    }
}

#[test]
fn answers_break_the_contract_in_one_way_each() {
    let counts = |name: &str| fault(name).counts;
    let one = |key: &str, n: i64| vec![(key.to_string(), n)];
    assert_eq!(counts("none"), one("00", 10));
    assert_eq!(counts("key_too_long"), one("000", 10));
    assert_eq!(counts("key_too_short"), one("0", 10));
    assert_eq!(counts("key_hex"), one("0x2", 10));
    assert_eq!(counts("key_space"), one("1 0", 10));
    assert_eq!(counts("key_empty"), one("", 10));
    assert_eq!(counts("negative_count"), one("00", -1));
    assert_eq!(counts("zero_count"), [("00".into(), 10), ("11".into(), 0)]);
    assert_eq!(counts("duplicate_key"), [("00".into(), 5), ("00".into(), 5)]);
    assert_eq!(counts("too_many_shots"), one("00", 11));
    assert_eq!((counts("fewer_shots"), fault("fewer_shots").shots_completed), (one("00", 5), Some(5)));
    assert_eq!((counts("sum_mismatch"), fault("sum_mismatch").shots_completed), (one("00", 10), Some(11)));
    assert_eq!(fault("no_shots_completed").shots_completed, None);
    assert_eq!(counts("no_counts"), []);
    assert!(fault("nan_time").execution_time_ms.unwrap().is_nan());
    assert_eq!(fault("negative_time").execution_time_ms, Some(-1.0));
    assert_eq!(fault("infinite_time").execution_time_ms, Some(f64::INFINITY));
}

#[test]
fn errors_and_their_kinds() {
    assert_eq!(make("fault: error_create").err().unwrap().code, ErrorCode::Calibration);
    assert!(!run("fault: error_run").unwrap_err().retryable);
    assert!(run("fault: error_retryable").unwrap_err().retryable);
    assert_eq!(make("fault: nonsense").err().unwrap().code, ErrorCode::Config);
    assert_eq!(
        make("when: load").err().unwrap().code,
        ErrorCode::Config,
        "nothing is set in the environment"
    );
}

#[test]
fn a_fault_may_wait_for_its_call() {
    let late = make("{fault: panic_run, after: 2}").unwrap();
    let fails: Vec<bool> = (0..4).map(|_| late.run("a", &program(), 1).is_err()).collect();
    assert_eq!(fails, [false, false, true, true]);
    let device = make("{fault: panic_device, after: 1}").unwrap();
    assert!(device.device().is_ok());
    assert!(device.run("a", &program(), 1).is_ok());
    assert!(device.device().is_err());
}

#[test]
fn batches() {
    let p = program();
    let jobs = [("a", &p, 1), ("b", &p, 2), ("c", &p, 3)];
    let batch = |name: &str| make(&format!("fault: {name}")).unwrap().batch_run(&jobs);
    assert_eq!(batch("batch_too_few").unwrap_err().text, "2 answers for 3 jobs");
    assert_eq!(batch("batch_error").unwrap_err().code, ErrorCode::Hardware);
    let mixed: Vec<bool> = batch("batch_mixed").unwrap().iter().map(Result::is_ok).collect();
    assert_eq!(mixed, [true, false, true]);
    assert_eq!(batch("batch_too_many").unwrap_err().text, "4 answers for 3 jobs");
}

#[test]
fn cancelling() {
    for (config, answers) in
        [("{fault: none, run_ms: 100000000}", false), ("{fault: result_after_cancel}", true)]
    {
        let faulty = make(config).unwrap();
        let answer = std::thread::scope(|s| {
            let run = s.spawn(|| faulty.run("job", &program(), 10));
            // The job is known once it runs; until then it can't be marked.
            while !faulty.mark_cancelled("job") {
                std::thread::yield_now();
            }
            run.join().unwrap()
        });
        assert_eq!(answer.is_ok(), answers, "{config}");
    }
    assert!(!make("fault: no_cancel_hook").unwrap().device().unwrap().1.cancel);
    assert!(make("fault: slow").unwrap().device().unwrap().1.cancel);
}
