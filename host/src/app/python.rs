//! What an executor in Python code is told of the host: the fields of coda-node's `Settings` that it may read.
//!
//! Its numbers of seconds are whole, as coda-node has them. No credential is among them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::config::device::DeviceConfig;
use crate::config::settings::{DEFAULT_QUBITS, Settings};
use crate::executor::PythonRequest;
use crate::executor::locate::Located;

/// Stands in the place of the one-time token, so that coda-node's `Settings` ask for no stored credentials.
const TOKEN: &str = "coda-host";

/// What is told to an executor in Python code.
pub fn request(settings: &Settings, device: &DeviceConfig, located: &Located) -> PythonRequest {
    let Located::Python(python) = located else { return PythonRequest::default() };
    let identity = &settings.identity;
    let is_known = !identity.qpu_id.is_empty() || identity.num_qubits != DEFAULT_QUBITS;
    PythonRequest {
        settings: fields(settings, device, python.factory.as_deref().unwrap_or_default()),
        reverse_bits: settings.executor.reverse_bits,
        registered_qubits: is_known.then_some(identity.num_qubits),
    }
}

fn fields(settings: &Settings, device: &DeviceConfig, factory: &str) -> BTreeMap<String, Value> {
    let (identity, cloud, vpn) = (&settings.identity, &settings.cloud, &settings.vpn);
    let config = device.path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let fields = [
        ("node_token", json!(TOKEN)),
        ("executor_factory", json!(factory)),
        ("device_config", json!(config)),
        ("qpu_id", json!(identity.qpu_id)),
        ("qpu_display_name", json!(identity.qpu_display_name)),
        ("native_gate_set", json!(identity.native_gate_set)),
        ("num_qubits", json!(identity.num_qubits)),
        ("webapp_url", json!(cloud.webapp_url)),
        ("connect_path", json!(cloud.connect_path)),
        ("heartbeat_path", json!(cloud.heartbeat_path)),
        ("webhook_path", json!(cloud.webhook_path)),
        ("node_machine_fingerprint", json!(cloud.machine_fingerprint)),
        ("node_timeout_sec", whole_seconds(cloud.timeout)),
        ("node_connect_retries", json!(cloud.connect_attempts)),
        ("heartbeat_interval_sec", whole_seconds(cloud.heartbeat_interval)),
        ("shutdown_drain_timeout_sec", whole_seconds(settings.shutdown.drain)),
        ("host", json!(settings.api.host)),
        ("port", json!(settings.api.port)),
        ("vpn_required", json!(vpn.required)),
        ("vpn_check_interval_sec", whole_seconds(vpn.check_interval)),
        ("vpn_interface_hint", json!(vpn.interface_hint)),
        ("vpn_probe_targets", json!(vpn.probe_targets)),
        ("node_auto_vpn", json!(vpn.auto)),
        ("node_vpn_profile_path", json!(vpn.profile_path.display().to_string())),
        ("allow_degraded_startup", json!(vpn.allow_degraded)),
        // Credentials stay with the host.
        ("redis_url", json!("")),
        ("jwt_private_key", json!("")),
        ("jwt_key_id", json!("")),
        ("node_connect_headers", json!({})),
        ("advertised_provider", json!(settings.advertised_provider)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// At least one second: a fraction is not a number that coda-node takes.
fn whole_seconds(duration: Duration) -> Value {
    json!((duration.as_secs_f64().ceil() as u64).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::provision::tests as provision_tests;
    use crate::model::Secret;

    #[test]
    fn no_credential_is_told_and_seconds_are_whole() {
        let dir = tempfile::tempdir().unwrap();
        let mut settings = provision_tests::settings("https://coda.example", dir.path().to_path_buf());
        settings.identity.redis_url = Secret::new("redis://:hunter22@r");
        settings.credentials.jwt_private_key = Some(Secret::new("hunter22"));
        settings.cloud.connect_headers = vec![("X-Key".into(), Secret::new("hunter22"))];
        settings.cloud.heartbeat_interval = Duration::from_millis(200);
        let fields = fields(&settings, &DeviceConfig::default(), "a.b:c");
        let text = serde_json::to_string(&fields).unwrap();
        assert!(!text.contains("hunter22"), "{text}");
        assert_eq!(fields["heartbeat_interval_sec"], 1);
        assert_eq!(fields["executor_factory"], "a.b:c");
        assert_eq!(whole_seconds(Duration::from_millis(2500)), 3);
    }
}
