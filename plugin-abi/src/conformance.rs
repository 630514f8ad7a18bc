//! What every executor must do, checked by running it (feature `conformance`).
//!
//! A [`Suite`] is made for a device as the executor describes it, and run against a [`Runner`]: a plugin
//! linked into a test ([`Linked`]) or one that the host has loaded. Each case compares counts with the
//! definition of the format, by an oracle of its own: dense matrices on at most 6 qubits, slow and plain.
//! The bound on the distance between counts and oracle follows from the number of shots: a correct executor
//! fails a case with a probability below [`SIGNIFICANCE`].

mod cases;
mod linked;
mod oracle;

use std::fmt;

pub use linked::{Linked, Setup};

use crate::device::Device;
use crate::ir::Program;
use crate::outcome::{Error, Outcome};
use cases::Want;

/// Probability that one case fails a correct executor.
pub const SIGNIFICANCE: f64 = 1e-9;

/// Runs a circuit on the executor under test.
pub trait Runner {
    /// # Errors
    /// The executor's own error.
    fn run(&mut self, program: &Program, shots: u32) -> Result<Outcome, Error>;
}

impl<F: FnMut(&Program, u32) -> Result<Outcome, Error>> Runner for F {
    fn run(&mut self, program: &Program, shots: u32) -> Result<Outcome, Error> {
        self(program, shots)
    }
}

/// One check.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: String,
    /// What the case is about: `bit order`, `format`, `one-qubit gates`, `two-qubit gates`, or the caller's own.
    pub group: &'static str,
    /// What an executor that fails it has most likely got wrong.
    pub change: &'static str,
    pub program: Program,
    pub shots: u32,
    want: Want,
}

impl Case {
    /// A case of the caller's own: counts near what the gates' definitions say, as far as the circuit uses no more
    /// qubits than the oracle takes, and well-formed in any case.
    pub fn exact(
        group: &'static str,
        name: impl Into<String>,
        change: &'static str,
        program: Program,
        shots: u32,
    ) -> Case {
        let want = oracle::probabilities(&program).map_or(Want::Form, Want::Distribution);
        Case { name: name.into(), group, change, program, shots, want }
    }
}

/// Why a case failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub expected: String,
    pub got: String,
    pub change: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "expected {}; got {}; {}", self.expected, self.got, self.change)
    }
}

/// What became of a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed(Failure),
}

/// The cases for one device.
#[derive(Debug, Clone)]
pub struct Suite {
    pub cases: Vec<Case>,
    /// Names of cases that this device can't be asked, with the reason.
    pub skipped: Vec<(String, String)>,
    /// Distance from the exact distribution that is forgiven, 0 for a simulator; for hardware what its
    /// error rates explain.
    pub allowed_error: f64,
}

impl Suite {
    /// The cases that fit the device's targets, qubits, connectivity and shots.
    pub fn for_device(device: &Device) -> Suite {
        let (cases, skipped) = cases::all(device);
        Suite { cases, skipped, allowed_error: 0.0 }
    }

    pub fn allowing(mut self, allowed_error: f64) -> Suite {
        self.allowed_error = allowed_error;
        self
    }

    /// Runs every case; `report` is told each verdict as it comes. Returns whether all passed.
    pub fn run(&self, runner: &mut dyn Runner, report: &mut dyn FnMut(&Case, &Verdict)) -> bool {
        let mut all = true;
        for case in &self.cases {
            let verdict = match self.check(case, runner) {
                Ok(()) => Verdict::Passed,
                Err(failure) => Verdict::Failed(failure),
            };
            all &= verdict == Verdict::Passed;
            report(case, &verdict);
        }
        all
    }

    /// Runs one case.
    ///
    /// # Errors
    /// What was expected, what came, and what to change.
    pub fn check(&self, case: &Case, runner: &mut dyn Runner) -> Result<(), Failure> {
        let fail = |expected: String, got: String, change: &str| {
            Err(Failure { expected, got, change: change.to_string() })
        };
        let outcome = match runner.run(&case.program, case.shots) {
            Ok(outcome) => outcome,
            Err(e) => {
                let got = format!("the error '{e}'");
                return fail("counts".into(), got, "run every circuit that fits what `device` says");
            }
        };
        check_form(case, &outcome)?;
        match &case.want {
            Want::Form => Ok(()),
            Want::Distribution(exact) => {
                let distance = distance(exact, &outcome, case.shots);
                let bound = bound(exact.len(), case.shots) + self.allowed_error;
                if distance <= bound {
                    return Ok(());
                }
                let reversed: Vec<_> =
                    exact.iter().map(|(key, p)| (key.chars().rev().collect::<String>(), *p)).collect();
                let change = if self::distance(&reversed, &outcome, case.shots) <= bound {
                    "the keys are reversed: character i of a key is the outcome of measurements[i]"
                } else {
                    case.change
                };
                let expected = format!(
                    "about {} (distance at most {bound:.4})",
                    text(exact.iter().map(|(k, p)| (k, *p)))
                );
                let seen = outcome.counts.iter().map(|(k, n)| (k, *n as f64 / f64::from(case.shots)));
                fail(expected, format!("{} (distance {distance:.4})", text(seen)), change)
            }
        }
    }
}

