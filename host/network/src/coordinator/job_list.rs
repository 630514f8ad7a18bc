//! All jobs of the event log, page by page, from the newest to the oldest.
//!
//! A page begins behind a job, so pages stay the same while new jobs come. A page of a few statuses looks through a
//! bounded number of jobs: it may have fewer than were asked for, none too, and tell where to go on.

use super::job_view::{JobStatus, JobSummary, status_of_kind};
use super::service::Service;
use crate::peers::wire::time;
use crate::reservation::log::{JobRow, LogError};

/// Jobs that one look into the log reads.
const BATCH: usize = 200;
/// Jobs that one page looks through.
const MAX_SCANNED: usize = 5_000;

/// What is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobListQuery {
    /// Jobs of these statuses; none: of any.
    pub statuses: Vec<JobStatus>,
    pub limit: usize,
    /// The last job of the page before.
    pub after: Option<String>,
}

/// A page of jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPage {
    pub jobs: Vec<JobSummary>,
    /// The job behind which the next page begins, if there may be one.
    pub next: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error("there is no job '{0}' behind which to go on")]
    UnknownCursor(String),
    #[error(transparent)]
    Log(#[from] LogError),
}

impl Service {
    /// A page of the jobs.
    ///
    /// # Errors
    /// When the job to begin behind is unknown, or the log can't be read.
    pub async fn list(&self, query: &JobListQuery) -> Result<JobPage, ListError> {
        let log = &self.runner.log;
        let mut position = match &query.after {
            None => None,
            Some(id) => {
                let found = log.job_position(id).await?;
                Some(found.ok_or_else(|| ListError::UnknownCursor(id.clone()))?)
            }
        };
        let mut page = JobPage { jobs: Vec::new(), next: None };
        let mut scanned = 0;
        // One more tells whether there is a page behind this one.
        let batch = if query.statuses.is_empty() { query.limit + 1 } else { BATCH };
        loop {
            let rows = log.jobs(position, batch).await?;
            let is_last = rows.len() < batch;
            let count = rows.len();
            for (n, row) in rows.into_iter().enumerate() {
                position = Some(row.position);
                let summary = self.summary_of(row);
                let is_wanted = query.statuses.is_empty() || query.statuses.contains(&summary.status);
                let job_id = summary.job_id.clone();
                if is_wanted {
                    page.jobs.push(summary);
                }
                if page.jobs.len() >= query.limit {
                    let is_end = is_last && n + 1 == count;
                    page.next = (!is_end).then_some(job_id);
                    return Ok(page);
                }
                page.next = Some(job_id);
            }
            scanned += count;
            if is_last {
                page.next = None;
                return Ok(page);
            }
            if scanned >= MAX_SCANNED {
                return Ok(page);
            }
        }
    }

    /// A job in short: as memory knows it, or as its last fact tells.
    fn summary_of(&self, row: JobRow) -> JobSummary {
        if let Some(live) = self.jobs.get(&row.job_id) {
            return live.view.borrow().summary(&row.job_id);
        }
        let status = status_of_kind(&row.last_kind);
        JobSummary {
            job_id: row.job_id,
            status,
            shots: u32::try_from(row.shots).unwrap_or(u32::MAX),
            submitted_at: Some(time(row.submitted_at)),
            finished_at: status.is_final().then(|| time(row.last_at)),
            error: row.error.filter(|_| status.is_final()),
            progress: None,
        }
    }
}
