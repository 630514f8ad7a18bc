//! Redis as the job path uses it: one connection for the blocking read, one for everything else.
//!
//! Only XGROUP, XREADGROUP, XPENDING, XRANGE, XACK, HGET, HSET and GET are sent (and AUTH, SELECT), so that
//! a site's ACL may allow no more. `stream` connects and says when the link is up; everybody else takes what
//! there is. Writes go through one queue, in order, grouped into pipelines: what must happen is kept until
//! Redis has confirmed it, across reconnects.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, IntoConnectionInfo as _, Pipeline, RedisError, TlsCertificates, Value,
};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use super::admission::JobRecord;
use super::message::Message;
use super::replies::{self, ReplyError};
use super::writes::{Durability, Write, Writer};
use crate::error::{Explain, exit};
use crate::model::{JobId, MessageId, Secret, masked_url};

/// Names on the server.
#[derive(Debug, Clone)]
pub struct Names {
    pub qpu_id: String,
    pub stream: String,
    pub group: String,
    pub consumer: String,
}

impl Names {
    pub fn new(qpu_id: &str, consumer: &str) -> Names {
        Names {
            qpu_id: qpu_id.into(),
            stream: format!("qpu:{qpu_id}:jobs"),
            group: format!("qpu:{qpu_id}:workers"),
            consumer: consumer.into(),
        }
    }
}

pub(super) fn status_key(job: &str) -> String {
    format!("qpu:job:{job}:status")
}

fn cancel_key(job: &str) -> String {
    format!("qpu:job:cancelled:{job}")
}

#[derive(Debug, thiserror::Error)]
pub enum RedisSettingsError {
    #[error("the Redis URL {url} can't be used: {text}")]
    Url { url: String, text: String },
    #[error("the CA file {} can't be read", path.display())]
    CaFile { path: std::path::PathBuf, source: std::io::Error },
}

impl Explain for RedisSettingsError {
    fn code(&self) -> &'static str {
        "redis-settings"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            RedisSettingsError::Url { .. } => {
                "give a URL of redis://, rediss:// or unix://, as the cloud's bundle does".into()
            }
            RedisSettingsError::CaFile { .. } => "correct CODA_CA_FILE".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Redis says nothing about what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RedisFailure {
    /// The server can't be reached.
    #[error("Redis is unreachable: {0}")]
    Down(String),
    /// It answers with an error, or with something else than an answer.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

/// What a look at the server finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    pub version: Option<String>,
    /// Messages in the stream.
    pub length: Option<i64>,
    /// Messages delivered to the group and not acknowledged; `None` without a group.
    pub pending: Option<i64>,
}

/// The shared connection while it works, and how often it was made: an old connection's late error must
/// not take down its successor.
#[derive(Clone, Default)]
pub struct Link {
    connection: Option<MultiplexedConnection>,
    generation: u64,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.connection.is_some()
    }
}

/// The handle; clones share connections and queue.
#[derive(Clone)]
pub struct Redis {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    client: Client,
    url: Secret,
    pub(super) names: Names,
    pub(super) timeout: Duration,
    block: Duration,
    pub(super) link: watch::Sender<Link>,
    /// The link went down on somebody's command: the reader should connect again.
    failed: Notify,
    writes: mpsc::UnboundedSender<(Write, Durability)>,
    /// Why the server refuses writes.
    refusal: Mutex<Option<String>>,
}

