//! The answer to a connect: what the cloud says the QPU is and how to reach everything.
//!
//! Pure: [`apply`] lays an answer over what is held and returns new values, or an error that names the field
//! and leaves nothing half-applied. Unknown fields are ignored. A field that is merely odd is ignored with a
//! warning, as the Python node ignores it. Values are never shown: a bundle holds keys and passwords.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::config::settings::{CloudSettings, Identity, VpnSettings};
use crate::error::{Explain, exit};
use crate::model::Secret;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    #[error("Node response is not a JSON object")]
    NotAnObject,
    #[error("Node response missing valid '{0}'")]
    Missing(&'static str),
    #[error("Node response missing valid '{field}': {why}")]
    Wrong { field: &'static str, why: &'static str },
    #[error("VPN is required but the node response holds no VPN profile")]
    NoProfile,
}

impl Explain for BundleError {
    fn code(&self) -> &'static str {
        match self {
            BundleError::NotAnObject => "bundle-json",
            BundleError::Missing(_) | BundleError::Wrong { .. } => "bundle-field",
            BundleError::NoProfile => "bundle-no-profile",
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            BundleError::NotAnObject => {
                "check that CODA_WEBAPP_URL and CODA_CONNECT_PATH lead to Coda and not to some other page"
            }
            BundleError::NoProfile => "have the QPU's VPN checked in the Coda admin panel",
            _ => "have the QPU's registration checked in the Coda admin panel",
        };
        Some(hint.to_owned())
    }

    fn exit(&self) -> u8 {
        exit::CLOUD
    }
}

/// The values before the answer is applied.
#[derive(Debug, Clone, Copy)]
pub struct CurrentValues<'a> {
    pub identity: &'a Identity,
    pub cloud: &'a CloudSettings,
    pub vpn: &'a VpnSettings,
    pub private_key: Option<&'a Secret>,
    pub key_id: Option<&'a str>,
}

/// The values after the answer was applied.
#[derive(Debug, Clone)]
pub struct AppliedBundle {
    pub identity: Identity,
    pub cloud: CloudSettings,
    pub vpn: VpnSettings,
    /// PEM as given, new or held; not checked yet.
    pub private_key: Secret,
    pub key_id: String,
    /// OpenVPN client profile.
    pub profile: Option<Secret>,
    /// Fields that were ignored, and why.
    pub warnings: Vec<String>,
}

/// Applies the body of the answer to the current values.
///
/// # Errors
/// A required field is missing or not valid.
pub fn apply(body: &[u8], held: CurrentValues<'_>) -> Result<AppliedBundle, BundleError> {
    let Ok(Value::Object(bundle)) = serde_json::from_slice(body) else {
        return Err(BundleError::NotAnObject);
    };
    let text = |key: &'static str| filled(&bundle, key).ok_or(BundleError::Missing(key));
    let identity = Identity {
        qpu_id: text("qpu_id")?.to_owned(),
        qpu_display_name: filled(&bundle, "qpu_display_name")
            .or_else(|| filled(&bundle, "qpu_label"))
            .unwrap_or_default()
            .to_owned(),
        native_gate_set: text("native_gate_set")?.to_owned(),
        num_qubits: match bundle.get("num_qubits") {
            None => held.identity.num_qubits,
            Some(n) => n
                .as_u64()
                .and_then(|n| u16::try_from(n).ok())
                .filter(|n| *n > 0)
                .ok_or(BundleError::Missing("num_qubits"))?,
        },
        redis_url: Secret::new(text("redis_url")?),
    };
    let private_key = filled(&bundle, "jwt_private_key")
        .map(Secret::new)
        .or_else(|| held.private_key.cloned())
        .ok_or(BundleError::Missing("jwt_private_key"))?;
    let key_id = filled(&bundle, "jwt_key_id")
        .or(held.key_id.filter(|k| !k.is_empty()))
        .ok_or(BundleError::Missing("jwt_key_id"))?
        .to_owned();

    let mut cloud = held.cloud.clone();
    cloud.webapp_url = webapp_url(&bundle)?;
    path(&bundle, "connect_path", &mut cloud.connect_path)?;
    path(&bundle, "heartbeat_path", &mut cloud.heartbeat_path)?;
    path(&bundle, "webhook_path", &mut cloud.webhook_path)?;

    let mut warnings = Vec::new();
    let mut vpn = held.vpn.clone();
    let profile = match bundle.get("vpn") {
        None | Some(Value::Null) => None,
        Some(Value::Object(block)) => apply_vpn(block, &mut vpn, &mut warnings)?,
        Some(_) => return Err(BundleError::Missing("vpn")),
    };
    Ok(AppliedBundle { identity, cloud, vpn, private_key, key_id, profile, warnings })
}

/// A text that isn't empty.
fn filled<'a>(object: &'a Map<String, Value>, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str).filter(|t| !t.is_empty())
}

