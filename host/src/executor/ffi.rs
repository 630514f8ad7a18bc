//! The unsafe edge: opening a library, calling its functions, copying what it lends.
//!
//! Everything here returns owned values that are merely copied, not believed: text may be anything, counts
//! may be wrong; `results/outcome` judges them. Host callbacks never unwind into the plugin.

use std::ffi::c_void;
use std::os::unix::ffi::OsStrExt as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi_stable::library::{AbiHeaderRef, LibraryError};
use coda_plugin_abi::raw::{
    CreateArg, JobArg, RawCount, RawCreate, RawDevice, RawEdge, RawError, RawHost, RawJob, RawOutcome,
    RawReply, RawStr, ReplyArg, TextArg, WHOLE_CALL, connectivity, hook,
};
use coda_plugin_abi::{
    Connectivity, Device, Error, ErrorCode, ExecutorModuleRef, Hooks, LogLevel, Outcome, Program,
    ROOT_MODULE_SYMBOL, Stage, Target,
};
use libloading::os::unix::{Library as DynamicLibrary, RTLD_LOCAL, RTLD_NOW};

use crate::model::JobId;

/// What became of one job of a call: `None` when the plugin gave no answer for it.
pub type Answer = Option<Result<Outcome, Error>>;

/// Longest text taken from a plugin; the rest is cut.
const MAX_TEXT: usize = 64 * 1024;
/// Most entries of one list taken from a plugin.
const MAX_LIST: usize = 1 << 26;

/// Why a library could not be opened.
#[derive(Debug)]
pub enum OpenError {
    /// The system's loader refused it; its own words.
    Loader(String),
    /// It lacks the symbol that every Rust plugin exports.
    NoModule(String),
    /// Its interface differs in memory layout; the first lines of the report.
    Layout(String),
}

/// A loaded library. It is never closed: code and statics of a plugin can't be unloaded safely.
#[derive(Clone, Copy)]
pub struct Library {
    table: Table,
}

/// The functions of a plugin, whichever door it came through.
#[derive(Clone, Copy)]
struct Table {
    create: extern "C" fn(CreateArg, ReplyArg) -> *mut c_void,
    device: extern "C" fn(*mut c_void, ReplyArg),
    run: extern "C" fn(*mut c_void, JobArg, ReplyArg),
    batch_run: extern "C" fn(*mut c_void, JobArg, usize, ReplyArg),
    cancel: extern "C" fn(*mut c_void, TextArg, ReplyArg),
    shutdown: extern "C" fn(*mut c_void, ReplyArg),
    destroy: extern "C" fn(*mut c_void, ReplyArg),
}

impl Library {
    /// Opens the file with all symbols bound, checks the interface's layout and takes its functions.
    /// Constructors of the library run in this call, on this thread.
    ///
    /// # Errors
    /// With the loader's or the layout check's own words.
    pub fn open(path: &Path) -> Result<Library, OpenError> {
        let loader = |e: &libloading::Error| {
            // libloading keeps the loader's text in its source.
            let text = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
            text.trim().to_string()
        };
        let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: loading runs the library's constructors; that a plugin's code is trusted to run in this
        // process is the meaning of configuring it. The file was checked to be a whole library.
        let library = unsafe { DynamicLibrary::open(Some(path.as_os_str()), flags) }
            .map_err(|e| OpenError::Loader(loader(&e)))?;
        // SAFETY: the symbol, when present, is abi_stable's header, whose address is what AbiHeaderRef holds.
        let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_SYMBOL.as_bytes()) }
            .map(|symbol| *symbol)
            .map_err(|e| OpenError::NoModule(loader(&e)))?;
        std::mem::forget(library);
        let module = header
            .upgrade()
            .and_then(|h| h.init_root_module::<ExecutorModuleRef>())
            .map_err(|e| OpenError::Layout(brief(&e)))?;
        Ok(Library {
            table: Table {
                create: module.create(),
                device: module.device(),
                run: module.run(),
                batch_run: module.batch_run(),
                cancel: module.cancel(),
                shutdown: module.shutdown(),
                destroy: module.destroy(),
            },
        })
    }

    /// Calls the factory. For thread 0.
    ///
    /// # Errors
    /// What the factory replied, or that it replied nothing.
    pub fn create(&self, request: &CreateRequest) -> Result<Instance, Error> {
        let host = Arc::new(JobContext::new(request.plugin.clone(), "".into()));
        // The executor may log until it is dropped, from threads that outlive a mere borrow.
        let host = Box::new(host.raw());
        let path = String::from_utf8_lossy(request.config_path.as_os_str().as_bytes());
        let raw = RawCreate {
            size: size_of::<RawCreate>(),
            entry: RawStr::new(&request.entry),
            config_path: RawStr::new(&path),
            config_text: RawStr::new(&request.config_text),
            native_gate_set: RawStr::new(&request.native_gate_set),
            num_qubits: u32::from(request.num_qubits),
            reserved: 0,
            host: &*host,
        };
        let reply = Reply::new(0);
        let this = (self.table.create)(CreateArg::new(&raw), ReplyArg::new(&reply.raw()));
        // Never freed: a thread that the plugin left behind may still log after `destroy`.
        Box::leak(host);
        if let Some(error) = reply.take().whole {
            return Err(error);
        }
        if this.is_null() {
            return Err(Error::new(ErrorCode::Contract, "the factory returned neither executor nor error")
                .at(Stage::Create));
        }
        Ok(Instance { table: self.table, this })
    }
}

