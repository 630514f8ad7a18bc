//! What a vendor implements, and the glue that turns every panic into an error value.
//!
//! A panic that leaves the plugin is undefined or fatal (each library has its own copy of std, so the host
//! can't catch it); therefore every exported function runs the vendor's code, the conversion of its answer
//! and the drop of that answer under `catch_unwind`, on this side of the boundary.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;

use crate::device::{Device, Hooks};
use crate::host_services::HostServices;
use crate::ir::{ProgramRef, slice};
use crate::outcome::{Error, ErrorCode, Outcome, Stage};
use crate::raw::{Amplitude, Operation, RawCreate, RawEvolution, RawJob, RawReply, RawStr, WHOLE_CALL};

/// An executor: what drives one QPU.
///
/// Threads: `run` (and `batch_run`) is called from at most [`Device::slots`] threads at once, each slot
/// always from the same one; it may block as long as the hardware needs. `device`, `cancel` and `shutdown`
/// come from a control thread beside them and must return within seconds.
pub trait Executor: Send + Sync + 'static {
    /// Describes the device as it is now. Asked once after the start and again from time to time.
    fn device(&self) -> Device;

    /// Runs one job and returns its counts. The circuit is legal NativeGateIR, of a target and with no
    /// more qubits and shots than [`Executor::device`] says.
    ///
    /// # Errors
    /// Whatever keeps the job from running; the text is what the person who sent the job reads.
    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error>;

    /// Return `Some(self)` when the executor can run several jobs in one call.
    fn batch(&self) -> Option<&dyn BatchRun> {
        None
    }

    /// Return `Some(self)` when a run can be ended early.
    fn canceller(&self) -> Option<&dyn Cancel> {
        None
    }

    /// Return `Some(self)` when the executor can apply operations to a given state, as exact simulators can.
    fn evolver(&self) -> Option<&dyn EvolveState> {
        None
    }

    /// Brings the device to rest before the process ends. The executor is dropped afterwards.
    fn shutdown(&self) {}
}

/// The optional batch hook.
pub trait BatchRun {
    /// Runs the jobs and returns one answer for each, in order. One call takes one slot.
    ///
    /// # Errors
    /// An `Err` of the whole call means that none of the jobs ran; they are then run one by one.
    fn batch_run(&self, jobs: &[Job<'_>]) -> Result<Vec<Result<Outcome, Error>>, Error>;
}

/// The optional cancel hook.
pub trait Cancel {
    /// Asks the run of this job to return soon. Comes at most once per job, between entry and return of
    /// its `run`, from another thread; an id that isn't running is to be ignored.
    fn cancel(&self, job_id: &str);
}

/// The optional hook for states that are handed over: a circuit's middle part, as peers run it for one another.
pub trait EvolveState {
    /// Most qubits of a state that it takes.
    fn max_qubits(&self) -> u16;

    /// Applies the operations in order and returns as many amplitudes as were given. One call takes one slot; a
    /// cancel comes by `is_cancelled` and the cancel hook, as for `run`.
    ///
    /// # Errors
    /// Whatever keeps it from being done; the text is what the person who sent the circuit reads.
    fn evolve_state(&self, state: &Evolution<'_>) -> Result<Vec<Amplitude>, Error>;
}

/// A state and what is to be done with it.
pub struct Evolution<'a> {
    id: &'a str,
    num_qubits: u16,
    amplitudes: &'a [Amplitude],
    operations: &'a [Operation],
    host: HostServices<'a>,
}

impl<'a> Evolution<'a> {
    /// # Safety
    /// `raw` must be valid for `'a`, with everything it points to.
    unsafe fn from_raw(raw: &'a RawEvolution) -> Evolution<'a> {
        // SAFETY: by this function's contract, for all four.
        unsafe {
            Evolution {
                id: text(raw.job_id),
                num_qubits: u16::try_from(raw.num_qubits).unwrap_or(u16::MAX),
                amplitudes: slice(raw.amplitudes, raw.amplitudes_len),
                operations: slice(raw.operations, raw.operations_len),
                host: HostServices::from_raw(raw.host),
            }
        }
    }

    /// The job, as `cancel` names it.
    pub fn id(&self) -> &'a str {
        self.id
    }

    pub fn num_qubits(&self) -> u16 {
        self.num_qubits
    }

    /// `2^num_qubits`, of norm 1; bit `k` of an index is the value of qubit `k`.
    pub fn amplitudes(&self) -> &'a [Amplitude] {
        self.amplitudes
    }

    /// In order; qubits are in range and distinct.
    pub fn operations(&self) -> &'a [Operation] {
        self.operations
    }

