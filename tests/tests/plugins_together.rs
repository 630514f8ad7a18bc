//! Several plugins in one process, through the executor stage's own interface: each is itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use coda_host::error::Explain as _;
use coda_host::executor::locate::{DEFAULT_ENTRY, Located, Source};
use coda_host::executor::pool::StartError;
use coda_host::executor::{Executor, JobContext, RunDone, RunJob, StartRequest};
use coda_host::sys::Dispositions;
use coda_host_tests::artifacts::library;
use coda_host_tests::{Circuit, LIMIT, example};
use coda_plugin_abi::{Outcome, Program};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const ACME: &str = "host: control.invalid\nport: 7000\nshot_us: 1000";

struct Loaded {
    executor: Executor,
    answers: UnboundedReceiver<RunDone>,
}

async fn load(path: &Path, state_dir: &Path, config: &str, qubits: u16) -> Result<Loaded, StartError> {
    let (done, answers) = unbounded_channel();
    let located =
        Located { path: path.to_path_buf(), entry: DEFAULT_ENTRY.into(), source: Source::Environment };
    let request = StartRequest {
        located,
        state_dir: state_dir.to_path_buf(),
        config_path: PathBuf::new(),
        config_text: config.into(),
        native_gate_set: "cz".into(),
        num_qubits: qubits,
        control_timeout: LIMIT,
        batch_max: 1,
        dispositions: Arc::new(Dispositions::capture()),
    };
    Ok(Loaded { executor: Executor::start(request, done).await?, answers })
}

impl Loaded {
    fn name(&self) -> &str {
        &self.executor.device().name
    }

    async fn run(&mut self, circuit: &Circuit, shots: u32) -> Outcome {
        let program = Program::parse(circuit.json().to_string().as_bytes()).unwrap();
        let context = Arc::new(JobContext::new("plugin".into(), "J".into()));
        let job = RunJob {
            ticket: 1,
            message_id: None,
            job_id: "J".into(),
            program: Arc::new(program),
            shots,
            context,
        };
        self.executor.submit(vec![job]);
        loop {
            match self.answers.recv().await.expect("the slot thread lives") {
                RunDone::Job { answer, .. } => return answer.unwrap(),
                RunDone::Started { .. } => {}
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
    let qubits = |l: &Loaded| l.executor.device().num_qubits;
    assert_eq!([qubits(&simulator), qubits(&acme), qubits(&faulty)], [3, 4, 5]);
    assert_eq!(acme.executor.info().vendor, "Acme");
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
    assert_eq!(error.code(), "executor-create");
    let acme = load(&library("coda_example_rust"), dir.path(), ACME, 3).await.unwrap();
    let simulator = load(&library("coda_simulator"), dir.path(), "", 3).await.unwrap();
    assert_eq!([acme.name(), simulator.name()], ["acme-example", "coda-simulator"]);
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
    let told: Vec<(&str, u16)> = loaded.iter().map(|l| (l.name(), l.executor.device().num_qubits)).collect();
    assert_eq!(told, [("first", 3), ("second", 4), ("third", 5)]);
    for (l, key) in loaded.iter_mut().zip(["00", "10", "10"]) {
        assert_eq!(l.run(&example(), 5).await.counts, [(key.to_string(), 5)]);
    }
}
