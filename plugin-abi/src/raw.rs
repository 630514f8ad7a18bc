//! The memory layout of everything that crosses the boundary, the same for both bindings.
//!
//! `include/coda_executor.h` mirrors this file line by line; a test compiles the header and compares
//! sizes and offsets. Rules:
//! - Structs that may grow begin with `size`, the number of bytes that the lender knows; a reader uses no
//!   field beyond it. Fields are only ever appended.
//! - Text is UTF-8 with a length, not NUL-terminated. A null pointer is legal when the length is 0.
//! - Everything is lent for the length of the call it is passed to, unless said otherwise.
//! - Enumerations are plain integers, so that an unknown value can be reported instead of being undefined.

use std::ffi::c_void;

use abi_stable::StableAbi;

/// Borrowed UTF-8 text.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawStr {
    pub ptr: *const u8,
    pub len: usize,
}

impl RawStr {
    pub const fn new(text: &str) -> RawStr {
        RawStr { ptr: text.as_ptr(), len: text.len() }
    }

    /// The bytes lent, whatever they are.
    ///
    /// # Safety
    /// `ptr` must be valid for `len` bytes for the lifetime `'a`, or `len` must be 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.len == 0 || self.ptr.is_null() {
            return &[];
        }
        // SAFETY: the caller vouches for pointer and length.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

/// One native gate, 16 bytes. `kind` is one of the `gate_kind` codes; unused qubits and `reserved` are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, StableAbi)]
pub struct Gate {
    pub kind: u16,
    pub q0: u16,
    pub q1: u16,
    pub reserved: u16,
    /// Angle in radians, or for `id` a duration in nanoseconds; 0 when the gate takes no parameter.
    pub param: f64,
}

/// Codes of [`Gate::kind`].
pub mod gate_kind {
    pub const RX: u16 = 1;
    pub const RY: u16 = 2;
    pub const RZ: u16 = 3;
    pub const X90: u16 = 4;
    pub const Y_MINUS_90: u16 = 5;
    pub const VIRTUAL_Z: u16 = 6;
    pub const ID: u16 = 7;
    pub const CZ: u16 = 32;
    pub const ISWAP: u16 = 33;
    pub const CP: u16 = 34;
    pub const CNOT: u16 = 35;
}

/// Codes of the native gate sets (`RawProgram::target`, `RawDevice::targets`).
pub mod target {
    pub const CZ: u16 = 1;
    pub const ISWAP: u16 = 2;
    pub const PCZ: u16 = 3;
    pub const CNOT: u16 = 4;
}

/// A validated circuit. Lent by the host for the length of `run` or `batch_run`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawProgram {
    pub size: usize,
    pub target: u16,
    pub num_qubits: u16,
    pub optimization_level: u32,
    pub gates: *const Gate,
    pub gates_len: usize,
    /// Character `i` of a counts key is the outcome of qubit `measurements[i]`.
    pub measurements: *const u16,
    pub measurements_len: usize,
    pub source_hash: RawStr,
    pub compiled_at: RawStr,
    pub compiler_version: RawStr,
}

/// One job of a `run` or `batch_run`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawJob {
    pub size: usize,
    pub job_id: RawStr,
    pub program: *const RawProgram,
    /// 1 to 2^31-1.
    pub shots: u32,
    pub reserved: u32,
    pub host: *const RawHost,
}

/// What the host lends: thread-safe, never blocks, and valid as long as the struct it came in
/// (for `create`: until the executor is dropped). Afterwards its functions do nothing but log the misuse, and `is_cancelled`
/// is 1.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawHost {
    pub size: usize,
    pub ctx: *mut c_void,
    /// Whether a message of this level (1 error .. 5 trace) would be kept.
    pub log_enabled: extern "C" fn(ctx: *mut c_void, level: u32) -> u32,
    pub log: extern "C" fn(ctx: *mut c_void, level: u32, text: RawStr),
    /// `done` of `total` in units of the plugin's choice; 0 `total` when unknown.
    pub progress: extern "C" fn(ctx: *mut c_void, done: u64, total: u64),
    /// 1 when the job was cancelled and its result will be thrown away.
    pub is_cancelled: extern "C" fn(ctx: *mut c_void) -> u32,
    /// Since 1.1: the present value of a quantity of the plugin's own, shown in the host's metrics.
    pub gauge: extern "C" fn(ctx: *mut c_void, name: RawStr, value: f64),
}

