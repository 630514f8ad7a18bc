//! Taking over what another consumer of the group left behind, when its host is gone for good.
//!
//! The messages are claimed for this host's own consumer, unchanged; whatever host runs under that name takes them
//! up like any of its own. Nothing here tells a dead consumer from one with a long job: that is the operator's to
//! know, and only a consumer that was active just now is refused.

use std::time::Duration;

use redis::Value;
use redis::aio::{ConnectionLike as _, MultiplexedConnection};

use super::redis::{Redis, number, text};
use super::replies::server_words;
use crate::model::MessageId;

/// Messages claimed in one command.
const PAGE: usize = 100;

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
    /// Every consumer of the group.
    ///
    /// # Errors
    /// When the server can't be reached or refuses, without the URL's secrets.
    pub async fn consumers(&self) -> Result<Vec<Consumer>, String> {
        let mut conn = self.own_connection().await?;
        let n = self.names();
        let mut info = redis::cmd("XINFO");
        info.arg("CONSUMERS").arg(&n.stream).arg(&n.group);
        match self.one(&mut conn, &info).await? {
            Value::Array(rows) => return Ok(rows.into_iter().filter_map(consumer).collect()),
            // The stream or the group isn't there yet.
            Value::ServerError(e) if e.details().is_some_and(|d| d.contains("no such key")) => {
                return Ok(Vec::new());
            }
            Value::ServerError(e) if e.code() == "NOGROUP" => return Ok(Vec::new()),
            // Not allowed, or an answer of another shape: the pending list has the names.
            _ => {}
        }
        let mut pending = redis::cmd("XPENDING");
        pending.arg(&n.stream).arg(&n.group);
        let rows = match self.one(&mut conn, &pending).await? {
            Value::Array(parts) => parts.into_iter().nth(3),
            Value::ServerError(e) => return Err(server_words(&e)),
            _ => None,
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
    pub async fn adopt(&self, from: &str) -> Result<u64, String> {
        let mut conn = self.own_connection().await?;
        let n = self.names();
        let (mut start, mut adopted) = (MessageId::ZERO, 0);
        loop {
            let mut pending = redis::cmd("XPENDING");
            pending.arg(&n.stream).arg(&n.group).arg(start.to_string()).arg("+").arg(PAGE).arg(from);
            let rows = match self.one(&mut conn, &pending).await? {
                Value::Array(rows) => rows,
                Value::ServerError(e) => return Err(server_words(&e)),
                _ => Vec::new(),
            };
            let id = |row: Value| match row {
                Value::Array(columns) => text(columns.into_iter().next()?)?.parse::<MessageId>().ok(),
                _ => None,
            };
            let ids: Vec<MessageId> = rows.into_iter().filter_map(id).collect();
            let Some(last) = ids.last() else { return Ok(adopted) };
            start = last.next();
            let mut claim = redis::cmd("XCLAIM");
            claim.arg(&n.stream).arg(&n.group).arg(&n.consumer).arg(0);
            for id in &ids {
                claim.arg(id.to_string());
            }
            claim.arg("JUSTID");
            match self.one(&mut conn, &claim).await? {
                // Entries that were trimmed away are not among them.
                Value::Array(claimed) => adopted += claimed.len() as u64,
                Value::ServerError(e) => return Err(server_words(&e)),
                _ => {}
            }
        }
    }

    /// One command, whose refusal is a value.
    async fn one(&self, conn: &mut MultiplexedConnection, cmd: &redis::Cmd) -> Result<Value, String> {
        let mut pipe = redis::pipe();
        pipe.add_command(cmd.clone());
        let replies = conn.req_packed_commands(&pipe, 0, 1).await.map_err(|e| self.masked(&e))?;
        Ok(replies.into_iter().next().unwrap_or(Value::Nil))
    }
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