/// The start of a layout report, which can have 60 KB.
fn brief(error: &LibraryError) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty()).take(6);
    lines.collect::<Vec<_>>().join("; ")
}

/// What the factory is told.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    pub plugin: Arc<str>,
    pub entry: String,
    pub config_path: std::path::PathBuf,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
}

/// What a job's run shares with its plugin: the cancel flag, progress, and who logs.
pub struct JobContext {
    plugin: Arc<str>,
    job_id: JobId,
    cancelled: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl JobContext {
    pub fn new(plugin: Arc<str>, job_id: JobId) -> JobContext {
        JobContext {
            plugin,
            job_id,
            cancelled: AtomicBool::new(false),
            done: AtomicU64::new(0),
            total: AtomicU64::new(0),
        }
    }

    /// Makes `is_cancelled` true for the plugin.
    pub fn set_cancelled(&self) {
        self.cancelled.store(true, Ordering::Release);
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    /// What the plugin last reported, in its own units; a total of 0 means unknown.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// The host services over this context, which stays alive: the pointer owns a reference that is never
    /// given back where the result is leaked, and lives in the caller's Arc otherwise.
    fn raw(self: &Arc<Self>) -> RawHost {
        RawHost {
            size: size_of::<RawHost>(),
            ctx: Arc::into_raw(self.clone()).cast_mut().cast(),
            log_enabled,
            log,
            progress,
            is_cancelled,
        }
    }
}

/// Gives back the reference that `JobContext::raw` took.
fn release(host: &RawHost) {
    // SAFETY: `ctx` came from Arc::into_raw in `JobContext::raw` and is released once, here.
    drop(unsafe { Arc::from_raw(host.ctx.cast::<JobContext>().cast_const()) });
}

/// # Safety
/// `ctx` must come from `JobContext::raw` and not have been released.
unsafe fn context<'a>(ctx: *mut c_void) -> &'a JobContext {
    // SAFETY: by this function's contract.
    unsafe { &*ctx.cast::<JobContext>() }
}

extern "C" fn log_enabled(_: *mut c_void, level: u32) -> u32 {
    u32::from(match LogLevel::from_code(level) {
        LogLevel::Error => tracing::enabled!(target: "plugin", tracing::Level::ERROR),
        LogLevel::Warn => tracing::enabled!(target: "plugin", tracing::Level::WARN),
        LogLevel::Info => tracing::enabled!(target: "plugin", tracing::Level::INFO),
        LogLevel::Debug => tracing::enabled!(target: "plugin", tracing::Level::DEBUG),
        LogLevel::Trace => tracing::enabled!(target: "plugin", tracing::Level::TRACE),
    })
}

extern "C" fn log(ctx: *mut c_void, level: u32, text: RawStr) {
    quietly(|| {
        // SAFETY: the plugin passes back the ctx it was lent, within its lifetime.
        let context = unsafe { context(ctx) };
        // SAFETY: the plugin lends the text for this call.
        let text = unsafe { copied(text) };
        let (plugin, job_id) = (&*context.plugin, &*context.job_id);
        macro_rules! emit {
            ($level:ident) => {
                match job_id {
                    "" => tracing::$level!(target: "plugin", plugin, "{text}"),
                    _ => tracing::$level!(target: "plugin", plugin, job_id, "{text}"),
                }
            };
        }
        match LogLevel::from_code(level) {
            LogLevel::Error => emit!(error),
            LogLevel::Warn => emit!(warn),
            LogLevel::Info => emit!(info),
            LogLevel::Debug => emit!(debug),
            LogLevel::Trace => emit!(trace),
        }
    });
}

extern "C" fn progress(ctx: *mut c_void, done: u64, total: u64) {
    // SAFETY: as in `log`.
    let context = unsafe { context(ctx) };
    context.total.store(total, Ordering::Relaxed);
    context.done.store(done, Ordering::Relaxed);
}

extern "C" fn is_cancelled(ctx: *mut c_void) -> u32 {
    // SAFETY: as in `log`.
    u32::from(unsafe { context(ctx) }.is_cancelled())
}

/// A host callback's body; a panic in it (out of memory in a formatter, say) must not unwind into the plugin.
fn quietly(body: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(body)).is_err() {
        tracing::error!("a host service failed while it served a plugin; please report this as a bug");
    }
}

/// # Safety
/// The text must be valid for the length of the call.
unsafe fn copied(text: RawStr) -> String {
    // SAFETY: by this function's contract.
    let bytes = unsafe { text.bytes() };
    String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_TEXT)]).into_owned()
}

