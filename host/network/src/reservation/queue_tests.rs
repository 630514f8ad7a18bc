use super::queue::JobSelection;
use super::*;
use crate::reservation::job_options::JobOptions;
use crate::reservation::journal::JobRefusal;
use crate::reservation::lease::{LeaseAnswer, LeaseClaimant};

fn submitted() -> JobFact {
    let (qasm, coordinator) = ("OPENQASM 3;".into(), "me".into());
    JobFact::Submitted { qasm, shots: 5, coordinator, options: JobOptions::default() }
}

fn failed() -> JobFact {
    JobFact::Failed { error: "no peers".into() }
}

fn claimant(token: &str) -> LeaseClaimant {
    let lease = std::time::Duration::from_secs(15);
    LeaseClaimant { peer_id: "me".into(), token: token.into(), holder: "here".into(), lease }
}

fn run<T>(task: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(task)
}

async fn take(log: &Log, token: &str, most: usize) -> Vec<String> {
    let taken = log.take_jobs(token, JobSelection::First(most)).await.unwrap();
    taken.into_iter().map(|job| job.job_id).collect()
}

#[test]
fn jobs_are_taken_in_their_order_by_the_holder_of_the_lease_alone() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        for n in 1..=4 {
            log.record_job(&format!("job-{n}"), submitted()).await.unwrap();
        }
        assert!(take(&log, "a", 9).await.is_empty(), "no one has the lease");
        assert_eq!(log.acquire_lease(&claimant("a")).await.unwrap(), LeaseAnswer::Granted);
        assert_eq!(take(&log, "a", 2).await, ["job-1", "job-2"]);
        assert_eq!(log.waiting_jobs().await.unwrap(), 2);
        assert!(take(&log, "b", 9).await.is_empty());
        let only = log.take_jobs("a", JobSelection::Only("job-4".into())).await.unwrap();
        assert_eq!(only[0].job_id, "job-4");
        assert!(log.take_jobs("a", JobSelection::Only("job-1".into())).await.unwrap().is_empty());
        log.give_back_jobs("b", vec!["job-2".into()]).await.unwrap();
        log.give_back_jobs("a", vec!["job-1".into()]).await.unwrap();
        assert_eq!(take(&log, "a", 9).await, ["job-1", "job-3"], "what is given back has its old position");
        log.record_own_job("job-2", "a", failed()).await.unwrap();
        let assigned = log.assigned_jobs("a").await.unwrap();
        let assigned: Vec<&str> = assigned.iter().map(|job| job.job_id.as_str()).collect();
        assert_eq!(assigned, ["job-1", "job-3", "job-4"]);
    });
}

#[test]
fn facts_of_a_job_come_from_its_owner_alone() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        log.acquire_lease(&claimant("a")).await.unwrap();
        log.record_job("job-1", submitted()).await.unwrap();
        let resumed = || JobFact::Resumed { stages: 0 };
        let not_owner = async |token: &str| {
            let refused = log.record_own_job("job-1", token, resumed()).await.unwrap_err();
            assert!(matches!(refused, AppendError::Job(JobRefusal::NotOwner("resumed"))), "{refused}");
        };
        not_owner("a").await;
        take(&log, "a", 1).await;
        log.record_own_job("job-1", "a", resumed()).await.unwrap();
        not_owner("b").await;
        // The lease was over, and is granted again.
        log.acquire_lease(&claimant("b")).await.unwrap();
        assert_eq!(log.free_abandoned_jobs().await.unwrap(), 1);
        not_owner("a").await;
        assert_eq!(take(&log, "b", 1).await, ["job-1"]);
        not_owner("a").await;
        // Anyone may cancel it, and its owner sees that.
        log.record_job("job-1", JobFact::Cancelled { reason: "enough".into() }).await.unwrap();
        assert!(log.assigned_jobs("b").await.unwrap()[0].is_cancelled);
        let late = log.record_own_job("job-1", "b", failed()).await.unwrap_err();
        assert!(matches!(late, AppendError::Job(JobRefusal::Ended("failed"))), "{late}");
        log.record_own_job("job-1", "b", JobFact::Released).await.unwrap();
        assert!(
            log.assigned_jobs("b").await.unwrap().is_empty() && log.open_jobs().await.unwrap().is_empty()
        );
        assert_eq!(log.verify().await.unwrap(), 4, "what was refused has left nothing");
    });
}

#[test]
fn a_submission_is_taken_at_once_or_waits_behind_a_bounded_number() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let log = Log::sqlite(&dir.path().join("r.db")).unwrap();
        log.acquire_lease(&claimant("a")).await.unwrap();
        let submit = async |id: &str, owner: Option<&str>| {
            log.submit_job(id, None, submitted(), owner.map(String::from), 1).await.map(|_| ())
        };
        submit("job-1", None).await.unwrap();
        let full = submit("job-2", None).await.unwrap_err();
        assert!(matches!(full, AppendError::QueueFull(1)), "{full}");
        submit("job-2", Some("a")).await.unwrap();
        assert_eq!(log.assigned_jobs("a").await.unwrap()[0].job_id, "job-2");
        assert_eq!(log.verify().await.unwrap(), 2);
    });
}

#[test]
fn a_file_has_one_coordinator_until_its_lease_is_released() {
    let dir = tempfile::tempdir().unwrap();
    run(async {
        let path = dir.path().join("r.db");
        let (log, other) = (Log::sqlite(&path).unwrap(), Log::sqlite(&path).unwrap());
        log.acquire_lease(&claimant("a")).await.unwrap();
        let error = other.acquire_lease(&claimant("b")).await.unwrap_err();
        assert!(matches!(error, LogError::InUse { .. }), "{error}");
        assert!(log.renew_lease(&claimant("a")).await.unwrap());
        assert!(!other.renew_lease(&claimant("b")).await.unwrap());
        log.release_lease("me", "a").await.unwrap();
        assert_eq!(other.acquire_lease(&claimant("b")).await.unwrap(), LeaseAnswer::Granted);
    });
}
