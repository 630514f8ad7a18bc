//! The reference executor: an exact statevector simulator behind coda-host's plugin interface.
//!
//! `config` says what `device.yaml` may hold, `circuit` runs a circuit, `fuse` and `kernel` are its fast
//! part, `sample` and `noise` its random one, `evolve` takes states over, `running` is the way to cancel. This file joins them to the
//! interface: modes, simulated hardware time, batches.

mod circuit;
mod config;
mod evolve;
// Public for `examples/kernel_speed.rs` alone.
#[doc(hidden)]
pub mod fuse;
#[doc(hidden)]
pub mod kernel;
mod noise;
mod running;
mod sample;

use std::time::Instant;

use coda_plugin_abi::{
    Amplitude, BatchRun, Cancel, Context, Device, Error, ErrorCode, Evolution, EvolveState, Executor, Job,
    LogLevel, Outcome, Stage, export_executor,
};
use rand::SeedableRng;
use rand::rngs::StdRng;

use config::{Mode, Settings};
use running::{Running, Ticket};

export_executor! { kind: Simulator, vendor: "Coda", entries: { create_executor => create }, config_schema: schema }

fn schema(_entry: &str) -> Option<String> {
    Some(config::schema())
}

/// Makes a simulator from its device config.
///
/// # Errors
/// When the config can't be used.
pub fn create(ctx: &Context<'_>) -> Result<Simulator, Error> {
    let settings = Settings::from_context(ctx)?;
    let device = &settings.device;
    ctx.host().log(
        LogLevel::Info,
        format_args!(
            "simulating {} qubits, target {}, as '{}'",
            device.num_qubits, settings.target, device.name
        ),
    );
    Ok(Simulator { settings, running: Running::default() })
}

pub struct Simulator {
    settings: Settings,
    running: Running,
}

impl Executor for Simulator {
    fn device(&self) -> Device {
        self.settings.device.clone()
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        self.run_all(std::slice::from_ref(job)).pop().unwrap_or_else(|| Err(circuit::cancelled()))
    }

    fn batch(&self) -> Option<&dyn BatchRun> {
        if self.settings.batch { Some(self) } else { None }
    }

    fn canceller(&self) -> Option<&dyn Cancel> {
        Some(self)
    }

    fn evolver(&self) -> Option<&dyn EvolveState> {
        let noise = &self.settings.noise;
        // A state vector can't carry what noise does to it.
        if noise.depolarizing == 0.0 && noise.readout == 0.0 { Some(self) } else { None }
    }

    fn shutdown(&self) {
        self.running.cancel_all();
    }
}

impl BatchRun for Simulator {
    fn batch_run(&self, jobs: &[Job<'_>]) -> Result<Vec<Result<Outcome, Error>>, Error> {
        Ok(self.run_all(jobs))
    }
}

impl Cancel for Simulator {
    fn cancel(&self, job_id: &str) {
        self.running.cancel(job_id);
    }
}

impl EvolveState for Simulator {
    fn max_qubits(&self) -> u16 {
        let fits = |n: &u16| kernel::bytes_needed(usize::from(*n)) <= self.settings.max_memory_bytes;
        (1..=self.settings.device.num_qubits).take_while(fits).last().unwrap_or(0)
    }

