//! A look into the state directory's database, beside the host.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

/// The database, opened for reading.
pub struct StateFile(Connection);

/// A result that lies in the outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub job_id: String,
    pub phase: String,
    pub last_error: Option<String>,
}

/// A message that could not be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    pub message_id: String,
    pub reason: String,
    pub fields: String,
}

/// The write lock of the database.
pub struct StateLock {
    /// Closed, it rolls back.
    _connection: Connection,
}

impl StateFile {
    pub fn open(state_dir: &Path) -> StateFile {
        let path = state_dir.join("coda-host.db");
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY);
        let connection = connection.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout can be set");
        StateFile(connection)
    }

    /// Damages every stored result as a disk can: the row is there, its body has no bytes. Beside no host.
    pub fn empty_bodies(state_dir: &Path) {
        let connection = Connection::open(state_dir.join("coda-host.db")).expect("the database is there");
        connection.execute("UPDATE results SET body = x''", []).expect("nobody else has it open");
    }

    /// Adds undelivered results of this size, whose messages are in no stream. Beside no host.
    pub fn add_results(state_dir: &Path, qpu_id: &str, callback_url: &str, count: u64, body_bytes: usize) {
        let connection = Connection::open(state_dir.join("coda-host.db")).expect("the database is there");
        connection.execute_batch("BEGIN").expect("nobody else has it open");
        let body = vec![b' '; body_bytes];
        for n in 1..=count {
            let values =
                rusqlite::params![qpu_id, format!("{n}-0"), format!("stored-{n}"), callback_url, body];
            let insert = "INSERT INTO results (qpu_id, message_id, job_id, callback_url, status, finished_at, body,
                              phase) VALUES (?1, ?2, ?3, ?4, 'completed', '2026-01-01T00:00:00+00:00', ?5, 'announced')";
            connection.execute(insert, values).expect("the schema is known");
        }
        connection.execute_batch("COMMIT").expect("the disk has space");
    }

    /// Holds the write lock until the value is dropped, as a backup or a shell does.
    pub fn lock(state_dir: &Path) -> StateLock {
        let connection = Connection::open(state_dir.join("coda-host.db")).expect("the database is there");
        connection.busy_timeout(Duration::from_secs(10)).expect("a timeout can be set");
        connection.execute_batch("BEGIN IMMEDIATE").expect("the lock can be had");
        StateLock { _connection: connection }
    }

    fn rows<T>(&self, sql: &str, read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
        let mut statement = self.0.prepare(sql).expect("the schema is known");
        let rows = statement.query_map([], read).expect("the database can be read");
        rows.collect::<Result<_, _>>().expect("the rows can be read")
    }

    /// Results that are not delivered, or were refused.
    pub fn kept(&self) -> Vec<Kept> {
        self.rows("SELECT job_id, phase, last_error FROM results ORDER BY job_id", |r| {
            Ok(Kept { job_id: r.get(0)?, phase: r.get(1)?, last_error: r.get(2)? })
        })
    }

    pub fn dead_letters(&self) -> Vec<DeadLetter> {
        self.rows("SELECT message_id, reason, fields FROM dead_letters ORDER BY at", |r| {
            Ok(DeadLetter { message_id: r.get(0)?, reason: r.get(1)?, fields: r.get(2)? })
        })
    }

    /// How often the process died while it ran a message.
    pub fn deaths(&self) -> Vec<(String, u32)> {
        self.rows("SELECT message_id, count FROM deaths", |r| Ok((r.get(0)?, r.get(1)?)))
    }
}
