//! The device config: the host reads the key `executor_factory` of it. Every other key belongs to the vendor.
//!
//! Two readings of that key are kept. The Python node finds it line by line, and takes a file that is not YAML at all;
//! a plugin is handed YAML. Which of the two applies depends on what the value names (`executor/locate`).

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_yaml::Value;

use super::{ConfigError, suggest};

/// Largest device config.
const MAX_BYTES: u64 = 4 << 20;

/// The text of a device config, and the values that the host reads.
#[derive(Debug, Clone, Default)]
pub struct DeviceConfig {
    /// Absolute path of the file; `None` when there is no device config.
    pub path: Option<PathBuf>,
    pub text: String,
    /// What YAML says.
    pub executor_factory: Option<String>,
    /// What the Python node reads: the first line of the file with the key.
    pub factory_line: Option<String>,
    /// Why the file is not YAML. Only a file whose `factory_line` may name Python code is accepted with one.
    pub yaml_error: Option<String>,
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
        let text =
            read_text(path).map_err(|source| ConfigError::DeviceRead { path: path.to_path_buf(), source })?;
        let factory_line = factory_line(&text);
        // The byte order mark of some editors does not belong to the YAML that the plugin reads.
        let text = text.strip_prefix('\u{feff}').map_or(text.clone(), String::from);
        let config =
            DeviceConfig { path: Some(path.to_path_buf()), text, factory_line, ..Default::default() };
        match ours(&config.text) {
            Ok((executor_factory, misspelt)) => Ok(DeviceConfig { executor_factory, misspelt, ..config }),
            // Python executors read the file themselves, some of them without YAML.
            Err(what) if config.factory_line.as_ref().is_some_and(|line| line.contains(':')) => {
                Ok(DeviceConfig { yaml_error: Some(what), ..config })
            }
            Err(what) => Err(ConfigError::Device { path: path.to_path_buf(), what }),
        }
    }
}

/// Reads a file that may be anything: one that never ends and one whose writer never comes are refused.
fn read_text(path: &Path) -> io::Result<String> {
    // Opened without waiting for the other end of a FIFO.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    let taken = file.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match taken as u64 > MAX_BYTES {
        true => Err(io::Error::other(format!("it is larger than {} MiB", MAX_BYTES >> 20))),
        false => Ok(text),
    }
}

/// The value of the first unindented line `executor_factory: <value>`, without comment and quotes, as the Python node
/// reads it. Lines end where Python's `str.splitlines` ends them.
pub fn factory_line(text: &str) -> Option<String> {
    const LINE_ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let value = |line: &str| {
        let rest = line.trim().strip_prefix("executor_factory")?.trim_start().strip_prefix(':')?.trim();
        (!rest.is_empty()).then(|| rest.to_string())
    };
    let found = text.split(LINE_ENDS).filter(|line| !line.starts_with([' ', '\t'])).find_map(value)?;
    let plain = without_comment(&found);
    let quoted = |quote| plain.len() >= 2 && plain.starts_with(quote) && plain.ends_with(quote);
    let bare = if quoted('"') || quoted('\'') { &plain[1..plain.len() - 1] } else { plain };
    Some(bare.trim()).filter(|value| !value.is_empty()).map(String::from)
}