impl Redis {
    /// Checks the URL; connects nothing.
    ///
    /// # Errors
    /// When the URL or the CA file can't be used.
    pub fn new(
        url: &Secret,
        names: Names,
        ca_file: Option<&Path>,
        timeout: Duration,
        block: Duration,
    ) -> Result<(Redis, Writer), RedisSettingsError> {
        let bad =
            |e: RedisError| RedisSettingsError::Url { url: masked_url(url.expose()), text: masked(&e, url) };
        let info = url.expose().into_connection_info().map_err(bad)?;
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let settings = match query_db(url.expose()) {
            Some(db) => settings.set_db(db),
            None => settings,
        };
        let tcp = info.tcp_settings().clone().set_nodelay(true);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let client = match ca_file.filter(|_| url.expose().starts_with("rediss:")) {
            None => Client::open(info).map_err(bad)?,
            Some(path) => {
                let read = |source| RedisSettingsError::CaFile { path: path.to_path_buf(), source };
                let root_cert = Some(std::fs::read(path).map_err(read)?);
                let certs = TlsCertificates { client_tls: None, root_cert };
                Client::build_with_tls(info, certs).map_err(bad)?
            }
        };
        let (writes, queue) = mpsc::unbounded_channel();
        let link = watch::Sender::new(Link::default());
        let inner = Inner {
            client,
            url: url.clone(),
            names,
            timeout,
            block,
            link,
            failed: Notify::new(),
            writes,
            refusal: Mutex::default(),
        };
        let redis = Redis { inner: Arc::new(inner) };
        Ok((redis.clone(), Writer { redis, queue }))
    }

    pub fn names(&self) -> &Names {
        &self.inner.names
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.inner.link.borrow().is_up()
    }

    /// Becomes visible whenever the link goes up or down.
    pub fn changes(&self) -> watch::Receiver<Link> {
        self.inner.link.subscribe()
    }

    /// Waits until the link is up, at most `limit`.
    pub async fn wait_up(&self, limit: Duration) -> bool {
        let mut link = self.inner.link.subscribe();
        matches!(tokio::time::timeout(limit, link.wait_for(Link::is_up)).await, Ok(Ok(_)))
    }

