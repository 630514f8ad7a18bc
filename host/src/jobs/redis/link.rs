//! The connections: made by the reader, used by everybody, given up on the first command that is not answered.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo as _, Pipeline, RedisError, TlsCertificates, Value,
};
use tokio::sync::{Notify, watch};

use super::replies::ReplyError;
use crate::error::{Explain, exit};
use crate::model::{Secret, masked_url};

#[derive(Debug, thiserror::Error)]
pub enum RedisSettingsError {
    #[error("the Redis URL {url} can't be used: {text}")]
    Url { url: String, text: String },
    #[error("the CA file {} can't be read", path.display())]
    CaFile { path: PathBuf, source: std::io::Error },
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
    /// The server can't be reached, or did not answer in time.
    #[error("Redis is unreachable: {0}")]
    Down(String),
    /// It answers with an error, or with something else than an answer.
    #[error(transparent)]
    Reply(#[from] ReplyError),
}

/// The shared connection while it works, and how often it was made: an old connection's late error must
/// not take down its successor.
#[derive(Clone)]
pub struct LinkState {
    connection: Option<MultiplexedConnection>,
    generation: u64,
    /// Why there is no connection.
    down: String,
}

impl LinkState {
    pub fn is_up(&self) -> bool {
        self.connection.is_some()
    }

    /// Why the link is down.
    pub fn error(&self) -> Option<&str> {
        match self.connection {
            Some(_) => None,
            None => Some(&self.down),
        }
    }
}

/// The handle; clones share the connection.
#[derive(Clone)]
pub struct RedisLink {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    url: Secret,
    timeout: Duration,
    block: Duration,
    state: watch::Sender<LinkState>,
    /// The link went down on a command: the reader should connect again.
    failed: Notify,
}

impl RedisLink {
    pub(super) fn new(
        url: &Secret,
        ca_file: Option<&Path>,
        timeout: Duration,
        block: Duration,
    ) -> Result<RedisLink, RedisSettingsError> {
        let state = LinkState { connection: None, generation: 0, down: "not connected yet".into() };
        let inner = Inner {
            client: client(url, ca_file)?,
            url: url.clone(),
            timeout,
            block,
            state: watch::Sender::new(state),
            failed: Notify::new(),
        };
        Ok(RedisLink { inner: Arc::new(inner) })
    }

    /// Whether the link is up.
    pub fn is_up(&self) -> bool {
        self.inner.state.borrow().is_up()
    }

    /// Why the link is down; `None` while it is up.
    pub fn error(&self) -> Option<String> {
        self.inner.state.borrow().error().map(String::from)
    }

    /// Becomes visible whenever the link goes up or down.
    pub fn changes(&self) -> watch::Receiver<LinkState> {
        self.inner.state.subscribe()
    }

    /// Waits until the link is up, at most `limit`.
    pub async fn wait_up(&self, limit: Duration) -> bool {
        let mut state = self.changes();
        matches!(tokio::time::timeout(limit, state.wait_for(LinkState::is_up)).await, Ok(Ok(_)))
    }

    /// How long the server may hold a blocking read.
    pub(super) fn block(&self) -> Duration {
        self.inner.block
    }

    /// Makes both connections and returns the reader's. The former shared connection, if there is one, works until
    /// then.
    ///
    /// # Errors
    /// When the server can't be reached, does not answer or refuses the login.
    pub(super) async fn connect(&self) -> Result<MultiplexedConnection, RedisFailure> {
        let i = &self.inner;
        // The read's own timeout lies above the time that the server holds it.
        let blocking = self.open(i.timeout + i.block).await?;
        let shared = self.open(i.timeout).await?;
        i.state.send_modify(|state| {
            state.connection = Some(shared);
            state.generation += 1;
        });
        Ok(blocking)
    }

