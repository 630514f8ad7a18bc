//! The dispatcher on a real database and scripted receivers.

use tempfile::TempDir;

use super::*;
use crate::cloud::http::HttpClient;
use crate::cloud::jwt::{PrivateKey, Signer};
use crate::cloud::testing::{self, Reply, Scripted, answer, scripted};
use crate::config::settings::CallbackPolicy;
use crate::model::{MessageId, Secret};
use crate::state::db::{Database, JobFacts, Phase, ResultRow, Status};

/// A dispatcher that runs as a task, with everything around it.
struct Running {
    outbox: Outbox,
    finished: mpsc::UnboundedReceiver<FinishedDelivery>,
    beats: watch::Sender<HeartbeatOutcome>,
    metrics: Arc<Metrics>,
    store: Store,
    dir: TempDir,
    server: Scripted,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    async fn start(replies: Vec<Reply>) -> Running {
        let server = scripted(replies, None).await;
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Database::open(dir.path()).unwrap().start("q1").unwrap();
        let (beats, beats_seen) = watch::channel(HeartbeatOutcome::default());
        let (finished_sender, finished) = mpsc::unbounded_channel();
        let metrics = Arc::new(Metrics::default());
        let sender = sender(&server.url);
        let (outbox, dispatcher) = WebhookDispatcher::new(
            sender,
            store.clone(),
            settings(),
            metrics.clone(),
            Arc::default(),
            beats_seen,
            finished_sender,
        );
        let task = tokio::spawn(dispatcher.run());
        Running { outbox, finished, beats, metrics, store, dir, server, task }
    }

    async fn deliver(&self, n: u64) {
        let row = row(n, &format!("{}/cb", self.server.url));
        self.store.insert(row.clone()).await.unwrap();
        self.outbox.send(PendingDelivery {
            message_id: row.message_id,
            job_id: row.job_id,
            callback_url: row.callback_url,
            origin: self.server.url.as_str().into(),
            status: row.status,
            body_bytes: row.body.len(),
            body: Some(row.body),
            attempts: 0,
        });
    }

    async fn stop(self) -> TempDir {
        let Running { outbox, task, store, dir, .. } = self;
        drop(outbox);
        task.await.unwrap();
        store.close();
        dir
    }
}

fn settings() -> WebhookSettings {
    WebhookSettings {
        timeout: Duration::from_secs(20),
        backoff: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        max_in_flight: 8,
        max_per_origin: 4,
        callback: CallbackPolicy::Any,
    }
}

fn sender(webapp: &str) -> WebhookSender {
    let cloud = testing::settings(webapp);
    let key = PrivateKey::parse(&Secret::new(testing::private_pem())).unwrap();
    let signer = Signer::new(key, "q1", None, Duration::from_secs(60));
    WebhookSender::new(HttpClient::new(&cloud).unwrap(), signer, &cloud, &settings()).unwrap()
}

fn row(n: u64, url: &str) -> ResultRow {
    ResultRow {
        message_id: MessageId { ms: n, seq: 0 },
        job_id: format!("job-{n}").into(),
        callback_url: url.into(),
        status: Status::Completed,
        error: None,
        finished_at: "2026-01-01T00:00:00+00:00".into(),
        replaces: None,
        facts: JobFacts::default(),
        body: format!("{{\"n\":{n}}}").into(),
    }
}

#[tokio::test]
async fn an_accepted_result_is_in_history_when_it_is_reported() {
    let mut running = Running::start(vec![answer("200 OK", "")]).await;
    running.deliver(1).await;
    let finished = running.finished.recv().await.unwrap();
    assert_eq!((finished.message_id.ms, finished.outcome), (1, DeliveryOutcome::Accepted));
    let history = running.store.history_of(vec![finished.message_id]).await.unwrap();
    assert_eq!(history[0].as_ref().map(|h| &*h.job_id), Some("job-1"));
    assert_eq!(running.metrics.undelivered.get(), 0);
    running.outbox.all_tried().await;
    running.stop().await;
}

#[tokio::test]
async fn a_failed_attempt_is_repeated_with_the_body_from_the_database() {
    let replies = vec![answer("503 Service Unavailable", ""), answer("200 OK", "")];
    let mut running = Running::start(replies).await;
    running.deliver(1).await;
    assert_eq!(running.finished.recv().await.unwrap().outcome, DeliveryOutcome::Accepted);
    let body = |request: String| request.split_once("\r\n\r\n").unwrap().1.to_owned();
    let first = body(running.server.seen.recv().await.unwrap().1);
    let second = body(running.server.seen.recv().await.unwrap().1);
    assert_eq!((first.as_str(), second.as_str()), ("{\"n\":1}", "{\"n\":1}"));
    running.stop().await;
}

