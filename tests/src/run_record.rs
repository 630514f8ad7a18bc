//! The faulty executor's record of its runs, for tests that must know what is in the executor itself: the host tells of a
//! job as running before the plugin's process has begun it.

use std::os::unix::fs::PermissionsExt as _;

use tempfile::NamedTempFile;

use crate::wait::eventually;

/// A file that the executor writes, also from another account.
pub struct RunRecord(NamedTempFile);

impl RunRecord {
    pub fn new() -> RunRecord {
        let file = NamedTempFile::new().expect("a file");
        let all = std::fs::Permissions::from_mode(0o666);
        std::fs::set_permissions(file.path(), all).expect("the file's mode can be set");
        RunRecord(file)
    }

    /// The keys of a device config, and the one that has the executor write the record.
    pub fn keys(&self, keys: &str) -> String {
        format!("{keys}\nrecord: {}\n", self.0.path().display())
    }

    /// Waits until the executor has begun a job.
    pub async fn wait_begun(&self, id: &str) {
        let line = format!("start {id}");
        let begun = || std::fs::read_to_string(self.0.path()).expect("the record").lines().any(|l| l == line);
        eventually("the executor has begun the job", async || begun()).await;
    }
}

impl Default for RunRecord {
    fn default() -> RunRecord {
        RunRecord::new()
    }
}