    /// One more connection, with the time in which each of its commands must be answered.
    async fn open(&self, response_timeout: Duration) -> Result<MultiplexedConnection, RedisFailure> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.inner.timeout))
            .set_response_timeout(Some(response_timeout));
        let opened = self.inner.client.get_multiplexed_async_connection_with_config(&config).await;
        let mut connection = opened.map_err(|error| RedisFailure::Down(self.masked(&error)))?;
        // A server that hangs takes connections all the same, and without a password nothing is asked when one is
        // made. Any answer will do, a refusal as well.
        self.ask_on(&mut connection, redis::pipe().cmd("PING")).await?;
        Ok(connection)
    }

    /// A connection for the commands of an operator.
    ///
    /// # Errors
    /// When the server can't be reached or refuses the login.
    pub(super) async fn own_connection(&self) -> Result<MultiplexedConnection, RedisFailure> {
        self.open(self.inner.timeout).await
    }

    /// Notes that the link is gone, and why.
    pub fn set_down(&self, why: &str) {
        self.inner.state.send_modify(|state| {
            state.connection = None;
            state.down = why.to_string();
        });
    }

    /// Waits until the link has gone down on a command, and returns why.
    pub async fn wait_failed(&self) -> String {
        loop {
            if let Some(why) = self.error() {
                return why;
            }
            self.inner.failed.notified().await;
        }
    }

    /// Sends a pipeline on the shared connection; an error of a single command comes back as that value.
    ///
    /// # Errors
    /// When the link is down or goes down.
    pub(super) async fn ask(&self, pipe: &Pipeline) -> Result<Vec<Value>, RedisFailure> {
        let LinkState { connection, generation, down } = self.inner.state.borrow().clone();
        let Some(mut connection) = connection else { return Err(RedisFailure::Down(down)) };
        self.ask_on(&mut connection, pipe).await.inspect_err(|failure| {
            let lost = self.inner.state.send_if_modified(|state| {
                let same = state.generation == generation && state.is_up();
                if same {
                    state.connection = None;
                    state.down = match failure {
                        RedisFailure::Down(why) => why.clone(),
                        RedisFailure::Reply(error) => error.to_string(),
                    };
                }
                same
            });
            if lost {
                self.inner.failed.notify_one();
            }
        })
    }

    /// Sends a pipeline on a connection of the caller's; an error of a single command comes back as that value.
    ///
    /// # Errors
    /// When the connection fails.
    pub(super) async fn ask_on(
        &self,
        connection: &mut MultiplexedConnection,
        pipe: &Pipeline,
    ) -> Result<Vec<Value>, RedisFailure> {
        let sent = connection.send_packed_commands(pipe, 0, pipe.len()).await;
        sent.map_err(|error| RedisFailure::Down(self.masked(&error)))
    }

    /// Sends one command on a connection of the caller's; its refusal is a value.
    ///
    /// # Errors
    /// When the connection fails.
    pub(super) async fn ask_one_on(
        &self,
        connection: &mut MultiplexedConnection,
        command: Cmd,
    ) -> Result<Value, RedisFailure> {
        let mut pipe = redis::pipe();
        pipe.add_command(command);
        let replies = self.ask_on(connection, &pipe).await?;
        Ok(replies.into_iter().next().unwrap_or(Value::Nil))
    }

    /// An error's text without the URL's secrets.
    fn masked(&self, error: &RedisError) -> String {
        masked(error, &self.inner.url)
    }
}

fn client(url: &Secret, ca_file: Option<&Path>) -> Result<Client, RedisSettingsError> {
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
    match ca_file.filter(|_| url.expose().starts_with("rediss:")) {
        None => Client::open(info).map_err(bad),
        Some(path) => {
            let read = |source| RedisSettingsError::CaFile { path: path.to_path_buf(), source };
            let root_cert = Some(std::fs::read(path).map_err(read)?);
            let certs = TlsCertificates { client_tls: None, root_cert };
            Client::build_with_tls(info, certs).map_err(bad)
        }
    }
}

/// An error's text without the URL's secrets.
fn masked(error: &RedisError, url: &Secret) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_bad_ones_masked() {
        let new = |url: &str| {
            let timeout = Duration::from_secs(1);
            RedisLink::new(&Secret::new(url), None, timeout, timeout)
        };
        let info = |url: &str| {
            let link = new(url).unwrap_or_else(|e| panic!("{url}: {e}"));
            link.inner.client.get_connection_info().clone()
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
