//! Phase 3: the host runs, and ends. One implementation for hosts with and without a cloud.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::AppError;
use super::abrupt_end::AbruptEnd;
use super::availability::AvailabilityKeeper;
use super::availability_record::AvailabilityRecorder;
use super::lifecycle::{self, Readiness};
use super::peer::{self, PeerStage};
use super::reload::Reloads;
use super::startup::{CloudSide, ExecutorStarted, Halt, LocalService, Registered};
use crate::activity::Activity;
use crate::activity::jobs::JobTrace;
use crate::activity::minutes::JobEnd;
use crate::api::{ApiSources, HostSources, PeerSources};
use crate::availability::Availability;
use crate::cloud::heartbeat::{HeartbeatOutcome, HeartbeatSender, HeartbeatState};
use crate::config::settings::Settings;
use crate::daemon::conflicts::ConsumerLock;
use crate::daemon::instance_lock::InstanceLock;
use crate::daemon::rotate::{LOG_VARIABLE, keep_small};
use crate::error::{Failure, exit};
use crate::executor::{ActivePlugin, Executor, ExecutorStatus, ReloadReport, SlotReport};
use crate::jobs::claim_gate::ClaimGate;
use crate::jobs::driver::{Driver, DriverParts, Ended, Snapshot};
use crate::jobs::journal::RunRecorder;
use crate::jobs::redis::{Names, Redis};
use crate::jobs::stream::Reader;
use crate::jobs::table::{Leftover, RecoveredResult, StoredResult};
use crate::results::dispatcher::{FinishedDelivery, Outbox, WebhookDispatcher};
use crate::results::webhook::WebhookSender;
use crate::state::db::{HistoryEntry, Phase, Status, Store, StoredRow};
use crate::supervise::{Supervisor, TaskHandle, TaskKind};
use crate::telemetry::Metrics;

/// How long the last connections and tasks may take to end.
const END_LIMIT: Duration = Duration::from_secs(2);

/// What the host does until it is stopped.
enum Work {
    Jobs(Box<Driver>),
    /// Only lends its slots; nothing is submitted, so nothing is reported.
    Lending {
        executor: Box<Executor>,
        reports: mpsc::UnboundedReceiver<SlotReport>,
    },
}

impl Work {
    async fn run(self, stop: CancellationToken) -> Ended {
        match self {
            Work::Jobs(driver) => driver.run().await,
            Work::Lending { executor, mut reports } => {
                loop {
                    tokio::select! {
                        () = stop.cancelled() => break,
                        Some(report) = reports.recv() => match report {
                            SlotReport::DeviceChanged { .. } => {}
                            other => tracing::error!(?other, "a slot reported a job that was not submitted"),
                        },
                    }
                }
                Ended { executor: *executor, left: Leftover::default() }
            }
        }
    }
}

/// A host that is up.
pub struct Running {
    settings: Arc<Settings>,
    stop: CancellationToken,
    work: Work,
    service: LocalService,
    /// Stops what goes on while jobs end: heartbeat and VPN guard.
    late_stop: CancellationToken,
    job_tasks: Option<JobTasks>,
    lending: Option<TaskHandle>,
    /// Released last: until then no other host uses these directories.
    _instance_lock: InstanceLock,
}

impl Registered {
    /// Starts the tasks.
    ///
    /// # Errors
    /// When Redis' URL, the callback policy or the peer network can't be used; executor and database have ended then.
    pub async fn run(self) -> Result<Running, Halt> {
        match self.connections().await {
            Ok(connections) => Ok(self.start_tasks(connections)),
            Err(halt) => {
                self.end().await;
                Err(halt)
            }
        }
    }

    /// Ends what the phases began.
    async fn end(self) {
        self.started.end().await;
        if let Some(cloud) = self.cloud {
            cloud.store.close();
        }
        self.service.stop.cancel();
        self.service.tasks.finish().await;
    }

    /// Everything of this phase that can fail; the peer network comes last, so that it never has to be left again.
    async fn connections(&self) -> Result<Connections, Halt> {
        let ExecutorStarted { settings, executor, .. } = &self.started;
        let jobs = match &self.cloud {
            Some(cloud) => Some(JobConnections::new(settings, cloud)?),
            None => None,
        };
        let peers = match settings.peer.enabled {
            true => Some(
                peer::start(&settings.peer, &settings.jobs.limits, executor, &settings.dirs.state).await?,
            ),
            false => None,
        };
        Ok(Connections { jobs, peers })
    }

