use super::*;
use crate::peers::amplitude::zeros;
use crate::peers::evolution::apply;

fn run(service: &str, text: &str, qubits: &[i64], ids: &[i64], from: usize) -> Vec<Complex> {
    let effect = effect(service, text, qubits).unwrap();
    let mut state = zeros(ids.len());
    state.swap(0, from);
    apply(&mut state, &lower(&effect.operations, ids).unwrap());
    state
}

fn close(a: &[Complex], b: &[Complex]) -> bool {
    a.iter().zip(b).all(|([a, b], [c, d])| (a - c).abs() < 1e-12 && (b - d).abs() < 1e-12)
}

#[test]
fn the_fourier_transform_is_its_formula() {
    for n in 1..=4_usize {
        let ids: Vec<i64> = (0..n as i64).collect();
        let size = 1 << n;
        for j in 0..size {
            for (name, sign) in [("qft q", 1.0), ("iqft q", -1.0)] {
                let expected: Vec<Complex> = (0..size)
                    .map(|k| {
                        let angle = sign * 2.0 * PI * (j * k) as f64 / size as f64;
                        [angle.cos() / (size as f64).sqrt(), angle.sin() / (size as f64).sqrt()]
                    })
                    .collect();
                assert!(close(&run("qft", name, &ids, &ids, j), &expected), "{name} {n} qubits |{j}>");
            }
        }
    }
}

#[test]
fn the_order_of_qubits_counts() {
    // Qubits 4, 1, 7 are bits 0, 1, 2 of the index; bell pair on 7 and 4.
    let state = run("bell_pair", "", &[7, 4], &[4, 1, 7], 0);
    let r = FRAC_1_SQRT_2;
    let mut expected = vec![[0.0, 0.0]; 8];
    expected[0] = [r, 0.0];
    expected[0b101] = [r, 0.0];
    assert!(close(&state, &expected));
}

#[test]
fn swaps_with_and_without_controls() {
    for from in 0..8 {
        let swapped = from & 0b001 | (from & 0b010) << 1 | (from & 0b100) >> 1;
        let mut expected = vec![[0.0, 0.0]; 8];
        expected[if from & 1 == 1 { swapped } else { from }] = [1.0, 0.0];
        assert!(close(&run("x1", "cswap a,b,c", &[0, 1, 2], &[0, 1, 2], from), &expected), "{from}");
        let mut expected = vec![[0.0, 0.0]; 8];
        expected[swapped] = [1.0, 0.0];
        assert!(close(&run("x1", "swap b,c", &[1, 2], &[0, 1, 2], from), &expected), "{from}");
    }
}

#[test]
fn counts_and_depths_are_those_of_the_contract() {
    let count = |service, qubits: &[i64]| {
        let effect = effect(service, "", qubits).unwrap();
        (effect.operations.len(), depth(&effect.operations), effect.measured.len())
    };
    assert_eq!(count("qft", &[1, 2, 3]), (1, 1, 0));
    assert_eq!(count("bell_pair", &[1, 2]), (2, 2, 0));
    assert_eq!(count("measurement_feedforward", &[1, 2]), (0, 0, 2));
    assert_eq!(count("hadamard", &[1, 2, 3]), (3, 1, 0));
    assert_eq!(count("controlled_unitary", &[1, 2, 3]), (2, 2, 0));
    assert_eq!(count("distillation", &[1]), (0, 0, 0));
}

#[test]
fn failures_name_the_statement() {
    for (text, service, qubits, part) in [
        ("foo q[0];", "programmable_gate", &[7][..], "foo q[0]"),
        ("rx q[0];", "programmable_gate", &[7], "rx"),
        ("u(1,2) q[0];", "programmable_gate", &[7], "u(1,2)"),
        ("cx q[0],q[1];", "programmable_gate", &[7], "cx"),
        ("controlled h a", "programmable_gate", &[7], "controlled h"),
        ("controlled foo a,b", "programmable_gate", &[7, 4], "foo"),
        ("rx(1/0) q[0];", "programmable_gate", &[7], "rx(1/0)"),
        ("cx a,b", "programmable_gate", &[7, 7], "twice"),
        ("", "cnot", &[7, 7], "twice"),
        ("", "no_such_service", &[7], "no_such_service"),
        ("", "bell_pair", &[7], "2 qubits"),
        ("h(1) q", "hadamard", &[7], "h(1) q"),
    ] {
        let error = effect(service, text, qubits).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let far = effect("cnot", "", &[7, 9]).unwrap();
    assert!(lower(&far.operations, &[4, 1, 7]).unwrap_err().to_string().contains("qubit 9"));
}

#[test]
fn every_matrix_is_unitary() {
    let gates = [
        Gate::Id,
        Gate::H,
        Gate::X,
        Gate::Y,
        Gate::Z,
        Gate::S,
        Gate::Sdg,
        Gate::T,
        Gate::Tdg,
        Gate::Sx,
        Gate::Sxdg,
        Gate::Rx(0.3),
        Gate::Ry(1.1),
        Gate::Rz(-2.0),
        Gate::Phase(0.7),
        Gate::U(0.1, 0.2, 0.3),
    ];
    for gate in gates {
        let m = matrix(gate);
        for (a, b) in [(0, 0), (0, 1), (1, 1)] {
            let dot = (0..2).fold([0.0, 0.0], |[re, im], column| {
                let ([x, y], [u, v]) = (m[2 * a + column], m[2 * b + column]);
                [re + x * u + y * v, im + y * u - x * v]
            });
            let expected = if a == b { 1.0 } else { 0.0 };
            assert!((dot[0] - expected).abs() < 1e-12 && dot[1].abs() < 1e-12, "{gate:?}");
        }
    }
}
