//! The credentials of a successful connect, kept where and as the Python node keeps them.
//!
//! `coda.config` (indented JSON) and the private key it names belong together; either node reads what the
//! other wrote. Unknown keys are ignored, an empty file counts as none, a value of the wrong type is an
//! error that names its key and never shows the value. Ours alone is `coda-host.token`: the SHA-256 of the
//! one-time token that was redeemed for these credentials, so that the same token left in a unit file
//! doesn't break a restart. All are secure files (see [`super::files`]).

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::error::{Explain, exit};
use crate::model::Secret;
use crate::state::files::{self, FileError};

pub const CONFIG_FILE: &str = "coda.config";
pub const KEY_FILE: &str = "coda-private-key";
pub const TOKEN_FILE: &str = "coda-host.token";

/// Such files are some kilobytes long.
const LIMIT: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("the stored credentials can't be used")]
    File(#[from] FileError),
    #[error("{} is not a JSON object: {why}", .path.display())]
    NotJson { path: PathBuf, why: String },
    #[error("{} has a '{key}' that is not {expected}", .path.display())]
    Value { path: PathBuf, key: &'static str, expected: &'static str },
    #[error("{} is not text", .path.display())]
    NotText { path: PathBuf },
}

impl Explain for CredentialsError {
    fn code(&self) -> &'static str {
        match self {
            CredentialsError::File(e) => e.code(),
            CredentialsError::NotJson { .. } => "credentials-json",
            CredentialsError::Value { .. } => "credentials-value",
            CredentialsError::NotText { .. } => "credentials-text",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            CredentialsError::File(e) => e.hint(),
            _ => Some("correct the file, or start over: coda-host reset, then a new node token".into()),
        }
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// What `coda.config` says; an absent, null or empty value is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredConfig {
    pub qpu_id: Option<String>,
    pub qpu_display_name: Option<String>,
    pub native_gate_set: Option<String>,
    pub num_qubits: Option<u16>,
    pub jwt_key_id: Option<String>,
    pub jwt_private_key_path: Option<PathBuf>,
    pub redis_url: Option<Secret>,
    pub webapp_url: Option<String>,
    pub connect_path: Option<String>,
    pub heartbeat_path: Option<String>,
    pub webhook_path: Option<String>,
    pub vpn_required: Option<bool>,
    pub vpn_check_interval_sec: Option<u64>,
    pub vpn_interface_hint: Option<String>,
    pub vpn_probe_targets: Option<Vec<String>>,
    pub node_auto_vpn: Option<bool>,
    pub node_vpn_profile_path: Option<PathBuf>,
    pub node_machine_fingerprint: Option<String>,
}

/// The stored credentials as a whole.
#[derive(Debug, Clone)]
pub struct StoredCredentials {
    pub config: StoredConfig,
    /// PEM; `None` when the file that the config names is missing or empty.
    pub private_key: Option<Secret>,
    /// Where the key is or would be.
    pub key_path: PathBuf,
    redeemed: Option<String>,
}

impl StoredCredentials {
    /// Whether these credentials were got for this very token.
    pub fn redeemed_by(&self, token: &Secret) -> bool {
        self.redeemed.as_deref() == Some(&token_hash(token))
    }

    /// Whether a reconnect is possible with them.
    pub fn usable(&self) -> bool {
        self.private_key.is_some() && self.config.jwt_key_id.is_some() && self.config.qpu_id.is_some()
    }
}

