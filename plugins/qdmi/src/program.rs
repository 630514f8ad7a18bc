//! A circuit as text: OpenQASM 3, OpenQASM 2 or IQM's JSON.
//!
//! Contract: pure. One classical register `c` has a bit for each distinct measured qubit, in ascending order of qubits;
//! all measurements come after all gates. Texts end in exactly one NUL. Numbers are the shortest decimals that read back.

use std::fmt::Write as _;

use coda_plugin_abi::Gate;
use serde_json::json;

use crate::config::{Addressing, Format};
use crate::gates::{Dialect, Step};

/// The circuit of a job.
#[derive(Debug, Clone, Copy)]
pub struct Circuit<'a> {
    pub num_qubits: u16,
    pub gates: &'a [Gate],
    /// The distinct measured qubits, ascending.
    pub measured: &'a [u16],
}

/// How the device's qubits are named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// `INDEX` of each qubit's site.
    pub indices: Vec<usize>,
    /// `NAME` of each qubit's site; empty where a site has none.
    pub names: Vec<String>,
    /// Width of a register whose qubits are the device's sites; `None` on a device with more than 50.
    pub register_width: Option<u16>,
}

/// How programs are written for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Form {
    pub format: Format,
    pub addressing: Addressing,
    pub dialect: Dialect,
    pub layout: Layout,
}

/// The distinct qubits of a list of measurements, ascending.
pub fn distinct(measurements: &[u16]) -> Vec<u16> {
    let mut measured = measurements.to_vec();
    measured.sort_unstable();
    measured.dedup();
    measured
}

/// Writes the program.
///
/// # Errors
/// When the device lacks a qubit or this plugin a gate.
pub fn write(circuit: &Circuit<'_>, form: &Form) -> Result<Vec<u8>, String> {
    let device = form.layout.indices.len();
    if usize::from(circuit.num_qubits) > device {
        return Err(format!("the circuit has {} qubits, the device has {device}", circuit.num_qubits));
    }
    let text = match form.format {
        Format::Qasm3 => qasm3(circuit, form)?,
        Format::Qasm2 => qasm2(circuit, form)?,
        Format::IqmJson => iqm_json(circuit, form)?,
    };
    Ok((text + "\0").into_bytes())
}

/// Width of the register `q`, where the program has one.
fn register_width(circuit: &Circuit<'_>, form: &Form) -> u16 {
    form.layout.register_width.unwrap_or(circuit.num_qubits).max(circuit.num_qubits)
}

fn qasm3(circuit: &Circuit<'_>, form: &Form) -> Result<String, String> {
    let mut out = String::from("OPENQASM 3.0;\ninclude \"stdgates.inc\";\n");
    let physical = form.addressing == Addressing::Physical;
    if !physical {
        line(&mut out, format_args!("qubit[{}] q;", register_width(circuit, form)));
    }
    line(&mut out, format_args!("bit[{}] c;", circuit.measured.len()));
    let qubit = |q: u16| match physical {
        true => format!("${}", form.layout.indices[usize::from(q)]),
        false => format!("q[{q}]"),
    };
    form.dialect.write(circuit.num_qubits, circuit.gates, "cp", &mut |step| gate(&mut out, &step, &qubit))?;
    for (bit, q) in circuit.measured.iter().enumerate() {
        line(&mut out, format_args!("c[{bit}] = measure {};", qubit(*q)));
    }
    Ok(out)
}

fn qasm2(circuit: &Circuit<'_>, form: &Form) -> Result<String, String> {
    let mut out = String::from("OPENQASM 2.0;\ninclude \"qelib1.inc\";\n");
    line(&mut out, format_args!("qreg q[{}];", register_width(circuit, form)));
    line(&mut out, format_args!("creg c[{}];", circuit.measured.len()));
    let qubit = |q: u16| format!("q[{q}]");
    // The standard library of OpenQASM 2 has this gate by its older name.
    form.dialect.write(circuit.num_qubits, circuit.gates, "cu1", &mut |step| {
        let name = if step.name == "cp" { "cu1" } else { step.name };
        gate(&mut out, &step.renamed(name), &qubit);
    })?;
    for (bit, q) in circuit.measured.iter().enumerate() {
        line(&mut out, format_args!("measure {} -> c[{bit}];", qubit(*q)));
    }
    Ok(out)
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String never fails.
    out.write_fmt(text).ok();
    out.push('\n');
}