/// A complex number. The state of `n` qubits is `2^n` of them; bit `k` of an index is the value of qubit `k`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amplitude {
    pub re: f64,
    pub im: f64,
}

/// One step of `evolve_state`: a unitary 2x2 matrix on one qubit, where every qubit of `controls` is 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Operation {
    /// Bit `k` set: qubit `k` controls. 0 for none; never the target.
    pub controls: u64,
    pub target: u32,
    pub reserved: u32,
    /// Row by row: `<0|U|0>`, `<0|U|1>`, `<1|U|0>`, `<1|U|1>`.
    pub matrix: [Amplitude; 4],
}

/// What `evolve_state` is given. Lent by the host for the length of the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawEvolution {
    pub size: usize,
    pub job_id: RawStr,
    pub num_qubits: u32,
    pub reserved: u32,
    /// `2^num_qubits` of them, finite, of norm 1.
    pub amplitudes: *const Amplitude,
    pub amplitudes_len: usize,
    /// In order; qubits are in range and distinct, numbers finite.
    pub operations: *const Operation,
    pub operations_len: usize,
    pub host: *const RawHost,
}

/// How often a bit string was observed.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCount {
    pub bits: RawStr,
    pub count: i64,
}

/// A finished run, lent by the plugin for the length of the reply.
#[repr(C)]
pub struct RawOutcome {
    pub size: usize,
    pub counts: *const RawCount,
    pub counts_len: usize,
    /// Milliseconds on the hardware, when `has_execution_time` is 1.
    pub execution_time_ms: f64,
    /// Shots that were executed, when `has_shots_completed` is 1.
    pub shots_completed: i64,
    pub has_execution_time: u32,
    pub has_shots_completed: u32,
}

/// A failure, lent by the plugin for the length of the reply. Codes: [`crate::ErrorCode`], [`crate::Stage`].
#[repr(C)]
pub struct RawError {
    pub size: usize,
    pub code: u32,
    pub stage: u32,
    /// 1 when the same job may succeed when it is sent again.
    pub retryable: u32,
    pub reserved: u32,
    pub text: RawStr,
}

/// Two qubits that can interact; for a directed device `[control, target]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawEdge {
    pub a: u16,
    pub b: u16,
}

/// Codes of [`RawDevice::connectivity`].
pub mod connectivity {
    /// The device reports none; nothing is sent to the cloud.
    pub const UNKNOWN: u32 = 0;
    pub const UNDIRECTED: u32 = 1;
    pub const DIRECTED: u32 = 2;
}

/// Bits of [`RawDevice::hooks`].
pub mod hook {
    pub const BATCH_RUN: u32 = 1;
    pub const CANCEL: u32 = 2;
    /// Since 1.1.
    pub const EVOLVE_STATE: u32 = 4;
}

/// What the executor says of its device, lent by the plugin for the length of the reply.
#[repr(C)]
pub struct RawDevice {
    pub size: usize,
    pub name: RawStr,
    pub num_qubits: u32,
    /// How many runs the device takes at the same time (1 or more).
    pub slots: u32,
    /// Most shots per job, 0 for no limit of its own.
    pub max_shots: u32,
    pub connectivity: u32,
    pub hooks: u32,
    pub reserved: u32,
    pub targets: *const u16,
    pub targets_len: usize,
    pub edges: *const RawEdge,
    pub edges_len: usize,
    /// Since 1.1: most qubits of an `evolve_state`, when that hook is offered.
    pub evolve_qubits: u32,
    pub reserved2: u32,
}