/// The value up to a `#` outside of quotes.
fn without_comment(value: &str) -> &str {
    let mut quote = None;
    for (at, c) in value.char_indices() {
        match (quote, c) {
            (None, '#') => return value[..at].trim_end(),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
    }
    value
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

    /// What YAML reads in a file; an error when it is none.
    type YamlReading = Result<Option<&'static str>, ()>;

    /// What a file is like, what it says, and what the Python node and YAML read in it.
    const KINDS: [(&str, &str, Option<&str>, YamlReading); 23] = [
        ("plain", "executor_factory: a.b:c\ntarget: cz\n", Some("a.b:c"), Ok(Some("a.b:c"))),
        ("comment", "executor_factory: a.b:c # ours\n", Some("a.b:c"), Ok(Some("a.b:c"))),
        ("comment without a blank", "executor_factory: a.b:c#x\n", Some("a.b:c"), Ok(Some("a.b:c#x"))),
        ("double quotes", "executor_factory: \"a.b:c\"\n", Some("a.b:c"), Ok(Some("a.b:c"))),
        ("single quotes", "executor_factory: 'a.b:c'  # x\n", Some("a.b:c"), Ok(Some("a.b:c"))),
        ("a hash in quotes", "executor_factory: 'a.b:c#d'\n", Some("a.b:c#d"), Ok(Some("a.b:c#d"))),
        ("no blank", "executor_factory:a.b:c\n", Some("a.b:c"), Err(())),
        ("no blank, other keys", "target: cz\nexecutor_factory:a.b:c\n", Some("a.b:c"), Err(())),
        ("blanks before the colon", "executor_factory : a.b:c\n", Some("a.b:c"), Ok(Some("a.b:c"))),
        ("twice", "executor_factory: a.b:c\nexecutor_factory: d.e:f\n", Some("a.b:c"), Err(())),
        ("tabs", "executor_factory: a.b:c\nx:\n\ty: 1\n", Some("a.b:c"), Err(())),
        ("two documents", "executor_factory: a.b:c\n---\nx: 1\n", Some("a.b:c"), Err(())),
        ("not YAML", "executor_factory: a.b:c\n[section]\nx = 1\n", Some("a.b:c"), Err(())),
        ("quoted key", "\"executor_factory\": a.b:c\n", None, Ok(Some("a.b:c"))),
        ("JSON", "{\"executor_factory\": \"a.b:c\"}", None, Ok(Some("a.b:c"))),
        ("block scalar", "executor_factory: >-\n  a.b:c\n", Some(">-"), Ok(Some("a.b:c"))),
        ("byte order mark", "\u{feff}executor_factory: a.b:c\n", None, Ok(Some("a.b:c"))),
        ("indented top level", "  executor_factory: a.b:c\n  x: 1\n", None, Ok(Some("a.b:c"))),
        ("carriage returns", "executor_factory: a.b:c\r\ntarget: cz\r\n", Some("a.b:c"), Ok(Some("a.b:c"))),
        ("nested", "site:\n  executor_factory: a.b:c\n", None, Ok(None)),
        ("empty value", "executor_factory:\ntarget: cz\n", None, Ok(None)),
        ("only a comment", "executor_factory: # later\n", None, Ok(None)),
        ("absent", "# nothing\ntarget: cz\n", None, Ok(None)),
    ];

    #[test]
    fn every_kind_of_file_is_read_by_both_rules() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device.yaml");
        for (kind, text, line, yaml) in KINDS {
            std::fs::write(&path, text).unwrap();
            let loaded = DeviceConfig::load(Some(&path)).unwrap_or_else(|e| panic!("{kind}: {e}"));
            assert_eq!(loaded.factory_line.as_deref(), line, "{kind}: by the line");
            let read = match loaded.yaml_error {
                Some(_) => Err(()),
                None => Ok(loaded.executor_factory.as_deref()),
            };
            assert_eq!(read, yaml, "{kind}: by YAML");
        }
    }

    #[test]
    fn a_file_that_is_not_yaml_is_refused_unless_a_line_may_name_python_code() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device.yaml");
        for text in ["executor_factory: libacme.so\nx: [1\n", "x: [1\n", "executor_factory: [a]\n"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(DeviceConfig::load(Some(&path)), Err(ConfigError::Device { .. })), "{text}");
        }
        std::fs::write(&path, b"executor_factory: a.b:c\n# \xff\n").unwrap();
        assert!(matches!(DeviceConfig::load(Some(&path)), Err(ConfigError::DeviceRead { .. })));
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
    fn what_never_ends_and_what_never_begins_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        let large = dir.path().join("large.yaml");
        std::fs::write(&large, vec![b'#'; MAX_BYTES as usize + 1]).unwrap();
        for (path, says) in [
            (Path::new("/dev/zero"), "not a regular file"),
            (dir.path(), "not a regular file"),
            (&fifo, "not a regular file"),
            (&large, "larger than 4 MiB"),
        ] {
            let error = DeviceConfig::load(Some(path)).unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(cause.contains(says), "{}: {cause}", path.display());
        }
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
