//! Which interpreter runs a Python executor: a decision over what is on the disk, by an order that an operator can predict.
//!
//! 1. `CODA_EXECUTOR_PYTHON`: an interpreter, or the directory of a virtual environment.
//! 2. The virtual environment that coda-host itself is installed in, as by pip.
//! 3. `VIRTUAL_ENV`, then `CONDA_PREFIX`.
//! 4. `.venv`, then `venv`: beside device.yaml, in the directory above it, in the working directory.
//! 5. The interpreter of the `coda-node` script on `PATH`.
//! 6. `python3` on `PATH`.
//!
//! For a factory that is configured, 2 applies at once. Otherwise 2, 3, 4 and 6 apply only where `coda-node` is installed. When that leaves none and a factory is configured, they apply
//! without it, in the same order: the bridge brings what an executor needs. A path is used as it is and never resolved: the interpreter of a
//! virtual environment is a link, and what it points to has none of its packages. Pure: `files` looks.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What the search sees of the disk.
pub trait FileView {
    fn is_file(&self, path: &Path) -> bool;
    fn is_dir(&self, path: &Path) -> bool;
    /// The names in a directory; none when it can't be read.
    fn names(&self, dir: &Path) -> Vec<String>;
    /// The start of a file, as text.
    fn start(&self, path: &Path) -> Option<String>;
}

/// An interpreter, and why it was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// Absolute.
    pub path: PathBuf,
    pub chosen_by: InterpreterSource,
}

/// Why an interpreter was chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InterpreterSource {
    /// `CODA_EXECUTOR_PYTHON`.
    Setting,
    /// This variable of the environment: `VIRTUAL_ENV` or `CONDA_PREFIX`.
    Variable(String),
    /// The virtual environment in this directory.
    Directory(PathBuf),
    /// The script of the Python node.
    NodeScript(PathBuf),
    /// `python3` on `PATH`.
    SearchPath,
}

impl fmt::Display for InterpreterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InterpreterSource::Setting => f.write_str("CODA_EXECUTOR_PYTHON"),
            InterpreterSource::Variable(name) => f.write_str(name),
            InterpreterSource::Directory(dir) => write!(f, "the virtual environment {}", dir.display()),
            InterpreterSource::NodeScript(script) => write!(f, "the script {}", script.display()),
            InterpreterSource::SearchPath => f.write_str("python3 on PATH"),
        }
    }
}

/// Where to look.
#[derive(Debug, Clone)]
pub struct InterpreterRequest<'a> {
    /// Value of `CODA_EXECUTOR_PYTHON`.
    pub setting: Option<&'a str>,
    /// Absolute path of this program.
    pub program: Option<&'a Path>,
    pub virtual_env: Option<&'a str>,
    pub conda_prefix: Option<&'a str>,
    /// Absolute path of device.yaml.
    pub device_config: Option<&'a Path>,
    /// Value of `PATH`.
    pub search_path: &'a str,
    pub cwd: &'a Path,
}

/// Why there is no interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoInterpreter {
    /// What the setting names is neither an interpreter nor a virtual environment.
    Setting { value: String },
    /// None was found; each place with what is missing there.
    Nowhere { looked: Vec<String> },
}

