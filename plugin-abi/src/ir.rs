//! NativeGateIR 1.0: the circuit that every job carries.
//!
//! [`Program::parse`] reads the JSON straight into the flat layout of [`crate::raw`] and validates it;
//! nothing else makes a [`Program`], so one that exists is legal: every gate belongs to the target, has its
//! qubits in range and distinct, and its parameter finite. Plugins see it as [`ProgramRef`].

mod json;

use std::fmt;
use std::marker::PhantomData;

pub use crate::raw::Gate;
use crate::raw::{RawProgram, RawStr, gate_kind as k, target as t};

/// The only version of the format.
pub const VERSION: &str = "1.0";
/// Most qubits of a circuit.
pub const MAX_QUBITS: u16 = 50;
const DEFAULT_COMPILER_VERSION: &str = "0.1.0";
const DEFAULT_OPTIMIZATION_LEVEL: u32 = 2;

/// A native gate set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Target {
    Cz,
    Iswap,
    Pcz,
    Cnot,
}

impl Target {
    pub const ALL: [Target; 4] = [Target::Cz, Target::Iswap, Target::Pcz, Target::Cnot];

    pub const fn name(self) -> &'static str {
        match self {
            Target::Cz => "cz",
            Target::Iswap => "iswap",
            Target::Pcz => "pcz",
            Target::Cnot => "cnot",
        }
    }

    pub const fn code(self) -> u16 {
        match self {
            Target::Cz => t::CZ,
            Target::Iswap => t::ISWAP,
            Target::Pcz => t::PCZ,
            Target::Cnot => t::CNOT,
        }
    }

    pub fn from_code(code: u16) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.code() == code)
    }

    pub fn from_name(name: &str) -> Option<Target> {
        Target::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The gates a circuit for this target may use.
    pub const fn gates(self) -> &'static [GateKind] {
        use GateKind::*;
        match self {
            Target::Cz => &[Rx, Ry, Rz, Cz, Id],
            Target::Iswap => &[Rx, Ry, Rz, Iswap, Id],
            Target::Pcz => &[Rx, Ry, Rz, Cp, Id],
            Target::Cnot => &[Rx, Ry, Rz, X90, YMinus90, VirtualZ, Cnot, Id],
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A kind of native gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GateKind {
    Rx,
    Ry,
    Rz,
    X90,
    YMinus90,
    VirtualZ,
    Id,
    Cz,
    Iswap,
    Cp,
    Cnot,
}

impl GateKind {
    pub const ALL: [GateKind; 11] = {
        use GateKind::*;
        [Rx, Ry, Rz, X90, YMinus90, VirtualZ, Id, Cz, Iswap, Cp, Cnot]
    };

    /// Name in the IR, code at the boundary, number of qubits and of parameters.
    const fn facts(self) -> (&'static str, u16, u8, u8) {
        match self {
            GateKind::Rx => ("rx", k::RX, 1, 1),
            GateKind::Ry => ("ry", k::RY, 1, 1),
            GateKind::Rz => ("rz", k::RZ, 1, 1),
            GateKind::X90 => ("x90", k::X90, 1, 0),
            GateKind::YMinus90 => ("y_minus_90", k::Y_MINUS_90, 1, 0),
            GateKind::VirtualZ => ("virtual_z", k::VIRTUAL_Z, 1, 1),
            GateKind::Id => ("id", k::ID, 1, 1),
            GateKind::Cz => ("cz", k::CZ, 2, 0),
            GateKind::Iswap => ("iswap", k::ISWAP, 2, 0),
            GateKind::Cp => ("cp", k::CP, 2, 1),
            GateKind::Cnot => ("cnot", k::CNOT, 2, 0),
        }
    }

    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    pub const fn code(self) -> u16 {
        self.facts().1
    }

    pub const fn num_qubits(self) -> usize {
        self.facts().2 as usize
    }

    pub const fn num_params(self) -> usize {
        self.facts().3 as usize
    }

    pub fn from_code(code: u16) -> Option<GateKind> {
        GateKind::ALL.into_iter().find(|g| g.code() == code)
    }

    pub fn from_name(name: &str) -> Option<GateKind> {
        GateKind::ALL.into_iter().find(|g| g.name() == name)
    }
}

impl fmt::Display for GateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A gate with its operands, for matching. Angles in radians, `duration_ns` in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Op {
    Rx { q: u16, angle: f64 },
    Ry { q: u16, angle: f64 },
    Rz { q: u16, angle: f64 },
    X90 { q: u16 },
    YMinus90 { q: u16 },
    VirtualZ { q: u16, angle: f64 },
    Id { q: u16, duration_ns: f64 },
    Cz { a: u16, b: u16 },
    Iswap { a: u16, b: u16 },
    Cp { a: u16, b: u16, angle: f64 },
    Cnot { control: u16, target: u16 },
}

impl Gate {
    /// A one-qubit gate; `param` is ignored where the kind takes none.
    pub const fn one(kind: GateKind, q: u16, param: f64) -> Gate {
        let param = if kind.num_params() == 1 { param } else { 0.0 };
        Gate { kind: kind.code(), q0: q, q1: 0, reserved: 0, param }
    }

    /// A two-qubit gate, control first; `param` is ignored where the kind takes none.
    pub const fn two(kind: GateKind, a: u16, b: u16, param: f64) -> Gate {
        let param = if kind.num_params() == 1 { param } else { 0.0 };
        Gate { kind: kind.code(), q0: a, q1: b, reserved: 0, param }
    }

    /// The gate for matching; `None` for a kind that this version of the interface doesn't know.
    pub fn op(&self) -> Option<Op> {
        let (q, a, b, angle) = (self.q0, self.q0, self.q1, self.param);
        Some(match self.kind {
            k::RX => Op::Rx { q, angle },
            k::RY => Op::Ry { q, angle },
            k::RZ => Op::Rz { q, angle },
            k::X90 => Op::X90 { q },
            k::Y_MINUS_90 => Op::YMinus90 { q },
            k::VIRTUAL_Z => Op::VirtualZ { q, angle },
            k::ID => Op::Id { q, duration_ns: angle },
            k::CZ => Op::Cz { a, b },
            k::ISWAP => Op::Iswap { a, b },
            k::CP => Op::Cp { a, b, angle },
            k::CNOT => Op::Cnot { control: a, target: b },
            _ => return None,
        })
    }
}

/// Why a circuit is refused. Every message says where; gates count from 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IrError {
    #[error("the circuit is not valid NativeGateIR: {0}")]
    Malformed(String),
    #[error("the circuit lacks '{0}'")]
    Missing(&'static str),
    #[error("version {0:?} is not supported, only \"1.0\"")]
    Version(String),
    #[error("unknown target {0:?}; known are cz, iswap, pcz, cnot")]
    Target(String),
    #[error("num_qubits is {0}, allowed are 1 to 50")]
    NumQubits(String),
    #[error("optimization_level is {0}, allowed are 0 to 3")]
    OptimizationLevel(String),
    #[error("gate {index}: unknown gate {name:?}")]
    UnknownGate { index: usize, name: String },
    #[error("gate {index}: {gate} is not a gate of target {target}")]
    IllegalGate { index: usize, gate: GateKind, target: Target },
    #[error("gate {index}: {gate} takes {expected} qubit(s), {found} given")]
    QubitCount { index: usize, gate: GateKind, expected: usize, found: usize },
    #[error("gate {index}: {gate} takes {expected} parameter(s), {found} given")]
    ParamCount { index: usize, gate: GateKind, expected: usize, found: usize },
    #[error("gate {index}: qubit {qubit} is outside 0..{num_qubits}")]
    QubitRange { index: usize, qubit: String, num_qubits: u16 },
    #[error("gate {index}: {gate} on qubit {qubit} twice")]
    SameQubit { index: usize, gate: GateKind, qubit: u16 },
    #[error("gate {index}: the parameter is {value}, it must be a finite number")]
    NotFinite { index: usize, value: String },
    #[error("measurement {index}: qubit {qubit} is outside 0..{num_qubits}")]
    MeasurementRange { index: usize, qubit: String, num_qubits: u16 },
}

/// A legal circuit, owned.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    target: Target,
    num_qubits: u16,
    gates: Vec<Gate>,
    measurements: Vec<u16>,
    source_hash: String,
    compiled_at: String,
    compiler_version: String,
    optimization_level: u32,
}

/// What a compiler notes about a circuit; nothing that changes what is run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    pub source_hash: String,
    pub compiled_at: String,
    pub compiler_version: String,
    pub optimization_level: u32,
}

