//! Makes one checked [`Settings`] of flags, `CODA_` variables, stored values and defaults.

pub mod device;
pub mod load;
pub mod settings;
pub mod source;
pub mod suggest;

use std::path::PathBuf;

use crate::error::{Explain, exit};

pub use settings::Settings;
use source::SettingOrigin;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{name} ({}) is {value:?}, expected {allowed}", origin.name())]
    Value { name: &'static str, value: String, origin: SettingOrigin, allowed: String },
    #[error("no directory is known for the host's state: neither CODA_STATE_DIR nor HOME is set")]
    NoStateDir,
    #[error("the device config {} can't be read", path.display())]
    DeviceRead { path: PathBuf, source: std::io::Error },
    #[error("the device config {} is invalid: {what}", path.display())]
    Device { path: PathBuf, what: String },
}

impl Explain for ConfigError {
    fn code(&self) -> &'static str {
        match self {
            ConfigError::Value { .. } => "config-value",
            ConfigError::NoStateDir => "config-state-dir",
            ConfigError::DeviceRead { .. } | ConfigError::Device { .. } => "device-config",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            ConfigError::Value { name, origin: SettingOrigin::Stored, .. } => {
                format!("set {name}, or start with a new node token")
            }
            ConfigError::Value { name, .. } => format!("correct or unset {name}"),
            ConfigError::NoStateDir => "set CODA_STATE_DIR to a directory that survives a reboot".into(),
            ConfigError::DeviceRead { .. } => "check --device or CODA_DEVICE_CONFIG".into(),
            ConfigError::Device { .. } => {
                "correct the file; its key executor_factory names the plugin".into()
            }
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}
