use super::*;

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
        Ok(circuit) => panic!("{circuit:?}\n{source}"),
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
        (format!("{TWO}h q[3];"), "line 5, column 5: 'q' has 3 qubits, there is no 3"),
        (format!("{TWO}h r[0];"), "line 5, column 3: there is no quantum register 'r'"),
        (format!("{TWO}  rx q[0];"), "line 5, column 3: 'rx' takes 1 parameters, given are 0"),
        (format!("{TWO}h q[0]"), "line 5, column 7: expected ';', found the end of the source"),
        (format!("{TWO}cx q[0],q[0];"), "line 5, column 1: qubit 0 is used twice"),
        (format!("{TWO}if (c==1) x q[0];"), "line 5, column 1: 'if' needs answers"),
        (format!("{TWO}reset q[0];"), "line 5, column 1: 'reset' collapses"),
        (format!("{TWO}measure q[0]->c[0]; h q[0];"), "line 5, column 21: qubit 0 was measured before"),
        (format!("{TWO}measure q->c[0];"), "3 qubits are measured into 1 bits"),
        ("OPENQASM 2.0;\ninclude \"/etc/passwd\";".into(), "line 2, column 1: only \"qelib1.inc\""),
        ("OPENQASM 4.0;".into(), "line 1, column 10: OpenQASM 4"),
        ("qreg q[200];".into(), "the size is 200"),
        (format!("{TWO}rx(1/0) q[0];"), "no finite value"),
        (format!("{TWO}rx(x) q[0];"), "the name 'x' has no value"),
        (format!("{TWO}h q[0]; $"), "line 5, column 9: '$' can't stand here"),
        (format!("{TWO}/* open"), "line 5, column 1: this comment has no end"),
        (format!("{TWO}gate g a {{ g a; }} g q[0];"), "expands to too much"),
        (format!("{THREE}h q[0:1];"), "ranges of qubits"),
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
    let long = "1+".repeat(200_000);
    let calls = "g q[0];\n".repeat(5_000);
    let nested: String = (1..30).map(|n| format!("gate g{n} a {{ g{0} a; g{0} a; }}\n", n - 1)).collect();
    for (what, source, expected) in [
        ("a long expression in a body", format!("{TWO}gate g a {{ rx({long}1) a; }}\n{calls}"), "too much"),
        (
            "a long body that does nothing",
            format!("{TWO}gate g a {{ {} }}\n{calls}", "barrier a;".repeat(50_000)),
            "too much",
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
        // A debug build is many times slower.
        assert!(start.elapsed() < std::time::Duration::from_secs(5), "{what}: {:?}", start.elapsed());
    }
}
