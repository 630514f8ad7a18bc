//! The library's thread: it alone calls the library, for all slots, and looks after the jobs in the device.
//!
//! Contract: slots hand orders over and wait for reports; several orders may be in the device at once. A cancel wakes the
//! thread. Only when it has been inside `submit` for [`SUBMIT_PATIENCE`] does another thread call the library, to cancel
//! that job. The end of the thread, however it comes, ends every order.

use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use coda_plugin_abi::{Error, ErrorCode, HostServices, LogLevel, Stage};

use crate::abi::{Abi, Answer, RemoteCancel, Session};
use crate::config::Settings;
use crate::connect::{self, connect};
use crate::device::{self, Description, DeviceError};
use crate::job_file::{JobFile, NoJobFile};
use crate::run::{Active, CancelFlag, End, Order, Report};

/// How long `submit` may block before a cancel goes past it.
const SUBMIT_PATIENCE: Duration = Duration::from_secs(1);
/// How soon a waiting slot notices a host that sets `is_cancelled` without calling `cancel`.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What the threads share.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    inbox: VecDeque<Order>,
    /// The order that the library's thread is submitting.
    submitting: Option<Submitting>,
    stop: bool,
    /// The thread takes no more orders.
    ended: bool,
}

struct Submitting {
    order: CancelFlag,
    since: Instant,
    cancel: RemoteCancel,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements, so a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, state: MutexGuard<'_, State>, most: Duration) {
        drop(self.changed.wait_timeout(state, most).unwrap_or_else(PoisonError::into_inner));
    }
}

/// A library that is open on a separate thread.
pub struct LibraryThread {
    shared: Arc<Shared>,
    handle: Option<JoinHandle<()>>,
}

/// What is known of the library once it is open.
pub struct Opened {
    pub description: Description,
    pub abi: Abi,
}

impl LibraryThread {
    /// Opens the library on a new thread.
    ///
    /// # Errors
    /// Why it can't be used.
    pub fn start(settings: Settings, host: HostServices<'static>) -> Result<(LibraryThread, Opened), Error> {
        let shared = Arc::new(Shared::default());
        let (ready, opened) = mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("qdmi".into());
        let spawned = thread.spawn(move || {
            // Dropped last, also when this thread panics.
            let _end = EndOrders(Arc::clone(&of_thread));
            serve(&settings, host, &of_thread, &ready);
        });
        let handle = spawned.map_err(|e| {
            Error::new(ErrorCode::Resources, format!("no thread for the device library: {e}"))
                .at(Stage::Create)
        })?;
        // From here on dropping `thread` stops and joins it.
        let thread = LibraryThread { shared, handle: Some(handle) };
        let opened = opened.recv().unwrap_or_else(|_| Err(thread_ended(Stage::Create)))?;
        Ok((thread, opened))
    }

    /// Runs an order and returns its end. `report` gets everything else; `is_cancelled` is asked now and then.
    pub fn run(
        &self,
        order: Order,
        reports: &Receiver<Report>,
        is_cancelled: &dyn Fn() -> bool,
        report: &mut dyn FnMut(Report),
    ) -> End {
        let flag = Arc::clone(&order.cancelled);
        if is_cancelled() || flag.load(Ordering::Acquire) {
            return End::Cancelled;
        }
        {
            let mut state = self.shared.lock();
            if state.ended {
                return End::Failed(thread_ended(Stage::Run));
            }
            state.inbox.push_back(order);
        }
        self.shared.changed.notify_all();
        loop {
            if is_cancelled() && !flag.load(Ordering::Acquire) {
                self.cancel(&flag).unwrap_or_else(|failure| report(Report::Warning(failure.to_string())));
            }
            if flag.load(Ordering::Acquire) && self.withdraw(&flag) {
                return End::Cancelled;
            }
            match reports.recv_timeout(LOOK_EVERY) {
                Ok(Report::Ended(end)) => return end,
                Ok(other) => report(other),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return End::Failed(thread_ended(Stage::Run)),
            }
        }
    }

    /// Takes an order back that the library's thread hasn't begun.
    fn withdraw(&self, flag: &CancelFlag) -> bool {
        let mut state = self.shared.lock();
        let before = state.inbox.len();
        state.inbox.retain(|order| !Arc::ptr_eq(&order.cancelled, flag));
        state.inbox.len() < before
    }

