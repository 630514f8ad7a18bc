//! The thread's grouping, and the opening of real files.

use std::sync::mpsc::{Receiver, Sender, channel};

use super::*;

const SCHEMA: Schema = Schema {
    sql: "CREATE TABLE t (n INTEGER);",
    upgrades: &["CREATE TABLE u (n INTEGER);", "INSERT INTO u SELECT n + 1 FROM t;"],
    cache_kib: Some(512),
};

/// Notes what it is told; a commit tells how many requests it had.
struct Recorder {
    waiting: usize,
    commits: Sender<usize>,
    keeps: bool,
}

enum Ask {
    Now,
    Later,
    Read(Sender<()>),
    /// Blocks the thread until the other end is dropped.
    Block(Receiver<()>),
}

impl SqliteWorker for Recorder {
    type Request = Ask;

    fn take(&mut self, request: Ask) -> TakeOutcome {
        match request {
            Ask::Now => {
                self.waiting += 1;
                TakeOutcome::Urgent
            }
            Ask::Later => {
                self.waiting += 1;
                TakeOutcome::Deferred
            }
            Ask::Read(answer) => {
                answer.send(()).unwrap();
                TakeOutcome::Answered
            }
            Ask::Block(until) => {
                until.recv().unwrap_err();
                TakeOutcome::Answered
            }
        }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn commit(&mut self) {
        self.commits.send(self.waiting).unwrap();
        self.waiting = usize::from(std::mem::take(&mut self.keeps));
    }
}

fn actor(deferred_wait: Duration, keeps: bool) -> (SqliteActor<Ask>, Receiver<usize>) {
    let (commits, seen) = channel();
    let groups = GroupCommit { most: 4, deferred_wait, gather: None };
    let actor = SqliteActor::start("test", groups, Recorder { waiting: 0, commits, keeps }).unwrap();
    (actor, seen)
}

const LONG: Duration = Duration::from_secs(3600);

/// Sends these while the thread is busy, so that they are found together.
fn together(actor: &SqliteActor<Ask>, requests: impl IntoIterator<Item = Ask>) {
    let (release, until) = channel();
    actor.send(Ask::Block(until)).unwrap();
    requests.into_iter().for_each(|r| actor.send(r).unwrap());
    drop(release);
}

#[test]
fn requests_that_arrive_together_share_a_commit_up_to_a_number() {
    let (actor, commits) = actor(LONG, false);
    together(&actor, [Ask::Now, Ask::Now, Ask::Now]);
    assert_eq!(commits.recv().unwrap(), 3);
    together(&actor, (0..7).map(|_| Ask::Now));
    let (first, second) = (commits.recv().unwrap(), commits.recv().unwrap());
    assert_eq!(first + second, 7);
    actor.close();
}

#[test]
fn a_deferred_request_goes_with_an_urgent_one_or_after_its_time() {
    let (actor, commits) = actor(LONG, false);
    together(&actor, [Ask::Later, Ask::Now]);
    assert_eq!(commits.recv().unwrap(), 2);
    actor.close();
    let (actor, commits) = self::actor(Duration::from_millis(1), false);
    actor.send(Ask::Later).unwrap();
    assert_eq!(commits.recv().unwrap(), 1);
    actor.close();
}

#[test]
fn so_many_deferred_requests_are_committed_without_waiting() {
    let (actor, commits) = actor(LONG, false);
    (0..4).for_each(|_| actor.send(Ask::Later).unwrap());
    assert_eq!(commits.recv().unwrap(), 4);
    actor.close();
}

#[test]
fn a_read_causes_no_commit_and_closing_writes_what_waits() {
    let (actor, commits) = actor(LONG, false);
    let (answer, answered) = channel();
    actor.send(Ask::Later).unwrap();
    actor.send(Ask::Read(answer)).unwrap();
    answered.recv().unwrap();
    assert!(commits.try_recv().is_err());
    actor.close();
    assert_eq!(commits.recv().unwrap(), 1);
    assert_eq!(actor.send(Ask::Now), Err(ActorStopped));
    // A second close finds nothing to do.
    actor.close();
}

#[test]
fn what_a_commit_keeps_is_committed_again() {
    let (actor, commits) = actor(Duration::from_millis(1), true);
    actor.send(Ask::Now).unwrap();
    assert_eq!([commits.recv().unwrap(), commits.recv().unwrap()], [1, 1]);
    actor.close();
}

#[test]
fn a_file_is_made_private_and_found_again() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("below").join("t.db");
    open(&path, &SCHEMA).unwrap().execute("INSERT INTO t VALUES (7)", []).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let conn = open(&path, &SCHEMA).unwrap();
    assert_eq!(conn.query_row("SELECT n FROM t", [], |r| r.get::<_, i64>(0)).unwrap(), 7);
    let mode: String = conn.pragma_query_value(None, "journal_mode", |r| r.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

#[test]
fn a_newer_file_and_one_that_is_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    const NEWER: Schema = Schema {
        upgrades: &[SCHEMA.upgrades[0], SCHEMA.upgrades[1], "CREATE TABLE v (n INTEGER);"],
        ..SCHEMA
    };
    drop(open(&path, &NEWER).unwrap());
    assert_eq!(open(&path, &SCHEMA).unwrap_err(), OpenError::Newer { found: 4 });
    let path = dir.path().join("text.db");
    std::fs::write(&path, "not a database, but long enough to be looked at as one".repeat(50)).unwrap();
    assert!(matches!(open(&path, &SCHEMA), Err(OpenError::Unusable(_))));
}

#[test]
fn a_file_of_an_earlier_version_is_upgraded_step_by_step_and_at_most_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let first = open(&path, &Schema { upgrades: &[], ..SCHEMA }).unwrap();
    first.execute("INSERT INTO t (n) VALUES (7)", []).unwrap();
    drop(first);
    let read =
        |conn: &Connection| conn.query_row("SELECT sum(n) FROM u", [], |r| r.get::<_, i64>(0)).unwrap();
    drop(open(&path, &Schema { upgrades: &["CREATE TABLE u (n INTEGER);"], ..SCHEMA }).unwrap());
    let conn = open(&path, &SCHEMA).unwrap();
    assert_eq!(read(&conn), 8);
    conn.execute("UPDATE u SET n = 0", []).unwrap();
    drop(conn);
    assert_eq!(read(&open(&path, &SCHEMA).unwrap()), 0);
    // An upgrade that fails leaves the file as it was.
    const BROKEN: Schema = Schema {
        upgrades: &[SCHEMA.upgrades[0], SCHEMA.upgrades[1], "UPDATE u SET n = 5; UPDATE none SET n = 1;"],
        ..SCHEMA
    };
    assert!(matches!(open(&path, &BROKEN), Err(OpenError::Unusable(_))));
    assert_eq!(read(&open(&path, &SCHEMA).unwrap()), 0);
}

