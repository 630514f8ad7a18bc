//! Pure: a coordinator's jobs as facts. What a restart finds unfinished here is run from the last stage whose states are
//! recorded.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::job_options::JobOptions;
use super::plan::Plan;

/// One thing that happened to a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum JobFact {
    Submitted {
        qasm: String,
        shots: u32,
        /// The peer id of the coordinator that runs it: coordinators may share a log.
        #[serde(default)]
        coordinator: String,
        #[serde(default)]
        options: JobOptions,
    },
    Planned {
        plan: Plan,
    },
    /// A candidate is tried: its reservation is recorded under this id.
    Attempted {
        block_id: String,
        attempt: u32,
        peer_id: String,
        reservation_id: String,
    },
    BlockCompleted {
        block_id: String,
        attempts: u32,
        peer_id: String,
        #[serde(default)]
        fidelity: Option<f64>,
        latency_ms: f64,
    },
    BlockFailed {
        block_id: String,
        attempts: u32,
        error: String,
    },
    /// So many stages are complete, with these states: a restart goes on from here.
    StageCompleted {
        stages: usize,
        components: Vec<ComponentRecord>,
    },
    /// A restart of the coordinator goes on with the job after so many stages.
    Resumed {
        stages: usize,
    },
    Completed {
        result: JobResult,
    },
    Failed {
        error: String,
    },
    /// Someone has cancelled the job: nothing of it is run any more.
    Cancelled {
        reason: String,
    },
    /// The peers of a cancelled job were told, or hold nothing for it any more. Until then a restart tells them.
    Released,
}

/// The state of some qubits in the middle of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComponentRecord {
    /// Bit k of an amplitude's index is the k-th of these.
    pub qubits: Vec<u32>,
    /// Real and imaginary parts; none: all zeros.
    pub amplitudes: Option<Vec<[f64; 2]>>,
    pub measured: Vec<u32>,
    pub previous_peer_id: Option<String>,
}

/// What a completed job has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobResult {
    /// How often each outcome was sampled. `bit_order` says how a key is read.
    pub counts: BTreeMap<String, u32>,
    /// The sampled qubits, in the order of the keys' characters or, for the order of the reference, reversed.
    pub measured_qubits: Vec<u32>,
    /// The classical bit of each of `measured_qubits`; null for those that are measured into none.
    #[serde(default)]
    pub measured_bits: Vec<Option<String>>,
    /// How keys are read, in words.
    pub bit_order: String,
    /// The probability of each outcome of all qubits that is possible. Character i of a key is qubit i, or for the order of
    /// the reference the last but i.
    #[serde(default)]
    pub probabilities: Option<BTreeMap<String, f64>>,
    /// The probability of each possible outcome of the measured qubits, with the keys of `counts`.
    #[serde(default)]
    pub measured_probabilities: Option<BTreeMap<String, f64>>,
    /// The final state.
    pub state: Option<FinalState>,
    /// By `q0` and so on, each of length 1 at most.
    #[serde(default)]
    pub bloch_vectors: Option<BTreeMap<String, BlochVector>>,
    /// The entropy of each qubit's entanglement with the others, in bits, by `q0|rest` and so on.
    #[serde(default)]
    pub entanglement_entropy: Option<BTreeMap<String, f64>>,
    /// The fidelity of the final state with that of a local simulation, from 0 to 1; null when it was not asked for.
    #[serde(default)]
    pub fidelity: Option<f64>,
    /// By the observables as they were given.
    #[serde(default)]
    pub observable_expectations: Option<BTreeMap<String, f64>>,
}

/// The expectation values of X, Y and Z of one qubit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct BlochVector {
    pub x: f64,
    pub y: f64,
    pub z: f64,
}

/// The state at the end of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FinalState {
    /// Bit k of an amplitude's index is the k-th of these qubits.
    pub qubit_ids: Vec<u32>,
    /// Complex numbers as peers write them.
    pub amplitudes: Vec<String>,
}

