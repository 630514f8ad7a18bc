//! OpenQASM as the peers run it: what a text is parsed to has the effect that the text says. Here, because the states
//! are those of the peers.

use coda_host_qasm::qasm::*;

use crate::peers::amplitude::{Complex, zeros};
use crate::peers::evolution::apply;
use crate::peers::operation;

fn texts(source: &str) -> Vec<String> {
    parse(source)
        .unwrap_or_else(|e| panic!("{e}\n{source}"))
        .operations
        .into_iter()
        .map(|o| o.raw_text)
        .collect()
}

fn error(source: &str) -> String {
    match parse(source) {
        Err(error) => error.to_string(),
        Ok(circuit) => panic!("{} operations\n{}", circuit.operations.len(), crate::model::cut(source, 500)),
    }
}

const TWO: &str = "OPENQASM 2.0;\ninclude \"qelib1.inc\";\nqreg q[3];\ncreg c[3];\n";
const THREE: &str = "OPENQASM 3.0;\ninclude \"stdgates.inc\";\nqubit[3] q;\nbit[3] c;\n";

#[test]
fn both_versions_of_a_bell_pair() {
    let bell = ["h q[0];", "cx q[0],q[1];", "measure q[0];", "measure q[1];"];
    assert_eq!(
        texts(
            "OPENQASM 2.0; include \"qelib1.inc\"; qreg q[2]; creg c[2]; h q[0]; cx q[0],q[1]; measure q->c;"
        ),
        bell
    );
    assert_eq!(
        texts(
            "OPENQASM 3.0; include 'stdgates.inc'; qubit[2] q; bit[2] c; h q[0]; cx q[0], q[1]; c = measure q;"
        ),
        bell
    );
    assert_eq!(texts("qubit a; qubit b; h a; CX a, b; bit c = measure a; bit d; d = measure b;"), bell);
    let circuit = parse(&format!("{THREE} c[0] = measure q[2]; c[1] = measure q[0];"))
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!((circuit.qubits, circuit.measured), (3, vec![2, 0]));
}

#[test]
fn gates_are_written_as_peers_read_them() {
    for (gate, text) in [
        ("rx(pi/2) q[0];", "rx(1.5707963267948966) q[0];"),
        ("u3(0.1,-0.2,2) q[1];", "u(0.1,-0.2,2) q[1];"),
        ("u1(0.5) q[0];", "p(0.5) q[0];"),
        ("u2(0,pi) q[0];", "u(1.5707963267948966,0,3.141592653589793) q[0];"),
        ("ccx q[0],q[1],q[2];", "ccx q[0],q[1],q[2];"),
        ("cswap q[0],q[1],q[2];", "cswap q[0],q[1],q[2];"),
        ("ch q[0],q[1];", "controlled h q[0],q[1];"),
        ("crz(-0.25) q[2],q[0];", "controlled rz(-0.25) q[2],q[0];"),
        ("cu1(1e-7) q[2],q[0];", "controlled p(1e-7) q[2],q[0];"),
        ("rx(2*(1+sin(0))-3^2/4) q[0];", "rx(-0.25) q[0];"),
        ("swap q[0],q[1];", "swap q[0],q[1];"),
    ] {
        assert_eq!(texts(&format!("{TWO}{gate}")), [text], "{gate}");
        // What is written is read by the peer's own parser.
        let qubits: Vec<i64> = parse(&format!("{TWO}{gate}")).unwrap().operations[0]
            .qubits
            .iter()
            .map(|q| i64::from(*q))
            .collect();
        assert!(crate::peers::operation::effect("programmable_gate", text, &qubits).is_ok(), "{text}");
    }
}

#[test]
fn integers_are_written_in_four_bases() {
    for (literal, text) in
        [("0x1F", "31"), ("0XfF", "255"), ("0o17", "15"), ("0b1010_1", "21"), ("0B11", "3"), ("1_0", "10")]
    {
        let found = texts(&format!("{THREE} rx({literal}) q[0]; h q[0x1];"));
        assert_eq!(found, [format!("rx({text}) q[0];"), "h q[1];".into()], "{literal}");
    }
    for (literal, base) in [("0b12", 2), ("0o8", 8), ("0x", 16), ("0xg", 16), ("0x1_0000_0000_0000_0000", 16)]
    {
        let found = error(&format!("{THREE} rx({literal}) q[0];"));
        assert!(found.contains(&format!("'{literal}' is not an integer of base {base}")), "{found}");
    }
}

