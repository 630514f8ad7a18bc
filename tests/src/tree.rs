//! Trees of Linux distributions, as `packaging/tree` makes them, to run in them what was built here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::process::is_root;

const SCRIPT: &str = include_str!("tree.sh");

/// The tree of a distribution, with files that are given to it. What a script changes there is gone afterwards.
pub struct Tree {
    pub name: String,
    path: PathBuf,
    given: TempDir,
}

impl Tree {
    /// The trees for an architecture as Debian names it. None, and a message, where there is none or no right to use it.
    pub fn all(arch: &str) -> Vec<Tree> {
        let trees = std::env::var_os("CODA_TEST_TREES").filter(|path| !path.is_empty());
        let (Some(trees), true) = (trees, is_root()) else {
            println!("skipped: there are no trees of distributions (make tree-deps as root)");
            return Vec::new();
        };
        let entries = std::fs::read_dir(trees).expect("the directory of the trees can be read");
        let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        paths.retain(|path| path.join("complete").exists());
        paths.sort();
        let named = paths.into_iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?.strip_suffix(&format!("-{arch}"))?.to_string();
            Some(Tree { name, path, given: tempfile::tempdir().expect("a directory") })
        });
        named.collect()
    }

    /// Whether a file is in it.
    pub fn has(&self, file: &str) -> bool {
        self.path.join(file).exists()
    }

    /// Puts a file into the directory in which scripts run.
    pub fn give(&self, file: &Path) {
        let given = self.given.path().join("given");
        std::fs::create_dir_all(&given).expect("a directory");
        std::fs::copy(file, given.join(file.file_name().expect("a file"))).expect("the file can be copied");
    }

    /// Runs a script as root of that tree, which has to succeed; returns what it wrote.
    pub fn run(&self, script: &str) -> String {
        let stage = self.given.path();
        std::fs::create_dir_all(stage.join("given")).expect("a directory");
        std::fs::write(stage.join("tree.sh"), SCRIPT).expect("the script");
        let mut command = Command::new("sh");
        command.arg(stage.join("tree.sh")).arg(&self.path).arg(stage).arg(script).stdin(Stdio::null());
        let output = command.output().expect("sh can be started");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // For the next script; mounts were in a namespace that is gone.
        for made in ["root", "changes"] {
            std::fs::remove_dir(stage.join(made)).ok();
        }
        assert!(output.status.success(), "{} in {}: {}{}", script, self.name, text[0], text[1]);
        text.concat()
    }
}
