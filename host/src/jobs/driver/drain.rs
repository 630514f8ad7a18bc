//! Stopping: waiting messages are left pending, what runs is finished, stored and tried once.

use super::super::lifecycle::Phase;
use super::{Drain, Driver, Ended, Entry, Report};

impl Driver {
    /// Waiting messages stay pending, never marked executing; what runs goes on.
    pub(super) fn begin_drain(&mut self) {
        self.drain = Drain::Running;
        self.p.executor.withdraw_all();
        // What a slot took just before is running.
        self.catch_up();
        let waiting: Vec<u64> = self
            .entries
            .iter()
            .filter(|(_, e)| matches!(e.life.phase, Phase::Claimed | Phase::Waiting))
            .map(|(t, _)| *t)
            .collect();
        tracing::info!(
            running = self.running.len(),
            left_pending = waiting.len(),
            "stopping: claiming no more jobs, finishing what runs"
        );
        for ticket in waiting {
            if let Some(entry) = self.entries.remove(&ticket) {
                self.by_message.remove(&entry.message_id);
            }
        }
        self.checking.clear();
        self.admitted.clear();
        self.waiting.clear();
        self.parked.clear();
    }

    pub(super) fn is_drained(&mut self) -> bool {
        let storing = || self.entries.values().any(|e| e.life.phase == Phase::Storing);
        match self.drain {
            Drain::Running if self.running.is_empty() && !storing() => {
                self.drain = Drain::Trying;
                let (outbox, reports) = (self.p.outbox.clone(), self.reports.clone());
                self.tasks.spawn(async move {
                    outbox.all_tried().await;
                    reports.send(Report::AllTried).ok();
                });
                false
            }
            Drain::Tried => self.acking == 0 || !self.p.redis.is_up(),
            _ => false,
        }
    }

    pub(super) fn finish(self) -> Ended {
        let left = self.running.iter().filter_map(|t| self.entries.get(t)).filter(|e| !e.life.cancelled);
        let left = left.filter_map(|e| Some(e.envelope.as_ref()?.job_id.clone())).collect();
        let open = |e: &&Entry| matches!(e.life.phase, Phase::Storing | Phase::Sending);
        let undelivered = self.entries.values().filter(open).count();
        self.p.notes.all_end(self.in_slot.len());
        Ended { executor: self.p.executor, left, undelivered }
    }
}
