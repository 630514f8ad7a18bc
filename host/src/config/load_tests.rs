//! What `coda-host config` prints can be set, and means the same.

use super::*;
use crate::config::source::SECRET_VARIABLES;

/// Settings as Debug shows them, and the printed values by name.
type Loaded = (String, Vec<(&'static str, String)>);

fn load(variables: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let mut environment: HashMap<String, String> =
        HashMap::from([("CODA_STATE_DIR".to_string(), "/state".to_string())]);
    environment.extend(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
    let env = ProcessEnv { environment, cwd: PathBuf::from("/nowhere") };
    let (settings, shown) = settings(&env, HashMap::new(), dirs(&env)?, None)?;
    let shown = shown.into_iter().filter(|s| !SECRET_VARIABLES.contains(&s.name));
    Ok((format!("{settings:?}"), shown.map(|s| (s.name, s.value)).collect()))
}

/// Sets one setting to the value that was printed for it, and compares.
fn assert_round_trip(printed: &Loaded, name: &'static str, value: &str) {
    let again = load(&[(name, value)]).unwrap_or_else(|e| panic!("{name} is printed as {value:?}: {e}"));
    assert_eq!(&again, printed, "{name}={value:?} does not mean what it was printed for");
}

#[test]
fn every_printed_default_is_accepted_and_means_the_same() {
    let printed = load(&[]).unwrap();
    assert!(printed.1.len() > 70, "{} settings", printed.1.len());
    for (name, value) in &printed.1 {
        assert_round_trip(&printed, name, value);
    }
    let all: Vec<(&str, &str)> = printed.1.iter().map(|(name, value)| (*name, value.as_str())).collect();
    assert_eq!(load(&all).unwrap(), printed, "all together");
}

#[test]
fn every_printed_value_that_was_set_is_accepted_and_means_the_same() {
    let values = [
        ("CODA_JOB_TIMEOUT_SEC", "0.25"),
        ("CODA_JOB_TIMEOUT_SEC", " None "),
        ("CODA_EXECUTOR_ISOLATION", "Process"),
        ("CODA_EXECUTOR_SHA256", "AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01AB01"),
        ("CODA_VPN_REQUIRED", "off"),
        ("CODA_PREFETCH", " +8 "),
        ("CODA_CALLBACK_ORIGINS", "a.example, b.example"),
        ("CODA_PEER_ALLOW", "any"),
        ("CODA_VPN_PROBE_TARGETS", "[\"https://a.example/\"]"),
        ("CODA_PLUGIN_PATH", "a:/b"),
    ];
    for (name, value) in values {
        let printed = load(&[(name, value)]).unwrap();
        let (_, shown) = printed.1.iter().find(|(n, _)| *n == name).unwrap();
        assert_round_trip(&printed, name, shown);
    }
}

#[test]
fn a_run_without_a_time_limit_is_written_none() {
    let (_, printed) = load(&[]).unwrap();
    assert!(printed.contains(&("CODA_JOB_TIMEOUT_SEC", "none".to_string())), "{printed:?}");
    let refused = load(&[("CODA_JOB_TIMEOUT_SEC", "0")]).unwrap_err().to_string();
    assert!(refused.contains("none or a number of seconds"), "{refused}");
}
