use std::sync::Barrier;

use super::*;
use crate::reservation::event::Transition;
use crate::reservation::job_options::JobOptions;
use crate::reservation::journal::JobRefusal;

fn request(key: Option<&str>) -> ReservationRequest {
    ReservationRequest {
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        service_id: "hadamard".into(),
        requesting_peer_id: "12D3KooWcoordinator".into(),
        ttl_seconds: 60,
        idempotency_key: key.map(String::from),
    }
}

fn accept() -> ReservationCommand {
    ReservationCommand::Accept { peer: "12D3KooWpeer".into(), held: false }
}

fn cancel() -> ReservationCommand {
    ReservationCommand::Cancel { reason: "by hand".into() }
}

fn submitted() -> JobFact {
    JobFact::Submitted {
        qasm: "OPENQASM 3;".into(),
        shots: 5,
        coordinator: "me".into(),
        options: JobOptions::default(),
    }
}

fn run<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(task)
}

#[test]
fn five_events_survive_and_a_torn_tail_does_not_spoil_what_is_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("reservations.db");
    run(async {
        let log = Log::sqlite(&path).unwrap();
        log.request("res-00000001", "me", request(None)).await.unwrap();
        log.execute("res-00000001", accept()).await.unwrap();
        log.execute("res-00000001", ReservationCommand::Commit).await.unwrap();
        log.request("res-00000002", "me", request(None)).await.unwrap();
        // What a power cut leaves: main file and write-ahead log as they are, then the last frame cut.
        let torn = dir.path().join("torn.db");
        log.execute("res-00000002", cancel()).await.unwrap();
        std::fs::copy(&path, &torn).unwrap();
        let wal = std::fs::read(dir.path().join("reservations.db-wal")).unwrap();
        std::fs::write(dir.path().join("torn.db-wal"), &wal[..wal.len() - 100]).unwrap();
        log.close().await;

        let log = Log::sqlite(&torn).unwrap();
        assert_eq!(log.verify().await.unwrap(), 4, "the event that was being written is gone, whole");
        log.request("res-00000003", "me", request(None)).await.unwrap();
        log.close().await;
        let log = Log::sqlite(&torn).unwrap();
        assert_eq!(log.verify().await.unwrap(), 5, "and what came afterwards is there");
        assert_eq!(log.state("res-00000003").await.unwrap().unwrap().transition, Transition::Requested);
        assert_eq!(log.state("res-00000002").await.unwrap().unwrap().transition, Transition::Requested);
        let open: Vec<String> =
            log.open_reservations().await.unwrap().into_iter().map(|open| open.reservation_id).collect();
        assert_eq!(open, ["res-00000002", "res-00000003"]);
    });
}

#[test]
fn a_flipped_byte_is_named_by_its_event() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("reservations.db");
    run(async {
        let log = Log::sqlite(&path).unwrap();
        log.request("res-00000001", "me", request(None)).await.unwrap();
        log.execute("res-00000001", accept()).await.unwrap();
        log.close().await;
        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(12).position(|w| w == b"12D3KooWpeer").unwrap();
        let mut damaged = bytes;
        damaged[at + 3] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let log = Log::sqlite(&path).unwrap();
        let error = log.verify().await.unwrap_err().to_string();
        assert!(error.contains("damaged at event 2 (reservation/res-00000001)"), "{error}");
        let error = log.execute("res-00000001", ReservationCommand::Commit).await.unwrap_err().to_string();
        assert!(error.contains("damaged at event 2"), "nothing is built on it: {error}");
    });
}

#[test]
fn a_key_belongs_to_its_caller() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        let first = log.request("res-00000001", "a", request(Some("key-0001"))).await.unwrap();
        let again = log.request("res-00000002", "a", request(Some("key-0001"))).await.unwrap();
        let other = log.request("res-00000003", "b", request(Some("key-0001"))).await.unwrap();
        assert!(first.created && !again.created && other.created);
        assert_eq!(again.reservation_id, "res-00000001");
        assert_eq!(other.reservation_id, "res-00000003");
        assert!(log.state("res-00000002").await.unwrap().is_none());
        let exists = log.request("res-00000001", "c", request(None)).await.map(|_| ()).unwrap_err();
        assert!(matches!(exists, AppendError::Refused(Refusal::Exists)), "{exists}");
    });
}

