//! One job in the device: from its creation to its end, on the library's thread.
//!
//! Contract: every status is looked at. A job is freed in every case. After a cancel it is looked at until the device has
//! ended it, so that no later job meets it. Nothing here waits: [`Active::poll`] says when it wants to look again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use coda_plugin_abi::{Error, ErrorCode, Stage};

use crate::abi::{Answer, FATAL, Failure, INVALID_ARGUMENT, Job, RemoteCancel, Session, TIMEOUT, optional};
use crate::config::Settings;
use crate::connect;

/// Shortest pause between two looks.
const POLL_MIN: Duration = Duration::from_micros(100);
/// A look at a job costs at most this part of its time.
const POLL_SHARE: u32 = 20;
/// Room for a histogram that is wrong, so that its error can say how.
const LEAST_RESULT: usize = 1 << 20;
/// Most bytes of a histogram's keys or values.
const MAX_RESULT: usize = 256 << 20;

/// States of a job, as the library numbers them.
const STATE_DONE: i32 = 4;
const STATE_CANCELLED: i32 = 5;
const STATE_FAILED: i32 = 6;

/// Set when an order is to end early.
pub type CancelFlag = Arc<AtomicBool>;

/// Told when the library enters `submit`, with a way to end the job meanwhile, and when it leaves.
pub type OnSubmit<'a> = dyn Fn(Option<(&CancelFlag, RemoteCancel)>) + 'a;

/// Programs that are to run as one job.
pub struct Order {
    /// Each with its NUL.
    pub programs: Vec<Vec<u8>>,
    pub format: i32,
    pub shots: u32,
    /// Bits of the widest program's results.
    pub width: usize,
    pub cancelled: CancelFlag,
    pub reports: Sender<Report>,
}

impl Order {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub fn report(&self, report: Report) {
        // The slot may have given up; then no one wants to know.
        self.reports.send(report).ok();
    }
}

/// What the slot that waits for an order is told.
pub enum Report {
    /// For the log.
    Warning(String),
    /// The job is in the device, by this id where it tells one.
    Submitted(Option<String>),
    Ended(End),
}

/// What became of an order.
pub enum End {
    /// An answer for each program, and the time from submission to the end.
    Done(Vec<Result<Histogram, Error>>, Duration),
    Failed(Error),
    Cancelled,
    /// The library takes no lists of programs, or not this one. Nothing ran.
    ListRefused(Error),
}

/// Results as the library answers them.
pub enum Histogram {
    Counts { keys: String, values: Vec<u64> },
    Shots(String),
}

pub fn error(failure: &Failure) -> Error {
    let error = Error::new(connect::code(failure), failure.to_string()).at(Stage::Run);
    if error.code == ErrorCode::Timeout { error.retryable() } else { error }
}

/// Why a program has no result.
enum NoResult {
    Failed,
    Unread(Failure),
}

/// A job that the library has.
pub struct Active {
    job: Job,
    order: Order,
    /// The job's id at the device, once it is known.
    pub id: Option<String>,
    submitted: Instant,
    next_check: Instant,
    cancel_sent: bool,
    /// Since when the job's state can't be read, and why.
    failing: Option<(Instant, Failure)>,
    /// When the job was done, from its submission.
    done_after: Option<Duration>,
    /// Since when the results of a job that is done can't be read, and why.
    unread: Option<(Instant, Failure)>,
    /// Calls whose warnings were reported.
    warned: BTreeSet<&'static str>,
}

impl Active {
    /// Makes and submits the job. `submitting` is told when the library enters and leaves `submit`, which may block.
    ///
    /// # Errors
    /// The end of an order that isn't in the device.
    pub fn start(
        session: &Session,
        order: Order,
        settings: &Settings,
        submitting: &OnSubmit<'_>,
    ) -> Result<Active, (Order, End)> {
        match Active::submit(session, &order, settings, submitting) {
            Ok((job, submitted)) => {
                let mut active = Active {
                    job,
                    order,
                    id: None,
                    submitted,
                    next_check: submitted,
                    cancel_sent: false,
                    failing: None,
                    done_after: None,
                    unread: None,
                    warned: BTreeSet::new(),
                };
                active.id = match active.job.id() {
                    Ok(id) => id.filter(|id| !id.is_empty()),
                    Err(failure) => {
                        active.order.report(Report::Warning(format!("the job's id is not known: {failure}")));
                        None
                    }
                };
                active.order.report(Report::Submitted(active.id.clone()));
                active.report_warnings(session);
                Ok(active)
            }
            Err(end) => Err((order, end)),
        }
    }

