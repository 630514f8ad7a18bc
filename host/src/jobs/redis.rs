//! Redis as the job path uses it.
//!
//! ```text
//! link      one connection for the blocking read, one shared by everything else; says when it is up
//! stream    what the reader asks: new messages, pending ones, entries
//! status    what is asked about jobs: status hash, cancel key
//! writes    what is written, in order, until it is confirmed
//! replies   replies of Redis: a value, an absence or an error, pure
//! inspect   what an operator asks, on a separate connection
//! ```
//!
//! The job path sends XGROUP, XREADGROUP, XPENDING, XRANGE, XACK, HGET, HSET and GET alone (and AUTH, SELECT; PING, whose
//! refusal is an answer as well), so that
//! a site's ACL may allow no more.

pub mod inspect;
mod link;
pub mod replies;
mod status;
mod stream;
mod writes;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::model::Secret;

pub use link::{LinkState, RedisFailure, RedisLink, RedisSettingsError};
pub use status::JobStatusReader;
pub use stream::{MessageStream, StreamConnection};
pub use writes::{Write, WriteQueue, Writer};

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

/// The Redis of one QPU. Clones share the link and the queue of writes.
#[derive(Clone)]
pub struct Redis {
    pub names: Arc<Names>,
    pub link: RedisLink,
    pub stream: MessageStream,
    pub status: JobStatusReader,
    pub writes: WriteQueue,
}

impl Redis {
    /// Checks the URL; connects nothing. The [`Writer`] is to be run as a task.
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
        let names = Arc::new(names);
        let link = RedisLink::new(url, ca_file, timeout, block)?;
        let (writes, writer) = writes::queue(link.clone(), names.clone());
        let redis = Redis {
            stream: MessageStream::new(link.clone(), names.clone()),
            status: JobStatusReader::new(link.clone()),
            writes,
            link,
            names,
        };
        Ok((redis, writer))
    }
}