fn webapp_url(bundle: &Map<String, Value>) -> Result<String, BundleError> {
    let (field, url) = match filled(bundle, "webapp_url") {
        Some(url) => ("webapp_url", url),
        None => {
            ("cloud_base_url", filled(bundle, "cloud_base_url").ok_or(BundleError::Missing("webapp_url"))?)
        }
    };
    let wrong = |why| BundleError::Wrong { field, why };
    let parsed = url::Url::parse(url).map_err(|_| wrong("it isn't a URL"))?;
    if !matches!(parsed.scheme(), "http" | "https") || !parsed.has_host() {
        return Err(wrong("it isn't an http or https URL"));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(wrong("nothing can be appended to a URL with '?' or '#'"));
    }
    Ok(url.trim_end_matches('/').to_owned())
}

/// Paths are appended to the webapp's URL as they are, so one without a slash would change the host.
fn path(bundle: &Map<String, Value>, field: &'static str, target: &mut String) -> Result<(), BundleError> {
    if let Some(path) = filled(bundle, field) {
        if !path.starts_with('/') {
            return Err(BundleError::Wrong { field, why: "it doesn't begin with '/'" });
        }
        path.clone_into(target);
    }
    Ok(())
}

fn apply_vpn(
    block: &Map<String, Value>,
    vpn: &mut VpnSettings,
    warnings: &mut Vec<String>,
) -> Result<Option<Secret>, BundleError> {
    let mut ignored = |key: &str, expected: &str| {
        warnings.push(format!("the node response's vpn.{key} is not {expected} and was ignored"));
    };
    match block.get("required") {
        None | Some(Value::Null) => (),
        Some(Value::Bool(required)) => vpn.required = *required,
        Some(_) => ignored("required", "true or false"),
    }
    match block.get("interface_hint") {
        None | Some(Value::Null) => vpn.interface_hint = None,
        Some(Value::String(hint)) => vpn.interface_hint = Some(hint.clone()).filter(|h| !h.is_empty()),
        Some(_) => ignored("interface_hint", "a text"),
    }
    match block.get("check_interval_sec") {
        None | Some(Value::Null) => (),
        Some(seconds) => match seconds.as_u64().filter(|s| *s > 0) {
            Some(seconds) => vpn.check_interval = Duration::from_secs(seconds),
            None => ignored("check_interval_sec", "a whole number of seconds above 0"),
        },
    }
    match block.get("probe_targets") {
        None | Some(Value::Null) => (),
        Some(targets) => {
            let texts = targets.as_array().and_then(|list| {
                list.iter().map(|t| t.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
            });
            match texts {
                Some(texts) if !texts.is_empty() => vpn.probe_targets = texts,
                Some(_) => (),
                None => ignored("probe_targets", "a list of texts"),
            }
        }
    }
    let profile = filled(block, "client_profile_ovpn").map(Secret::new);
    if vpn.required && profile.is_none() {
        return Err(BundleError::NoProfile);
    }
    Ok(profile)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::testing;
    use serde_json::json;

    struct Before {
        identity: Identity,
        cloud: CloudSettings,
        vpn: VpnSettings,
    }

    fn before() -> Before {
        let identity = Identity {
            qpu_id: "old".into(),
            qpu_display_name: "Old".into(),
            native_gate_set: "cx".into(),
            num_qubits: 7,
            redis_url: Secret::new("redis://old"),
        };
        Before { identity, cloud: testing::settings("https://old"), vpn: testing::vpn() }
    }

    fn full() -> Value {
        json!({
            "qpu_id": "q1", "qpu_display_name": "Lab 1", "qpu_label": "L", "native_gate_set": "cz",
            "num_qubits": 5, "jwt_private_key": "PEM", "jwt_key_id": "k1", "redis_url": "redis://:pw@r:1",
            "webapp_url": "https://coda.example/", "cloud_base_url": "https://other", "connect_path": "/c",
            "heartbeat_path": "/h", "webhook_path": "/w", "stream_key": "qpu:q1:jobs", "unknown": [1],
            "vpn": {"required": true, "interface_hint": "tun7", "check_interval_sec": 3,
                    "probe_targets": ["https://p"], "client_profile_ovpn": "client\n"},
        })
    }

    fn run(bundle: &Value, key: Option<&Secret>, key_id: Option<&str>) -> Result<AppliedBundle, BundleError> {
        let b = before();
        let held =
            CurrentValues { identity: &b.identity, cloud: &b.cloud, vpn: &b.vpn, private_key: key, key_id };
        apply(bundle.to_string().as_bytes(), held)
    }

    fn with(key: &str, value: Value) -> Value {
        let mut bundle = full();
        bundle[key] = value;
        bundle
    }

    fn without(key: &str) -> Value {
        let mut bundle = full();
        bundle.as_object_mut().unwrap().remove(key);
        bundle
    }

    #[test]
    fn a_full_bundle_replaces_everything() {
        let a = run(&full(), None, None).unwrap();
        assert_eq!(
            a.identity,
            Identity {
                qpu_id: "q1".into(),
                qpu_display_name: "Lab 1".into(),
                native_gate_set: "cz".into(),
                num_qubits: 5,
                redis_url: Secret::new("redis://:pw@r:1"),
            }
        );
        assert_eq!(a.cloud.webapp_url, "https://coda.example", "nothing doubles the slash of the paths");
        assert_eq!(
            (&*a.cloud.connect_path, &*a.cloud.heartbeat_path, &*a.cloud.webhook_path),
            ("/c", "/h", "/w")
        );
        assert_eq!((a.private_key.expose(), &*a.key_id), ("PEM", "k1"));
        assert!(a.vpn.required && a.vpn.check_interval == Duration::from_secs(3));
        assert_eq!(a.vpn.interface_hint.as_deref(), Some("tun7"));
        assert_eq!(a.vpn.probe_targets, ["https://p"]);
        assert_eq!(a.profile.as_ref().unwrap().expose(), "client\n");
        assert!(a.warnings.is_empty());
        let shown = format!("{a:?}");
        assert!(!shown.contains("PEM") && !shown.contains("pw@") && !shown.contains("client\n"), "{shown}");
    }

    #[test]
    fn what_may_be_absent_leaves_what_is_held() {
        let mut bundle = full();
        for key in [
            "num_qubits",
            "jwt_private_key",
            "jwt_key_id",
            "connect_path",
            "webapp_url",
            "vpn",
            "qpu_display_name",
        ] {
            bundle.as_object_mut().unwrap().remove(key);
        }
        bundle["webhook_path"] = json!("");
        let a = run(&bundle, Some(&Secret::new("HELD")), Some("k0")).unwrap();
        assert_eq!((a.identity.num_qubits, &*a.identity.qpu_display_name), (7, "L"));
        assert_eq!((a.private_key.expose(), &*a.key_id), ("HELD", "k0"));
        assert_eq!(
            (&*a.cloud.webapp_url, &*a.cloud.connect_path),
            ("https://other", "/api/internal/qpu/connect")
        );
        assert_eq!(a.cloud.webhook_path, "/api/internal/qpu/webhook");
        assert!(a.vpn.required, "required stays as it was");
        // A new key replaces the held one.
        let a = run(&full(), Some(&Secret::new("HELD")), Some("k0")).unwrap();
        assert_eq!((a.private_key.expose(), &*a.key_id), ("PEM", "k1"));
    }

    #[test]
    fn each_missing_field_is_named() {
        for key in ["qpu_id", "native_gate_set", "redis_url", "jwt_private_key", "jwt_key_id"] {
            for bundle in [without(key), with(key, json!("")), with(key, json!(5)), with(key, Value::Null)] {
                let error = run(&bundle, None, None).unwrap_err();
                assert_eq!(error.to_string(), format!("Node response missing valid '{key}'"));
            }
        }
        let mut bundle = without("webapp_url");
        bundle["cloud_base_url"] = json!("");
        assert_eq!(run(&bundle, None, None).unwrap_err(), BundleError::Missing("webapp_url"));
        for wrong in [json!("5"), json!(5.0), json!(true), json!(0), json!(-1), json!(70_000), Value::Null] {
            let error = run(&with("num_qubits", wrong.clone()), None, None).unwrap_err();
            assert_eq!(error, BundleError::Missing("num_qubits"), "{wrong}");
        }
        for body in ["[]", "5", "", "<html>", "{"] {
            let b = before();
            let held = CurrentValues {
                identity: &b.identity,
                cloud: &b.cloud,
                vpn: &b.vpn,
                private_key: None,
                key_id: None,
            };
            assert_eq!(apply(body.as_bytes(), held).unwrap_err(), BundleError::NotAnObject, "{body}");
        }
    }

    #[test]
    fn urls_and_paths_that_would_lead_elsewhere_are_refused() {
        for url in ["coda.example", "ftp://coda.example", "https://", "https://c/?a=", "https://c/#x"] {
            let error = run(&with("webapp_url", json!(url)), None, None).unwrap_err();
            assert!(matches!(error, BundleError::Wrong { field: "webapp_url", .. }), "{url}: {error}");
        }
        for key in ["connect_path", "heartbeat_path", "webhook_path"] {
            let error = run(&with(key, json!(".evil.example/x")), None, None).unwrap_err();
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn the_vpn_block_changes_only_what_it_holds() {
        let vpn = |block: Value| run(&with("vpn", block), None, None);
        let a = vpn(json!({"required": false, "probe_targets": [], "interface_hint": null})).unwrap();
        assert!(!a.vpn.required && a.profile.is_none());
        assert_eq!((a.vpn.interface_hint, a.vpn.probe_targets), (None, testing::vpn().probe_targets));
        assert_eq!(vpn(json!({"required": true})).unwrap_err(), BundleError::NoProfile);
        assert_eq!(vpn(json!({})).unwrap_err(), BundleError::NoProfile, "it was required before");
        assert_eq!(vpn(json!([])).unwrap_err(), BundleError::Missing("vpn"));
        let a = vpn(json!({"required": "yes", "check_interval_sec": 1.5, "probe_targets": [1],
            "interface_hint": 3, "client_profile_ovpn": "p"}));
        let a = a.unwrap();
        assert_eq!(a.warnings.len(), 4, "{:?}", a.warnings);
        assert_eq!(a.vpn.check_interval, testing::vpn().check_interval);
    }
}
