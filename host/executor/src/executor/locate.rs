//! From `executor_factory` to a library or to Python code, by rules that an operator can predict.
//!
//! `<library>[:<entry>]`: a library with a slash is a path, relative to device.yaml when it stands there and
//! to the working directory when it comes from `CODA_EXECUTOR_FACTORY`; without a slash it is a name, looked
//! up in the plugin directories alone, never by the system's loader and never in the working directory.
//! `<module>:<attribute>`: everything else with a colon is Python code, run by the interpreter that is found for it.
//! Nothing configured: the only hardware plugin in those directories is used, if there is just one; without any, the only
//! package of the interpreter that has a module `executor_factory`.

use std::fmt;
use std::path::{Path, PathBuf};

use coda_plugin_abi::descriptor::{Isolation, Kind};

use super::elf;
use super::python::interpreter::{self, FileView, Interpreter, InterpreterRequest, NoInterpreter};
use crate::error::{Explain, exit};

/// The entry of a factory that names none.
pub const DEFAULT_ENTRY: &str = "create_executor";
/// The vendor of the plugins that come with the host.
const OWN_VENDOR: &str = "Coda";

/// Where a factory setting was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FactorySource {
    /// `CODA_EXECUTOR_FACTORY`.
    Environment,
    /// The top-level key of this device config.
    DeviceConfig(PathBuf),
    /// Nothing configured: the only plugin there.
    OnlyPlugin,
    /// Nothing configured: the only package of the interpreter that offers an executor.
    OnlyPackage,
}

impl fmt::Display for FactorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FactorySource::Environment => f.write_str("CODA_EXECUTOR_FACTORY"),
            FactorySource::DeviceConfig(path) => write!(f, "executor_factory in {}", path.display()),
            FactorySource::OnlyPlugin => f.write_str("the only plugin found"),
            FactorySource::OnlyPackage => f.write_str("the only package found"),
        }
    }
}

/// What an executor is created from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Located {
    Library(LocatedLibrary),
    Python(LocatedPython),
}

impl Located {
    /// What is started, for messages.
    pub fn subject(&self) -> PathBuf {
        match self {
            Located::Library(library) => library.path.clone(),
            Located::Python(python) => python.subject(),
        }
    }

    /// Whether it runs in a separate process whatever the settings say. Of a library that can't be read nothing is known;
    /// loading it tells why.
    pub fn needs_process(&self) -> bool {
        match self {
            Located::Python(_) => true,
            Located::Library(library) => elf::inspect(&library.path)
                .is_ok_and(|found| found.descriptor.isolation == Isolation::Required),
        }
    }
}

/// A factory in Python code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedPython {
    /// `module:attribute`; `None` when the interpreter is asked which of its packages has one.
    pub factory: Option<String>,
    pub source: FactorySource,
    pub interpreter: Interpreter,
}

impl LocatedPython {
    /// The factory when it is configured, else the interpreter that is asked for one.
    pub fn subject(&self) -> PathBuf {
        self.factory.as_ref().map_or_else(|| self.interpreter.path.clone(), PathBuf::from)
    }
}

/// A library file and the factory in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocatedLibrary {
    /// Absolute.
    pub path: PathBuf,
    pub entry: String,
    pub source: FactorySource,
    /// The SHA-256 that the file must have, in hexadecimal.
    pub pinned: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    #[error("{origin} is '{value}', which names Python code, and no interpreter for it was found; looked for {}",
            looked.join(", "))]
    NoInterpreter { value: String, origin: FactorySource, looked: Vec<String> },
    #[error("the pin in CODA_EXECUTOR_SHA256 is of a library, and {origin} names Python code")]
    Unpinnable { origin: FactorySource },
    #[error("CODA_EXECUTOR_PYTHON is '{value}', which is neither an interpreter nor a virtual environment")]
    BadInterpreter { value: String },
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
            LocateError::NoInterpreter { .. } => "executor-no-python",
            LocateError::BadInterpreter { .. } => "executor-bad-python",
            LocateError::Unpinnable { .. } => "executor-unpinnable",
            LocateError::BadValue { .. } => "executor-bad-value",
            LocateError::NoFile { .. } | LocateError::NotFound { .. } => "executor-not-found",
            LocateError::Nothing { .. } => "executor-none",
            LocateError::Several { .. } => "executor-several",
        }
    }

    fn hint(&self) -> Option<String> {
        let set = "'executor_factory: <library>' in device.yaml (or CODA_EXECUTOR_FACTORY)";
        Some(match self {
            LocateError::NoInterpreter { .. } => "make a virtual environment with the vendor's package, for instance \
                 'python3 -m venv /opt/acme && /opt/acme/bin/pip install <package>', and set \
                 CODA_EXECUTOR_PYTHON=/opt/acme"
                .into(),
            LocateError::Unpinnable { .. } => "unset CODA_EXECUTOR_SHA256, and let no other user write into the \
                 interpreter's virtual environment; or name a library"
                .into(),
            LocateError::BadInterpreter { .. } => {
                "set it to the directory of a virtual environment, or to an interpreter in one".into()
            }
            LocateError::BadValue { .. } => "write <library> or <library>:<entry>, for instance \
                 'libacme.so' or './libacme.so:create_executor', or <module>:<attribute> for a Python executor"
                .into(),
            LocateError::NoFile { origin: FactorySource::DeviceConfig(_), .. } => {
                "check the path; relative paths in device.yaml are relative to that file".into()
            }
            LocateError::NoFile { .. } => {
                "check the path; relative paths in the environment are relative to the working directory"
                    .into()
            }
            LocateError::NotFound { .. } => "put the library into one of these directories, add its directory to \
                 CODA_PLUGIN_PATH, or give a path with a slash; for a Python executor write <module>:<attribute>"
                .into(),
            LocateError::Nothing { .. } => format!("set {set} to the vendor's library"),
            LocateError::Several { .. } => format!("choose one with {set}"),
        })
    }

    fn exit(&self) -> u8 {
        exit::PLUGIN
    }
}

