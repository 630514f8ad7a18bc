//! The cloud's answers, crashes and restarts: what they take away and what they leave.

use super::*;

impl World {
    pub(super) fn deliver_one(&mut self) -> Result<(), Broken> {
        if self.memory.deliveries.is_empty() {
            return Ok(());
        }
        let index = self.pick(self.memory.deliveries.len());
        let Some((&id, &delivery)) = self.memory.deliveries.iter().nth(index) else { return Ok(()) };
        match delivery {
            Delivery::Fresh | Delivery::Tried => {
                let next = match self.random.random_range(0..10) {
                    0..5 => Delivery::Answered(DeliveryOutcome::Accepted),
                    5 => Delivery::Answered(DeliveryOutcome::Refused),
                    6 => Delivery::Answered(DeliveryOutcome::Dropped),
                    _ => Delivery::Tried,
                };
                if next == Delivery::Answered(DeliveryOutcome::Accepted) {
                    let seen = self.observed(id);
                    seen.accepted += 1;
                    if seen.accepted > 1 + seen.cut_deliveries {
                        return Err(format!("one_delivery_unless_cut_off: {id} is accepted again"));
                    }
                }
                self.memory.deliveries.insert(id, next);
                Ok(())
            }
            Delivery::Answered(_) if !self.disk_works => Ok(()),
            Delivery::Answered(end) => {
                self.memory.deliveries.remove(&id);
                // A refused result is kept for the operator, which is nothing to the host any more.
                let row = self.durable.rows.remove(&id).map(|row| row.row);
                let Some(row) = row else {
                    return Err(format!("one_delivery_unless_cut_off: {id} was delivered from no row"));
                };
                let past = HistoryEntry {
                    job_id: row.job_id,
                    status: row.status,
                    error: row.error,
                    finished_at: row.finished_at,
                };
                self.durable.history.insert(id, past);
                if self.is(Defect::DeliversTwice) && self.chance(10) {
                    self.memory.deliveries.insert(id, Delivery::Tried);
                    return Ok(());
                }
                self.apply(Event::Delivered { message_id: id, outcome: end })
            }
        }
    }

    /// The process ends. In a crash the messages in the plugin are suspects; a forced stop is not a death.
    pub(super) fn crash(&mut self, death: bool) {
        self.crashes += 1;
        self.trace("crash", &death);
        let started: Vec<MessageId> = self.memory.slots.iter().flatten().map(|job| job.message_id).collect();
        for id in started {
            self.observed(id).cut_runs += 1;
            let is_answered = self.durable.answers.get(&id).is_some_and(|kept| kept.answer.is_some());
            if death && !is_answered {
                *self.durable.deaths.entry(id).or_insert(0) += 1;
            }
        }
        for (id, delivery) in std::mem::take(&mut self.memory.deliveries) {
            if delivery == Delivery::Answered(DeliveryOutcome::Accepted) {
                self.observed(id).cut_deliveries += 1;
            }
        }
        self.restart();
    }

    pub(super) fn restart(&mut self) {
        let deaths = match self.is(Defect::ForgetsDeaths) {
            true => HashMap::new(),
            false => self.durable.deaths.clone(),
        };
        self.memory = Memory::new(deaths, self.durable.answers.clone(), self.qubits);
        let recovered: Vec<RecoveredResult> = self
            .durable
            .rows
            .values()
            .map(|row| RecoveredResult {
                result: StoredResult {
                    row: row.row.clone(),
                    body_bytes: 2,
                    origin: "http://h".into(),
                    attempts: 0,
                },
                announced: row.phase == Phase::Announced,
            })
            .collect();
        for result in recovered {
            // What it leads to is under way, not performed: nothing can be broken yet.
            let broken = self.apply(Event::Recovered(result));
            debug_assert!(broken.is_ok(), "{broken:?}");
        }
        self.forget_old();
    }

    /// Drops what no message refers to any more, so that long runs stay fast.
    pub(super) fn forget_old(&mut self) {
        let oldest = self.durable.pending.first().copied();
        let oldest = oldest.or(self.durable.undelivered.front().copied());
        let rows = self.durable.rows.first_key_value().map(|(id, _)| *id);
        let Some(limit) = [oldest, rows].into_iter().flatten().min() else { return };
        let limit = MessageId { ms: limit.ms.saturating_sub(64), seq: 0 };
        self.durable.stream.retain(|id, _| *id >= limit);
        self.durable.history.retain(|id, _| *id >= limit);
        self.durable.dead_letters.retain(|id| *id >= limit);
        self.durable.deaths.retain(|id, _| *id >= limit);
        self.durable.answers.retain(|id, _| *id >= limit);
        self.observed.retain(|id, _| *id >= limit);
        self.durable.status.retain(|_, (_, id)| *id >= limit);
        let first_job = limit.ms / 8;
        let young = |job: &JobId| job[1..].parse::<u64>().is_ok_and(|n| n >= first_job);
        self.durable.cancel_keys.retain(young);
        self.completed.retain(young);
    }
}
