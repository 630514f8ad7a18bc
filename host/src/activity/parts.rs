//! Pure: the parts that a host depends on (the cloud, Redis, the VPN, the disk): how each is, since when, and when it last
//! worked.

use std::collections::BTreeMap;

use time::OffsetDateTime;

/// How a part is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartState {
    /// It works; some know when it last did so for certain.
    Works(Option<OffsetDateTime>),
    /// It does not, and why.
    Fails(String),
    /// It is not used here.
    Unused(&'static str),
}

/// One part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    pub state: PartState,
    /// Since when it works, or fails.
    pub since: OffsetDateTime,
    pub last_success: Option<OffsetDateTime>,
}

/// Every part, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parts(BTreeMap<&'static str, Part>);

impl Parts {
    /// Notes how the parts are.
    pub fn see(&mut self, now: OffsetDateTime, states: Vec<(&'static str, PartState)>) {
        for (name, state) in states {
            let part = self.0.entry(name).or_insert_with(|| Part {
                state: state.clone(),
                since: now,
                last_success: None,
            });
            if std::mem::discriminant(&part.state) != std::mem::discriminant(&state) {
                part.since = now;
            }
            if let PartState::Works(at) = &state {
                part.last_success = Some(at.unwrap_or(now));
            }
            part.state = state;
        }
    }

    pub fn get(&self, name: &str) -> Option<&Part> {
        self.0.get(name)
    }

    pub fn all(&self) -> impl Iterator<Item = (&'static str, &Part)> {
        self.0.iter().map(|(name, part)| (*name, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_part_keeps_its_last_success_and_since_when_it_fails() {
        let at = |seconds: i64| OffsetDateTime::from_unix_timestamp(1_800_000_000 + seconds).unwrap();
        let mut parts = Parts::default();
        parts.see(at(0), vec![("redis", PartState::Works(None))]);
        parts.see(at(10), vec![("redis", PartState::Works(None))]);
        parts.see(at(20), vec![("redis", PartState::Fails("refused".into()))]);
        parts.see(at(30), vec![("redis", PartState::Fails("timeout".into()))]);
        let part = parts.get("redis").unwrap();
        assert_eq!((part.since, part.last_success), (at(20), Some(at(10))));
        assert_eq!(part.state, PartState::Fails("timeout".into()));
        parts.see(at(40), vec![("redis", PartState::Works(Some(at(39))))]);
        let part = parts.get("redis").unwrap();
        assert_eq!((part.since, part.last_success), (at(40), Some(at(39))));
    }
}
