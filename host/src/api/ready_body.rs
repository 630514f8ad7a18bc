//! The body of `/ready`: what the host is doing, for operators, monitors and `coda-host status`.
//!
//! Fields that a host has only with a cloud, or only once it is up, are missing before and without; what is there and not
//! known is null.

use schemars::JsonSchema;
use serde::Serialize;

/// The body of `/ready`.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ReadyBody {
    /// Whether jobs are taken now.
    pub ready: bool,
    /// Why not, in words.
    pub reasons: Vec<String>,
    /// `booting`, `ready`, `degraded` and so on; null without a cloud.
    pub vpn_state: Option<&'static str>,
    /// Null without a cloud.
    pub redis_healthy: Option<bool>,
    /// The job in the plugin, if there is one.
    pub current_job: Option<String>,
    #[serde(flatten)]
    pub executor: Option<ExecutorBody>,
    #[serde(flatten)]
    pub cloud: Option<CloudBody>,
}

/// What is known once the plugin is loaded.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ExecutorBody {
    /// Runs that the device takes at once.
    pub slots: usize,
    pub slots_busy: usize,
    /// Why no run begins, because of a person or the device itself; null when runs may begin.
    pub hold: Option<HoldBody>,
    /// The next time of maintenance in the calendar.
    pub next_maintenance: Option<WindowBody>,
    pub plugin: PluginBody,
    pub reloads: ReloadsBody,
    /// The peer network, where slots are lent to it.
    pub peer: Option<PeerBody>,
    pub version: &'static str,
}

/// A time of maintenance in the calendar.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WindowBody {
    /// RFC 3339, as `end`.
    pub begin: String,
    pub end: String,
    pub summary: String,
}

/// A time in which no run begins.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HoldBody {
    /// `paused` or `maintenance`.
    pub state: &'static str,
    /// What a person or the device says about it.
    pub note: Option<String>,
    /// When it ends by itself, if that is known: RFC 3339.
    pub until: Option<String>,
}

/// The plugin in use.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PluginBody {
    pub vendor: String,
    pub name: String,
    pub version: String,
    pub kind: &'static str,
    /// The library, or the interpreter of Python code.
    pub path: String,
    /// Of the library; empty for Python code.
    pub sha256: String,
    /// Of an executor in Python code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<PythonBody>,
}

/// An executor in Python code.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PythonBody {
    /// `module:attribute`.
    pub factory: String,
    /// The package that holds it, with its version.
    pub package: String,
    /// Version of the installed coda-node.
    pub coda_node: String,
    /// Version of Python.
    pub python: String,
    pub interpreter: String,
    /// Why this interpreter was chosen.
    pub chosen_by: String,
}

/// The reloads since the start.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ReloadsBody {
    pub count: u64,
    /// Whether the last one succeeded.
    pub ok: bool,
    pub message: String,
}

/// The peer network as this host takes part in it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PeerBody {
    pub peer_id: String,
    pub addresses: Vec<String>,
    /// Peers with a connection.
    pub connected: usize,
    pub reservations: usize,
    pub executions: usize,
    /// Since the start.
    pub accepted: u64,
    pub declined: u64,
    pub completed: u64,
    pub failed: u64,
}

/// What is known of a host that takes jobs from a cloud.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct CloudBody {
    pub qpu_id: String,
    /// Of the job in the plugin, when it reports some.
    pub progress: Option<ProgressBody>,
    pub vpn_interface: Option<String>,
    pub last_job_at: Option<String>,
    /// Jobs read ahead.
    pub waiting: usize,
    /// Results stored and not yet delivered.
    pub undelivered: i64,
    pub heartbeat: HeartbeatBody,
}

/// How far a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProgressBody {
    pub done: u64,
    pub total: u64,
}

/// The heartbeats to the cloud.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct HeartbeatBody {
    /// Accepted since the start.
    pub accepted: u64,
    pub last_accepted_seconds_ago: Option<u64>,
    /// Why the last one was not accepted.
    pub error: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn whole() -> ReadyBody {
        let plugin = PluginBody {
            vendor: "acme".into(),
            name: "acme".into(),
            version: "1".into(),
            kind: "hardware",
            path: "/a.so".into(),
            sha256: "0".into(),
            python: None,
        };
        let reloads = ReloadsBody { count: 0, ok: true, message: String::new() };
        ReadyBody {
            ready: true,
            reasons: Vec::new(),
            vpn_state: Some("ready"),
            redis_healthy: Some(true),
            current_job: None,
            executor: Some(ExecutorBody {
                slots: 1,
                slots_busy: 0,
                hold: None,
                next_maintenance: None,
                plugin,
                reloads,
                peer: None,
                version: "1",
            }),
            cloud: Some(CloudBody {
                qpu_id: "q1".into(),
                progress: Some(ProgressBody { done: 1, total: 2 }),
                vpn_interface: None,
                last_job_at: None,
                waiting: 0,
                undelivered: 0,
                heartbeat: HeartbeatBody { accepted: 1, last_accepted_seconds_ago: Some(1), error: None },
            }),
        }
    }

    #[test]
    fn before_the_host_is_up_only_the_common_fields_are_there() {
        let starting = ReadyBody {
            ready: false,
            reasons: vec!["starting".into()],
            vpn_state: Some("booting"),
            redis_healthy: Some(false),
            current_job: None,
            executor: None,
            cloud: None,
        };
        let expected = json!({
            "ready": false, "vpn_state": "booting", "redis_healthy": false, "current_job": null,
            "reasons": ["starting"],
        });
        assert_eq!(serde_json::to_value(&starting).unwrap(), expected);
    }

    #[test]
    fn the_schema_describes_what_is_written() {
        let schema = serde_json::to_value(schemars::schema_for!(ReadyBody)).unwrap();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let body = serde_json::to_value(whole()).unwrap();
        assert!(validator.is_valid(&body), "{body}\n{schema}");
        for field in ["qpu_id", "plugin", "peer", "heartbeat", "progress"] {
            assert!(body.get(field).is_some(), "{field} stands beside the common fields: {body}");
        }
        let mut wrong = body;
        wrong["ready"] = Value::from("yes");
        assert!(!validator.is_valid(&wrong));
    }
}
