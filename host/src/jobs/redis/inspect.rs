//! What an operator asks and does, on a separate connection: a look at the server, the commands that the account
//! may send, the consumers of the group, and taking over what a dead one left.
//!
//! Adopted messages are claimed for this host's own consumer, unchanged; the host that runs under that name takes
//! them up like its own. A dead consumer can't be told from one with a long job: that is the operator's to
//! know, and only a consumer that was active just now is refused.

use std::time::Duration;

use redis::{Cmd, Value};

use super::replies::{ReplyError, number, pending_ids, server_words, text, unexpected};
use super::status::{cancel_key, status_key};
use super::{Redis, RedisFailure};
use crate::model::MessageId;

/// Messages claimed in one command.
const PAGE: usize = 100;
/// The job whose keys are tried: no job has this id.
const PROBE_JOB: &str = "coda-host-doctor";

/// What a look at the server finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    pub version: Option<String>,
    /// Messages in the stream.
    pub length: Option<i64>,
    /// Messages delivered to the group and not acknowledged; `None` without a group.
    pub pending: Option<i64>,
}

/// A consumer as the group knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    pub name: String,
    /// Messages delivered to it and not acknowledged.
    pub pending: u64,
    /// Since it last read; `None` where the account may not ask.
    pub idle: Option<Duration>,
}

impl Redis {
    /// A look at the server and the stream. What the account may not ask is left out.
    ///
    /// # Errors
    /// When the server can't be reached, without the URL's secrets.
    pub async fn view(&self) -> Result<ServerView, RedisFailure> {
        let n = &self.names;
        let mut conn = self.link.own_connection().await?;
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("server");
        pipe.cmd("XLEN").arg(&n.stream);
        pipe.cmd("XPENDING").arg(&n.stream).arg(&n.group);
        let mut replies = self.link.ask_on(&mut conn, &pipe).await?.into_iter();
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
        Ok(ServerView { version, length, pending })
    }