/// Defect C of the review: every failure was "could not be written: free space".
#[test]
fn failures_are_told_apart_by_their_cause() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.db");
    let conn = open(&path, &SCHEMA).unwrap();
    conn.busy_timeout(Duration::ZERO).unwrap();
    let other = Connection::open(&path).unwrap();
    let write =
        |conn: &Connection| SqliteFailure::from(conn.execute("INSERT INTO t VALUES (1)", []).unwrap_err());

    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(write(&conn).cause, SqliteCause::Busy);
    other.execute_batch("ROLLBACK").unwrap();

    conn.pragma_update(None, "query_only", true).unwrap();
    assert_eq!(write(&conn).cause, SqliteCause::ReadOnly);
    conn.pragma_update(None, "query_only", false).unwrap();

    let pages: i64 = conn.pragma_query_value(None, "page_count", |r| r.get(0)).unwrap();
    conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    let full = loop {
        if let Err(error) = conn.execute("INSERT INTO t SELECT n FROM t UNION ALL SELECT 1", []) {
            break SqliteFailure::from(error);
        }
    };
    assert_eq!(full.cause, SqliteCause::DiskFull);
    assert!(full.write_hint("the event log").starts_with("free space"));

    // The last connection takes the write-ahead log with it.
    drop((conn, other));
    std::fs::write(&path, "not a database".repeat(500)).unwrap();
    let damaged = Connection::open(&path).unwrap().query_row("SELECT * FROM t", [], |_| Ok(()));
    assert_eq!(SqliteFailure::from(damaged.unwrap_err()).cause, SqliteCause::Damaged);
    let other = SqliteFailure::from(rusqlite::Error::InvalidQuery);
    assert_eq!(other.cause, SqliteCause::Other);
}
