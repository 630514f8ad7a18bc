//! The database on real files.

use bytes::Bytes;

use super::*;

fn open(dir: &tempfile::TempDir, qpu: &str) -> Result<(Store, StoreContents), StoreError> {
    Database::open(dir.path())?.start(qpu)
}

fn row(n: u64) -> ResultRow {
    ResultRow {
        message_id: MessageId { ms: n, seq: 0 },
        job_id: format!("job-{n}").into(),
        callback_url: "http://127.0.0.1/cb".into(),
        status: Status::Completed,
        error: None,
        finished_at: "2026-01-01T00:00:00+00:00".into(),
        replaces: None,
        facts: JobFacts::default(),
        body: Bytes::from_static(b"{}"),
    }
}

fn id(n: u64) -> MessageId {
    row(n).message_id
}

#[tokio::test]
async fn results_survive_and_end_in_history() {
    let dir = tempfile::tempdir().unwrap();
    let (store, opened) = open(&dir, "q1").unwrap();
    assert!(opened.rows.is_empty());
    for n in 1..=4 {
        store.insert(row(n)).await.unwrap();
    }
    store.mark_announced(id(2)).await.unwrap();
    store.record_delivered(id(3)).await.unwrap();
    store.record_refused(id(4), "HTTP 404".into()).await.unwrap();
    store.record_attempt(id(2), 3, "refused".into());
    store.close();
    let (store, opened) = open(&dir, "q1").unwrap();
    let phases: Vec<_> = opened.rows.iter().map(|r| (r.row.message_id.ms, r.phase, r.attempts)).collect();
    assert_eq!(phases, [(1, Phase::Stored, 0), (2, Phase::Announced, 3), (4, Phase::Refused, 0)]);
    assert_eq!(
        (&opened.rows[0].row.body[..], opened.rows[0].body_bytes),
        (&b""[..], 2),
        "bodies stay on disk"
    );
    assert_eq!(store.load_result(id(1)).await.unwrap().unwrap().body, "{}");
    let known = store.history_of(vec![id(1), id(3), id(4), id(9)]).await.unwrap();
    let known: Vec<_> = known.iter().map(|k| k.as_ref().map(|p| p.job_id.to_string())).collect();
    assert_eq!(known, [None, Some("job-3".into()), Some("job-4".into()), None]);
    store.discard(id(1)).await.unwrap();
    assert!(store.load_result(id(1)).await.unwrap().is_none());
    assert_eq!(&*store.load_result(id(2)).await.unwrap().unwrap().job_id, "job-2");
    store.close();
    let (_, other) = open(&dir, "q2").unwrap();
    assert_eq!((other.rows.len(), other.foreign), (0, 2));
}

#[tokio::test]
async fn writes_that_come_together_share_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    let writes: Vec<_> = (1..=500)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { store.insert(row(n)).await })
        })
        .collect();
    for w in writes {
        w.await.unwrap().unwrap();
    }
    store.close();
    assert_eq!(open(&dir, "q").unwrap().1.rows.len(), 500);
}

#[tokio::test]
async fn deaths_are_counted_until_the_job_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    store.record_death(id(1)).await.unwrap();
    store.record_death(id(1)).await.unwrap();
    store.record_death(id(2)).await.unwrap();
    store.clear_deaths(id(2));
    store.close();
    assert_eq!(open(&dir, "q").unwrap().1.deaths, [(id(1), 2)]);
}

#[test]
fn files_of_a_newer_version_and_damaged_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir, "q").unwrap().0.close();
    let path = dir.path().join(FILE);
    let conn = Connection::open(&path).unwrap();
    conn.pragma_update(None, "user_version", 99).unwrap();
    drop(conn);
    assert!(matches!(open(&dir, "q"), Err(StoreError::Newer { found: 99, .. })));
    std::fs::write(&path, "not a database, but long enough to be looked at as one".repeat(50)).unwrap();
    // Gone already when the last connection was closed in order.
    std::fs::remove_file(path.with_extension("db-wal")).ok();
    assert!(matches!(open(&dir, "q"), Err(StoreError::Open { .. })));
}

