//! From `executor_factory` to a file, by rules that an operator can predict.
//!
//! `<library>[:<entry>]`: a library with a slash is a path, relative to device.yaml when it stands there and
//! to the working directory when it comes from `CODA_EXECUTOR_FACTORY`; without a slash it is a name, looked
//! up in the plugin directories alone, never by the system's loader and never in the working directory.
//! Nothing configured: the only hardware plugin in those directories is used, if there is just one.

use std::fmt;
use std::path::{Path, PathBuf};

use coda_plugin_abi::descriptor::Kind;

use super::elf;
use crate::error::{Explain, exit};

/// The entry of a factory that names none.
pub const DEFAULT_ENTRY: &str = "create_executor";

/// Where a factory setting was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactorySource {
    /// `CODA_EXECUTOR_FACTORY`.
    Environment,
    /// The top-level key of this device config.
    DeviceConfig(PathBuf),
    /// Nothing configured: the only plugin there.
    OnlyPlugin,
}

impl fmt::Display for FactorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactorySource::Environment => f.write_str("CODA_EXECUTOR_FACTORY"),
            FactorySource::DeviceConfig(path) => write!(f, "executor_factory in {}", path.display()),
            FactorySource::OnlyPlugin => f.write_str("the only plugin found"),
        }
    }
}

/// A library file and the factory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Absolute.
    pub path: PathBuf,
    pub entry: String,
    pub source: FactorySource,
    /// The SHA-256 that the file must have, in hexadecimal.
    pub pinned: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    #[error(
        "{origin} is '{value}', which names Python code (package.module:attribute), not a plugin library"
    )]
    PythonStyle { value: String, origin: FactorySource },
    #[error("{origin} is '{value}': {why}")]
    BadValue { value: String, origin: FactorySource, why: &'static str },
    #[error("{origin} names '{value}', but there is no file {}", path.display())]
    NoFile { value: String, origin: FactorySource, path: PathBuf },
    #[error("{origin} names '{name}', but no plugin directory has it; looked for {} in {}",
            files.join(", "), list(dirs))]
    NotFound { name: String, origin: FactorySource, files: Vec<String>, dirs: Vec<PathBuf> },
    #[error(
        "no executor is configured, and there is no plugin for hardware in {}{}",
        list(dirs),
        also(simulators)
    )]
    Nothing { dirs: Vec<PathBuf>, simulators: Vec<PathBuf> },
    #[error("no executor is configured, and several plugins are there: {}", list(found))]
    Several { found: Vec<PathBuf> },
}

fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn also(simulators: &[PathBuf]) -> String {
    if simulators.is_empty() {
        return String::new();
    }
    format!(" (never used without being named, since their counts are not hardware's: {})", list(simulators))
}

impl Explain for LocateError {
    fn code(&self) -> &'static str {
        match self {
            LocateError::PythonStyle { .. } => "executor-python-style",
            LocateError::BadValue { .. } => "executor-bad-value",
            LocateError::NoFile { .. } | LocateError::NotFound { .. } => "executor-not-found",
            LocateError::Nothing { .. } => "executor-none",
            LocateError::Several { .. } => "executor-several",
        }
    }

    fn hint(&self) -> Option<String> {
        let set = "'executor_factory: <library>' in device.yaml (or CODA_EXECUTOR_FACTORY)";
        Some(match self {
            LocateError::PythonStyle { .. } => format!(
                "coda-host loads shared libraries: ask the vendor for the .so of this device and set {set}, \
                 for instance 'executor_factory: ./libacme.so'; Python executors run under coda-node"
            ),
            LocateError::BadValue { .. } => "write <library> or <library>:<entry>, for instance \
                 'libacme.so' or './libacme.so:create_executor'"
                .into(),
            LocateError::NoFile { origin: FactorySource::DeviceConfig(_), .. } => {
                "check the path; relative paths in device.yaml are relative to that file".into()
            }
            LocateError::NoFile { .. } => {
                "check the path; relative paths in the environment are relative to the working directory"
                    .into()
            }
            LocateError::NotFound { .. } => {
                "put the library into one of these directories, add its directory \
                 to CODA_PLUGIN_PATH, or give a path with a slash"
                    .into()
            }
            LocateError::Nothing { .. } => format!("set {set} to the vendor's library"),
            LocateError::Several { .. } => format!("choose one with {set}"),
        })
    }

    fn exit(&self) -> u8 {
        exit::PLUGIN
    }
}

