//! Pure: what a site takes at most, beyond what its device takes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use coda_plugin_abi::Program;

use crate::config::settings::SiteLimits;

/// How long a run of a circuit with so many shots is expected to take, if that is known.
#[derive(Clone)]
pub struct RunEstimate(pub Arc<Estimate>);

type Estimate = dyn Fn(&Program, u32) -> Option<Duration> + Send + Sync;

impl fmt::Debug for RunEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RunEstimate")
    }
}

impl Default for RunEstimate {
    /// Nothing is known.
    fn default() -> RunEstimate {
        RunEstimate(Arc::new(|_, _| None))
    }
}

/// Whether a site with these limits takes such a job.
///
/// # Errors
/// The limit that it exceeds, by the name of its setting.
pub fn check(
    limits: &SiteLimits,
    program: &Program,
    shots: u32,
    estimate: &RunEstimate,
) -> Result<(), String> {
    if let Some(max) = limits.max_shots.filter(|max| shots > *max) {
        return Err(format!("{shots} shots are asked for, this site takes at most {max} (CODA_MAX_SHOTS)"));
    }
    let gates = u64::try_from(program.gates().len()).unwrap_or(u64::MAX);
    if let Some(max) = limits.max_gates.filter(|max| gates > *max) {
        return Err(format!("the circuit has {gates} gates, this site takes at most {max} (CODA_MAX_GATES)"));
    }
    let Some(max) = limits.max_run else { return Ok(()) };
    match (estimate.0)(program, shots) {
        Some(expected) if expected > max => Err(format!(
            "the run would take about {:.1} s, this site takes at most {} s (CODA_MAX_RUN_SEC)",
            expected.as_secs_f64(),
            max.as_secs_f64()
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named_and_none_is_set_at_first() {
        let gate = r#"{"gate":"rz","qubits":[0],"params":[0.5]}"#;
        let ir = format!(
            r#"{{"version":"1.0","target":"cz","num_qubits":1,"gates":[{gate},{gate}],"measurements":[0],
                "metadata":{{"source_hash":"h","compiled_at":"2026-01-01T00:00:00Z"}}}}"#
        );
        let program = Program::parse(ir.as_bytes()).unwrap();
        let estimate = RunEstimate(Arc::new(|_, shots| Some(Duration::from_secs(shots.into()))));
        let error = |limits: SiteLimits| check(&limits, &program, 100, &estimate).err().unwrap_or_default();
        assert_eq!(error(SiteLimits::default()), "");
        let at =
            SiteLimits { max_shots: Some(100), max_gates: Some(2), max_run: Some(Duration::from_secs(100)) };
        assert_eq!(error(at), "", "a limit is allowed itself");
        assert!(error(SiteLimits { max_shots: Some(99), ..at }).contains("100 shots"));
        assert!(error(SiteLimits { max_gates: Some(1), ..at }).contains("2 gates"));
        let too_long = error(SiteLimits { max_run: Some(Duration::from_secs(99)), ..at });
        assert!(too_long.contains("about 100.0 s") && too_long.contains("CODA_MAX_RUN_SEC"), "{too_long}");
        assert_eq!(check(&at, &program, 100, &RunEstimate::default()), Ok(()), "nothing is known of it");
    }
}