    fn submit(
        session: &Session,
        order: &Order,
        settings: &Settings,
        submitting: &OnSubmit<'_>,
    ) -> Result<(Job, Instant), End> {
        if order.is_cancelled() {
            return Err(End::Cancelled);
        }
        let is_list = order.programs.len() > 1;
        let refused = |failure: Failure| match is_list && failure.is_absence() {
            true => End::ListRefused(error(&failure)),
            false => End::Failed(error(&failure)),
        };
        let job = session.create_job().map_err(|failure| End::Failed(error(&failure)))?;
        job.set_programs(order.format, &order.programs).map_err(refused)?;
        let shots = usize::try_from(order.shots).unwrap_or(usize::MAX);
        job.set_shots(shots).map_err(|failure| End::Failed(error(&failure)))?;
        for parameter in &settings.job {
            let set = job.set_parameter(parameter.item, &parameter.value);
            set.map_err(|failure| End::Failed(error(&failure)))?;
        }
        let submitted = Instant::now();
        submitting(Some((&order.cancelled, job.remote_cancel())));
        let answer = job.submit();
        submitting(None);
        match answer {
            Ok(()) => Ok((job, submitted)),
            Err(_) if order.is_cancelled() => Err(End::Cancelled),
            Err(failure) => Err(refused(failure)),
        }
    }

    /// When the job is to be looked at again; a cancel comes at any time.
    pub fn next_check(&self) -> Instant {
        if self.wants_cancel() { self.submitted } else { self.next_check }
    }

    fn wants_cancel(&self) -> bool {
        self.order.is_cancelled() && !self.cancel_sent
    }

    /// Looks at the job if it is time to; its end, once it has ended.
    pub fn poll(&mut self, session: &Session, settings: &Settings) -> Option<End> {
        if self.wants_cancel() {
            self.cancel();
            self.next_check = self.submitted;
        }
        if Instant::now() < self.next_check {
            return None;
        }
        let state = self.job.check();
        self.report_warnings(session);
        let now = Instant::now();
        let pause = ((now - self.submitted) / POLL_SHARE).clamp(POLL_MIN, settings.poll_max.max(POLL_MIN));
        self.next_check = now + pause;
        match state {
            Ok(state) => {
                self.failing = None;
                self.ended(state, session, settings, now)
            }
            Err(failure) => self.unreadable(failure, settings, now),
        }
    }

    pub fn finish(self, end: End) {
        let Active { job, order, .. } = self;
        // Freed first: the slot may hand the next job over as soon as it is told.
        drop(job);
        order.report(Report::Ended(end));
    }

    fn cancel(&mut self) {
        self.cancel_sent = true;
        match self.job.cancel() {
            Ok(()) => {}
            // It had ended.
            Err(failure) if failure.status() == Some(INVALID_ARGUMENT) => {}
            Err(failure) => {
                let note = format!("{failure}; the device is not used before the job has ended");
                self.order.report(Report::Warning(note));
            }
        }
    }