/// What is configured, and where names are looked up.
#[derive(Debug, Clone)]
pub struct LocateRequest<'a> {
    /// Value of `CODA_EXECUTOR_FACTORY`.
    pub environment: Option<&'a str>,
    /// The device config's path and its `executor_factory`.
    pub device_config: Option<(&'a Path, Option<&'a str>)>,
    /// Plugin directories in order.
    pub dirs: &'a [PathBuf],
    /// Working directory, for relative paths from the environment.
    pub cwd: &'a Path,
}

/// The plugin directories: `CODA_PLUGIN_PATH`, the binary's own, `plugins` next to it, `<prefix>/lib/coda-host`.
pub fn plugin_dirs(plugin_path: &[PathBuf], binary: Option<&Path>) -> Vec<PathBuf> {
    let mut dirs = plugin_path.to_vec();
    if let Some(bin_dir) = binary.and_then(Path::parent) {
        dirs.push(bin_dir.to_path_buf());
        dirs.push(bin_dir.join("plugins"));
        if let Some(prefix) = bin_dir.parent() {
            dirs.push(prefix.join("lib/coda-host"));
        }
    }
    dirs
}

/// Finds the library.
///
/// # Errors
/// When nothing fits; each says what was looked for, where, and what to set.
pub fn locate(request: &LocateRequest<'_>) -> Result<Located, LocateError> {
    let from_file = request.device_config.and_then(|(path, value)| Some((path, value?)));
    match (request.environment, from_file) {
        (Some(value), _) => resolve(value, FactorySource::Environment, request.cwd, request.dirs),
        (None, Some((path, value))) => {
            let base = path.parent().unwrap_or(Path::new("/"));
            resolve(value, FactorySource::DeviceConfig(path.to_path_buf()), base, request.dirs)
        }
        (None, None) => only_plugin(request.dirs),
    }
}

fn resolve(
    value: &str,
    origin: FactorySource,
    base: &Path,
    dirs: &[PathBuf],
) -> Result<Located, LocateError> {
    let text = value.trim();
    let (library, entry) = match text.rsplit_once(':') {
        // A colon in the path itself: no entry has a slash in its name, and a file that is there is what is meant.
        Some((_, entry)) if entry.contains('/') => (text, DEFAULT_ENTRY),
        Some(_) if text.contains('/') && base.join(text).is_file() => (text, DEFAULT_ENTRY),
        Some((library, entry)) => (library, entry),
        None => (text, DEFAULT_ENTRY),
    };
    let bad = |why| LocateError::BadValue { value: value.to_string(), origin: origin.clone(), why };
    if library.is_empty() {
        return Err(bad("the library is missing"));
    }
    let is_library = library.ends_with(".so") || library.contains(".so.");
    if !library.contains('/') && !is_library && (library.contains('.') || library.contains(':')) {
        return Err(LocateError::PythonStyle { value: value.to_string(), origin });
    }
    let identifier = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if entry.is_empty() || !entry.chars().all(identifier) {
        return Err(bad("the entry behind the colon must be an identifier"));
    }
    let found = |path| Located { path, entry: entry.to_string(), source: origin.clone(), pinned: None };
    if library.contains('/') {
        let path = base.join(library);
        // Existence only; what kind of file it is, the loader says.
        return match path.symlink_metadata() {
            Ok(_) => Ok(found(tidy(&path))),
            Err(_) => Err(LocateError::NoFile { value: value.to_string(), origin, path: tidy(&path) }),
        };
    }
    let files = if is_library {
        vec![library.to_string()]
    } else {
        vec![format!("lib{library}.so"), format!("{library}.so")]
    };
    for dir in dirs {
        for file in &files {
            let path = dir.join(file);
            if path.is_file() {
                return Ok(found(path));
            }
        }
    }
    Err(LocateError::NotFound { name: library.to_string(), origin, files, dirs: dirs.to_vec() })
}

/// Removes `.` components, so that the path shown is the one a person would type.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