/// Defect C of the review: a read that failed was told as a write, with the hint to free space.
#[tokio::test]
async fn a_read_that_fails_is_told_as_a_read() {
    use crate::error::Explain as _;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    store.insert(row(1)).await.unwrap();
    store.record_delivered(id(1)).await.unwrap();
    let other = Connection::open(dir.path().join(FILE)).unwrap();
    other.execute_batch("DROP TABLE results; DROP TABLE history;").unwrap();
    for error in [
        store.load_result(id(1)).await.map(|_| ()).unwrap_err(),
        store.history_of(vec![id(1)]).await.map(|_| ()).unwrap_err(),
    ] {
        assert!(matches!(error, StoreError::Read(_)), "{error:?}");
        assert_eq!(error.code(), "store-read");
        assert!(error.to_string().contains("could not be read"), "{error}");
        assert!(!error.hint().unwrap().contains("free space"), "{:?}", error.hint());
    }
    let error = store.insert(row(2)).await.unwrap_err();
    assert!(
        matches!(error, StoreError::Write(_)) && error.hint().unwrap().contains("free space"),
        "{error:?}"
    );
    let database = Database::open(dir.path()).unwrap();
    assert!(matches!(database.list(), Err(StoreError::Read(_))));
    store.close();
}

#[tokio::test]
async fn a_write_that_fails_fails_alone_in_its_group() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    let other = Connection::open(dir.path().join(FILE)).unwrap();
    let refuse = "CREATE TRIGGER odd BEFORE INSERT ON results WHEN NEW.job_id = 'job-2'
                  BEGIN SELECT RAISE(FAIL, 'refused'); END";
    other.execute_batch(refuse).unwrap();
    let (one, two, three) = tokio::join!(store.insert(row(1)), store.insert(row(2)), store.insert(row(3)));
    assert!(one.is_ok() && two.is_err() && three.is_ok(), "{one:?} {two:?} {three:?}");
    store.close();
    assert_eq!(open(&dir, "q").unwrap().1.rows.len(), 2);
}

#[tokio::test]
async fn a_full_disk_is_told_by_its_cause_and_passes() {
    use crate::state::sqlite_actor::SqliteCause;
    let dir = tempfile::tempdir().unwrap();
    let database = Database::open(dir.path()).unwrap();
    let pages: i64 = database.conn.pragma_query_value(None, "page_count", |r| r.get(0)).unwrap();
    database.conn.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(())).unwrap();
    let (store, _) = database.start("q").unwrap();
    let large = ResultRow { body: vec![b'x'; 100_000].into(), ..row(1) };
    let error = store.insert(large).await.unwrap_err();
    let StoreError::Write(failure) = &error else { panic!("{error:?}") };
    assert_eq!(failure.cause, SqliteCause::DiskFull);
    store.close();
}

#[tokio::test]
async fn a_database_that_was_removed_takes_no_writes() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q1").unwrap();
    store.insert(row(1)).await.unwrap();
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    let error = store.insert(row(2)).await.unwrap_err();
    assert!(matches!(error, StoreError::Removed { .. }), "{error}");
    assert!(store.failure().borrow().as_ref().is_some_and(|said| said.contains("was removed")));
    // Another file in its place, such as a backup, is not the one that is open.
    std::fs::write(dir.path().join(FILE), "").unwrap();
    assert!(store.insert(row(3)).await.is_err());
}

/// As a FLUSHALL makes it possible.
#[tokio::test]
async fn what_is_kept_outlives_another_message_with_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q1").unwrap();
    for job in ["A", "B", "C"] {
        store.insert(ResultRow { job_id: job.into(), ..row(5) }).await.unwrap();
        store.record_refused(id(5), format!("HTTP 400 for {job}")).await.unwrap();
        let letter = DeadLetter { message_id: id(6), reason: "no job".into(), fields: job.into() };
        store.store_dead_letter(letter.clone()).await.unwrap();
        store.store_dead_letter(letter).await.unwrap();
    }
    store.close();
    let kept = Database::open(dir.path()).unwrap().list().unwrap();
    let of = |kind| kept.iter().filter(move |k| k.kind == kind);
    let mut refused: Vec<_> = of(KeptKind::Refused).map(|k| (&*k.job_id, &*k.why)).collect();
    refused.sort_unstable();
    assert_eq!(refused, [("A", "HTTP 400 for A"), ("B", "HTTP 400 for B"), ("C", "HTTP 400 for C")]);
    assert_eq!(of(KeptKind::DeadLetter).count(), 3, "the same one twice is one");
}

/// Whoever wrote: here only writes that no one waits for. They are tried again, so that the end is noticed too.
#[tokio::test]
async fn a_failing_database_is_known_until_a_write_succeeds() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q1").unwrap();
    store.insert(row(1)).await.unwrap();
    let mut failure = store.failure();
    assert_eq!(*failure.borrow(), None);
    let other = Connection::open(dir.path().join(FILE)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    store.record_attempt(id(1), 3, "refused".into());
    let said = failure.wait_for(Option::is_some).await.unwrap().clone();
    assert!(said.as_ref().is_some_and(|said| said.contains("locked")), "{said:?}");
    other.execute_batch("ROLLBACK").unwrap();
    failure.wait_for(Option::is_none).await.unwrap();
    store.close();
    let (_, opened) = open(&dir, "q1").unwrap();
    assert_eq!(opened.rows[0].attempts, 3, "the write was not lost");
}

