//! Any QDMI device library (Quantum Device Management Interface, versions 1.3 and 1.4) as a device of coda-host.
//!
//! ```text
//! config, manifest, trust   what `device.yaml` and the vendor's manifest say; nothing of the library runs
//! abi                       the library's functions: the only unsafe code
//! connect, device           session, and what the library tells of its device
//! gates, program, histogram circuit to text, result to counts: pure
//! thread, run, job_file     the one thread that calls the library, and the jobs in the device
//! ```
//!
//! This file joins them to the interface: single runs, batches, cancels.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod abi;
mod config;
mod connect;
mod device;
mod gates;
mod histogram;
mod job_file;
mod manifest;
mod program;
mod run;
mod running;
mod thread;
mod trust;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use coda_plugin_abi::{
    BatchRun, Cancel, Context, Device, Error, ErrorCode, Executor, Job, LogLevel, Outcome, Stage,
    export_executor,
};

use abi::Abi;
use config::{BitOrder, Settings};
use device::Description;
use histogram::Expected;
use program::{Circuit, Form};
use run::{End, Histogram, Order, Report};
use running::{Running, Ticket};
use thread::{LibraryThread, Opened};

// Libraries crash, print, block in a cancel and start processes: the host's own process is not the place for that.
export_executor! {
    kind: Hardware,
    vendor: "Coda",
    entries: { create_executor => create },
    isolation: Required,
    config_schema: schema,
}

fn schema(_entry: &str) -> Option<String> {
    Some(config::schema())
}

/// Opens the library that the device config names.
///
/// # Errors
/// When the config can't be used, or the library refuses.
pub fn create(ctx: &Context<'_>) -> Result<QdmiDevice, Error> {
    let settings = Settings::from_context(ctx)?;
    let (library, prefix) = (settings.library.clone(), settings.prefix.clone());
    let (thread, Opened { description, abi }) = LibraryThread::start(settings, ctx.host())?;
    let Description { device, form, bit_order } = description;
    let takes = match &form {
        Ok(form) => form.format.name(),
        Err(_) => "no program format",
    };
    let targets: Vec<&str> = device.targets.iter().map(|target| target.name()).collect();
    ctx.host().log(
        LogLevel::Info,
        format_args!(
            "{} is '{}', {} qubits, {}: {prefix}, QDMI {abi}, {takes}",
            library.display(),
            device.name,
            device.num_qubits,
            targets.join(" ")
        ),
    );
    if form.as_ref().is_ok_and(device::register_is_uncertain) {
        ctx.host().log(
            LogLevel::Info,
            "the device has more than 50 sites and its programs name qubits by a register, so that the library decides \
             which sites they are",
        );
    }
    Ok(QdmiDevice {
        running: Running::default(),
        lists_refused: AtomicBool::new(false),
        thread,
        device,
        form,
        bit_order,
        abi,
    })
}

/// A device behind its library.
pub struct QdmiDevice {
    running: Running,
    /// The library takes no lists, although its version of the interface has them.
    lists_refused: AtomicBool,
    thread: LibraryThread,
    device: Device,
    /// `Err`: why no job can run.
    form: Result<Form, String>,
    bit_order: BitOrder,
    abi: Abi,
}

impl Executor for QdmiDevice {
    fn device(&self) -> Device {
        self.device.clone()
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        let program = self.prepare(job)?;
        if program.measured.is_empty() {
            return Ok(program.unmeasured(job));
        }
        let ticket = self.running.enter(&[job.id()]);
        let mut answers =
            self.run_group(&ticket, &[Member { index: 0, job, program }]).map_err(|Refused(error)| error)?;
        answers.pop().map_or_else(|| Err(cancelled()), |(_, answer)| answer)
    }

    fn batch(&self) -> Option<&dyn BatchRun> {
        if self.abi == Abi::V1_4 { Some(self) } else { None }
    }

    fn canceller(&self) -> Option<&dyn Cancel> {
        Some(self)
    }

    fn shutdown(&self) {
        for order in self.running.cancel_all() {
            // The log of the host is not for calls that end with it.
            self.thread.cancel(&order).ok();
        }
    }
}

impl Cancel for QdmiDevice {
    fn cancel(&self, job_id: &str) {
        for order in self.running.cancel(job_id) {
            // The run itself reports how its job ended.
            self.thread.cancel(&order).ok();
        }
    }
}

impl BatchRun for QdmiDevice {
    fn batch_run(&self, jobs: &[Job<'_>]) -> Result<Vec<Result<Outcome, Error>>, Error> {
        if self.lists_refused.load(Ordering::Acquire) {
            return Err(unsupported("the device library takes no lists of programs".into()));
        }
        let mut answers: BTreeMap<usize, Result<Outcome, Error>> = BTreeMap::new();
        // A list has one number of shots.
        let mut groups: BTreeMap<u32, Vec<Member<'_>>> = BTreeMap::new();
        for (index, job) in jobs.iter().enumerate() {
            match self.prepare(job) {
                Ok(program) if program.measured.is_empty() => {
                    answers.insert(index, Ok(program.unmeasured(job)));
                }
                Ok(program) => groups.entry(job.shots()).or_default().push(Member { index, job, program }),
                Err(error) => {
                    answers.insert(index, Err(error));
                }
            }
        }
        // Every job can be cancelled from here on, also one whose group comes last.
        let tickets: Vec<(Ticket<'_>, Vec<Member<'_>>)> = groups
            .into_values()
            .map(|group| {
                let ids: Vec<&str> = group.iter().map(|member| member.job.id()).collect();
                (self.running.enter(&ids), group)
            })
            .collect();
        let mut any_ran = false;
        for (ticket, group) in tickets {
            match self.run_group(&ticket, &group) {
                Ok(of_group) => {
                    any_ran = true;
                    answers.extend(of_group);
                }
                Err(Refused(error)) => {
                    self.lists_refused.store(true, Ordering::Release);
                    if !any_ran {
                        return Err(error);
                    }
                    // Others have run already, so these can't be left to the host.
                    for member in group {
                        let ticket = self.running.enter(&[member.job.id()]);
                        let single = self.run_group(&ticket, &[member]);
                        answers.extend(single.map_err(|Refused(error)| error)?);
                    }
                }
            }
        }
        Ok((0..jobs.len()).map(|index| answers.remove(&index).unwrap_or_else(|| Err(cancelled()))).collect())
    }
}

/// The library takes no lists; nothing ran.
struct Refused(Error);

/// A job as a program.
struct Prepared {
    text: Vec<u8>,
    measured: Vec<u16>,
}

impl Prepared {
    /// The answer to a circuit that measures nothing, which needs no device.
    fn unmeasured(&self, job: &Job<'_>) -> Outcome {
        Outcome::from_counts([(String::new(), i64::from(job.shots()))]).with_time_ms(0.0)
    }
}

/// A job of a call, by its index in it.
struct Member<'j> {
    index: usize,
    job: &'j Job<'j>,
    program: Prepared,
}

