//! The one conversion from an executor's answer to the result that is sent to the cloud.
//!
//! Every path (single run, batch, fallback, `coda-host run`) goes through [`conclude`], so the same circuit
//! can't give different keys. An answer that breaks a rule fails the job with a message that names what was
//! returned and what was expected; nothing is repaired, since the host can't know what the vendor meant.

use std::collections::HashSet;

use bytes::Bytes;
use coda_plugin_abi::{Error, Outcome};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::model::cut;
use crate::state::db::Status;

/// Longest error text in status hash and webhook, in characters.
pub const MAX_ERROR_CHARS: usize = 500;

/// A checked result.
#[derive(Debug, Clone, PartialEq)]
pub struct Counts {
    /// In the order the executor gave.
    pub counts: Vec<(String, i64)>,
    pub execution_time_ms: Option<f64>,
    pub shots_completed: Option<i64>,
}

/// How a job ended, as it is sent to the cloud.
#[derive(Debug, Clone, PartialEq)]
pub struct Conclusion {
    pub status: Status,
    /// At most [`MAX_ERROR_CHARS`].
    pub error: Option<String>,
    pub body: Bytes,
}

/// What the counts of a result must add up to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShotRule {
    #[default]
    /// To `shots_completed`, where that is given.
    Exact,
    /// To that or less: Python executors leave out the shots that were lost or not selected.
    AtMost,
}

/// Judges an executor's answer to a circuit with `measured` entries in its `measurements`, run `shots` times.
///
/// # Errors
/// The executor's own error text, or the rule that its result breaks.
pub fn judge(
    answer: Result<Outcome, Error>,
    measured: usize,
    shots: u32,
    rule: ShotRule,
) -> Result<Counts, String> {
    let outcome = answer.map_err(|e| match e.text.is_empty() {
        true => format!("the executor failed without a message (code {}, stage {})", e.code, e.stage),
        false => e.text,
    })?;
    let mut seen = HashSet::with_capacity(outcome.counts.len());
    let mut sum: i64 = 0;
    for (key, count) in &outcome.counts {
        if key.chars().count() != measured {
            return Err(format!(
                "the executor returned the key {:?} of length {}, expected {measured} (one character per \
                 entry of measurements)",
                cut(key, 80),
                key.chars().count()
            ));
        }
        if let Some(odd) = key.chars().find(|c| !matches!(c, '0' | '1')) {
            let key = cut(key, 80);
            return Err(format!("the executor returned the key {key:?} with {odd:?}, expected only 0 and 1"));
        }
        if *count < 0 {
            return Err(format!("the executor returned the count {count} for key {:?}", cut(key, 80)));
        }
        if !seen.insert(key.as_str()) {
            return Err(format!("the executor returned the key {:?} twice", cut(key, 80)));
        }
        sum = sum.saturating_add(*count);
    }
    if sum > i64::from(shots) {
        return Err(format!("the executor returned {sum} counts in all for {shots} shots"));
    }
    if let Some(completed) = outcome.shots_completed {
        let fits = match rule {
            ShotRule::Exact => completed == sum,
            ShotRule::AtMost => completed >= sum,
        };
        if !fits {
            return Err(format!(
                "the executor says shots_completed {completed}, but its counts sum to {sum}"
            ));
        }
        if completed > i64::from(shots) {
            return Err(format!("the executor says shots_completed {completed} for {shots} shots"));
        }
    }
    if let Some(ms) = outcome.execution_time_ms.filter(|ms| !(ms.is_finite() && *ms >= 0.0)) {
        return Err(format!("the executor returned execution_time_ms {ms}, expected a finite number >= 0"));
    }
    Ok(Counts {
        execution_time_ms: outcome.execution_time_ms,
        shots_completed: outcome.shots_completed,
        counts: outcome.counts,
    })
}

/// The webhook of a judged answer.
pub fn conclude(job_id: &str, judged: Result<Counts, String>) -> Conclusion {
    match judged {
        Ok(counts) => {
            let body = Success {
                job_id,
                status: Status::Completed.name(),
                counts: Pairs(&counts.counts),
                execution_time_ms: counts.execution_time_ms,
                shots_completed: counts.shots_completed,
            };
            match serde_json::to_vec(&body) {
                Ok(body) => Conclusion { status: Status::Completed, error: None, body: body.into() },
                // Not reachable with finite numbers and text keys; reported rather than hidden.
                Err(e) => fail(job_id, &format!("the result could not be written as JSON: {e}")),
            }
        }
        Err(error) => fail(job_id, &error),
    }
}

/// The same result, or a failure that says so when its body is larger than `max_bytes`: a result that can be neither
/// stored nor sent would be tried again for ever.
pub fn limit_size(job_id: &str, conclusion: Conclusion, max_bytes: usize) -> Conclusion {
    let bytes = conclusion.body.len();
    match conclusion.status {
        Status::Completed if bytes > max_bytes => {
            let text =
                format!("the result has {bytes} bytes, allowed are {max_bytes} (CODA_MAX_RESULT_BYTES)");
            fail(job_id, &text)
        }
        _ => conclusion,
    }
}

/// The webhook of a job that failed with this message.
pub fn fail(job_id: &str, error: &str) -> Conclusion {
    let error = cut(error, MAX_ERROR_CHARS).to_string();
    let body = serde_json::json!({
        "job_id": job_id,
        "status": Status::Failed.name(),
        "error": error,
    });
    Conclusion { status: Status::Failed, error: Some(error), body: body.to_string().into() }
}