/// Reads the credentials in `dir`; `None` when there are none.
pub fn load(dir: &Path) -> Result<Option<StoredCredentials>, CredentialsError> {
    let path = dir.join(CONFIG_FILE);
    let Some(content) = files::read(&path, LIMIT)? else { return Ok(None) };
    if content.trim_ascii().is_empty() {
        return Ok(None);
    }
    let config = parse(&path, &content)?;
    if config == StoredConfig::default() {
        return Ok(None);
    }
    let named = dir.join(config.jwt_private_key_path.as_deref().unwrap_or(Path::new(KEY_FILE)));
    let read_key = |path: &Path| Ok::<_, CredentialsError>(text(path)?.filter(|t| !t.trim().is_empty()));
    // The Python node names the key by its full path, and both files together may have been copied elsewhere.
    let copied = dir.join(KEY_FILE);
    let (key_path, private_key) = match read_key(&named) {
        Ok(Some(key)) => (named, Some(key)),
        none => match read_key(&copied)? {
            Some(key) => (copied, Some(key)),
            None => (named, none?),
        },
    };
    let private_key = private_key.map(Secret::new);
    let redeemed = text(&dir.join(TOKEN_FILE))?.map(|t| t.trim().to_owned());
    Ok(Some(StoredCredentials { config, private_key, key_path, redeemed }))
}

/// Whether [`save`] would find a place for its files. Asked before a one-time token is spent.
pub fn can_save(dir: &Path) -> Result<(), CredentialsError> {
    files::ensure_dir(dir)?;
    for name in [KEY_FILE, CONFIG_FILE, TOKEN_FILE] {
        files::can_write(&dir.join(name))?;
    }
    Ok(())
}

/// Stores the credentials: the key first, then the config that names it, at last the token's hash when one
/// was redeemed. `config.jwt_private_key_path` is set here. When one can't be written the others are put back
/// as they were.
pub fn save(
    dir: &Path,
    config: &StoredConfig,
    private_key: &Secret,
    redeemed: Option<&Secret>,
) -> Result<(), CredentialsError> {
    files::ensure_dir(dir)?;
    let before = [KEY_FILE, CONFIG_FILE, TOKEN_FILE].map(|name| dir.join(name));
    let before = before.map(|path| (files::read(&path, LIMIT), path));
    write_all(dir, config, private_key, redeemed).inspect_err(|_| {
        for (content, path) in before {
            let put_back = match content {
                Ok(Some(content)) => files::write(&path, &content),
                Ok(None) => files::remove(&path).map(|_| ()),
                // What could not be read is not ours to replace.
                Err(_) => Ok(()),
            };
            if let Err(error) = put_back {
                tracing::warn!(%error, "a file of the credentials could not be put back");
            }
        }
    })
}

fn write_all(
    dir: &Path,
    config: &StoredConfig,
    private_key: &Secret,
    redeemed: Option<&Secret>,
) -> Result<(), CredentialsError> {
    let key_path = std::path::absolute(dir.join(KEY_FILE)).map_err(|source| FileError::Io {
        path: dir.join(KEY_FILE),
        action: "turned into an absolute path",
        source,
    })?;
    // The secrets go to 0600 files.
    files::write(&key_path, private_key.expose().as_bytes())?;
    let path = dir.join(CONFIG_FILE);
    let mut json = serde_json::to_string_pretty(&OnDisk::new(config, &key_path))
        .map_err(|e| CredentialsError::NotJson { path: path.clone(), why: e.to_string() })?;
    json.push('\n');
    files::write(&path, json.as_bytes())?;
    if let Some(token) = redeemed {
        files::write(&dir.join(TOKEN_FILE), format!("{}\n", token_hash(token)).as_bytes())?;
    }
    Ok(())
}

fn token_hash(token: &Secret) -> String {
    hex::encode(Sha256::digest(token.expose().as_bytes()))
}

fn text(path: &Path) -> Result<Option<String>, CredentialsError> {
    let Some(content) = files::read(path, LIMIT)? else { return Ok(None) };
    String::from_utf8(content).map(Some).map_err(|_| CredentialsError::NotText { path: path.to_path_buf() })
}

