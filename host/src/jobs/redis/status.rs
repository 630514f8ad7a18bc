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

    /// What Redis records about each of these jobs. The keys of one may be refused and those of others not.
    ///
    /// # Errors
    /// When the server can't be reached.
    pub async fn records(&self, jobs: &[JobId]) -> Result<Vec<Result<JobRecord, ReplyError>>, RedisFailure> {
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
            // All three are taken, so that the next job's are not mistaken for this one's.
            let (state, message_id, cancelled) = (next(), next(), next());
            Ok(JobRecord {
                state: replies::hash_field("HGET", state)?,
                message_id: replies::hash_field("HGET", message_id)?,
                cancelled: replies::existence("GET", cancelled)?,
            })
        };
        Ok(jobs.iter().map(record).collect())
    }

    /// Whether each of these jobs has a cancel key.
    ///
    /// # Errors
    /// When the server can't be reached.
    pub async fn cancelled(&self, jobs: &[JobId]) -> Result<Vec<Result<bool, ReplyError>>, RedisFailure> {
        let mut pipe = redis::pipe();
        for job in jobs {
            pipe.cmd("GET").arg(cancel_key(job));
        }
        let replies = self.link.ask(&pipe).await?.into_iter();
        Ok(replies.map(|reply| replies::existence("GET", reply)).collect())
    }
}
