//! Pure: whether runs may begin on the device, and if not, why and until when.
//!
//! ```text
//! pause (by hand) ┐
//! calendar        ├─ Conditions ─ hold ─> Option<Hold> ─> executor, reader, peers, /ready, page, metrics
//! ```
//!
//! A hold keeps runs from beginning and jobs from being claimed. It never ends what runs, and what was read ahead keeps
//! its order.

pub mod pause;

use std::fmt;

use time::OffsetDateTime;

use crate::model::iso_time;
use pause::Pause;

/// What speaks for or against a run at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    pub pause: Option<Pause>,
    /// Why the pause file can't be read. Someone has asked for a pause, so that nothing is begun.
    pub pause_error: Option<String>,
}

/// Why no run begins now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// `coda-host pause`.
    Paused(Pause),
    PauseUnreadable(String),
}

impl Conditions {
    /// The reason why no run begins at this moment, the one that a person is responsible for first.
    pub fn hold(&self, now: OffsetDateTime) -> Option<Hold> {
        if let Some(pause) = self.pause.as_ref().filter(|pause| now < pause.until) {
            return Some(Hold::Paused(pause.clone()));
        }
        self.pause_error.clone().map(Hold::PauseUnreadable)
    }
}

impl Hold {
    /// A stable word for programs: metrics, `/ready`.
    pub fn name(&self) -> &'static str {
        match self {
            Hold::Paused(_) | Hold::PauseUnreadable(_) => "paused",
        }
    }

    /// When it ends by itself, as far as that is known.
    pub fn until(&self) -> Option<OffsetDateTime> {
        match self {
            Hold::Paused(pause) => Some(pause.until),
            Hold::PauseUnreadable(_) => None,
        }
    }

    /// What a person wrote about it.
    pub fn note(&self) -> Option<&str> {
        match self {
            Hold::Paused(pause) => pause.note.as_deref(),
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
    fn a_pause_that_can_not_be_read_holds_too() {
        let conditions =
            Conditions { pause_error: Some("pause.json is no JSON".into()), ..Conditions::default() };
        let hold = conditions.hold(OffsetDateTime::UNIX_EPOCH).expect("a hold");
        assert!(hold.to_string().contains("pause.json is no JSON"), "{hold}");
    }
}
