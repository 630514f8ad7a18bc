//! Pure: whether runs may begin on the device, and if not, why and until when.
//!
//! ```text
//! pause (by hand) ┐
//! calendar        ├─ Conditions ─ hold ─> Option<Hold> ─> executor, reader, peers, /ready, page, metrics
//! ```
//!
//! A hold keeps runs from beginning and jobs from being claimed. It never ends what runs, and what was read ahead keeps
//! its order.

pub mod calendar;
pub mod calendar_file;
pub mod pause;

use std::fmt;

use time::OffsetDateTime;

use crate::model::iso_time;
use calendar::Window;
use pause::Pause;

/// What speaks for or against a run at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    pub pause: Option<Pause>,
    /// Why the pause file can't be read. Someone has asked for a pause, so that nothing is begun.
    pub pause_error: Option<String>,
    /// Times of maintenance, by their beginnings.
    pub windows: Vec<Window>,
}

/// Why no run begins now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// `coda-host pause`.
    Paused(Pause),
    PauseUnreadable(String),
    /// The calendar says so.
    Maintenance(Window),
}

/// What is true of the device at one moment, for everyone who shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Availability {
    /// Why no run begins now.
    pub hold: Option<Hold>,
    /// The next time of maintenance that has not begun.
    pub next_window: Option<Window>,
}

impl Conditions {
    /// What is true at this moment.
    pub fn at(&self, now: OffsetDateTime) -> Availability {
        Availability { hold: self.hold(now), next_window: self.next_window(now).cloned() }
    }

    /// The reason why no run begins at this moment, the one that a person is responsible for first.
    pub fn hold(&self, now: OffsetDateTime) -> Option<Hold> {
        if let Some(pause) = self.pause.as_ref().filter(|pause| now < pause.until) {
            return Some(Hold::Paused(pause.clone()));
        }
        if let Some(error) = &self.pause_error {
            return Some(Hold::PauseUnreadable(error.clone()));
        }
        // Of several at one time the one that ends last.
        let present = self.windows.iter().filter(|window| window.begin <= now && now < window.end);
        present.max_by_key(|window| window.end).cloned().map(Hold::Maintenance)
    }

    /// The next time of maintenance that has not begun.
    pub fn next_window(&self, now: OffsetDateTime) -> Option<&Window> {
        self.windows.iter().filter(|window| window.begin > now).min()
    }
}

impl Hold {
    /// A stable word for programs: metrics, `/ready`.
    pub fn name(&self) -> &'static str {
        match self {
            Hold::Paused(_) | Hold::PauseUnreadable(_) => "paused",
            Hold::Maintenance(_) => "maintenance",
        }
    }

    /// When it ends by itself, as far as that is known.
    pub fn until(&self) -> Option<OffsetDateTime> {
        match self {
            Hold::Paused(pause) => Some(pause.until),
            Hold::Maintenance(window) => Some(window.end),
            Hold::PauseUnreadable(_) => None,
        }
    }

    /// What a person wrote about it.
    pub fn note(&self) -> Option<&str> {
        match self {
            Hold::Paused(pause) => pause.note.as_deref(),
            Hold::Maintenance(window) => Some(&window.summary),
            Hold::PauseUnreadable(_) => None,
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hold::Paused(pause) => {
                let until = iso_time(pause.until);
                match &pause.note {
                    Some(note) => write!(f, "paused until {until}: {note}; `coda-host resume` ends it"),
                    None => write!(f, "paused until {until}; `coda-host resume` ends it"),
                }
            }
            Hold::Maintenance(Window { end, summary, .. }) => {
                write!(f, "in maintenance until {}: {summary}; the calendar says so", iso_time(*end))
            }
            Hold::PauseUnreadable(error) => {
                write!(
                    f,
                    "paused, but until when is not known: {error}; run `coda-host resume`, or pause again"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use time::Duration;

    use super::*;

    fn pause(note: Option<&str>) -> Pause {
        let since = OffsetDateTime::UNIX_EPOCH;
        Pause { since, until: since + Duration::HOUR, note: note.map(String::from) }
    }

    #[test]
    fn a_pause_holds_until_its_end_and_names_it() {
        let conditions = Conditions { pause: Some(pause(Some("new cables"))), ..Conditions::default() };
        let at = |minutes| OffsetDateTime::UNIX_EPOCH + Duration::minutes(minutes);
        let hold = conditions.hold(at(59)).expect("a pause");
        assert_eq!(
            hold.to_string(),
            "paused until 1970-01-01T01:00:00+00:00: new cables; `coda-host resume` ends it"
        );
        assert_eq!((hold.name(), hold.until(), hold.note()), ("paused", Some(at(60)), Some("new cables")));
        assert_eq!(conditions.hold(at(60)), None, "its end is not part of it");
        assert_eq!(Conditions::default().hold(at(0)), None);
    }

    #[test]
    fn windows_hold_and_a_pause_by_hand_comes_first() {
        let at = |minutes| OffsetDateTime::UNIX_EPOCH + Duration::minutes(minutes);
        let window = |begin, end| Window { begin: at(begin), end: at(end), summary: "warm-up".into() };
        let windows = vec![window(10, 20), window(15, 40), window(90, 95)];
        let mut conditions = Conditions { windows, ..Conditions::default() };
        let until = |c: &Conditions, minutes| c.hold(at(minutes)).and_then(|hold| hold.until());
        assert_eq!([9, 10, 17, 40].map(|m| until(&conditions, m)), [None, Some(at(20)), Some(at(40)), None]);
        assert_eq!(conditions.next_window(at(17)), Some(&window(90, 95)));
        conditions.pause = Some(pause(None));
        assert_eq!(conditions.hold(at(17)).map(|hold| hold.name()), Some("paused"));
    }

    #[test]
    fn a_pause_that_can_not_be_read_holds_too() {
        let conditions =
            Conditions { pause_error: Some("pause.json is no JSON".into()), ..Conditions::default() };
        let hold = conditions.hold(OffsetDateTime::UNIX_EPOCH).expect("a hold");
        assert!(hold.to_string().contains("pause.json is no JSON"), "{hold}");
    }
}
