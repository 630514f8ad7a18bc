//! Where a setting's value comes from: flag, `CODA_` variable, persisted state, default, in this order.
//!
//! [`Source`] reads one value at a time and remembers its origin, so that an error names the variable and
//! `coda-host config` can show where everything came from. An empty variable is treated as unset; names match
//! in any case.

use std::collections::HashMap;
use std::time::Duration;

use super::ConfigError;

/// Where a value was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingOrigin {
    Flag,
    Environment,
    Stored,
    Default,
}

impl SettingOrigin {
    pub fn name(self) -> &'static str {
        match self {
            SettingOrigin::Flag => "flag",
            SettingOrigin::Environment => "environment",
            SettingOrigin::Stored => "stored",
            SettingOrigin::Default => "default",
        }
    }
}

/// One effective setting, for display.
#[derive(Debug, Clone)]
pub struct EffectiveSetting {
    pub name: &'static str,
    /// The value as it was given; secrets are masked.
    pub value: String,
    pub origin: SettingOrigin,
}

/// The variables that hold secrets: taken out of the environment once read.
pub const SECRET_VARIABLES: [&str; 6] = [
    "CODA_NODE_TOKEN",
    "CODA_JWT_PRIVATE_KEY",
    "CODA_REDIS_URL",
    "CODA_NODE_CONNECT_HEADERS",
    "CODA_API_TOKEN",
    "CODA_COORDINATOR_STORE",
];

/// Reads settings one by one.
pub struct Source {
    /// Upper-case names.
    environment: HashMap<String, String>,
    /// The values of the flags, by the names of the variables that they stand for.
    flags: HashMap<&'static str, String>,
    shown: Vec<EffectiveSetting>,
}

impl Source {
    pub fn new(
        environment: impl IntoIterator<Item = (String, String)>,
        flags: HashMap<&'static str, String>,
    ) -> Source {
        let environment = environment
            .into_iter()
            .filter(|(k, v)| k.to_ascii_uppercase().starts_with("CODA_") && !v.is_empty())
            .map(|(k, v)| (k.to_ascii_uppercase(), v))
            .collect();
        let flags = flags.into_iter().filter(|(_, v)| !v.is_empty()).collect();
        Source { environment, flags, shown: Vec::new() }
    }

    /// Returns every setting read so far.
    pub fn shown(self) -> Vec<EffectiveSetting> {
        self.shown
    }

    /// Returns the text of a setting and its origin; `None` when only the default is left.
    fn find(&self, name: &'static str, stored: Option<String>) -> Option<(String, SettingOrigin)> {
        let flag = self.flags.get(name).cloned().map(|v| (v, SettingOrigin::Flag));
        flag.or_else(|| self.environment.get(name).cloned().map(|v| (v, SettingOrigin::Environment)))
            .or_else(|| stored.map(|v| (v, SettingOrigin::Stored)))
    }

    fn show(&mut self, name: &'static str, value: String, origin: SettingOrigin) {
        let secret = SECRET_VARIABLES.contains(&name) && !value.is_empty();
        let value = match (secret, name) {
            (true, "CODA_REDIS_URL") => crate::model::masked_url(&value),
            // A path is not a secret, but a URL may hold a password.
            (true, "CODA_COORDINATOR_STORE") if !value.contains("://") => value,
            (true, "CODA_COORDINATOR_STORE") => crate::model::masked_url(&value),
            (true, _) => "***".into(),
            // A URL with a user or password, where none is expected; several in a list.
            (false, _) if value.contains("://") && value.contains('@') => {
                match value.matches("://").count() {
                    1 if !value.starts_with(['[', '{']) => crate::model::masked_url(&value),
                    _ => "***".into(),
                }
            }
            (false, _) => value,
        };
        self.shown.push(EffectiveSetting { name, value, origin });
    }

    /// Reads text that may be absent.
    pub fn optional(&mut self, name: &'static str, stored: Option<String>) -> Option<String> {
        let found = self.find(name, stored);
        let (value, origin) = found.clone().unwrap_or((String::new(), SettingOrigin::Default));
        self.show(name, value, origin);
        found.map(|(value, _)| value)
    }

    /// Reads text with a default.
    pub fn text(&mut self, name: &'static str, stored: Option<String>, default: &str) -> String {
        let (value, origin) = self.find(name, stored).unwrap_or((default.into(), SettingOrigin::Default));
        self.show(name, value.clone(), origin);
        value
    }