    fn start_tasks(self, connections: Connections) -> Running {
        let Registered { started, mut service, cloud } = self;
        let ExecutorStarted { host, settings, executor, reports, .. } = started;
        let stop = host.lifecycle.stop.clone();
        let tasks = &mut service.tasks;
        let status = executor.status();
        let metrics = Arc::new(Metrics::default());
        let activity = Arc::new(Activity::default());
        let late_stop = CancellationToken::new();

        let (report, reloads) = watch::channel(ReloadReport::default());
        let serving = Reloads {
            settings: settings.clone(),
            env: host.env.clone(),
            reloader: executor.reloader(),
            dispositions: host.lifecycle.dispositions.clone(),
            requests: host.lifecycle.reload_requests,
            report,
        };
        tasks.spawn(TaskKind::Reloads, serving.serve());
        let keeper = AvailabilityKeeper::new(
            settings.dirs.state.clone(),
            settings.availability.clone(),
            executor.start_hold(),
        );
        let availability = keeper.availability();
        let peers = connections.peers.as_ref().map(PeerSources::from_stage);
        // Ends beside the jobs, within the same limit.
        let lending =
            connections.peers.map(|stage| lend(tasks, stage, stop.clone(), settings.shutdown.drain));

        let (reading, readiness, running);
        match (cloud, connections.jobs) {
            (Some(cloud), Some(jobs)) => {
                let parts = JobParts {
                    settings: settings.clone(),
                    executor,
                    reports,
                    dispositions: host.lifecycle.dispositions.clone(),
                    metrics: metrics.clone(),
                    activity: activity.clone(),
                    stop: stop.clone(),
                    late_stop: late_stop.clone(),
                    abrupt_end: host.lifecycle.abrupt_end.clone(),
                    gate: Arc::new(ClaimGate::default()),
                    availability: availability.clone(),
                };
                // Before the reader begins.
                let keeper = keeper.with_gate(parts.gate.clone());
                tasks.spawn(TaskKind::Availability, keeper.keep());
                let started = parts.start(tasks, cloud, jobs);
                reading = ApiSources::Host(Box::new(HostSources {
                    peers,
                    snapshot: started.snapshot,
                    redis: started.redis.clone(),
                    store: started.tasks.store.clone(),
                    gate: started.gate,
                    heartbeat: started.beats,
                    vpn: started.vpn,
                    metrics,
                    activity,
                    executor: status,
                    reloads,
                    availability,
                    qpu_id: started.qpu_id.clone(),
                }));
                let wait = settings.jobs.redis_timeout;
                readiness = Readiness::Jobs { redis: started.redis, wait, qpu_id: started.qpu_id };
                running = (Work::Jobs(Box::new(started.driver)), Some(started.tasks));
            }
            _ => {
                tasks.spawn(TaskKind::Availability, keeper.keep());
                reading = ApiSources::PeerOnly {
                    peers,
                    metrics,
                    activity,
                    executor: status,
                    reloads,
                    availability,
                };
                readiness = Readiness::PeerOnly;
                running = (Work::Lending { executor: Box::new(executor), reports }, None);
                tracing::info!("coda-host is up, without a cloud");
            }
        }
        service.up.send_replace(Some(Arc::new(reading)));

        let tasks = &mut service.tasks;
        let log = host.env.environment.get(LOG_VARIABLE).cloned();
        tasks.spawn(TaskKind::Notifier, lifecycle::notify(host.env, readiness, stop.clone()));
        if let Some(log) = log {
            let daemon = &settings.daemon;
            let rotating = keep_small(log.into(), daemon.log_max_bytes, daemon.log_check_interval);
            tasks.spawn(TaskKind::LogRotation, rotating);
        }
        let (work, job_tasks) = running;
        Running { settings, stop, work, service, late_stop, job_tasks, lending, _instance_lock: host.lock }
    }
}

