//! Pure: how a peer says that it is, in its heartbeat.

use serde::{Deserialize, Serialize};

/// The health that a heartbeat names. Only a healthy peer is planned on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum HealthStatus {
    Healthy,
    /// The peer is there, but its device can't run fragments now.
    Degraded,
    /// Another name, cut to a length that can be kept.
    Other(String),
}

/// Longest name that is kept, in bytes.
const MAX_NAME: usize = 80;

impl HealthStatus {
    /// The name as it is on the wire.
    pub fn name(&self) -> &str {
        match self {
            HealthStatus::Healthy => "healthy",
            HealthStatus::Degraded => "degraded",
            HealthStatus::Other(name) => name,
        }
    }
}

impl From<String> for HealthStatus {
    fn from(name: String) -> HealthStatus {
        match name.as_str() {
            "healthy" => HealthStatus::Healthy,
            "degraded" => HealthStatus::Degraded,
            other => HealthStatus::Other(crate::model::cut(other, MAX_NAME).into()),
        }
    }
}

impl From<HealthStatus> for String {
    fn from(health: HealthStatus) -> String {
        health.name().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_as_they_are_and_long_ones_are_cut() {
        for (name, expected) in [
            ("healthy", HealthStatus::Healthy),
            ("degraded", HealthStatus::Degraded),
            ("Healthy", HealthStatus::Other("Healthy".into())),
        ] {
            let text = format!("\"{name}\"");
            let read: HealthStatus = serde_json::from_str(&text).unwrap();
            assert_eq!(read, expected);
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
        assert!(HealthStatus::from("x".repeat(500)).name().len() <= MAX_NAME);
        assert!(serde_json::from_str::<HealthStatus>("1").is_err());
    }
}