/// What holds for every answer, whatever the circuit.
fn check_form(case: &Case, outcome: &Outcome) -> Result<(), Failure> {
    let fail = |expected: String, got: String, change: &str| {
        Err(Failure { expected, got, change: change.to_string() })
    };
    let len = case.program.measurements().len();
    let mut seen = std::collections::BTreeSet::new();
    let mut sum = 0i64;
    for (key, count) in &outcome.counts {
        if key.chars().count() != len || key.chars().any(|c| c != '0' && c != '1') {
            return fail(
                format!("keys of {len} characters, each 0 or 1"),
                format!("the key {key:?}"),
                "return one character per entry of `measurements`",
            );
        }
        if !seen.insert(key) {
            return fail("each key once".into(), format!("{key:?} twice"), "add up the counts of equal keys");
        }
        let measurements = case.program.measurements();
        let by_qubit: Vec<(u16, char)> = measurements.iter().copied().zip(key.chars()).collect();
        if by_qubit.iter().any(|(q, c)| by_qubit.iter().any(|(r, d)| q == r && c != d)) {
            return fail(
                format!("equal characters for a qubit that {measurements:?} lists twice"),
                format!("the key {key:?}"),
                "measure each qubit once and repeat its outcome",
            );
        }
        if *count < 0 {
            return fail(
                "counts of 0 or more".into(),
                format!("{count} for {key:?}"),
                "return how often a key was seen",
            );
        }
        sum = sum.saturating_add(*count);
    }
    if sum != i64::from(case.shots) {
        return fail(
            format!("counts that add up to {} shots", case.shots),
            format!("a sum of {sum}"),
            "return every shot that was asked for",
        );
    }
    if let Some(n) = outcome.shots_completed.filter(|n| *n != sum) {
        return fail(
            format!("shots_completed to be the sum of the counts, {sum}"),
            n.to_string(),
            "leave shots_completed out or set it to the sum",
        );
    }
    match outcome.execution_time_ms {
        Some(ms) if !(ms.is_finite() && ms >= 0.0) => fail(
            "a finite execution time of 0 ms or more".into(),
            format!("{ms} ms"),
            "leave the time out when it isn't known",
        ),
        _ => Ok(()),
    }
}

/// Total-variation distance between counts and exact probabilities.
fn distance(exact: &[(String, f64)], outcome: &Outcome, shots: u32) -> f64 {
    let seen = |key: &str| {
        let n = outcome.counts.iter().find(|(k, _)| k == key).map_or(0, |(_, n)| *n);
        n as f64 / f64::from(shots)
    };
    // Half the sum of differences; what is seen outside of `exact` differs by all of itself.
    let inside: f64 = exact.iter().map(|(key, p)| (p - seen(key)).abs()).sum();
    let outside = 1.0 - exact.iter().map(|(key, _)| seen(key)).sum::<f64>();
    0.5 * (inside + outside.max(0.0))
}

/// The distance that counts of a correct executor exceed with probability [`SIGNIFICANCE`] at most: mean
/// distance (at most half of sqrt(K/N)) plus McDiarmid's bound on how far it strays.
fn bound(outcomes: usize, shots: u32) -> f64 {
    let shots = f64::from(shots);
    // One outcome leaves nothing to chance, but rounding.
    if outcomes == 1 {
        return 1e-9;
    }
    0.5 * (outcomes as f64 / shots).sqrt() + ((1.0 / SIGNIFICANCE).ln() / (2.0 * shots)).sqrt()
}

/// The likeliest keys, for a message.
fn text<'a>(parts: impl Iterator<Item = (&'a String, f64)>) -> String {
    let mut parts: Vec<_> = parts.collect();
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let more = if parts.len() > 8 { ", ..." } else { "" };
    let shown: Vec<String> = parts.iter().take(8).map(|(k, p)| format!("{k}: {p:.3}")).collect();
    format!("{{{}{more}}}", shown.join(", "))
}
