//! The device config against the JSON schema that a plugin exports for it.
//!
//! Text in, faults out. A fault names line and key and gives the schema's own description of the key. Keys with
//! `"writeOnly": true` are secrets: their values are returned, so that they can be masked, and never shown here.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::ffi::Library;

/// The host's own key of a device config.
const OURS: &str = "executor_factory";
/// Shorter secrets would mask parts of ordinary words.
const SHORTEST_SECRET: usize = 4;

/// One thing that is wrong in a config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigFault {
    /// From 1; `None` when it concerns the file as a whole.
    pub line: Option<usize>,
    /// Dotted, as `noise.readout`; empty for the whole file.
    pub key: String,
    pub what: String,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        match self.key.as_str() {
            "" => f.write_str(&self.what),
            key => write!(f, "`{key}`: {}", self.what),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("the schema that the plugin exports is not a JSON schema: {0}")]
    Schema(String),
    #[error("it is not YAML: {0}")]
    Yaml(String),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Config(Vec<ConfigFault>),
}

/// Checks a config; returns the values of its secret keys.
///
/// # Errors
/// When the schema can't be used, the text is not YAML, or the config doesn't fit.
pub fn check(schema: &str, yaml: &str) -> Result<Vec<String>, SchemaError> {
    let schema: Value = serde_json::from_str(schema).map_err(|e| SchemaError::Schema(e.to_string()))?;
    let validator = jsonschema::validator_for(&schema).map_err(|e| SchemaError::Schema(e.to_string()))?;
    let config = config(yaml)?;
    let mut faults: Vec<ConfigFault> =
        validator.iter_errors(&config).flat_map(|e| faults(&schema, yaml, &e)).collect();
    if faults.is_empty() {
        let mut secrets = Vec::new();
        collect_secrets(&schema, &schema, &config, 0, &mut secrets);
        return Ok(secrets);
    }
    faults.sort_by_key(|f| f.line);
    Err(SchemaError::Config(faults))
}

/// Checks a config against the schema that the plugin exports for the entry, when it does; returns its secrets.
///
/// # Errors
/// In words for a person: what is wrong, and where.
pub fn of_plugin(library: &Library, entry: &str, yaml: &str) -> Result<Vec<String>, String> {
    match library.config_schema(entry) {
        Ok(None) => Ok(Vec::new()),
        Ok(Some(schema)) => check(&schema, yaml).map_err(|e| e.to_string()),
        Err(e) => Err(format!("the plugin could not tell the schema of its device config: {}", e.text)),
    }
}

/// The config as JSON, without the host's own key.
fn config(yaml: &str) -> Result<Value, SchemaError> {
    let value: Option<Value> = if yaml.trim().is_empty() {
        None
    } else {
        serde_yaml::from_str(yaml).map_err(|e| SchemaError::Yaml(e.to_string()))?
    };
    let mut value = value.unwrap_or_else(|| Value::Object(serde_json::Map::new()));
    if let Value::Object(map) = &mut value {
        map.remove(OURS);
    }
    Ok(value)
}

/// An error in the config's own terms; one of unknown keys is several.
fn faults(schema: &Value, yaml: &str, error: &jsonschema::ValidationError<'_>) -> Vec<ConfigFault> {
    use jsonschema::error::ValidationErrorKind as Kind;
    let path: Vec<String> = error
        .instance_path()
        .as_str()
        .split('/')
        .skip(1)
        .map(|p| p.replace("~1", "/").replace("~0", "~"))
        .collect();
    let fault =
        |path: &[String], what: String| ConfigFault { line: line_of(yaml, path), key: path.join("."), what };
    match error.kind() {
        Kind::AdditionalProperties { unexpected } | Kind::UnevaluatedProperties { unexpected } => {
            let known = properties(schema, subschema(schema, &path)).join(", ");
            let unknown = |key: &String| {
                let path = [&path[..], std::slice::from_ref(key)].concat();
                fault(&path, format!("the plugin has no such key; it has: {known}"))
            };
            unexpected.iter().map(unknown).collect()
        }
        Kind::Required { property } => {
            let name = property.as_str().unwrap_or_default().to_string();
            let at = [&path[..], std::slice::from_ref(&name)].concat();
            let mut missing = fault(&path, String::new());
            missing.key = at.join(".");
            missing.what = format!("it is missing{}", description(schema, &at));
            vec![missing]
        }
        _ => {
            // The value itself stays out of the text when it is a secret.
            let secret = subschema(schema, &path).is_some_and(|s| is_secret(schema, s));
            let text = match (error.kind(), secret) {
                (_, true) => error.masked().to_string(),
                // The schema's own words have all of them, which the library's text has not.
                (Kind::Enum { options }, _) => {
                    let options = options.as_array().into_iter().flatten();
                    let known: Vec<String> =
                        options.filter(|o| !o.is_null()).map(ToString::to_string).collect();
                    format!("{} is not one of {}", error.instance(), known.join(", "))
                }
                (Kind::AnyOf { .. } | Kind::OneOfNotValid { .. }, _) => {
                    format!("{} has none of the forms that are allowed here", error.instance())
                }
                _ => error.to_string(),
            };
            vec![fault(&path, format!("{text}{}", description(schema, &path)))]
        }
    }
}