/// What is configured, and where names are looked up.
#[derive(Clone)]
pub struct LocateRequest<'a> {
    /// Value of `CODA_EXECUTOR_FACTORY`.
    pub environment: Option<&'a str>,
    pub device_config: Option<DeviceFactory<'a>>,
    /// Plugin directories in order.
    pub dirs: &'a [PathBuf],
    /// Working directory, for relative paths from the environment.
    pub cwd: &'a Path,
    /// Where to look for the interpreter of Python code.
    pub interpreter: InterpreterRequest<'a>,
    pub files: &'a dyn FileView,
}

/// A device config and its `executor_factory`, by two readings of the file.
#[derive(Debug, Clone, Copy)]
pub struct DeviceFactory<'a> {
    pub path: &'a Path,
    /// By the Python node's rule, line by line.
    pub line: Option<&'a str>,
    pub yaml: Option<&'a str>,
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

/// What a value of `executor_factory` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Library,
    Python,
}

/// Finds the library, or the Python factory and its interpreter.
///
/// # Errors
/// When nothing fits; each says what was looked for, where, and what to set.
pub fn locate(request: &LocateRequest<'_>) -> Result<Located, LocateError> {
    let Some((value, source)) = configured(request) else { return unconfigured(request) };
    match reading(value, request.dirs) {
        Reading::Python => python(value, source, request),
        Reading::Library => {
            let base = match &source {
                FactorySource::DeviceConfig(path) => path.parent().unwrap_or(Path::new("/")),
                _ => request.cwd,
            };
            library(value, source.clone(), base, request.dirs).map(Located::Library)
        }
    }
}

/// The value that applies, and where it was found.
fn configured<'a>(request: &LocateRequest<'a>) -> Option<(&'a str, FactorySource)> {
    if let Some(value) = request.environment {
        return Some((value, FactorySource::Environment));
    }
    let DeviceFactory { path, line, yaml } = request.device_config?;
    // The Python node's reading applies to Python code alone: what a plugin is handed is YAML.
    let line = line.filter(|line| reading(line, request.dirs) == Reading::Python);
    Some((line.or(yaml)?, FactorySource::DeviceConfig(path.to_path_buf())))
}

fn reading(value: &str, dirs: &[PathBuf]) -> Reading {
    let text = value.trim();
    let Some((before, _)) = text.rsplit_once(':') else { return Reading::Library };
    let is_file = [text, before].iter().any(|name| name.contains('/') || is_library_name(name));
    let is_plugin = !before.contains(['.', ':']) && in_plugin_dirs(before, dirs).is_some();
    if is_file || is_plugin { Reading::Library } else { Reading::Python }
}

fn is_library_name(name: &str) -> bool {
    name.ends_with(".so") || name.contains(".so.")
}

/// The files that may be meant by the name of a library.
fn library_files(name: &str) -> Vec<String> {
    match is_library_name(name) {
        true => vec![name.to_string()],
        false => vec![format!("lib{name}.so"), format!("{name}.so")],
    }
}

