//! Every way in which a circuit is refused, with the exact message, and every odd way in which it is not.

use coda_plugin_abi::ir::IrError;
use coda_plugin_abi::{Gate, GateKind, Op, Program, Target};

const METADATA: &str = r#""metadata":{"source_hash":"h","compiled_at":"t"}"#;

fn parse(json: impl AsRef<[u8]>) -> Result<Program, IrError> {
    Program::parse(json.as_ref())
}

/// A circuit of these gates, on three qubits.
fn gates_of(target: &str, gates: &str) -> Result<Program, IrError> {
    parse(format!(
        r#"{{"target":"{target}","num_qubits":3,"gates":[{gates}],"measurements":[0],{METADATA}}}"#
    ))
}

fn gates(gates: &str) -> Result<Program, IrError> {
    gates_of("cz", gates)
}

fn refused(answer: Result<Program, IrError>) -> String {
    answer.expect_err("to be refused").to_string()
}

/// A circuit with one field replaced by this text, or left out when it is empty.
fn with(field: &str, value: &str) -> Result<Program, IrError> {
    let fields = [
        ("target", r#""cz""#),
        ("num_qubits", "3"),
        ("gates", r#"[{"gate":"rx","qubits":[2],"params":[1]}]"#),
        ("measurements", "[2,0]"),
        ("metadata", r#"{"source_hash":"h","compiled_at":"t"}"#),
    ];
    let mut parts: Vec<String> = Vec::new();
    for (name, usual) in fields {
        let value = if name == field { value } else { usual };
        if !value.is_empty() {
            parts.push(format!("\"{name}\":{value}"));
        }
    }
    if !fields.iter().any(|f| f.0 == field) {
        parts.push(format!("\"{field}\":{value}"));
    }
    parse(format!("{{{}}}", parts.join(",")))
}

fn with_metadata(extra: &str) -> Result<Program, IrError> {
    with("metadata", &format!(r#"{{"source_hash":"h","compiled_at":"t",{extra}}}"#))
}

#[test]
fn the_worked_example() {
    let p = parse(
        r#"{"version":"1.0","target":"cz","num_qubits":3,
            "gates":[{"gate":"rx","qubits":[2],"params":[3.141592653589793]},{"gate":"cz","qubits":[0,2]}],
            "measurements":[2,0],
            "metadata":{"source_hash":"abc","compiled_at":"2026-01-01","compiler_version":"9.9","optimization_level":3,"x":1},
            "extra":{"deep":[1,{"a":null}]}}"#,
    )
    .unwrap();
    assert_eq!((p.target(), p.num_qubits(), p.measurements()), (Target::Cz, 3, &[2, 0][..]));
    let ops: Vec<Op> = p.gates().iter().map(|g| g.op().unwrap()).collect();
    assert_eq!(ops, [Op::Rx { q: 2, angle: std::f64::consts::PI }, Op::Cz { a: 0, b: 2 }]);
    assert_eq!(p.raw().optimization_level, 3);
}

#[test]
fn what_may_be_left_out_has_its_default() {
    let p = gates(r#"{"gate":"cz","qubits":[0,1]},{"gate":"cz","qubits":[1,2],"params":[]}"#).unwrap();
    assert_eq!(p.gates().len(), 2);
    assert_eq!(p.raw().optimization_level, 2);
    let raw = p.raw();
    // SAFETY: the program lives, and with it what its raw form points to.
    let version = unsafe { raw.compiler_version.bytes() };
    assert_eq!(version, b"0.1.0");
    let empty = with("gates", "[]").unwrap();
    assert!(empty.gates().is_empty());
    assert!(with("measurements", "[]").unwrap().measurements().is_empty());
    assert_eq!(with("measurements", "[1,1,0,1]").unwrap().measurements(), [1, 1, 0, 1]);
}

#[test]
fn broken_rules_have_exact_messages() {
    let rx = r#"{"gate":"rx","qubits":[0],"params":[1]}"#;
    for (answer, message) in [
        (with("version", r#""2.0""#), r#"version "2.0" is not supported, only "1.0""#),
        (with("target", ""), "the circuit lacks 'target'"),
        (with("num_qubits", ""), "the circuit lacks 'num_qubits'"),
        (with("gates", ""), "the circuit lacks 'gates'"),
        (with("measurements", ""), "the circuit lacks 'measurements'"),
        (with("metadata", ""), "the circuit lacks 'metadata'"),
        (with("metadata", r#"{"compiled_at":"t"}"#), "the circuit lacks 'metadata.source_hash'"),
        (with("metadata", r#"{"source_hash":"h"}"#), "the circuit lacks 'metadata.compiled_at'"),
        (with("target", r#""CZ""#), r#"unknown target "CZ"; known are cz, iswap, pcz, cnot"#),
        (with("num_qubits", "0"), "num_qubits is 0, allowed are 1 to 50"),
        (with("num_qubits", "51"), "num_qubits is 51, allowed are 1 to 50"),
        (with("num_qubits", "-1"), "num_qubits is -1, allowed are 1 to 50"),
        (with("num_qubits", "1e300"), "num_qubits is 1e300, allowed are 1 to 50"),
        (with("num_qubits", "65539"), "num_qubits is 65539, allowed are 1 to 50"),
        (with_metadata(r#""optimization_level":4"#), "optimization_level is 4, allowed are 0 to 3"),
        (with_metadata(r#""optimization_level":-1"#), "optimization_level is -1, allowed are 0 to 3"),
        (gates(&format!(r#"{rx},{{"gate":"h","qubits":[0]}}"#)), r#"gate 1: unknown gate "h""#),
        (gates(r#"{"gate":"RX","qubits":[0],"params":[1]}"#), r#"gate 0: unknown gate "RX""#),
        (
            gates(&format!(r#"{rx},{rx},{{"gate":"cnot","qubits":[0,1]}}"#)),
            "gate 2: cnot is not a gate of target cz",
        ),
        (gates(r#"{"gate":"rx","qubits":[0,1],"params":[1]}"#), "gate 0: rx takes 1 qubit(s), 2 given"),
        (gates(r#"{"gate":"cz","qubits":[]}"#), "gate 0: cz takes 2 qubit(s), 0 given"),
        (gates(r#"{"gate":"cz","qubits":[0,1,2]}"#), "gate 0: cz takes 2 qubit(s), 3 given"),
        (gates(r#"{"gate":"rx","qubits":[0]}"#), "gate 0: rx takes 1 parameter(s), 0 given"),
        (gates(r#"{"gate":"rx","qubits":[0],"params":[1,2]}"#), "gate 0: rx takes 1 parameter(s), 2 given"),
        (gates(r#"{"gate":"cz","qubits":[0,1],"params":[1]}"#), "gate 0: cz takes 0 parameter(s), 1 given"),
        (gates(r#"{"gate":"rx","qubits":[3],"params":[1]}"#), "gate 0: qubit 3 is outside 0..3"),
        (gates(r#"{"gate":"cz","qubits":[0,3]}"#), "gate 0: qubit 3 is outside 0..3"),
        (gates(&format!(r#"{rx},{{"gate":"cz","qubits":[-1,0]}}"#)), "gate 1: qubit -1 is outside 0..3"),
        (gates(r#"{"gate":"rx","qubits":[65536],"params":[1]}"#), "gate 0: qubit 65536 is outside 0..3"),
        (gates(r#"{"gate":"rx","qubits":[1e300],"params":[1]}"#), "gate 0: qubit 1e300 is outside 0..3"),
        (gates(r#"{"gate":"cz","qubits":[1,1]}"#), "gate 0: cz on qubit 1 twice"),
        (with("measurements", "[0,3]"), "measurement 1: qubit 3 is outside 0..3"),
        (with("measurements", "[0,1,-2]"), "measurement 2: qubit -2 is outside 0..3"),
    ] {
        assert_eq!(refused(answer), message);
    }
    let infinite = Gate::one(GateKind::Rx, 0, f64::INFINITY);
    let answer = Program::new(Target::Cz, 1, [infinite], []);
    assert_eq!(refused(answer), "gate 0: the parameter is inf, it must be a finite number");
}

#[test]
fn the_first_broken_gate_is_named() {
    let good = r#"{"gate":"rx","qubits":[0],"params":[1]},"#;
    let wild = r#"{"gate":"rx","qubits":[70000],"params":[1]}"#;
    let out = r#"{"gate":"rx","qubits":[5],"params":[1]}"#;
    assert_eq!(refused(gates(&format!("{good}{out},{wild}"))), "gate 1: qubit 5 is outside 0..3");
    assert_eq!(refused(gates(&format!("{good}{wild},{out}"))), "gate 1: qubit 70000 is outside 0..3");
    assert_eq!(refused(with("measurements", "[9,70000]")), "measurement 0: qubit 9 is outside 0..3");
}

#[test]
fn each_target_takes_its_gates_and_no_others() {
    for target in Target::ALL {
        for kind in GateKind::ALL {
            let qubits = if kind.num_qubits() == 2 { "[1,0]" } else { "[1]" };
            let params = if kind.num_params() == 1 { ",\"params\":[0.5]" } else { "" };
            let answer =
                gates_of(target.name(), &format!(r#"{{"gate":"{kind}","qubits":{qubits}{params}}}"#));
            match answer {
                Ok(p) => {
                    assert!(target.gates().contains(&kind));
                    assert_eq!((p.gates()[0].kind, p.gates()[0].q0), (kind.code(), 1));
                }
                Err(e) => {
                    assert!(!target.gates().contains(&kind), "{e}");
                    assert_eq!(e.to_string(), format!("gate 0: {kind} is not a gate of target {target}"));
                }
            }
        }
    }
}

#[test]
fn whole_numbers_in_other_clothes_are_taken() {
    for three in ["3", "3.0", "3e0", "0.3e1", "30e-1"] {
        assert_eq!(with("num_qubits", three).unwrap().num_qubits(), 3, "{three}");
    }
    assert_eq!(gates(r#"{"gate":"rx","qubits":[2.0],"params":[1]}"#).unwrap().gates()[0].q0, 2);
    assert_eq!(with("measurements", "[2.0,0e0,-0.0]").unwrap().measurements(), [2, 0, 0]);
    assert_eq!(with_metadata(r#""optimization_level":1.0"#).unwrap().raw().optimization_level, 1);
    for (text, value) in
        [("1", 1.0), ("-1", -1.0), ("1e-400", 0.0), ("18446744073709551616", 1.8446744073709552e19)]
    {
        let p = gates(&format!(r#"{{"gate":"rx","qubits":[0],"params":[{text}]}}"#)).unwrap();
        assert_eq!(p.gates()[0].param, value);
    }
}

#[test]
fn fractions_are_no_indices() {
    assert!(refused(with("num_qubits", "3.5")).contains("num_qubits: 3.5 is not a whole number"));
    let text = refused(gates(
        r#"{"gate":"rx","qubits":[0],"params":[1]},{"gate":"rx","qubits":[0.5],"params":[1]}"#,
    ));
    assert!(text.contains("gate 1: 0.5 is not a whole number"), "{text}");
    assert!(refused(with("measurements", "[0,1.5]")).contains("measurements: 1.5 is not a whole number"));
    assert!(
        refused(with_metadata(r#""optimization_level":1.5"#)).contains("metadata.optimization_level: 1.5")
    );
}

#[test]
fn numbers_that_are_none_name_the_gate() {
    for bad in [
        "1e999",
        "-1e999",
        "NaN",
        "Infinity",
        "-Infinity",
        "\"1\"",
        "true",
        "null",
        "[1]",
        "{}",
        "1.",
        ".5",
        "+1",
    ] {
        let text = refused(gates(&format!(
            r#"{{"gate":"rx","qubits":[0],"params":[1]}},{{"gate":"rx","qubits":[0],"params":[{bad}]}}"#
        )));
        assert!(text.contains("gate 1: "), "{bad}: {text}");
        let text = refused(gates(&format!(r#"{{"gate":"rx","qubits":[{bad}],"params":[1]}}"#)));
        assert!(text.contains("gate 0: ") && !text.contains("gate 1"), "{bad}: {text}");
        assert!(refused(with("measurements", &format!("[{bad}]"))).contains("measurement"), "{bad}");
        assert!(refused(with("num_qubits", bad)).contains("num_qubits"), "{bad}");
        assert!(
            refused(with_metadata(&format!(r#""optimization_level":{bad}"#))).contains("optimization_level"),
            "{bad}"
        );
    }
}

#[test]
fn null_is_no_value_for_anything() {
    for field in ["version", "target", "num_qubits", "gates", "measurements", "metadata"] {
        let text = refused(with(field, "null"));
        assert!(text.contains(&format!("{field}: ")) && text.contains("null"), "{field}: {text}");
    }
    for field in ["source_hash", "compiled_at", "compiler_version", "optimization_level"] {
        let text = refused(with_metadata(&format!("\"{field}\":null")));
        assert!(text.contains(&format!("metadata.{field}: ")) && text.contains("null"), "{field}: {text}");
    }
    for gate in [
        "null",
        r#"{"gate":null,"qubits":[0]}"#,
        r#"{"gate":"cz","qubits":null}"#,
        r#"{"gate":"cz","qubits":[0,null]}"#,
        r#"{"gate":"cz","qubits":[0,1],"params":null}"#,
    ] {
        let text = refused(gates(gate));
        assert!(text.contains("gate 0: ") && text.contains("null"), "{gate}: {text}");
    }
    assert!(refused(parse("null")).contains("null"));
}

#[test]
fn other_types_are_refused_with_their_place() {
    for (answer, place) in [
        (with("target", "1"), "target: "),
        (with("version", "1.0"), "version: "),
        (with("gates", "{}"), "gates: "),
        (with("gates", "\"\""), "gates: "),
        (with("measurements", "{}"), "measurements: "),
        (with("measurements", "0"), "measurements: "),
        (with("metadata", "[]"), "metadata: "),
        (gates("[]"), "gate 0: "),
        (gates(r#""rx""#), "gate 0: "),
        (gates(r#"{"qubits":[0]}"#), "gate 0: missing field `gate`"),
        (gates(r#"{"gate":"cz"}"#), "gate 0: missing field `qubits`"),
        (gates(r#"{"gate":1,"qubits":[0]}"#), "gate 0: "),
        (gates(r#"{"gate":"cz","qubits":0}"#), "gate 0: "),
        (gates(r#"{"gate":"cz","qubits":{"0":1}}"#), "gate 0: "),
    ] {
        let text = refused(answer);
        assert!(
            text.starts_with("the circuit is not valid NativeGateIR: ") && text.contains(place),
            "{text}"
        );
    }
}

#[test]
fn documents_that_are_no_circuit() {
    for bad in [
        "",
        " ",
        "{",
        "[]",
        "1",
        "\"\"",
        "{}x",
        "{\"target\":",
        "\u{feff}{}",
        "{'a':1}",
        "{\"a\":1,}",
        "// x\n{}",
    ] {
        assert!(!refused(parse(bad)).is_empty());
    }
    assert_eq!(refused(parse("{}")), "the circuit lacks 'target'");
    let whole = format!(r#"{{"target":"cz","num_qubits":3,"gates":[],"measurements":[0],{METADATA}}}"#);
    assert!(parse(format!("\n\t {whole} \r\n")).is_ok());
    assert!(refused(parse(format!("{whole} {whole}"))).contains("trailing characters"));
    for cut in 0..whole.len() {
        assert!(parse(&whole[..cut]).is_err(), "cut at {cut}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    for (before, after) in [
        (&b"{\"target\":\""[..], &b"\"}"[..]),
        (b"{\"", b"\":1}"),
        (b"{\"unknown\":\"", b"\"}"),
        (b"{\"gates\":[{\"gate\":\"", b"\"}]}"),
        (b"{\"metadata\":{\"source_hash\":\"", b"\"}}"),
    ] {
        for bytes in [&[0xff][..], &[0xc3], &[0xed, 0xa0, 0x80], &[0xf8, 0x88, 0x80, 0x80, 0x80]] {
            assert!(parse([before, bytes, after].concat()).is_err());
        }
    }
    // Lone surrogates as escapes are not text either.
    assert!(with("target", r#""\ud800""#).is_err());
    assert_eq!(with_metadata(r#""compiler_version":"\u00e9\ud83d\ude00""#).map(|p| p.gates().len()), Ok(1));
}

#[test]
fn deep_nesting_neither_overflows_the_stack_nor_hangs() {
    let depth = 100_000;
    let lists = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let objects = format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
    for deep in [&lists, &objects, &"[".repeat(depth), &"{\"a\":".repeat(depth)] {
        for key in ["gates", "measurements", "metadata", "target", "num_qubits", "version"] {
            let text = refused(with(key, deep));
            assert!(text.len() < 400, "{text}");
        }
        assert!(parse(deep.as_bytes()).is_err());
    }
    // Skipping a value takes no stack, so an unknown key may hold anything that is whole.
    for deep in [&lists, &objects] {
        assert!(with("unknown", deep).is_ok());
        assert!(with_metadata(&format!("\"unknown\":{deep}")).is_ok());
        assert!(gates(&format!(r#"{{"gate":"cz","qubits":[0,1],"x":{deep}}}"#)).is_ok());
        let open = &deep[..deep.len() / 2];
        assert!(with("unknown", open).is_err());
        assert!(refused(gates(&format!(r#"{{"gate":"cz","qubits":[0,1],"x":{open}}}"#))).contains("gate 0"));
    }
}

#[test]
fn of_a_repeated_key_the_last_one_counts() {
    let json = format!(
        r#"{{"num_qubits":1,"gates":[{{"gate":"rx","qubits":[9],"params":[1]}}],"target":"cz","num_qubits":2,
            "measurements":[70000],"gates":[{{"gate":"cz","gate":"rx","qubits":[0,1],"qubits":[1],"params":[],"params":[2]}}],
            "measurements":[1],{METADATA}}}"#
    );
    let p = parse(json).unwrap();
    assert_eq!(
        (p.num_qubits(), p.measurements(), p.gates()[0].op()),
        (2, &[1][..], Some(Op::Rx { q: 1, angle: 2.0 }))
    );
    // A value that can't be read is an error even when a later one could.
    assert!(refused(with_metadata(r#""source_hash":1,"source_hash":"h""#)).contains("source_hash"));
}

#[test]
fn keys_are_compared_after_their_escapes() {
    let json = format!(
        r#"{{"tar\u0067et":"cz","num_qubits":1,"gates":[{{"ga\u0074e":"r\u0078","qubits":[0],"params":[1]}}],"measurements":[0],{METADATA}}}"#
    );
    assert_eq!(parse(json).unwrap().gates().len(), 1);
}

#[test]
fn messages_from_outside_are_cut() {
    let long = "é".repeat(10_000);
    for text in [
        refused(with("target", &format!("\"{long}\""))),
        refused(with("version", &format!("\"{long}\""))),
        refused(gates(&format!(r#"{{"gate":"{long}","qubits":[0]}}"#))),
        refused(with("num_qubits", &format!("\"{long}\""))),
        refused(gates(&format!(r#"{{"gate":"cz","qubits":"{long}"}}"#))),
        refused(with("metadata", &format!("\"{long}\""))),
    ] {
        assert!(text.chars().count() < 400, "{} bytes: {text:.200}", text.len());
    }
}