fn only_plugin(dirs: &[PathBuf]) -> Result<Located, LocateError> {
    let (mut hardware, mut others) = (Vec::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for dir in dirs {
        let Ok(entries) = std::fs::read_dir(dir) else { continue };
        let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
        files.sort();
        for file in files.into_iter().filter(|f| f.extension().is_some_and(|e| e == "so")) {
            let same = file.canonicalize().unwrap_or_else(|_| file.clone());
            if !seen.insert(same) {
                continue;
            }
            match elf::inspect(&file).map(|i| i.descriptor.kind) {
                Ok(Kind::Hardware) => hardware.push(file),
                Ok(Kind::Simulator) => others.push(file),
                // Test plugins, and libraries that are no plugins, are never chosen.
                Ok(Kind::Test) | Err(_) => {}
            }
        }
    }
    match hardware.len() {
        1 => Ok(Located {
            path: hardware.remove(0),
            entry: DEFAULT_ENTRY.into(),
            source: FactorySource::OnlyPlugin,
            pinned: None,
        }),
        0 => Err(LocateError::Nothing { dirs: dirs.to_vec(), simulators: others }),
        _ => Err(LocateError::Several { found: hardware }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Site {
        dir: tempfile::TempDir,
    }

    impl Site {
        fn new(files: &[&str]) -> Site {
            let dir = tempfile::tempdir().unwrap();
            for f in files {
                let path = dir.path().join(f);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "x").unwrap();
            }
            Site { dir }
        }

        fn path(&self, p: &str) -> PathBuf {
            self.dir.path().join(p)
        }

        fn locate(&self, env: Option<&str>, yaml: Option<&str>) -> Result<Located, LocateError> {
            let config = self.path("site/device.yaml");
            locate(&LocateRequest {
                environment: env,
                device_config: Some((&config, yaml)),
                dirs: &[self.path("plugins"), self.path("bin")],
                cwd: &self.path("cwd"),
            })
        }
    }

    #[test]
    fn paths_have_a_stated_base() {
        let site = Site::new(&["site/libacme.so", "cwd/libacme.so", "plugins/other.so"]);
        let yaml = site.locate(None, Some("./libacme.so")).unwrap();
        assert_eq!((yaml.path, yaml.entry.as_str()), (site.path("site/libacme.so"), DEFAULT_ENTRY));
        let env = site.locate(Some("./libacme.so:other_entry"), Some("./ignored.so")).unwrap();
        assert_eq!((env.path, env.entry.as_str()), (site.path("cwd/libacme.so"), "other_entry"));
        assert_eq!(env.source, FactorySource::Environment);
        let e = site.locate(None, Some("missing/lib.so")).unwrap_err();
        assert!(e.to_string().contains(site.path("site/missing/lib.so").to_str().unwrap()), "{e}");
    }

    #[test]
    fn a_path_may_have_colons() {
        let site = Site::new(&["site/lib:1/libacme.so", "site/libacme:2.so"]);
        let found = |value: &str| {
            let located = site.locate(None, Some(value)).unwrap_or_else(|e| panic!("{value}: {e}"));
            (located.path, located.entry)
        };
        let entry = |name: &str| name.to_string();
        assert_eq!(found("./lib:1/libacme.so"), (site.path("site/lib:1/libacme.so"), entry(DEFAULT_ENTRY)));
        assert_eq!(found("./lib:1/libacme.so:make"), (site.path("site/lib:1/libacme.so"), entry("make")));
        assert_eq!(found("./libacme:2.so"), (site.path("site/libacme:2.so"), entry(DEFAULT_ENTRY)));
    }

    #[test]
    fn names_are_looked_up_in_plugin_directories_alone() {
        let site = Site::new(&["cwd/libacme.so", "bin/libacme.so", "plugins/libzeta.so", "bin/libzeta.so"]);
        assert_eq!(site.locate(Some("libacme.so"), None).unwrap().path, site.path("bin/libacme.so"));
        assert_eq!(site.locate(None, Some("zeta")).unwrap().path, site.path("plugins/libzeta.so"));
        assert_eq!(site.locate(None, Some("acme:make")).unwrap().entry, "make");
        let only_cwd = Site::new(&["cwd/libacme.so"]);
        assert!(matches!(only_cwd.locate(Some("libacme.so"), None), Err(LocateError::NotFound { .. })));
        // A name that the system's loader would find.
        assert!(matches!(site.locate(None, Some("libc.so.6")), Err(LocateError::NotFound { .. })));
    }

    #[test]
    fn python_values_are_explained() {
        let site = Site::new(&[]);
        for value in ["acme_qpu.executor_factory:create_executor", "acme.executor", "a.b:c:d"] {
            let e = site.locate(None, Some(value)).unwrap_err();
            assert!(matches!(e, LocateError::PythonStyle { .. }), "{value}: {e}");
            assert!(e.hint().unwrap().contains("shared libraries"));
        }
    }

    #[test]
    fn bad_values_are_named() {
        let site = Site::new(&["plugins/libacme.so"]);
        for value in ["", ":", ":entry", "acme:", "acme:not an entry", "acme:create-executor"] {
            let e = site.locate(None, Some(value)).unwrap_err();
            assert!(matches!(e, LocateError::BadValue { .. }), "{value}: {e}");
        }
    }

    #[test]
    fn nothing_configured_and_nothing_there_says_what_to_set() {
        let site = Site::new(&["plugins/readme.so", "cwd/libacme.so"]);
        let e = site.locate(None, None).unwrap_err();
        assert!(matches!(e, LocateError::Nothing { .. }));
        assert!(e.hint().unwrap().contains("executor_factory"));
    }
}
