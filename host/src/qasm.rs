//! Pure: OpenQASM 2 and 3: a circuit as a list of operations that every peer understands, and the parameters of one
//! statement as a peer reads them.
//!
//! A subset, and bounded: registers, the gates of `qelib1.inc` and `stdgates.inc` (built in: no file is ever read),
//! gate definitions, `ctrl`, `negctrl`, `inv` and whole `pow`, constants, broadcast over registers, `barrier`,
//! measurement. What would need an answer in the middle of a run (`if`, `reset`, loops on measured bits, gates behind
//! a measurement) is refused: measuring never collapses the state that is handed on. The parser is our own, because
//! none that exists is safe on untrusted text.
//!
//! ```text
//! text ─ lexer ─> tokens ─ parser, expand ─> gates ─> [CircuitOperation { raw_text, service, qubits }]
//! ```

mod expand;
mod expression;
mod gates;
mod lexer;
mod parser;

pub use expression::statement_parameters;
pub use parser::parse;

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
}

/// One operation as it is sent.
#[derive(Debug, Clone, PartialEq)]
pub struct CircuitOperation {
    pub service: &'static str,
    pub qubits: Vec<u32>,
    pub raw_text: String,
}

/// A circuit as it is run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Circuit {
    pub qubits: u32,
    pub operations: Vec<CircuitOperation>,
    /// Measured qubits, in the order of the source.
    pub measured: Vec<u32>,
}

#[cfg(test)]
#[path = "qasm_tests.rs"]
mod tests;