    /// Makes both connections and the group. For `stream` alone.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let i = &self.inner;
        let connect = |response: Duration| {
            AsyncConnectionConfig::new()
                .set_connection_timeout(Some(i.timeout))
                .set_response_timeout(Some(response))
        };
        let shared = connect(i.timeout);
        // The read's own timeout lies above the time that the server holds it.
        let blocking = connect(i.timeout + i.block);
        let mut blocking = i.client.get_multiplexed_async_connection_with_config(&blocking).await?;
        let shared = i.client.get_multiplexed_async_connection_with_config(&shared).await?;
        self.make_group(&mut blocking).await?;
        i.link.send_modify(|link| {
            link.connection = Some(shared);
            link.generation += 1;
        });
        Ok(blocking)
    }

    /// Creates the group from the stream's beginning, so that jobs sent before the first start are run.
    pub(super) async fn make_group(&self, conn: &mut MultiplexedConnection) -> Result<(), RedisError> {
        let n = &self.inner.names;
        let mut cmd = redis::cmd("XGROUP");
        cmd.arg("CREATE").arg(&n.stream).arg(&n.group).arg("0").arg("MKSTREAM");
        match cmd.query_async::<()>(conn).await {
            Err(e) if e.code() == Some("BUSYGROUP") => Ok(()),
            other => other,
        }
    }

    /// Notes that the link is gone.
    pub(super) fn set_down(&self) {
        self.inner.link.send_modify(|link| link.connection = None);
    }

    /// Waits until the link has gone down on somebody's command.
    pub(super) async fn wait_failed(&self) {
        while self.is_up() {
            self.inner.failed.notified().await;
        }
    }

    /// Up to `count` new messages; an empty list after the block time.
    pub(super) async fn read_new(
        &self,
        conn: &mut MultiplexedConnection,
        count: usize,
    ) -> Result<Vec<Message>, RedisError> {
        let n = &self.inner.names;
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(&n.group).arg(&n.consumer).arg("COUNT").arg(count);
        cmd.arg("BLOCK").arg(self.inner.block.as_millis() as u64).arg("STREAMS").arg(&n.stream).arg(">");
        let reply: Value = cmd.query_async(conn).await?;
        replies::new_messages(reply)
            .map_err(|e| RedisError::from((redis::ErrorKind::Client, "unexpected reply", e.to_string())))
    }

    /// Ids of this consumer's pending messages from `from` on.
    pub(super) async fn pending(
        &self,
        from: MessageId,
        count: usize,
    ) -> Result<Vec<MessageId>, RedisFailure> {
        let n = &self.inner.names;
        let mut pipe = redis::pipe();
        pipe.cmd("XPENDING").arg(&n.stream).arg(&n.group).arg(from.to_string()).arg("+").arg(count);
        pipe.arg(&n.consumer);
        let reply = self.ask(&pipe).await?.into_iter().next().unwrap_or(Value::Nil);
        Ok(replies::pending_ids(reply)?)
    }

    /// These entries of the stream; `None` for one that was trimmed away.
    pub(super) async fn entries(&self, ids: &[MessageId]) -> Result<Vec<Option<Message>>, RedisFailure> {
        let mut pipe = redis::pipe();
        for id in ids {
            let id = id.to_string();
            pipe.cmd("XRANGE").arg(&self.inner.names.stream).arg(&id).arg(&id);
        }
        let replies = self.ask(&pipe).await?;
        let entries = ids.iter().zip(replies).map(|(id, reply)| replies::entry_at(*id, reply));
        Ok(entries.collect::<Result<Vec<_>, ReplyError>>()?)
    }

    /// What Redis records about these jobs.
    pub async fn records(&self, jobs: &[JobId]) -> Result<Vec<JobRecord>, RedisFailure> {
        let mut pipe = redis::pipe();
        for job in jobs {
            let status = status_key(job);
            pipe.cmd("HGET").arg(&status).arg("state");
            pipe.cmd("HGET").arg(&status).arg("message_id");
            pipe.cmd("GET").arg(cancel_key(job));
        }
        let mut replies = self.ask(&pipe).await?.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let record = |_| {
            Ok(JobRecord {
                state: replies::hash_field("HGET", next())?,
                message_id: replies::hash_field("HGET", next())?,
                cancelled: replies::existence("GET", next())?,
            })
        };
        Ok(jobs.iter().map(record).collect::<Result<Vec<_>, ReplyError>>()?)
    }

    /// Which of these jobs have a cancel key.
    pub async fn cancelled(&self, jobs: &[JobId]) -> Result<Vec<bool>, RedisFailure> {
        let mut pipe = redis::pipe();
        for job in jobs {
            pipe.cmd("GET").arg(cancel_key(job));
        }
        let replies = self.ask(&pipe).await?.into_iter();
        Ok(replies.map(|reply| replies::existence("GET", reply)).collect::<Result<Vec<_>, ReplyError>>()?)
    }

    /// Why the server refuses writes now, in its own words.
    pub fn write_refusal(&self) -> Option<String> {
        self.inner.refusal.lock().clone()
    }

    /// Notes whether the last writes were refused, and logs each change once.
    pub(super) fn note_refusal(&self, refusal: Option<String>) {
        let mut known = self.inner.refusal.lock();
        if *known == refusal {
            return;
        }
        match &refusal {
            Some(error) => tracing::error!(error, "Redis refuses writes; they are kept and tried again"),
            None => tracing::info!("Redis takes writes again"),
        }
        *known = refusal;
    }

    /// Sends a pipeline of reads; an error of a single command comes back as that value.
    pub(super) async fn ask(&self, pipe: &Pipeline) -> Result<Vec<Value>, RedisFailure> {
        let Link { connection, generation } = self.inner.link.borrow().clone();
        let Some(mut connection) = connection else { return Err(RedisFailure::Down("not connected".into())) };
        let count = pipe.len();
        connection.send_packed_commands(pipe, 0, count).await.map_err(|e| {
            let lost = self.inner.link.send_if_modified(|link| {
                let same = link.generation == generation && link.is_up();
                if same {
                    link.connection = None;
                }
                same
            });
            if lost {
                self.inner.failed.notify_one();
            }
            RedisFailure::Down(e.to_string())
        })
    }

    /// A connection for one command of an operator.
    ///
    /// # Errors
    /// When the server can't be reached, without the URL's secrets.
    pub(super) async fn own_connection(&self) -> Result<MultiplexedConnection, String> {
        let i = &self.inner;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(i.timeout))
            .set_response_timeout(Some(i.timeout));
        let connected = i.client.get_multiplexed_async_connection_with_config(&config).await;
        connected.map_err(|e| masked(&e, &i.url))
    }

    /// An error's text without the URL's secrets.
    pub(super) fn masked(&self, error: &RedisError) -> String {
        masked(error, &self.inner.url)
    }

    /// A look at the server and the stream for diagnosis, on a connection of its own. What the account may not
    /// ask is left out.
    ///
    /// # Errors
    /// When the server can't be reached, without the URL's secrets.
    pub async fn look(&self) -> Result<Look, String> {
        let (i, n) = (&self.inner, &self.inner.names);
        let mut conn = self.own_connection().await?;
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server");
        pipe.cmd("XLEN").arg(&n.stream);
        pipe.cmd("XPENDING").arg(&n.stream).arg(&n.group);
        let count = pipe.len();
        let replies = conn.send_packed_commands(&pipe, 0, count).await.map_err(|e| masked(&e, &i.url))?;
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let version = text(next()).and_then(|info| {
            let line = info.lines().find_map(|l| l.strip_prefix("redis_version:"))?;
            Some(format!("version {}", line.trim()))
        });
        let length = number(next());
        let pending = match next() {
            Value::Array(parts) => parts.into_iter().next().and_then(number),
            _ => None,
        };
        Ok(Look { version, length, pending })
    }

    /// Writes without being asked after; nothing happens when Redis is down.
    pub fn write_best_effort(&self, write: Write) {
        self.queue(write, Durability::BestEffort(None));
    }

    /// Writes and waits for the confirmation.
    ///
    /// # Errors
    /// At once when Redis is down, or when it goes down meanwhile.
    pub async fn write(&self, write: Write) -> Result<(), RedisFailure> {
        let (answer, wait) = oneshot::channel();
        self.queue(write, Durability::BestEffort(Some(answer)));
        wait.await.unwrap_or_else(|_| Err(RedisFailure::Down("the host is stopping".into())))
    }

    /// Writes and waits until Redis has confirmed it, however long that takes. False when the host stops.
    pub async fn write_until_confirmed(&self, write: Write) -> bool {
        let (answer, wait) = oneshot::channel();
        self.queue(write, Durability::UntilConfirmed(answer));
        wait.await.is_ok()
    }

    fn queue(&self, write: Write, durability: Durability) {
        if self.inner.writes.send((write, durability)).is_err() {
            tracing::debug!("a write to Redis came after its queue had ended");
        }
    }
}