impl Program {
    /// Reads NativeGateIR JSON.
    ///
    /// # Errors
    /// For malformed JSON and for every rule of the format that is broken, the first one found.
    pub fn parse(json: &[u8]) -> Result<Program, IrError> {
        json::parse(json)
    }

    /// A circuit from its parts, checked by the same rules as [`Program::parse`].
    ///
    /// # Errors
    /// The first rule of the format that is broken.
    pub fn new(
        target: Target,
        num_qubits: u16,
        gates: impl Into<Vec<Gate>>,
        measurements: impl Into<Vec<u16>>,
    ) -> Result<Program, IrError> {
        let program = Program {
            target,
            num_qubits,
            gates: gates.into(),
            measurements: measurements.into(),
            source_hash: String::new(),
            compiled_at: String::new(),
            compiler_version: DEFAULT_COMPILER_VERSION.into(),
            optimization_level: DEFAULT_OPTIMIZATION_LEVEL,
        };
        program.validate()?;
        Ok(program)
    }

    /// The same circuit with these notes of its compiler.
    pub fn with_metadata(mut self, metadata: Metadata) -> Program {
        let Metadata { source_hash, compiled_at, compiler_version, optimization_level } = metadata;
        (self.source_hash, self.compiled_at) = (source_hash, compiled_at);
        (self.compiler_version, self.optimization_level) = (compiler_version, optimization_level);
        self
    }

    pub fn metadata(&self) -> Metadata {
        Metadata {
            source_hash: self.source_hash.clone(),
            compiled_at: self.compiled_at.clone(),
            compiler_version: self.compiler_version.clone(),
            optimization_level: self.optimization_level,
        }
    }

