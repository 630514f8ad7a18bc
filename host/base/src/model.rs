//! Plain data that every room may use: identifiers, secrets, times.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use time::OffsetDateTime;
use time::format_description::BorrowedFormatItem;
use time::macros::format_description;

/// A job's id as the cloud names it (1 to 256 bytes of text without control characters).
pub type JobId = Arc<str>;

/// What peers may offer each other, in the order of the contract.
pub const SERVICES: [&str; 11] = [
    "hadamard",
    "cnot",
    "cz",
    "controlled_unitary",
    "programmable_gate",
    "qft",
    "teleportation",
    "bell_pair",
    "syndrome_extraction",
    "distillation",
    "measurement_feedforward",
];

/// A Redis Stream entry id, ordered as Redis orders them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub ms: u64,
    pub seq: u64,
}

impl MessageId {
    pub const ZERO: MessageId = MessageId { ms: 0, seq: 0 };

    /// The smallest id behind this one.
    pub fn next(self) -> MessageId {
        match self.seq.checked_add(1) {
            Some(seq) => MessageId { ms: self.ms, seq },
            None => MessageId { ms: self.ms.saturating_add(1), seq: 0 },
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MessageId {
    type Err = String;

    fn from_str(s: &str) -> Result<MessageId, String> {
        let parts = s.split_once('-').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (ms, seq) = parts.ok_or_else(|| format!("'{s}' is not a stream entry id"))?;
        Ok(MessageId { ms, seq })
    }
}

/// Text that must not reach a log: shown as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself. Name the use at the call: it goes to the wire or to a 0600 file, nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A URL without its user's password and query, for logs and errors; what isn't a URL is hidden whole.
pub fn masked_url(text: &str) -> String {
    match url::Url::parse(text) {
        Ok(mut url) => {
            // An '@' behind the host is the end of a password with a '/', '?' or '#' in it.
            let behind = [Some(url.path()), url.query(), url.fragment()];
            if behind.into_iter().flatten().any(|part| part.contains('@')) {
                return format!("{}://***", url.scheme());
            }
            let masked = match (url.password().is_some(), url.username().is_empty()) {
                (true, _) => url.set_password(Some("***")),
                // A user without a password is a token, most often.
                (false, false) => url.set_username("***"),
                (false, true) => Ok(()),
            };
            if masked.is_err() {
                return format!("{}://***", url.scheme());
            }
            if url.query().is_some() {
                url.set_query(Some("***"));
            }
            if url.fragment().is_some() {
                url.set_fragment(Some("***"));
            }
            url.to_string()
        }
        Err(_) => "*** (not a URL)".into(),
    }
}

/// A time as the protocol writes it: `2026-04-27T00:00:00.123456+00:00`, without the fraction when the
/// microseconds are 0, never `Z`.
pub fn iso_time(at: OffsetDateTime) -> String {
    const WHOLE: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]");
    const MICROS: &[BorrowedFormatItem<'_>] =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]");
    let at = at.to_offset(time::UtcOffset::UTC);
    let format = if at.microsecond() == 0 { WHOLE } else { MICROS };
    match at.format(format) {
        Ok(text) => text + "+00:00",
        // Only a year beyond 9999 has no such form.
        Err(_) => at.unix_timestamp().to_string(),
    }
}

/// The first `max` characters of a text (characters, not bytes).
pub fn cut(text: &str, max: usize) -> &str {
    match text.char_indices().nth(max) {
        Some((at, _)) => &text[..at],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn times_have_six_digits_or_none() {
        assert_eq!(iso_time(datetime!(2026-04-27 0:00:00 UTC)), "2026-04-27T00:00:00+00:00");
        let t = datetime!(2026-04-27 0:00:00.123456789 UTC);
        assert_eq!(iso_time(t), "2026-04-27T00:00:00.123456+00:00");
        let t = datetime!(2026-04-27 2:00:00.000000999 +2);
        assert_eq!(iso_time(t), "2026-04-27T00:00:00+00:00");
    }

    #[test]
    fn text_is_cut_between_characters() {
        let text = format!("{}é tail", "x".repeat(499));
        assert_eq!(cut(&text, 500), format!("{}é", "x".repeat(499)));
        assert_eq!(cut("🙏🙏🙏", 2), "🙏🙏");
        assert_eq!(cut("short", 500), "short");
    }

    #[test]
    fn passwords_never_show() {
        assert_eq!(masked_url("redis://u:p%40ss@h:6380/2"), "redis://u:***@h:6380/2");
        assert_eq!(masked_url("redis://h:6379"), "redis://h:6379");
        assert_eq!(masked_url("redis://u:p@ss@h:6380"), "redis://u:***@h:6380");
        assert_eq!(masked_url("https://token@h/x"), "https://***@h/x");
        for text in ["redis://u:1/ss@h:6380", "redis://u:1?ss@h", "https://u:1#ss@h/", "http://h/u:ss@x"] {
            assert!(!masked_url(text).contains("ss") && masked_url(text).ends_with("://***"), "{text}");
        }
        assert_eq!(masked_url("https://h/x#token"), "https://h/x#***");
        assert_eq!(masked_url("unix:///run/r.sock?pass=x"), "unix:///run/r.sock?***");
        assert_eq!(masked_url("p@ss word"), "*** (not a URL)");
        assert_eq!(format!("{:?} {}", Secret::new("s"), Secret::new("s")), "*** ***");
    }

    #[test]
    fn message_ids_order_by_number() {
        let id = |s: &str| s.parse::<MessageId>().unwrap();
        assert!(id("9-1") < id("10-0") && id("10-2") < id("10-10"));
        assert_eq!(id("5-18446744073709551615").next(), id("6-0"));
        assert!("5".parse::<MessageId>().is_err() && "a-1".parse::<MessageId>().is_err());
    }
}
