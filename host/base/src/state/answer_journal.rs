//! The plugin's answers, kept from the return of a run until the result is on disk.
//!
//! A SIGKILL in that moment would make the job run again. So the slot's thread appends each answer here before it does
//! anything else with it: a plain write, which survives the process in the page cache (a power cut loses it, and then
//! the job runs again). At the next start the answer replaces a run. Old answers do no harm, because their messages are
//! never run again; the file is rotated at a size that keeps the start quick. Very large answers are left out: writing
//! them twice would cost more than a rare second run.

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
/// The file is rotated beyond this size; two of them are read at the start.
const MAX_BYTES: u64 = 256 << 10;
/// Answers with more counts than this are left out.
const MAX_COUNTS: usize = 4096;

/// An answer of the plugin.
pub type JobAnswer = Result<Outcome, Error>;

/// The answers file, open for adding.
pub struct AnswerJournal {
    file: Mutex<(File, u64)>,
    dir: PathBuf,
}

/// An answer that a former process got from the plugin and had not stored.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptAnswer {
    pub job_id: String,
    /// Which run of the job it answers, from 1 on.
    pub attempt: u32,
    /// `None` once a further run has begun: then the job has as many runs that failed as `attempt` says.
    pub answer: Option<JobAnswer>,
}

/// The kept answers, by the message that each one answers.
pub type KeptAnswers = HashMap<MessageId, KeptAnswer>;

#[derive(Serialize, Deserialize)]
struct Line {
    id: String,
    job: String,
    /// Missing for the first run.
    #[serde(default = "first_attempt", skip_serializing_if = "is_first_attempt")]
    attempt: u32,
    #[serde(flatten)]
    answer: Stored,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Stored {
    Counts {
        counts: Vec<(String, i64)>,
        ms: Option<f64>,
        shots: Option<i64>,
    },
    Failed {
        error: String,
        code: u32,
        stage: u32,
        retryable: bool,
    },
    /// The run after this one has begun.
    Superseded {
        superseded: bool,
    },
}

fn first_attempt() -> u32 {
    1
}

fn is_first_attempt(attempt: &u32) -> bool {
    *attempt == 1
}

impl AnswerJournal {
    /// Opens the file and reads what is in it.
    ///
    /// # Errors
    /// When it can't be opened or read; the message names it.
    pub fn open(dir: &Path) -> io::Result<(AnswerJournal, KeptAnswers)> {
        let mut kept = KeptAnswers::new();
        for name in [OLD_FILE, FILE] {
            let path = dir.join(name);
            match std::fs::read(&path) {
                Ok(bytes) => kept.extend(read(&path, &bytes)),
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => return Err(named(&path, &e)),
            }
        }
        let path = dir.join(FILE);
        let file = create(dir).map_err(|e| named(&path, &e))?;
        let size = file.metadata().map_err(|e| named(&path, &e))?.len();
        Ok((AnswerJournal { file: Mutex::new((file, size)), dir: dir.to_path_buf() }, kept))
    }

    /// Notes that a job whose run `attempt` failed is in the plugin again: that answer is not its last any more. For the
    /// slot's thread, before the run.
    pub fn supersede(&self, id: MessageId, job: &str, attempt: u32) {
        self.write(id, job, attempt, Stored::Superseded { superseded: true });
    }