impl Running {
    /// Runs until the host is stopped or a task fails; then everything ends in order.
    ///
    /// # Errors
    /// When a task ended that the host can't go on without.
    pub async fn serve(mut self) -> Result<ExitCode, Failure> {
        let working = self.work.run(self.stop.clone());
        tokio::pin!(working);
        let mut stop_began: Option<Instant> = None;
        let (ended, failure) = loop {
            tokio::select! {
                ended = &mut working => break (ended, None),
                () = self.stop.cancelled(), if stop_began.is_none() => stop_began = Some(Instant::now()),
                failed = self.service.tasks.failed() => {
                    // Without one of its tasks the host is of no use; what runs is still finished.
                    let failure = Failure::from(failed);
                    tracing::error!(error = failure.line(), "stopping");
                    stop_began.get_or_insert_with(Instant::now);
                    self.stop.cancel();
                    break (working.await, Some(failure));
                }
            }
        };

        self.late_stop.cancel();
        if let Some(lending) = self.lending {
            lending.ended().await;
        }
        if let Some(tasks) = &self.job_tasks {
            // Its blocking read is short; dropped, it could leave a delivered message behind.
            let limit = self.settings.jobs.block + END_LIMIT;
            if tokio::time::timeout(limit, tasks.reader.ended()).await.is_err() {
                tracing::warn!("the reader did not end in time");
            }
        }
        let code = end_executor(ended, &self.settings).await;
        if let Some(tasks) = &self.job_tasks {
            let spent = stop_began.map(|at| at.elapsed()).unwrap_or_default();
            let left = self.settings.shutdown.drain.saturating_sub(spent);
            tasks.end(left.max(END_LIMIT)).await;
        }
        self.service.stop.cancel();
        // Their senders: who waits for the host's state is told that it is gone.
        drop(self.service.up);
        self.service.tasks.finish().await;
        match failure {
            Some(failure) => Err(failure),
            None => Ok(code),
        }
    }
}

/// Ends the executor and reports what is left.
async fn end_executor(ended: Ended, settings: &Settings) -> ExitCode {
    let left = ended.left;
    if left.undelivered > 0 {
        tracing::warn!(
            results = left.undelivered,
            "stopped with undelivered results; they are sent after the next start"
        );
    }
    for job_id in &left.unstored {
        tracing::error!(
            job_id = &**job_id,
            "stopped before this job's result could be stored; it runs again after the next start"
        );
    }
    for job_id in &left.running {
        tracing::error!(
            job_id = &**job_id,
            "stopped while the executor still had this job; it runs again after the next start"
        );
    }
    // An executor with a run in it can't be shut down; it ends with the process.
    if left.running.is_empty() {
        ended.executor.shutdown(settings.executor.control_timeout).await;
    }
    match left.running.is_empty() && left.unstored.is_empty() {
        true => {
            tracing::info!("stopped");
            ExitCode::SUCCESS
        }
        false => ExitCode::from(exit::JOB_LEFT),
    }
}

fn lend(tasks: &mut Supervisor, stage: PeerStage, stop: CancellationToken, drain: Duration) -> TaskHandle {
    tasks.spawn(TaskKind::PeerLending, async move {
        stop.cancelled().await;
        stage.end(drain).await;
    })
}

struct Connections {
    jobs: Option<JobConnections>,
    peers: Option<PeerStage>,
}

/// What jobs need of the network, checked but not connected.
struct JobConnections {
    redis: Redis,
    writer: crate::jobs::redis::Writer,
    sender: WebhookSender,
    heartbeat: HeartbeatSender,
    beat_state: watch::Sender<HeartbeatState>,
}

impl JobConnections {
    fn new(settings: &Settings, cloud: &CloudSide) -> Result<JobConnections, Halt> {
        let registration = &cloud.registration;
        let identity = &registration.identity;
        let names = Names::new(&identity.qpu_id, &settings.jobs.consumer_name);
        let ca_file = settings.cloud.ca_file.as_deref();
        let (timeout, block) = (settings.jobs.redis_timeout, settings.jobs.block);
        let (redis, writer) = Redis::new(&identity.redis_url, names, ca_file, timeout, block)?;
        let (client, signer) = (cloud.client.clone(), registration.signer.clone());
        let sender =
            WebhookSender::new(client.clone(), signer.clone(), &registration.cloud, &settings.webhook)?;
        let (beat_state, beat_seen) = watch::channel(HeartbeatState::default());
        let heartbeat =
            HeartbeatSender::new(client, signer, &registration.cloud, beat_seen).map_err(AppError::Http)?;
        Ok(JobConnections { redis, writer, sender, heartbeat, beat_state })
    }
}