#[test]
fn services_are_those_that_peers_offer() {
    let source = format!(
        "{TWO}h q[0]; cx q[0],q[1]; cz q[0],q[1]; x q[0]; cy q[0],q[1]; ccx q[0],q[1],q[2]; measure q[0]->c[0];"
    );
    let services: Vec<&str> = parse(&source).unwrap().operations.iter().map(|o| o.service).collect();
    assert_eq!(
        services,
        [
            "hadamard",
            "cnot",
            "cz",
            "programmable_gate",
            "controlled_unitary",
            "controlled_unitary",
            "measurement_feedforward"
        ]
    );
}

#[test]
fn definitions_modifiers_and_broadcast() {
    let own =
        format!("{TWO}gate pair(a) x, y {{ h x; rx(a/2) y; cx x, y; barrier x, y; }} pair(3) q[1], q[2];");
    assert_eq!(texts(&own), ["h q[1];", "rx(1.5) q[2];", "cx q[1],q[2];"]);
    assert_eq!(texts(&format!("{TWO}h q;")), ["h q[0];", "h q[1];", "h q[2];"]);
    assert_eq!(texts("qubit[2] a; qubit[2] b; cx a, b;"), ["cx q[0],q[2];", "cx q[1],q[3];"]);
    assert_eq!(texts("qubit a; qubit[2] b; cx a, b;"), ["cx q[0],q[1];", "cx q[0],q[2];"]);
    assert_eq!(texts(&format!("{THREE}ctrl @ x q[0], q[1];")), ["cx q[0],q[1];"]);
    assert_eq!(
        texts(&format!("{THREE}ctrl(2) @ rx(0.5) q[0], q[1], q[2];")),
        ["controlled rx(0.5) q[0],q[1],q[2];"]
    );
    assert_eq!(
        texts(&format!("{THREE}negctrl @ h q[0], q[1];")),
        ["x q[0];", "controlled h q[0],q[1];", "x q[0];"]
    );
    assert_eq!(
        texts(&format!("{THREE}inv @ s q[0]; inv @ u3(1,2,3) q[0];")),
        ["sdg q[0];", "u(-1,-3,-2) q[0];"]
    );
    assert_eq!(
        texts(&format!("{THREE}pow(2) @ t q[0]; inv @ pow(2) @ t q[0];")),
        ["t q[0];", "t q[0];", "tdg q[0];", "tdg q[0];"]
    );
    assert_eq!(
        texts(&format!("{THREE}gate g a, b {{ h a; cx a, b; }} inv @ g q[0], q[1];")),
        ["cx q[0],q[1];", "h q[0];"]
    );
    assert_eq!(
        texts(&format!("{THREE}const int n = 2; const float t = pi/n; rx(t) q[n-1]; rz(t) q[0];"))[0],
        "rx(1.5707963267948966) q[1];"
    );
}

#[test]
fn errors_have_line_and_column() {
    for (source, expected) in [
        (format!("{TWO}foo q[0];"), "line 5, column 1: the gate 'foo' is not known"),
        (format!("{TWO}h q[3];"), "line 5, column 5: 'q' has 3 elements, there is no 3"),
        (format!("{TWO}h r[0];"), "line 5, column 3: there is no quantum register 'r'"),
        (format!("{TWO}  rx q[0];"), "line 5, column 3: 'rx' takes 1 parameters, given are 0"),
        (format!("{TWO}h q[0]"), "line 5, column 7: expected ';', found the end of the source"),
        (format!("{TWO}cx q[0],q[0];"), "line 5, column 1: qubit 0 is used twice"),
        (format!("{TWO}if (c==1) x q[0];"), "line 5, column 1: 'if' needs a measured value"),
        (format!("{TWO}h q[0]; reset q;"), "line 5, column 9: qubit 0 was used before this 'reset'"),
        (format!("{TWO}measure q[1]->c[1]; reset q[1];"), "qubit 1 was used before this 'reset'"),
        (format!("{TWO}measure q[0]->c[0]; h q[0];"), "line 5, column 21: qubit 0 was measured before"),
        (format!("{TWO}measure q->c[0];"), "3 qubits are measured into 1 bits"),
        ("OPENQASM 2.0;\ninclude \"/etc/passwd\";".into(), "line 2, column 1: only \"qelib1.inc\""),
        ("OPENQASM 4.0;".into(), "line 1, column 10: OpenQASM 4"),
        ("qreg q[200];".into(), "the size is 200"),
        (format!("{TWO}rx(1/0) q[0];"), "no finite value"),
        (format!("{TWO}rx(x) q[0];"), "the name 'x' has no value"),
        (format!("{TWO}h q[0]; $"), "line 5, column 9: '$' can't stand here without the number"),
        (format!("{TWO}h q[0]; &"), "line 5, column 9: '&' can't stand here"),
        (format!("{TWO}/* open"), "line 5, column 1: this comment has no end"),
        (format!("{TWO}gate g a {{ g a; }} g q[0];"), "line 5, column 12: the gate 'g' is not known"),
        (format!("{THREE}c = 1;"), "'measure'"),
        (String::new(), "line 1, column 1: the circuit has no qubits"),
        ("qubit q;".into(), "no operations"),
    ] {
        let found = error(&source);
        assert!(found.contains(expected), "{found}\n{expected}");
    }
}