    pub fn host(&self) -> HostServices<'a> {
        self.host
    }

    pub fn is_cancelled(&self) -> bool {
        self.host.is_cancelled()
    }
}

/// One job of a run.
pub struct Job<'a> {
    id: &'a str,
    program: ProgramRef<'a>,
    shots: u32,
    host: HostServices<'a>,
}

impl<'a> Job<'a> {
    /// # Safety
    /// `raw` must be valid for `'a`, with everything it points to.
    unsafe fn from_raw(raw: &'a RawJob) -> Job<'a> {
        // SAFETY: by this function's contract, for all three.
        unsafe {
            Job {
                id: text(raw.job_id),
                program: ProgramRef::from_raw(raw.program),
                shots: raw.shots,
                host: HostServices::from_raw(raw.host),
            }
        }
    }

    pub fn id(&self) -> &'a str {
        self.id
    }

    pub fn program(&self) -> ProgramRef<'a> {
        self.program
    }

    /// How often to execute the circuit, 1 to 2^31-1.
    pub fn shots(&self) -> u32 {
        self.shots
    }

    pub fn host(&self) -> HostServices<'a> {
        self.host
    }

    /// Whether the job was cancelled; a long run should look now and then and return early.
    pub fn is_cancelled(&self) -> bool {
        self.host.is_cancelled()
    }
}

/// What the factory is given.
pub struct Context<'a> {
    raw: &'a RawCreate,
}

impl<'a> Context<'a> {
    /// Absolute path of the device config, empty when there is none. Relative paths inside the config are
    /// best resolved against its folder.
    pub fn config_path(&self) -> &'a str {
        // SAFETY: lent for the length of `create`, as is this context.
        unsafe { text(self.raw.config_path) }
    }

    /// Text of the device config.
    pub fn config_text(&self) -> &'a str {
        // SAFETY: as in `config_path`.
        unsafe { text(self.raw.config_text) }
    }

    /// The gate set that the QPU is registered with, for instance `cz`.
    pub fn native_gate_set(&self) -> &'a str {
        // SAFETY: as in `config_path`.
        unsafe { text(self.raw.native_gate_set) }
    }

    /// The number of qubits that the QPU is registered with.
    pub fn num_qubits(&self) -> u16 {
        u16::try_from(self.raw.num_qubits).unwrap_or(u16::MAX)
    }

    /// The host's log, valid until the executor is dropped.
    pub fn host(&self) -> HostServices<'static> {
        // SAFETY: the interface promises `create`'s host services until `destroy` returns.
        unsafe { HostServices::from_raw(self.raw.host) }
    }

    /// The device config as a type of yours. The host's own key, `executor_factory`, is hidden, so that a
    /// type with `deny_unknown_fields` needs no field for it.
    ///
    /// # Errors
    /// Names file, line and key of what doesn't fit, for a person to mend.
    pub fn config<T: DeserializeOwned>(&self) -> Result<T, Error> {
        parse_config(self.config_path(), self.config_text())
    }
}

fn parse_config<T: DeserializeOwned>(path: &str, yaml: &str) -> Result<T, Error> {
    let file = if path.is_empty() { "(no device config)" } else { path };
    let visible = hide_host_key(yaml);
    // An empty document is an empty mapping, so that types with defaults everywhere accept it.
    let empty = visible.lines().all(|l| l.trim().is_empty() || l.trim_start().starts_with('#'));
    let visible = if empty { "{}" } else { &visible };
    serde_yaml::from_str(visible).map_err(|e| {
        let at = e.location().map_or(String::new(), |l| format!(":{}:{}", l.line(), l.column()));
        let mut what = e.to_string();
        if let Some(cut) = what.rfind(" at line ").filter(|_| !at.is_empty()) {
            what.truncate(cut);
        }
        Error::new(ErrorCode::Config, format!("{file}{at}: {what}")).at(Stage::Create)
    })
}

/// Turns a top-level `executor_factory:` line into a comment, so that line numbers stay.
fn hide_host_key(yaml: &str) -> String {
    let ours = |line: &str| {
        let key = line.strip_prefix(['"', '\'']).unwrap_or(line);
        let rest = key.strip_prefix("executor_factory").map(|r| r.trim_start_matches(['"', '\'', ' ']));
        rest.is_some_and(|r| r.starts_with(':'))
    };
    let mut out = String::with_capacity(yaml.len() + 1);
    for line in yaml.split_inclusive('\n') {
        if ours(line) {
            out.push('#');
        }
        out.push_str(line);
    }
    out
}

