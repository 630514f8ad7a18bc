//! The queue of jobs in a SQLite file, which one coordinator uses at a time: its lease is a file lock.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _, params};

use crate::reservation::journal::JobRefusal;
use crate::reservation::lease::{LeaseAnswer, LeaseClaimant};
use crate::reservation::log::error::{AppendError, LogError, LogFailure};
use crate::reservation::log::now_micros;
use crate::reservation::log::queue::{AssignedJob, JobSelection, TakenJob};
use crate::reservation::log::request::{AppendDecision, QueueRule};
use crate::reservation::stream::StreamId;

use super::stream_named;

/// The second version of the schema: jobs have their position in the queue and an owner.
pub(super) const UPGRADE: &str = r#"
    ALTER TABLE open ADD COLUMN position INTEGER;
    ALTER TABLE open ADD COLUMN owner TEXT;
    ALTER TABLE open ADD COLUMN is_cancelled INTEGER NOT NULL DEFAULT 0;
    UPDATE open SET
        position = (SELECT position FROM events WHERE stream = open.stream AND seq = 1),
        is_cancelled = EXISTS (
            SELECT 1 FROM events WHERE stream = open.stream AND body LIKE '{"kind":"cancelled",%')
    WHERE stream >= 'job/' AND stream < 'job0';
    CREATE INDEX open_jobs ON open (position) WHERE position IS NOT NULL;
"#;

/// The lease: a lock on a file beside the log, which ends with the process.
pub(super) struct FileLease {
    /// Unlocked when it is closed.
    _file: File,
    token: String,
}

/// Takes the lock for a claimant.
pub(super) fn acquire(
    log: &Path,
    lease: &mut Option<FileLease>,
    claimant: &LeaseClaimant,
) -> Result<LeaseAnswer, LogError> {
    let token = claimant.token.clone();
    if let Some(lease) = lease {
        lease.token = token;
        return Ok(LeaseAnswer::Granted);
    }
    let path = PathBuf::from(format!("{}.lock", log.display()));
    let failed = |e: std::io::Error| {
        LogError::Write(LogFailure::Other(format!("{} can't be locked: {e}", path.display())))
    };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {
            *lease = Some(FileLease { _file: file, token });
            Ok(LeaseAnswer::Granted)
        }
        Err(TryLockError::WouldBlock) => Err(LogError::InUse { location: log.display().to_string() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// Whether the lock is held under this token.
pub(super) fn holds(lease: Option<&FileLease>, token: &str) -> bool {
    lease.is_some_and(|lease| lease.token == token)
}

/// What the queue says about an append; checked before it, in the same transaction.
pub(super) fn check(
    conn: &Connection,
    stream: &str,
    rule: &QueueRule,
) -> rusqlite::Result<Result<(), AppendError>> {
    match rule {
        QueueRule::Owned { token, kind } => {
            let owner: Option<Option<String>> = conn
                .prepare_cached("SELECT owner FROM open WHERE stream = ?1")?
                .query_row([stream], |r| r.get(0))
                .optional()?;
            let is_own = owner.flatten().is_some_and(|owner| owner == *token);
            Ok(if is_own { Ok(()) } else { Err(JobRefusal::NotOwner(kind).into()) })
        }
        QueueRule::Enter { owner: None, most_waiting } => {
            let waiting = waiting(conn)?;
            Ok(if waiting < *most_waiting { Ok(()) } else { Err(AppendError::QueueFull(waiting)) })
        }
        QueueRule::Enter { owner: Some(_), .. } | QueueRule::Open { .. } | QueueRule::None => Ok(Ok(())),
    }
}

/// Brings the table of open streams up to date with an append, whose first row is at `position`.
pub(super) fn update(
    conn: &Connection,
    stream: &str,
    rule: &QueueRule,
    decision: &AppendDecision,
    position: i64,
) -> rusqlite::Result<()> {
    let Some(until) = decision.open_until else {
        conn.prepare_cached("DELETE FROM open WHERE stream = ?1")?.execute([stream])?;
        return Ok(());
    };
    match rule {
        QueueRule::None => {
            conn.prepare_cached("INSERT OR REPLACE INTO open (stream, until) VALUES (?1, ?2)")?
                .execute(params![stream, until])?;
        }
        QueueRule::Enter { owner, .. } => {
            conn.prepare_cached("INSERT INTO open (stream, until, position, owner) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![stream, until, position, owner])?;
        }
        QueueRule::Open { cancels: true } => {
            conn.prepare_cached("UPDATE open SET is_cancelled = 1 WHERE stream = ?1")?.execute([stream])?;
        }
        QueueRule::Open { cancels: false } | QueueRule::Owned { .. } => {}
    }
    Ok(())
}

pub(super) fn take(conn: &Connection, token: &str, which: &JobSelection) -> rusqlite::Result<Vec<TakenJob>> {
    let (name, most) = match which {
        // A file has one coordinator.
        JobSelection::First(most) | JobSelection::FirstIfAlone(most) => {
            (None, i64::try_from(*most).unwrap_or(i64::MAX))
        }
        JobSelection::Only(job_id) => (Some(StreamId::job(job_id.as_str()).to_string()), 1),
    };
    let mut query = conn.prepare_cached(
        "UPDATE open SET owner = ?1 WHERE stream IN (
             SELECT stream FROM open WHERE position IS NOT NULL AND owner IS NULL AND (?2 IS NULL OR stream = ?2)
             ORDER BY position LIMIT ?3)
         RETURNING stream, position",
    )?;
    let at = now_micros();
    let taken = query.query_map(params![token, name, most], |r| {
        let job_id = stream_named(&r.get::<_, String>(0)?)?.id;
        Ok(TakenJob { job_id, position: r.get(1)?, at })
    })?;
    taken.collect()
}

/// Frees the jobs of every owner but the one that has the lock.
pub(super) fn free_abandoned(conn: &Connection, lease: Option<&FileLease>) -> rusqlite::Result<usize> {
    let Some(lease) = lease else { return Ok(0) };
    conn.prepare_cached("UPDATE open SET owner = NULL WHERE owner <> ?1")?.execute([&lease.token])
}

pub(super) fn give_back(conn: &Connection, token: &str, job_ids: &[String]) -> rusqlite::Result<()> {
    let mut free = conn.prepare_cached("UPDATE open SET owner = NULL WHERE stream = ?1 AND owner = ?2")?;
    for job_id in job_ids {
        free.execute(params![StreamId::job(job_id.as_str()).to_string(), token])?;
    }
    Ok(())
}

pub(super) fn assigned(conn: &Connection, token: &str) -> rusqlite::Result<Vec<AssignedJob>> {
    let mut query = conn.prepare_cached(
        "SELECT stream, is_cancelled FROM open WHERE position IS NOT NULL AND owner = ?1 ORDER BY position",
    )?;
    let assigned = query.query_map([token], |r| {
        let job_id = stream_named(&r.get::<_, String>(0)?)?.id;
        Ok(AssignedJob { job_id, is_cancelled: r.get(1)? })
    })?;
    assigned.collect()
}

pub(super) fn waiting(conn: &Connection) -> rusqlite::Result<usize> {
    conn.prepare_cached("SELECT count(*) FROM open WHERE position IS NOT NULL AND owner IS NULL")?
        .query_row([], |r| r.get::<_, i64>(0))
        .map(|waiting| usize::try_from(waiting).unwrap_or(0))
}