/// Where a call's answers go. The functions copy what they are given before they return. A further answer to a job fails
/// it; what comes after the call has returned is logged and has no effect.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawReply {
    pub size: usize,
    pub ctx: *mut c_void,
    /// The result of job `index` of the call (0 for `run`).
    pub outcome: extern "C" fn(ctx: *mut c_void, index: usize, outcome: *const RawOutcome),
    /// The failure of job `index`, or of the whole call with `WHOLE_CALL`.
    pub error: extern "C" fn(ctx: *mut c_void, index: usize, error: *const RawError),
    /// The answer to `device`.
    pub device: extern "C" fn(ctx: *mut c_void, device: *const RawDevice),
    /// Since 1.1: the answer to `evolve_state`, as many as were given.
    pub amplitudes: extern "C" fn(ctx: *mut c_void, amplitudes: *const Amplitude, len: usize),
    /// Since 1.1: the answer to `config_schema`, a JSON schema.
    pub schema: extern "C" fn(ctx: *mut c_void, json: RawStr),
}

/// Index of a [`RawReply::error`] that concerns the call, not one job of it.
pub const WHOLE_CALL: usize = usize::MAX;

/// What the factory is given. Lent for the length of `create`, except `host`.
#[repr(C)]
pub struct RawCreate {
    pub size: usize,
    /// Name of the factory, from `executor_factory: <library>:<entry>`.
    pub entry: RawStr,
    /// Absolute path of the device config, empty when there is none.
    pub config_path: RawStr,
    /// Its text.
    pub config_text: RawStr,
    /// The gate set the QPU is registered with (`cz`, ...).
    pub native_gate_set: RawStr,
    pub num_qubits: u32,
    pub reserved: u32,
    pub host: *const RawHost,
}

/// The symbol that a plugin of the C binding exports: `extern "C" fn() -> *const RawApi`.
pub const C_ENTRY_SYMBOL: &str = "coda_executor_entry";

/// The function table of the C binding, `coda_executor_api`; static, functions are only ever appended.
/// What is null is not offered: `batch_run`, `cancel`, `shutdown`, `evolve_state` and `config_schema` may be, the
/// others must be there.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawApi {
    pub size: usize,
    pub api_major: u16,
    pub api_minor: u16,
    pub reserved: u32,
    pub create: Option<unsafe extern "C" fn(*const RawCreate, *const RawReply) -> *mut c_void>,
    pub device: Option<unsafe extern "C" fn(*mut c_void, *const RawReply)>,
    pub run: Option<unsafe extern "C" fn(*mut c_void, *const RawJob, *const RawReply)>,
    pub batch_run: Option<unsafe extern "C" fn(*mut c_void, *const RawJob, usize, *const RawReply)>,
    pub cancel: Option<unsafe extern "C" fn(*mut c_void, *const RawStr, *const RawReply)>,
    pub shutdown: Option<unsafe extern "C" fn(*mut c_void, *const RawReply)>,
    pub destroy: Option<unsafe extern "C" fn(*mut c_void, *const RawReply)>,
    /// Since 1.1.
    pub evolve_state: Option<unsafe extern "C" fn(*mut c_void, *const RawEvolution, *const RawReply)>,
    /// Since 1.1; called without an executor, with the name of an entry.
    pub config_schema: Option<unsafe extern "C" fn(*const RawStr, *const RawReply)>,
}

macro_rules! lent {
    ($($(#[$meta:meta])* $name:ident => $raw:ty,)*) => { $(
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy, StableAbi)]
        pub struct $name(*const c_void);

        impl $name {
            pub fn new(value: &$raw) -> Self {
                let ptr: *const $raw = value;
                $name(ptr.cast())
            }

            pub fn as_ptr(self) -> *const $raw {
                self.0.cast()
            }
        }
    )* };
}

// Pointers to lent structs that may grow: abi_stable checks the pointer's type by name, `size` the rest.
lent! {
    CreateArg => RawCreate,
    /// The first of one or more jobs.
    JobArg => RawJob,
    ReplyArg => RawReply,
    TextArg => RawStr,
    EvolutionArg => RawEvolution,
}

impl JobArg {
    /// For `batch_run`.
    pub fn slice(jobs: &[RawJob]) -> JobArg {
        JobArg(jobs.as_ptr().cast())
    }
}