/// What the job path is built from, beside cloud and connections.
struct JobParts {
    settings: Arc<Settings>,
    executor: Executor,
    reports: mpsc::UnboundedReceiver<SlotReport>,
    dispositions: Arc<crate::sys::Dispositions>,
    metrics: Arc<Metrics>,
    activity: Arc<Activity>,
    stop: CancellationToken,
    late_stop: CancellationToken,
    abrupt_end: AbruptEnd,
    gate: Arc<ClaimGate>,
    availability: watch::Receiver<Availability>,
}

/// The job path, ready to run.
struct StartedJobs {
    driver: Driver,
    tasks: JobTasks,
    snapshot: watch::Receiver<Snapshot>,
    redis: Redis,
    gate: Arc<ClaimGate>,
    beats: watch::Receiver<HeartbeatOutcome>,
    vpn: watch::Receiver<crate::vpn::guard::VpnStatus>,
    qpu_id: String,
}

/// What the job path leaves to be ended after the driver.
struct JobTasks {
    reader: TaskHandle,
    dispatcher: TaskHandle,
    recorder: TaskHandle,
    store: Store,
    _consumer_lock: Option<ConsumerLock>,
}

impl JobTasks {
    /// Lets attempts in flight end and their ends be recorded, then closes the database.
    async fn end(&self, limit: Duration) {
        if tokio::time::timeout(limit, self.dispatcher.ended()).await.is_err() {
            tracing::warn!(
                "attempts to deliver results are cut off; their results are sent again after the next start"
            );
        }
        self.recorder.ended().await;
        self.store.close();
    }
}

impl JobParts {
    fn start(self, tasks: &mut Supervisor, cloud: CloudSide, jobs: JobConnections) -> StartedJobs {
        let JobParts {
            settings,
            executor,
            reports,
            dispositions,
            metrics,
            activity,
            stop,
            late_stop,
            abrupt_end,
            gate,
            availability,
        } = self;
        activity.remember(cloud.contents.recent.into_iter().map(earlier).collect());
        let JobConnections { redis, writer, sender, heartbeat, beat_state } = jobs;
        let (vpn, beats) = (cloud.guard.status(), heartbeat.outcome());
        let (outbox, dispatcher, finished) =
            outbox(&cloud.store, &settings, &sender, (&metrics, &activity), &beats);

        let active = executor.active_plugin();
        let per_slot = if active.hooks.batch_run { settings.jobs.batch_max } else { settings.jobs.prefetch };
        let prefetch = Arc::new(Semaphore::new(per_slot * usize::from(active.device.slots)));
        let (claims, claimed) = mpsc::channel(16);
        let (snapshot, snapshot_seen) = watch::channel(Snapshot::default());
        let reader = Reader {
            redis: redis.clone(),
            settings: settings.jobs.clone(),
            prefetch: prefetch.clone(),
            read_max: prefetch.available_permits(),
            claims,
            stop: stop.clone(),
            gate: gate.clone(),
            state_dir: settings.dirs.state.clone(),
            metrics: metrics.clone(),
            executor: executor.status(),
        };
        let status = executor.status();
        let recorder = RunRecorder::new(cloud.run_journal, cloud.answer_journal);
        // An impatient operator is not a death either.
        let (running, slots) = (recorder.clone(), usize::from(active.device.slots));
        abrupt_end.prepare(move || running.forget_running(slots));
        let recovered = cloud.contents.rows.into_iter().filter_map(|row| recovered(row, &sender)).collect();
        let driver = Driver::new(DriverParts {
            settings: settings.jobs.clone(),
            redis: redis.clone(),
            store: cloud.store.clone(),
            recorder,
            answered: cloud.answered,
            executor,
            outbox,
            callback: Arc::new(move |url: &str| {
                sender.allowed(url).map(|o| o.to_string().into()).map_err(|e| Failure::from(e).line())
            }),
            metrics,
            activity,
            dispositions,
            prefetch,
            deaths: cloud.deaths,
            recovered,
            claims: claimed,
            slot_reports: reports,
            finished,
            snapshot,
            gate: gate.clone(),
            stop,
            drain_limit: settings.shutdown.drain,
            retry: settings.webhook.backoff,
        });

        tasks.spawn(TaskKind::VpnGuard, cloud.guard.watch(late_stop.clone()));
        tasks.spawn(TaskKind::RedisWriter, writer.run());
        let dispatcher = tasks.spawn(TaskKind::WebhookDispatcher, dispatcher.run());
        tasks.spawn(TaskKind::Heartbeat, heartbeat.run(late_stop.clone()));
        let recording = AvailabilityRecorder {
            store: cloud.store.clone(),
            availability,
            executor: status.clone(),
            interval: settings.history.sample,
            stop: late_stop.clone(),
        };
        let recorder = tasks.spawn(TaskKind::AvailabilityRecord, recording.run());
        let heartbeat_state =
            publish_heartbeat_state(snapshot_seen.clone(), redis.clone(), status, beat_state);
        tasks.spawn(TaskKind::HeartbeatState, heartbeat_state);
        let reader = tasks.spawn(TaskKind::StreamReader, reader.run());
        let qpu_id = cloud.registration.identity.qpu_id;
        tracing::info!(qpu_id, webapp = cloud.registration.cloud.webapp_url, "coda-host is up");
        StartedJobs {
            driver,
            tasks: JobTasks {
                reader,
                dispatcher,
                recorder,
                store: cloud.store,
                _consumer_lock: cloud.consumer_lock,
            },
            snapshot: snapshot_seen,
            redis,
            gate,
            beats,
            vpn,
            qpu_id,
        }
    }
}

