//! Which messages each slot is running, kept in a file that survives a SIGKILL.
//!
//! Before a call the slot's record is overwritten with the message ids of its jobs; after the call it is emptied.
//! Nothing is fsynced: the page cache survives the process, and a power cut only makes the count of deaths too small.
//! An orderly stop empties the records, so three restarts by an operator do not fail a job.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::model::MessageId;

const FILE: &str = "running";
/// One slot's record: holds a batch of 10 ids of at most 41 bytes, and larger batches.
const RECORD_BYTES: usize = 4096;

/// The journal file, held open.
pub struct RunJournal {
    file: File,
    path: PathBuf,
}

impl RunJournal {
    /// Opens the file and returns what a former process left running in it.
    ///
    /// # Errors
    /// When the file can't be opened or read; the message names it.
    pub fn open(dir: &Path) -> std::io::Result<(RunJournal, Vec<MessageId>)> {
        let path = dir.join(FILE);
        let named = |e: std::io::Error| std::io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(named)?;
        if !file.metadata().map_err(named)?.is_file() {
            return Err(named(std::io::Error::other("not a regular file")));
        }
        let content = std::fs::read(&path).map_err(named)?;
        let left = content.chunks(RECORD_BYTES).flat_map(parse).collect();
        Ok((RunJournal { file, path }, left))
    }

    /// Forgets what a former process left running, once its deaths are recorded.
    ///
    /// # Errors
    /// When the file can't be written; the message names it.
    pub fn clear(&self) -> std::io::Result<()> {
        let named =
            |e: std::io::Error| std::io::Error::new(e.kind(), format!("{}: {e}", self.path.display()));
        self.file.set_len(0).map_err(named)
    }

    /// Records that `slot` is about to run these messages.
    pub fn begin(&self, slot: usize, ids: impl Iterator<Item = MessageId>) {
        let mut record = [0u8; RECORD_BYTES];
        let mut used = 0;
        for id in ids {
            let text = format!("{id}\n");
            let Some(target) = record.get_mut(used..used + text.len()) else { break };
            target.copy_from_slice(text.as_bytes());
            used += text.len();
        }
        // With the NUL that ends it.
        self.put(slot, &record[..RECORD_BYTES.min(used + 1)]);
    }

    /// Records that the slot's call has returned.
    pub fn end(&self, slot: usize) {
        self.put(slot, &[0]);
    }

    fn put(&self, slot: usize, record: &[u8]) {
        if let Err(error) = self.file.write_at(record, (slot * RECORD_BYTES) as u64) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "running jobs can't be recorded; a death of the process would not be counted");
        }
    }
}

/// The ids of one record, which ends at its first NUL.
pub fn parse(record: &[u8]) -> Vec<MessageId> {
    let text = record.split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).split_whitespace().filter_map(|w| w.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_is_found_after_a_crash_and_nothing_after_an_orderly_end() {
        let dir = tempfile::tempdir().unwrap();
        let id = |ms| MessageId { ms, seq: 0 };
        {
            let (journal, left) = RunJournal::open(dir.path()).unwrap();
            assert!(left.is_empty());
            journal.begin(0, [id(1), id(2)].into_iter());
            journal.begin(1, [id(3)].into_iter());
            journal.begin(0, [id(4)].into_iter());
        }
        let (journal, left) = RunJournal::open(dir.path()).unwrap();
        assert_eq!(left, [id(4), id(3)]);
        drop(journal);
        let (journal, left) = RunJournal::open(dir.path()).unwrap();
        assert_eq!(
            left,
            [id(4), id(3)],
            "a start that failed before the deaths were recorded forgets nothing"
        );
        journal.clear().unwrap();
        journal.begin(2, [id(5), id(6)].into_iter());
        journal.end(2);
        drop(journal);
        assert!(RunJournal::open(dir.path()).unwrap().1.is_empty());
    }

    #[test]
    fn a_batch_that_is_larger_than_a_record_is_cut_at_whole_ids() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<MessageId> = (0..1000).map(|seq| MessageId { ms: 1_700_000_000_000, seq }).collect();
        {
            let (journal, _) = RunJournal::open(dir.path()).unwrap();
            journal.begin(0, ids.iter().copied());
            journal.begin(1, [MessageId { ms: 7, seq: 0 }].into_iter());
        }
        let (_, left) = RunJournal::open(dir.path()).unwrap();
        assert!(left.len() > 100 && left.len() < 1000, "{}", left.len());
        let (last, of_first_slot) = left.split_last().unwrap();
        assert_eq!(of_first_slot, &ids[..of_first_slot.len()]);
        assert_eq!(*last, MessageId { ms: 7, seq: 0 });
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        let error = RunJournal::open(dir.path()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("/running: "), "{error}");
    }
}