#[test]
fn blow_ups_end_early() {
    let mut source = String::from("qubit q; gate g0 a { h a; h a; }");
    for n in 1..31 {
        source.push_str(&format!("gate g{n} a {{ g{} a; g{} a; }}", n - 1, n - 1));
    }
    source.push_str("g30 q;");
    assert!(error(&source).contains("too much"));
    assert!(error(&format!("qubit q; rx({}1) q;", "(".repeat(100_000))).contains("nested too deep"));
    assert!(error(&format!("qubit q; pow(64) @ {} h q;", "pow(64) @ ".repeat(10))).contains("too much"));
    assert!(error(&"x".repeat(MAX_SOURCE + 1)).contains("bytes"));
    assert!(error(&format!("qubit[20] q; {}", "h q;".repeat(1_001))).contains("20000 operations"));
    // Empty definitions emit nothing, and still cost.
    let mut source = String::from("qubit q; gate e0 a { }");
    for n in 1..30 {
        source.push_str(&format!("gate e{n} a {{ e{0} a; e{0} a; e{0} a; }}", n - 1));
    }
    source.push_str("e29 q;");
    assert!(error(&source).contains("too much"));
}

/// Sources whose definitions would take time or memory far beyond their length.
#[test]
fn no_source_takes_more_than_its_share() {
    let long = "t+".repeat(200_000);
    let (calls, calls_with) = ("g q[0];\n".repeat(5_000), "g(1) q[0];\n".repeat(5_000));
    let nested: String = (1..30).map(|n| format!("gate g{n} a {{ g{0} a; g{0} a; }}\n", n - 1)).collect();
    for (what, source, expected) in [
        (
            "a long expression in a body",
            format!("{TWO}gate g(t) a {{ rx({long}t) a; }}\n{calls_with}"),
            "too much",
        ),
        (
            "a long body that does nothing",
            format!("{TWO}gate g a {{ {} }}\n{calls}", "barrier a;".repeat(50_000)),
            "no operations",
        ),
        (
            "a long name",
            format!("{TWO}gate g({0}) a {{ rx({0}) a; }}\n{calls}", "n".repeat(100_000)),
            "a name of more than",
        ),
        ("doubling", format!("{TWO}gate g0 a {{ h a; }}\n{nested}g29 q[0];"), "too much"),
        (
            "doubling without an effect",
            format!("{TWO}gate g0 a {{ barrier a; }}\n{nested}g29 q[0];"),
            "too much",
        ),
        ("modifiers", format!("{THREE}{} h q[0];", "inv @ ".repeat(100_000)), "too many modifiers"),
        ("powers", format!("{THREE}{} h q[0];", "pow(64) @ ".repeat(10)), "too much"),
    ] {
        let start = std::time::Instant::now();
        let error = error(&source);
        assert!(error.contains(expected), "{what}: {error}");
        // A debug build is many times slower than the 0.1 s that a source may take.
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "{what}: {:?}", start.elapsed());
    }
}

/// The state behind a circuit whose qubits begin in different states, so that no phase and no order is hidden.
fn state(body: &str) -> Vec<Complex> {
    let begin: String = (0..4).map(|q| format!("u(0.{q}3, 0.4{q}, -1.{q}) q[{q}]; h q[{q}];")).collect();
    let circuit = parse(&format!("qubit[4] q; {begin} {body}")).unwrap_or_else(|e| panic!("{e}\n{body}"));
    let mut state = zeros(4);
    for operation in &circuit.operations {
        let qubits: Vec<i64> = operation.qubits.iter().map(|q| i64::from(*q)).collect();
        let effect = operation::effect(operation.service, &operation.raw_text, &qubits).unwrap();
        apply(&mut state, &operation::lower(&effect.operations, &[0, 1, 2, 3]).unwrap());
    }
    state
}

