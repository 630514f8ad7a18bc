//! Pure: how long ago a job was submitted, by elapsed time: a clock that is set ends no job that waits.
//!
//! Only this process knows that of the jobs that were submitted to it. Of others the log's clock tells.

use std::collections::VecDeque;
use std::time::Duration;

/// When the last jobs were submitted here. Jobs are taken in the order of their submission, so those that wait are among
/// the last ones.
#[derive(Debug)]
pub struct SubmissionTimes {
    /// Job ids with their times, which are elapsed since any fixed moment; the oldest first.
    times: VecDeque<(String, Duration)>,
    most: usize,
}

impl SubmissionTimes {
    /// Of so many jobs, which is at least the number of those that may wait.
    pub fn new(most: usize) -> SubmissionTimes {
        SubmissionTimes { times: VecDeque::new(), most: most.max(1) }
    }

    /// A job is submitted at this moment.
    pub fn submitted(&mut self, job_id: &str, now: Duration) {
        if self.times.len() >= self.most {
            self.times.pop_front();
        }
        self.times.push_back((job_id.into(), now));
    }

    /// How long ago a job was submitted; none when that is not known.
    pub fn age(&self, job_id: &str, now: Duration) -> Option<Duration> {
        let found = self.times.iter().find(|(id, _)| id == job_id);
        found.map(|(_, at)| now.saturating_sub(*at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_age_of_the_last_jobs_is_known() {
        let seconds = Duration::from_secs;
        let mut times = SubmissionTimes::new(2);
        assert_eq!(times.age("a", seconds(1)), None);
        for (n, id) in ["a", "b", "c"].iter().enumerate() {
            times.submitted(id, seconds(n as u64));
        }
        assert_eq!(times.age("a", seconds(9)), None, "it has long been taken");
        assert_eq!(
            (times.age("b", seconds(9)), times.age("c", seconds(9))),
            (Some(seconds(8)), Some(seconds(7)))
        );
    }
}
