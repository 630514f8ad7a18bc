//! The orders that are in `run` or `batch_run`, by the ids of their jobs.
//!
//! Contract: a [`Ticket`] exists for the length of a call. An order is to end when all of its jobs are cancelled; an id
//! that isn't running is ignored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::run::CancelFlag;

#[derive(Debug, Default)]
pub struct Running {
    entries: Mutex<Vec<Arc<Entry>>>,
}

#[derive(Debug)]
struct Entry {
    jobs: Vec<(String, AtomicBool)>,
    order: CancelFlag,
}

impl Running {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        // The list is whole between any two statements, so a panic elsewhere does not spoil it.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, ids: &[&str]) -> Ticket<'_> {
        let jobs = ids.iter().map(|id| (id.to_string(), AtomicBool::new(false))).collect();
        let entry = Arc::new(Entry { jobs, order: CancelFlag::default() });
        self.lock().push(Arc::clone(&entry));
        Ticket { running: self, entry }
    }

    /// Marks the job; the orders that are to end because of it.
    pub fn cancel(&self, id: &str) -> Vec<CancelFlag> {
        self.mark(|of_job| of_job == id)
    }

    /// Marks every job; all orders.
    pub fn cancel_all(&self) -> Vec<CancelFlag> {
        self.mark(|_| true)
    }

    fn mark(&self, which: impl Fn(&str) -> bool) -> Vec<CancelFlag> {
        let mut orders = Vec::new();
        for entry in self.lock().iter() {
            let mut marked = false;
            for (id, cancelled) in &entry.jobs {
                if which(id) {
                    cancelled.store(true, Ordering::Release);
                    marked = true;
                }
            }
            if marked && entry.jobs.iter().all(|(_, cancelled)| cancelled.load(Ordering::Acquire)) {
                orders.push(Arc::clone(&entry.order));
            }
        }
        orders
    }
}

#[derive(Debug)]
pub struct Ticket<'r> {
    running: &'r Running,
    entry: Arc<Entry>,
}

impl Ticket<'_> {
    /// The flag of the order, which is set by the thread that ends it.
    pub fn order(&self) -> CancelFlag {
        Arc::clone(&self.entry.order)
    }

    /// Whether the n-th job was cancelled.
    pub fn is_cancelled(&self, n: usize) -> bool {
        self.entry.jobs.get(n).is_some_and(|(_, cancelled)| cancelled.load(Ordering::Acquire))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.running.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_ends_with_the_last_of_its_jobs() {
        let running = Running::default();
        let single = running.enter(&["a"]);
        let list = running.enter(&["b", "c"]);
        assert!(running.cancel("nobody").is_empty());
        assert!(running.cancel("b").is_empty(), "c goes on");
        assert!(list.is_cancelled(0) && !list.is_cancelled(1));
        let ended = running.cancel("c");
        assert!(ended.len() == 1 && Arc::ptr_eq(&ended[0], &list.order()));
        assert!(!single.is_cancelled(0));
        drop(list);
        assert_eq!(running.cancel_all().len(), 1);
        drop(single);
        assert!(running.cancel_all().is_empty());
    }
}