/// Value by value instead of by derive, whose errors would show the value and not the key.
pub fn parse(path: &Path, content: &[u8]) -> Result<StoredConfig, CredentialsError> {
    let value: Value = serde_json::from_slice(content).map_err(|e| CredentialsError::NotJson {
        path: path.to_path_buf(),
        why: format!("it breaks off or is wrong at line {}, column {}", e.line(), e.column()),
    })?;
    let Value::Object(object) = value else {
        return Err(CredentialsError::NotJson {
            path: path.to_path_buf(),
            why: "it holds another kind of value".into(),
        });
    };
    let fields = Fields { path, object };
    Ok(StoredConfig {
        qpu_id: fields.text("qpu_id")?,
        qpu_display_name: fields.text("qpu_display_name")?,
        native_gate_set: fields.text("native_gate_set")?,
        num_qubits: fields.get("num_qubits", "a whole number from 1 to 65535", |v| {
            v.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0)
        })?,
        jwt_key_id: fields.text("jwt_key_id")?,
        jwt_private_key_path: fields.text("jwt_private_key_path")?.map(PathBuf::from),
        redis_url: fields.text("redis_url")?.map(Secret::new),
        webapp_url: fields.text("webapp_url")?,
        connect_path: fields.text("connect_path")?,
        heartbeat_path: fields.text("heartbeat_path")?,
        webhook_path: fields.text("webhook_path")?,
        vpn_required: fields.get("vpn_required", "true or false", Value::as_bool)?,
        vpn_check_interval_sec: fields.get("vpn_check_interval_sec", "a whole number", Value::as_u64)?,
        vpn_interface_hint: fields.text("vpn_interface_hint")?,
        vpn_probe_targets: fields.get("vpn_probe_targets", "a list of texts", |v| {
            v.as_array()?.iter().map(|t| t.as_str().map(str::to_owned)).collect()
        })?,
        node_auto_vpn: fields.get("node_auto_vpn", "true or false", Value::as_bool)?,
        node_vpn_profile_path: fields.text("node_vpn_profile_path")?.map(PathBuf::from),
        node_machine_fingerprint: fields.text("node_machine_fingerprint")?,
    })
}

struct Fields<'a> {
    path: &'a Path,
    object: Map<String, Value>,
}

impl Fields<'_> {
    fn get<T>(
        &self,
        key: &'static str,
        expected: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, CredentialsError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| CredentialsError::Value {
                path: self.path.to_path_buf(),
                key,
                expected,
            }),
        }
    }

    fn text(&self, key: &'static str) -> Result<Option<String>, CredentialsError> {
        let text = self.get(key, "a text", |v| v.as_str().map(str::to_owned))?;
        Ok(text.filter(|t| !t.is_empty()))
    }
}

/// The file's form, keys in the order of the Python node. Empty texts instead of null, because that node
/// takes null for its texts as an error; only the interface hint may be null.
#[derive(Serialize)]
struct OnDisk<'a> {
    qpu_id: &'a str,
    qpu_display_name: &'a str,
    native_gate_set: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    num_qubits: Option<u16>,
    jwt_key_id: &'a str,
    jwt_private_key_path: &'a Path,
    redis_url: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    webapp_url: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    heartbeat_path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    webhook_path: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vpn_required: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vpn_check_interval_sec: Option<u64>,
    vpn_interface_hint: Option<&'a str>,
    vpn_probe_targets: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    node_auto_vpn: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_vpn_profile_path: Option<&'a Path>,
    node_machine_fingerprint: &'a str,
}

