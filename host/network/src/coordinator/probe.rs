//! Pure: whether a peer does what a statement says.
//!
//! A program of another kind may apply some default to a statement that it doesn't know and call that completed. So
//! before such a peer gets a kind of statement in a job it gets one of the kind alone, on a state whose outcome is known;
//! and before it gets several statements at once, two.
//! What it does wrong, or fails at, is not sent to it for a while.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::combine::Component;
use super::plan::{Block, PlannedFragment};
use crate::peers::evolution::{apply, fidelity};
use crate::peers::operation::{self, OperationError};
use crate::peers::statement;

/// How long a peer is not asked for what it did wrong.
const ASK_AGAIN: Duration = Duration::from_secs(600);
/// Largest difference between 1 and the fidelity of a right answer: amplitudes are sent with 12 decimals.
const TOLERANCE: f64 = 1e-9;
/// The qubit of the state that the statement does not touch.
const SPECTATOR: u32 = 0;
const BLOCK_ID: &str = "block-probe";

/// Statements that differ in nothing but their numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatementKind {
    /// It is one of several in a dispatch: some peers do the first alone. Behind those that are alone.
    is_repeated: bool,
    service_id: String,
    controlled: bool,
    name: String,
    params: usize,
    qubits: u32,
}

impl StatementKind {
    pub fn of(fragment: &PlannedFragment) -> StatementKind {
        let statement = statement::read(&fragment.raw_text);
        let (controlled, name, params) =
            statement.map_or((false, String::new(), 0), |s| (s.controlled, s.name, s.params.len()));
        let (service_id, qubits) = (fragment.service_id.clone(), fragment.qubits.len() as u32);
        StatementKind { is_repeated: false, service_id, controlled, name, params, qubits }
    }

    /// The kinds of a block's statements, and that there are several: of a kind with a small state.
    pub fn of_block(fragments: &[&PlannedFragment]) -> BTreeSet<StatementKind> {
        let mut kinds: BTreeSet<StatementKind> =
            fragments.iter().map(|fragment| StatementKind::of(fragment)).collect();
        let smallest = kinds.iter().min_by_key(|kind| kind.qubits).cloned();
        if fragments.len() > 1
            && let Some(smallest) = smallest
        {
            kinds.insert(StatementKind { is_repeated: true, ..smallest });
        }
        kinds
    }
}

impl fmt::Display for StatementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let controlled = if self.controlled { "controlled " } else { "" };
        let name = if self.name.is_empty() { &self.service_id } else { &self.name };
        let plural = if self.qubits == 1 { "" } else { "s" };
        let repeated = if self.is_repeated { " as one of several statements" } else { "" };
        write!(f, "{controlled}{name} on {} qubit{plural}{repeated}", self.qubits)
    }
}

/// A statement of a kind, or two of them, a state for it, and what it makes of that.
#[derive(Debug, Clone)]
pub struct Probe {
    pub fragments: Vec<PlannedFragment>,
    pub block: Block,
    pub state: Component,
    expected: Component,
}

impl Probe {
    /// # Errors
    /// When the kind is not one that peers are sent.
    pub fn new(kind: &StatementKind) -> Result<Probe, OperationError> {
        let statements = if kind.is_repeated { 2 } else { 1 };
        let fragments: Vec<PlannedFragment> = (0..statements).map(|n| fragment(kind, n)).collect();
        let qubits: Vec<u32> = (SPECTATOR..kind.qubits + statements).collect();
        let amplitudes = telling_state(qubits.len());
        let ids: Vec<i64> = qubits.iter().map(|q| i64::from(*q)).collect();
        let (mut expected, mut measured) = (amplitudes.clone(), Vec::new());
        for fragment in &fragments {
            let targets: Vec<i64> = fragment.qubits.iter().map(|q| i64::from(*q)).collect();
            let effect = operation::effect(&fragment.service_id, &fragment.raw_text, &targets)?;
            apply(&mut expected, &operation::lower(&effect.operations, &ids)?);
            measured.extend(effect.measured.iter().filter_map(|q| u32::try_from(*q).ok()));
        }
        let state = Component {
            qubits: qubits.clone(),
            amplitudes: Some(amplitudes),
            measured: Vec::new(),
            previous_peer_id: None,
        };
        let expected = Component { amplitudes: Some(expected), measured, ..state.clone() };
        let block = Block {
            block_id: BLOCK_ID.into(),
            stage: 1,
            service_id: kind.service_id.clone(),
            services: vec![kind.service_id.clone()],
            fragment_ids: fragments.iter().map(|f| f.fragment_id.clone()).collect(),
            components: vec![qubits.clone()],
            qubits,
            predecessors: Vec::new(),
            candidates: Vec::new(),
            fragments: (0..fragments.len()).collect(),
        };
        Ok(Probe { fragments, block, state, expected })
    }

