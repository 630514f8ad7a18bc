//! What is asked about jobs: the status hash and the cancel key.

use redis::Value;

use super::replies::{self, ReplyError};
use super::{RedisFailure, RedisLink};
use crate::jobs::admission::JobRecord;
use crate::model::JobId;

pub(super) fn status_key(job: &str) -> String {
    format!("qpu:job:{job}:status")
}

pub(super) fn cancel_key(job: &str) -> String {
    format!("qpu:job:cancelled:{job}")
}

/// Asks about jobs on the shared connection.
#[derive(Clone)]
pub struct JobStatusReader {
    link: RedisLink,
}

impl JobStatusReader {
    pub(super) fn new(link: RedisLink) -> JobStatusReader {
        JobStatusReader { link }
    }

    /// What Redis records about these jobs.
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn records(&self, jobs: &[JobId]) -> Result<Vec<JobRecord>, RedisFailure> {
        let mut pipe = redis::pipe();
        for job in jobs {
            let status = status_key(job);
            pipe.cmd("HGET").arg(&status).arg("state");
            pipe.cmd("HGET").arg(&status).arg("message_id");
            pipe.cmd("GET").arg(cancel_key(job));
        }
        let mut replies = self.link.ask(&pipe).await?.into_iter();
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
    ///
    /// # Errors
    /// When the server can't be reached or refuses.
    pub async fn cancelled(&self, jobs: &[JobId]) -> Result<Vec<bool>, RedisFailure> {
        let mut pipe = redis::pipe();
        for job in jobs {
            pipe.cmd("GET").arg(cancel_key(job));
        }
        let replies = self.link.ask(&pipe).await?.into_iter();
        Ok(replies.map(|reply| replies::existence("GET", reply)).collect::<Result<Vec<_>, ReplyError>>()?)
    }
}