/// Whether two circuits do the same, but for the phase of the whole state.
fn same(one: &str, other: &str) {
    let (a, b) = (state(one), state(other));
    let overlap = a
        .iter()
        .zip(&b)
        .fold([0.0, 0.0], |[re, im], ([a, b], [c, d])| [re + a * c + b * d, im + a * d - b * c]);
    let distance = 1.0 - overlap[0].hypot(overlap[1]);
    assert!(distance.abs() < 1e-12, "{distance}\n{one}\n{other}");
}

#[test]
fn a_phase_shows_under_a_control() {
    let own = "gate g(a) t { gphase(a); x t; } gate k t { gphase(0.7); }";
    same(&format!("{own} ctrl @ g(0.4) q[0], q[1];"), "p(0.4) q[0]; cx q[0], q[1];");
    same(&format!("{own} ctrl(2) @ k q[0], q[1], q[2];"), "cp(0.7) q[0], q[1];");
    same("ctrl @ gphase(0.4) q[0];", "p(0.4) q[0];");
    same("negctrl @ gphase(0.4) q[0];", "x q[0]; p(0.4) q[0]; x q[0];");
    same("ctrl @ ctrl @ gphase(0.4) q[0], q[1];", "cp(0.4) q[0], q[1];");
    same("ctrl @ inv @ gphase(0.4) q;", "p(-0.4) q;");
    same("ctrl @ pow(3) @ gphase(0.4) q[2];", "p(1.2) q[2];");
    same("ctrl @ pow(0.25) @ gphase(0.4) q[2];", "p(0.1) q[2];");
    same(&format!("{own} ctrl @ inv @ pow(2) @ g(0.4) q[0], q[1];"), "p(-0.8) q[0];");
    same(&format!("{own} gphase(1); g(0.4) q[1]; h q[0];"), "x q[1]; h q[0];");
    // Without a control it is a phase of the whole state.
    assert_eq!(texts("qubit q; gphase(pi); x q;"), ["x q[0];"]);
    assert!(error("qubit q; gphase(pi) q; x q;").contains("'gphase' takes 0 qubits"));
    assert!(error("qubit q; gphase(1, 2);").contains("'gphase' takes 1 parameters"));
    assert!(error("qubit q; ctrl @ gphase(1);").contains("a control needs a qubit"));
}

#[test]
fn fractional_powers_are_principal_or_by_the_angle() {
    for (power, is) in [
        ("pow(0.5) @ x q[0];", "sx q[0];"),
        ("pow(-0.5) @ x q[0];", "sxdg q[0];"),
        ("inv @ pow(0.5) @ x q[0];", "sxdg q[0];"),
        ("pow(0.5) @ inv @ x q[0];", "sx q[0];"),
        ("pow(1.5) @ x q[0];", "x q[0]; sx q[0];"),
        ("pow(0.5) @ z q[0];", "s q[0];"),
        ("pow(0.25) @ z q[0];", "t q[0];"),
        ("pow(0.5) @ s q[0];", "t q[0];"),
        ("pow(1/2) @ sdg q[0];", "tdg q[0];"),
        ("pow(0.5) @ rx(3*pi) q[0];", "rx(1.5*pi) q[0];"),
        ("pow(0.5) @ ctrl @ rx(3*pi) q[0], q[1];", "crx(1.5*pi) q[0], q[1];"),
        ("pow(0.3) @ p(5) q[0];", "p(1.5) q[0];"),
        ("pow(0.5) @ swap q[0], q[1]; pow(0.5) @ swap q[0], q[1];", "swap q[0], q[1];"),
        (
            "pow(0.5) @ cswap q[2], q[0], q[1]; pow(0.5) @ ctrl @ swap q[2], q[0], q[1];",
            "cswap q[2], q[0], q[1];",
        ),
        ("pow(0.5) @ rzz(1.2) q[0], q[1];", "rzz(0.6) q[0], q[1];"),
        ("pow(0.5) @ inv @ rzz(1.2) q[0], q[1];", "rzz(-0.6) q[0], q[1];"),
        ("ctrl @ pow(0.5) @ ryy(1.2) q[2], q[0], q[1];", "ctrl @ ryy(0.6) q[2], q[0], q[1];"),
        ("pow(0.5) @ negctrl @ rxx(1.2) q[2], q[0], q[1];", "negctrl @ rxx(0.6) q[2], q[0], q[1];"),
        ("pow(0.5) @ teleport q[0], q[1];", "pow(0.5) @ swap q[0], q[1];"),
        ("pow(1/3) @ id q[0]; x q[3];", "x q[3];"),
    ] {
        same(power, is);
        // A phase of the gate would show here.
        let controlled = |text: &str| -> String {
            text.split_inclusive(';')
                .filter(|part| part.contains('q'))
                .map(|part| {
                    let part = part.trim();
                    let (gate, operands) = part.split_at(part.find("q[").unwrap());
                    format!("ctrl @ {gate} q[3], {operands}").replace("q[3], q[3]", "q[2], q[3]")
                })
                .collect()
        };
        same(&controlled(power), &controlled(is));
    }
    // What is taken three times is the gate again: of products, of u, and with controls.
    let own = "gate one(a) t { gphase(0.3); h t; rx(a) t; t t; } gate two a, b { cx a, b; p(0.3) a; }";
    for gate in [
        "h q[0]",
        "y q[1]",
        "u(0.3, 2, -1) q[0]",
        "u2(0.2, 3) q[1]",
        "one(1.3) q[2]",
        "cu3(1, 2, 3) q[0], q[1]",
        "cu(1, 2, 3, 0.4) q[1], q[0]",
        "ch q[0], q[2]",
        "ccx q[0], q[1], q[2]",
        "two q[0], q[1]",
        "ctrl @ one(0.2) q[0], q[1]",
        "inv @ one(2) q[3]",
        "u(pi, 0, pi) q[0]",
        "u(0, 0, pi) q[0]",
        "u(0,0,0) q[0]",
        "u(2*pi, 0.1, -0.1) q[1]",
        "csx q[0], q[3]",
        "c3x q[0], q[1], q[2], q[3]",
    ] {
        let third = format!("pow(1/3) @ {gate};");
        same(&format!("{own} {third} {third} {third}"), &format!("{own} {gate};"));
    }
    // An eigenvalue of -1 has the argument pi, however it was computed.
    same("gate hh t { s t; s t; } pow(0.5) @ hh q[0];", "s q[0];");
    same("ctrl @ pow(0.5) @ u(pi, 0, pi) q[1], q[0];", "csx q[1], q[0];");
    for gate in ["iswap q[0], q[1]", "qft q[0], q[1]", "bell_pair q[0], q[1]", "rccx q[0], q[1], q[2]"] {
        let error = error(&format!("qubit[4] q; pow(0.5) @ {gate};"));
        assert!(error.contains("line 1, column 24: the power 0.5 of this gate is not known"), "{error}");
    }
    assert!(error("qubit q; pow(64.5) @ x q;").contains("only powers up to 64"));
}