/// # Safety
/// `raw` must be valid for `'a`.
unsafe fn text<'a>(raw: RawStr) -> &'a str {
    // SAFETY: by this function's contract.
    std::str::from_utf8(unsafe { raw.bytes() }).unwrap_or_default()
}

/// The functions behind [`export_executor!`](crate::export_executor); not for direct use.
#[doc(hidden)]
// Called by the host alone, through a table of plain function pointers, which can't say `unsafe`.
#[allow(clippy::not_unsafe_ptr_arg_deref)]
pub mod glue {
    use super::*;

    /// What an executor pointer points to.
    pub type Boxed = Box<dyn Executor>;
    /// A named factory.
    pub type Entry = (&'static str, fn(&Context<'_>) -> Result<Boxed, Error>);

    /// Makes the executor of the entry that `request` names.
    pub fn create(entries: &[Entry], request: *const RawCreate, reply: *const RawReply) -> *mut c_void {
        let made = guard(reply, WHOLE_CALL, Stage::Create, || {
            // SAFETY: the host lends a valid request for the length of this call.
            let raw = unsafe { &*request };
            // SAFETY: as above.
            let name = unsafe { text(raw.entry) };
            let Some((_, factory)) = entries.iter().find(|e| e.0 == name) else {
                let known: Vec<&str> = entries.iter().map(|e| e.0).collect();
                let what = format!("this library has no entry '{name}'; it offers: {}", known.join(", "));
                return Err(Error::new(ErrorCode::Config, what));
            };
            factory(&Context { raw }).map(Some)
        });
        match made {
            Some(executor) => Box::into_raw(Box::new(executor)).cast(),
            None => std::ptr::null_mut(),
        }
    }

    /// # Safety
    /// `this` must come from [`create`] and not have been destroyed.
    unsafe fn executor<'a>(this: *mut c_void) -> &'a dyn Executor {
        // SAFETY: by this function's contract.
        unsafe { &**this.cast::<Boxed>() }
    }

    pub fn device(this: *mut c_void, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Describe, || {
            // SAFETY: the host passes a live executor.
            let executor = unsafe { executor(this) };
            let device = executor.device();
            let hooks = Hooks {
                batch_run: executor.batch().is_some(),
                cancel: executor.canceller().is_some(),
                evolve_qubits: executor.evolver().map(EvolveState::max_qubits),
            };
            // SAFETY: the host lends a valid reply for the length of this call.
            let reply = unsafe { &*reply };
            device.lend(hooks, |raw| (reply.device)(reply.ctx, raw));
            Ok(None::<()>)
        });
    }

    pub fn run(this: *mut c_void, job: *const RawJob, reply: *const RawReply) {
        guard(reply, 0, Stage::Run, || {
            // SAFETY: the host passes a live executor and lends job and reply for the length of this call.
            let (executor, job, reply) = unsafe { (executor(this), Job::from_raw(&*job), &*reply) };
            let outcome = executor.run(&job)?;
            outcome.lend(|raw| (reply.outcome)(reply.ctx, 0, raw));
            Ok(None::<()>)
        });
    }

    pub fn batch_run(this: *mut c_void, jobs: *const RawJob, len: usize, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Run, || {
            // SAFETY: as in `run`, for `len` jobs.
            let (executor, raw, reply) = unsafe { (executor(this), slice(jobs, len), &*reply) };
            let Some(batch) = executor.batch() else {
                return Err(Error::new(ErrorCode::Contract, "this executor has no batch_run"));
            };
            // SAFETY: each job is lent for the length of this call.
            let jobs: Vec<Job<'_>> = raw.iter().map(|j| unsafe { Job::from_raw(j) }).collect();
            for (i, answer) in batch.batch_run(&jobs)?.into_iter().enumerate() {
                match answer {
                    Ok(outcome) => outcome.lend(|raw| (reply.outcome)(reply.ctx, i, raw)),
                    Err(e) => staged(e, Stage::Run).lend(|raw| (reply.error)(reply.ctx, i, raw)),
                }
            }
            Ok(None::<()>)
        });
    }

    pub fn evolve_state(this: *mut c_void, state: *const RawEvolution, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Run, || {
            // SAFETY: the host passes a live executor and lends state and reply for the length of this call.
            let (executor, state, reply) = unsafe { (executor(this), Evolution::from_raw(&*state), &*reply) };
            let Some(evolver) = executor.evolver() else {
                return Err(Error::new(ErrorCode::Contract, "this executor has no evolve_state"));
            };
            let amplitudes = evolver.evolve_state(&state)?;
            (reply.amplitudes)(reply.ctx, amplitudes.as_ptr(), amplitudes.len());
            Ok(None::<()>)
        });
    }

    /// `schema` is the vendor's function from the name of an entry to its JSON schema.
    pub fn config_schema(schema: fn(&str) -> Option<String>, entry: *const RawStr, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Describe, || {
            // SAFETY: the host lends entry and reply for the length of this call.
            let (entry, reply) = unsafe { (text(*entry), &*reply) };
            if let Some(json) = schema(entry) {
                (reply.schema)(reply.ctx, RawStr::new(&json));
            }
            Ok(None::<()>)
        });
    }

    pub fn cancel(this: *mut c_void, job_id: *const RawStr, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Cancel, || {
            // SAFETY: the host passes a live executor and lends the id for the length of this call.
            let (executor, id) = unsafe { (executor(this), text(*job_id)) };
            if let Some(hook) = executor.canceller() {
                hook.cancel(id);
            }
            Ok(None::<()>)
        });
    }

    pub fn shutdown(this: *mut c_void, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Shutdown, || {
            // SAFETY: the host passes a live executor.
            unsafe { executor(this) }.shutdown();
            Ok(None::<()>)
        });
    }

    pub fn destroy(this: *mut c_void, reply: *const RawReply) {
        guard(reply, WHOLE_CALL, Stage::Shutdown, || {
            // SAFETY: the pointer came from `create` and the host gives it up with this call.
            drop(unsafe { Box::from_raw(this.cast::<Boxed>()) });
            Ok(None::<()>)
        });
    }

    fn staged(error: Error, stage: Stage) -> Error {
        if error.stage == Stage::Other { error.at(stage) } else { error }
    }

    /// Runs vendor code; its error or panic becomes the reply for `index`.
    fn guard<T>(
        reply: *const RawReply,
        index: usize,
        stage: Stage,
        body: impl FnOnce() -> Result<Option<T>, Error>,
    ) -> Option<T> {
        let error = match catch_unwind(AssertUnwindSafe(body)) {
            Ok(Ok(value)) => return value,
            Ok(Err(error)) => staged(error, stage),
            Err(payload) => {
                let text = format!("the plugin panicked: {}", panic_text(payload));
                Error::new(ErrorCode::Panic, text).at(stage)
            }
        };
        // SAFETY: the host lends a valid reply for the length of the call.
        let reply = unsafe { &*reply };
        error.lend(|raw| (reply.error)(reply.ctx, index, raw));
        None
    }

    /// The panic's message. Dropping a payload may panic in turn; such a one is leaked.
    fn panic_text(payload: Box<dyn Any + Send>) -> String {
        let text = if let Some(s) = payload.downcast_ref::<&str>() {
            (*s).to_string()
        } else if let Some(s) = payload.downcast_ref::<String>() {
            s.clone()
        } else {
            "(no message)".to_string()
        };
        if let Err(second) = catch_unwind(AssertUnwindSafe(move || drop(payload))) {
            std::mem::forget(second);
        }
        text
    }
}

