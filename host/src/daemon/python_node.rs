//! A Python coda-node that serves the same QPU on this machine, and how it was started.
//!
//! It is looked for among the processes: by its command line, and by the directory where it keeps its credentials
//! (`TMPDIR`, else `/tmp`), which is the one that this host uses or names the same QPU.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::state::{credentials, files};

/// Number of arguments at the start of a command line in which the name of the program is looked for.
const ARGUMENTS: usize = 6;
/// Largest `coda.config` of a coda-node that is read.
const CONFIG_MAX: u64 = 1 << 20;

/// A coda-node that runs. What another user's process doesn't show is `None`, or empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PythonNode {
    pub pid: u32,
    /// Where its credentials are.
    pub dir: PathBuf,
    pub uid: Option<u32>,
    pub cwd: Option<PathBuf>,
    /// The interpreter, as the process was started with it: not resolved, so that a virtual environment shows.
    pub interpreter: Option<PathBuf>,
    pub environment: BTreeMap<String, String>,
}

impl PythonNode {
    /// The value of a variable, whose name coda-node reads in any case.
    pub fn variable(&self, name: &str) -> Option<&str> {
        let mut found =
            self.environment.iter().filter(|(k, v)| k.eq_ignore_ascii_case(name) && !v.is_empty());
        found.next().map(|(_, v)| v.as_str())
    }
}

/// Returns a coda-node of any QPU, with credentials.
pub fn find_any() -> Option<PythonNode> {
    nodes().into_iter().find(|node| node.dir.join(credentials::CONFIG_FILE).exists())
}

/// Returns the coda-node that uses `dir`, or serves `qpu_id` from another directory.
pub fn find(dir: &Path, qpu_id: Option<&str>) -> Option<PythonNode> {
    let same = |a: &Path, b: &Path| {
        a == b || a.canonicalize().ok().is_some_and(|a| b.canonicalize().ok() == Some(a))
    };
    nodes()
        .into_iter()
        .find(|node| same(&node.dir, dir) || qpu_id.is_some() && stored_qpu(&node.dir).as_deref() == qpu_id)
}

/// Every coda-node of this machine.
fn nodes() -> Vec<PythonNode> {
    let own = std::process::id();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|p| p.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).filter_map(look_at).collect()
}

fn look_at(pid: u32) -> Option<PythonNode> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let line = std::fs::read(process.join("cmdline")).ok().filter(|line| is_python_node(line))?;
    // Another user's environment can't be read; then it keeps its files where it does by default.
    let environment = variables(&std::fs::read(process.join("environ")).unwrap_or_default());
    let cwd = std::fs::read_link(process.join("cwd")).ok();
    let program = line.split(|b| *b == 0).next().map(|p| String::from_utf8_lossy(p).into_owned());
    let interpreter = program.filter(|p| p.contains('/')).map(PathBuf::from);
    Some(PythonNode {
        pid,
        dir: environment.get("TMPDIR").filter(|dir| !dir.is_empty()).map_or("/tmp".into(), PathBuf::from),
        uid: std::fs::metadata(&process).ok().map(|m| m.uid()),
        interpreter: interpreter.map(|path| cwd.as_deref().map_or(path.clone(), |cwd| cwd.join(&path))),
        cwd,
        environment,
    })
}

/// Whether a command line is that of a coda-node, in the foreground (its script) or as a daemon (its server).
fn is_python_node(line: &[u8]) -> bool {
    let arguments = line.split(|b| *b == 0).take(ARGUMENTS);
    let mut found = arguments.map(String::from_utf8_lossy).filter(|argument| {
        let name = argument.rsplit('/').next().unwrap_or_default();
        name == "coda-node" || *argument == "coda_node" || argument.starts_with("coda_node.")
    });
    found.next().is_some()
}

fn variables(environment: &[u8]) -> BTreeMap<String, String> {
    let texts = environment.split(|b| *b == 0).map(String::from_utf8_lossy);
    texts.filter_map(|t| t.split_once('=').map(|(k, v)| (k.to_string(), v.to_string()))).collect()
}

fn stored_qpu(dir: &Path) -> Option<String> {
    let bytes = files::read(&dir.join(credentials::CONFIG_FILE), CONFIG_MAX).ok()??;
    let config: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
    config["qpu_id"].as_str().map(String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coda_node_is_recognised_by_its_command_line() {
        let is = |arguments: &[&str]| is_python_node(arguments.join("\0").as_bytes());
        assert!(is(&["/opt/coda/bin/python3", "/opt/coda/bin/coda-node", "start"]));
        assert!(is(&["/usr/bin/python3", "-m", "uvicorn", "coda_node.server.app:app", "--host", "::"]));
        assert!(is(&["python3", "-m", "coda_node", "start"]));
        for other in [
            &["vim", "/etc/coda-node.conf"][..],
            &["coda-host", "start"],
            &["tail", "-f", "/tmp/coda-node.log"],
            &["grep", "coda_nodes"],
            &[],
        ] {
            assert!(!is(other), "{other:?}");
        }
    }
}
