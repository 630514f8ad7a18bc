//! The note that a running `coda-host dev` leaves, so that `coda-host submit` finds it without being told.
//!
//! It lies in the user's runtime directory, or in the temp dir under a name with the user's id, 0600. A dev
//! that was killed leaves a stale one behind: whoever reads it asks the URL before believing it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::load::ProcessEnv;
use crate::state::files::{self, FileError};

/// Far more than a note has.
const SIZE_LIMIT: u64 = 64 << 10;

/// Where everything of a running dev is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub pid: u32,
    pub url: String,
    pub redis_url: String,
    pub host_url: String,
    pub qpu_id: String,
    pub log: PathBuf,
}

/// Where the note of this user lies.
///
/// # Errors
/// When the user can't be made out.
pub fn path(env: &ProcessEnv) -> Result<PathBuf, FileError> {
    let set = |name: &str| env.environment.get(name).filter(|v| !v.is_empty());
    // After `su` the variable may name a directory that isn't there.
    if let Some(dir) = set("XDG_RUNTIME_DIR").map(Path::new).filter(|d| d.is_absolute() && d.is_dir()) {
        return Ok(dir.join("coda-host-dev.json"));
    }
    let temp = env.cwd.join(set("TMPDIR").map_or("/tmp", String::as_str));
    Ok(temp.join(format!("coda-host-dev-{}.json", files::effective_user()?)))
}

impl Note {
    /// Reads the note, `None` when there is none or it can't be understood.
    ///
    /// # Errors
    /// When the file isn't ours, or can't be read.
    pub fn read(path: &Path) -> Result<Option<Note>, FileError> {
        let content = files::read(path, SIZE_LIMIT)?;
        Ok(content.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        // A struct of texts and a number always has a JSON form.
        let text = serde_json::json!(self).to_string() + "\n";
        files::write(path, text.as_bytes())
    }

    /// Removes the note if it is still this one.
    ///
    /// # Errors
    /// When it can't be read or removed.
    pub fn remove(&self, path: &Path) -> Result<(), FileError> {
        if Note::read(path)?.as_ref() == Some(self) {
            files::remove(path)?;
        }
        Ok(())
    }

    /// Whether its process lives; its id may have gone to another one since.
    pub fn process_lives(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_note_is_found_where_it_was_left_and_only_its_own_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().display().to_string();
        let env = |name: &str, value: &str| ProcessEnv {
            environment: HashMap::from([(name.to_string(), value.to_string())]),
            cwd: PathBuf::from("/"),
        };
        let path = path(&env("XDG_RUNTIME_DIR", &text)).unwrap();
        assert_eq!(path, dir.path().join("coda-host-dev.json"));
        let temp = super::path(&env("TMPDIR", &text)).unwrap();
        assert!(temp.starts_with(dir.path()) && temp != path, "{}", temp.display());
        let gone = super::path(&env("XDG_RUNTIME_DIR", "/no/such/dir")).unwrap();
        assert!(gone.starts_with("/tmp"), "{}", gone.display());

        assert_eq!(Note::read(&path).unwrap(), None);
        let note = Note {
            pid: std::process::id(),
            url: "http://127.0.0.1:1".into(),
            redis_url: "redis://127.0.0.1:2".into(),
            host_url: "http://127.0.0.1:3".into(),
            qpu_id: "q".into(),
            log: "/l".into(),
        };
        note.write(&path).unwrap();
        assert_eq!(Note::read(&path).unwrap(), Some(note.clone()));
        assert!(note.process_lives());
        let other = Note { pid: 1, ..note.clone() };
        other.remove(&path).unwrap();
        assert!(path.exists(), "another dev's note is not ours to remove");
        note.remove(&path).unwrap();
        assert!(!path.exists());
        files::write(&path, b"not json").unwrap();
        assert_eq!(Note::read(&path).unwrap(), None);
    }
}