#[test]
fn loops_are_unrolled() {
    for (source, expected) in [
        ("for int i in [0:2] { h q[i]; }", "0 1 2"),
        ("for uint i in [2:-1:0] { h q[i]; }", "2 1 0"),
        ("for int[8] i in [0:2:3] h q[i];", "0 2"),
        ("for int i in {1, 2, 0} { h q[i]; }", "1 2 0"),
        ("for i in [0:3] { h q[i]; }", "0 1 2 3"),
        ("for int i in [0:1] { for int j in [i:1] { h q[2*i+j]; } }", "0 1 3"),
        ("for int i in [3:2] { h q[i]; } h q[0];", "0"),
        ("const int n = 2; for int i in [0:n-1] { for int i in [i+1:i+1] h q[i]; h q[i]; }", "1 0 2 1"),
        ("gate g a, b { for int i in {1,2} { h a; } h b; } g q[0], q[1];", "0 0 1"),
        ("for int i in [-1:0] { h q[i]; }", "3 0"),
    ] {
        let expected: Vec<String> = expected.split(' ').map(|q| format!("h q[{q}];")).collect();
        assert_eq!(texts(&format!("qubit[4] q; {source}")), expected, "{source}");
    }
    let rotations = ["rx(0.5) q[0];", "rx(0.25) q[0];", "p(6) q[0];", "t q[0];", "t q[0];"];
    assert_eq!(
        texts("qubit q; for float a in {1/2, 0.25} rx(a) q; for int k in [2:2] { p(k*3) q; pow(k) @ t q; }"),
        rotations
    );
    assert_eq!(texts("qubit[2] q; bit[2] c; for int i in [0:1] { x q[i]; c[1-i] = measure q[i]; }").len(), 4);
    for (source, expected) in [
        ("for int i in [0:4] { h q[i]; }", "line 1, column 38: 'q' has 4 elements, there is no 4"),
        ("for int i in [0:0.5] { h q[0]; }", "the end of the range is 0.5"),
        ("for int i in {0, 1.5} { h q[0]; }", "1.5 is no whole number"),
        ("for int i in [0:0:3] { h q[0]; }", "a step of 0"),
        ("for int i in [0:] { h q[0]; }", "needs both ends"),
        ("for int i in q { h q[0]; }", "expected a range such as"),
        ("for int i in [0:3] { h q[0];", "the loop has no closing"),
        ("for int i in [0:3] { let a = q; }", "'let' can't stand in a gate or loop"),
        ("for int i in [0:3] { break; }", "'break' is not taken"),
        ("for bit i in [0:3] { }", "variables of loops of type 'bit'"),
        ("for int i in [0:3] { } h q[i];", "the name 'i' has no value"),
        ("gate g a { measure a; }", "'measure' can't stand in a gate"),
        ("for int i in [0:2000000000] { }", "too much"),
        ("for int i in [0:2000] for int j in [0:2000] { barrier q; }", "too much"),
    ] {
        let found = error(&format!("qubit[4] q; {source}"));
        assert!(found.contains(expected), "{found}\n{expected}");
    }
}