    /// Reads a value with `read`. `allowed` describes the values that it accepts, and `write` prints the default.
    pub fn parsed<T>(
        &mut self,
        name: &'static str,
        stored: Option<String>,
        default: T,
        allowed: &str,
        read: impl Fn(&str) -> Option<T>,
        write: impl Fn(&T) -> String,
    ) -> Result<T, ConfigError> {
        let Some((text, origin)) = self.find(name, stored) else {
            self.show(name, write(&default), SettingOrigin::Default);
            return Ok(default);
        };
        let value = read(text.trim()).ok_or_else(|| ConfigError::Value {
            name,
            value: if SECRET_VARIABLES.contains(&name) { "***".into() } else { text.clone() },
            origin,
            allowed: allowed.into(),
        })?;
        self.show(name, text, origin);
        Ok(value)
    }

    pub fn boolean(
        &mut self,
        name: &'static str,
        stored: Option<bool>,
        default: bool,
    ) -> Result<bool, ConfigError> {
        let allowed = "1 0 true false t f yes no y n on off";
        let read = |text: &str| match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "t" | "yes" | "y" | "on" => Some(true),
            "0" | "false" | "f" | "no" | "n" | "off" => Some(false),
            _ => None,
        };
        self.parsed(name, stored.map(|b| b.to_string()), default, allowed, read, bool::to_string)
    }

    /// Reads a whole number in a range.
    pub fn integer(
        &mut self,
        name: &'static str,
        stored: Option<u64>,
        default: u64,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        let allowed = format!("a whole number from {} to {}", range.start(), range.end());
        let read = |text: &str| text.parse::<u64>().ok().filter(|n| range.contains(n));
        self.parsed(name, stored.map(|n| n.to_string()), default, &allowed, read, u64::to_string)
    }

    /// Reads a number of seconds, with a fraction or without.
    pub fn seconds(
        &mut self,
        name: &'static str,
        stored: Option<u64>,
        default: f64,
    ) -> Result<Duration, ConfigError> {
        let default = Duration::from_secs_f64(default);
        let stored = stored.map(|n| n.to_string());
        self.parsed(name, stored, default, ALLOWED_SECONDS, parse_seconds, seconds_text)
    }

    /// Reads a whole number from 1 on, or `none` for no limit, which is the default.
    ///
    /// # Errors
    /// The value is neither.
    pub fn optional_integer(&mut self, name: &'static str, max: u64) -> Result<Option<u64>, ConfigError> {
        let allowed = format!("none or a whole number from 1 to {max}");
        let read = |text: &str| match text.eq_ignore_ascii_case("none") {
            true => Some(None),
            false => text.parse::<u64>().ok().filter(|n| (1..=max).contains(n)).map(Some),
        };
        let write = |limit: &Option<u64>| limit.map_or("none".into(), |n| n.to_string());
        self.parsed(name, None, None, &allowed, read, write)
    }

    /// Reads a number of seconds, or `none` for no limit, which is the default.
    ///
    /// # Errors
    /// The value is neither a number of seconds nor `none`.
    pub fn optional_seconds(&mut self, name: &'static str) -> Result<Option<Duration>, ConfigError> {
        let allowed = format!("none or {ALLOWED_SECONDS}");
        let read = |text: &str| match text.eq_ignore_ascii_case("none") {
            true => Some(None),
            false => parse_seconds(text).map(Some),
        };
        let write = |limit: &Option<Duration>| limit.as_ref().map_or("none".into(), seconds_text);
        self.parsed(name, None, None, &allowed, read, write)
    }

    /// Reads a list with commas or blanks between its items.
    pub fn list<T>(
        &mut self,
        name: &'static str,
        default: &str,
        allowed: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Vec<T>, ConfigError> {
        let all = |text: &str| -> Option<Vec<T>> {
            text.split([',', ' ', '\n']).filter(|w| !w.is_empty()).map(&read).collect()
        };
        let default_list = all(default).unwrap_or_default();
        self.parsed(name, None, default_list, allowed, all, |_| default.to_string())
    }

    /// Reads a JSON list of texts.
    pub fn json_list(
        &mut self,
        name: &'static str,
        stored: Option<Vec<String>>,
    ) -> Result<Vec<String>, ConfigError> {
        let read = |text: &str| serde_json::from_str(text).ok();
        let write = |list: &Vec<String>| serde_json::Value::from(list.clone()).to_string();
        let stored = stored.map(|list| write(&list));
        self.parsed(
            name,
            stored,
            Vec::new(),
            "a JSON list of texts, for instance [\"a\", \"b\"]",
            read,
            write,
        )
    }

    /// Reads a JSON object of texts, in its order.
    pub fn json_object(&mut self, name: &'static str) -> Result<Vec<(String, String)>, ConfigError> {
        let read = |text: &str| {
            let object: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
            object.into_iter().map(|(k, v)| Some((k, v.as_str()?.to_string()))).collect()
        };
        let allowed = "a JSON object of texts, for instance {\"X-Key\": \"value\"}";
        self.parsed(name, None, Vec::new(), allowed, read, |_| "{}".into())
    }
}

