//! Pure: whether a peer does what a statement says.
//!
//! A program of another kind may apply some default to a statement that it doesn't know and call that completed. So
//! before such a peer gets a kind of statement in a job it gets one of the kind alone, on a state whose outcome is known.
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

/// Statements that differ in nothing but their numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StatementKind {
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
        StatementKind { service_id, controlled, name, params, qubits }
    }
}

impl fmt::Display for StatementKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let controlled = if self.controlled { "controlled " } else { "" };
        let name = if self.name.is_empty() { &self.service_id } else { &self.name };
        let plural = if self.qubits == 1 { "" } else { "s" };
        write!(f, "{controlled}{name} on {} qubit{plural}", self.qubits)
    }
}

/// A statement of a kind, a state for it, and what it makes of that.
#[derive(Debug, Clone)]
pub struct Probe {
    pub fragment: PlannedFragment,
    pub block: Block,
    pub state: Component,
    expected: Component,
}

impl Probe {
    /// # Errors
    /// When the kind is not one that peers are sent.
    pub fn new(kind: &StatementKind) -> Result<Probe, OperationError> {
        // Not in order, and beside a qubit that must stay as it is.
        let on: Vec<u32> = (1..=kind.qubits).rev().collect();
        let fragment = PlannedFragment {
            fragment_id: "frag-0001".into(),
            operation_id: "op-0001".into(),
            service_id: kind.service_id.clone(),
            qubits: on.clone(),
            dependencies: Vec::new(),
            raw_text: raw_text(kind, &on),
            block_id: "block-probe".into(),
        };
        let qubits: Vec<u32> = (SPECTATOR..=kind.qubits).collect();
        let amplitudes = telling_state(qubits.len());
        let ids: Vec<i64> = qubits.iter().map(|q| i64::from(*q)).collect();
        let targets: Vec<i64> = on.iter().map(|q| i64::from(*q)).collect();
        let effect = operation::effect(&fragment.service_id, &fragment.raw_text, &targets)?;
        let mut expected = amplitudes.clone();
        apply(&mut expected, &operation::lower(&effect.operations, &ids)?);
        let state = Component {
            qubits: qubits.clone(),
            amplitudes: Some(amplitudes),
            measured: Vec::new(),
            previous_peer_id: None,
        };
        let measured = effect.measured.iter().filter_map(|q| u32::try_from(*q).ok()).collect();
        let expected = Component { amplitudes: Some(expected), measured, ..state.clone() };
        let block = Block {
            block_id: fragment.block_id.clone(),
            stage: 1,
            service_id: kind.service_id.clone(),
            services: vec![kind.service_id.clone()],
            fragment_ids: vec![fragment.fragment_id.clone()],
            components: vec![qubits.clone()],
            qubits,
            predecessors: Vec::new(),
            candidates: Vec::new(),
            fragments: vec![0],
        };
        Ok(Probe { fragment, block, state, expected })
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
            assert!(probe.is_right(&probe.expected), "{}", probe.fragment.raw_text);
            for other in probes.iter().enumerate().filter(|(m, other)| *m != n && other.state == probe.state)
            {
                assert!(!probe.is_right(&other.1.expected), "{:?} {:?}", probe.fragment, other.1.fragment);
            }
            // What it does with what it doesn't know: nothing, a default, or the operands the other way round.
            let idle = probe.state.clone();
            assert!(!probe.is_right(&idle), "{}", probe.fragment.raw_text);
            let ids: Vec<i64> = probe.state.qubits.iter().map(|q| i64::from(*q)).collect();
            let on: Vec<i64> = probe.fragment.qubits.iter().map(|q| i64::from(*q)).collect();
            let mut wrong = vec![vec![Operation::on(Gate::U(0.12, 0.34, 0.56), &on[..1])]];
            let backwards: Vec<i64> = on.iter().rev().copied().collect();
            let asymmetric = ["cx", "cy", "controlled h", "controlled rx", "ccx"];
            if asymmetric.iter().any(|name| probe.fragment.raw_text.starts_with(name)) {
                let effect =
                    operation::effect(&probe.fragment.service_id, &probe.fragment.raw_text, &backwards)
                        .unwrap();
                wrong.push(effect.operations);
            }
            for operations in wrong {
                let mut state = probe.state.clone();
                apply(state.amplitudes.as_mut().unwrap(), &operation::lower(&operations, &ids).unwrap());
                state.measured = probe.expected.measured.clone();
                assert!(!probe.is_right(&state), "{} {operations:?}", probe.fragment.raw_text);
            }
        }
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