/// An error's text without the URL's secrets.
pub(super) fn masked(error: &RedisError, url: &Secret) -> String {
    let text = error.to_string();
    let password = url::Url::parse(url.expose()).ok().and_then(|u| u.password().map(String::from));
    match password.filter(|p| !p.is_empty()) {
        Some(p) => text.replace(&p, "***"),
        None => text,
    }
}

/// `?db=` of a URL, which the client library reads for sockets only.
fn query_db(url: &str) -> Option<i64> {
    let url = url::Url::parse(url).ok()?;
    url.query_pairs().find(|(k, _)| k == "db").and_then(|(_, v)| v.parse().ok())
}

pub(super) fn number(value: Value) -> Option<i64> {
    match value {
        Value::Int(n) => Some(n),
        _ => None,
    }
}

pub(super) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_bad_ones_masked() {
        let new = |url: &str| {
            let names = Names::new("q", "worker-0");
            let timeout = Duration::from_secs(1);
            Redis::new(&Secret::new(url), names, None, timeout, timeout).map(|(r, _)| r)
        };
        let info = |url: &str| {
            let redis = new(url).unwrap_or_else(|e| panic!("{url}: {e}"));
            redis.inner.client.get_connection_info().clone()
        };
        let i = info("redis://node:p%40ss%23w@127.0.0.1:6380/2");
        assert_eq!(
            (i.redis_settings().username(), i.redis_settings().password()),
            (Some("node"), Some("p@ss#w"))
        );
        assert_eq!(i.redis_settings().db(), 2);
        assert_eq!(info("redis://127.0.0.1:6380?db=3").redis_settings().db(), 3);
        assert_eq!(info("unix:///run/redis.sock?db=4").redis_settings().db(), 4);
        for url in ["", "http://h", "127.0.0.1:6379", "redis://u:SECRET@h:port"] {
            let e = new(url).err().unwrap_or_else(|| panic!("{url} is accepted")).to_string();
            assert!(!e.contains("SECRET"), "{e}");
        }
    }
}