/// Two connections stand for two processes: each opens the file for itself.
#[test]
fn of_two_writers_one_makes_a_transition() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    let rounds = 25;
    let logs = [Log::sqlite(&path).unwrap(), Log::sqlite(&path).unwrap()];
    run(async {
        for n in 0..rounds {
            logs[0].request(&format!("res-000000{n:02}"), "me", request(None)).await.unwrap();
            logs[1].execute(&format!("res-000000{n:02}"), accept()).await.unwrap();
        }
    });
    let barrier = Barrier::new(2);
    let wins: Vec<Vec<bool>> = std::thread::scope(|scope| {
        let threads = logs.iter().zip([ReservationCommand::Commit, cancel()]).map(|(log, command)| {
            let barrier = &barrier;
            scope.spawn(move || {
                run(async {
                    let mut wins = Vec::new();
                    for n in 0..rounds {
                        barrier.wait();
                        wins.push(log.execute(&format!("res-000000{n:02}"), command.clone()).await.is_ok());
                    }
                    wins
                })
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    for (n, (a, b)) in wins[0].iter().zip(&wins[1]).enumerate() {
        assert!(a != b, "round {n}: exactly one of commit and cancel");
    }
    assert_eq!(run(logs[0].verify()).unwrap(), rounds * 3);
}

#[test]
fn a_log_that_can_not_be_written_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    run(async {
        let log = Log::sqlite(&path).unwrap();
        log.request("res-00000001", "me", request(None)).await.unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        // A full disk, as far as SQLite can tell.
        other.execute_batch("CREATE TRIGGER full BEFORE INSERT ON events BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END").unwrap();
        let error =
            log.request("res-00000002", "me", request(Some("key-0002"))).await.map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("nothing was recorded") && !log.is_writable(), "{error}");
        log.append_in_background(vec![EventBatch {
            hold: "res-hold/1".into(),
            at: 1,
            facts: vec![Fact::Requested(request(None))],
        }]);
        log.flush().await;
        other.execute_batch("DROP TRIGGER full").unwrap();
        let made = log.request("res-00000002", "me", request(Some("key-0002"))).await.unwrap();
        assert!(made.created && log.is_writable());
        log.flush().await;
        assert_eq!(log.verify().await.unwrap(), 3, "the note was kept until it could be written");
    });
}

#[test]
fn jobs_are_open_until_they_end() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        log.record_job("job-1", submitted()).await.unwrap();
        log.record_job("job-2", submitted()).await.unwrap();
        log.record_job("job-1", JobFact::Failed { error: "no peers".into() }).await.unwrap();
        assert_eq!(log.open_jobs().await.unwrap(), ["job-2"]);
        let late = log.record_job("job-1", JobFact::Failed { error: "again".into() }).await.unwrap_err();
        assert!(matches!(late, AppendError::Job(JobRefusal::Ended("failed"))), "{late}");
        assert_eq!(log.job_facts("job-1").await.unwrap().len(), 2);
    });
}

#[test]
fn a_cancelled_job_is_open_until_its_peers_are_released_and_takes_no_other_fact() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        assert_eq!(log.record_job("job-1", submitted()).await.unwrap(), 1);
        let cancel = || JobFact::Cancelled { reason: "enough".into() };
        assert_eq!(log.record_job("job-1", cancel()).await.unwrap(), 2);
        assert_eq!(log.open_jobs().await.unwrap(), ["job-1"], "a restart tells its peers");
        let late = log.record_job("job-1", cancel()).await.unwrap_err();
        assert!(matches!(late, AppendError::Job(JobRefusal::Ended("cancelled"))), "{late}");
        assert_eq!(log.record_job("job-1", JobFact::Released).await.unwrap(), 3);
        assert!(log.open_jobs().await.unwrap().is_empty());
        assert_eq!(log.verify().await.unwrap(), 3);
    });
}

#[test]
fn a_key_names_the_first_job_that_was_submitted_with_it() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let path = dir.path().join("r.db");
        let log = Log::sqlite(&path).unwrap();
        let submit = async |log: &Log, id: &str, key: Option<&str>| match log
            .submit_job(id, key.map(String::from), submitted(), None, 10)
            .await
            .unwrap()
        {
            JobSubmission::New => None,
            JobSubmission::Known(known) => Some((known.job_id, known.facts.len())),
        };
        assert!(log.job_of_key("key").await.unwrap().is_none());
        assert_eq!(submit(&log, "job-1", Some("key")).await, None);
        assert_eq!(submit(&log, "job-2", Some("key")).await, Some(("job-1".into(), 1)));
        assert_eq!(submit(&log, "job-3", None).await, None);
        assert_eq!(log.job_of_key("key").await.unwrap().map(|known| known.job_id), Some("job-1".into()));
        // Keys of reservations are others.
        assert!(log.request("res-00000001", "me", request(Some("key"))).await.unwrap().created);
        log.close().await;
        let log = Log::sqlite(&path).unwrap();
        assert_eq!(submit(&log, "job-4", Some("key")).await, Some(("job-1".into(), 1)), "after a restart");
    });
}

