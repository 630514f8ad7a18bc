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
    assert_eq!(opened.rows[0].row.body, "{}");
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