#[tokio::test]
async fn after_its_end_the_store_says_that_it_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    store.close();
    assert!(matches!(store.insert(row(1)).await, Err(StoreError::Stopped)));
    assert!(matches!(store.load_result(id(1)).await, Err(StoreError::Stopped)));
    // Both are lost, as a crash would lose them.
    store.record_attempt(id(1), 1, "late".into());
    store.clear_deaths(id(1));
}

#[tokio::test]
async fn what_is_kept_is_listed_by_kind_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    store.insert(row(1)).await.unwrap();
    store.insert(row(2)).await.unwrap();
    store.record_refused(id(2), "HTTP 404".into()).await.unwrap();
    let letter = DeadLetter { message_id: id(3), reason: "no job id".into(), fields: "{}".into() };
    store.store_dead_letter(letter).await.unwrap();
    let overview = store.kept_overview(1).await.unwrap();
    let numbers = (overview.undelivered, overview.refused, overview.dead_letters, overview.first.len());
    assert_eq!(numbers, (0, 1, 1, 1), "what was not tried yet is not stuck");
    assert_eq!(overview.first[0].kind, KeptKind::Refused);
    store.close();
    let mut database = Database::open(dir.path()).unwrap();
    let kept = database.list().unwrap();
    let kinds: Vec<_> = kept.iter().map(|k| (&*k.message_id, k.kind, &*k.why)).collect();
    let expected = [
        ("1-0", KeptKind::Undelivered, ""),
        ("2-0", KeptKind::Refused, "HTTP 404"),
        ("3-0", KeptKind::DeadLetter, "no job id"),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(&*database.result(&kept[1]).unwrap().unwrap().job_id, "job-2");
    assert!(database.result(&kept[2]).unwrap().is_none(), "a dead letter is not a result");
    kept.iter().for_each(|k| database.end(k, Delivery::Dropped).unwrap());
    assert!(database.list().unwrap().is_empty());
    // However a result ended, its job does not run again when Redis does not know of the end.
    let (store, _) = open(&dir, "q").unwrap();
    let past = store.history_of(vec![id(1), id(2), id(3)]).await.unwrap();
    assert_eq!(past.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, false]);
}

#[tokio::test]
async fn history_is_exact_for_messages_of_one_millisecond() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    let of_one_ms = |seq| ResultRow { message_id: MessageId { ms: 5, seq }, ..row(5) };
    for seq in [2, 10] {
        store.insert(of_one_ms(seq)).await.unwrap();
        store.record_delivered(MessageId { ms: 5, seq }).await.unwrap();
    }
    store.close();
    let (store, _) = open(&dir, "q").unwrap();
    let ids = [2, 3, 10, 11].map(|seq| MessageId { ms: 5, seq });
    let found: Vec<bool> =
        store.history_of(ids.to_vec()).await.unwrap().iter().map(Option::is_some).collect();
    assert_eq!(found, [true, false, true, false]);
    store.close();
}

#[tokio::test]
async fn a_damaged_row_is_an_error_where_it_is_asked_for_and_keeps_nothing_else_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(&dir, "q").unwrap();
    for n in 1..=4 {
        store.insert(row(n)).await.unwrap();
    }
    store.record_delivered(id(4)).await.unwrap();
    store.record_death(id(2)).await.unwrap();
    store.close();
    let damage = "UPDATE results SET status = 'complete' WHERE message_id = '1-0';
                  UPDATE results SET phase = '' WHERE message_id = '2-0';
                  UPDATE history SET status = '?';
                  INSERT INTO deaths (message_id, count) VALUES ('x', 1);";
    Connection::open(dir.path().join(FILE)).unwrap().execute_batch(damage).unwrap();
    let (store, contents) = open(&dir, "q").unwrap();
    let ids: Vec<u64> = contents.rows.iter().map(|r| r.row.message_id.ms).collect();
    assert_eq!(ids, [3], "the sound one is delivered");
    assert_eq!(contents.deaths, [(id(2), 1)]);
    let error = store.load_result(id(1)).await.unwrap_err();
    assert!(matches!(&error, StoreError::Read(_)) && error.to_string().contains("complete"), "{error}");
    assert!(matches!(store.history_of(vec![id(4)]).await, Err(StoreError::Read(_))));
    store.close();
}
