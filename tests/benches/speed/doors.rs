//! What a `run` costs beside the executor's own work: each binding, in the host's process and in one of its own.
//!
//! Plugins that measure zeros at once, so that the time of a run is the way to the plugin and back. The executor is
//! driven as the host drives it; what is measured is the time that it reports for a run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coda_host::executor::account::RunsAs;
use coda_host::executor::locate::{DEFAULT_ENTRY, FactorySource, Located, LocatedLibrary, LocatedPython};
use coda_host::executor::python::interpreter::{Interpreter, InterpreterSource};
use coda_host::executor::worker::Restart;
use coda_host::executor::{
    Executor, Generation, JobContext, PythonRequest, RunJob, RunLimits, SlotReport, StartRequest, WhenStuck,
};
use coda_host::sys::{Dispositions, KeptCapabilities};
use coda_host_tests::artifacts::library;
use coda_host_tests::python::venv;
use coda_plugin_abi::{Gate, GateKind, Program, Target};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const LIMIT: Duration = Duration::from_secs(30);

/// Prints microseconds per run, p50 and p99, for 20 and for 10,000 gates.
pub async fn overheads(runs: usize) {
    let library = |name| {
        Located::Library(LocatedLibrary {
            path: library(name),
            entry: DEFAULT_ENTRY.into(),
            source: FactorySource::Environment,
            pinned: None,
        })
    };
    let (rust, c) = (library("coda_simulator"), library("coda_faulty_cpp"));
    for (binding, located, config) in [("Rust", rust, "mode: noop"), ("C", c, "")] {
        for isolated in [false, true] {
            for gates in [20, 10_000] {
                measure(binding, &located, config, isolated, gates, runs).await;
            }
        }
    }
    let Some(venv) = venv() else { return };
    let python = Located::Python(LocatedPython {
        factory: Some("coda_bench_executor:create_executor".into()),
        source: FactorySource::Environment,
        interpreter: Interpreter { path: venv.join("bin/python"), chosen_by: InterpreterSource::Setting },
    });
    // The interpreter's process is this program first, which hands over its environment.
    if std::env::var("PYTHONPATH").is_err() {
        println!("  (no PYTHONPATH=tests/benches/python, so Python code is not measured)");
        return;
    }
    measure("Python", &python, "", true, 20, runs).await;
    measure("Python", &python, "", true, 10_000, runs / 10).await;
}

/// Measures and prints one line.
async fn measure(binding: &str, located: &Located, config: &str, isolated: bool, gates: usize, runs: usize) {
    let start = Instant::now();
    let mut plugin = RunningPlugin::start(located.clone(), config, isolated).await;
    let ready = start.elapsed();
    let gate = |i: usize| Gate::one(GateKind::Rx, (i % 50) as u16, 0.1 + i as f64);
    let program = Program::new(Target::Cz, 50, (0..gates).map(gate).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    let program = Arc::new(program.expect("a legal circuit"));
    let mut micros = Vec::with_capacity(runs);
    for n in 0..runs + runs / 10 {
        let time = plugin.run(&program, 100).await;
        // The first ones warm up.
        if n >= runs / 10 {
            micros.push(time);
        }
    }
    plugin.end().await;
    micros.sort_by(f64::total_cmp);
    let place = if isolated { "process of its own" } else { "host's process" };
    let at = |p| super::number(super::percentile(&micros, p));
    println!(
        "  run, {binding:<6} binding, {place:<18} {gates:>6} gates: p50 {} us, p99 {} us; executor ready after {} ms",
        at(0.5),
        at(0.99),
        super::number(ready.as_secs_f64() * 1e3)
    );
}

/// An executor as the host drives it, with one job at a time.
pub struct RunningPlugin {
    executor: Executor,
    answers: UnboundedReceiver<SlotReport>,
    next: u64,
    _state: tempfile::TempDir,
}

impl RunningPlugin {
    pub async fn start(located: Located, config: &str, isolated: bool) -> RunningPlugin {
        let state = tempfile::tempdir().expect("a directory");
        let (done, answers) = unbounded_channel();
        let restart = Restart { backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(1) };
        let request = StartRequest {
            located,
            state_dir: state.path().to_path_buf(),
            config_path: None,
            config_text: config.into(),
            native_gate_set: "cz".into(),
            num_qubits: 50,
            control_timeout: LIMIT,
            device_refresh: LIMIT,
            log_bytes_per_second: 1 << 20,
            start_timeout: LIMIT,
            batch_max: 1,
            dispositions: Arc::new(Dispositions::capture()),
            isolation: isolated.then_some(restart),
            runs_as: RunsAs::Host,
            capabilities: KeptCapabilities::default(),
            limits: RunLimits { run: None, grace: LIMIT, when_stuck: WhenStuck::Report },
            python: PythonRequest {
                settings: [("node_token".to_string(), "bench".into())].into(),
                ..PythonRequest::default()
            },
        };
        let executor = Executor::start(request, done).await.expect("the plugin starts");
        RunningPlugin { executor, answers, next: 0, _state: state }
    }

    /// The microseconds that a job takes.
    pub async fn run(&mut self, program: &Arc<Program>, shots: u32) -> f64 {
        let job = RunJob {
            ticket: self.next,
            message_id: None,
            job_id: "J".into(),
            program: program.clone(),
            shots,
            attempt: 1,
            context: Arc::new(JobContext::new("bench".into(), "J".into())),
        };
        self.next += 1;
        self.executor.submit(Generation::default(), vec![job]);
        loop {
            match self.answers.recv().await.expect("the slot thread lives") {
                SlotReport::Answered { answer, run_time, .. } => {
                    answer.expect("counts");
                    return run_time.as_secs_f64() * 1e6;
                }
                SlotReport::Started { .. } | SlotReport::DeviceChanged { .. } => {}
            }
        }
    }

    pub async fn end(self) {
        self.executor.shutdown(LIMIT).await;
    }
}