fn outbox(
    store: &Store,
    settings: &Settings,
    sender: &WebhookSender,
    (metrics, activity): (&Arc<Metrics>, &Arc<Activity>),
    beats: &watch::Receiver<HeartbeatOutcome>,
) -> (Outbox, WebhookDispatcher, mpsc::UnboundedReceiver<FinishedDelivery>) {
    let (finished, finished_seen) = mpsc::unbounded_channel();
    let (outbox, dispatcher) = WebhookDispatcher::new(
        sender.clone(),
        store.clone(),
        settings.webhook.clone(),
        metrics.clone(),
        activity.clone(),
        beats.clone(),
        finished,
    );
    (outbox, dispatcher, finished_seen)
}

/// A job of an earlier process, as far as history tells.
fn earlier(entry: HistoryEntry) -> JobTrace {
    let end = match entry.status {
        Status::Completed => JobEnd::Completed,
        Status::Failed => JobEnd::Failed,
    };
    JobTrace {
        ended: OffsetDateTime::parse(&entry.finished_at, &Rfc3339).ok(),
        end: Some(end),
        error: entry.error,
        ..JobTrace::new(entry.job_id)
    }
}

/// A row that is still to be delivered; `None` for one that the receiver refused.
fn recovered(stored: StoredRow, sender: &WebhookSender) -> Option<RecoveredResult> {
    let announced = match stored.phase {
        Phase::Refused => return None,
        phase => phase == Phase::Announced,
    };
    // Whether the policy still allows the URL is decided by the attempt.
    let origin = sender.allowed(&stored.row.callback_url).map(|o| o.to_string()).unwrap_or_default();
    let StoredRow { row, body_bytes, attempts, .. } = stored;
    let result = StoredResult { row, body_bytes, origin: origin.into(), attempts };
    Some(RecoveredResult { result, announced })
}

/// Keeps what the heartbeat reports up to date.
async fn publish_heartbeat_state(
    mut snapshot: watch::Receiver<Snapshot>,
    redis: Redis,
    executor: ExecutorStatus,
    state: watch::Sender<HeartbeatState>,
) {
    let mut link = redis.link.changes();
    let mut active = executor.active_plugin();
    let wiring = |d: &ActivePlugin| d.device.connectivity.edges().map(Arc::<[(u16, u16)]>::from);
    let mut connectivity = wiring(&active);
    loop {
        // A reload may have brought another device.
        let now = executor.active_plugin();
        if !Arc::ptr_eq(&now, &active) {
            connectivity = wiring(&now);
            active = now;
        }
        let next = {
            let snapshot = snapshot.borrow_and_update();
            HeartbeatState {
                current_job: snapshot.current_job.clone(),
                last_job_at: snapshot.last_job_at.clone(),
                redis_healthy: link.borrow_and_update().is_up(),
                connectivity: connectivity.clone(),
            }
        };
        state.send_replace(next);
        let gone = tokio::select! {
            changed = snapshot.changed() => changed.is_err(),
            changed = link.changed() => changed.is_err(),
        };
        if gone {
            // The driver has ended; the heartbeat goes on with the last state until it is stopped.
            return;
        }
    }
}