/// Exports executors from a `cdylib`. Use it once per library.
///
/// ```ignore
/// export_executor! {
///     kind: Hardware,                       // Hardware, Simulator or Test
///     vendor: "Acme",
///     entries: { create_executor => create }, // name in `executor_factory` => fn(&Context) -> Result<impl Executor, Error>
///     isolation: Required,                  // optional: it runs only in a separate process
///     config_schema: schema,                // optional: fn(entry: &str) -> Option<String>
/// }
/// ```
///
/// With `isolation: Required` the host starts a process for the plugin whatever the operator has set: see
/// [`crate::descriptor::Isolation`].
///
/// `config_schema` returns the JSON schema of the device config, which the host checks the file against before it
/// calls the factory. Keys with `"writeOnly": true` are secrets: the host shows their values nowhere.
///
/// Name and version are those of the crate. It writes the descriptor into the library's
/// `.coda_executor` section and exports the root module; nothing that the factory or the executor does
/// can unwind out of it.
#[macro_export]
macro_rules! export_executor {
    (kind: $kind:ident, vendor: $vendor:expr, entries: { $first:ident => $first_fn:expr $(, $entry:ident => $factory:expr)* $(,)? } $(, isolation: $isolation:ident)? $(, config_schema: $schema:expr)? $(,)?) => {
        #[doc(hidden)]
        pub mod __coda_export {
            #[allow(unused_imports)]
            use super::*;
            use $crate::abi_stable::prefix_type::WithMetadata;
            use $crate::abi_stable::library::{CheckTypeLayout, LibHeader, RootModuleResult};
            use $crate::raw::{CreateArg, EvolutionArg, Gate, JobArg, ReplyArg, TextArg};
            use ::std::ffi::c_void;

            #[used]
            #[unsafe(no_mangle)]
            #[unsafe(link_section = ".coda_executor")]
            pub static CODA_EXECUTOR_DESCRIPTOR: $crate::descriptor::RawDescriptor =
                $crate::descriptor::RawDescriptor::for_rust(
                    $crate::descriptor::Kind::$kind,
                    $vendor,
                    env!("CARGO_PKG_NAME"),
                    env!("CARGO_PKG_VERSION"),
                    concat!(stringify!($first) $(, ",", stringify!($entry))*),
                )$(.with_isolation($crate::descriptor::Isolation::$isolation))?;

            // Apart from the functions below, whose names the vendor's factories may have too.
            mod entries {
                #[allow(unused_imports)]
                use super::super::*;

                pub const ENTRIES: &[$crate::glue::Entry] = &[
                    (stringify!($first), |ctx| Ok(::std::boxed::Box::new($first_fn(ctx)?))),
                    $((stringify!($entry), |ctx| Ok(::std::boxed::Box::new($factory(ctx)?))),)*
                ];

                #[allow(unused_mut, unused_assignments)]
                pub fn __coda_config_schema(entry: &str) -> ::std::option::Option<::std::string::String> {
                    let mut of_entry: fn(&str) -> ::std::option::Option<::std::string::String> = |_| None;
                    $(of_entry = $schema;)?
                    of_entry(entry)
                }
            }

            extern "C" fn layout(_: Gate) {}
            extern "C" fn create(request: CreateArg, reply: ReplyArg) -> *mut c_void {
                $crate::glue::create(entries::ENTRIES, request.as_ptr(), reply.as_ptr())
            }
            extern "C" fn device(this: *mut c_void, reply: ReplyArg) {
                $crate::glue::device(this, reply.as_ptr())
            }
            extern "C" fn run(this: *mut c_void, job: JobArg, reply: ReplyArg) {
                $crate::glue::run(this, job.as_ptr(), reply.as_ptr())
            }
            extern "C" fn batch_run(
                this: *mut c_void,
                jobs: JobArg,
                len: usize,
                reply: ReplyArg,
            ) {
                $crate::glue::batch_run(this, jobs.as_ptr(), len, reply.as_ptr())
            }
            extern "C" fn cancel(this: *mut c_void, id: TextArg, reply: ReplyArg) {
                $crate::glue::cancel(this, id.as_ptr(), reply.as_ptr())
            }
            extern "C" fn shutdown(this: *mut c_void, reply: ReplyArg) {
                $crate::glue::shutdown(this, reply.as_ptr())
            }
            extern "C" fn destroy(this: *mut c_void, reply: ReplyArg) {
                $crate::glue::destroy(this, reply.as_ptr())
            }

            extern "C" fn evolve_state(this: *mut c_void, state: EvolutionArg, reply: ReplyArg) {
                $crate::glue::evolve_state(this, state.as_ptr(), reply.as_ptr())
            }
            extern "C" fn config_schema(entry: TextArg, reply: ReplyArg) {
                $crate::glue::config_schema(entries::__coda_config_schema, entry.as_ptr(), reply.as_ptr())
            }

            const MODULE: &WithMetadata<$crate::ExecutorModule> = &WithMetadata::new($crate::ExecutorModule {
                layout,
                create,
                device,
                run,
                batch_run,
                cancel,
                shutdown,
                destroy,
                evolve_state,
                config_schema,
            });

            extern "C" fn load() -> RootModuleResult {
                $crate::abi_stable::library::__call_root_module_loader(|| {
                    $crate::ExecutorModuleRef(MODULE.static_as_prefix())
                })
            }

            // The name is `ROOT_MODULE_SYMBOL`, under which abi_stable looks.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            pub static ROOT_MODULE: LibHeader =
                // SAFETY: `load` returns the erased form of an `ExecutorModuleRef`.
                unsafe { LibHeader::from_constructor::<$crate::ExecutorModuleRef>(load, CheckTypeLayout::Yes) };
        }
    };
}
