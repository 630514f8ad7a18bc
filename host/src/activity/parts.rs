//! Pure: the parts that a host depends on (the cloud, Redis, the VPN, the disk): how each is, since when, and when it last
//! worked.

use std::collections::BTreeMap;

use time::OffsetDateTime;

/// A part that a host depends on, in the order of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PartName {
    CloudHeartbeat,
    CloudResults,
    Redis,
    StateDatabase,
    Vpn,
}

impl PartName {
    /// On the page.
    pub fn title(self) -> &'static str {
        match self {
            PartName::CloudHeartbeat => "Cloud (heartbeat)",
            PartName::CloudResults => "Cloud (results)",
            PartName::Redis => "Redis",
            PartName::StateDatabase => "State database",
            PartName::Vpn => "VPN",
        }
    }

    /// In metrics; alert rules name it.
    pub fn label(self) -> &'static str {
        match self {
            PartName::CloudHeartbeat => "cloud_heartbeat",
            PartName::CloudResults => "cloud_results",
            PartName::Redis => "redis",
            PartName::StateDatabase => "state_database",
            PartName::Vpn => "vpn",
        }
    }
}

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
pub struct Parts(BTreeMap<PartName, Part>);

impl Parts {
    /// Notes how the parts are.
    pub fn see(&mut self, now: OffsetDateTime, states: Vec<(PartName, PartState)>) {
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

    pub fn get(&self, name: PartName) -> Option<&Part> {
        self.0.get(&name)
    }

    pub fn all(&self) -> impl Iterator<Item = (PartName, &Part)> {
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
        parts.see(at(0), vec![(PartName::Redis, PartState::Works(None))]);
        parts.see(at(10), vec![(PartName::Redis, PartState::Works(None))]);
        parts.see(at(20), vec![(PartName::Redis, PartState::Fails("refused".into()))]);
        parts.see(at(30), vec![(PartName::Redis, PartState::Fails("timeout".into()))]);
        let part = parts.get(PartName::Redis).unwrap();
        assert_eq!((part.since, part.last_success), (at(20), Some(at(10))));
        assert_eq!(part.state, PartState::Fails("timeout".into()));
        parts.see(at(40), vec![(PartName::Redis, PartState::Works(Some(at(39))))]);
        let part = parts.get(PartName::Redis).unwrap();
        assert_eq!((part.since, part.last_success), (at(40), Some(at(39))));
    }
}
