//! Pure: the times of maintenance in an iCalendar file (RFC 5545), with recurrence and time zones.
//!
//! Every `VEVENT` is a window, except one that is cancelled or that its author marked as free (`TRANSP:TRANSPARENT`). An
//! event of days without times lasts from midnight to midnight. A time without a zone is one of this machine's zone. What
//! can't be understood makes the whole file wrong: a window that is left out would let a run begin in it.

use calcard::common::timezone::Tz;
use calcard::icalendar::dates::{CalendarErrorType, TimeOrDelta};
use calcard::icalendar::{
    ICalendar, ICalendarComponent, ICalendarComponentType, ICalendarEntry, ICalendarProperty,
    ICalendarStatus, ICalendarTransparency, ICalendarValue,
};
use calcard::{Entry, Parser};
use time::{Duration, OffsetDateTime};

use crate::error::{Explain, exit};
use crate::model::cut;

/// Largest file that is read.
pub const MAX_BYTES: u64 = 1 << 20;
/// Most windows that are looked ahead to.
const MAX_WINDOWS: usize = 1000;
/// How far ahead windows are looked for.
const AHEAD: Duration = Duration::days(400);
/// Most times of one event since its first.
const MAX_TIMES: usize = 20_000;
/// Longest summary that is shown, in bytes.
const MAX_SUMMARY: usize = 200;

/// A time in which no run begins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Window {
    pub begin: OffsetDateTime,
    /// Not part of it.
    pub end: OffsetDateTime,
    /// What the calendar says about it.
    pub summary: String,
}

/// Why a calendar can't be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CalendarError {
    #[error("the file has no calendar: {0}")]
    NoCalendar(String),
    #[error("the event '{event}' {what}")]
    Event { event: String, what: String },
}