    fn ended(&mut self, state: i32, session: &Session, settings: &Settings, now: Instant) -> Option<End> {
        match state {
            STATE_DONE | STATE_CANCELLED | STATE_FAILED if self.order.is_cancelled() => Some(End::Cancelled),
            STATE_DONE => self.results(state, session, settings, now),
            // The other programs of a list may have results when one failed.
            STATE_FAILED if self.order.programs.len() > 1 => self.results(state, session, settings, now),
            // Some libraries give a job up whose results could not be read.
            STATE_FAILED => Some(End::Failed(match &self.unread {
                Some((_, failure)) => error(failure).at(Stage::Readout),
                None => failed_in_device(),
            })),
            STATE_CANCELLED => {
                let text = "the job was cancelled at the device, and not by its sender";
                Some(End::Failed(Error::new(ErrorCode::Hardware, text).at(Stage::Run)))
            }
            0..STATE_DONE => None,
            other => {
                self.cancel();
                let text =
                    format!("the device library answered the state {other} to check, which no job can have");
                Some(End::Failed(Error::new(ErrorCode::Hardware, text).at(Stage::Run)))
            }
        }
    }

    fn unreadable(&mut self, failure: Failure, settings: &Settings, now: Instant) -> Option<End> {
        let (since, _) = *self.failing.get_or_insert_with(|| {
            self.order.report(Report::Warning(format!("{failure}; trying again")));
            (now, failure)
        });
        if now - since < settings.check_retry {
            return None;
        }
        self.cancel();
        let mut error = error(&failure).retryable();
        error.text = format!("{failure} for {:.0?}; the job was given up", now - since);
        Some(End::Failed(error))
    }

    /// An answer for each program of a job that has ended. Shots were executed, so what may be the network's fault is tried
    /// again.
    fn results(&mut self, state: i32, session: &Session, settings: &Settings, now: Instant) -> Option<End> {
        let took = *self.done_after.get_or_insert(now - self.submitted);
        let answers: Vec<_> =
            (0..self.order.programs.len()).map(|index| self.program_result(index, state)).collect();
        self.report_warnings(session);
        let transient = answers.iter().find_map(|answer| match answer {
            Err(NoResult::Unread(failure)) => {
                matches!(failure.status(), Some(FATAL | TIMEOUT)).then_some(*failure)
            }
            _ => None,
        });
        if let Some(failure) = transient {
            let (since, _) = *self.unread.get_or_insert_with(|| {
                self.order.report(Report::Warning(format!("{failure}; trying again")));
                (now, failure)
            });
            if now - since < settings.check_retry {
                return None;
            }
        }
        let named = |missing| match missing {
            NoResult::Failed => failed_in_device(),
            NoResult::Unread(failure) => error(&failure).at(Stage::Readout),
        };
        Some(End::Done(answers.into_iter().map(|answer| answer.map_err(named)).collect(), took))
    }

    /// The result of one program. One that failed leaves those of the others of its list readable.
    fn program_result(&self, index: usize, state: i32) -> Result<Histogram, NoResult> {
        if self.order.programs.len() > 1 {
            match self.job.program_state(index).map_err(NoResult::Unread)? {
                Some(STATE_DONE) => {}
                Some(_) => return Err(NoResult::Failed),
                // It doesn't tell: whether there are results shows.
                None if state == STATE_FAILED => {
                    return self.histogram(index).map_err(|_| NoResult::Failed);
                }
                None => {}
            }
        }
        self.histogram(index).map_err(NoResult::Unread)
    }

    fn histogram(&self, index: usize) -> Answer<Histogram> {
        let shots = usize::try_from(self.order.shots).unwrap_or(usize::MAX);
        let bounded = |each: usize| shots.saturating_mul(each).clamp(LEAST_RESULT, MAX_RESULT);
        let keys = optional(self.job.histogram_keys(index, bounded(self.order.width + 1)))?;
        match keys {
            Some(keys) => {
                let values = self.job.histogram_values(index, bounded(size_of::<u64>()))?;
                Ok(Histogram::Counts { keys, values })
            }
            None => self.job.shots(index, bounded(self.order.width + 1)).map(Histogram::Shots),
        }
    }

    fn report_warnings(&mut self, session: &Session) {
        for call in session.library().take_warnings() {
            if self.warned.insert(call) {
                let note = format!("the device library answered with a warning to {call}");
                self.order.report(Report::Warning(note));
            }
        }
    }
}

fn failed_in_device() -> Error {
    Error::new(ErrorCode::Hardware, "the job failed in the device; its log has the reason").at(Stage::Run)
}