#[derive(Serialize)]
struct Success<'a> {
    job_id: &'a str,
    status: &'a str,
    counts: Pairs<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shots_completed: Option<i64>,
}

/// Pairs as a JSON object.
struct Pairs<'a>(&'a [(String, i64)]);

impl Serialize for Pairs<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for (key, count) in self.0 {
            map.serialize_entry(key, count)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coda_plugin_abi::ErrorCode;

    fn outcome(pairs: &[(&str, i64)]) -> Outcome {
        Outcome {
            counts: pairs.iter().map(|(k, n)| (k.to_string(), *n)).collect(),
            execution_time_ms: None,
            shots_completed: None,
        }
    }

    fn text(o: Outcome, measured: usize, shots: u32) -> String {
        let c = conclude("J1", judge(Ok(o), measured, shots, ShotRule::Exact));
        String::from_utf8(c.body.to_vec()).unwrap()
    }

    #[test]
    fn a_good_result_keeps_absent_fields_absent() {
        assert_eq!(
            text(outcome(&[("10", 100)]), 2, 100),
            r#"{"job_id":"J1","status":"completed","counts":{"10":100}}"#
        );
        let full =
            Outcome { execution_time_ms: Some(42.5), shots_completed: Some(998), ..outcome(&[("0", 998)]) };
        assert_eq!(
            text(full, 1, 1000),
            r#"{"job_id":"J1","status":"completed","counts":{"0":998},"execution_time_ms":42.5,"shots_completed":998}"#
        );
        // A key of length zero, a zero count, fewer shots than asked: all legal.
        assert!(text(outcome(&[("", 7)]), 0, 7).contains(r#""counts":{"":7}"#));
        assert!(text(outcome(&[("0", 0), ("1", 3)]), 1, 5).contains("completed"));
    }

    #[test]
    fn a_wrong_result_fails_and_says_what_is_wrong() {
        let cases: &[(Outcome, &str)] = &[
            (outcome(&[("100", 100)]), "key \"100\" of length 3, expected 2"),
            (outcome(&[("0", 60), ("10", 40)]), "key \"0\" of length 1, expected 2"),
            (outcome(&[("0x2", 100)]), "key \"0x2\" of length 3"),
            (outcome(&[("1 0", 100)]), "length 3"),
            (outcome(&[("0b", 1)]), "with 'b', expected only 0 and 1"),
            (outcome(&[("", 100)]), "key \"\" of length 0"),
            (outcome(&[("10", -5)]), "count -5 for key \"10\""),
            (outcome(&[("10", 60), ("10", 40)]), "key \"10\" twice"),
            (outcome(&[("10", 101)]), "101 counts in all for 100 shots"),
            (outcome(&[("10", i64::MAX), ("11", i64::MAX)]), "counts in all for 100 shots"),
            (
                Outcome { shots_completed: Some(1000), ..outcome(&[("10", 98)]) },
                "says shots_completed 1000, but its counts sum to 98",
            ),
            (Outcome { execution_time_ms: Some(f64::NAN), ..outcome(&[("10", 1)]) }, "execution_time_ms NaN"),
            (Outcome { execution_time_ms: Some(-1.0), ..outcome(&[("10", 1)]) }, "execution_time_ms -1"),
        ];
        for (o, expected) in cases {
            let error = judge(Ok(o.clone()), 2, 100, ShotRule::Exact).unwrap_err();
            assert!(error.contains(expected), "{error:?} lacks {expected:?}");
        }
    }

    #[test]
    fn lost_shots_pass_under_the_rule_of_python_executors() {
        let of = |completed| Outcome { shots_completed: Some(completed), ..outcome(&[("0", 60), ("1", 30)]) };
        for (completed, exact, at_most) in
            [(90, true, true), (95, false, true), (100, false, true), (89, false, false), (101, false, false)]
        {
            let judged = |rule| judge(Ok(of(completed)), 1, 100, rule);
            assert_eq!(judged(ShotRule::Exact).is_ok(), exact, "{completed}");
            assert_eq!(judged(ShotRule::AtMost).is_ok(), at_most, "{completed}");
        }
        let more = judge(Ok(outcome(&[("0", 101)])), 1, 100, ShotRule::AtMost).unwrap_err();
        assert!(more.contains("101 counts in all for 100 shots"), "{more}");
    }

    #[test]
    fn errors_are_cut_by_characters() {
        let long = format!("{}é tail", "x".repeat(499));
        let c = conclude("J", judge(Err(Error::new(ErrorCode::Hardware, long)), 1, 1, ShotRule::Exact));
        assert_eq!(c.error.as_deref().map(|e| (e.chars().count(), e.ends_with('é'))), Some((500, true)));
        let body: serde_json::Value = serde_json::from_slice(&c.body).unwrap();
        assert_eq!(body["error"].as_str(), c.error.as_deref());
        assert_eq!(body["status"], "failed");
        let c = conclude("J", judge(Err(Error::new(ErrorCode::Hardware, "a\0b")), 1, 1, ShotRule::Exact));
        assert!(serde_json::from_slice::<serde_json::Value>(&c.body).is_ok());
        let c = conclude("J", judge(Err(Error::new(ErrorCode::Hardware, "")), 1, 1, ShotRule::Exact));
        assert!(c.error.unwrap().contains("without a message"));
    }
}
