//! The session file of a running `coda-host dev`, by which `coda-host submit` finds it.
//!
//! The file is in the user's runtime directory, or in the temporary directory under a name with the user's id, mode
//! 0600. A dev that was killed leaves a stale file behind, so a reader asks the URL before it believes the file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::load::ProcessEnv;
use crate::state::files::{self, FileError};

/// Largest session file that is read, far above the size of any.
const SIZE_LIMIT: u64 = 64 << 10;

/// The addresses of a running dev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevSession {
    pub pid: u32,
    pub url: String,
    pub redis_url: String,
    pub host_url: String,
    pub qpu_id: String,
    pub log: PathBuf,
}

/// The path of this user's session file.
///
/// # Errors
/// The id of the user can't be read.
pub fn path(env: &ProcessEnv) -> Result<PathBuf, FileError> {
    let set = |name: &str| env.environment.get(name).filter(|v| !v.is_empty());
    // After `su` the variable may name a directory that isn't there.
    if let Some(dir) = set("XDG_RUNTIME_DIR").map(Path::new).filter(|d| d.is_absolute() && d.is_dir()) {
        return Ok(dir.join("coda-host-dev.json"));
    }
    let temp = env.cwd.join(set("TMPDIR").map_or("/tmp", String::as_str));
    Ok(temp.join(format!("coda-host-dev-{}.json", files::effective_user()?)))
}

impl DevSession {
    /// Reads the session file, `None` when there is none or it is malformed.
    ///
    /// # Errors
    /// The file belongs to another user, or can't be read.
    pub fn read(path: &Path) -> Result<Option<DevSession>, FileError> {
        let content = files::read(path, SIZE_LIMIT)?;
        Ok(content.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    /// Writes the session file.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), FileError> {
        // A struct of texts and a number always has a JSON form.
        let text = serde_json::json!(self).to_string() + "\n";
        files::write(path, text.as_bytes())
    }

    /// Removes the session file if it still describes this session.
    ///
    /// # Errors
    /// The file can't be read or removed.
    pub fn remove(&self, path: &Path) -> Result<(), FileError> {
        if DevSession::read(path)?.as_ref() == Some(self) {
            files::remove(path)?;
        }
        Ok(())
    }

    /// Whether a process with this id lives. The id may belong to another process by now.
    pub fn process_lives(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_session_file_is_found_where_it_was_written_and_a_session_removes_only_its_own() {
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

        assert_eq!(DevSession::read(&path).unwrap(), None);
        let session = DevSession {
            pid: std::process::id(),
            url: "http://127.0.0.1:1".into(),
            redis_url: "redis://127.0.0.1:2".into(),
            host_url: "http://127.0.0.1:3".into(),
            qpu_id: "q".into(),
            log: "/l".into(),
        };
        session.write(&path).unwrap();
        assert_eq!(DevSession::read(&path).unwrap(), Some(session.clone()));
        assert!(session.process_lives());
        let other = DevSession { pid: 1, ..session.clone() };
        other.remove(&path).unwrap();
        assert!(path.exists(), "another dev's session file stays");
        session.remove(&path).unwrap();
        assert!(!path.exists());
        files::write(&path, b"not json").unwrap();
        assert_eq!(DevSession::read(&path).unwrap(), None);
    }
}