    fn validate(&self) -> Result<(), IrError> {
        let n = self.num_qubits;
        if n == 0 || n > MAX_QUBITS {
            return Err(IrError::NumQubits(n.to_string()));
        }
        let out = |index, qubit: u16| IrError::QubitRange { index, qubit: qubit.to_string(), num_qubits: n };
        for (index, g) in self.gates.iter().enumerate() {
            let Some(gate) = GateKind::from_code(g.kind) else {
                return Err(IrError::UnknownGate { index, name: format!("code {}", g.kind) });
            };
            if !self.target.gates().contains(&gate) {
                return Err(IrError::IllegalGate { index, gate, target: self.target });
            }
            if g.q0 >= n {
                return Err(out(index, g.q0));
            }
            if gate.num_qubits() == 2 {
                if g.q1 >= n {
                    return Err(out(index, g.q1));
                }
                if g.q0 == g.q1 {
                    return Err(IrError::SameQubit { index, gate, qubit: g.q0 });
                }
            }
            if !g.param.is_finite() {
                return Err(IrError::NotFinite { index, value: g.param.to_string() });
            }
        }
        match self.measurements.iter().position(|q| *q >= n) {
            Some(index) => Err(IrError::MeasurementRange {
                index,
                qubit: self.measurements[index].to_string(),
                num_qubits: n,
            }),
            None => Ok(()),
        }
    }

    pub fn target(&self) -> Target {
        self.target
    }

    pub fn num_qubits(&self) -> u16 {
        self.num_qubits
    }

    pub fn gates(&self) -> &[Gate] {
        &self.gates
    }

    pub fn measurements(&self) -> &[u16] {
        &self.measurements
    }

    /// The form that crosses the boundary. Its pointers are valid while `self` is neither moved from,
    /// changed nor dropped.
    pub fn raw(&self) -> RawProgram {
        RawProgram {
            size: size_of::<RawProgram>(),
            target: self.target.code(),
            num_qubits: self.num_qubits,
            optimization_level: self.optimization_level,
            gates: self.gates.as_ptr(),
            gates_len: self.gates.len(),
            measurements: self.measurements.as_ptr(),
            measurements_len: self.measurements.len(),
            source_hash: RawStr::new(&self.source_hash),
            compiled_at: RawStr::new(&self.compiled_at),
            compiler_version: RawStr::new(&self.compiler_version),
        }
    }
}

/// A legal circuit as a plugin sees it, lent for the length of a run.
#[derive(Clone, Copy)]
pub struct ProgramRef<'a> {
    raw: *const RawProgram,
    life: PhantomData<&'a RawProgram>,
}

// SAFETY: the program is immutable for as long as it is lent.
unsafe impl Send for ProgramRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for ProgramRef<'_> {}

impl<'a> ProgramRef<'a> {
    /// # Safety
    /// `raw` must point to a legal program that is valid for `'a`, with every pointer in it.
    pub(crate) unsafe fn from_raw(raw: *const RawProgram) -> ProgramRef<'a> {
        ProgramRef { raw, life: PhantomData }
    }

    fn get(&self) -> &'a RawProgram {
        // SAFETY: by the contract of `from_raw`. Every field used exists since interface 1.0.
        unsafe { &*self.raw }
    }

    /// The gate set the circuit is written in; `None` for one that a newer host may know.
    pub fn target(&self) -> Option<Target> {
        Target::from_code(self.get().target)
    }

    /// 1 to 50.
    pub fn num_qubits(&self) -> u16 {
        self.get().num_qubits
    }

    /// In execution order.
    pub fn gates(&self) -> &'a [Gate] {
        let p = self.get();
        // SAFETY: by the contract of `from_raw`.
        unsafe { slice(p.gates, p.gates_len) }
    }

    /// Character `i` of a counts key is the outcome of qubit `measurements()[i]`.
    pub fn measurements(&self) -> &'a [u16] {
        let p = self.get();
        // SAFETY: by the contract of `from_raw`.
        unsafe { slice(p.measurements, p.measurements_len) }
    }

    /// 0 to 3, as the compiler noted it.
    pub fn optimization_level(&self) -> u32 {
        self.get().optimization_level
    }

    /// Identifies the source program.
    pub fn source_hash(&self) -> &'a str {
        self.text(self.get().source_hash)
    }

    /// When it was compiled, free text.
    pub fn compiled_at(&self) -> &'a str {
        self.text(self.get().compiled_at)
    }

    pub fn compiler_version(&self) -> &'a str {
        self.text(self.get().compiler_version)
    }

    fn text(&self, raw: RawStr) -> &'a str {
        // SAFETY: by the contract of `from_raw`.
        std::str::from_utf8(unsafe { raw.bytes() }).unwrap_or_default()
    }
}

/// # Safety
/// `ptr` must be valid for `len` values for `'a`, or `len` be 0.
pub(crate) unsafe fn slice<'a, T>(ptr: *const T, len: usize) -> &'a [T] {
    if len == 0 || ptr.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for pointer and length.
    unsafe { std::slice::from_raw_parts(ptr, len) }
}
