//! The device config: the host reads the key `executor_factory` of it. Every other key belongs to the vendor.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_yaml::Value;

use super::{ConfigError, suggest};

/// The text of a device config, and the values that the host reads.
#[derive(Debug, Clone, Default)]
pub struct DeviceConfig {
    /// Absolute path of the file; `None` when there is no device config.
    pub path: Option<PathBuf>,
    pub text: String,
    pub executor_factory: Option<String>,
    /// A top-level key that was probably meant to be `executor_factory`.
    pub misspelt: Option<String>,
}

#[derive(Deserialize)]
struct Ours {
    #[serde(default)]
    executor_factory: Option<Value>,
    #[serde(flatten)]
    vendors: serde_yaml::Mapping,
}

impl DeviceConfig {
    /// Reads the file. Without a path the config is empty.
    ///
    /// # Errors
    /// The file can't be read, is not YAML, or its `executor_factory` is not text.
    pub fn load(path: Option<&Path>) -> Result<DeviceConfig, ConfigError> {
        let Some(path) = path else { return Ok(DeviceConfig::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::DeviceRead { path: path.to_path_buf(), source })?;
        // The byte order mark of some editors does not belong to the YAML that the plugin reads.
        let text = text.strip_prefix('\u{feff}').map_or(text.clone(), String::from);
        let (executor_factory, misspelt) =
            ours(&text).map_err(|what| ConfigError::Device { path: path.to_path_buf(), what })?;
        Ok(DeviceConfig { path: Some(path.to_path_buf()), text, executor_factory, misspelt })
    }
}

/// Returns the value of `executor_factory` or, where it is missing, a key that resembles it.
fn ours(text: &str) -> Result<(Option<String>, Option<String>), String> {
    if text.trim().is_empty() {
        return Ok((None, None));
    }
    // Comments alone are an empty document.
    let ours: Option<Ours> = serde_yaml::from_str(text).map_err(|e| e.to_string())?;
    let Some(Ours { executor_factory, vendors }) = ours else { return Ok((None, None)) };
    match executor_factory {
        None | Some(Value::Null) => {
            let keys = vendors.keys().filter_map(|k| k.as_str().map(String::from));
            Ok((None, suggest::misspelt_factory_key(keys)))
        }
        Some(Value::String(text)) => Ok((Some(text), None)),
        Some(other) => Err(format!("executor_factory is {other:?}, expected text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factory(text: &str) -> Result<Option<String>, String> {
        ours(text).map(|(factory, _)| factory)
    }

    #[test]
    fn a_misspelt_key_is_noticed_where_ours_is_missing() {
        assert_eq!(ours("executor_factroy: a.so").unwrap(), (None, Some("executor_factroy".into())));
        let both = ours("executor_factory: a.so\nexecutor_factroy: b.so").unwrap();
        assert_eq!(both, (Some("a.so".into()), None));
    }

    #[test]
    fn only_our_key_is_read() {
        assert_eq!(factory("").unwrap(), None);
        assert_eq!(factory("# nothing\n").unwrap(), None);
        assert_eq!(factory("target: cz\nhost: 10.0.0.1\n").unwrap(), None);
        assert_eq!(factory("executor_factory: ./a.so\nx: [1, 2]").unwrap().as_deref(), Some("./a.so"));
        assert_eq!(factory("executor_factory:\n").unwrap(), None);
        assert!(factory("executor_factory: [a]").unwrap_err().contains("expected text"));
        assert!(factory("a: [1\nb: 2").unwrap_err().contains("line"));
        assert!(factory("just text").is_err());
    }

    #[test]
    fn a_byte_order_mark_and_carriage_returns_change_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device.yaml");
        std::fs::write(&path, "\u{feff}executor_factory: ./a.so\r\ntarget: cz\r\n").unwrap();
        let config = DeviceConfig::load(Some(&path)).unwrap();
        assert_eq!(config.executor_factory.as_deref(), Some("./a.so"));
        assert!(config.text.starts_with("executor_factory"), "{:?}", config.text);
    }

    #[test]
    fn every_device_config_of_the_repository_is_read_and_names_its_plugin() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../device-configs");
        let mut read = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "yaml") {
                let config = DeviceConfig::load(Some(&path)).unwrap();
                assert!(config.executor_factory.is_some(), "{} names no plugin", path.display());
                read += 1;
            }
        }
        assert!(read >= 2, "only {read} device configs in {}", dir.display());
    }
}
