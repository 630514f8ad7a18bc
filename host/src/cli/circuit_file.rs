//! A circuit from a file or from standard input.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use coda_plugin_abi::Program;

use crate::error::{Explain, exit};

/// Why a circuit can't be used.
#[derive(Debug, thiserror::Error)]
#[error("the circuit {} can't be used: {reason}", path.display())]
pub struct CircuitFileError {
    pub path: PathBuf,
    pub reason: String,
}

impl CircuitFileError {
    pub fn new(path: &Path, reason: impl ToString) -> CircuitFileError {
        CircuitFileError { path: path.to_path_buf(), reason: reason.to_string() }
    }
}

impl Explain for CircuitFileError {
    fn code(&self) -> &'static str {
        "circuit"
    }

    fn hint(&self) -> Option<String> {
        Some("give a file of NativeGateIR 1.0, such as tests/circuits/bell.json".into())
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Reads the content of a circuit file; `-` is standard input.
///
/// # Errors
/// The file can't be read.
pub fn read(path: &Path) -> Result<Vec<u8>, CircuitFileError> {
    let content = match path == Path::new("-") {
        true => {
            let mut content = Vec::new();
            std::io::stdin().read_to_end(&mut content).map(|_| content)
        }
        false => std::fs::read(path),
    };
    content.map_err(|e| CircuitFileError::new(path, e))
}

/// Parses a circuit of NativeGateIR.
///
/// # Errors
/// The content is not a valid NativeGateIR program.
pub fn parse(path: &Path, json: &[u8]) -> Result<Program, CircuitFileError> {
    Program::parse(json).map_err(|e| CircuitFileError::new(path, e))
}
