//! Did-you-mean: finds names that resemble a setting, because a misspelt one would have no effect and no message.

/// Largest edit distance between a misspelt name and the name that was meant.
const EDITS: usize = 2;
/// Variables that are read outside [`super::load`].
const ELSEWHERE: &[&str] = &["CODA_STATE_DIR", "CODA_LOG", "CODA_LOG_FORMAT"];

/// Returns the variables that are not settings but resemble one, each with that setting.
pub fn misspelt_variables<'a>(
    given: impl Iterator<Item = &'a str>,
    known: &[&'static str],
) -> Vec<(&'a str, &'static str)> {
    let known: Vec<&'static str> = known.iter().chain(ELSEWHERE).copied().collect();
    let ours = |name: &&str| name.to_ascii_uppercase().starts_with("CODA");
    let mut found: Vec<_> =
        given.filter(ours).filter_map(|name| Some((name, meant_variable(name, &known)?))).collect();
    found.sort_unstable();
    found
}

/// Returns a top-level key that resembles `executor_factory`, or is the same but for case and dashes.
pub fn misspelt_factory_key(keys: impl Iterator<Item = String>) -> Option<String> {
    const KEY: &str = "executor_factory";
    keys.into_iter().find(|key| {
        let usual = key.trim().to_lowercase().replace(['-', ' '], "_");
        key != KEY && (usual == KEY || closest_name(&usual, &[KEY]).is_some())
    })
}

/// The variable that this one was meant to be. Case does not matter, dashes do: nothing reads a variable with a dash.
fn meant_variable(name: &str, known: &[&'static str]) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let usual = upper.replace('-', "_");
    match known.iter().find(|known| **known == usual) {
        Some(same) if usual != upper => Some(*same),
        _ => closest_name(&usual, known),
    }
}

/// Returns the closest known name, unless `name` is known itself or nothing is close.
fn closest_name(name: &str, known: &[&'static str]) -> Option<&'static str> {
    if known.contains(&name) {
        return None;
    }
    let distance = |k: &&&'static str| strsim::damerau_levenshtein(name, k);
    known.iter().min_by_key(distance).filter(|k| distance(k) <= EDITS).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_variables_are_found_and_strangers_left_alone() {
        let known = ["CODA_REDIS_URL", "CODA_PORT", "CODA_HOST"];
        let given =
            ["CODA_REDIS_ULR", "coda_prot", "CODA_PORT", "coda_host", "CODA_SOMETHING", "PATH", "CODE_HOST"];
        let found = misspelt_variables(given.into_iter(), &known);
        assert_eq!(found, [("CODA_REDIS_ULR", "CODA_REDIS_URL"), ("coda_prot", "CODA_PORT")]);
        assert_eq!(
            misspelt_variables(["CODA-REDIS-URL", "coda_redis-ulr"].into_iter(), &known),
            [("CODA-REDIS-URL", "CODA_REDIS_URL"), ("coda_redis-ulr", "CODA_REDIS_URL")]
        );
        assert_eq!(
            misspelt_variables(["CODA_STATEDIR"].into_iter(), &known),
            [("CODA_STATEDIR", "CODA_STATE_DIR")]
        );
    }

    #[test]
    fn a_misspelt_factory_key_is_found() {
        let keys = |list: &[&str]| list.iter().map(|k| (*k).to_string()).collect::<Vec<_>>().into_iter();
        assert_eq!(
            misspelt_factory_key(keys(&["target", "executor_factroy"])).as_deref(),
            Some("executor_factroy")
        );
        assert_eq!(misspelt_factory_key(keys(&["Executor-Factori"])).as_deref(), Some("Executor-Factori"));
        for key in ["Executor-Factory", "EXECUTOR_FACTORY", "executor-factory", "executorFactory"] {
            assert_eq!(misspelt_factory_key(keys(&["target", key])).as_deref(), Some(key), "{key}");
        }
        assert_eq!(misspelt_factory_key(keys(&["executor_factory", "executor"])), None);
    }
}