fn gate(out: &mut String, step: &Step<'_>, qubit: &dyn Fn(u16) -> String) {
    out.push_str(step.name);
    for (n, angle) in step.angles().iter().enumerate() {
        out.push(if n == 0 { '(' } else { ',' });
        out.push_str(&number(*angle));
    }
    if !step.angles().is_empty() {
        out.push(')');
    }
    out.push(' ');
    out.push_str(&qubit(step.qubits.0));
    if let Some(second) = step.qubits.1 {
        out.push_str(", ");
        out.push_str(&qubit(second));
    }
    out.push_str(";\n");
}

/// The shortest decimal that reads back, with a point, which OpenQASM 2 demands before an exponent too.
fn number(value: f64) -> String {
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        _ => text,
    }
}

fn iqm_json(circuit: &Circuit<'_>, form: &Form) -> Result<String, String> {
    let name = |q: u16| form.layout.names[usize::from(q)].as_str();
    let mut instructions = Vec::new();
    form.dialect.write(circuit.num_qubits, circuit.gates, "cp", &mut |step| {
        let locus: Vec<&str> = [Some(step.qubits.0), step.qubits.1].into_iter().flatten().map(name).collect();
        let args = match step.angles() {
            [angle, phase] => json!({"angle": angle, "phase": phase}),
            _ => json!({}),
        };
        instructions.push(json!({"name": step.name, "locus": locus, "args": args}));
    })?;
    // One instruction for all qubits: the order of several keys would be the server's.
    let locus: Vec<&str> = circuit.measured.iter().map(|q| name(*q)).collect();
    instructions.push(json!({"name": "measure", "locus": locus, "args": {"key": "m"}}));
    Ok(json!({"name": "coda", "instructions": instructions, "metadata": {}}).to_string())
}

#[cfg(test)]
mod tests {
    use coda_plugin_abi::{GateKind, Target};

    use super::*;
    use crate::gates;

    fn form(format: Format, operations: &str, indices: &[usize]) -> Form {
        let operations: Vec<String> = operations.split_whitespace().map(String::from).collect();
        let dialect = match format {
            Format::IqmJson => Dialect::iqm(),
            _ => gates::choose(&operations, None).unwrap().1,
        };
        let names = indices.iter().map(|i| format!("QB{}", i + 1)).collect();
        let layout = Layout { indices: indices.to_vec(), names, register_width: Some(5) };
        Form { format, addressing: Addressing::Physical, dialect, layout }
    }

    fn written(gates: &[Gate], measured: &[u16], form: &Form) -> String {
        let text = write(&Circuit { num_qubits: 3, gates, measured }, form).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert_eq!(text.find('\0'), Some(text.len() - 1), "one NUL, at the end");
        text.trim_end_matches('\0').to_string()
    }

    fn gates() -> Vec<Gate> {
        vec![
            Gate::one(GateKind::Ry, 0, 1.5),
            Gate::one(GateKind::Rz, 1, -1e-9),
            Gate::one(GateKind::Id, 1, 100.0),
            Gate::two(GateKind::Cz, 0, 2, 0.0),
        ]
    }

    #[test]
    fn openqasm_3_names_sites_by_their_index() {
        let text = written(&gates(), &[0, 2], &form(Format::Qasm3, "rx ry rz cz", &[4, 7, 1]));
        let wants = "OPENQASM 3.0;\ninclude \"stdgates.inc\";\nbit[2] c;\n\
                     ry(1.5) $4;\nrz(-1.0e-9) $7;\ncz $4, $1;\nc[0] = measure $4;\nc[1] = measure $1;\n";
        assert_eq!(text, wants);
    }