impl Explain for CalendarError {
    fn code(&self) -> &'static str {
        "calendar"
    }

    fn hint(&self) -> Option<String> {
        Some("export the calendar again as an iCalendar file (RFC 5545), or correct what is named".into())
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// The windows that are not over at `now`, the next ones first.
///
/// # Errors
/// The text is not a calendar, or an event in it can't be understood.
pub fn windows(text: &str, zone: chrono_tz::Tz, now: OffsetDateTime) -> Result<Vec<Window>, CalendarError> {
    let mut windows = Vec::new();
    for calendar in calendars(text)? {
        let (zones, events): (Vec<_>, Vec<_>) =
            calendar.components.into_iter().partition(|c| c.component_type != ICalendarComponentType::VEvent);
        for uid in uids(&events) {
            // An event alone, with its exceptions: a rule without an end must not use up what others may.
            let of_uid = events.iter().filter(|event| event.uid().map(String::from) == uid);
            let components = zones.iter().chain(of_uid).cloned().map(without_sequence).collect();
            expand(&ICalendar { components }, zone, now, &mut windows)?;
        }
    }
    windows.sort_unstable();
    windows.truncate(MAX_WINDOWS);
    Ok(windows)
}

/// Every calendar of the file; a file may have several, one after the other.
fn calendars(text: &str) -> Result<Vec<ICalendar>, CalendarError> {
    // A file that is being written, or was cut off. The library takes what there is of it.
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
    if !last.is_empty() && !last.eq_ignore_ascii_case("END:VCALENDAR") {
        return Err(CalendarError::NoCalendar("it has no END:VCALENDAR at its end".into()));
    }
    let mut parser = Parser::new(text);
    let mut calendars = Vec::new();
    loop {
        match parser.entry() {
            Entry::ICalendar(calendar) => calendars.push(calendar),
            Entry::Eof if calendars.is_empty() => {
                return Err(CalendarError::NoCalendar("it has no VCALENDAR".into()));
            }
            Entry::Eof => return Ok(calendars),
            Entry::InvalidLine(line) => {
                return Err(CalendarError::NoCalendar(format!("it has the line '{}'", cut(line.trim(), 80))));
            }
            Entry::UnterminatedComponent(name) => {
                return Err(CalendarError::NoCalendar(format!("{name} has no end")));
            }
            Entry::VCard(_) => return Err(CalendarError::NoCalendar("it has a VCARD".into())),
            Entry::UnexpectedComponentEnd { .. } => {
                return Err(CalendarError::NoCalendar(
                    "the end of a component does not fit its beginning".into(),
                ));
            }
            // What is added to the library later is not a calendar either.
            _ => return Err(CalendarError::NoCalendar("it has more than a calendar may have".into())),
        }
    }
}

fn uids(events: &[ICalendarComponent]) -> Vec<Option<String>> {
    let mut uids: Vec<Option<String>> = events.iter().map(|event| event.uid().map(String::from)).collect();
    uids.sort_unstable();
    uids.dedup();
    uids
}

/// Exceptions belong to their rule although they were edited more often.
fn without_sequence(mut component: ICalendarComponent) -> ICalendarComponent {
    component.entries.retain(|entry| entry.name != ICalendarProperty::Sequence);
    component
}

fn expand(
    calendar: &ICalendar,
    zone: chrono_tz::Tz,
    now: OffsetDateTime,
    windows: &mut Vec<Window>,
) -> Result<(), CalendarError> {
    let zones = calendar.build_tz_resolver();
    for event in calendar.components.iter().filter(|c| c.component_type == ICalendarComponentType::VEvent) {
        if lacks_an_end(event) {
            return Err(of_event(event, "has neither DTEND nor DURATION".into()));
        }
        for entry in &event.entries {
            if !is_understood(entry) {
                let what = format!("has a {} that can't be understood", entry.name.as_str());
                return Err(of_event(event, what));
            }
            if let Some(name) = entry.tz_id()
                && zones.resolve(name).is_none()
            {
                return Err(of_event(
                    event,
                    format!("has the time zone '{}', which is not known", cut(name, 80)),
                ));
            }
        }
    }

    let expanded = calendar.expand_dates(Tz::Tz(zone), MAX_TIMES);
    let component = |id: u32| calendar.components.get(id as usize);
    if let Some(error) = expanded.errors.first() {
        let what = match &error.error {
            CalendarErrorType::MissingDtStart | CalendarErrorType::InvalidDtStart => {
                "has no DTSTART".to_string()
            }
            CalendarErrorType::InvalidDtEnd => "has an end that can't be understood".into(),
            CalendarErrorType::InvalidDuration => "has a duration that can't be understood".into(),
            CalendarErrorType::RRule(error) => format!("has an RRULE that can't be understood: {error}"),
        };
        return Err(component(error.comp_id)
            .map_or_else(|| CalendarError::NoCalendar(what.clone()), |event| of_event(event, what.clone())));
    }
    let is_cut_off = expanded.events.len() >= MAX_TIMES;
    let mut last = None;
    for time in expanded.events {
        let Some(event) = component(time.comp_id) else { continue };
        if event.component_type != ICalendarComponentType::VEvent {
            continue;
        }
        let begin =
            moment(time.start.timestamp()).ok_or_else(|| of_event(event, "is beyond the calendar".into()))?;
        let end = match time.end {
            TimeOrDelta::Time(end) => end.timestamp(),
            TimeOrDelta::Delta(length) => time.start.timestamp().saturating_add(length.num_seconds()),
        };
        let end = moment(end).ok_or_else(|| of_event(event, "is beyond the calendar".into()))?;
        if end < begin {
            return Err(of_event(event, "ends before it begins".into()));
        }
        last = last.max(Some(begin));
        let is_free = event.transparency() == Some(&ICalendarTransparency::Transparent)
            || event.status() == Some(&ICalendarStatus::Cancelled);
        if !is_free && begin < end && end > now && begin < now + AHEAD {
            windows.push(Window { begin, end, summary: summary(event) });
        }
    }
    // A rule that recurs so often that its times do not reach the present.
    match calendar.components.iter().find(|c| c.component_type == ICalendarComponentType::VEvent) {
        Some(event) if is_cut_off && last.is_none_or(|last| last < now + AHEAD) => {
            Err(of_event(event, format!("recurs more than {MAX_TIMES} times")))
        }
        _ => Ok(()),
    }
}

/// A time without an end has no length; a day without one lasts for the day.
fn lacks_an_end(event: &ICalendarComponent) -> bool {
    let start = event.property(&ICalendarProperty::Dtstart).and_then(|entry| entry.values.first());
    let has_time = matches!(start, Some(ICalendarValue::PartialDateTime(start)) if start.has_time());
    has_time
        && !event.has_property(&ICalendarProperty::Dtend)
        && !event.has_property(&ICalendarProperty::Duration)
}

/// Whether what decides on times was read as such.
fn is_understood(entry: &ICalendarEntry) -> bool {
    let is = |fits: fn(&ICalendarValue) -> bool| !entry.values.is_empty() && entry.values.iter().all(fits);
    match entry.name {
        ICalendarProperty::Dtstart
        | ICalendarProperty::Dtend
        | ICalendarProperty::Exdate
        | ICalendarProperty::RecurrenceId => is(|value| matches!(value, ICalendarValue::PartialDateTime(_))),
        ICalendarProperty::Rdate => {
            is(|value| matches!(value, ICalendarValue::PartialDateTime(_) | ICalendarValue::Period(_)))
        }
        ICalendarProperty::Rrule => is(|value| matches!(value, ICalendarValue::RecurrenceRule(_))),
        ICalendarProperty::Duration => is(|value| matches!(value, ICalendarValue::Duration(_))),
        _ => true,
    }
}

fn moment(seconds: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp(seconds).ok()
}

fn summary(event: &ICalendarComponent) -> String {
    let text = event.property(&ICalendarProperty::Summary).and_then(|entry| entry.values.first()?.as_text());
    // One line, whatever the calendar has.
    let line: String =
        text.unwrap_or("maintenance").chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    cut(line.trim(), MAX_SUMMARY).to_string()
}

fn of_event(event: &ICalendarComponent, what: String) -> CalendarError {
    CalendarError::Event { event: summary(event), what }
}

#[cfg(test)]
mod tests {
    use chrono_tz::Tz as Zone;
    use time::format_description::well_known::Rfc3339;

    use super::*;

    fn at(text: &str) -> OffsetDateTime {
        OffsetDateTime::parse(text, &Rfc3339).unwrap()
    }

    /// A calendar with these events, each as its lines.
    fn calendar(events: &[&str]) -> String {
        let event = |lines: &&str| {
            format!("BEGIN:VEVENT\r\n{}\r\nEND:VEVENT\r\n", lines.trim().replace('\n', "\r\n"))
        };
        let events: String = events.iter().map(event).collect();
        format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//a//b//EN\r\n{events}END:VCALENDAR\r\n")
    }

    /// Begins and ends of the windows, in UTC.
    fn found(text: &str, now: &str) -> Vec<(String, String)> {
        let windows = windows(text, Zone::Europe__Berlin, at(now)).unwrap();
        let utc = |at: OffsetDateTime| at.format(&Rfc3339).unwrap();
        windows.into_iter().map(|w| (utc(w.begin), utc(w.end))).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(begin, end)| (format!("{begin}Z"), format!("{end}Z"))).collect()
    }

    #[test]
    fn events_have_zones_lengths_and_days() {
        let text = calendar(&[
            "UID:1\nDTSTART:20260601T080000Z\nDTEND:20260601T090000Z\nSUMMARY:in UTC",
            "UID:2\nDTSTART;TZID=America/New_York:20260602T080000\nDURATION:PT30M\nSUMMARY:in New York",
            "UID:3\nDTSTART:20260603T080000\nDTEND:20260603T090000\nSUMMARY:here",
            "UID:4\nDTSTART;VALUE=DATE:20260604\nSUMMARY:the whole day",
            "UID:5\nDTSTART:20260605T080000Z\nDTEND:20260605T090000Z\nSTATUS:CANCELLED",
            "UID:6\nDTSTART:20260605T080000Z\nDTEND:20260605T090000Z\nTRANSP:TRANSPARENT",
            "UID:7\nDTSTART:20260101T080000Z\nDTEND:20260101T090000Z\nSUMMARY:over",
        ]);
        let expected = pairs(&[
            ("2026-06-01T08:00:00", "2026-06-01T09:00:00"),
            ("2026-06-02T12:00:00", "2026-06-02T12:30:00"),
            ("2026-06-03T06:00:00", "2026-06-03T07:00:00"),
            ("2026-06-03T22:00:00", "2026-06-04T22:00:00"),
        ]);
        assert_eq!(found(&text, "2026-05-01T00:00:00Z"), expected);
        assert_eq!(found(&text, "2026-06-02T12:29:59Z"), expected[1..], "one that runs is there");
        assert_eq!(found(&text, "2026-06-02T12:30:00Z"), expected[2..]);
    }

    #[test]
    fn rules_recur_over_changes_of_the_clock_with_exceptions() {
        // Every Monday at 7:00 in Berlin; one is left out, one is moved, and its SEQUENCE is higher.
        let text = calendar(&[
            "UID:1\nDTSTART;TZID=Europe/Berlin:20260302T070000\nDTEND;TZID=Europe/Berlin:20260302T073000\n\
             RRULE:FREQ=WEEKLY;BYDAY=MO;COUNT=6\nEXDATE;TZID=Europe/Berlin:20260316T070000\nSUMMARY:warm-up",
            "UID:1\nRECURRENCE-ID;TZID=Europe/Berlin:20260323T070000\nSEQUENCE:3\n\
             DTSTART;TZID=Europe/Berlin:20260324T100000\nDTEND;TZID=Europe/Berlin:20260324T110000\nSUMMARY:moved",
        ]);
        let expected = pairs(&[
            ("2026-03-02T06:00:00", "2026-03-02T06:30:00"),
            ("2026-03-09T06:00:00", "2026-03-09T06:30:00"),
            ("2026-03-24T09:00:00", "2026-03-24T10:00:00"),
            ("2026-03-30T05:00:00", "2026-03-30T05:30:00"),
            ("2026-04-06T05:00:00", "2026-04-06T05:30:00"),
        ]);
        assert_eq!(found(&text, "2026-03-01T00:00:00Z"), expected);
    }

    #[test]
    fn rules_without_an_end_do_not_hide_each_other() {
        let text = calendar(&[
            "UID:1\nDTSTART:20200101T020000Z\nDURATION:PT1H\nRRULE:FREQ=DAILY\nSUMMARY:nightly",
            "UID:2\nDTSTART:20200101T120000Z\nDURATION:PT1H\nRRULE:FREQ=DAILY\nSUMMARY:noon",
        ]);
        let windows = windows(&text, Zone::UTC, at("2026-11-30T00:00:00Z")).unwrap();
        let first: Vec<&str> = windows.iter().take(4).map(|w| w.summary.as_str()).collect();
        assert_eq!(first, ["nightly", "noon", "nightly", "noon"]);
        assert_eq!(windows.len(), 800, "400 days");
    }

    #[test]
    fn what_can_not_be_understood_makes_the_file_wrong() {
        let event = |lines: &str| calendar(&[lines]);
        for (text, says) in [
            (String::new(), "no VCALENDAR"),
            ("maintenance on Monday".into(), "no"),
            ("BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nDTSTART:20260601T080000Z\r\n".into(), "no END:VCALENDAR"),
            (event("UID:1\nSUMMARY:a"), "no DTSTART"),
            (event("UID:1\nDTSTART:20260601T080000Z"), "neither DTEND nor DURATION"),
            (event("UID:1\nDTSTART:20260601T080000Z\nDTEND:20260601T070000Z"), "ends before it begins"),
            (event("UID:1\nDTSTART:tomorrow\nSUMMARY:a"), "DTSTART"),
            (event("UID:1\nDTSTART:20260601T080000Z\nDTEND:later"), "DTEND"),
            (event("UID:1\nDTSTART:20260601T080000Z\nDURATION:long"), "DURATION"),
            (event("UID:1\nDTSTART:20260601T080000Z\nDURATION:PT1H\nRRULE:FREQ=SOMETIMES"), "RRULE"),
            (event("UID:1\nDTSTART;TZID=Mars/Base:20260601T080000\nDURATION:PT1H"), "'Mars/Base'"),
            (
                event("UID:1\nDTSTART:20200101T000000Z\nDURATION:PT1S\nRRULE:FREQ=SECONDLY\nSUMMARY:a"),
                "more than 20000 times",
            ),
        ] {
            match windows(&text, Zone::UTC, at("2026-05-01T00:00:00Z")) {
                Err(error) => assert!(error.to_string().contains(says), "{text:?}: {error}"),
                Ok(windows) => panic!("{text:?} gave {windows:?}"),
            }
        }
    }

    #[test]
    fn a_calendar_without_events_has_no_windows_and_summaries_are_one_short_line() {
        assert_eq!(windows(&calendar(&[]), Zone::UTC, at("2026-05-01T00:00:00Z")), Ok(Vec::new()));
        let long =
            format!("UID:1\nDTSTART:20260601T080000Z\nDURATION:PT1H\nSUMMARY:a\\nb{}", "x".repeat(5000));
        let windows = windows(&calendar(&[&long]), Zone::UTC, at("2026-05-01T00:00:00Z")).unwrap();
        assert!(windows[0].summary.starts_with("a b") && windows[0].summary.len() <= 200, "{windows:?}");
    }
}