#[test]
fn slices_and_aliases() {
    for (source, expected) in [
        ("h q[0:2];", "0 1 2"),
        ("h q[1:3:7];", "1 4 7"),
        ("h q[7:-3:0];", "7 4 1"),
        ("h q[{0, 5, 2}];", "0 5 2"),
        ("h q[-1];", "7"),
        ("h q[-3:-1];", "5 6 7"),
        ("h q[6:];", "6 7"),
        ("h q[:1];", "0 1"),
        ("h q[:4:];", "0 4"),
        ("h q[::1];", "0 1"),
        ("let a = q[2:4]; h a;", "2 3 4"),
        ("let a = q[2:4]; h a[-1]; h a[0:1];", "4 2 3"),
        ("let a = q[0:1] ++ q[{7}] ++ q[4]; let b = a[1:3]; h b;", "1 7 4"),
        ("h q[2:6][1:2:4][1];", "5"),
        ("const int k = 1; let a = q[k:k+1]; h a[k];", "2"),
    ] {
        let expected: Vec<String> = expected.split(' ').map(|q| format!("h q[{q}];")).collect();
        assert_eq!(texts(&format!("qubit[8] q; {source}")), expected, "{source}");
    }
    assert_eq!(texts("qubit[4] q; cx q[0:1], q[2:3];"), ["cx q[0],q[2];", "cx q[1],q[3];"]);
    assert_eq!(texts("qubit[4] q; cx q[0], q[2:3];"), ["cx q[0],q[2];", "cx q[0],q[3];"]);
    for (source, expected) in [
        ("h q[0:8];", "line 1, column 17: 'q' has 8 elements, the range goes to 8"),
        ("h q[-9];", "there is no -9"),
        ("h q[{1,8}];", "there is no 8"),
        ("h q[3:0];", "the range from 3 to 0 is empty; a descending range needs a negative step"),
        ("h q[0.5];", "the index is 0.5"),
        ("h q[];", "expected ':'"),
        ("let a = q[0:1] ++ q[1];", "qubit 1 is twice in this alias"),
        ("let q = q[0];", "'q' is declared already"),
        ("cx q[0:2], q[3:4];", "registers of different sizes"),
        ("cx q[0:1], q[1:2]; cx q[0:1], q[0:1];", "qubit 0 is used twice"),
    ] {
        let found = error(&format!("qubit[8] q; {source}"));
        assert!(found.contains(expected), "{found}\n{expected}");
    }
}

#[test]
fn qubits_of_the_hardware() {
    let circuit = parse("bit[2] c; h $0; cx $0, $2; c[0] = measure $2;").unwrap();
    assert_eq!((circuit.qubits, circuit.measured), (3, vec![2]));
    assert_eq!(circuit.operations[1].raw_text, "cx q[0],q[2];");
    assert!(error("qubit q; h $0;").contains("line 1, column 12: the circuit has registers"));
    assert!(error("h $0; qubit q;").contains("so it can't have registers"));
    assert!(error("h $20;").contains("there is no $20"));
    assert!(error("gate g a { h $0; }").contains("expected a qubit of the gate, found '$0'"));
}

