//! How many pending messages are fetched at once. Pure.
//!
//! Messages may be large and the connection slow: a page that does not arrive within the time limit costs the
//! connection, and would cost it again after each reconnect. Pages therefore shrink with each failure and grow with
//! each success. A single message that does not arrive is left alone for a while, so that the others get through.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::model::MessageId;

/// The size of the next page, and the messages that are left alone.
#[derive(Debug)]
pub(super) struct FetchPages {
    max: usize,
    size: usize,
    /// How long a message is left alone.
    rest: Duration,
    resting: HashMap<MessageId, Instant>,
}

impl FetchPages {
    pub fn new(max: usize, rest: Duration) -> FetchPages {
        let max = max.max(1);
        FetchPages { max, size: max, rest, resting: HashMap::new() }
    }

    /// How many messages to fetch at once now.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Notes that a page has arrived.
    pub fn arrived(&mut self, ids: &[MessageId]) {
        self.size = (self.size * 2).min(self.max);
        for id in ids {
            self.resting.remove(id);
        }
    }

    /// Notes that a page has not arrived.
    pub fn failed(&mut self, now: Instant, ids: &[MessageId]) {
        match ids {
            [id] => {
                self.resting.insert(*id, now + self.rest);
            }
            _ => self.size = (ids.len() / 2).max(1),
        }
    }

    /// Whether a message is left alone now.
    pub fn is_resting(&self, now: Instant, id: MessageId) -> bool {
        self.resting.get(&id).is_some_and(|until| now < *until)
    }

    /// Forgets messages that are no longer pending, and returns one that is left alone.
    pub fn keep_pending(&mut self, is_pending: impl Fn(&MessageId) -> bool) -> Option<MessageId> {
        self.resting.retain(|id, _| is_pending(id));
        self.resting.keys().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> MessageId {
        MessageId { ms, seq: 0 }
    }

    /// Fetches all of `ids` from a server whose pages arrive when `fits` says so; returns the ids that arrived, and
    /// how many connections it took.
    fn sweep(
        pages: &mut FetchPages,
        now: Instant,
        ids: &[MessageId],
        fits: &dyn Fn(&[MessageId]) -> bool,
    ) -> (Vec<MessageId>, usize) {
        let (mut arrived, mut lost) = (Vec::new(), 0);
        loop {
            let open = |i: &MessageId| !arrived.contains(i) && !pages.is_resting(now, *i);
            let page: Vec<_> = ids.iter().copied().filter(open).take(pages.size()).collect();
            if page.is_empty() {
                return (arrived, lost);
            }
            if fits(&page) {
                pages.arrived(&page);
                arrived.extend(page);
            } else {
                pages.failed(now, &page);
                lost += 1;
            }
            assert!(lost < 50, "it ends: {pages:?}");
        }
    }

    #[test]
    fn pages_shrink_until_they_arrive_and_grow_again() {
        let (now, ids): (_, Vec<_>) = (Instant::now(), (1..=32).map(id).collect());
        let mut pages = FetchPages::new(16, Duration::from_secs(60));
        let (arrived, lost) = sweep(&mut pages, now, &ids, &|page| page.len() <= 3);
        assert_eq!(arrived, ids);
        assert!(lost >= 3);
        let (_, lost) = sweep(&mut pages, now, &ids, &|_| true);
        assert_eq!((lost, pages.size()), (0, 16));
    }

    #[test]
    fn a_message_that_never_arrives_keeps_no_other_one_back() {
        let (now, ids): (_, Vec<_>) = (Instant::now(), (1..=9).map(id).collect());
        let mut pages = FetchPages::new(4, Duration::from_secs(60));
        let fits = |page: &[MessageId]| !page.contains(&id(3));
        let (arrived, lost) = sweep(&mut pages, now, &ids, &fits);
        assert_eq!(arrived.len(), 8);
        assert!(lost <= 4, "{lost}");
        assert_eq!(sweep(&mut pages, now, &ids, &fits).1, 0, "left alone for a while");
        assert_eq!(pages.keep_pending(|_| true), Some(id(3)));
        let later = now + Duration::from_secs(61);
        assert_eq!(sweep(&mut pages, later, &ids, &|_| true).0.len(), 9, "tried again");
        assert_eq!(pages.keep_pending(|_| true), None);
        assert_eq!(pages.keep_pending(|_| false), None);
    }
}