/// Finds the interpreter.
///
/// # Errors
/// When the setting names none, or there is none in any place.
pub fn find(request: &InterpreterRequest<'_>, files: &dyn FileView) -> Result<Interpreter, NoInterpreter> {
    if let Some(value) = request.setting {
        let path = named(value, request, files).ok_or(NoInterpreter::Setting { value: value.into() })?;
        return Ok(Interpreter { path, chosen_by: InterpreterSource::Setting });
    }
    let mut looked = Vec::new();
    if let Some(prefix) = own_venv(request, files)
        && let Some(path) = with_node(&prefix, &prefix.display().to_string(), files, &mut looked)
    {
        return Ok(Interpreter { path, chosen_by: InterpreterSource::Directory(prefix) });
    }
    for (name, value) in [("VIRTUAL_ENV", request.virtual_env), ("CONDA_PREFIX", request.conda_prefix)] {
        match value {
            None => looked.push(format!("{name} (not set)")),
            Some(prefix) => {
                let prefix = request.cwd.join(prefix);
                if let Some(path) =
                    with_node(&prefix, &format!("{name}={}", prefix.display()), files, &mut looked)
                {
                    return Ok(Interpreter { path, chosen_by: InterpreterSource::Variable(name.into()) });
                }
            }
        }
    }
    for prefix in venv_directories(request) {
        if !files.is_file(&prefix.join("pyvenv.cfg")) {
            looked.push(format!("{} (not there)", prefix.display()));
        } else if let Some(path) = with_node(&prefix, &prefix.display().to_string(), files, &mut looked) {
            return Ok(Interpreter { path, chosen_by: InterpreterSource::Directory(prefix) });
        }
    }
    match on_search_path("coda-node", request, files) {
        None => looked.push("coda-node on PATH (not there)".into()),
        Some(script) => {
            let shown = script.display().to_string();
            let start = files.start(&script).unwrap_or_default();
            match script_interpreter(&start).and_then(|words| resolve_script(&words, request, files)) {
                Some(path) => {
                    return Ok(Interpreter { path, chosen_by: InterpreterSource::NodeScript(script) });
                }
                None => looked.push(format!("the script {shown} (it names no Python interpreter)")),
            }
        }
    }
    match on_search_path("python3", request, files) {
        None => looked.push("python3 on PATH (not there)".into()),
        Some(path) => {
            let prefix = path.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
            if has_node(prefix, files) {
                return Ok(Interpreter { path, chosen_by: InterpreterSource::SearchPath });
            }
            looked.push(format!("{} (coda-node is not installed)", path.display()));
        }
    }
    Err(NoInterpreter::Nowhere { looked })
}

/// Finds the interpreter of a factory that is configured: with coda-node, else the first without.
///
/// # Errors
/// When the setting names none, or there is none in any place.
pub fn find_for_factory(
    request: &InterpreterRequest<'_>,
    files: &dyn FileView,
) -> Result<Interpreter, NoInterpreter> {
    if request.setting.is_none()
        && let Some(prefix) = own_venv(request, files)
        && let Some(path) = interpreter_of(&prefix, files)
    {
        return Ok(Interpreter { path, chosen_by: InterpreterSource::Directory(prefix) });
    }
    match find(request, files) {
        Err(NoInterpreter::Nowhere { looked }) => {
            without_node(request, files).ok_or(NoInterpreter::Nowhere { looked })
        }
        found => found,
    }
}

/// The first interpreter, whatever is installed for it.
fn without_node(request: &InterpreterRequest<'_>, files: &dyn FileView) -> Option<Interpreter> {
    for (name, value) in [("VIRTUAL_ENV", request.virtual_env), ("CONDA_PREFIX", request.conda_prefix)] {
        if let Some(path) = value.and_then(|prefix| interpreter_of(&request.cwd.join(prefix), files)) {
            return Some(Interpreter { path, chosen_by: InterpreterSource::Variable(name.into()) });
        }
    }
    let mut venvs = venv_directories(request).into_iter();
    let venv = venvs.find_map(|prefix| {
        let is_venv = files.is_file(&prefix.join("pyvenv.cfg"));
        let path = interpreter_of(&prefix, files).filter(|_| is_venv)?;
        Some(Interpreter { path, chosen_by: InterpreterSource::Directory(prefix) })
    });
    let on_path = || {
        let path = on_search_path("python3", request, files)?;
        Some(Interpreter { path, chosen_by: InterpreterSource::SearchPath })
    };
    venv.or_else(on_path)
}

/// The virtual environment in whose `bin` this program lies.
fn own_venv(request: &InterpreterRequest<'_>, files: &dyn FileView) -> Option<PathBuf> {
    let prefix = request.program?.parent()?.parent()?;
    files.is_file(&prefix.join("pyvenv.cfg")).then(|| prefix.to_path_buf())
}

/// What the setting names: a virtual environment, a file, or a command on `PATH`.
fn named(value: &str, request: &InterpreterRequest<'_>, files: &dyn FileView) -> Option<PathBuf> {
    let path = request.cwd.join(value);
    if files.is_dir(&path) {
        return interpreter_of(&path, files);
    }
    if files.is_file(&path) {
        return Some(path);
    }
    if value.contains('/') { None } else { on_search_path(value, request, files) }
}