/// ` (the schema's description)`, or nothing.
fn description(schema: &Value, path: &[String]) -> String {
    let text = subschema(schema, path).and_then(|s| s.get("description")?.as_str());
    text.map_or(String::new(), |text| format!(" ({})", text.trim()))
}

/// Follows `$ref`s within the schema.
fn resolved<'a>(root: &'a Value, mut schema: &'a Value) -> &'a Value {
    for _ in 0..16 {
        let target = schema.get("$ref").and_then(|r| r.as_str()?.strip_prefix('#'));
        match target.and_then(|t| root.pointer(t)) {
            Some(next) => schema = next,
            None => break,
        }
    }
    schema
}

/// The schema and its alternatives, as of an optional key.
fn alternatives<'a>(root: &'a Value, schema: &'a Value) -> Vec<&'a Value> {
    let schema = resolved(root, schema);
    let of = |key| schema.get(key).and_then(Value::as_array).into_iter().flatten();
    let more = ["anyOf", "oneOf", "allOf"].into_iter().flat_map(of).map(|s| resolved(root, s));
    std::iter::once(schema).chain(more).collect()
}

fn subschema<'a>(root: &'a Value, path: &[String]) -> Option<&'a Value> {
    let mut schema = root;
    for (depth, part) in path.iter().enumerate() {
        let next = alternatives(root, schema).into_iter().find_map(|s| {
            let property = s.get("properties").and_then(|p| p.get(part));
            property.or_else(|| s.get("items").filter(|_| part.parse::<usize>().is_ok()))
        })?;
        // A description may stand beside a `$ref`: the last step is not followed.
        schema = if depth + 1 == path.len() { next } else { resolved(root, next) };
    }
    Some(schema)
}

fn properties(root: &Value, schema: Option<&Value>) -> Vec<String> {
    let schemas = schema.map(|s| alternatives(root, s)).unwrap_or_default();
    let maps = schemas.into_iter().filter_map(|s| s.get("properties")?.as_object());
    maps.flat_map(|m| m.keys().cloned()).collect()
}

fn is_secret(root: &Value, schema: &Value) -> bool {
    let marked = |s: &Value| {
        s.get("writeOnly") == Some(&Value::Bool(true)) || s.get("format").is_some_and(|f| f == "password")
    };
    marked(schema) || alternatives(root, schema).into_iter().any(marked)
}

fn collect_secrets(root: &Value, schema: &Value, config: &Value, depth: usize, found: &mut Vec<String>) {
    if depth > 32 {
        return;
    }
    if is_secret(root, schema) {
        return texts(config, found);
    }
    for schema in alternatives(root, schema) {
        if let (Some(properties), Some(map)) =
            (schema.get("properties").and_then(Value::as_object), config.as_object())
        {
            for (key, value) in map {
                if let Some(of_key) = properties.get(key) {
                    collect_secrets(root, of_key, value, depth + 1, found);
                }
            }
        }
        if let (Some(items), Some(list)) = (schema.get("items"), config.as_array()) {
            list.iter().for_each(|value| collect_secrets(root, items, value, depth + 1, found));
        }
    }
}

/// Every text and number in a value.
fn texts(value: &Value, found: &mut Vec<String>) {
    let mut keep = |text: String| {
        if text.len() >= SHORTEST_SECRET && !found.contains(&text) {
            found.push(text);
        }
    };
    match value {
        Value::String(text) => keep(text.clone()),
        Value::Number(n) => keep(n.to_string()),
        Value::Array(list) => list.iter().for_each(|v| texts(v, found)),
        Value::Object(map) => map.values().for_each(|v| texts(v, found)),
        Value::Null | Value::Bool(_) => {}
    }
}

/// The line of the value at a path, or of the nearest one around it.
fn line_of(yaml: &str, path: &[String]) -> Option<usize> {
    (1..=path.len()).rev().find_map(|n| {
        let error = Finder(&path[..n]).deserialize(serde_yaml::Deserializer::from_str(yaml)).err()?;
        let found = error.to_string().contains(HERE);
        error.location().filter(|_| found).map(|l| l.line())
    })
}

/// What [`Finder`] fails with when it is there.
const HERE: &str = "the value at the path";