impl<'a> OnDisk<'a> {
    fn new(config: &'a StoredConfig, key_path: &'a Path) -> OnDisk<'a> {
        let text = |t: &'a Option<String>| t.as_deref().unwrap_or_default();
        OnDisk {
            qpu_id: text(&config.qpu_id),
            qpu_display_name: text(&config.qpu_display_name),
            native_gate_set: text(&config.native_gate_set),
            num_qubits: config.num_qubits,
            jwt_key_id: text(&config.jwt_key_id),
            jwt_private_key_path: key_path,
            redis_url: config.redis_url.as_ref().map(Secret::expose).unwrap_or_default(),
            webapp_url: config.webapp_url.as_deref(),
            connect_path: config.connect_path.as_deref(),
            heartbeat_path: config.heartbeat_path.as_deref(),
            webhook_path: config.webhook_path.as_deref(),
            vpn_required: config.vpn_required,
            vpn_check_interval_sec: config.vpn_check_interval_sec,
            vpn_interface_hint: config.vpn_interface_hint.as_deref(),
            vpn_probe_targets: config.vpn_probe_targets.as_deref().unwrap_or_default(),
            node_auto_vpn: config.node_auto_vpn,
            node_vpn_profile_path: config.node_vpn_profile_path.as_deref(),
            node_machine_fingerprint: text(&config.node_machine_fingerprint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Failure;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    fn config() -> StoredConfig {
        StoredConfig {
            qpu_id: Some("q1".into()),
            qpu_display_name: Some("Lab".into()),
            native_gate_set: Some("cz".into()),
            num_qubits: Some(5),
            jwt_key_id: Some("k1".into()),
            redis_url: Some(Secret::new("redis://:pw@h:6379")),
            webapp_url: Some("https://coda".into()),
            connect_path: Some("/c".into()),
            heartbeat_path: Some("/h".into()),
            webhook_path: Some("/w".into()),
            vpn_required: Some(false),
            vpn_check_interval_sec: Some(10),
            vpn_probe_targets: Some(vec!["https://probe".into()]),
            node_auto_vpn: Some(true),
            node_vpn_profile_path: Some("/p/coda-node.ovpn".into()),
            node_machine_fingerprint: Some("lab-42".into()),
            ..StoredConfig::default()
        }
    }

    #[test]
    fn what_is_saved_is_loaded_and_only_its_token_matches() {
        let d = tempfile::tempdir().unwrap();
        let dir = d.path().join("credentials");
        assert!(load(&dir).unwrap().is_none());
        let token = Secret::new("one-time-1");
        save(&dir, &config(), &Secret::new("PEM"), Some(&token)).unwrap();
        let stored = load(&dir).unwrap().unwrap();
        let key_path = dir.join(KEY_FILE);
        assert_eq!(stored.config, StoredConfig { jwt_private_key_path: Some(key_path), ..config() });
        assert_eq!(stored.private_key.as_ref().unwrap().expose(), "PEM");
        assert!(stored.usable() && stored.redeemed_by(&token));
        assert!(!stored.redeemed_by(&Secret::new("one-time-2")));
        let hash = fs::read_to_string(dir.join(TOKEN_FILE)).unwrap();
        assert_eq!(hash.trim().len(), 64);
        assert!(!hash.contains("one-time"));
        // A reconnect keeps the hash.
        save(&dir, &config(), &Secret::new("PEM2"), None).unwrap();
        assert!(load(&dir).unwrap().unwrap().redeemed_by(&token));
        for name in [CONFIG_FILE, KEY_FILE, TOKEN_FILE] {
            assert_eq!(fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o7777, 0o600, "{name}");
        }
        assert!(!format!("{stored:?}").contains("pw@"));
    }

    #[test]
    fn every_key_of_the_contract_is_written() {
        let d = tempfile::tempdir().unwrap();
        save(d.path(), &config(), &Secret::new("PEM"), None).unwrap();
        let text = fs::read_to_string(d.path().join(CONFIG_FILE)).unwrap();
        assert!(text.starts_with("{\n  \"qpu_id\": \"q1\",\n") && text.ends_with("}\n"), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_unstable();
        let mut expected = vec![
            "qpu_id",
            "qpu_display_name",
            "native_gate_set",
            "num_qubits",
            "jwt_key_id",
            "jwt_private_key_path",
            "redis_url",
            "webapp_url",
            "connect_path",
            "heartbeat_path",
            "webhook_path",
            "vpn_required",
            "vpn_check_interval_sec",
            "vpn_interface_hint",
            "vpn_probe_targets",
            "node_auto_vpn",
            "node_vpn_profile_path",
            "node_machine_fingerprint",
        ];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert!(value["vpn_interface_hint"].is_null());
    }

    #[test]
    fn a_key_that_was_copied_with_its_config_is_used_when_the_named_one_is_gone() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        save(old.path(), &config(), &Secret::new("PEM"), None).unwrap();
        for name in [CONFIG_FILE, KEY_FILE] {
            files::write(&new.path().join(name), &fs::read(old.path().join(name)).unwrap()).unwrap();
        }
        let key_path = || load(new.path()).unwrap().unwrap().key_path;
        assert_eq!(key_path(), old.path().join(KEY_FILE), "the config names it");
        let named = old.path().join(KEY_FILE);
        fs::set_permissions(&named, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(key_path(), new.path().join(KEY_FILE), "others may have changed it");
        fs::remove_file(&named).unwrap();
        assert_eq!(key_path(), new.path().join(KEY_FILE));
        assert_eq!(load(new.path()).unwrap().unwrap().private_key.unwrap().expose(), "PEM");
        fs::remove_file(new.path().join(KEY_FILE)).unwrap();
        assert!(load(new.path()).unwrap().unwrap().private_key.is_none());
    }

    #[test]
    fn a_config_of_the_python_node_is_read_with_the_key_it_names() {
        let d = tempfile::tempdir().unwrap();
        let elsewhere = d.path().join("other-key");
        files::write(&elsewhere, b"-----BEGIN PRIVATE KEY-----\n").unwrap();
        let json = format!(
            r#"{{"qpu_id": "q", "qpu_display_name": "", "num_qubits": 3, "jwt_key_id": "k",
                "jwt_private_key_path": "{}", "redis_url": "", "vpn_required": true,
                "vpn_interface_hint": null, "vpn_probe_targets": [], "later": {{"x": 1}}}}"#,
            elsewhere.display()
        );
        files::write(&d.path().join(CONFIG_FILE), json.as_bytes()).unwrap();
        let stored = load(d.path()).unwrap().unwrap();
        assert_eq!(stored.config.num_qubits, Some(3));
        assert_eq!((&stored.config.qpu_display_name, &stored.config.redis_url), (&None, &None));
        assert_eq!(stored.config.vpn_probe_targets.as_deref(), Some(&[][..]));
        assert!(stored.usable() && stored.key_path == elsewhere);
        fs::remove_file(&elsewhere).unwrap();
        assert!(!load(d.path()).unwrap().unwrap().usable());
    }

    #[test]
    fn nothing_in_the_file_counts_as_no_file() {
        let d = tempfile::tempdir().unwrap();
        for nothing in [" \n", "{}", r#"{"later": 1, "qpu_id": ""}"#] {
            files::write(&d.path().join(CONFIG_FILE), nothing.as_bytes()).unwrap();
            assert!(load(d.path()).unwrap().is_none(), "{nothing:?}");
        }
    }

    #[test]
    fn errors_name_file_and_key_but_show_no_value() {
        let d = tempfile::tempdir().unwrap();
        let path = d.path().join(CONFIG_FILE);
        let line = |content: &str| {
            files::write(&path, content.as_bytes()).unwrap();
            Failure::from(load(d.path()).unwrap_err()).line()
        };
        let bad = line(r#"{"redis_url": ["redis://:hunter2@h"]}"#);
        assert_eq!(bad, format!("{} has a 'redis_url' that is not a text", path.display()));
        assert!(line(r#"{"num_qubits": 0}"#).contains("'num_qubits'"));
        assert!(line(r#"{"redis_url": "hunter2"#).contains("line 1"));
        assert!(!line(r#"{"redis_url": "hunter2"#).contains("hunter2"));
        assert!(line("[]").contains("not a JSON object"));
        files::write(&path, b"{}").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let failure = Failure::from(load(d.path()).unwrap_err());
        assert!(failure.line().contains("has mode 0644"), "{}", failure.line());
        assert!(failure.hint.unwrap().starts_with("chmod 600"));
    }
}
