//! Pure: OpenQASM 2 and 3: a circuit as a list of operations that every peer understands, and the parameters of one
//! statement as a peer reads them.
//!
//! A subset, and bounded: registers, aliases and slices of them, qubits of the hardware, the gates of `qelib1.inc` and
//! `stdgates.inc` and the operations of the public dialect (built in: no file is ever read), gate definitions, `ctrl`,
//! `negctrl`, `inv` and `pow`, static loops, constants and inputs, broadcast over registers, `barrier`, measurement.
//! What would need an answer in the middle of a run (`if`, a `reset` of a used qubit, gates behind a measurement) is
//! refused: measuring never collapses the state that is handed on. The parser is our own, because none that exists is
//! safe on untrusted text.
//!
//! ```text
//! text ─ lexer ─> tokens ─ parser, operands ─> statements ─ circuit ─> [CircuitOperation { raw_text, service, qubits }]
//!                            │                                 └─ selection, expand, power, gates
//!                            └─ expression, declarations
//! ```

use std::collections::BTreeMap;

mod budget;
mod circuit;
mod declarations;
mod expand;
mod expression;
mod gates;
mod lexer;
mod operands;
mod parser;
mod power;
mod program;
mod selection;

pub use expression::statement_parameters;

/// Most qubits of a circuit: a state of more can't be sent.
pub const MAX_QUBITS: u32 = 20;
/// Most operations after expansion.
pub const MAX_OPERATIONS: usize = 20_000;
/// Longest source.
pub const MAX_SOURCE: usize = 1 << 20;

/// Why a source can't be used, with the position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct CircuitError {
    pub line: u32,
    pub column: u32,
    pub message: String,
    /// The value of an input is missing or wrong; the position is that of its declaration.
    pub is_input: bool,
}

/// One operation as it is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct CircuitOperation {
    pub service: &'static str,
    pub qubits: Vec<u32>,
    pub raw_text: String,
}

/// A measured qubit, and the classical bit that has its outcome, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredBit {
    pub qubit: u32,
    pub bit: Option<String>,
}

/// A circuit as it is run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Circuit {
    pub qubits: u32,
    pub operations: Vec<CircuitOperation>,
    /// Measured qubits, in the order of the source.
    pub measured: Vec<u32>,
    /// Measured bits: in the order of the registers' declarations, then qubits that are measured into no bit.
    pub bits: Vec<MeasuredBit>,
    /// Names of the inputs.
    pub inputs: Vec<String>,
}

/// Reads a source without inputs.
///
/// # Errors
/// When the source is not valid or uses what peers can't run. The error has the position.
pub fn parse(source: &str) -> Result<Circuit, CircuitError> {
    parse_with_inputs(source, &BTreeMap::new())
}

/// Reads a source, with the values of its inputs. More values may be given than it has inputs.
///
/// # Errors
/// Those of [`parse`], and when the value of an input is missing or does not fit its type.
pub fn parse_with_inputs(source: &str, inputs: &BTreeMap<String, f64>) -> Result<Circuit, CircuitError> {
    parser::parse(source, inputs)
}