    /// Adds the answer to run `attempt` of a job. For the slot's thread, first thing after the run.
    pub fn keep(&self, id: MessageId, job: &str, attempt: u32, answer: &JobAnswer) {
        let stored = match answer {
            Ok(o) if o.counts.len() > MAX_COUNTS => return,
            // NaN and infinity have no JSON; such an answer fails its job anyway.
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
        self.write(id, job, attempt, stored);
    }

    fn write(&self, id: MessageId, job: &str, attempt: u32, answer: Stored) {
        let line = Line { id: id.to_string(), job: job.to_string(), attempt, answer };
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

/// An error with the file that it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// The answers of a file. Damage costs the job of that line another run, which is logged.
fn read(path: &Path, bytes: &[u8]) -> Vec<(MessageId, KeptAnswer)> {
    let answers: Vec<_> = parse(bytes).collect();
    // A line without its end is what a crash leaves, and no damage.
    let complete = bytes.iter().filter(|b| **b == b'\n').count();
    let damaged = complete.saturating_sub(answers.len());
    if damaged > 0 {
        let path = path.display();
        tracing::warn!(%path, damaged, "kept answers can't be read; if their jobs had not ended they run again");
    }
    answers
}

/// The complete lines; the last one may be torn.
pub fn parse(bytes: &[u8]) -> impl Iterator<Item = (MessageId, KeptAnswer)> + '_ {
    bytes.split(|b| *b == b'\n').filter_map(|line| {
        let line: Line = serde_json::from_slice(line).ok()?;
        let answer = match line.answer {
            Stored::Counts { counts, ms, shots } => {
                Some(Ok(Outcome { counts, execution_time_ms: ms, shots_completed: shots }))
            }
            Stored::Failed { error, code, stage, retryable } => Some(Err(Error {
                code: ErrorCode::from_code(code),
                stage: Stage::from_code(stage),
                retryable,
                text: error,
            })),
            Stored::Superseded { .. } => None,
        };
        Some((line.id.parse().ok()?, KeptAnswer { job_id: line.job, attempt: line.attempt, answer }))
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
        let good: JobAnswer = Ok(Outcome::from_counts([("01".to_string(), 7)]).with_time_ms(1.5));
        let bad: JobAnswer = Err(Error::new(ErrorCode::Hardware, "cold").at(Stage::Run).retryable());
        {
            let (answers, kept) = AnswerJournal::open(dir.path()).unwrap();
            assert!(kept.is_empty());
            answers.keep(id(1), "J1", 1, &good);
            answers.keep(id(2), "J2", 2, &bad);
            answers.keep(
                id(3),
                "J3",
                1,
                &Ok(Outcome { execution_time_ms: Some(f64::NAN), ..Outcome::default() }),
            );
        }
        let path = dir.path().join(FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend_from_slice(br#"{"id":"4-0","job":"J4","cou"#);
        std::fs::write(&path, bytes).unwrap();
        let (_, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert_eq!(kept.len(), 2);
        assert_eq!(kept[&id(1)], KeptAnswer { job_id: "J1".into(), attempt: 1, answer: Some(good) });
        assert_eq!(kept[&id(2)], KeptAnswer { job_id: "J2".into(), attempt: 2, answer: Some(bad) });
    }

    #[test]
    fn an_answer_is_superseded_by_the_next_run_and_lines_of_a_former_version_are_first_runs() {
        let dir = tempfile::tempdir().unwrap();
        let old = r#"{"id":"1-0","job":"J1","error":"cold","code":4,"stage":2,"retryable":true}"#;
        std::fs::write(dir.path().join(FILE), format!("{old}\n")).unwrap();
        let (answers, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert!(kept[&id(1)].attempt == 1 && kept[&id(1)].answer.is_some(), "{kept:?}");
        answers.supersede(id(1), "J1", 1);
        let (_, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert_eq!(kept[&id(1)], KeptAnswer { job_id: "J1".into(), attempt: 1, answer: None });
    }

    #[test]
    fn the_file_stays_small_and_the_last_answers_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let (answers, _) = AnswerJournal::open(dir.path()).unwrap();
        let answer: JobAnswer = Ok(Outcome::from_counts([("0".repeat(50), 7)]));
        for n in 0..10_000 {
            answers.keep(id(n), "J", 1, &answer);
        }
        for name in [FILE, OLD_FILE] {
            assert!(std::fs::metadata(dir.path().join(name)).unwrap().len() < MAX_BYTES + 1000);
        }
        let (_, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert!(kept.contains_key(&id(9_999)) && kept.contains_key(&id(9_000)) && !kept.contains_key(&id(0)));
    }

    #[test]
    fn a_damaged_line_costs_its_own_answer_alone() {
        let dir = tempfile::tempdir().unwrap();
        let answer: JobAnswer = Ok(Outcome::from_counts([("0".to_string(), 1)]));
        {
            let (answers, _) = AnswerJournal::open(dir.path()).unwrap();
            (1..=3).for_each(|n| answers.keep(id(n), "J", 1, &answer));
        }
        let path = dir.path().join(FILE);
        let text = std::fs::read_to_string(&path).unwrap().replace("\"2-0\"", "\"2-");
        std::fs::write(&path, text).unwrap();
        let (_, kept) = AnswerJournal::open(dir.path()).unwrap();
        assert!(kept.contains_key(&id(1)) && !kept.contains_key(&id(2)) && kept.contains_key(&id(3)));
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        let error = AnswerJournal::open(dir.path()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains(&*dir.path().join(FILE).to_string_lossy()), "{error}");
    }

    #[test]
    fn an_answer_with_very_many_counts_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let counts = (0..=MAX_COUNTS).map(|n| (format!("{n:013b}"), 1));
        {
            let (answers, _) = AnswerJournal::open(dir.path()).unwrap();
            answers.keep(id(1), "J", 1, &Ok(Outcome::from_counts(counts)));
        }
        assert!(AnswerJournal::open(dir.path()).unwrap().1.is_empty());
    }
}
