//! An error that may stand for long or come and go, and is logged all the same only now and then. Pure.
//!
//! What is known at any moment is for `/ready`; the log has the beginning and the end. A server that refuses every
//! command with another text, or every second command, would otherwise fill the disk.

use std::time::Duration;

/// The log hears of one kind of error no more often than this.
pub const LOG_PAUSE: Duration = Duration::from_secs(60);

/// One kind of error: whether it stands, in whose words, and when the log heard of it last.
#[derive(Debug, Clone, Default)]
pub struct StandingError {
    text: Option<String>,
    logged_at: Option<Duration>,
    /// The log has its beginning and not yet its end.
    is_logged: bool,
}

impl StandingError {
    /// Notes the error as it is now; true when the log is to hear of it.
    pub fn fails(&mut self, now: Duration, text: String) -> bool {
        self.text = Some(text);
        let is_due = self.logged_at.is_none_or(|at| now.saturating_sub(at) >= LOG_PAUSE);
        if is_due {
            self.logged_at = Some(now);
            self.is_logged = true;
        }
        is_due
    }

    /// Notes that it is over; true when the log is to hear of that.
    pub fn works(&mut self) -> bool {
        self.text = None;
        std::mem::take(&mut self.is_logged)
    }

    /// The error in its newest words, while it stands.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_error_is_logged_when_it_begins_once_a_minute_and_when_it_ends() {
        let mut error = StandingError::default();
        assert!(!error.works(), "there was none");
        assert!(error.fails(SECOND, "request 1".into()));
        assert!(!error.fails(60 * SECOND, "request 2".into()));
        assert_eq!(error.text(), Some("request 2"), "the newest words are known");
        assert!(error.fails(61 * SECOND, "request 3".into()));
        assert!(error.works());
        assert_eq!(error.text(), None);
        assert!(!error.works());
    }

    #[test]
    fn one_that_comes_and_goes_is_logged_no_more_often() {
        let mut error = StandingError::default();
        let mut lines = 0;
        for n in 0..1_200_u32 {
            lines += usize::from(error.fails(n * SECOND / 10, "refused".into()));
            assert_eq!(error.text(), Some("refused"));
            lines += usize::from(error.works());
        }
        assert_eq!(lines, 4, "two beginnings and two ends in two minutes");
    }
}
