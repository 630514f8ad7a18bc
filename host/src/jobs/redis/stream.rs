//! What the reader asks of the stream, on its own connection: a large answer there delays no write.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;

use super::replies::{self, ReplyError};
use super::{Names, RedisFailure, RedisLink};
use crate::jobs::message::Message;
use crate::model::MessageId;

/// The stream of one QPU, to be connected.
#[derive(Clone)]
pub struct MessageStream {
    link: RedisLink,
    names: Arc<Names>,
}

impl MessageStream {
    pub(super) fn new(link: RedisLink, names: Arc<Names>) -> MessageStream {
        MessageStream { link, names }
    }

    /// Brings the link up.
    ///
    /// # Errors
    /// When the server can't be reached or refuses the login.
    pub async fn connect(&self) -> Result<StreamConnection, RedisFailure> {
        let connection = self.link.connect().await?;
        Ok(StreamConnection { connection, link: self.link.clone(), names: self.names.clone() })
    }

    /// One entry, on the shared connection; `None` when the stream has none with this id.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn entry(&self, id: MessageId) -> Result<Option<Message>, RedisFailure> {
        let replies = self.link.ask(&range_of(&self.names, &[id])).await?;
        let reply = replies.into_iter().next().unwrap_or(redis::Value::Nil);
        Ok(replies::entry_at(id, reply)?)
    }
}

/// Asks for each of these entries.
fn range_of(names: &Names, ids: &[MessageId]) -> redis::Pipeline {
    let mut pipe = redis::pipe();
    for id in ids {
        let id = id.to_string();
        pipe.cmd("XRANGE").arg(&names.stream).arg(&id).arg(&id);
    }
    pipe
}

/// The reader's connection.
pub struct StreamConnection {
    connection: MultiplexedConnection,
    link: RedisLink,
    names: Arc<Names>,
}

impl StreamConnection {
    /// Creates the group from the stream's beginning, so that jobs sent before the first start are run. A group that
    /// is there already stays as it is.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn create_group(&mut self) -> Result<(), RedisFailure> {
        let n = &self.names;
        let mut cmd = redis::cmd("XGROUP");
        cmd.arg("CREATE").arg(&n.stream).arg(&n.group).arg("0").arg("MKSTREAM");
        let created = replies::confirmation("XGROUP", self.link.ask_one_on(&mut self.connection, cmd).await?);
        match created {
            Err(refused) if refused.code() == Some("BUSYGROUP") => Ok(()),
            created => Ok(created?),
        }
    }

    /// Up to `count` new messages; an empty list after the block time.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn read_new(&mut self, count: usize) -> Result<Vec<Message>, RedisFailure> {
        let n = &self.names;
        let mut cmd = redis::cmd("XREADGROUP");
        cmd.arg("GROUP").arg(&n.group).arg(&n.consumer).arg("COUNT").arg(count);
        cmd.arg("BLOCK").arg(self.link.block().as_millis() as u64).arg("STREAMS").arg(&n.stream).arg(">");
        Ok(replies::new_messages(self.link.ask_one_on(&mut self.connection, cmd).await?)?)
    }

    /// Ids of this consumer's pending messages from `from` on.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn pending(&mut self, from: MessageId, count: usize) -> Result<Vec<MessageId>, RedisFailure> {
        let n = &self.names;
        let mut cmd = redis::cmd("XPENDING");
        cmd.arg(&n.stream).arg(&n.group).arg(from.to_string()).arg("+").arg(count).arg(&n.consumer);
        Ok(replies::pending_ids(self.link.ask_one_on(&mut self.connection, cmd).await?)?)
    }

    /// These entries of the stream; `None` for one that was trimmed away.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn entries(&mut self, ids: &[MessageId]) -> Result<Vec<Option<Message>>, RedisFailure> {
        let pipe = range_of(&self.names, ids);
        let replies = self.link.ask_on(&mut self.connection, &pipe).await?;
        let entries = ids.iter().zip(replies).map(|(id, reply)| replies::entry_at(*id, reply));
        Ok(entries.collect::<Result<Vec<_>, ReplyError>>()?)
    }
}