fn in_plugin_dirs(name: &str, dirs: &[PathBuf]) -> Option<PathBuf> {
    let files = library_files(name);
    let candidates = dirs.iter().flat_map(|dir| files.iter().map(|file| dir.join(file)));
    candidates.into_iter().find(|path| path.is_file())
}

fn python(value: &str, source: FactorySource, request: &LocateRequest<'_>) -> Result<Located, LocateError> {
    let bad = |why| LocateError::BadValue { value: value.to_string(), origin: source.clone(), why };
    // One colon separates, and nothing is trimmed: the attribute of `a:b:c` is `b:c`, as for the Python node.
    match value.split_once(':') {
        Some(("", _)) => return Err(bad("the library or module before the colon is missing")),
        Some((_, "")) => return Err(bad("the entry or attribute behind the colon is missing")),
        _ => {}
    }
    let found = interpreter::find_for_factory(&request.interpreter, request.files);
    let interpreter = found.map_err(|none| match none {
        NoInterpreter::Setting { value } => LocateError::BadInterpreter { value },
        NoInterpreter::Nowhere { looked } => {
            LocateError::NoInterpreter { value: value.to_string(), origin: source.clone(), looked }
        }
    })?;
    Ok(Located::Python(LocatedPython { factory: Some(value.to_string()), source, interpreter }))
}

/// Nothing is configured: the only plugin, or else what the interpreter's packages offer.
fn unconfigured(request: &LocateRequest<'_>) -> Result<Located, LocateError> {
    let interpreter = interpreter::find(&request.interpreter, request.files);
    match (only_plugin(request.dirs), interpreter) {
        (Ok(library), interpreter) => {
            if let Ok(interpreter) = interpreter {
                tracing::info!(
                    plugin = %library.path.display(),
                    python = %interpreter.path.display(),
                    "no executor is configured: the plugin is used, and Python packages are not looked through"
                );
            }
            Ok(Located::Library(library))
        }
        (Err(LocateError::Nothing { .. }), Ok(interpreter)) => {
            let source = FactorySource::OnlyPackage;
            Ok(Located::Python(LocatedPython { factory: None, source, interpreter }))
        }
        (Err(LocateError::Nothing { .. }), Err(NoInterpreter::Setting { value })) => {
            Err(LocateError::BadInterpreter { value })
        }
        (Err(error), _) => Err(error),
    }
}

fn library(
    value: &str,
    origin: FactorySource,
    base: &Path,
    dirs: &[PathBuf],
) -> Result<LocatedLibrary, LocateError> {
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
    let identifier = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if entry.is_empty() || !entry.chars().all(identifier) {
        return Err(bad("the entry behind the colon must be an identifier"));
    }
    let found =
        |path| LocatedLibrary { path, entry: entry.to_string(), source: origin.clone(), pinned: None };
    if library.contains('/') {
        let path = base.join(library);
        // Existence only; what kind of file it is, the loader says.
        return match path.symlink_metadata() {
            Ok(_) => Ok(found(tidy(&path))),
            Err(_) => Err(LocateError::NoFile { value: value.to_string(), origin, path: tidy(&path) }),
        };
    }
    match in_plugin_dirs(library, dirs) {
        Some(path) => Ok(found(path)),
        None => Err(LocateError::NotFound {
            name: library.to_string(),
            origin,
            files: library_files(library),
            dirs: dirs.to_vec(),
        }),
    }
}

/// Removes `.` components, so that the path shown is the one a person would type.
fn tidy(path: &Path) -> PathBuf {
    path.components().collect()
}