/// Answers by the index of their jobs.
type Answers = Vec<(usize, Result<Outcome, Error>)>;

impl QdmiDevice {
    fn prepare(&self, job: &Job<'_>) -> Result<Prepared, Error> {
        let form = self.form.as_ref().map_err(|why| unsupported(why.clone()))?;
        let program = job.program();
        // The host checks this too; a plugin that trusts it would write what the device doesn't have.
        if !program.target().is_some_and(|target| self.device.targets.contains(&target)) {
            let found = program.target().map_or("a gate set that is not known here", |target| target.name());
            let targets: Vec<&str> = self.device.targets.iter().map(|target| target.name()).collect();
            return Err(unsupported(format!(
                "the circuit is for {found}, the device takes {}",
                targets.join(", ")
            )));
        }
        let measured = program::distinct(program.measurements());
        let circuit =
            Circuit { num_qubits: program.num_qubits(), gates: program.gates(), measured: &measured };
        let text = program::write(&circuit, form).map_err(unsupported)?;
        Ok(Prepared { text, measured })
    }

    /// Runs jobs with one number of shots as one job of the device.
    fn run_group(&self, ticket: &Ticket<'_>, group: &[Member<'_>]) -> Result<Answers, Refused> {
        let Some(first) = group.first() else { return Ok(Vec::new()) };
        let format = self.form.as_ref().map_or(0, |form| form.format.code());
        let (reports, received) = mpsc::channel();
        let order = Order {
            programs: group.iter().map(|member| member.program.text.clone()).collect(),
            format,
            shots: first.job.shots(),
            width: group.iter().map(|member| member.program.measured.len()).max().unwrap_or_default(),
            cancelled: ticket.order(),
            reports,
        };
        let is_cancelled = || group.iter().zip(0..).all(|(member, n)| is_over(member.job, ticket, n));
        let mut report = |report| match report {
            Report::Warning(what) => {
                for Member { job, .. } in group {
                    job.host().log(LogLevel::Warn, &what);
                }
            }
            Report::Submitted(id) => {
                let id = id.unwrap_or_else(|| "(it tells no id)".into());
                for Member { job, .. } in group {
                    job.host().log(
                        LogLevel::Info,
                        format_args!("the job in the device is {}", id.escape_default()),
                    );
                }
            }
            Report::Ended(_) => {}
        };
        let end = self.thread.run(order, &received, &is_cancelled, &mut report);
        let all = |error: Error| group.iter().map(|member| (member.index, Err(error.clone()))).collect();
        match end {
            End::Cancelled => Ok(all(cancelled())),
            End::Failed(error) => Ok(all(error)),
            End::ListRefused(error) => Err(Refused(error)),
            End::Done(histograms, elapsed) => {
                let elapsed_ms = elapsed.as_secs_f64() * 1e3;
                let answer = |((n, member), histogram): ((usize, &Member<'_>), _)| {
                    let answer = match is_over(member.job, ticket, n) {
                        true => Err(cancelled()),
                        false => self.outcome(member, histogram),
                    };
                    (member.index, answer.map(|outcome| outcome.with_time_ms(elapsed_ms)))
                };
                Ok(group.iter().enumerate().zip(histograms).map(answer).collect())
            }
        }
    }

    fn outcome(
        &self,
        Member { job, program, .. }: &Member<'_>,
        histogram: Result<Histogram, Error>,
    ) -> Result<Outcome, Error> {
        let expected = Expected {
            measurements: job.program().measurements(),
            measured: &program.measured,
            shots: job.shots(),
            bit_order: self.bit_order,
        };
        let counts = match histogram? {
            Histogram::Counts { keys, values } => histogram::counts(&keys, &values, &expected),
            Histogram::Shots(outcomes) => histogram::counts_of_shots(&outcomes, &expected),
        };
        let counts = counts.map_err(|what| Error::new(ErrorCode::Hardware, what).at(Stage::Readout))?;
        Ok(Outcome::from_counts(counts))
    }
}

/// Whether the result of the n-th job of a ticket is to be thrown away.
fn is_over(job: &Job<'_>, ticket: &Ticket<'_>, n: usize) -> bool {
    ticket.is_cancelled(n) || job.is_cancelled()
}

fn unsupported(text: String) -> Error {
    Error::new(ErrorCode::Unsupported, text).at(Stage::Compile)
}

fn cancelled() -> Error {
    Error::new(ErrorCode::Cancelled, "the job was cancelled").at(Stage::Run)
}