    fn evolve_state(&self, state: &Evolution<'_>) -> Result<Vec<Amplitude>, Error> {
        let started = Instant::now();
        let (settings, most) = (&self.settings, self.max_qubits());
        if state.num_qubits() > most {
            let text = format!("the state has {} qubits, this simulator evolves {most}", state.num_qubits());
            return Err(Error::new(ErrorCode::Resources, text).at(Stage::Compile));
        }
        let ticket = self.running.enter(state.id());
        let stopped = || ticket.is_cancelled() || state.is_cancelled();
        let mut amplitudes = state.amplitudes().to_vec();
        let total = state.operations().len() as u64;
        match settings.mode {
            Mode::Raise => return Err(raised()),
            Mode::Noop | Mode::Hang => {}
            Mode::Exact => {
                let mut watch = |done: usize| {
                    state.host().progress(done as u64, total);
                    !stopped()
                };
                evolve::apply(&mut amplitudes, state.operations(), &mut watch)
                    .map_err(|kernel::Stopped| circuit::cancelled())?;
            }
        }
        let deadline = match settings.mode {
            Mode::Hang => None,
            _ => started.checked_add(settings.execution_time),
        };
        self.running.wait(deadline, stopped);
        if stopped() { Err(circuit::cancelled()) } else { Ok(amplitudes) }
    }
}

impl Simulator {
    /// One answer per job; together they take one `execution_time`, or longer when computing does.
    fn run_all(&self, jobs: &[Job<'_>]) -> Vec<Result<Outcome, Error>> {
        let started = Instant::now();
        let tickets: Vec<Ticket<'_>> = jobs.iter().map(|job| self.running.enter(job.id())).collect();
        let stopped = |i: usize| tickets[i].is_cancelled() || jobs[i].is_cancelled();
        let answers: Vec<_> =
            jobs.iter().enumerate().map(|(i, job)| self.answer(job, &|| stopped(i))).collect();
        let deadline = match self.settings.mode {
            Mode::Hang => None,
            // A failure is known at once.
            _ if answers.iter().all(Result::is_err) => Some(started),
            _ => started.checked_add(self.settings.execution_time),
        };
        self.running.wait(deadline, || (0..jobs.len()).all(stopped));
        let elapsed_ms = match self.settings.mode {
            Mode::Exact => started.elapsed().as_secs_f64() * 1e3,
            _ => self.settings.execution_time.as_secs_f64() * 1e3,
        };
        let finish = |(i, answer): (usize, Result<Vec<(String, i64)>, Error>)| {
            if stopped(i) {
                return Err(circuit::cancelled());
            }
            answer.map(|counts| Outcome::from_counts(counts).with_time_ms(elapsed_ms))
        };
        answers.into_iter().enumerate().map(finish).collect()
    }

    fn answer(&self, job: &Job<'_>, stopped: &dyn Fn() -> bool) -> Result<Vec<(String, i64)>, Error> {
        let (program, settings) = (job.program(), &self.settings);
        self.check(job)?;
        let (gates, shots) = (program.gates().len(), job.shots());
        job.host().log(LogLevel::Debug, format_args!("running {gates} gates, {shots} shots"));
        match settings.mode {
            Mode::Raise => Err(raised()),
            Mode::Noop | Mode::Hang => {
                Ok(vec![("0".repeat(program.measurements().len()), i64::from(job.shots()))])
            }
            Mode::Exact => {
                let mut rng = match settings.seed {
                    Some(seed) => StdRng::seed_from_u64(job_seed(seed, job.id())),
                    None => StdRng::from_rng(&mut rand::rng()),
                };
                let host = job.host();
                let mut watch = |done, total| {
                    if total > 0 {
                        host.progress(done, total);
                    }
                    !stopped()
                };
                circuit::run(program, job.shots(), settings, &mut rng, &mut watch)
            }
        }
    }

    /// The host checks this too; a plugin that trusts it would answer for a device it doesn't simulate.
    fn check(&self, job: &Job<'_>) -> Result<(), Error> {
        let (program, settings) = (job.program(), &self.settings);
        let text = if program.target() != Some(settings.target) {
            let found = program.target().map_or("an unknown target", |t| t.name());
            format!("the circuit is for {found}, this simulator takes {}", settings.target)
        } else if program.num_qubits() > settings.device.num_qubits {
            let (found, allowed) = (program.num_qubits(), settings.device.num_qubits);
            format!("the circuit has {found} qubits, this simulator has {allowed}")
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorCode::Unsupported, text).at(Stage::Compile))
    }
}

fn raised() -> Error {
    let text = "the simulated hardware failed, as `mode: raise` in the device config asks for";
    Error::new(ErrorCode::Hardware, text).at(Stage::Run)
}

/// A seed per job, so that a job's counts don't depend on what runs beside it. FNV-1a of seed and id.
fn job_seed(seed: u64, job_id: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    seed.to_le_bytes().into_iter().chain(job_id.bytes()).fold(0xcbf2_9ce4_8422_2325, mix)
}