#[test]
fn inputs_come_with_the_job() {
    let source = "input float theta; input angle[32] x; input int n; input uint[2] m; qubit[4] q;
        gate g(a) t { rx(a + theta) t; } rx(theta) q[0]; p(2*x) q[m]; for int i in [0:n] g(i) q[i];";
    let inputs = |list: &[(&str, f64)]| list.iter().map(|(name, value)| (name.to_string(), *value)).collect();
    let all = [("theta", 0.5), ("x", -1.0), ("n", 1.0), ("m", 3.0)];
    let circuit = parse_with_inputs(source, &inputs(&all)).unwrap();
    let texts: Vec<&str> = circuit.operations.iter().map(|o| &*o.raw_text).collect();
    assert_eq!(texts, ["rx(0.5) q[0];", "p(-2) q[3];", "rx(0.5) q[0];", "rx(1.5) q[1];"]);
    assert_eq!(circuit.inputs, ["theta", "x", "n", "m"]);
    for (name, value, expected) in [
        ("theta", None, "line 1, column 13: the input 'theta' has no value: give one with the job"),
        ("n", None, "the input 'n' has no value"),
        ("n", Some(0.5), "the input 'n' is 0.5, a whole number from -2147483648 to 2147483647 is needed"),
        ("m", Some(4.0), "the input 'm' is 4, a whole number from 0 to 3 is needed"),
        ("x", Some(f64::NAN), "a finite number is needed"),
    ] {
        let mut given = inputs(&all);
        given.remove(name);
        given.extend(value.map(|value| (name.to_string(), value)));
        let error = parse_with_inputs(source, &given).unwrap_err();
        assert!(error.is_input && error.to_string().contains(expected), "{error}");
    }
    assert!(error("input bit[2] c; qubit q; x q;").contains("inputs of type 'bit'"));
    assert!(error("input float t; input float t; qubit q; x q;").contains("no value"));
}

#[test]
fn a_constant_has_a_value_of_its_type() {
    for (constant, expected) in [
        ("int n = 2.7", "line 1, column 11: the constant 'n' is 2.7, a whole number from -2147483648 to"),
        ("int n = 5/2", "the constant 'n' is 2.5"),
        ("uint n = -1", "the constant 'n' is -1, a whole number from 0 to 4294967295 is needed"),
        ("int[4] n = 8", "the constant 'n' is 8, a whole number from -8 to 7 is needed"),
    ] {
        let found = error(&format!("const {constant}; qubit q; h q;"));
        assert!(found.contains(expected), "{found}\n{expected}");
    }
    assert_eq!(texts("const int[4] n = 7; const float t = 5/2; qubit q; rx(n*t) q;"), ["rx(17.5) q[0];"]);
}

#[test]
fn a_reset_of_a_fresh_qubit_does_nothing() {
    assert_eq!(texts("qubit[2] q; reset q; h q[0]; reset q[1]; reset q[1]; x q[1];"), ["h q[0];", "x q[1];"]);
    assert_eq!(texts("qubit[2] q; for int i in [0:1] { reset q[i]; h q[i]; }").len(), 2);
    assert!(error("qubit[2] q; cx q[0], q[1]; reset q[1];").contains("line 1, column 28: qubit 1 was used"));
}

#[test]
fn measured_bits_are_in_the_order_of_the_registers() {
    let bits = |source: &str| -> String {
        let circuit = parse(source).unwrap_or_else(|e| panic!("{e}\n{source}"));
        let shown = |m: &MeasuredBit| format!("{}={}", m.bit.clone().unwrap_or_default(), m.qubit);
        circuit.bits.iter().map(shown).collect::<Vec<_>>().join(" ")
    };
    let begin = "qubit[3] q; bit[2] c; bit d; creg e[2]; h q;";
    for (measurements, expected) in [
        ("c[1] = measure q[0]; c[0] = measure q[1];", "c[0]=1 c[1]=0"),
        ("d = measure q[0]; c = measure q[1:2];", "c[0]=1 c[1]=2 d=0"),
        ("measure q[2]; measure q[0] -> e[1]; measure q[1] -> e[0];", "e[0]=1 e[1]=0 =2"),
        ("c[1:-1:0] = measure q[0:1];", "c[0]=1 c[1]=0"),
        ("c[{1, 0}] = measure q[{2, 0}];", "c[0]=0 c[1]=2"),
        ("c[0] = measure q[0]; c[0] = measure q[1];", "c[0]=1"),
        ("bit[2] f = measure q[1:2];", "f[0]=1 f[1]=2"),
        ("measure q;", "=0 =1 =2"),
    ] {
        assert_eq!(bits(&format!("{begin} {measurements}")), expected, "{measurements}");
    }
    let circuit = parse(&format!("{begin} c[1] = measure q[0]; c[0] = measure q[1];")).unwrap();
    assert_eq!(circuit.measured, [0, 1], "in the order of the source");
    assert!(error(&format!("{begin} c = measure q[0];")).contains("1 qubits are measured into 2 bits"));
    assert!(error(&format!("{begin} measure q[0]; c[0] = measure q[0];")).contains("measured twice"));
}

