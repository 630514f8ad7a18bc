//! The file of the maintenance calendar.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use super::calendar::{self, CalendarError, MAX_BYTES, Window};
use crate::error::{Explain, exit};

/// What changes with a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalendarStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Why the calendar can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CalendarFileError {
    #[error("the calendar {} can't be read", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("the calendar {} is larger than 1 MiB", path.display())]
    TooLarge { path: PathBuf },
    #[error("the calendar {} can't be used", path.display())]
    Content { path: PathBuf, source: CalendarError },
}

impl Explain for CalendarFileError {
    fn code(&self) -> &'static str {
        "calendar"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            CalendarFileError::Read { .. } => {
                "set CODA_MAINTENANCE_CALENDAR to a file that the host's user can read".into()
            }
            CalendarFileError::TooLarge { .. } => "export only the times of maintenance".into(),
            CalendarFileError::Content { source, .. } => return source.hint(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// What changes with the content of this file.
///
/// # Errors
/// It is not there, or this user may not look at it.
pub fn stamp(path: &Path) -> io::Result<CalendarStamp> {
    let facts = std::fs::metadata(path)?;
    Ok(CalendarStamp {
        device: facts.dev(),
        inode: facts.ino(),
        size: facts.size(),
        modified: (facts.mtime(), facts.mtime_nsec()),
    })
}

/// The windows that are not over at `now`, the next ones first.
///
/// # Errors
/// The file can't be read or is not a calendar.
pub fn read(path: &Path, now: OffsetDateTime) -> Result<Vec<Window>, CalendarFileError> {
    let failed = |source| CalendarFileError::Read { path: path.to_path_buf(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_BYTES {
        return Err(CalendarFileError::TooLarge { path: path.to_path_buf() });
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    calendar::windows(&text, local_zone(), now)
        .map_err(|source| CalendarFileError::Content { path: path.to_path_buf(), source })
}

/// This machine's time zone; UTC where none is set.
fn local_zone() -> chrono_tz::Tz {
    let name = iana_time_zone::get_timezone().unwrap_or_default();
    name.parse().unwrap_or(chrono_tz::Tz::UTC)
}
