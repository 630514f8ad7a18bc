//! Pure: the connections of a service that strangers can reach: which one goes when there are too many, and whom to
//! warn about.
//!
//! A newcomer is always let in. The one that goes is the longest unused one of the address that has the most, so that an
//! address which holds many silent connections shuts out itself alone.

use core::net::IpAddr;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

/// How long an address is not warned about again.
const WARNING_PAUSE: Duration = Duration::from_secs(600);
/// Most addresses that are remembered for it.
const MAX_WARNED: usize = 1024;

#[derive(Debug, Clone, Copy)]
struct Entry {
    address: IpAddr,
    used: Duration,
}

/// The open connections by their keys. Times are elapsed times of one clock.
#[derive(Debug)]
pub struct ConnectionTable<K> {
    limit: usize,
    open: HashMap<K, Entry>,
    warned: HashMap<IpAddr, Duration>,
}

/// A connection that is to be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Eviction<K> {
    pub key: K,
    pub address: IpAddr,
}

impl<K: Copy + Eq + Hash + Ord> ConnectionTable<K> {
    pub fn new(limit: usize) -> ConnectionTable<K> {
        ConnectionTable { limit, open: HashMap::new(), warned: HashMap::new() }
    }

    /// Adds a connection. Returns the one that goes for it, when there are more than allowed.
    pub fn insert(&mut self, key: K, address: IpAddr, now: Duration) -> Option<Eviction<K>> {
        self.open.insert(key, Entry { address, used: now });
        if self.open.len() <= self.limit { None } else { self.evict(Some(key)) }
    }

    /// Notes that a connection was of use.
    pub fn touch(&mut self, key: K, now: Duration) {
        if let Some(entry) = self.open.get_mut(&key) {
            entry.used = now;
        }
    }

    /// Forgets a connection that has ended.
    pub fn remove(&mut self, key: K) {
        self.open.remove(&key);
    }

    /// Takes out the longest unused connection of the address that has the most, other than `newest`.
    pub fn evict(&mut self, newest: Option<K>) -> Option<Eviction<K>> {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.open.values().for_each(|entry| *counts.entry(entry.address).or_default() += 1);
        let others = self.open.iter().filter(|(key, _)| Some(**key) != newest);
        // The key decides between two of one moment: the smaller one is older.
        let victim = others.max_by_key(|(key, entry)| {
            let count = counts.get(&entry.address).copied().unwrap_or(0);
            (count, std::cmp::Reverse((entry.used, **key)))
        });
        let (key, address) = victim.map(|(key, entry)| (*key, entry.address))?;
        self.open.remove(&key);
        Some(Eviction { key, address })
    }

    /// Whether something about this address is to be told aloud: once, and then rarely.
    pub fn warns(&mut self, address: IpAddr, now: Duration) -> bool {
        if self.warned.len() >= MAX_WARNED {
            self.warned.retain(|_, at| now.saturating_sub(*at) < WARNING_PAUSE);
        }
        match self.warned.get(&address) {
            Some(at) if now.saturating_sub(*at) < WARNING_PAUSE => false,
            None if self.warned.len() >= MAX_WARNED => false,
            Some(_) | None => {
                self.warned.insert(address, now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 1));
    const OTHER: IpAddr = IpAddr::V4(core::net::Ipv4Addr::new(192, 0, 2, 2));

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_longest_unused_one_of_the_largest_crowd_goes() {
        let mut table = ConnectionTable::new(4);
        assert_eq!(table.insert(0, OTHER, at(0)), None);
        for key in 1..4 {
            assert_eq!(table.insert(key, CROWD, at(key)), None);
        }
        table.touch(1, at(10));
        assert_eq!(table.insert(4, CROWD, at(11)), Some(Eviction { key: 2, address: CROWD }));
        assert_eq!(table.insert(5, OTHER, at(12)), Some(Eviction { key: 3, address: CROWD }));
        table.remove(4);
        assert_eq!(table.insert(6, OTHER, at(13)), None);
        assert_eq!(table.insert(7, CROWD, at(14)), Some(Eviction { key: 0, address: OTHER }));
    }

    #[test]
    fn a_newcomer_is_never_the_one_that_goes() {
        let mut table = ConnectionTable::new(1);
        assert_eq!(table.insert(0, OTHER, at(0)), None);
        assert_eq!(table.insert(1, CROWD, at(0)), Some(Eviction { key: 0, address: OTHER }));
        assert_eq!(table.evict(None), Some(Eviction { key: 1, address: CROWD }));
        assert_eq!(table.evict(None), None);
    }

    #[test]
    fn an_address_is_warned_about_once_and_then_rarely() {
        let mut table = ConnectionTable::<u64>::new(1);
        assert!(table.warns(CROWD, at(0)) && !table.warns(CROWD, at(599)) && table.warns(OTHER, at(1)));
        assert!(table.warns(CROWD, at(600)));
        for n in 0..5000_u32 {
            table.warns(IpAddr::V4(n.into()), at(700));
        }
        assert!(table.warned.len() <= MAX_WARNED);
    }
}