fn only_plugin(dirs: &[PathBuf]) -> Result<LocatedLibrary, LocateError> {
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
            // Libraries that are not plugins are never chosen.
            let Ok(elf::Inspection { descriptor, .. }) = elf::inspect(&file) else { continue };
            match descriptor.kind {
                // Installed with every host; which hardware it drives is in a device config that names it.
                Kind::Hardware if descriptor.vendor == OWN_VENDOR => {}
                Kind::Hardware => hardware.push(file),
                Kind::Simulator => others.push(file),
                Kind::Test => {}
            }
        }
    }
    match hardware.len() {
        1 => Ok(LocatedLibrary {
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
    use super::super::python::files::Disk;
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

        fn request(
            &self,
            env: Option<&str>,
            line: Option<&str>,
            yaml: Option<&str>,
        ) -> Result<Located, LocateError> {
            let config = self.path("site/device.yaml");
            let cwd = self.path("cwd");
            locate(&LocateRequest {
                environment: env,
                device_config: Some(DeviceFactory { path: &config, line, yaml }),
                dirs: &[self.path("plugins"), self.path("bin")],
                cwd: &cwd,
                interpreter: InterpreterRequest {
                    setting: None,
                    program: None,
                    virtual_env: None,
                    conda_prefix: None,
                    device_config: Some(&config),
                    search_path: "",
                    cwd: &cwd,
                },
                files: &Disk,
            })
        }

        /// A library; that the value names one.
        fn locate(&self, env: Option<&str>, yaml: Option<&str>) -> Result<LocatedLibrary, LocateError> {
            match self.request(env, None, yaml)? {
                Located::Library(library) => Ok(library),
                Located::Python(python) => panic!("{python:?}"),
            }
        }

        fn with_venv(&self) -> &Site {
            for file in
                ["bin/python", "pyvenv.cfg", "lib/python3.11/site-packages/coda_node-0.1.1.dist-info/RECORD"]
            {
                let path = self.path("site/.venv").join(file);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, "").unwrap();
            }
            self
        }

        fn factory(&self, env: Option<&str>, line: Option<&str>, yaml: Option<&str>) -> Option<String> {
            match self.request(env, line, yaml) {
                Ok(Located::Python(python)) => {
                    assert_eq!(python.interpreter.path, self.path("site/.venv/bin/python"));
                    python.factory
                }
                other => panic!("{other:?}"),
            }
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
    fn a_value_with_a_colon_that_is_no_library_is_python_code() {
        let site = Site::new(&["plugins/libacme.so", "plugins/zeta.so"]);
        site.with_venv();
        let values =
            ["acme_qpu.executor_factory:create_executor", "a.b:c:d", "module:attr", "acme.x:y", "a:not one"];
        for value in values {
            assert_eq!(site.factory(Some(value), None, None).as_deref(), Some(value));
            assert_eq!(site.factory(None, None, Some(value)).as_deref(), Some(value));
        }
        // Blanks are the operator's: no module has one in its name, and the interpreter says so.
        assert_eq!(site.factory(Some(" a.b:c "), None, None).as_deref(), Some(" a.b:c "));
        for value in ["acme", "acme:make", "zeta:make", "./a.b:c", "a/b:c", "libx.so:c", "libx.so.1:c"] {
            let found = site.request(Some(value), None, None);
            assert!(!matches!(found, Ok(Located::Python(_))), "{value}: {found:?}");
        }
        let e = site.locate(Some("acme.executor"), None).unwrap_err();
        assert!(
            matches!(e, LocateError::NotFound { .. }) && e.hint().unwrap().contains("<module>:<attribute>")
        );
    }

    #[test]
    fn the_line_applies_to_python_code_and_yaml_to_everything_else() {
        let site = Site::new(&["plugins/libacme.so", "plugins/libzeta.so"]);
        site.with_venv();
        assert_eq!(site.factory(None, Some("a.b:c"), Some("a.b:c#x")).as_deref(), Some("a.b:c"));
        assert_eq!(site.factory(None, Some("a.b:c"), None).as_deref(), Some("a.b:c"));
        assert_eq!(site.factory(None, Some("zeta"), Some("a.b:c")).as_deref(), Some("a.b:c"));
        assert_eq!(site.factory(Some("x:y"), Some("a.b:c"), Some("a.b:c")).as_deref(), Some("x:y"));
        let Ok(Located::Library(library)) = site.request(None, Some("acme:a"), Some("zeta:b")) else {
            panic!()
        };
        assert_eq!((library.path, library.entry), (site.path("plugins/libzeta.so"), "b".to_string()));
    }

    #[test]
    fn without_a_plugin_the_interpreter_is_asked_for_its_packages() {
        let site = Site::new(&[]);
        assert!(matches!(site.request(None, None, None), Err(LocateError::Nothing { .. })));
        site.with_venv();
        let Ok(Located::Python(python)) = site.request(None, None, None) else { panic!() };
        assert_eq!((python.factory, python.source), (None, FactorySource::OnlyPackage));
    }

    #[test]
    fn python_code_without_an_interpreter_says_where_it_was_looked_for() {
        let site = Site::new(&[]);
        let e = site.request(None, None, Some("a.b:c")).unwrap_err();
        assert!(matches!(e, LocateError::NoInterpreter { .. }), "{e}");
        assert!(e.to_string().contains("site/.venv (not there)"), "{e}");
        assert!(e.hint().unwrap().contains("CODA_EXECUTOR_PYTHON"), "{e}");
    }

    #[test]
    fn bad_values_are_named() {
        let site = Site::new(&["plugins/libacme.so"]);
        for value in ["", ":", ":entry", "acme:", "other:", "acme:not an entry", "acme:create-executor"] {
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
