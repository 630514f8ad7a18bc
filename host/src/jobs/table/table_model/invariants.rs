//! What must hold after each event, before a run, before an acknowledgement, and once everything works again.

use super::*;

impl World {
    /// Before a slot's call begins: what must hold of each job in it.
    pub(super) fn may_start(&mut self, submission: &Submission) -> Result<(), Broken> {
        let (id, job_id) = (submission.message_id, &submission.job.envelope.job_id);
        if self.durable.history.contains_key(&id) || !self.durable.pending.contains(&id) {
            return Err(format!("never_after_its_end: {id} of {job_id} goes to the executor"));
        }
        let ended = self.durable.status.get(job_id).filter(|(state, _)| state == "completed");
        if let Some((_, other)) = ended.filter(|(_, other)| *other != id) {
            return Err(format!("never_after_its_end: {job_id} was completed by {other}, {id} runs"));
        }
        let mut others = self.memory.queue.values().chain(self.memory.slots.iter().flatten());
        if others.any(|other| other.job.envelope.job_id == *job_id) {
            return Err(format!("one_message_of_a_job: {job_id} is with the executor twice"));
        }
        let seen = self.observed(id);
        if seen.starts > seen.cut_runs + seen.retryable {
            return Err(format!("one_run_unless_cut_off: {id} runs again"));
        }
        if seen.retryable > MAX_RETRIES {
            return Err(format!("attempts_are_bounded: {id} has failed {} times", seen.retryable));
        }
        let is_suspect = self.durable.deaths.contains_key(&id);
        let others = self.memory.queue.len() + self.memory.slots.iter().flatten().count();
        let other_suspect = self
            .memory
            .queue
            .values()
            .chain(self.memory.slots.iter().flatten())
            .any(|other| self.durable.deaths.contains_key(&other.message_id));
        if (is_suspect && others > 0) || other_suspect {
            return Err(format!("suspects_run_alone: {id} joins {others} others"));
        }
        Ok(())
    }

    pub(super) fn in_order(&self, ticket: Ticket) -> Result<(), Broken> {
        let table = &self.memory.table;
        if self.memory.store_fails {
            return Err("nothing_starts_while_the_store_fails: a job is handed over".into());
        }
        if let Some(first) = table.order.first_unchecked().filter(|first| *first < ticket) {
            return Err(format!("stream_order: {ticket} is handed over before {first} is checked"));
        }
        let earlier = table.jobs.range(..ticket).find(|(_, job)| matches!(job.state, JobState::Queued(_)));
        if let Some((earlier, _)) = earlier {
            return Err(format!("stream_order: {ticket} is handed over before {earlier}"));
        }
        match self.memory.queue.last_key_value() {
            Some((last, _)) if self.is(Defect::SubmitsInReverse) && *last > ticket => {
                Err(format!("stream_order: {ticket} is handed over after {last}"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn may_acknowledge(
        &mut self,
        id: MessageId,
        status: Option<&(JobId, TerminalStatus)>,
    ) -> Result<(), Broken> {
        let entry = self.durable.stream.get(&id).cloned();
        let trimmed = entry.is_none();
        let cancelled = matches!(status, Some((_, TerminalStatus::Cancelled { .. })));
        let key_is_set = entry.as_ref().is_some_and(|e| self.durable.cancel_keys.contains(&e.job_id));
        let ended_before =
            entry.as_ref().and_then(|e| self.durable.status.get(&e.job_id)).is_some_and(|(state, other)| {
                match state.as_str() {
                    "completed" | "cancelled" => {
                        *other != id || state == "cancelled" || self.durable.history.contains_key(&id)
                    }
                    "failed" => *other == id && self.durable.history.contains_key(&id),
                    _ => false,
                }
            });
        // Two messages of a job that both left results can write their states in any order.
        let ended_before = ended_before || entry.as_ref().is_some_and(|e| self.completed.contains(&e.job_id));
        let durable = self.durable.history.contains_key(&id) || self.durable.dead_letters.contains(&id);
        let accepted = self.observed(id).accepted > 0;
        let decided = self.observed(id).decided || self.durable.history.contains_key(&id);
        if cancelled && (accepted || decided) {
            return Err(format!("decision_is_final: {id} was delivered and is cancelled now"));
        }
        if cancelled && self.durable.rows.contains_key(&id) {
            return Err(format!("acknowledged_after_its_end: {id} is cancelled with its result on disk"));
        }
        match trimmed || durable || ended_before || (cancelled && key_is_set) {
            true => Ok(()),
            false => Err(format!("acknowledged_after_its_end: {id} with {status:?}")),
        }
    }

    pub(super) fn check(&mut self) -> Result<(), Broken> {
        let table = &self.memory.table;
        let with_permit = table.jobs.values().filter(|job| job.claim.permit).count();
        if with_permit + self.memory.permits != PERMITS {
            let free = self.memory.permits;
            return Err(format!("permits_are_counted: {with_permit} held and {free} free of {PERMITS}"));
        }
        if table.ids.parked() > MAX_PARKED {
            return Err(format!("permits_are_counted: {} messages are parked", table.ids.parked()));
        }
        let running = table.jobs.values().filter(|j| matches!(j.state, JobState::Running { .. })).count();
        let counted: usize = table.in_slot.iter().sum();
        if running != counted || running != table.running.len() || table.in_slot.len() != SLOTS {
            return Err(format!("slots_are_counted: {running} run, {:?} are counted", table.in_slot));
        }
        if table.is_drained(self.redis_up) && self.memory.draining {
            self.crash(false);
        }
        Ok(())
    }

    /// Everything works again and nothing new comes: then everything ends.
    pub(super) fn come_to_rest(&mut self) -> Result<(), Broken> {
        (self.redis_up, self.disk_works) = (true, true);
        if self.memory.draining {
            self.crash(false);
        }
        self.tell_of_the_store()?;
        for _ in 0..2_000 {
            self.read()?;
            self.sweep()?;
            while !self.memory.effects.is_empty() {
                self.complete_one()?;
            }
            self.slot_takes();
            (0..4).for_each(|_| self.slot_answers());
            while !self.memory.reports.is_empty() {
                self.take_report()?;
            }
            self.deliver_one()?;
            self.pass_time()?;
            self.check()?;
            if self.durable.pending.is_empty() && self.durable.undelivered.is_empty() {
                let left =
                    (self.memory.table.jobs.len(), self.memory.permits, self.memory.table.ids.parked());
                if left == (0, PERMITS, 0) {
                    return Ok(());
                }
            }
        }
        let states: Vec<_> =
            self.memory.table.jobs.values().map(|job| (job.claim.message_id, job.state.name())).collect();
        Err(format!(
            "everything_ends: pending are {:?}, the table has {states:?}, {} permits are free",
            self.durable.pending, self.memory.permits
        ))
    }

    pub(super) fn run(&mut self, events: u64) -> Result<(), Broken> {
        while self.events < events {
            for _ in 0..2_000 {
                self.step()?;
            }
            self.come_to_rest()?;
            self.forget_old();
        }
        Ok(())
    }
}
