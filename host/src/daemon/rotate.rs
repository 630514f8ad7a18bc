//! Keeps the log of a daemon small: what is beyond the limit moves to `<log>.1`.
//!
//! The log is copied and cut rather than renamed, since the process writes to it through open descriptors that are
//! not ours to replace (a plugin's output among them). Every writer appends.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Looks at the log's size from time to time, for ever.
pub async fn keep_small(log: PathBuf, max_bytes: u64, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let path = log.clone();
        let cut = tokio::task::spawn_blocking(move || cut(&path, max_bytes)).await;
        if let Ok(Err(error)) = cut {
            tracing::warn!(log = %log.display(), %error, "the log can't be kept small");
        }
    }
}

fn cut(log: &Path, max_bytes: u64) -> io::Result<bool> {
    if std::fs::symlink_metadata(log)?.len() <= max_bytes {
        return Ok(false);
    }
    let mut old = log.as_os_str().to_owned();
    old.push(".1");
    std::fs::copy(log, &old)?;
    std::fs::File::options().write(true).open(log)?.set_len(0)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_beyond_the_limit_starts_anew_and_the_old_one_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        std::fs::write(&log, "0123456789").unwrap();
        assert!(!cut(&log, 10).unwrap());
        assert!(cut(&log, 9).unwrap());
        assert_eq!(std::fs::read(&log).unwrap(), b"");
        assert_eq!(std::fs::read(dir.path().join("x.log.1")).unwrap(), b"0123456789");
        assert!(cut(&dir.path().join("missing"), 1).is_err());
    }
}
