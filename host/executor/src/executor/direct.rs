//! An executor that one caller drives by itself, without queue and slot threads: for checks and tools.
//!
//! A library is in this process. Python code runs in a separate process, as under the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use coda_plugin_abi::{Amplitude, Error, ErrorCode};

use super::control::ControlCalls;
use super::ffi::{BatchAnswers, CallAnswer, CallEvolve, CallJob, Common, DeviceReply, Instance};
use super::job::LostCall;
use super::locate::LocatedPython;
use super::plugin::Plugin;
use super::python::spec::PythonFacts;
use super::start::{StartError, StartRequest, explain_make_error, python_spec};
use super::worker::{self, CallLimits, Remote, Restart, WorkerSpec};

/// How long a call waits for a process that is being started again.
const AWAY_LIMIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// When such a process is started again.
const RESTART: Restart = Restart { backoff: Duration::from_millis(100), backoff_max: Duration::from_secs(1) };

/// An executor for one caller.
#[derive(Clone)]
pub struct DirectExecutor(Plugin);

impl From<Instance> for DirectExecutor {
    fn from(instance: Instance) -> DirectExecutor {
        DirectExecutor(Plugin::Direct(instance))
    }
}

impl DirectExecutor {
    /// Starts the process of Python code and creates its executor. The request's own `located` is not used.
    ///
    /// # Errors
    /// When the interpreter can't be used, or the executor can't be created.
    pub fn start_python(
        located: &LocatedPython,
        request: &StartRequest,
    ) -> Result<(DirectExecutor, PythonFacts), StartError> {
        let spec = python_spec(located, request);
        let common = Arc::new(Common::new(spec.plugin().into()));
        common.output.limit(request.log_bytes_per_second);
        let limits = CallLimits { start: request.start_timeout, control: request.control_timeout };
        let calls = ControlCalls::default();
        let spec = WorkerSpec::Python(spec);
        let remote = Remote::start(spec, common.clone(), RESTART, limits, calls, Box::new(|_| ()));
        let remote = remote.map_err(|e| {
            explain_make_error(e, &request.subject(), request.config_path.as_deref(), &common)
        })?;
        let Some(facts) = remote.facts() else { return Err(StartError::Died { path: request.subject() }) };
        Ok((DirectExecutor(Plugin::Remote(remote)), facts))
    }

    /// Runs one job.
    pub fn run(&self, job: &CallJob<'_>) -> CallAnswer {
        self.until_entered(|plugin| plugin.run(0, job)).unwrap_or_else(|error| Some(Err(error)))
    }

    /// Runs several jobs in one call.
    pub fn batch_run(&self, jobs: &[CallJob<'_>]) -> BatchAnswers {
        self.until_entered(|plugin| plugin.batch_run(0, jobs)).unwrap_or_else(|error| BatchAnswers {
            answers: jobs.iter().map(|_| None).collect(),
            whole: Some(error),
            surplus: 0,
        })
    }

    /// Has the plugin evolve a state.
    ///
    /// # Errors
    /// The plugin's own, or that its process ended.
    pub fn evolve_state(&self, call: &CallEvolve<'_>) -> Result<Vec<Amplitude>, Error> {
        self.until_entered(|plugin| plugin.evolve_state(0, call)).and_then(|answer| answer)
    }

    /// What the plugin says of its device.
    ///
    /// # Errors
    /// When the plugin can't describe its device.
    pub fn device(&self) -> Result<DeviceReply, Error> {
        self.0.device()
    }

    pub fn cancel(&self, job_id: &str) -> Option<Error> {
        self.0.cancel(job_id)
    }

    pub fn shutdown(&self) -> Option<Error> {
        self.0.shutdown()
    }

    /// After every other call has returned.
    pub fn destroy(&self) -> Option<Error> {
        self.0.destroy()
    }

    /// Makes the call, once the process is there.
    fn until_entered<T>(&self, call: impl Fn(&Plugin) -> Result<T, LostCall>) -> Result<T, Error> {
        let until = Instant::now() + AWAY_LIMIT;
        loop {
            match call(&self.0) {
                Ok(answer) => return Ok(answer),
                Err(LostCall::NotEntered) if Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
                Err(LostCall::Suspect(error)) => return Err(error),
                Err(LostCall::NotEntered | LostCall::Stopped) => {
                    let text = "the plugin's process is not there and can't be started again";
                    return Err(Error::new(ErrorCode::Panic, text));
                }
            }
        }
    }
}

/// What an interpreter tells of Python code, without creating its executor; `with_hooks` imports the factory's module, to
/// tell the optional methods too.
///
/// # Errors
/// When the interpreter can't be used for it.
pub fn inspect_python(
    located: &LocatedPython,
    request: &StartRequest,
    with_hooks: bool,
) -> Result<PythonFacts, StartError> {
    let mut spec = python_spec(located, request);
    spec.inspect = with_hooks;
    let common = Arc::new(Common::new(spec.plugin().into()));
    let inspected = worker::inspect(&WorkerSpec::Python(spec), &common, request.start_timeout);
    let config = request.config_path.as_deref();
    inspected.map_err(|e| explain_make_error(e, &request.subject(), config, &common))
}