    /// Tries every command of the job path on the keys that it uses, in a form that changes nothing, and returns those
    /// that the server refuses, in its own words.
    ///
    /// The server looks at its rights and its state before it looks at a command's arguments. A command with a wrong
    /// argument is therefore refused for the reason for which the right one would be, and otherwise with a plain `ERR`.
    ///
    /// # Errors
    /// When the server can't be reached, without the URL's secrets.
    pub async fn refused_commands(&self) -> Result<Vec<ReplyError>, RedisFailure> {
        let n = &self.names;
        let (status, cancel, none) = (status_key(PROBE_JOB), cancel_key(PROBE_JOB), MessageId::ZERO);
        let command = |args: &[&str]| {
            let mut cmd = Cmd::new();
            cmd.arg(args);
            cmd
        };
        let none = &*none.to_string();
        let probes: [(&'static str, Cmd); 8] = [
            ("XGROUP", command(&["XGROUP", "CREATE", &n.stream, &n.group, "not an id"])),
            // The consumer's own pending messages are listed again; none is delivered.
            (
                "XREADGROUP",
                command(&[
                    "XREADGROUP",
                    "GROUP",
                    &n.group,
                    &n.consumer,
                    "COUNT",
                    "1",
                    "STREAMS",
                    &n.stream,
                    "not an id",
                ]),
            ),
            ("XPENDING", command(&["XPENDING", &n.stream, &n.group, "-", "+", "1", &n.consumer])),
            ("XRANGE", command(&["XRANGE", &n.stream, none, none])),
            ("XACK", command(&["XACK", &n.stream, &n.group, "not an id"])),
            ("HSET", command(&["HSET", &status, "a field", "a value", "a field without a value"])),
            ("HGET", command(&["HGET", &status, "state"])),
            ("GET", command(&["GET", &cancel])),
        ];
        let mut conn = self.link.own_connection().await?;
        let mut pipe = redis::pipe();
        for (_, cmd) in &probes {
            pipe.add_command(cmd.clone());
        }
        let replies = self.link.ask_on(&mut conn, &pipe).await?;
        let refusal = |((command, _), reply): (&(&'static str, Cmd), Value)| match reply {
            Value::ServerError(error) if !matches!(error.code(), "ERR" | "NOGROUP" | "BUSYGROUP") => {
                Some(ReplyError::Refused { command, text: server_words(&error) })
            }
            _ => None,
        };
        Ok(probes.iter().zip(replies).filter_map(refusal).collect())
    }

    /// Every consumer of the group.
    ///
    /// # Errors
    /// When the server can't be reached or refuses, without the URL's secrets.
    pub async fn consumers(&self) -> Result<Vec<Consumer>, RedisFailure> {
        let mut conn = self.link.own_connection().await?;
        let n = &self.names;
        let mut info = redis::cmd("XINFO");
        info.arg("CONSUMERS").arg(&n.stream).arg(&n.group);
        match self.link.ask_one_on(&mut conn, info).await? {
            Value::Array(rows) => return Ok(rows.into_iter().filter_map(consumer).collect()),
            // The stream or the group isn't there yet.
            Value::ServerError(e) if e.details().is_some_and(|d| d.contains("no such key")) => {
                return Ok(Vec::new());
            }
            Value::ServerError(e) if e.code() == "NOGROUP" => return Ok(Vec::new()),
            // The account has no right to it: the pending list has the names.
            Value::ServerError(e) if e.code() == "NOPERM" => {}
            // Busy, loading or no list: nothing can be said of who is active, so nothing is to be taken from anybody.
            other => return Err(unlisted("XINFO", &other)),
        }
        let mut pending = redis::cmd("XPENDING");
        pending.arg(&n.stream).arg(&n.group);
        let rows = match self.link.ask_one_on(&mut conn, pending).await? {
            Value::Array(parts) => parts.into_iter().nth(3),
            other => return Err(unlisted("XPENDING", &other)),
        };
        let Some(Value::Array(rows)) = rows else { return Ok(Vec::new()) };
        let row = |row: Value| {
            let Value::Array(columns) = row else { return None };
            let mut columns = columns.into_iter();
            let (name, pending) = (text(columns.next()?)?, text(columns.next()?)?.parse().ok()?);
            Some(Consumer { name, pending, idle: None })
        };
        Ok(rows.into_iter().filter_map(row).collect())
    }

    /// Claims everything that is pending for `from` for this host's consumer, and returns how many messages it was.
    ///
    /// # Errors
    /// When the server can't be reached or refuses; what was claimed before stays claimed.
    pub async fn adopt(&self, from: &str) -> Result<u64, RedisFailure> {
        let mut conn = self.link.own_connection().await?;
        let n = &self.names;
        let (mut start, mut adopted) = (MessageId::ZERO, 0);
        loop {
            let mut pending = redis::cmd("XPENDING");
            pending.arg(&n.stream).arg(&n.group).arg(start.to_string()).arg("+").arg(PAGE).arg(from);
            let ids = pending_ids(self.link.ask_one_on(&mut conn, pending).await?)?;
            let Some(last) = ids.last() else { return Ok(adopted) };
            start = last.next();
            let mut claim = redis::cmd("XCLAIM");
            claim.arg(&n.stream).arg(&n.group).arg(&n.consumer).arg(0);
            for id in &ids {
                claim.arg(id.to_string());
            }
            claim.arg("JUSTID");
            match self.link.ask_one_on(&mut conn, claim).await? {
                // Entries that were trimmed away are not among them.
                Value::Array(claimed) => adopted += claimed.len() as u64,
                other => return Err(unlisted("XCLAIM", &other)),
            }
        }
    }
}

fn unlisted(command: &'static str, found: &Value) -> RedisFailure {
    unexpected(command, found, "a list").into()
}

/// `[name, N, pending, P, idle, MS, ...]`, in whatever order.
fn consumer(row: Value) -> Option<Consumer> {
    let Value::Array(fields) = row else { return None };
    let mut found = Consumer { name: String::new(), pending: 0, idle: None };
    let mut fields = fields.into_iter();
    while let (Some(key), Some(value)) = (fields.next(), fields.next()) {
        match text(key)?.as_str() {
            "name" => found.name = text(value)?,
            "pending" => found.pending = number(value)?.unsigned_abs(),
            "idle" => found.idle = number(value).map(|ms| Duration::from_millis(ms.unsigned_abs())),
            _ => {}
        }
    }
    (!found.name.is_empty()).then_some(found)
}