    /// Whether a peer's answer is the right one.
    pub fn is_right(&self, answer: &Component) -> bool {
        agree(&self.expected, answer)
    }
}

/// Whether two answers to one dispatch say the same.
pub fn agree(a: &Component, b: &Component) -> bool {
    let measured = |c: &Component| c.measured.iter().copied().collect::<BTreeSet<u32>>();
    let same = match (&a.amplitudes, &b.amplitudes) {
        (Some(a), Some(b)) => 1.0 - fidelity(a, b) < TOLERANCE,
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    };
    same && measured(a) == measured(b)
}

/// The n-th statement of a probe. Its qubits are not in order, beside one that must stay as it is, and not those of the
/// statement before.
fn fragment(kind: &StatementKind, n: u32) -> PlannedFragment {
    let on: Vec<u32> = (1 + n..=kind.qubits + n).rev().collect();
    PlannedFragment {
        fragment_id: format!("frag-{:04}", n + 1),
        operation_id: format!("op-{:04}", n + 1),
        service_id: kind.service_id.clone(),
        raw_text: raw_text(kind, &on),
        qubits: on,
        dependencies: Vec::new(),
        block_id: BLOCK_ID.into(),
    }
}

/// A statement of this kind with numbers that make it differ from every default.
fn raw_text(kind: &StatementKind, on: &[u32]) -> String {
    if kind.name.is_empty() {
        return String::new();
    }
    let controlled = if kind.controlled { "controlled " } else { "" };
    let params: Vec<String> = (0..kind.params).map(|n| format!("{}", 0.7 + 0.4 * n as f64)).collect();
    let params = if params.is_empty() { String::new() } else { format!("({})", params.join(",")) };
    let operands: Vec<String> = on.iter().map(|q| format!("q[{q}]")).collect();
    format!("{controlled}{}{params} {};", kind.name, operands.join(","))
}

/// A state of norm 1 that no gate leaves as it is and no two gates change alike: all its amplitudes differ, in absolute
/// value and in phase.
fn telling_state(qubits: usize) -> Vec<[f64; 2]> {
    let raw: Vec<[f64; 2]> = (0..1_usize << qubits)
        .map(|n| {
            let (n, phase) = (n as f64, 0.9 * (n * n) as f64 + 0.3);
            let size = 1.0 + (1.7 * n).sin() / 2.0;
            [size * phase.cos(), size * phase.sin()]
        })
        .collect();
    let norm = raw.iter().map(|[re, im]| re * re + im * im).sum::<f64>().sqrt();
    raw.into_iter().map(|[re, im]| [re / norm, im / norm]).collect()
}

/// What each peer of another kind was seen to do.
#[derive(Debug, Clone, Default)]
pub struct Proofs {
    peers: BTreeMap<String, PeerProofs>,
}

#[derive(Debug, Clone, Default)]
struct PeerProofs {
    /// How it names its program: another one is another peer.
    agent: String,
    kinds: BTreeMap<StatementKind, Proof>,
}

#[derive(Debug, Clone, Copy)]
enum Proof {
    Right,
    Wrong { since: Duration },
}

impl Proofs {
    /// The first of these kinds that a peer with this agent was not asked for yet.
    pub fn unproven(
        &self,
        now: Duration,
        peer: &str,
        agent: &str,
        kinds: &BTreeSet<StatementKind>,
    ) -> Option<StatementKind> {
        let known = self.peers.get(peer).filter(|p| p.agent == agent);
        let is_known = |kind: &&StatementKind| {
            known.and_then(|p| p.kinds.get(kind)).is_some_and(|proof| !is_over(*proof, now))
        };
        kinds.iter().find(|kind| !is_known(kind)).cloned()
    }