/// Walks to a value and fails there, since an error is the only thing that serde_yaml tells the place of.
struct Finder<'a>(&'a [String]);

impl<'de> DeserializeSeed<'de> for Finder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! here {
    ($($name:ident($type:ty)),*) => { $(
        fn $name<E: serde::de::Error>(self, _: $type) -> Result<(), E> {
            if self.0.is_empty() { Err(E::custom(HERE)) } else { Ok(()) }
        }
    )* };
}

impl<'de> Visitor<'de> for Finder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    here! { visit_bool(bool), visit_i64(i64), visit_u64(u64), visit_f64(f64), visit_str(&str) }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.0.is_empty() { Err(E::custom(HERE)) } else { Ok(()) }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((wanted, rest)) = self.0.split_first() else { return Err(A::Error::custom(HERE)) };
        while let Some(key) = map.next_key::<serde_yaml::Value>()? {
            if key.as_str() == Some(wanted) {
                map.next_value_seed(Finder(rest))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Some((wanted, rest)) = self.0.split_first() else { return Err(A::Error::custom(HERE)) };
        let mut index = 0usize;
        loop {
            let wanted = wanted.parse() == Ok(index);
            let more = match wanted {
                true => list.next_element_seed(Finder(rest))?.is_some(),
                false => list.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(());
            }
            index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r##"{
        "type": "object", "required": ["host"], "additionalProperties": false,
        "properties": {
            "host": {"type": "string", "minLength": 1, "description": "Where the control stack listens"},
            "port": {"type": "integer", "minimum": 1, "maximum": 65535},
            "mode": {"enum": ["a", "b", "c", "d", null], "description": "What is done"},
            "wires": {"anyOf": [{"type": "integer"}, {"type": "null"}], "description": "A number"},
            "token": {"type": ["string", "null"], "writeOnly": true, "pattern": "^key-"},
            "noise": {"$ref": "#/$defs/noise", "description": "Errors"},
            "lines": {"type": "array", "items": {"type": "object", "properties": {"pin": {"type": "integer", "writeOnly": true}}}}
        },
        "$defs": {"noise": {"type": "object", "additionalProperties": false, "properties": {"readout": {"type": "number", "maximum": 1}}}}
    }"##;

    fn says(yaml: &str) -> Vec<String> {
        match check(SCHEMA, yaml) {
            Err(SchemaError::Config(faults)) => faults.iter().map(ToString::to_string).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn faults_name_line_key_and_the_schemas_words() {
        assert_eq!(
            says("executor_factory: a.so\nport: 7\n"),
            ["`host`: it is missing (Where the control stack listens)"]
        );
        assert_eq!(
            says("host: lab\n# a comment\nport: 70000"),
            ["line 3: `port`: 70000 is greater than the maximum of 65535"]
        );
        let found = says("host: lab\nnoise:\n  readout: 2\n");
        assert_eq!(found, ["line 3: `noise.readout`: 2 is greater than the maximum of 1"]);
        let found = says("host: lab\nnoise:\n  readout: 0\n  redout: 0\nprt: 1");
        assert_eq!(found[0], "line 4: `noise.redout`: the plugin has no such key; it has: readout");
        assert!(
            found[1].starts_with("line 5: `prt`: the plugin has no such key; it has: host, lines"),
            "{found:?}"
        );
        assert_eq!(
            says("host: lab\nmode: e\nwires: many"),
            [
                "line 2: `mode`: \"e\" is not one of \"a\", \"b\", \"c\", \"d\" (What is done)",
                "line 3: `wires`: \"many\" has none of the forms that are allowed here (A number)",
            ]
        );
        assert!(says("host: ''")[0].ends_with("(Where the control stack listens)"));
        assert_eq!(says("host: lab\nlines: [{pin: 1}, {pin: x}]")[0].split(':').next(), Some("line 2"));
    }

    #[test]
    fn secrets_are_found_and_not_shown() {
        let secrets = check(SCHEMA, "host: lab\ntoken: key-12345\nlines: [{pin: 99887}, {pin: 12}]").unwrap();
        assert_eq!(secrets, ["99887", "key-12345"], "those long enough to be masked");
        let fault = &says("host: lab\ntoken: sesame")[0];
        assert!(fault.starts_with("line 2: `token`") && !fault.contains("sesame"), "{fault}");
    }

    #[test]
    fn what_is_no_schema_or_no_yaml_is_told() {
        assert!(matches!(check("{", ""), Err(SchemaError::Schema(_))));
        assert!(matches!(check(r#"{"type": 7}"#, ""), Err(SchemaError::Schema(_))));
        assert!(matches!(check("{}", "a: [1"), Err(SchemaError::Yaml(_))));
        assert_eq!(check("{}", "# nothing\n").unwrap(), [""; 0]);
    }
}
