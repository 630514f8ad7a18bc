//! Answers of the plugin between the return of a run and the result on disk.
//!
//! A SIGKILL in that moment would have the job run again. So the slot's thread appends each answer here before
//! anything else happens with it: a plain write, which outlives the process in the page cache (a power cut loses it,
//! and then the job runs again). At the next start the answer takes the place of a run. Old answers do no harm,
//! their messages are never run again; the file is changed for a new one at a size that keeps the start quick.
//! Very large answers are left out: writing them twice would cost more than a rare second run.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use coda_plugin_abi::{Error, ErrorCode, Outcome, Stage};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::model::MessageId;

const FILE: &str = "answers";
const OLD_FILE: &str = "answers.old";
/// The file is changed beyond this size; two of them are read at the start.
const MAX_BYTES: u64 = 256 << 10;
/// Answers with more counts than this are left out.
const MAX_COUNTS: usize = 4096;

/// An answer of the plugin.
pub type Answer = Result<Outcome, Error>;

/// The answers file, open for adding.
pub struct AnswerJournal {
    file: Mutex<(File, u64)>,
    dir: PathBuf,
}

/// An answer that a former process got from the plugin and had not stored.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptAnswer {
    pub job_id: String,
    pub answer: Answer,
}

/// The kept answers, by the message that each one answers.
pub type KeptAnswers = HashMap<MessageId, KeptAnswer>;

#[derive(Serialize, Deserialize)]
struct Line {
    id: String,
    job: String,
    #[serde(flatten)]
    answer: Stored,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Counts { counts: Vec<(String, i64)>, ms: Option<f64>, shots: Option<i64> },
    Failed { error: String, code: u32, stage: u32, retryable: bool },
}

impl AnswerJournal {
    /// Opens the file and reads what is in it.
    ///
    /// # Errors
    /// When it can't be opened or read.
    pub fn open(dir: &Path) -> io::Result<(AnswerJournal, KeptAnswers)> {
        let mut kept = KeptAnswers::new();
        for name in [OLD_FILE, FILE] {
            match std::fs::read(dir.join(name)) {
                Ok(bytes) => kept.extend(parse(&bytes)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
        let file = create(dir)?;
        let size = file.metadata()?.len();
        Ok((AnswerJournal { file: Mutex::new((file, size)), dir: dir.to_path_buf() }, kept))
    }

    /// Adds an answer. For the slot's thread, first thing after the run.
    pub fn keep(&self, id: MessageId, job: &str, answer: &Answer) {
        let stored = match answer {
            Ok(o) if o.counts.len() > MAX_COUNTS => return,
            // Neither is JSON; such an answer fails its job anyway.
            Ok(o) if o.execution_time_ms.is_some_and(|ms| !ms.is_finite()) => return,
            Ok(o) => {
                Stored::Counts { counts: o.counts.clone(), ms: o.execution_time_ms, shots: o.shots_completed }
            }
            Err(e) => Stored::Failed {
                error: e.text.clone(),
                code: e.code.code(),
                stage: e.stage.code(),
                retryable: e.retryable,
            },
        };
        let line = Line { id: id.to_string(), job: job.to_string(), answer: stored };
        let written = serde_json::to_vec(&line).map_err(io::Error::from).and_then(|mut bytes| {
            bytes.push(b'\n');
            self.add(&bytes)
        });
        if let Err(error) = written {
            let dir = self.dir.display();
            tracing::warn!(%dir, %error, "an answer can't be kept; a crash now would run its job again");
        }
    }

    fn add(&self, bytes: &[u8]) -> io::Result<()> {
        let mut guard = self.file.lock();
        let (file, size) = &mut *guard;
        if *size > MAX_BYTES {
            std::fs::rename(self.dir.join(FILE), self.dir.join(OLD_FILE))?;
            (*file, *size) = (create(&self.dir)?, 0);
        }
        file.write_all(bytes)?;
        *size += bytes.len() as u64;
        Ok(())
    }
}

fn create(dir: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(dir.join(FILE))
}

/// The complete lines; the last one may be torn.
pub fn parse(bytes: &[u8]) -> impl Iterator<Item = (MessageId, KeptAnswer)> + '_ {
    bytes.split(|b| *b == b'\n').filter_map(|line| {
        let line: Line = serde_json::from_slice(line).ok()?;
        let answer = match line.answer {
            Stored::Counts { counts, ms, shots } => {
                Ok(Outcome { counts, execution_time_ms: ms, shots_completed: shots })
            }
            Stored::Failed { error, code, stage, retryable } => Err(Error {
                code: ErrorCode::from_code(code),
                stage: Stage::from_code(stage),
                retryable,
                text: error,
            }),
        };
        Some((line.id.parse().ok()?, KeptAnswer { job_id: line.job, answer }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> MessageId {
        MessageId { ms, seq: 0 }
    }

    #[test]
    fn answers_survive_and_a_torn_line_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let good: Answer = Ok(Outcome::from_counts([("01".to_string(), 7)]).with_time_ms(1.5));
        let bad: Answer = Err(Error::new(ErrorCode::Hardware, "cold").at(Stage::Run).retryable());
        {
            let (answers, kept) = AnswerJournal::open(dir.path()).unwrap();
            assert!(kept.is_empty());
            answers.keep(id(1), "J1", &good);
            answers.keep(id(2), "J2", &bad);
            answers.keep(
                id(3),
                "J3",
                &Ok(Outcome { execution_time_ms: Some(f64::NAN), ..Outcome::default() }),
            );
        }
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(br#"{"id":"4-0","job":"J4","cou"#);
        std::fs::write(&path, bytes).unwrap();
        let (_, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[&id(1)], KeptAnswer { job_id: "J1".into(), answer: good });
        assert_eq!(kept[&id(2)], KeptAnswer { job_id: "J2".into(), answer: bad });
    }

    #[test]
    fn the_file_stays_small_and_the_last_answers_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let (answers, _) = AnswerJournal::open(dir.path()).unwrap();
        let answer: Answer = Ok(Outcome::from_counts([("0".repeat(50), 7)]));
        for n in 0..10_000 {
            answers.keep(id(n), "J", &answer);
        }
        for name in [FILE, OLD_FILE] {
            assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() < MAX_BYTES + 1000);
        }
        let (_, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert!(kept.contains_key(&id(9_999)) && kept.contains_key(&id(9_000)) && !kept.contains_key(&id(0)));
    }
}
