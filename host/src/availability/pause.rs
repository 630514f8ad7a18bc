//! The pause of a host in its state directory: a file that `coda-host pause` writes and `coda-host resume` removes.
//!
//! It is the only record of a pause, so that a pause lasts over restarts and can be begun while no host runs. The host
//! looks at it again and again.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;

use crate::error::Explain;
use crate::state::files::{self, FileError};

const FILE: &str = "pause.json";
/// Longest file that is read; a note is at most [`MAX_NOTE`] bytes.
const MAX_BYTES: u64 = 16 << 10;
/// Longest note, in bytes.
pub const MAX_NOTE: usize = 1000;

/// From when to when nothing is begun, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    pub note: Option<String>,
}

/// Why a pause can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum PauseError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} is not a pause", path.display())]
    Malformed { path: PathBuf, source: serde_json::Error },
}

impl Explain for PauseError {
    fn code(&self) -> &'static str {
        match self {
            PauseError::File(error) => error.code(),
            PauseError::Malformed { .. } => "pause-file",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            PauseError::File(error) => error.hint(),
            PauseError::Malformed { .. } => {
                Some("run `coda-host resume`, or `coda-host pause` to write it again".into())
            }
        }
    }

    fn exit(&self) -> u8 {
        match self {
            PauseError::File(error) => error.exit(),
            PauseError::Malformed { .. } => crate::error::exit::CONFIG,
        }
    }
}

/// The pause that is on record, whether it is over or not.
///
/// # Errors
/// The file is there and can't be read, or is not a pause.
pub fn read(state_dir: &Path) -> Result<Option<Pause>, PauseError> {
    let path = state_dir.join(FILE);
    let Some(bytes) = files::read(&path, MAX_BYTES)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| PauseError::Malformed { path, source })
}

/// Puts a pause on record, in place of a former one.
///
/// # Errors
/// The file can't be written.
pub fn write(state_dir: &Path, pause: &Pause) -> Result<(), PauseError> {
    let path = state_dir.join(FILE);
    let bytes =
        serde_json::to_vec(pause).map_err(|source| PauseError::Malformed { path: path.clone(), source })?;
    files::ensure_dir(state_dir)?;
    Ok(files::write(&path, &bytes)?)
}

/// Removes the record; says whether there was one.
///
/// # Errors
/// The file can't be removed.
pub fn remove(state_dir: &Path) -> Result<bool, PauseError> {
    Ok(files::remove(&state_dir.join(FILE))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_read_as_it_was_written_until_it_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let since = OffsetDateTime::UNIX_EPOCH;
        let pause =
            Pause { since, until: since + time::Duration::HOUR, note: Some("\"new\" cables\n".into()) };
        write(dir.path(), &pause).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(pause));
        assert!(remove(dir.path()).unwrap());
        assert!(!remove(dir.path()).unwrap());
        assert_eq!(read(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_file_that_is_not_a_pause_is_named() {
        let dir = tempfile::tempdir().unwrap();
        files::write(&dir.path().join(FILE), b"{}").unwrap();
        let error = read(dir.path()).unwrap_err();
        assert!(error.to_string().contains("pause.json"), "{error}");
    }
}
