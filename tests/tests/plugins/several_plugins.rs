//! Several plugins in one process, through the executor stage's own interface: each is itself.

use std::path::Path;
use std::sync::Arc;

use coda_host::error::Explain as _;
use coda_host::executor::account::RunsAs;
use coda_host::executor::locate::{DEFAULT_ENTRY, FactorySource, Located, LocatedLibrary};
use coda_host::executor::{
    EvolveJob, Executor, Generation, JobContext, LeaseRefusal, PythonRequest, RunJob, RunLimits, SlotLoad,
    SlotReport, StartError, StartRequest, WhenStuck,
};
use coda_host::sys::{Dispositions, KeptCapabilities};
use coda_host_tests::artifacts::library;
use coda_host_tests::{Circuit, LIMIT, example};
use coda_plugin_abi::{Amplitude, Error, ErrorCode, Operation, Outcome, Program};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

const ACME: &str = "host: control.invalid\nport: 7000\nshot_us: 1000";

struct Loaded {
    executor: Executor,
    answers: UnboundedReceiver<SlotReport>,
}

async fn load(path: &Path, state_dir: &Path, config: &str, qubits: u16) -> Result<Loaded, StartError> {
    let (done, answers) = unbounded_channel();
    let located = Located::Library(LocatedLibrary {
        path: path.to_path_buf(),
        entry: DEFAULT_ENTRY.into(),
        source: FactorySource::Environment,
        pinned: None,
    });
    let request = StartRequest {
        located,
        state_dir: state_dir.to_path_buf(),
        config_path: None,
        config_text: config.into(),
        native_gate_set: "cz".into(),
        num_qubits: qubits,
        control_timeout: LIMIT,
        device_refresh: LIMIT,
        log_bytes_per_second: 1 << 20,
        start_timeout: LIMIT,
        batch_max: 1,
        dispositions: Arc::new(Dispositions::capture()),
        isolation: None,
        runs_as: RunsAs::Host,
        capabilities: KeptCapabilities::default(),
        limits: RunLimits { run: None, grace: LIMIT, when_stuck: WhenStuck::Report },
        python: PythonRequest::default(),
    };
    Ok(Loaded { executor: Executor::start(request, done).await?, answers })
}

impl Loaded {
    fn name(&self) -> String {
        self.executor.active_plugin().device.name.clone()
    }

    fn submit(&self, circuit: &Circuit, shots: u32) {
        let program = Program::parse(circuit.json().to_string().as_bytes()).unwrap();
        let context = Arc::new(JobContext::new("plugin".into(), "J".into()));
        let job = RunJob {
            ticket: 1,
            message_id: None,
            job_id: "J".into(),
            program: Arc::new(program),
            attempt: 1,
            shots,
            context,
        };
        self.executor.submit(Generation::default(), vec![job]);
    }

    async fn run(&mut self, circuit: &Circuit, shots: u32) -> Outcome {
        self.submit(circuit, shots);
        self.answer().await
    }

