//! The ids of the jobs that are in the device, on disk: a remote job outlives a process that is killed.
//!
//! Contract: best effort; what fails is told and costs no job. There is a file for each device config, in a directory of
//! this user alone, and it is locked while it is used, so that a second process with the same config (`plugin check`
//! beside a host) doesn't take the jobs of the first for abandoned ones. At an orderly end an empty file is removed, and the
//! directory with the last one.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// Most bytes that are read of a file.
const MAX_FILE: u64 = 64 << 10;

/// Why there is no file.
#[derive(Debug, thiserror::Error)]
pub enum NoJobFile {
    /// Its owner finds its jobs again.
    #[error("another process uses this device config")]
    InUse,
    #[error("{0}")]
    Unusable(String),
}

/// The file of one device config, locked.
pub struct JobFile {
    file: File,
    path: PathBuf,
}

/// How often the file is opened anew when another process removes it in that moment.
const OPEN_ATTEMPTS: u32 = 20;

impl JobFile {
    /// Opens or makes the file, and returns the ids that an earlier process left in it.
    ///
    /// # Errors
    /// Why jobs of a killed process can't be found again.
    pub fn open(prefix: &str, config_file: &str) -> Result<(JobFile, Vec<String>), NoJobFile> {
        let user = rustix::process::geteuid().as_raw();
        JobFile::open_in(&std::env::temp_dir().join(format!("coda-qdmi-{user}")), prefix, config_file, user)
    }

    fn open_in(
        dir: &Path,
        prefix: &str,
        config_file: &str,
        user: u32,
    ) -> Result<(JobFile, Vec<String>), NoJobFile> {
        for _ in 0..OPEN_ATTEMPTS {
            make_directory(dir, user)?;
            let path = JobFile::path(dir, prefix, config_file);
            if let Some(mut file) = open_locked(&path)? {
                let mut text = String::new();
                (&mut file).take(MAX_FILE).read_to_string(&mut text).map_err(|e| unusable(&path, &e))?;
                let ids = text.lines().filter(|line| !line.is_empty()).map(String::from).collect();
                return Ok((JobFile { file, path }, ids));
            }
        }
        Err(NoJobFile::InUse)
    }

    fn path(dir: &Path, prefix: &str, config_file: &str) -> PathBuf {
        // FNV-1a, which is the same in every version of this plugin.
        let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = config_file.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
        dir.join(format!("{prefix}-{hash:016x}.job"))
    }

    /// Replaces the ids by those of the jobs that are in the device now.
    ///
    /// # Errors
    /// Why it can't be written.
    pub fn write<'a>(&mut self, ids: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let text: String = ids.filter(|id| !id.contains('\n')).flat_map(|id| [id, "\n"]).collect();
        let written = self
            .file
            .rewind()
            .and_then(|()| self.file.set_len(0))
            .and_then(|()| self.file.write_all(text.as_bytes()));
        written.map_err(|e| format!("the ids of jobs in the device can't be written: {e}"))
    }

    /// Removes the file if no job is in the device.
    ///
    /// # Errors
    /// Why it is still there.
    pub fn close(self) -> Result<(), String> {
        let failed = |e: std::io::Error| format!("{} can't be removed: {e}", self.path.display());
        if self.file.metadata().map_err(failed)?.len() > 0 {
            return Ok(());
        }
        // Still locked: who opened it meanwhile sees afterwards that it is gone.
        std::fs::remove_file(&self.path).map_err(failed)?;
        // It stays as long as other device configs have files in it.
        self.path.parent().map(std::fs::remove_dir);
        Ok(())
    }
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> NoJobFile {
    NoJobFile::Unusable(format!("{}: {why}", path.display()))
}

fn make_directory(dir: &Path, user: u32) -> Result<(), NoJobFile> {
    if let Err(e) = DirBuilder::new().mode(0o700).create(dir)
        && e.kind() != ErrorKind::AlreadyExists
    {
        return Err(unusable(dir, &e));
    }
    // In /tmp another user may have made it.
    let meta = dir.symlink_metadata().map_err(|e| unusable(dir, &e))?;
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o022 != 0 {
        return Err(unusable(dir, &"is not a directory that this user alone may write"));
    }
    Ok(())
}

/// The file, made if need be and locked; `None` when another process removed it meanwhile.
fn open_locked(path: &Path) -> Result<Option<File>, NoJobFile> {
    let mut options = File::options();
    let file = match options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path) {
        Ok(file) => file,
        // With its directory.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unusable(path, &e)),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(NoJobFile::InUse),
        Err(TryLockError::Error(e)) => return Err(unusable(path, &e)),
    }
    let locked = file.metadata().map_err(|e| unusable(path, &e))?;
    match path.symlink_metadata() {
        Ok(there) if (there.dev(), there.ino()) == (locked.dev(), locked.ino()) => Ok(Some(file)),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(unusable(path, &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> Result<(JobFile, Vec<String>), String> {
        let user = rustix::process::geteuid().as_raw();
        JobFile::open_in(dir, "A", "/etc/device.yaml", user).map_err(|why| why.to_string())
    }

    #[test]
    fn ids_outlive_their_process_and_not_their_jobs() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("jobs");
        let (mut file, ids) = open(&dir).unwrap();
        assert_eq!(ids, [""; 0]);
        file.write(["a-1", "b 2", "c\n3"].into_iter()).unwrap();
        assert!(open(&dir).err().unwrap().contains("another process uses"), "one at a time");
        drop(file);
        let (mut file, ids) = open(&dir).unwrap();
        assert_eq!(ids, ["a-1", "b 2"]);
        file.write(std::iter::empty()).unwrap();
        drop(file);
        assert_eq!(open(&dir).unwrap().1, [""; 0]);
        let other = JobFile::open_in(&dir, "A", "/other/device.yaml", rustix::process::geteuid().as_raw());
        assert!(other.is_ok(), "each device config has a file");
        let mode = JobFile::path(&dir, "A", "/etc/device.yaml").metadata().unwrap().mode();
        assert_eq!((mode & 0o777, dir.metadata().unwrap().mode() & 0o777), (0o600, 0o700));
    }

    #[test]
    fn an_empty_file_is_removed_at_the_end_and_one_with_jobs_is_not() {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("jobs");
        let (mut file, _) = open(&dir).unwrap();
        file.write(["a-1"].into_iter()).unwrap();
        file.close().unwrap();
        let (mut file, ids) = open(&dir).unwrap();
        assert_eq!(ids, ["a-1"]);
        file.write(std::iter::empty()).unwrap();
        // Of another device config.
        let user = rustix::process::geteuid().as_raw();
        let (other, _) = JobFile::open_in(&dir, "A", "/other/device.yaml", user).unwrap();
        file.close().unwrap();
        assert!(!JobFile::path(&dir, "A", "/etc/device.yaml").exists());
        other.close().unwrap();
        assert!(!dir.exists(), "the last one takes the directory along");
        assert!(open(&dir).is_ok());
    }

    #[test]
    fn processes_that_begin_and_end_at_the_same_time_never_hold_one_file_together() {
        use std::sync::atomic::{AtomicU32, Ordering};
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("jobs");
        let holders = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let Ok((file, _)) = open(&dir) else { continue };
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        file.close().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_directory_that_others_may_write_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("jobs");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
        assert!(open(&dir).err().unwrap().contains("this user alone"));
        let link = top.path().join("link");
        std::os::unix::fs::symlink(top.path(), &link).unwrap();
        assert!(open(&link).err().unwrap().contains("this user alone"));
    }
}
