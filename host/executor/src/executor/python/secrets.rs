//! Values of a device config that are not shown: those under keys that sound like secrets.
//!
//! A Python executor has no schema that would name them, and its libraries print their input in errors.

use serde_yaml::Value;

/// Words that a secret's key contains.
const WORDS: [&str; 4] = ["password", "token", "secret", "key"];
/// Endings of keys that say where a secret is: an environment variable, a file.
const SOURCES: [&str; 2] = ["_env", "_file"];
/// Shorter values would mask parts of ordinary words.
const SHORTEST: usize = 4;

/// The secrets of a device config, which need not be YAML.
pub fn secrets(config: &str) -> Vec<String> {
    let mut found = Vec::new();
    match serde_yaml::from_str::<Value>(config) {
        Ok(value) => collect(&value, false, &mut found),
        Err(_) => found.extend(config.lines().filter_map(line_secret)),
    }
    found.retain(|secret| secret.chars().count() >= SHORTEST);
    found
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    // What names the place of a secret is none, and an error about it must show it.
    let names_place = SOURCES.iter().any(|source| key.ends_with(source));
    !names_place && WORDS.iter().any(|word| key.contains(word))
}

fn collect(value: &Value, secret: bool, found: &mut Vec<String>) {
    match value {
        Value::Mapping(map) => {
            for (key, value) in map {
                collect(value, secret || key.as_str().is_some_and(is_secret), found);
            }
        }
        Value::Sequence(list) => list.iter().for_each(|value| collect(value, secret, found)),
        Value::Tagged(tagged) => collect(&tagged.value, secret, found),
        Value::String(text) if secret => found.push(text.clone()),
        Value::Number(number) if secret => found.push(number.to_string()),
        Value::String(_) | Value::Number(_) | Value::Null | Value::Bool(_) => {}
    }
}

fn line_secret(line: &str) -> Option<String> {
    let (key, value) = line.split_once([':', '='])?;
    let value = value.trim().trim_matches(['"', '\'']);
    is_secret(key).then(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_under_secret_keys_are_found_however_deep_they_are() {
        let config = "host: lab\napi_token: abcdef\nlogin: {user: u, Password: hunter22}\nkeys: [first1, 123456]\npin_key: abc\n";
        assert_eq!(secrets(config), ["abcdef", "hunter22", "first1", "123456"]);
        assert_eq!(secrets("[login]\npassword = \"hunter22\"\nhost = lab\n"), ["hunter22"]);
        assert!(secrets("host: lab\n").is_empty());
        assert!(secrets("token_env: ACME_TOKEN\nargs: {key_file: /etc/acme/key}\n").is_empty());
    }
}
