//! Properties of the circuit parser: nothing makes it panic, and what is written as JSON is read back.

use std::fmt::Write;

use coda_plugin_abi::{Gate, GateKind, Program, Target};
use proptest::collection::vec;
use proptest::prelude::*;

const VALID: &str = r#"{"version":"1.0","target":"cnot","num_qubits":5,"gates":[{"gate":"rx","qubits":[2],"params":[3.141592653589793]},{"gate":"cnot","qubits":[0,4.0]},{"gate":"id","qubits":[1],"params":[20]},{"qubits":[3],"gate":"x90","note":{"a":[null,"\u00e9"]}}],"measurements":[2,0,2],"metadata":{"source_hash":"abc","compiled_at":"2026-01-01","optimization_level":1},"more":[1.5e3]}"#;

/// Pieces that mean something to the parser, to reach further than arbitrary bytes do.
const PIECES: [&str; 24] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "1e999",
    "-",
    "0.5",
    "3.0",
    "NaN",
    "\\u0000",
    "\"gate\"",
    "\"qubits\"",
    "\"params\"",
    "\"gates\"",
    "[[[[",
    "\u{e9}",
    "65536",
    "1e300",
    "\"cz\"",
];

fn gate_of(target: Target, num_qubits: u16) -> impl Strategy<Value = Gate> {
    let kinds: Vec<GateKind> =
        target.gates().iter().copied().filter(|k| num_qubits > 1 || k.num_qubits() == 1).collect();
    let param = prop_oneof![
        any::<f64>().prop_filter("finite", |x| x.is_finite()),
        (-1000i32..1000).prop_map(f64::from),
        -7.0..7.0
    ];
    (proptest::sample::select(kinds), 0..num_qubits, 1..num_qubits.max(2), param).prop_map(
        move |(kind, a, distance, param)| match kind.num_qubits() {
            1 => Gate::one(kind, a, param),
            _ => Gate::two(kind, a, (a + distance) % num_qubits, param),
        },
    )
}

fn circuit() -> impl Strategy<Value = Program> {
    (proptest::sample::select(Target::ALL.to_vec()), 1..=50u16).prop_flat_map(|(target, num_qubits)| {
        (vec(gate_of(target, num_qubits), 0..40), vec(0..num_qubits, 0..60)).prop_map(
            move |(gates, measurements)| {
                Program::new(target, num_qubits, gates, measurements).expect("generated to be legal")
            },
        )
    })
}

/// The circuit as JSON; `style` varies what the format leaves open.
fn to_json(p: &Program, style: u8) -> String {
    let index = |q: u16| if style & 1 == 1 { format!("{q}.0") } else { q.to_string() };
    let list = |items: Vec<String>| format!("[{}]", items.join(if style & 2 == 2 { " ,\n" } else { "," }));
    let gates = p.gates().iter().map(|g| {
        let kind = GateKind::from_code(g.kind).expect("a known kind");
        let qubits = [g.q0, g.q1].iter().take(kind.num_qubits()).map(|q| index(*q)).collect();
        let mut text = format!(r#"{{"qubits":{},"gate":"{kind}""#, list(qubits));
        if kind.num_params() == 1 {
            // `{:?}` is the shortest text that reads back as the same number.
            write!(text, r#","params":[{:?}]"#, g.param).expect("a string takes all");
        } else if style & 4 == 4 {
            text.push_str(r#","params":[]"#);
        }
        text.push('}');
        text
    });
    let gates = list(gates.collect());
    let measurements = list(p.measurements().iter().map(|q| index(*q)).collect());
    format!(
        r#"{{"measurements":{measurements},"gates":{gates},"num_qubits":{},"target":"{}","metadata":{{"source_hash":"","compiled_at":""}}}}"#,
        index(p.num_qubits()),
        p.target(),
    )
}

#[test]
fn the_valid_document_is_valid() {
    Program::parse(VALID.as_bytes()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        drop(Program::parse(&bytes));
    }

    #[test]
    fn pieces_never_panic(pieces in vec(proptest::sample::select(PIECES.to_vec()), 0..60)) {
        drop(Program::parse(pieces.concat().as_bytes()));
    }

    #[test]
    fn damaged_documents_never_panic_and_legal_ones_stay_legal(
        edits in vec((any::<prop::sample::Index>(), 0usize..4, proptest::sample::select(PIECES.to_vec()), any::<u8>()), 1..6)
    ) {
        let mut bytes = VALID.as_bytes().to_vec();
        for (at, what, piece, byte) in edits {
            let at = at.index(bytes.len().max(1)).min(bytes.len());
            match what {
                0 if at < bytes.len() => bytes[at] = byte,
                1 if at < bytes.len() => drop(bytes.remove(at)),
                2 => bytes.truncate(at.max(1)),
                _ => drop(bytes.splice(at..at, piece.bytes())),
            }
        }
        match Program::parse(&bytes) {
            // What is taken obeys every rule, whatever happened to the text.
            Ok(p) => {
                let again = Program::new(p.target(), p.num_qubits(), p.gates(), p.measurements());
                prop_assert!(again.is_ok(), "{:?}", again);
            }
            Err(e) => {
                let text = e.to_string();
                prop_assert!(!text.is_empty() && text.chars().count() < 400, "{}", text);
            }
        }
    }

    #[test]
    fn what_is_written_is_read(program in circuit(), style in 0u8..8) {
        let json = to_json(&program, style);
        let back = Program::parse(json.as_bytes()).map_err(|e| TestCaseError::fail(format!("{e}: {json}")))?;
        prop_assert_eq!(back.target(), program.target());
        prop_assert_eq!(back.num_qubits(), program.num_qubits());
        prop_assert_eq!(back.measurements(), program.measurements());
        let bits = |p: &Program| p.gates().iter().map(|g| (g.kind, g.q0, g.q1, g.param.to_bits())).collect::<Vec<_>>();
        prop_assert_eq!(bits(&back), bits(&program));
    }
}