const ALLOWED_SECONDS: &str = "a number of seconds from 0.001 to 31536000";

fn parse_seconds(text: &str) -> Option<Duration> {
    let seconds = text.parse::<f64>().ok()?;
    (0.001..=31_536_000.0).contains(&seconds).then(|| Duration::from_secs_f64(seconds))
}

fn seconds_text(duration: &Duration) -> String {
    duration.as_secs_f64().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(env: &[(&str, &str)]) -> Source {
        let env = env.iter().map(|(k, v)| (k.to_string(), v.to_string()));
        Source::new(env, HashMap::from([("CODA_HOST", "flag-host".to_string())]))
    }

    #[test]
    fn a_flag_precedes_a_variable_a_stored_value_and_a_default() {
        let mut s = source(&[("CODA_HOST", "env"), ("coda_qpu_id", "env-id"), ("CODA_PORT", "")]);
        assert_eq!(s.text("CODA_HOST", Some("stored".into()), "d"), "flag-host");
        assert_eq!(s.text("CODA_QPU_ID", Some("stored".into()), "d"), "env-id");
        assert_eq!(s.text("CODA_WEBAPP_URL", Some("stored".into()), "d"), "stored");
        assert_eq!(
            s.integer("CODA_PORT", None, 8080, 1..=65535).unwrap(),
            8080,
            "an empty variable is unset"
        );
        let origins: Vec<_> = s.shown().into_iter().map(|s| s.origin).collect();
        assert_eq!(
            origins,
            [SettingOrigin::Flag, SettingOrigin::Environment, SettingOrigin::Stored, SettingOrigin::Default]
        );
    }

    #[test]
    fn bad_values_are_errors_that_name_the_variable() {
        let mut s = source(&[
            ("CODA_PORT", "70000"),
            ("CODA_VPN_REQUIRED", "maybe"),
            ("CODA_NODE_TIMEOUT_SEC", "-1"),
            ("CODA_VPN_PROBE_TARGETS", "a,b"),
            ("CODA_NODE_CONNECT_HEADERS", "SECRET"),
            ("CODA_PREFETCH", " +8 "),
        ]);
        let errors = [
            s.integer("CODA_PORT", None, 1, 1..=65535).unwrap_err().to_string(),
            s.boolean("CODA_VPN_REQUIRED", None, true).unwrap_err().to_string(),
            s.seconds("CODA_NODE_TIMEOUT_SEC", None, 1.0).unwrap_err().to_string(),
            s.json_list("CODA_VPN_PROBE_TARGETS", None).unwrap_err().to_string(),
            s.json_object("CODA_NODE_CONNECT_HEADERS").unwrap_err().to_string(),
        ];
        for (error, name) in
            errors.iter().zip(["CODA_PORT", "CODA_VPN_REQ", "TIMEOUT_SEC", "PROBE", "HEADERS"])
        {
            assert!(error.contains(name) && !error.contains("SECRET"), "{error}");
        }
        assert_eq!(s.integer("CODA_PREFETCH", None, 4, 1..=100).unwrap(), 8, "blanks and a sign are allowed");
    }

    #[test]
    fn every_spelling_of_a_boolean_is_read() {
        for (text, value) in
            [("1", true), ("YES", true), ("On", true), ("t", true), ("0", false), ("off", false)]
        {
            let mut s = source(&[("CODA_VPN_REQUIRED", text)]);
            assert_eq!(s.boolean("CODA_VPN_REQUIRED", None, !value).unwrap(), value, "{text}");
        }
    }
}
