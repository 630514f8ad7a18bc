//! The time that `coda-host history` and `coda-host usage` look at.

use chrono::{DateTime, NaiveDate};
use time::OffsetDateTime;

use crate::error::{Explain, exit};

/// The moment at which a window begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowEdge {
    /// So many milliseconds before now.
    Ago(i64),
    /// In milliseconds since 1970.
    At(i64),
}

/// From `since` on and before `until`, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordWindow {
    pub since: i64,
    pub until: i64,
}

/// Why there is nothing to look at.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    #[error("--since is not before --until")]
    Reversed,
}

impl Explain for WindowError {
    fn code(&self) -> &'static str {
        "window"
    }

    fn hint(&self) -> Option<String> {
        Some("give --since the earlier time".into())
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Reads an edge as people write it.
///
/// # Errors
/// What is allowed.
pub fn edge(text: &str) -> Result<WindowEdge, String> {
    let text = text.trim();
    if let Ok(length) = humantime::parse_duration(text) {
        return Ok(WindowEdge::Ago(i64::try_from(length.as_millis()).unwrap_or(i64::MAX)));
    }
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(WindowEdge::At(time.timestamp_millis()));
    }
    match NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().and_then(|day| day.and_hms_opt(0, 0, 0)) {
        Some(midnight) => Ok(WindowEdge::At(midnight.and_utc().timestamp_millis())),
        None => {
            Err("write a length such as 24h or 7d, a day (2026-12-01, UTC), or a time as in RFC 3339".into())
        }
    }
}

impl RecordWindow {
    /// The window between two edges, as seen at `now`; without an end it ends after now.
    ///
    /// # Errors
    /// It ends before it begins.
    pub fn new(since: WindowEdge, until: Option<WindowEdge>, now: i64) -> Result<RecordWindow, WindowError> {
        let at = |edge| match edge {
            WindowEdge::Ago(ms) => now.saturating_sub(ms),
            WindowEdge::At(ms) => ms,
        };
        let window = RecordWindow { since: at(since), until: until.map_or(now.saturating_add(1), at) };
        if window.since < window.until { Ok(window) } else { Err(WindowError::Reversed) }
    }
}

/// This moment, in milliseconds since 1970.
pub fn now_ms() -> i64 {
    (OffsetDateTime::now_utc().unix_timestamp_nanos() / 1_000_000) as i64
}

/// A moment in UTC, written in this form of `chrono`.
pub fn utc(ms: i64, form: &str) -> String {
    DateTime::from_timestamp_millis(ms).unwrap_or_default().format(form).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_are_lengths_days_and_times() {
        const NOW: i64 = 1_796_083_200_000;
        let since = |text: &str| RecordWindow::new(edge(text).expect(text), None, NOW).map(|w| w.since);
        for (text, expected) in [
            ("7d", NOW - 7 * 86_400_000),
            (" 90m ", NOW - 5_400_000),
            ("2026-11-30", 1_795_996_800_000),
            ("2026-11-30T12:00:00+01:00", 1_796_036_400_000),
        ] {
            assert_eq!(since(text).expect(text), expected, "{text}");
        }
        for text in ["", "7", "yesterday", "2026-13-01", "30.11.2026"] {
            assert!(edge(text).is_err(), "{text}");
        }
        assert!(since("2126-01-01").is_err(), "begins after now");
        assert!(RecordWindow::new(WindowEdge::At(5), Some(WindowEdge::At(5)), NOW).is_err());
        assert_eq!(utc(1_795_996_800_000, "%Y-%m-%d %H:%M:%S"), "2026-11-30 00:00:00");
    }
}