    #[test]
    fn a_register_is_as_wide_as_the_device_or_else_as_the_circuit() {
        let mut form = form(Format::Qasm3, "rx ry rz cz", &[4, 7, 1]);
        form.addressing = Addressing::Register;
        let text = written(&gates(), &[2], &form);
        assert!(text.contains("qubit[5] q;\nbit[1] c;\nry(1.5) q[0];\n"), "{text}");
        assert!(text.ends_with("cz q[0], q[2];\nc[0] = measure q[2];\n"), "{text}");
        form.layout.register_width = None;
        assert!(written(&gates(), &[2], &form).contains("qubit[3] q;"));
    }

    #[test]
    fn openqasm_2_has_registers_and_its_own_names() {
        let text = written(&gates(), &[0, 2], &form(Format::Qasm2, "rx ry rz cz", &[0, 1, 2]));
        let wants = "OPENQASM 2.0;\ninclude \"qelib1.inc\";\nqreg q[5];\ncreg c[2];\n\
                     ry(1.5) q[0];\nrz(-1.0e-9) q[1];\ncz q[0], q[2];\n\
                     measure q[0] -> c[0];\nmeasure q[2] -> c[1];\n";
        assert_eq!(text, wants);
        let cp = [Gate::two(GateKind::Cp, 0, 1, 0.5)];
        for operations in ["rx ry rz cp", "rx ry rz cu1"] {
            let text = written(&cp, &[0], &form(Format::Qasm2, operations, &[0, 1, 2]));
            assert!(text.contains("\ncu1(0.5) q[0], q[1];\n"), "{text}");
        }
        let text = written(&cp, &[0], &form(Format::Qasm3, "rx ry rz cp", &[0, 1, 2]));
        assert!(text.contains("\ncp(0.5) $0, $1;\n"), "{text}");
    }

    #[test]
    fn iqm_json_has_one_measurement_and_frames() {
        let gates = [
            Gate::one(GateKind::Rz, 0, 0.25),
            Gate::one(GateKind::Rx, 0, 1.5),
            Gate::two(GateKind::Cz, 0, 2, 0.0),
        ];
        let text = written(&gates, &[0, 2], &form(Format::IqmJson, "", &[0, 1, 4]));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let wants = json!({"name": "coda", "metadata": {}, "instructions": [
            {"name": "prx", "locus": ["QB1"], "args": {"angle": 1.5, "phase": -0.25}},
            {"name": "cz", "locus": ["QB1", "QB5"], "args": {}},
            {"name": "measure", "locus": ["QB1", "QB5"], "args": {"key": "m"}},
        ]});
        assert_eq!(value, wants);
    }

    #[test]
    fn numbers_read_back_and_have_a_point() {
        for value in
            [0.0, -0.0, 1.0, std::f64::consts::PI, 1e-9, -3.2e-12, 1e22, 0.1 + 0.2, f64::MIN_POSITIVE]
        {
            let text = number(value);
            assert!(text.contains('.'), "{text}");
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits(), "{text}");
        }
    }

    #[test]
    fn a_circuit_that_is_too_large_is_refused() {
        let circuit = Circuit { num_qubits: 4, gates: &[], measured: &[0] };
        let error = write(&circuit, &form(Format::Qasm3, "rx ry rz cz", &[0, 1, 2])).unwrap_err();
        assert_eq!(error, "the circuit has 4 qubits, the device has 3");
    }

    #[test]
    fn measured_qubits_are_distinct_and_ascending() {
        assert_eq!(distinct(&[2, 5, 0, 3, 2]), [0, 2, 3, 5]);
        assert_eq!(distinct(&[]), [0u16; 0]);
        assert!(Target::ALL.len() == 4, "a new target needs rows in the tables of this plugin");
    }
}