    /// Whether a peer was seen to do one of these wrong.
    pub fn does_wrong(&self, now: Duration, peer: &str, kinds: &BTreeSet<StatementKind>) -> bool {
        let Some(known) = self.peers.get(peer) else { return false };
        let wrong = |proof: &Proof| matches!(proof, Proof::Wrong { .. }) && !is_over(*proof, now);
        kinds.iter().any(|kind| known.kinds.get(kind).is_some_and(wrong))
    }

    pub fn record(&mut self, now: Duration, peer: &str, agent: &str, kind: StatementKind, right: bool) {
        let known = self.peers.entry(peer.into()).or_default();
        if known.agent != agent {
            *known = PeerProofs { agent: agent.into(), kinds: BTreeMap::new() };
        }
        known.kinds.insert(kind, if right { Proof::Right } else { Proof::Wrong { since: now } });
    }

    /// Forgets all but these peers.
    pub fn retain(&mut self, known: impl Fn(&str) -> bool) {
        self.peers.retain(|peer, _| known(peer));
    }
}

fn is_over(proof: Proof, now: Duration) -> bool {
    matches!(proof, Proof::Wrong { since } if now.saturating_sub(since) >= ASK_AGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::operation::{Gate, Operation};

    fn kind(service: &str, raw_text: &str, qubits: u32) -> StatementKind {
        StatementKind::of(&PlannedFragment {
            fragment_id: "frag-0001".into(),
            operation_id: "op-0001".into(),
            service_id: service.into(),
            qubits: (0..qubits).collect(),
            dependencies: Vec::new(),
            raw_text: raw_text.into(),
            block_id: String::new(),
        })
    }

    /// Without `p`, which is `rz` but for a global phase.
    fn kinds() -> Vec<StatementKind> {
        let one =
            ["x", "y", "z", "h", "s", "sdg", "t", "tdg", "sx", "sxdg", "rx(1)", "ry(1)", "rz(1)", "u(1,2,3)"];
        let two =
            ["cx", "cy", "cz", "swap", "controlled h", "controlled u(1)", "controlled rx(1)", "qft", "iqft"];
        let mut found: Vec<_> =
            one.iter().map(|name| kind("programmable_gate", &format!("{name} q[0];"), 1)).collect();
        found.extend(two.iter().map(|name| kind("controlled_unitary", &format!("{name} q[0],q[1];"), 2)));
        found.extend(["ccx", "cswap", "qft"].map(|name| kind("qft", &format!("{name} q[0],q[1],q[2];"), 3)));
        found.push(kind("measurement_feedforward", "measure q[3];", 1));
        found
    }

    #[test]
    fn the_right_answer_is_right_and_that_of_any_other_statement_is_wrong() {
        let probes: Vec<Probe> = kinds().iter().map(|kind| Probe::new(kind).unwrap()).collect();
        for (n, probe) in probes.iter().enumerate() {
            assert!(probe.is_right(&probe.expected), "{}", probe.fragments[0].raw_text);
            for other in probes.iter().enumerate().filter(|(m, other)| *m != n && other.state == probe.state)
            {
                assert!(!probe.is_right(&other.1.expected), "{:?} {:?}", probe.fragments, other.1.fragments);
            }
            // What it does with what it doesn't know: nothing, a default, or the operands the other way round.
            let idle = probe.state.clone();
            assert!(!probe.is_right(&idle), "{}", probe.fragments[0].raw_text);
            let ids: Vec<i64> = probe.state.qubits.iter().map(|q| i64::from(*q)).collect();
            let on: Vec<i64> = probe.fragments[0].qubits.iter().map(|q| i64::from(*q)).collect();
            let mut wrong = vec![vec![Operation::on(Gate::U(0.12, 0.34, 0.56), &on[..1])]];
            let backwards: Vec<i64> = on.iter().rev().copied().collect();
            let asymmetric = ["cx", "cy", "controlled h", "controlled rx", "ccx"];
            if asymmetric.iter().any(|name| probe.fragments[0].raw_text.starts_with(name)) {
                let effect = operation::effect(
                    &probe.fragments[0].service_id,
                    &probe.fragments[0].raw_text,
                    &backwards,
                )
                .unwrap();
                wrong.push(effect.operations);
            }
            for operations in wrong {
                let mut state = probe.state.clone();
                apply(state.amplitudes.as_mut().unwrap(), &operation::lower(&operations, &ids).unwrap());
                state.measured = probe.expected.measured.clone();
                assert!(!probe.is_right(&state), "{} {operations:?}", probe.fragments[0].raw_text);
            }
        }
    }

    #[test]
    fn of_several_statements_each_one_shows() {
        for kind in kinds() {
            let probe = Probe::new(&StatementKind { is_repeated: true, ..kind.clone() }).unwrap();
            assert_eq!(probe.fragments.len(), 2, "{kind}");
            let ids: Vec<i64> = probe.state.qubits.iter().map(|q| i64::from(*q)).collect();
            for (n, fragment) in probe.fragments.iter().enumerate() {
                let on: Vec<i64> = fragment.qubits.iter().map(|q| i64::from(*q)).collect();
                let effect = operation::effect(&fragment.service_id, &fragment.raw_text, &on).unwrap();
                let mut alone = probe.state.clone();
                apply(
                    alone.amplitudes.as_mut().unwrap(),
                    &operation::lower(&effect.operations, &ids).unwrap(),
                );
                alone.measured =
                    on.iter().filter(|_| !effect.measured.is_empty()).map(|q| *q as u32).collect();
                assert!(!probe.is_right(&alone), "{kind}: statement {n} alone");
            }
            assert!(probe.is_right(&probe.expected));
        }
    }

    #[test]
    fn several_statements_are_a_kind_too() {
        let planned = |text: &str, qubits: u32| PlannedFragment {
            fragment_id: "frag-0001".into(),
            operation_id: "op-0001".into(),
            service_id: "programmable_gate".into(),
            qubits: (0..qubits).collect(),
            dependencies: Vec::new(),
            raw_text: text.into(),
            block_id: String::new(),
        };
        let (swap, h) = (planned("swap q[0],q[1];", 2), planned("h q[0];", 1));
        let shown = |fragments: &[&PlannedFragment]| {
            StatementKind::of_block(fragments).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(shown(&[&h]), ["h on 1 qubit"]);
        assert_eq!(
            shown(&[&swap, &h, &h]),
            ["h on 1 qubit", "swap on 2 qubits", "h on 1 qubit as one of several statements"]
        );
    }

    #[test]
    fn statements_of_one_kind_differ_in_their_numbers_alone() {
        let of = |text: &str| kind("programmable_gate", text, 1);
        assert_eq!(of("rx(0.3) q[0];"), of("rx(pi/2) q[7];"));
        assert_ne!(of("rx(0.3) q[0];"), of("ry(0.3) q[0];"));
        assert_ne!(of("u(0.3) q[0];"), of("u(0.3,0,0) q[0];"));
        assert_eq!(of("rx(0.3) q[0];").to_string(), "rx on 1 qubit");
        assert_eq!(
            kind("controlled_unitary", "controlled u(1) q[0],q[1];", 2).to_string(),
            "controlled u on 2 qubits"
        );
        assert_eq!(kind("cnot", "", 2).to_string(), "cnot on 2 qubits");
    }

    #[test]
    fn what_was_seen_is_remembered_by_peer_and_agent() {
        let (mut proofs, now, later) = (Proofs::default(), Duration::ZERO, ASK_AGAIN);
        let kinds: BTreeSet<StatementKind> = kinds().into_iter().take(2).collect();
        let [first, second] = &kinds.iter().cloned().collect::<Vec<_>>()[..] else { unreachable!() };
        assert_eq!(proofs.unproven(now, "p", "py", &kinds).as_ref(), Some(first));
        proofs.record(now, "p", "py", first.clone(), true);
        assert_eq!(proofs.unproven(now, "p", "py", &kinds).as_ref(), Some(second));
        proofs.record(now, "p", "py", second.clone(), false);
        assert_eq!(proofs.unproven(now, "p", "py", &kinds), None);
        assert!(proofs.does_wrong(now, "p", &kinds) && !proofs.does_wrong(now, "q", &kinds));
        assert!(!proofs.does_wrong(now, "p", &BTreeSet::from([first.clone()])));
        assert!(!proofs.does_wrong(later, "p", &kinds), "it is asked again");
        assert_eq!(proofs.unproven(later, "p", "py", &kinds).as_ref(), Some(second));
        assert_eq!(proofs.unproven(now, "p", "py 2", &kinds).as_ref(), Some(first), "another program");
        proofs.record(now, "p", "py 2", first.clone(), true);
        assert!(!proofs.does_wrong(now, "p", &kinds));
        proofs.retain(|_| false);
        assert_eq!(proofs.unproven(now, "p", "py 2", &kinds).as_ref(), Some(first));
    }
}
