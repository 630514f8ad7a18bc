//! Keeps the log of a daemon small: what is beyond the limit moves to `<log>.1`.
//!
//! The log is copied and truncated rather than renamed, since the process writes to it through open descriptors that
//! the host can't replace (those of a plugin among them). Every writer appends.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Suffix of the older piece's name.
pub const OLD_SUFFIX: &str = ".1";

/// Variable that gives a daemon the path of its log. A host in the foreground has none: its output belongs to its
/// supervisor.
pub const LOG_VARIABLE: &str = "CODA_DAEMON_LOG";

/// Rotates the log whenever it exceeds the limit, for ever.
pub async fn keep_small(log: PathBuf, max_bytes: u64, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let path = log.clone();
        let rotated = tokio::task::spawn_blocking(move || rotate(&path, max_bytes)).await;
        if let Ok(Err(error)) = rotated {
            tracing::warn!(log = %log.display(), %error, "the log could not be rotated");
        }
    }
}

fn rotate(log: &Path, max_bytes: u64) -> io::Result<bool> {
    if std::fs::symlink_metadata(log)?.len() <= max_bytes {
        return Ok(false);
    }
    let mut old = log.as_os_str().to_owned();
    old.push(OLD_SUFFIX);
    // Any user may write in a directory such as /tmp: a file of this name is replaced, never written through.
    match std::fs::remove_file(&old) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut from = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(log)?;
    let mut to = File::options().write(true).create_new(true).mode(0o600).open(&old)?;
    // Its end alone, if more was written since the last look: both pieces together stay within twice the limit.
    let beyond = from.metadata()?.len().saturating_sub(max_bytes);
    if beyond > 0 {
        writeln!(to, "({beyond} bytes were left out here)")?;
        from.seek(SeekFrom::Start(beyond))?;
    }
    io::copy(&mut (&from).take(max_bytes), &mut to)?;
    from.set_len(0)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_beyond_the_limit_is_emptied_and_its_content_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        std::fs::write(&log, "0123456789").unwrap();
        assert!(!rotate(&log, 10).unwrap());
        assert!(rotate(&log, 9).unwrap());
        assert_eq!(std::fs::read(&log).unwrap(), b"");
        let kept = std::fs::read(dir.path().join("x.log.1")).unwrap();
        assert_eq!(kept, b"(1 bytes were left out here)\n123456789", "its end, up to the limit");
        assert!(rotate(&dir.path().join("missing"), 1).is_err());
    }

    #[test]
    fn the_older_piece_is_private_and_never_written_through_a_link() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (log, old) = (dir.path().join("x.log"), dir.path().join("x.log.1"));
        let victim = dir.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        std::fs::write(&log, "0123456789").unwrap();
        symlink(&victim, &old).unwrap();
        assert!(rotate(&log, 1).unwrap());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::symlink_metadata(&old).unwrap().permissions().mode() & 0o7777, 0o600);
        std::fs::remove_file(&log).unwrap();
        symlink(&victim, &log).unwrap();
        assert!(rotate(&log, 1).is_err(), "the log itself may not be a link either");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
}
