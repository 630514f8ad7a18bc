//! Pure: times, durations and numbers as people read them.

use maud::{Markup, html};
use time::OffsetDateTime;
use time::macros::format_description;

/// A moment in UTC, of today without its date. The script adds how long ago it was.
pub fn moment(at: OffsetDateTime, now: OffsetDateTime) -> Markup {
    let full = full_time(at);
    html! { time datetime=(full) title=(full) data-ago { (clock(at, now)) } }
}

/// A duration that goes on: from `since` on, which the script counts.
pub fn elapsed(since: OffsetDateTime, now: OffsetDateTime) -> Markup {
    let full = full_time(since);
    html! { time datetime=(full) title=(full) data-since { "since " (clock(since, now)) } }
}

fn clock(at: OffsetDateTime, now: OffsetDateTime) -> String {
    let day = format_description!("[year]-[month]-[day] ");
    let time = format_description!("[hour]:[minute]:[second] UTC");
    let date = if at.date() == now.date() { String::new() } else { at.format(day).unwrap_or_default() };
    date + &at.format(time).unwrap_or_default()
}

fn full_time(at: OffsetDateTime) -> String {
    let form = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    at.to_offset(time::UtcOffset::UTC).format(form).unwrap_or_default()
}

/// Seconds with the unit that fits, three digits at most: `1.25 ms`, `40 s`, `2 h 5 min`.
pub fn seconds(seconds: f64) -> String {
    let digits = |value: f64| match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    };
    match seconds {
        s if !s.is_finite() || s < 0.0 => "?".into(),
        s if s < 999.5e-6 => format!("{} us", digits(s * 1e6)),
        s if s < 0.9995 => format!("{} ms", digits(s * 1e3)),
        s if s < 119.5 => format!("{} s", digits(s)),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h {:.0} min", (s / 3600.0).floor(), (s % 3600.0 / 60.0).floor()),
    }
}

/// A whole number with thin spaces between groups of three digits.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// A number and its noun: `1 job`, `2 jobs`.
pub fn counted(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(n), if n == 1 { one } else { many })
}

/// A measured value with four significant digits.
pub fn value(v: f64) -> String {
    let size = v.abs();
    match size {
        s if !s.is_finite() => v.to_string(),
        0.0 => "0".into(),
        s if !(1e-3..1e6).contains(&s) => format!("{v:.3e}"),
        s => {
            let decimals = (3 - s.log10().floor() as i32).clamp(0, 6) as usize;
            let text = format!("{v:.decimals$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_the_unit_that_fits() {
        for (given, text) in [
            (0.0, "0.00 us"),
            (1.234e-4, "123 us"),
            (0.00125, "1.25 ms"),
            (0.9999, "1.00 s"),
            (40.0, "40.0 s"),
            (130.0, "2 min"),
            (7500.0, "2 h 5 min"),
            (f64::NAN, "?"),
        ] {
            assert_eq!(seconds(given), text);
        }
    }

    #[test]
    fn numbers_are_short_and_grouped() {
        assert_eq!((count(7), count(1234567)), ("7".into(), "1\u{202f}234\u{202f}567".into()));
        assert_eq!((counted(1, "job", "jobs"), counted(0, "job", "jobs")), ("1 job".into(), "0 jobs".into()));
        for (given, text) in [
            (0.015, "0.015"),
            (21.5, "21.5"),
            (3.0, "3"),
            (1234.5, "1234"),
            (1e-9, "1.000e-9"),
            (0.0, "0"),
            (f64::NAN, "NaN"),
        ] {
            assert_eq!(value(given), text);
        }
    }

    #[test]
    fn moments_of_another_day_have_their_date() {
        let now = OffsetDateTime::from_unix_timestamp(1_800_000_000).unwrap();
        assert!(moment(now, now).into_string().contains(">08:00:00 UTC<"));
        let text = moment(now - time::Duration::days(2), now).into_string();
        assert!(text.contains(">2027-01-13 08:00:00 UTC<"), "{text}");
        assert!(text.contains(r#"datetime="2027-01-13T08:00:00.000Z""#), "{text}");
    }
}