/// The interpreter of a prefix such as a virtual environment.
fn interpreter_of(prefix: &Path, files: &dyn FileView) -> Option<PathBuf> {
    ["bin/python", "bin/python3"].iter().map(|name| prefix.join(name)).find(|path| files.is_file(path))
}

/// The interpreter of a prefix where coda-node is installed; what is missing is noted otherwise.
fn with_node(prefix: &Path, shown: &str, files: &dyn FileView, looked: &mut Vec<String>) -> Option<PathBuf> {
    match interpreter_of(prefix, files) {
        None => looked.push(format!("{shown} (no bin/python)")),
        Some(_) if !has_node(prefix, files) => looked.push(format!("{shown} (coda-node is not installed)")),
        found => return found,
    }
    None
}

/// Whether the packages of a prefix include coda-node, also when it is installed as editable.
fn has_node(prefix: &Path, files: &dyn FileView) -> bool {
    // Debian's interpreter keeps its packages in other places than those of venvs.
    let libs = [prefix.join("lib"), prefix.join("local/lib")];
    let versions = libs.iter().flat_map(|lib| {
        let names = files.names(lib).into_iter().filter(|name| name.starts_with("python3"));
        names.map(|name| lib.join(name)).collect::<Vec<_>>()
    });
    versions.flat_map(|dir| [dir.join("site-packages"), dir.join("dist-packages")]).any(|packages| {
        let names = files.names(&packages);
        names.iter().any(|name| name.starts_with("coda_node-") && name.ends_with(".dist-info"))
    })
}

fn venv_directories(request: &InterpreterRequest<'_>) -> Vec<PathBuf> {
    let beside = request.device_config.and_then(Path::parent);
    // device.yaml lies in the folder `site` of a project.
    let above = beside.and_then(Path::parent);
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in [beside, above, Some(request.cwd)].into_iter().flatten() {
        for prefix in [dir.join(".venv"), dir.join("venv")] {
            if !found.contains(&prefix) {
                found.push(prefix);
            }
        }
    }
    found
}

fn on_search_path(name: &str, request: &InterpreterRequest<'_>, files: &dyn FileView) -> Option<PathBuf> {
    let dirs = request.search_path.split(':').filter(|dir| !dir.is_empty());
    dirs.map(|dir| request.cwd.join(dir).join(name)).find(|path| files.is_file(path))
}

/// The words that start the interpreter of a script: behind `#!`, or in the second line of the form that pip writes for
/// long paths and those with blanks, where the first names `/bin/sh`.
fn script_interpreter(start: &str) -> Option<Vec<String>> {
    let mut lines = start.lines();
    let first = lines.next()?.strip_prefix("#!")?.trim();
    if first != "/bin/sh" {
        return Some(first.split_whitespace().map(String::from).collect());
    }
    let quoted = lines.next()?.trim().strip_prefix("'''exec'")?.trim_start();
    let path = match quoted.strip_prefix('"') {
        Some(rest) => rest.split('"').next()?,
        None => quoted.split_whitespace().next()?,
    };
    Some(vec![path.to_string()])
}

