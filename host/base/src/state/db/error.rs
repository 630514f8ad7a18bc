//! Why the state database can't be used, and what to do about it.

use std::path::PathBuf;

use super::sql::SCHEMA_VERSION;
use crate::error::{Explain, exit};
use crate::state::sqlite_actor::SqliteFailure;

#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    #[error("the state database {} can't be opened: {failure}", path.display())]
    Open { path: PathBuf, failure: SqliteFailure },
    #[error("the state database {} was written by a newer coda-host (schema {found}, known is {SCHEMA_VERSION})", path.display())]
    Newer { path: PathBuf, found: i64 },
    #[error("the state database could not be written: {0}")]
    Write(SqliteFailure),
    #[error("the state database could not be read: {0}")]
    Read(SqliteFailure),
    #[error("the state database {} was removed or replaced while the host runs", path.display())]
    Removed { path: PathBuf },
    #[error("the state database has stopped")]
    Stopped,
}

/// How hints name the database.
const NAME: &str = "the state directory";

impl Explain for StoreError {
    fn code(&self) -> &'static str {
        match self {
            StoreError::Open { .. } => "store-open",
            StoreError::Newer { .. } => "store-newer",
            StoreError::Write(_) => "store-write",
            StoreError::Read(_) => "store-read",
            StoreError::Removed { .. } => "store-removed",
            StoreError::Stopped => "store-stopped",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            StoreError::Open { path, failure } if failure.is_damaged() => format!(
                "restore {0} from a backup, or move it away with its -wal and -shm files: jobs whose results were in \
                 it run again",
                path.display()
            ),
            StoreError::Open { failure, .. } => failure.read_hint(NAME),
            StoreError::Newer { .. } => "use the newer coda-host, or another CODA_STATE_DIR".into(),
            StoreError::Write(failure) => failure.write_hint(NAME),
            StoreError::Read(failure) => failure.read_hint(NAME),
            StoreError::Removed { .. } => "restart coda-host: what is not on disk runs again".into(),
            StoreError::Stopped => "report this as a bug of coda-host".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            StoreError::Open { failure, .. } | StoreError::Write(failure) | StoreError::Read(failure) => {
                failure.exit()
            }
            StoreError::Newer { .. } => exit::CONFIG,
            StoreError::Removed { .. } | StoreError::Stopped => exit::FAILURE,
        }
    }
}