#[tokio::test]
async fn a_refused_result_is_kept_for_the_operator_with_its_reason() {
    let mut running = Running::start(vec![answer("404 Not Found", "no such job")]).await;
    running.deliver(1).await;
    assert_eq!(running.finished.recv().await.unwrap().outcome, DeliveryOutcome::Refused);
    let dir = running.stop().await;
    let (_, contents) = Database::open(dir.path()).unwrap().start("q1").unwrap();
    let kept = &contents.rows[0];
    assert_eq!((kept.phase, kept.attempts), (Phase::Refused, 1));
    assert!(kept.last_error.as_ref().unwrap().contains("no such job"), "{kept:?}");
}

/// Defect D of the review.
#[tokio::test]
async fn a_result_that_the_operator_drops_between_attempts_ends_as_dropped() {
    let mut running = Running::start(vec![answer("503 Service Unavailable", "")]).await;
    running.deliver(1).await;
    running.server.seen.recv().await.unwrap();
    // As `coda-host results drop` does, in another process; until then it is tried again and again.
    running.store.discard(MessageId { ms: 1, seq: 0 }).await.unwrap();
    let finished = running.finished.recv().await.unwrap();
    assert_eq!(finished.outcome, DeliveryOutcome::Dropped);
    let text = running.metrics.render();
    assert!(text.contains("webhook_attempts_total{result=\"accepted\"} 0"), "{text}");
    running.stop().await;
}

#[tokio::test]
async fn a_401_waits_for_a_heartbeat() {
    let refused = answer("401 Unauthorized", "");
    let mut running = Running::start(vec![refused.clone(), refused, answer("200 OK", "")]).await;
    running.deliver(1).await;
    // Tried, and held: nothing is left that has never been tried.
    running.outbox.all_tried().await;
    assert!(running.finished.try_recv().is_err());
    running.beats.send_modify(|outcome| outcome.accepted += 1);
    assert_eq!(running.finished.recv().await.unwrap().outcome, DeliveryOutcome::Accepted);
    running.stop().await;
}

/// Defect J of the review: a detached task went on trying to record the end, for ever.
#[tokio::test]
async fn an_end_that_cannot_be_recorded_is_tried_again_and_forgotten_with_the_dispatcher() {
    let mut running = Running::start(vec![answer("200 OK", "")]).await;
    let other = rusqlite::Connection::open(running.dir.path().join("coda-host.db")).unwrap();
    let full = "CREATE TRIGGER full BEFORE INSERT ON history BEGIN SELECT RAISE(FAIL, 'full'); END";
    other.execute_batch(full).unwrap();
    running.deliver(1).await;
    running.server.seen.recv().await.unwrap();
    assert!(running.finished.try_recv().is_err());
    other.execute_batch("DROP TRIGGER full").unwrap();
    assert_eq!(running.finished.recv().await.unwrap().outcome, DeliveryOutcome::Accepted);

    other.execute_batch(full).unwrap();
    running.deliver(2).await;
    running.server.seen.recv().await.unwrap();
    let store = running.store.clone();
    let dir = running.stop().await;
    assert!(matches!(store.record_delivered(MessageId { ms: 2, seq: 0 }).await, Err(StoreError::Stopped)));
    other.execute_batch("DROP TRIGGER full").unwrap();
    let (_, contents) = Database::open(dir.path()).unwrap().start("q1").unwrap();
    assert_eq!(contents.rows.len(), 1, "it is sent once more after the next start");
}

#[tokio::test]
async fn a_task_that_panics_does_not_lose_its_delivery() {
    let server = scripted(vec![answer("200 OK", "")], None).await;
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Database::open(dir.path()).unwrap().start("q1").unwrap();
    let (_beats, beats_seen) = watch::channel(HeartbeatOutcome::default());
    let (finished_sender, mut finished) = mpsc::unbounded_channel();
    let metrics = Arc::new(Metrics::default());
    let (outbox, mut dispatcher) = WebhookDispatcher::new(
        sender(&server.url),
        store.clone(),
        settings(),
        metrics,
        Arc::default(),
        beats_seen,
        finished_sender,
    );
    let row = row(1, &format!("{}/cb", server.url));
    store.insert(row.clone()).await.unwrap();
    let delivery = PendingDelivery {
        message_id: row.message_id,
        job_id: row.job_id,
        callback_url: row.callback_url,
        origin: server.url.as_str().into(),
        status: row.status,
        body_bytes: 2,
        body: None,
        attempts: 0,
    };
    // Stands for the attempt: the queue believes that it runs, and it panics.
    let effects = dispatcher.queue.on(Duration::ZERO, DeliveryEvent::Added(delivery), &mut || 0.0);
    let [DeliveryEffect::Attempt(attempt)] = &effects[..] else { panic!("{effects:?}") };
    dispatcher.spawn(Work::Attempt(attempt.id), async { panic!("as a bug would") });
    let task = tokio::spawn(dispatcher.run());
    assert_eq!(finished.recv().await.unwrap().outcome, DeliveryOutcome::Accepted);
    drop(outbox);
    task.await.unwrap();
}
