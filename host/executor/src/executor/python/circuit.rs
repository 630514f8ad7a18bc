//! Circuits as NativeGateIR JSON, which the executor's own classes read.

use std::fmt::Write as _;

use coda_plugin_abi::Program;
use coda_plugin_abi::ir::{GateKind, VERSION};

/// Bytes of a gate, roughly.
const GATE_BYTES: usize = 56;

/// A circuit as JSON.
pub fn to_json(program: &Program) -> String {
    let mut out = String::with_capacity(256 + GATE_BYTES * program.gates().len());
    let metadata = program.metadata();
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    // Writing to a String can't fail.
    write!(
        out,
        r#"{{"version":"{VERSION}","target":"{}","num_qubits":{},"gates":["#,
        program.target(),
        program.num_qubits()
    )
    .ok();
    for (index, gate) in program.gates().iter().enumerate() {
        // A circuit has legal gates alone.
        let Some(kind) = GateKind::from_code(gate.kind) else { continue };
        if index > 0 {
            out.push(',');
        }
        write!(out, r#"{{"gate":"{}","qubits":[{}"#, kind.name(), gate.q0).ok();
        if kind.num_qubits() == 2 {
            write!(out, ",{}", gate.q1).ok();
        }
        out.push_str(r#"],"params":["#);
        if kind.num_params() == 1 {
            // The shortest text that reads as the same number.
            write!(out, "{:?}", gate.param).ok();
        }
        out.push_str("]}");
    }
    let measurements: Vec<String> = program.measurements().iter().map(ToString::to_string).collect();
    write!(
        out,
        r#"],"measurements":[{}],"metadata":{{"source_hash":{},"compiled_at":{},"compiler_version":{},"#,
        measurements.join(","),
        quoted(&metadata.source_hash),
        quoted(&metadata.compiled_at),
        quoted(&metadata.compiler_version),
    )
    .ok();
    write!(out, r#""optimization_level":{}}}}}"#, metadata.optimization_level).ok();
    out
}

#[cfg(test)]
mod tests {
    use coda_plugin_abi::ir::Metadata;
    use coda_plugin_abi::{Gate, Target};

    use super::*;

    #[test]
    fn what_is_written_is_read_as_the_same_circuit() {
        let metadata = Metadata {
            source_hash: "a \"b\" \\ \u{1}\u{2028}é".into(),
            compiled_at: "2026-01-01T00:00:00Z".into(),
            compiler_version: "9".into(),
            optimization_level: 3,
        };
        let angles =
            [0.0, -0.0, 1.0, -std::f64::consts::PI, 1e-300, 1e300, f64::MIN_POSITIVE / 3.0, 0.1 + 0.2];
        for target in Target::ALL {
            let mut gates = Vec::new();
            for kind in target.gates() {
                for angle in angles {
                    gates.push(match kind.num_qubits() {
                        1 => Gate::one(*kind, 2, angle),
                        _ => Gate::two(*kind, 0, 1, angle),
                    });
                }
            }
            let program = Program::new(target, 3, gates, [2, 0, 0]).unwrap().with_metadata(metadata.clone());
            let text = to_json(&program);
            assert_eq!(Program::parse(text.as_bytes()).unwrap(), program, "{text}");
        }
        let empty = Program::new(Target::Cz, 1, [], []).unwrap();
        assert_eq!(Program::parse(to_json(&empty).as_bytes()).unwrap(), empty);
    }
}
