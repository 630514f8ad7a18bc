//! The device config of a QDMI library: what a person writes in `device.yaml`, and what it means with the manifest.
//!
//! Contract: an unknown key or a bad value is an error that names file and key. Values of secrets are in no error and no
//! log. Relative paths are relative to `device.yaml`. Nothing of the library runs here.

use std::collections::BTreeMap;
use std::env::VarError;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coda_plugin_abi::{Context, Error, ErrorCode, Stage, Target};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Deserialize;

use crate::abi::{Item, custom};
use crate::{manifest, trust};

/// Most bytes of a file with a secret.
const MAX_SECRET: u64 = 64 << 10;

/// Device config of a QDMI device library
// `device.yaml` as written; these comments are in the schema, for the person who wrote a key wrong.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Path of the device library, or of the directory with its manifest
    library: PathBuf,
    /// Id of a device in a *.qdmi.json file beside the library, which fills in prefix and session
    device: Option<String>,
    /// What the names of the library's functions begin with; needed only if the library has several devices
    prefix: Option<String>,
    /// Parameters of the connection, over those of the manifest
    #[serde(default)]
    session: SessionConfig,
    /// Parameters set on every job
    #[serde(default)]
    job: CustomConfig,
    /// Language of the programs: auto, qasm3, qasm2 or iqm_json
    #[serde(default)]
    format: FormatName,
    /// Which character of a result is bit 0: first_left or first_right; known for DDSIM and IQM
    bit_order: Option<BitOrder>,
    /// Native gate sets that the device takes: cz, cnot, pcz, iswap; found from its operations if left out
    #[schemars(length(min = 1))]
    targets: Option<Vec<TargetName>>,
    /// Jobs in the device at the same time
    #[schemars(range(min = 1, max = 64))]
    #[serde(default = "one")]
    slots: u16,
    /// How OpenQASM 3 names qubits: physical ($0) or register (q[0])
    #[serde(default)]
    addressing: Addressing,
    /// Longest pause between two looks at a job, in milliseconds
    #[schemars(range(min = 1, max = 60_000))]
    #[serde(default = "half_a_second")]
    poll_max_ms: u64,
    /// How long the state or the result of a job may fail to be read before the job fails, in milliseconds
    #[schemars(range(min = 0, max = 3_600_000))]
    #[serde(default = "half_a_minute")]
    check_retry_ms: u64,
    /// Pause between two looks at an idle device, in milliseconds
    #[schemars(range(min = 100, max = 3_600_000))]
    #[serde(default = "half_a_minute")]
    refresh_ms: u64,
}

fn one() -> u16 {
    1
}

fn half_a_second() -> u64 {
    500
}

fn half_a_minute() -> u64 {
    30_000
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
struct SessionConfig {
    /// Address of the device or its server
    base_url: Option<String>,
    /// Access token; rather set token_env or token_file
    #[schemars(extend("writeOnly" = true))]
    token: Option<String>,
    /// Environment variable with the access token
    token_env: Option<String>,
    /// File with the access token
    token_file: Option<PathBuf>,
    /// File with credentials in the library's own form
    auth_file: Option<PathBuf>,
    /// Address of the server for authentication
    auth_url: Option<String>,
    /// Name of the user
    username: Option<String>,
    /// Password of the user; rather set password_env or password_file
    #[schemars(extend("writeOnly" = true))]
    password: Option<String>,
    /// Environment variable with the password
    password_env: Option<String>,
    /// File with the password
    password_file: Option<PathBuf>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom1: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom2: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom3: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom4: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom5: Option<TypedValue>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(inline)]
struct CustomConfig {
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom1: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom2: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom3: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom4: Option<TypedValue>,
    /// Parameter of the library's own: text, {u64: 1}, {f64: 0.5} or {hex: "00ff"}
    custom5: Option<TypedValue>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "expected text (in quotes if it is a number), {u64: 1}, {f64: 0.5} or {hex: \"00ff\"}"
)]
#[schemars(inline)]
enum TypedValue {
    Text(String),
    Typed(Typed),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
#[schemars(inline)]
enum Typed {
    U64(u64),
    F64(f64),
    Hex(String),
}

#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum FormatName {
    #[default]
    Auto,
    Qasm3,
    Qasm2,
    IqmJson,
}

/// The language of programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Qasm3,
    Qasm2,
    IqmJson,
}

impl Format {
    /// The preferred one first.
    pub const ALL: [Format; 3] = [Format::Qasm3, Format::Qasm2, Format::IqmJson];