    /// Has an order end early.
    ///
    /// # Errors
    /// The library's answer, when this thread had to ask it.
    pub fn cancel(&self, flag: &CancelFlag) -> Answer<()> {
        flag.store(true, Ordering::Release);
        let mut state = self.shared.lock();
        self.shared.changed.notify_all();
        loop {
            let Some(submitting) = &state.submitting else { return Ok(()) };
            if !Arc::ptr_eq(&submitting.order, flag) {
                return Ok(());
            }
            let blocked = submitting.since.elapsed();
            if blocked >= SUBMIT_PATIENCE {
                let cancel = submitting.cancel.clone();
                drop(state);
                return cancel.cancel();
            }
            self.shared.wait(state, SUBMIT_PATIENCE - blocked);
            state = self.shared.lock();
        }
    }
}

impl Drop for LibraryThread {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(handle) = self.handle.take() {
            // A panic of it was reported to the thread that waited.
            handle.join().ok();
        }
    }
}

fn thread_ended(stage: Stage) -> Error {
    Error::new(ErrorCode::Other, "the thread that calls the device library has ended; restart the host")
        .at(stage)
}

/// Ends every order that is left when the library's thread ends: their senders are dropped with them.
struct EndOrders(Arc<Shared>);

impl Drop for EndOrders {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        state.submitting = None;
        state.inbox.clear();
        self.0.changed.notify_all();
    }
}

/// The library's thread.
fn serve(
    settings: &Settings,
    host: HostServices<'static>,
    shared: &Shared,
    ready: &Sender<Result<Opened, Error>>,
) {
    // The one that waits for this is `start`, which is still there.
    let (session, jobs) = match open(settings, host) {
        Ok((session, opened)) => {
            // First, since a device that is ready must be idle.
            let jobs = recover(&session, settings, host);
            ready.send(Ok(opened)).ok();
            (session, jobs)
        }
        Err(error) => {
            ready.send(Err(error)).ok();
            return;
        }
    };
    let mut server = Server {
        session: &session,
        settings,
        host,
        shared,
        jobs,
        active: Vec::new(),
        refreshed: Instant::now(),
        refresh_failed: false,
    };
    server.refresh();
    server.serve();
    if let Some(jobs) = server.jobs.take()
        && let Err(why) = jobs.close()
    {
        host.log(LogLevel::Warn, why);
    }
}

fn open(settings: &Settings, host: HostServices<'_>) -> Result<(Session, Opened), Error> {
    let session = connect(settings, host)?;
    let wrong = |error: DeviceError| {
        let code = match &error {
            DeviceError::Library(failure) => connect::code(failure),
            DeviceError::Unusable(_) => ErrorCode::Config,
        };
        Error::new(code, format!("{}: {error}", settings.config_file)).at(Stage::Create)
    };
    let abi = session.library().abi();
    let facts = device::read(&session).map_err(wrong)?;
    let description = device::describe(&facts, abi, settings).map_err(wrong)?;
    Ok((session, Opened { description, abi }))
}

/// Cancels what an earlier process of this device left in it.
fn recover(session: &Session, settings: &Settings, host: HostServices<'_>) -> Option<JobFile> {
    let (mut file, ids) = match JobFile::open(&settings.prefix, &settings.config_file) {
        Ok(found) => found,
        Err(why) => {
            let level = match why {
                NoJobFile::InUse => LogLevel::Debug,
                NoJobFile::Unusable(_) => LogLevel::Warn,
            };
            host.log(
                level,
                format_args!("a killed process's jobs in the device will not be found again: {why}"),
            );
            return None;
        }
    };
    for (n, id) in ids.iter().enumerate() {
        let shown = id.escape_default();
        // One try for each: a library that doesn't return from it must not hold up every start that follows.
        if let Err(why) = file.write(ids.iter().skip(n + 1).map(String::as_str)) {
            host.log(LogLevel::Warn, why);
        }
        host.log(
            LogLevel::Info,
            format_args!("looking up job {shown}, which an earlier process left in the device"),
        );
        let left = format!("job {shown} was in the device when this plugin's process ended before");
        let cancelled = match CString::new(id.as_str()) {
            Ok(id) => session.retrieve_job(&id).and_then(|job| match job {
                Some(job) => job.cancel().map(|()| true),
                None => Ok(false),
            }),
            Err(_) => Ok(false),
        };
        match cancelled {
            Ok(true) => host.log(LogLevel::Info, format_args!("{left}; it is cancelled")),
            Ok(false) => {
                host.log(LogLevel::Warn, format_args!("{left}; this library can't look it up to cancel it"));
            }
            Err(failure) => host.log(LogLevel::Warn, format_args!("{left}; it is not cancelled: {failure}")),
        }
    }
    Some(file)
}

