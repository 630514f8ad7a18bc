//! Why the event log can't be used, or refused to append, and what to do about it.

use crate::error::{Explain, exit};
use crate::reservation::journal::JobRefusal;
use crate::reservation::ledger::Refusal;
use crate::state::sqlite_actor::SqliteFailure;

/// How hints name the log.
const NAME: &str = "the event log";

/// What a write or a read of the log failed for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogFailure {
    /// The file or its disk.
    #[error("{0}")]
    File(SqliteFailure),
    /// The database server, or a fact that does not fit.
    #[error("{0}")]
    Other(String),
}

impl From<rusqlite::Error> for LogFailure {
    fn from(error: rusqlite::Error) -> LogFailure {
        LogFailure::File(error.into())
    }
}

impl From<String> for LogFailure {
    fn from(text: String) -> LogFailure {
        LogFailure::Other(text)
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum LogError {
    #[error("the event log {location} can't be opened: {failure}")]
    Open { location: String, failure: LogFailure },
    #[error("the event log {location} was written by a newer coda-host (schema {found})")]
    Newer { location: String, found: i64 },
    #[error("the event log {location} is damaged at event {position} ({stream}): {what}")]
    Damaged { location: String, position: i64, stream: String, what: String },
    #[error("the event log could not be written, so nothing was recorded: {0}")]
    Write(LogFailure),
    #[error("the event log could not be read: {0}")]
    Read(LogFailure),
    #[error("the event log has stopped")]
    Stopped,
    #[error("the event log did not answer in time, so what was asked of it may be recorded or not")]
    Unanswered,
    #[error("another coordinator uses the event log {location}")]
    InUse { location: String },
    #[error("another coordinator with the identity {peer_id} uses the event log {location}")]
    Leased { location: String, peer_id: String },
}

impl Explain for LogError {
    fn code(&self) -> &'static str {
        match self {
            LogError::Open { .. } => "log-open",
            LogError::Newer { .. } => "log-newer",
            LogError::Damaged { .. } => "log-damaged",
            LogError::Write(_) => "log-write",
            LogError::Read(_) => "log-read",
            LogError::Stopped => "log-stopped",
            LogError::Unanswered => "log-unanswered",
            LogError::InUse { .. } => "log-in-use",
            LogError::Leased { .. } => "log-leased",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            LogError::Open { .. } => "check the path or URL of --store, its permissions and free space".into(),
            LogError::Newer { .. } => "use the newer coda-host, or another --store".into(),
            LogError::Damaged { .. } => {
                "see `coda-host reservation verify`; restore the file from a backup, or move it away to begin \
                 a new log"
                    .into()
            }
            LogError::Write(LogFailure::File(failure)) => failure.write_hint(NAME),
            LogError::Read(LogFailure::File(failure)) => failure.read_hint(NAME),
            LogError::Write(LogFailure::Other(_)) | LogError::Read(LogFailure::Other(_)) | LogError::Unanswered => {
                "check the database server of the log, and that this host reaches it".into()
            }
            LogError::Stopped => "report this as a bug of coda-host".into(),
            LogError::InUse { .. } => {
                "stop it first, give this one another --store, or let both use one postgres:// log".into()
            }
            LogError::Leased { .. } => {
                "stop it first, or give this one its own CODA_STATE_DIR without the other's peer-identity.key".into()
            }
        })
    }

    fn exit(&self) -> u8 {
        match self {
            LogError::Open { failure: LogFailure::File(failure), .. } => failure.exit(),
            LogError::Newer { .. } => exit::CONFIG,
            _ => exit::FAILURE,
        }
    }
}

/// Why nothing was appended.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Job(#[from] JobRefusal),
    #[error("{0} jobs wait already")]
    QueueFull(usize),
    #[error(transparent)]
    Log(#[from] LogError),
}