impl JobFact {
    pub fn kind(&self) -> &'static str {
        match self {
            JobFact::Submitted { .. } => "submitted",
            JobFact::Planned { .. } => "planned",
            JobFact::Attempted { .. } => "attempted",
            JobFact::BlockCompleted { .. } => "block_completed",
            JobFact::BlockFailed { .. } => "block_failed",
            JobFact::StageCompleted { .. } => "stage_completed",
            JobFact::Resumed { .. } => "resumed",
            JobFact::Completed { .. } => "completed",
            JobFact::Failed { .. } => "failed",
            JobFact::Cancelled { .. } => "cancelled",
            JobFact::Released => "released",
        }
    }

    /// Whether the job has ended with this fact.
    fn is_end(&self) -> bool {
        match self {
            JobFact::Completed { .. }
            | JobFact::Failed { .. }
            | JobFact::Cancelled { .. }
            | JobFact::Released => true,
            JobFact::Submitted { .. }
            | JobFact::Planned { .. }
            | JobFact::Attempted { .. }
            | JobFact::BlockCompleted { .. }
            | JobFact::BlockFailed { .. }
            | JobFact::StageCompleted { .. }
            | JobFact::Resumed { .. } => false,
        }
    }

    /// Whether a restart has nothing to do for the job after this fact. It tells the peers of a cancelled one.
    pub fn is_settled(&self) -> bool {
        self.is_end() && !matches!(self, JobFact::Cancelled { .. })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JobRefusal {
    #[error("there is no such job")]
    Unknown,
    #[error("there is such a job already")]
    Exists,
    #[error("the job has ended, so '{0}' can't be recorded")]
    Ended(&'static str),
    #[error("the job is not cancelled, so 'released' can't be recorded")]
    NotCancelled,
    #[error("the job was taken by another coordinator, so '{0}' can't be recorded")]
    NotOwner(&'static str),
}

/// Whether a fact may follow these.
///
/// # Errors
/// When the job hasn't begun, has begun already, or has ended.
pub fn may_follow<'a>(
    mut before: impl DoubleEndedIterator<Item = &'a JobFact>,
    fact: &JobFact,
) -> Result<(), JobRefusal> {
    match (before.next_back(), fact) {
        (None, JobFact::Submitted { .. }) => Ok(()),
        (None, _) => Err(JobRefusal::Unknown),
        (Some(_), JobFact::Submitted { .. }) => Err(JobRefusal::Exists),
        (Some(JobFact::Cancelled { .. }), JobFact::Released) => Ok(()),
        (Some(_), JobFact::Released) => Err(JobRefusal::NotCancelled),
        (Some(last), _) if last.is_end() => Err(JobRefusal::Ended(fact.kind())),
        (Some(_), _) => Ok(()),
    }
}

/// Whether a job with these facts goes on.
pub fn is_open<'a>(mut facts: impl DoubleEndedIterator<Item = &'a JobFact>) -> bool {
    facts.next_back().is_some_and(|f| !f.is_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_begins_once_and_ends_once() {
        let begin = JobFact::Submitted {
            qasm: "OPENQASM 2.0;".into(),
            shots: 10,
            coordinator: "me".into(),
            options: JobOptions::default(),
        };
        let end = JobFact::Failed { error: "the coordinator was stopped".into() };
        let none: [JobFact; 0] = [];
        assert_eq!(may_follow(none.iter(), &begin), Ok(()));
        assert_eq!(may_follow(none.iter(), &end), Err(JobRefusal::Unknown));
        assert_eq!(may_follow([begin.clone()].iter(), &end), Ok(()));
        assert_eq!(may_follow([begin.clone()].iter(), &begin), Err(JobRefusal::Exists));
        let ended = [begin.clone(), end.clone()];
        assert_eq!(may_follow(ended.iter(), &end), Err(JobRefusal::Ended("failed")));
        assert!(is_open([begin.clone()].iter()) && !is_open(ended.iter()) && !is_open(none.iter()));
        // A cancel is an end too, after which its peers are told.
        let cancel = JobFact::Cancelled { reason: "enough".into() };
        assert_eq!(may_follow([begin.clone()].iter(), &JobFact::Released), Err(JobRefusal::NotCancelled));
        let cancelled = [begin, cancel.clone()];
        assert_eq!(may_follow(cancelled.iter(), &end), Err(JobRefusal::Ended("failed")));
        assert_eq!(may_follow(cancelled.iter(), &cancel), Err(JobRefusal::Ended("cancelled")));
        assert_eq!(may_follow(cancelled.iter(), &JobFact::Released), Ok(()));
        assert!(!cancel.is_settled() && JobFact::Released.is_settled() && end.is_settled());
        let released = [cancel.clone(), JobFact::Released];
        assert_eq!(may_follow(released.iter(), &cancel), Err(JobRefusal::Ended("cancelled")));
    }

    /// Facts of jobs as they were recorded, the first ones by version 0.1.0.
    const STORED: [&str; 12] = [
        r#"{"kind":"submitted","qasm":"OPENQASM 3.0; qubit q; h q;","shots":10}"#,
        r#"{"kind":"planned","plan":{"fragments":[{"block_id":"block-s01-b01","dependencies":[],"fragment_id":"frag-0001","operation_id":"op-0001","qubits":[0],"raw_text":"h q[0];","service_id":"hadamard"}],"plan_id":"plan-1","qubits":1,"stages":[[{"block_id":"block-s01-b01","candidates":[{"fidelity":0.99,"load":0.0,"move":0.0,"peer_id":"12D3KooWa","total":0.0055}],"components":[[0]],"fragment_ids":["frag-0001"],"predecessors":[],"qubits":[0],"service_id":"hadamard","services":["hadamard"],"stage":1}]]}}"#,
        r#"{"kind":"attempted","block_id":"block-s01-b01","attempt":1,"peer_id":"12D3KooWa","reservation_id":"res-1"}"#,
        r#"{"kind":"block_completed","block_id":"block-s01-b01","attempts":1,"peer_id":"12D3KooWa","latency_ms":0.5}"#,
        r#"{"kind":"completed","result":{"bit_order":"character i of a key is the i-th of measured_qubits","counts":{"0":6,"1":4},"measured_qubits":[0],"state":{"amplitudes":["0.707106781187","0.707106781187"],"qubit_ids":[0]}}}"#,
        r#"{"kind":"stage_completed","stages":1,"components":[{"qubits":[0],"amplitudes":[[0.6,0.0],[0.0,0.8]],"measured":[],"previous_peer_id":"12D3KooWa"}]}"#,
        r#"{"kind":"resumed","stages":1}"#,
        r#"{"kind":"cancelled","reason":"enough"}"#,
        r#"{"kind":"released"}"#,
        r#"{"kind":"completed","result":{"bit_order":"character i of a key is the i-th of measured_qubits","counts":{},"measured_qubits":[],"state":null}}"#,
        r#"{"kind":"submitted","qasm":"input float a; qubit q; rx(a) q;","shots":10,"coordinator":"12D3KooWa","options":{"inputs":{"a":0.5},"results":["counts","probabilities","state","bloch_vectors","entanglement_entropy"],"observables":["Z"],"bit_order":"reference"}}"#,
        r#"{"kind":"completed","result":{"bit_order":"x","counts":{"0":10},"measured_qubits":[0],"measured_bits":["c[0]"],"probabilities":{"0":1.0},"measured_probabilities":{"0":1.0},"state":null,"bloch_vectors":{"q0":{"x":0.0,"y":0.0,"z":1.0}},"entanglement_entropy":{"q0|rest":0.0},"observable_expectations":{"Z":1.0}}}"#,
    ];

    /// Whether a value is another one, with more fields perhaps.
    fn has(value: &serde_json::Value, other: &serde_json::Value) -> bool {
        match other.as_object() {
            Some(fields) => fields.iter().all(|(key, field)| value.get(key).is_some_and(|v| has(v, field))),
            None => value == other,
        }
    }

    #[test]
    fn facts_of_earlier_versions_stay_readable_and_keep_their_meaning() {
        for text in STORED {
            let fact: JobFact = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let before: serde_json::Value = serde_json::from_str(text).unwrap();
            let after = serde_json::to_value(&fact).unwrap();
            assert!(has(&after, &before), "{after}\n{text}");
        }
    }
}