#[test]
fn jobs_are_listed_from_the_newest_to_the_oldest() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        for n in 1..=5 {
            log.record_job(&format!("job-{n}"), submitted()).await.unwrap();
            log.request(&format!("res-0000000{n}"), "me", request(None)).await.unwrap();
        }
        log.record_job("job-2", JobFact::Failed { error: "no peers".into() }).await.unwrap();
        log.record_job("job-4", JobFact::Cancelled { reason: "enough".into() }).await.unwrap();
        log.record_job("job-4", JobFact::Released).await.unwrap();
        let all = log.jobs(None, 10).await.unwrap();
        let shown: Vec<(&str, &str, i64, Option<&str>)> = all
            .iter()
            .map(|j| (j.job_id.as_str(), j.last_kind.as_str(), j.shots, j.error.as_deref()))
            .collect();
        let expected = [
            ("job-5", "submitted", 5, None),
            ("job-4", "cancelled", 5, Some("enough")),
            ("job-3", "submitted", 5, None),
            ("job-2", "failed", 5, Some("no peers")),
            ("job-1", "submitted", 5, None),
        ];
        assert_eq!(shown, expected);
        let ids = |page: Vec<JobRow>| page.into_iter().map(|j| j.job_id).collect::<Vec<_>>();
        assert_eq!(ids(log.jobs(None, 2).await.unwrap()), ["job-5", "job-4"]);
        let behind = log.job_position("job-4").await.unwrap();
        // Newer ones do not move what follows.
        log.record_job("job-6", submitted()).await.unwrap();
        assert_eq!(ids(log.jobs(behind, 2).await.unwrap()), ["job-3", "job-2"]);
        assert_eq!(log.job_position("job-7").await.unwrap(), None);
    });
}

#[test]
fn a_check_finds_that_a_log_can_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    run(async {
        let log = Log::sqlite(&path).unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        other
            .execute_batch("CREATE TRIGGER full BEFORE INSERT ON open BEGIN SELECT RAISE(FAIL, 'database or disk is full'); END")
            .unwrap();
        assert!(log.check_write().await.is_err() && !log.is_writable());
        other.execute_batch("DROP TRIGGER full").unwrap();
        log.check_write().await.unwrap();
        assert!(log.is_writable() && log.open_jobs().await.unwrap().is_empty());
        assert_eq!(log.verify().await.unwrap(), 0);
    });
}

/// Defect G of the review: the prefix was taken off as often as it was there.
#[test]
fn an_id_that_begins_like_a_prefix_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        let made = log.request("reservation/x", "me", request(None)).await.unwrap();
        assert_eq!(made.reservation_id, "reservation/x");
        let open = log.open_reservations().await.unwrap();
        assert_eq!(open[0].reservation_id, "reservation/x");
        assert!(log.state("reservation/x").await.unwrap().is_some());
    });
}

#[test]
fn a_closed_log_says_that_it_has_stopped() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        log.close().await;
        assert!(matches!(log.state("res-00000001").await, Err(LogError::Stopped)));
        let error = log.execute("res-00000001", ReservationCommand::Commit).await.unwrap_err();
        assert!(matches!(error, AppendError::Log(LogError::Stopped)), "{error}");
    });
}

#[test]
fn a_file_without_its_tables_fails_reads_as_reads_and_writes_as_writes() {
    use crate::error::Explain as _;
    use crate::state::sqlite_actor::SqliteCause;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.db");
    run(async {
        let log = Log::sqlite(&path).unwrap();
        let other = rusqlite::Connection::open(&path).unwrap();
        other.execute_batch("DROP TABLE events").unwrap();
        let error = log.state("res-00000001").await.unwrap_err();
        assert!(matches!(&error, LogError::Read(LogFailure::File(_))), "{error:?}");
        assert_eq!(error.code(), "log-read");
        let error = log.request("res-00000001", "me", request(None)).await.map(|_| ()).unwrap_err();
        let AppendError::Log(LogError::Write(LogFailure::File(failure))) = &error else {
            panic!("{error:?}")
        };
        assert_eq!(failure.cause, SqliteCause::Other);
        assert!(!log.is_writable());
    });
}