fn resolve_script(
    words: &[String],
    request: &InterpreterRequest<'_>,
    files: &dyn FileView,
) -> Option<PathBuf> {
    let is_python = |path: &Path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with("python") || name.starts_with("pypy"))
    };
    let program = Path::new(words.first()?);
    if program.ends_with("env") {
        let name = words.iter().skip(1).find(|word| !word.starts_with('-'))?;
        return on_search_path(name, request, files).filter(|path| is_python(path));
    }
    (is_python(program) && program.is_absolute() && files.is_file(program)).then(|| program.to_path_buf())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Files by their paths.
    struct Disk(BTreeMap<PathBuf, &'static str>);

    impl Disk {
        fn new(files: &[(&str, &'static str)]) -> Disk {
            Disk(files.iter().map(|(path, text)| (PathBuf::from(path), *text)).collect())
        }
    }

    impl FileView for Disk {
        fn is_file(&self, path: &Path) -> bool {
            self.0.contains_key(path)
        }

        fn is_dir(&self, path: &Path) -> bool {
            !self.is_file(path) && self.0.keys().any(|file| file.starts_with(path))
        }

        fn names(&self, dir: &Path) -> Vec<String> {
            let below = self.0.keys().filter_map(|file| file.strip_prefix(dir).ok());
            below.filter_map(|rest| Some(rest.iter().next()?.to_str()?.to_string())).collect()
        }

        fn start(&self, path: &Path) -> Option<String> {
            self.0.get(path).map(ToString::to_string)
        }
    }

    fn venv(at: &str, node: bool) -> Vec<(String, &'static str)> {
        let mut files = vec![(format!("{at}/bin/python"), ""), (format!("{at}/pyvenv.cfg"), "")];
        if node {
            files.push((format!("{at}/lib/python3.12/site-packages/coda_node-0.1.1.dist-info/METADATA"), ""));
        }
        files
    }

    fn request() -> InterpreterRequest<'static> {
        InterpreterRequest {
            setting: None,
            program: None,
            virtual_env: None,
            conda_prefix: None,
            device_config: Some(Path::new("/lab/site/device.yaml")),
            search_path: "/opt/bin:/usr/bin",
            cwd: Path::new("/cwd"),
        }
    }

    fn disk(files: Vec<(String, &'static str)>) -> Disk {
        Disk(files.into_iter().map(|(path, text)| (PathBuf::from(path), text)).collect())
    }

    #[test]
    fn the_first_place_in_order_is_used() {
        let node =
            |text| vec![("/opt/bin/coda-node".to_string(), text), ("/opt/py/bin/python3".to_string(), "")];
        let system = || {
            vec![
                ("/usr/bin/python3".to_string(), ""),
                ("/usr/local/lib/python3.13/dist-packages/coda_node-0.1.0.dist-info/RECORD".to_string(), ""),
            ]
        };
        let mut files: Vec<(String, &'static str)> = Vec::new();
        // From the last place to the first: each new one takes the place of those before.
        let mut expect = |new: Vec<(String, &'static str)>,
                          change: &dyn Fn(&mut InterpreterRequest<'static>),
                          path: &str| {
            files.extend(new);
            let mut request = request();
            change(&mut request);
            let found = find(&request, &disk(files.clone())).unwrap();
            assert_eq!(found.path, Path::new(path), "{:?}", found.chosen_by);
        };
        expect(system(), &|_| (), "/usr/bin/python3");
        expect(node("#!/opt/py/bin/python3\nimport sys"), &|_| (), "/opt/py/bin/python3");
        expect(venv("/cwd/venv", true), &|_| (), "/cwd/venv/bin/python");
        expect(venv("/cwd/.venv", true), &|_| (), "/cwd/.venv/bin/python");
        expect(venv("/lab/.venv", true), &|_| (), "/lab/.venv/bin/python");
        expect(venv("/lab/site/venv", true), &|_| (), "/lab/site/venv/bin/python");
        expect(venv("/lab/site/.venv", true), &|_| (), "/lab/site/.venv/bin/python");
        expect(venv("/conda", true), &|r| r.conda_prefix = Some("/conda"), "/conda/bin/python");
        expect(venv("/active", true), &|r| r.virtual_env = Some("/active"), "/active/bin/python");
        expect(venv("/set", false), &|r| r.setting = Some("/set"), "/set/bin/python");
        expect(vec![], &|r| r.setting = Some("/opt/py/bin/python3"), "/opt/py/bin/python3");
        expect(vec![], &|r| r.setting = Some("python3"), "/usr/bin/python3");
        expect(venv("/cwd/rel", false), &|r| r.setting = Some("rel"), "/cwd/rel/bin/python");
    }

    #[test]
    fn places_without_coda_node_are_passed_over_and_named() {
        let mut files = venv("/active", false);
        files.extend(venv("/cwd/.venv", false));
        files.push(("/usr/bin/python3".into(), ""));
        files.push(("/opt/bin/coda-node".into(), "#!/bin/bash\n"));
        let mut request = request();
        request.virtual_env = Some("/active");
        let Err(NoInterpreter::Nowhere { looked }) = find(&request, &disk(files)) else {
            panic!("one was found")
        };
        let text = looked.join("; ");
        for part in [
            "VIRTUAL_ENV=/active (coda-node is not installed)",
            "CONDA_PREFIX (not set)",
            "/cwd/.venv (coda-node is not installed)",
            "/lab/site/.venv (not there)",
            "the script /opt/bin/coda-node (it names no Python interpreter)",
            "/usr/bin/python3 (coda-node is not installed)",
        ] {
            assert!(text.contains(part), "{part} is not in: {text}");
        }
    }

    #[test]
    fn a_configured_factory_takes_the_first_interpreter_when_none_has_coda_node() {
        let mut files = vec![("/usr/bin/python3".to_string(), "")];
        let mut expect =
            |new: Vec<(String, &'static str)>, active: Option<&'static str>, path: Option<&str>| {
                files.extend(new);
                let request = InterpreterRequest { virtual_env: active, ..request() };
                let found = find_for_factory(&request, &disk(files.clone())).ok().map(|found| found.path);
                assert_eq!(found.as_deref(), path.map(Path::new));
            };
        expect(vec![], None, Some("/usr/bin/python3"));
        expect(venv("/cwd/.venv", false), None, Some("/cwd/.venv/bin/python"));
        expect(venv("/lab/site/.venv", false), None, Some("/lab/site/.venv/bin/python"));
        expect(venv("/active", false), Some("/active"), Some("/active/bin/python"));
        expect(vec![], Some("/gone"), Some("/lab/site/.venv/bin/python"));
        // One with coda-node precedes all of them, also a later one.
        expect(venv("/cwd/venv", true), Some("/active"), Some("/cwd/venv/bin/python"));
        assert!(find_for_factory(&request(), &disk(vec![])).is_err());
        // The environment that coda-host is installed in comes first, and only the setting before it.
        files.extend(venv("/own", false));
        let own = InterpreterRequest {
            program: Some(Path::new("/own/bin/coda-host")),
            virtual_env: Some("/active"),
            ..request()
        };
        let path_of =
            |request: &InterpreterRequest<'_>| find_for_factory(request, &disk(files.clone())).unwrap().path;
        assert_eq!(path_of(&own), Path::new("/own/bin/python"));
        let elsewhere = InterpreterRequest { program: Some(Path::new("/usr/bin/coda-host")), ..own.clone() };
        assert_ne!(path_of(&elsewhere), Path::new("/own/bin/python"));
        let named = InterpreterRequest { setting: Some("/active"), ..own.clone() };
        assert_eq!(path_of(&named), Path::new("/active/bin/python"));
        // Without a factory it must have coda-node, as others must.
        assert_ne!(find(&own, &disk(files.clone())).unwrap().path, Path::new("/own/bin/python"));
    }

    #[test]
    fn a_setting_that_names_nothing_is_an_error_whatever_else_is_there() {
        let mut request = request();
        for value in ["/nowhere", "/lab", "no-such-python"] {
            request.setting = Some(value);
            let found = find(&request, &disk(venv("/lab/.venv", true)));
            assert_eq!(found, Err(NoInterpreter::Setting { value: value.into() }));
        }
    }

    #[test]
    fn scripts_of_pip_and_uv_name_their_interpreter() {
        let path = |text: &str| script_interpreter(text).map(|words| words.join("|"));
        assert_eq!(path("#!/a/bin/python3.12\n"), Some("/a/bin/python3.12".into()));
        assert_eq!(path("#!/usr/bin/env python3\n"), Some("/usr/bin/env|python3".into()));
        let long = "#!/bin/sh\n'''exec' \"/a b/bin/python\" \"$0\" \"$@\"\n' '''\nimport sys\n";
        assert_eq!(path(long), Some("/a b/bin/python".into()));
        assert_eq!(path("#!/bin/sh\n'''exec' /a/bin/python \"$0\" \"$@\"\n"), Some("/a/bin/python".into()));
        assert_eq!(path("import sys"), None);
        assert_eq!(path("#!/bin/sh\necho hello\n"), None);
        let files = Disk::new(&[("/usr/bin/python3", ""), ("/usr/bin/bash", "")]);
        let words = |text: &str| text.split('|').map(String::from).collect::<Vec<_>>();
        let resolve = |text| resolve_script(&words(text), &request(), &files);
        assert_eq!(resolve("/usr/bin/env|python3"), Some("/usr/bin/python3".into()));
        assert_eq!(resolve("/usr/bin/env|-S|python3|-u"), Some("/usr/bin/python3".into()));
        assert_eq!(resolve("/usr/bin/env|bash"), None);
        assert_eq!(resolve("/gone/python3"), None);
    }
}
