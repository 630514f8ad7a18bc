//! What the search for an interpreter sees of this machine's disk.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::interpreter::FileView;

/// Of a script, as much as names its interpreter: the longest path and what stands around it.
const START_BYTES: u64 = 8 << 10;

/// The disk of this machine. What can't be read is not there.
pub struct Disk;

impl FileView for Disk {
    fn is_file(&self, path: &Path) -> bool {
        path.is_file()
    }

    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn names(&self, dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    fn start(&self, path: &Path) -> Option<String> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(START_BYTES).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// What decides which code an interpreter runs: itself, the config of its virtual environment, its packages.
pub fn trusted_paths(interpreter: &Path) -> Vec<PathBuf> {
    let mut paths = vec![interpreter.to_path_buf()];
    let Some(prefix) = interpreter.parent().and_then(Path::parent) else { return paths };
    let config = prefix.join("pyvenv.cfg");
    if !config.is_file() {
        return paths;
    }
    paths.push(config);
    let lib = prefix.join("lib");
    paths.extend(Disk.names(&lib).iter().map(|name| lib.join(name).join("site-packages")));
    paths
}