    /// Its number in the interface.
    pub const fn code(self) -> i32 {
        match self {
            Format::Qasm2 => 0,
            Format::Qasm3 => 1,
            Format::IqmJson => 8,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Format::Qasm3 => "qasm3",
            Format::Qasm2 => "qasm2",
            Format::IqmJson => "iqm_json",
        }
    }
}

/// Which character of a key is bit 0 of the classical register.
// Plain comments on the variants: described ones would be a schema each, and an error would name none of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum BitOrder {
    // The first character.
    FirstLeft,
    // The last character.
    FirstRight,
}

impl BitOrder {
    /// The order of the libraries whose order is known.
    pub fn of_prefix(prefix: &str) -> Option<BitOrder> {
        match prefix {
            "MQT_DDSIM" => Some(BitOrder::FirstRight),
            "IQM" => Some(BitOrder::FirstLeft),
            _ => None,
        }
    }
}

/// How OpenQASM 3 names qubits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
pub enum Addressing {
    #[default]
    Physical,
    Register,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum TargetName {
    Cz,
    Iswap,
    Pcz,
    Cnot,
}

impl From<TargetName> for Target {
    fn from(name: TargetName) -> Target {
        match name {
            TargetName::Cz => Target::Cz,
            TargetName::Iswap => Target::Iswap,
            TargetName::Pcz => Target::Pcz,
            TargetName::Cnot => Target::Cnot,
        }
    }
}

/// The JSON schema of the config; of draft 7, which a host has ready sooner than the newest.
pub fn schema() -> String {
    let schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<Config>();
    schema.as_value().to_string()
}

/// A parameter as the library gets it. Its value may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Parameter {
    /// As the config names it.
    pub key: &'static str,
    pub item: Item,
    pub value: Vec<u8>,
    /// Of the manifest: it is not an error if the library doesn't have it.
    pub from_manifest: bool,
}

impl std::fmt::Debug for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.key)
    }
}

/// A checked config.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Of `device.yaml`, for errors; absolute, or a note that there is none.
    pub config_file: String,
    pub library: PathBuf,
    pub prefix: String,
    pub session: Vec<Parameter>,
    pub job: Vec<Parameter>,
    /// `None`: the best one that the library takes.
    pub format: Option<Format>,
    pub bit_order: Option<BitOrder>,
    pub targets: Option<Vec<Target>>,
    pub slots: u16,
    pub addressing: Addressing,
    pub poll_max: Duration,
    pub check_retry: Duration,
    pub refresh: Duration,
}

impl Settings {
    /// Reads the device config of `ctx`, the manifest and the files with secrets.
    ///
    /// # Errors
    /// Names file and key of what can't be used.
    pub fn from_context(ctx: &Context<'_>) -> Result<Settings, Error> {
        let config: Config = ctx.config()?;
        let path = ctx.config_path();
        let file = if path.is_empty() { "(no device config)" } else { path };
        let dir = Path::new(path).parent().unwrap_or(Path::new("."));
        let environment = |name: &str| std::env::var(name);
        config
            .check(file, dir, &environment)
            .map_err(|what| Error::new(ErrorCode::Config, format!("{file}: {what}")).at(Stage::Create))
    }
}

/// Parameters of a session by their names in the config.
const SESSION: &[(&str, Item)] = &[
    ("base_url", Item(0, "`session.base_url`")),
    ("token", Item(1, "`session.token`")),
    ("auth_file", Item(2, "`session.auth_file`")),
    ("auth_url", Item(3, "`session.auth_url`")),
    ("username", Item(4, "`session.username`")),
    ("password", Item(5, "`session.password`")),
    ("custom1", Item(custom(1), "`session.custom1`")),
    ("custom2", Item(custom(2), "`session.custom2`")),
    ("custom3", Item(custom(3), "`session.custom3`")),
    ("custom4", Item(custom(4), "`session.custom4`")),
    ("custom5", Item(custom(5), "`session.custom5`")),
];
const JOB: [(&str, Item); 5] = [
    ("custom1", Item(custom(1), "`job.custom1`")),
    ("custom2", Item(custom(2), "`job.custom2`")),
    ("custom3", Item(custom(3), "`job.custom3`")),
    ("custom4", Item(custom(4), "`job.custom4`")),
    ("custom5", Item(custom(5), "`job.custom5`")),
];

fn session_item(key: &str) -> Option<Item> {
    SESSION.iter().find(|(name, _)| *name == key).map(|(_, item)| *item)
}

