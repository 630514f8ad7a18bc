use super::*;
use crate::qasm::parse;

fn peer(id: &str, load: u64) -> Candidate {
    Candidate {
        peer_id: id.into(),
        services: SERVICES.iter().map(|s| s.to_string()).collect(),
        fidelity: BTreeMap::new(),
        load,
        penalty: 0.0,
    }
}

fn planned(source: &str, candidates: &[Candidate]) -> Plan {
    plan("plan-1", &parse(source).unwrap(), candidates).unwrap()
}

const GHZ: &str = "OPENQASM 2.0; include \"qelib1.inc\"; qreg q[3]; creg c[3]; h q[0]; cx q[0],q[1]; cx q[1],q[2]; measure q -> c;";

#[test]
fn a_ghz_state_grows_by_one_component_a_stage() {
    let plan = planned(GHZ, &[peer("a", 0)]);
    let shape: Vec<Vec<(String, Vec<u32>, usize)>> = plan
        .stages
        .iter()
        .map(|s| s.iter().map(|b| (b.block_id.clone(), b.qubits.clone(), b.components.len())).collect())
        .collect();
    let block = |id: &str, qubits: &[u32], components| (id.to_string(), qubits.to_vec(), components);
    assert_eq!(
        shape,
        [
            vec![block("block-s01-b01", &[0], 1)],
            vec![block("block-s02-b01", &[0, 1], 2)],
            // The measurement of qubit 0 shares the component of the second cx.
            // The other measurements are on what it has made.
            vec![block("block-s03-b01", &[0, 1, 2], 2)],
        ]
    );
    let third = &plan.stages[2][0];
    assert_eq!(third.service_id, BUNDLE);
    assert_eq!(third.services, ["cnot", "measurement_feedforward"]);
    assert_eq!(third.fragment_ids, ["frag-0003", "frag-0004", "frag-0005", "frag-0006"]);
    assert_eq!(third.predecessors, ["block-s02-b01"]);
    assert_eq!(plan.fragments[2].dependencies, ["frag-0002"]);
    assert_eq!(plan.fragments[2].operation_id, "op-0003");
}

#[test]
fn gates_on_one_component_are_one_block() {
    let chain = "OPENQASM 3; include \"stdgates.inc\"; qubit[3] q; h q[0]; x q[0]; h q[1]; cx q[0], q[1]; t q[1]; cx q[1], q[0]; x q[2]; s q[2]; cx q[1], q[2]; h q[2];";
    let plan = planned(chain, &[peer("a", 0)]);
    let shape: Vec<Vec<usize>> =
        plan.stages.iter().map(|s| s.iter().map(|b| b.fragments.len()).collect()).collect();
    assert_eq!(shape, [vec![2, 1, 2], vec![3], vec![2]]);
    let second = &plan.stages[1][0];
    assert_eq!(second.fragment_ids, ["frag-0004", "frag-0005", "frag-0006"]);
    assert_eq!(second.predecessors, ["block-s01-b01", "block-s01-b02"]);
    // Each fragment is in one block, behind those that it depends on.
    let order: Vec<usize> = plan.stages.iter().flatten().flat_map(|b| b.fragments.clone()).collect();
    let place = |id: &String| order.iter().position(|f| plan.fragments[*f].fragment_id == *id);
    for fragment in &plan.fragments {
        assert!(
            fragment.dependencies.iter().all(|d| place(d) < place(&fragment.fragment_id)),
            "{fragment:?}"
        );
    }
    assert_eq!(order.len(), plan.fragments.len());
    let gates: String = (0..2000).map(|n| if n % 2 == 0 { "h q[0];" } else { "t q[0];" }).collect();
    let plan =
        planned(&format!("OPENQASM 3; include \"stdgates.inc\"; qubit[1] q; {gates}"), &[peer("a", 0)]);
    assert_eq!((plan.stages.len(), plan.stages[0].len(), plan.stages[0][0].fragments.len()), (1, 1, 2000));
}

#[test]
fn blocks_side_by_side_spread_over_the_peers() {
    let source = "OPENQASM 3; include \"stdgates.inc\"; qubit[3] q; h q;";
    let plan = planned(source, &[peer("a", 0), peer("b", 0), peer("c", 0)]);
    let primaries: Vec<&str> = plan.stages[0].iter().map(|b| b.candidates[0].peer_id.as_str()).collect();
    assert_eq!(primaries, ["a", "b", "c"]);
    assert_eq!(plan.stages[0][0].candidates.len(), 3);
}

#[test]
fn the_parts_of_a_rank_are_those_of_the_contract() {
    let source = "OPENQASM 3; include \"stdgates.inc\"; qubit[2] q; h q; cx q[0], q[1];";
    let mut good = peer("b", 1);
    good.fidelity.insert("cnot".into(), 0.5);
    let plan = planned(source, &[peer("a", 3), good, peer("c", 0)]);
    // Stage 1: loads 3, 1, 0 over 1 + 3; c takes the first block, and then c and b are even but for the load.
    let loads: Vec<f64> = plan.stages[0][0].candidates.iter().map(|r| r.load).collect();
    assert_eq!(loads, [0.0, 0.25, 0.75]);
    let second = &plan.stages[0][1].candidates;
    assert_eq!((second[0].peer_id.as_str(), second[0].load), ("b", 0.25));
    assert_eq!((second[1].peer_id.as_str(), second[1].load), ("c", 0.25));
    // Stage 2: two components of two primaries, two qubits.
    let ranked = &plan.stages[1][0].candidates;
    let of = |id: &str| ranked.iter().find(|r| r.peer_id == id).unwrap();
    assert_eq!(of("c").movement, 0.11, "primary of a predecessor: 0 + 0.08 + 0.03");
    assert_eq!(of("a").movement, 0.41, "0.15 * 2 + 0.08 + 0.03");
    assert_eq!(of("b").fidelity, 0.5);
    assert_eq!(of("c").total, round6(0.55 * 0.01 + 0.2 * 0.11 + 0.25 * 0.25));
    assert_eq!(ranked[0].peer_id, "c");
}

#[test]
fn no_more_than_four_are_kept_and_none_is_an_error() {
    let peers: Vec<Candidate> = (0..9).map(|n| peer(&format!("p{n}"), 0)).collect();
    assert_eq!(planned(GHZ, &peers).stages[0][0].candidates.len(), 4);
    let mut poor = peer("a", 0);
    poor.services.retain(|s| s != "cnot");
    let error = plan("plan-1", &parse(GHZ).unwrap(), &[poor]).unwrap_err();
    assert_eq!(error.block_id, "block-s02-b01");
    assert!(error.to_string().contains("no healthy peer offers cnot"), "{error}");
}

#[test]
fn among_equals_a_coordinator_prefers_peers_of_its_own_and_roughly_equal_ones_are_equals() {
    let mut far = peer("c", 0);
    far.penalty = 0.05;
    let peers = [peer("a", 0), peer("b", 0), far];
    let block = planned(GHZ, &peers).stages[0][0].clone();
    let first = |step: f64, preferred: &str| {
        let ties = Ties { step, preference: |peer: &str| u64::from(peer != preferred) };
        rank(&block, &peers, &BTreeSet::new(), &BTreeMap::new(), &ties)[0].peer_id.clone()
    };
    assert_eq!((first(0.0, "a"), first(0.0, "b")), ("a".into(), "b".into()));
    assert_eq!(first(0.0, "c"), "a", "its rank is worse");
    assert_eq!(first(0.1, "c"), "c", "not by much");
}