/// What the library's thread does next.
enum Next {
    Start(Order),
    /// A job, or the idle device, is to be looked at.
    Look,
}

/// The state of the library's thread.
struct Server<'s> {
    session: &'s Session,
    settings: &'s Settings,
    host: HostServices<'static>,
    shared: &'s Shared,
    jobs: Option<JobFile>,
    active: Vec<Active>,
    refreshed: Instant,
    /// The last look at the idle device failed, which was logged.
    refresh_failed: bool,
}

impl Server<'_> {
    fn serve(&mut self) {
        while let Some(next) = self.wait() {
            if let Next::Start(order) = next {
                self.start(order);
            }
            self.poll();
            if self.active.is_empty() && self.refreshed.elapsed() >= self.settings.refresh {
                self.refresh();
            }
        }
    }

    /// Waits until something is to be done; `None` at the end.
    fn wait(&self) -> Option<Next> {
        loop {
            let mut state = self.shared.lock();
            // One alone: the others can still be taken back while this one is in `submit`.
            if let Some(order) = state.inbox.pop_front() {
                return Some(Next::Start(order));
            }
            if state.stop && self.active.is_empty() {
                return None;
            }
            let refresh = self.refreshed + self.settings.refresh;
            let due = self.active.iter().map(Active::next_check).min().unwrap_or(refresh);
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Some(Next::Look);
            }
            // Cancels set their flag before they take the lock, so none is missed between the look and the wait.
            self.shared.wait(state, left);
        }
    }

    fn start(&mut self, order: Order) {
        if let Some(refusal) = self.refusal() {
            return order.report(Report::Ended(End::Failed(refusal)));
        }
        let shared = self.shared;
        let submitting = |entered: Option<(&CancelFlag, RemoteCancel)>| {
            shared.lock().submitting = entered.map(|(order, cancel)| Submitting {
                order: Arc::clone(order),
                since: Instant::now(),
                cancel,
            });
            shared.changed.notify_all();
        };
        match Active::start(self.session, order, self.settings, &submitting) {
            Ok(active) => {
                self.active.push(active);
                self.note_jobs();
            }
            Err((order, end)) => order.report(Report::Ended(end)),
        }
    }

    /// Why the device takes no jobs now.
    fn refusal(&self) -> Option<Error> {
        match device::status(self.session) {
            Ok(Some(status)) => {
                self.host.gauge("qdmi_status", f64::from(status));
                device::refusal(status)
            }
            Ok(None) => None,
            Err(failure) => Some(crate::run::error(&failure).retryable()),
        }
    }

    fn poll(&mut self) {
        let mut index = 0;
        let mut ended = false;
        while index < self.active.len() {
            match self.active[index].poll(self.session, self.settings) {
                Some(end) => {
                    self.active.swap_remove(index).finish(end);
                    ended = true;
                }
                None => index += 1,
            }
        }
        if ended {
            self.note_jobs();
        }
    }

    fn note_jobs(&mut self) {
        let ids = self.active.iter().filter_map(|active| active.id.as_deref());
        if let Some(file) = &mut self.jobs
            && let Err(why) = file.write(ids)
        {
            // Told once: the file is not used again.
            self.host.log(LogLevel::Warn, why);
            self.jobs = None;
        }
    }

    /// Reads the gauges of an idle device.
    fn refresh(&mut self) {
        self.refreshed = Instant::now();
        let status = device::status(self.session).map(|status| {
            if let Some(status) = status {
                self.host.gauge("qdmi_status", f64::from(status));
            }
        });
        let length = device::queue_length(self.session).map(|length| {
            if let Some(length) = length {
                self.host.gauge("qdmi_queue_length", length as f64);
            }
        });
        let failure = status.and(length).err();
        match &failure {
            Some(failure) if !self.refresh_failed => {
                self.host.log(LogLevel::Warn, format_args!("the idle device can't be looked at: {failure}"));
            }
            _ => {}
        }
        self.refresh_failed = failure.is_some();
        drop(self.session.library().take_warnings());
    }
}