impl Config {
    fn check(self, file: &str, dir: &Path, environment: &Environment) -> Result<Settings, String> {
        let limits = [
            ("slots", u64::from(self.slots), 1, 64),
            ("poll_max_ms", self.poll_max_ms, 1, 60_000),
            ("check_retry_ms", self.check_retry_ms, 0, 3_600_000),
            ("refresh_ms", self.refresh_ms, 100, 3_600_000),
        ];
        if let Some((key, value, least, most)) =
            limits.iter().find(|(_, value, least, most)| value < least || value > most)
        {
            return Err(format!("`{key}` is {value}; set it to {least} to {most}"));
        }
        let targets: Option<Vec<Target>> =
            self.targets.map(|targets| targets.into_iter().map(Target::from).collect());
        if targets.as_ref().is_some_and(Vec::is_empty) {
            return Err(
                "`targets` is empty; name at least one of cz, cnot, pcz, iswap, or leave it out".into()
            );
        }

        let named = dir.join(&self.library);
        let (library, found) = locate(&named, self.device.as_deref())?;
        trust::check(&library).map_err(|why| format!("`library`: {why}"))?;
        if let Some(found) = &found {
            trust::check(&found.manifest).map_err(|why| format!("`device`: {why}"))?;
            if let Some(config) = &found.device_config {
                trust::check(config).map_err(|why| format!("`device`: {why}"))?;
            }
        }
        let prefix = match self.prefix.or_else(|| found.as_ref().and_then(|found| found.prefix.clone())) {
            Some(prefix) => prefix,
            None => manifest::prefix_of(&library)?,
        };
        if prefix.is_empty() || !prefix.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            return Err(format!(
                "`prefix` is {prefix:?}; it is the beginning of a C identifier, such as IQM"
            ));
        }

        let mut session: BTreeMap<&'static str, (Vec<u8>, bool)> = BTreeMap::new();
        for (key, text) in found.map(|found| found.session).unwrap_or_default() {
            session.insert(key, (terminated(key, text)?, true));
        }
        for (key, value) in self.session.values(dir, environment)? {
            session.insert(key, (value, false));
        }
        let parameters = session.into_iter().filter_map(|(key, (value, from_manifest))| {
            session_item(key).map(|item| Parameter { key, item, value, from_manifest })
        });
        let CustomConfig { custom1, custom2, custom3, custom4, custom5 } = self.job;
        let mut job = Vec::new();
        for ((key, item), value) in JOB.into_iter().zip([custom1, custom2, custom3, custom4, custom5]) {
            if let Some(value) = value {
                let value = value.bytes(key).map_err(|what| format!("`job`: {what}"))?;
                job.push(Parameter { key, item, value, from_manifest: false });
            }
        }
        Ok(Settings {
            config_file: file.into(),
            bit_order: self.bit_order.or_else(|| BitOrder::of_prefix(&prefix)),
            library,
            prefix,
            session: parameters.collect(),
            job,
            format: match self.format {
                FormatName::Auto => None,
                FormatName::Qasm3 => Some(Format::Qasm3),
                FormatName::Qasm2 => Some(Format::Qasm2),
                FormatName::IqmJson => Some(Format::IqmJson),
            },
            targets,
            slots: self.slots,
            addressing: self.addressing,
            poll_max: Duration::from_millis(self.poll_max_ms),
            check_retry: Duration::from_millis(self.check_retry_ms),
            refresh: Duration::from_millis(self.refresh_ms),
        })
    }
}

/// The library's file, and what the manifest says of the device.
fn locate(named: &Path, device: Option<&str>) -> Result<(PathBuf, Option<manifest::ManifestDevice>), String> {
    let is_dir = named.is_dir();
    let found = match device {
        Some(id) => {
            let dir = if is_dir { named } else { named.parent().unwrap_or(Path::new("/")) };
            Some(manifest::find(dir, id)?)
        }
        None => None,
    };
    let library = match &found {
        Some(found) if is_dir => found.library.clone(),
        Some(found) if !manifest::same_library(&found.library, named) => {
            return Err(format!(
                "`device` is of the library {}, and `library` is {}; correct one of them",
                found.library.display(),
                named.display()
            ));
        }
        None if is_dir => manifest::only_library(named)?,
        _ => named.to_path_buf(),
    };
    if !library.is_file() {
        return Err(format!("`library` is {}, which is not a file", library.display()));
    }
    Ok((library, found))
}