/// # Safety
/// `ptr` must be valid for `len` values for the length of the call, or `len` be 0.
unsafe fn lent<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if ptr.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: by this function's contract; the limit only makes it shorter.
    unsafe { std::slice::from_raw_parts(ptr, len.min(MAX_LIST)) }
}

/// Collects what a plugin replies during one call, from whatever thread of its own.
struct Reply(Mutex<Replies>);

struct Replies {
    answers: Vec<Answer>,
    /// Replies for an index beyond the jobs of the call, or for one that was answered already.
    surplus: usize,
    whole: Option<Error>,
    device: Option<DeviceReply>,
}

/// A device description as it came.
pub struct DeviceReply {
    pub device: Device,
    pub hooks: Hooks,
    /// Targets that this version does not know.
    pub unknown_targets: Vec<u16>,
    /// Number of qubits as replied, which may not fit.
    pub num_qubits: u32,
    pub slots: u32,
}

impl Reply {
    fn new(jobs: usize) -> Reply {
        let answers = (0..jobs).map(|_| None).collect();
        Reply(Mutex::new(Replies { answers, surplus: 0, whole: None, device: None }))
    }

    fn raw(&self) -> RawReply {
        let ctx: *const Reply = self;
        RawReply {
            size: size_of::<RawReply>(),
            ctx: ctx.cast_mut().cast(),
            outcome: reply_outcome,
            error: reply_error,
            device: reply_device,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Replies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, index: usize, answer: Result<Outcome, Error>) {
        let mut replies = self.lock();
        match replies.answers.get_mut(index) {
            Some(slot @ None) => *slot = Some(answer),
            _ => replies.surplus += 1,
        }
    }

    fn take(self) -> Replies {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// # Safety
/// `ctx` must be the one of a `Reply` whose call has not returned.
unsafe fn reply<'a>(ctx: *mut c_void) -> &'a Reply {
    // SAFETY: by this function's contract.
    unsafe { &*ctx.cast::<Reply>() }
}

extern "C" fn reply_outcome(ctx: *mut c_void, index: usize, outcome: *const RawOutcome) {
    quietly(|| {
        // SAFETY: the plugin passes back the ctx of the call and lends the outcome during this one.
        let (reply, raw) = unsafe { (reply(ctx), &*outcome) };
        // SAFETY: lent during this call.
        let counts: &[RawCount] = unsafe { lent(raw.counts, raw.counts_len) };
        let outcome = Outcome {
            // SAFETY: as above.
            counts: counts.iter().map(|c| (unsafe { copied(c.bits) }, c.count)).collect(),
            execution_time_ms: (raw.has_execution_time != 0).then_some(raw.execution_time_ms),
            shots_completed: (raw.has_shots_completed != 0).then_some(raw.shots_completed),
        };
        reply.put(index, Ok(outcome));
    });
}

extern "C" fn reply_error(ctx: *mut c_void, index: usize, error: *const RawError) {
    quietly(|| {
        // SAFETY: as in `reply_outcome`.
        let (reply, raw) = unsafe { (reply(ctx), &*error) };
        let error = Error {
            code: ErrorCode::from_code(raw.code),
            stage: Stage::from_code(raw.stage),
            retryable: raw.retryable != 0,
            // SAFETY: lent during this call.
            text: unsafe { copied(raw.text) },
        };
        if index == WHOLE_CALL {
            reply.lock().whole.get_or_insert(error);
        } else {
            reply.put(index, Err(error));
        }
    });
}

extern "C" fn reply_device(ctx: *mut c_void, device: *const RawDevice) {
    quietly(|| {
        // SAFETY: as in `reply_outcome`.
        let (reply, raw) = unsafe { (reply(ctx), &*device) };
        // SAFETY: lent during this call.
        let (name, codes, edges): (String, &[u16], &[RawEdge]) =
            unsafe { (copied(raw.name), lent(raw.targets, raw.targets_len), lent(raw.edges, raw.edges_len)) };
        let edges: Vec<(u16, u16)> = edges.iter().map(|e| (e.a, e.b)).collect();
        let described = DeviceReply {
            device: Device {
                name,
                num_qubits: u16::try_from(raw.num_qubits).unwrap_or(u16::MAX),
                targets: codes.iter().filter_map(|c| Target::from_code(*c)).collect(),
                connectivity: match raw.connectivity {
                    connectivity::UNDIRECTED => Connectivity::Undirected(edges),
                    connectivity::DIRECTED => Connectivity::Directed(edges),
                    _ => Connectivity::Unknown,
                },
                slots: u16::try_from(raw.slots).unwrap_or(u16::MAX),
                max_shots: (raw.max_shots != 0).then_some(raw.max_shots),
            },
            hooks: Hooks {
                batch_run: raw.hooks & hook::BATCH_RUN != 0,
                cancel: raw.hooks & hook::CANCEL != 0,
            },
            unknown_targets: codes.iter().copied().filter(|c| Target::from_code(*c).is_none()).collect(),
            num_qubits: raw.num_qubits,
            slots: raw.slots,
        };
        reply.lock().device = Some(described);
    });
}

/// A job as `run` takes it.
pub struct CallJob<'a> {
    pub job_id: &'a str,
    pub program: &'a Program,
    pub shots: u32,
    pub context: &'a Arc<JobContext>,
}

/// The answers to a batch call.
pub struct BatchAnswers {
    /// One for each job of the call.
    pub answers: Vec<Answer>,
    /// The failure of the whole call.
    pub whole: Option<Error>,
    /// Answers beyond the jobs of the call.
    pub surplus: usize,
}

/// A live executor. Which function may be called on which thread: `plugin-abi/src/module.rs`.
#[derive(Clone, Copy)]
pub struct Instance {
    table: Table,
    this: *mut c_void,
}

// SAFETY: the interface demands that an executor can be used from the threads that `module` names; the pool
// keeps to them, and destroys it only after every call has returned.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    /// Runs one job, for as long as it takes.
    pub fn run(&self, job: &CallJob<'_>) -> Answer {
        let mut batch = self.call(std::slice::from_ref(job), |raw, reply| {
            (self.table.run)(self.this, JobArg::slice(raw), reply);
        });
        batch.answers.pop().flatten().or(batch.whole.map(Err))
    }

    /// Runs several jobs in one call.
    pub fn batch_run(&self, jobs: &[CallJob<'_>]) -> BatchAnswers {
        self.call(jobs, |raw, reply| {
            (self.table.batch_run)(self.this, JobArg::slice(raw), raw.len(), reply);
        })
    }

    fn call(&self, jobs: &[CallJob<'_>], enter: impl FnOnce(&[RawJob], ReplyArg)) -> BatchAnswers {
        let programs: Vec<_> = jobs.iter().map(|j| j.program.raw()).collect();
        let hosts: Vec<RawHost> = jobs.iter().map(|j| j.context.raw()).collect();
        let raw: Vec<RawJob> = jobs
            .iter()
            .zip(programs.iter().zip(&hosts))
            .map(|(job, (program, host))| RawJob {
                size: size_of::<RawJob>(),
                job_id: RawStr::new(job.job_id),
                program,
                shots: job.shots,
                reserved: 0,
                host,
            })
            .collect();
        let reply = Reply::new(jobs.len());
        enter(&raw, ReplyArg::new(&reply.raw()));
        hosts.iter().for_each(release);
        let Replies { answers, whole, surplus, .. } = reply.take();
        BatchAnswers { answers, whole, surplus }
    }

    /// Asks for the device's description.
    ///
    /// # Errors
    /// What the plugin replied, or that it replied nothing.
    pub fn device(&self) -> Result<DeviceReply, Error> {
        let reply = Reply::new(0);
        (self.table.device)(self.this, ReplyArg::new(&reply.raw()));
        let replies = reply.take();
        match (replies.device, replies.whole) {
            (_, Some(error)) => Err(error),
            (Some(device), None) => Ok(device),
            (None, None) => {
                Err(Error::new(ErrorCode::Contract, "the plugin did not describe its device")
                    .at(Stage::Describe))
            }
        }
    }

    /// Calls the cancel hook; an error is what the hook replied (a panic, say).
    pub fn cancel(&self, job_id: &str) -> Option<Error> {
        let reply = Reply::new(0);
        (self.table.cancel)(self.this, TextArg::new(&RawStr::new(job_id)), ReplyArg::new(&reply.raw()));
        reply.take().whole
    }

    /// Brings the device to rest.
    pub fn shutdown(&self) -> Option<Error> {
        let reply = Reply::new(0);
        (self.table.shutdown)(self.this, ReplyArg::new(&reply.raw()));
        reply.take().whole
    }

    /// Frees the executor. For thread 0, after every other call has returned; no copy may be used afterwards.
    pub fn destroy(self) -> Option<Error> {
        let reply = Reply::new(0);
        (self.table.destroy)(self.this, ReplyArg::new(&reply.raw()));
        reply.take().whole
    }
}