#[test]
fn operations_of_the_public_dialect() {
    let shown = |source: &str| -> Vec<String> {
        let circuit = parse(&format!("qubit[4] q; {source}")).unwrap_or_else(|e| panic!("{e}\n{source}"));
        circuit.operations.iter().map(|o| format!("{} {}", o.service, o.raw_text)).collect()
    };
    assert_eq!(shown("qft q[0:2];"), ["qft qft q[0],q[1],q[2];"]);
    assert_eq!(shown("iqft q[3], q[1];"), ["qft iqft q[3],q[1];"]);
    assert_eq!(shown("bell_pair q[0], q[1];"), ["bell_pair bell_pair q[0],q[1];"]);
    assert_eq!(shown("teleport q[0], q[1];"), ["teleportation teleport q[0],q[1];"]);
    assert_eq!(shown("inv @ qft q[0:1];"), ["qft iqft q[0],q[1];"]);
    assert_eq!(shown("controlled h q[0], q[1];"), ["controlled_unitary controlled h q[0],q[1];"]);
    assert_eq!(shown("controlled x q[0:2];"), ["controlled_unitary ccx q[0],q[1],q[2];"]);
    assert_eq!(shown("controlled u q[0], q[1];"), ["cnot cx q[0],q[1];"]);
    assert_eq!(shown("controlled u(0.5) q[0], q[1];"), ["controlled_unitary controlled p(0.5) q[0],q[1];"]);
    assert_eq!(shown("controlled swap q[0], q[1], q[2];"), ["controlled_unitary cswap q[0],q[1],q[2];"]);
    // A source's own gates go before.
    assert_eq!(shown("gate bell_pair a, b { x a; z b; } bell_pair q[0], q[1];").len(), 2);
    assert_eq!(shown("gate controlled a { x a; } controlled q[0];"), ["programmable_gate x q[0];"]);
    // Modifiers mean what they mean for every gate.
    same("inv @ bell_pair q[0], q[1];", "cx q[0], q[1]; h q[0];");
    same("ctrl @ bell_pair q[2], q[0], q[1];", "ch q[2], q[0]; ccx q[2], q[0], q[1];");
    same("ctrl @ teleport q[2], q[0], q[1];", "cswap q[2], q[0], q[1];");
    same("qft q; iqft q; x q[0];", "x q[0];");
    same("ctrl @ qft q[3], q[0], q[1], q[2]; ctrl @ iqft q[3], q[0], q[1], q[2]; x q[0];", "x q[0];");
    same("qft q[0:1];", "h q[1]; cp(pi/2) q[0], q[1]; h q[0]; swap q[0], q[1];");
    same(
        "ctrl @ qft q[3], q[0:1];",
        "ch q[3], q[1]; ctrl @ cp(pi/2) q[3], q[0], q[1]; ch q[3], q[0]; cswap q[3], q[0], q[1];",
    );
    same("x q[3]; ctrl @ qft q[3], q[0:2]; x q[3];", "negctrl @ qft q[3], q[0:2];");
    for (source, expected) in [
        ("controlled qft q[0], q[1];", "use ctrl @"),
        ("controlled h q[0];", "'controlled' needs more than 1 qubits"),
        ("controlled nothing q[0], q[1];", "the gate 'nothing' is not known"),
        ("bell_pair q[0];", "'bell_pair' takes 2 qubits"),
    ] {
        let found = error(&format!("qubit[4] q; {source}"));
        assert!(found.contains(expected), "{found}\n{expected}");
    }
}

#[test]
fn a_controlled_u_is_sent_in_parts_that_every_worker_reads_alike() {
    let parts = texts("qubit[3] q; ctrl(2) @ u(0.5, 0.25, 1) q[0], q[1], q[2];");
    assert_eq!(
        parts,
        [
            "controlled rz(1) q[0],q[1],q[2];",
            "controlled ry(0.5) q[0],q[1],q[2];",
            "controlled rz(0.25) q[0],q[1],q[2];",
            "controlled p(0.625) q[0],q[1];"
        ]
    );
    assert_eq!(texts("qubit[2] q; cu3(0,0,1) q[0], q[1];"), ["controlled rz(1) q[0],q[1];", "p(0.5) q[0];"]);
    // As the matrix of u, by its definition in qelib1.inc.
    same(
        "cu3(0.5, 0.25, 1) q[0], q[1];",
        "p(0.625) q[0]; p(0.375) q[1]; cx q[0], q[1]; u(-0.25, 0, -0.625) q[1]; cx q[0], q[1]; u(0.25, 0.25, 0) q[1];",
    );
}

#[test]
fn u0_takes_a_length_and_does_nothing() {
    same("u0(3) q[0]; x q[0];", "x q[0];");
    assert!(error("qubit q; u0 q;").contains("'u0' takes 1 parameters"));
}