impl SessionConfig {
    /// The values that are set, as the library gets them.
    fn values(self, dir: &Path, environment: &Environment) -> Result<Vec<(&'static str, Vec<u8>)>, String> {
        let from = Secrets { dir, environment };
        let token = from.read("token", self.token, self.token_env, self.token_file)?;
        let password = from.read("password", self.password, self.password_env, self.password_file)?;
        let auth_file = self.auth_file.map(|path| dir.join(path).display().to_string());
        let texts = [
            ("base_url", self.base_url),
            ("token", token),
            ("auth_file", auth_file),
            ("auth_url", self.auth_url),
            ("username", self.username),
            ("password", password),
        ];
        let customs = [self.custom1, self.custom2, self.custom3, self.custom4, self.custom5];
        let mut values = Vec::new();
        for (key, text) in texts {
            if let Some(text) = text {
                values.push((key, terminated(key, text)?));
            }
        }
        for ((key, _), value) in JOB.into_iter().zip(customs) {
            if let Some(value) = value {
                values.push((key, value.bytes(key)?));
            }
        }
        Ok(values)
    }
}

/// Value of an environment variable.
type Environment = dyn Fn(&str) -> Result<String, VarError>;

/// Where secrets may be found.
struct Secrets<'a> {
    dir: &'a Path,
    environment: &'a Environment,
}

impl Secrets<'_> {
    fn read(
        &self,
        key: &str,
        plain: Option<String>,
        variable: Option<String>,
        file: Option<PathBuf>,
    ) -> Result<Option<String>, String> {
        let both = || format!("`session` has more than one of {key}, {key}_env and {key}_file; keep one");
        match (plain, variable, file) {
            (None, None, None) => Ok(None),
            (Some(text), None, None) => Ok(Some(text)),
            (None, Some(variable), None) => match (self.environment)(&variable) {
                Ok(text) if text.is_empty() => {
                    Err(format!("`session.{key}_env` is {variable}, which is empty; set it to the secret"))
                }
                Ok(text) => Ok(Some(text)),
                Err(VarError::NotPresent) => Err(format!(
                    "`session.{key}_env` is {variable}, and this environment variable is not set; set it for the host"
                )),
                Err(VarError::NotUnicode(_)) => Err(format!(
                    "`session.{key}_env` is {variable}, whose value is not UTF-8 text; correct it"
                )),
            },
            (None, None, Some(file)) => {
                use std::io::Read as _;
                let path = self.dir.join(file);
                let unreadable =
                    |e: std::io::Error| format!("`session.{key}_file` is {}: {e}", path.display());
                // A FIFO or a device would hold up the start.
                if !path.metadata().map_err(unreadable)?.is_file() {
                    return Err(format!("`session.{key}_file` is {}, which is not a file", path.display()));
                }
                let mut text = String::new();
                let opened = std::fs::File::open(&path).map_err(unreadable)?;
                let bytes = opened.take(MAX_SECRET + 1).read_to_string(&mut text).map_err(unreadable)?;
                let wrong = |why: String| {
                    Err(format!("`session.{key}_file` is {}, which {why}; correct it", path.display()))
                };
                if bytes as u64 > MAX_SECRET {
                    return wrong(format!("has more than {MAX_SECRET} bytes"));
                }
                match text.trim_end_matches(['\n', '\r']) {
                    "" => wrong("is empty".into()),
                    secret => Ok(Some(secret.to_string())),
                }
            }
            _ => Err(both()),
        }
    }
}

impl TypedValue {
    fn bytes(self, key: &str) -> Result<Vec<u8>, String> {
        match self {
            TypedValue::Text(text) => terminated(key, text),
            TypedValue::Typed(Typed::U64(value)) => Ok(value.to_ne_bytes().to_vec()),
            TypedValue::Typed(Typed::F64(value)) if !value.is_finite() => {
                Err(format!("`{key}.f64` is not a finite number; correct it"))
            }
            TypedValue::Typed(Typed::F64(value)) => Ok(value.to_ne_bytes().to_vec()),
            TypedValue::Typed(Typed::Hex(digits)) => match hex::decode(&digits) {
                Ok(bytes) if !bytes.is_empty() => Ok(bytes),
                Ok(_) => {
                    Err(format!("`{key}.hex` is empty; leave {key} out, or write an even number of digits"))
                }
                Err(e) => Err(format!("`{key}.hex` is not hexadecimal text: {e}")),
            },
        }
    }
}

/// A text as libraries expect it, with the NUL that its size counts.
fn terminated(key: &str, text: String) -> Result<Vec<u8>, String> {
    if text.contains('\0') {
        return Err(format!("`{key}` contains a NUL; remove it"));
    }
    Ok((text + "\0").into_bytes())
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