    async fn answer(&mut self) -> Outcome {
        loop {
            match self.answers.recv().await.expect("the slot thread lives") {
                SlotReport::Answered { answer, .. } => return answer.unwrap(),
                SlotReport::Started { .. } | SlotReport::DeviceChanged { .. } => {}
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_plugins_are_each_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let mut simulator = load(&library("coda_simulator"), dir.path(), "seed: 1", 3).await.unwrap();
    let mut acme = load(&library("coda_example_rust"), dir.path(), ACME, 4).await.unwrap();
    let mut faulty = load(&library("coda_faulty"), dir.path(), "fault: none", 5).await.unwrap();
    assert_eq!([simulator.name(), acme.name(), faulty.name()], ["coda-simulator", "acme-example", "faulty"]);
    let qubits = |l: &Loaded| l.executor.active_plugin().device.num_qubits;
    assert_eq!([qubits(&simulator), qubits(&acme), qubits(&faulty)], [3, 4, 5]);
    assert_eq!(acme.executor.active_plugin().info.vendor, "Acme");
    for _ in 0..2 {
        // The order of loading is not the order of running.
        assert_eq!(faulty.run(&example(), 9).await.counts, [("00".to_string(), 9)]);
        let outcome = acme.run(&example(), 10).await;
        assert_eq!((outcome.counts, outcome.execution_time_ms), (vec![("10".into(), 10)], Some(10.0)));
        assert_eq!(simulator.run(&example(), 100).await.counts, [("10".to_string(), 100)]);
    }
    for loaded in [simulator, acme, faulty] {
        loaded.executor.shutdown(LIMIT).await;
    }
}

/// Turns qubit 1 of |00> over where `cancelled` doesn't end it before.
async fn evolve(loaded: &mut Loaded, cancelled: bool) -> Result<Vec<Amplitude>, Error> {
    let [zero, one] = [0.0, 1.0].map(|re| Amplitude { re, im: 0.0 });
    let context = Arc::new(JobContext::new("plugin".into(), "J".into()));
    if cancelled {
        context.set_cancelled();
    }
    let (answer, answered) = oneshot::channel();
    let turn = Operation { controls: 0, target: 1, reserved: 0, matrix: [zero, one, one, zero] };
    let slot_lender = loaded.executor.slot_lender();
    let lease = slot_lender.try_lease().expect("nothing runs");
    assert_eq!(slot_lender.try_lease().unwrap_err(), LeaseRefusal::Full, "there is one slot");
    slot_lender.evolve_state(
        lease,
        EvolveJob {
            ticket: 7,
            job_id: "J".into(),
            num_qubits: 2,
            amplitudes: vec![one, zero, zero, zero],
            operations: [turn].into(),
            context,
            answer: Box::new(|done| assert!(answer.send(done).is_ok(), "the test waits")),
        },
    );
    let done = answered.await.expect("an answer");
    assert_eq!(slot_lender.load(), SlotLoad { slots: 1, reserved: 1, ..SlotLoad::default() });
    drop(done.lease);
    assert_eq!(slot_lender.load(), SlotLoad { slots: 1, ..SlotLoad::default() });
    done.answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_is_evolved_in_a_slot() {
    let dir = tempfile::tempdir().unwrap();
    let mut simulator = load(&library("coda_simulator"), dir.path(), "", 3).await.unwrap();
    assert_eq!(simulator.executor.active_plugin().hooks.evolve_qubits, Some(3));
    let state = evolve(&mut simulator, false).await.unwrap();
    assert_eq!(state.iter().map(|a| a.re).collect::<Vec<_>>(), [0.0, 0.0, 1.0, 0.0]);
    assert_eq!(evolve(&mut simulator, true).await.unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(simulator.run(&example(), 5).await.counts, [("10".to_string(), 5)]);
    let mut faulty = load(&library("coda_faulty"), dir.path(), "", 3).await.unwrap();
    assert_eq!(faulty.executor.active_plugin().hooks.evolve_qubits, None);
    assert_eq!(evolve(&mut faulty, false).await.unwrap_err().code, ErrorCode::Contract);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_load_does_not_stick() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("libtext.so");
    std::fs::write(&text, "not a library").unwrap();
    let half = dir.path().join("libhalf.so");
    let whole = std::fs::read(library("coda_example_rust")).unwrap();
    std::fs::write(&half, &whole[..whole.len() / 2]).unwrap();
    for bad in [&text, &half] {
        let error = load(bad, dir.path(), ACME, 3).await.err().expect("it is refused");
        assert!(error.to_string().contains(bad.to_str().unwrap()), "{error}");
    }
    // A factory that refuses its config, then the same library with a good one, then another library.
    let error = load(&library("coda_example_rust"), dir.path(), "host: ''\nport: 1", 3).await.err().unwrap();
    assert_eq!(error.code(), "executor-config");
    let acme = load(&library("coda_example_rust"), dir.path(), ACME, 3).await.unwrap();
    let simulator = load(&library("coda_simulator"), dir.path(), "", 3).await.unwrap();
    assert_eq!([acme.name(), simulator.name()], ["acme-example", "coda-simulator"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_executor_that_can_not_be_used_is_shut_down_and_dropped() {
    let dir = tempfile::tempdir().unwrap();
    for (fault, code) in [("slots: 65", "executor-bad-device"), ("fault: panic_device", "executor-describe")]
    {
        let record = dir.path().join(code);
        let config = format!("{fault}\nlife: true\nrecord: {}", record.display());
        let error = load(&library("coda_faulty"), dir.path(), &config, 3).await.err().expect("it is refused");
        assert_eq!(error.code(), code, "{error}");
        let lines = std::fs::read_to_string(&record).unwrap();
        let steps: Vec<&str> = lines.lines().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(steps, ["create", "shutdown", "drop"], "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_file_under_several_names_gives_instances_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let original = library("coda_simulator");
    let (copy, link) = (dir.path().join("libcopy.so"), dir.path().join("liblink.so"));
    std::fs::copy(&original, &copy).unwrap();
    std::os::unix::fs::symlink(&original, &link).unwrap();
    let mut loaded = Vec::new();
    for (path, config) in [
        (&original, "name: first\nmode: noop\nnum_qubits: 3"),
        (&copy, "name: second\nnum_qubits: 4"),
        (&link, "name: third\nnum_qubits: 5"),
    ] {
        loaded.push(load(path, dir.path(), config, 3).await.unwrap());
    }
    let told: Vec<(String, u16)> =
        loaded.iter().map(|l| (l.name(), l.executor.active_plugin().device.num_qubits)).collect();
    let told: Vec<(&str, u16)> = told.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    assert_eq!(told, [("first", 3), ("second", 4), ("third", 5)]);
    for (l, key) in loaded.iter_mut().zip(["00", "10", "10"]) {
        assert_eq!(l.run(&example(), 5).await.counts, [(key.to_string(), 5)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leased_slot_is_nobody_elses_and_none_is_leased_while_jobs_wait() {
    let dir = tempfile::tempdir().unwrap();
    let mut simulator = load(&library("coda_simulator"), dir.path(), "seed: 1", 3).await.unwrap();
    let lease = simulator.executor.slot_lender().try_lease().expect("nothing runs");
    simulator.submit(&example(), 5);
    assert_eq!(simulator.executor.slot_lender().try_lease().unwrap_err(), LeaseRefusal::JobsWait);
    assert_eq!(
        simulator.executor.slot_lender().load(),
        SlotLoad { slots: 1, busy: 0, reserved: 1, waiting: 1 }
    );
    drop(lease);
    assert_eq!(simulator.answer().await.counts.len(), 1);
}
