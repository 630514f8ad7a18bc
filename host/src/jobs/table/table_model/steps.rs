//! What happens: messages come, slots work, cancels, outages and stops, in random order.

use super::*;

impl World {
    pub(super) fn step(&mut self) -> Result<(), Broken> {
        match self.random.random_range(0..100) {
            0..12 => self.send(),
            12..22 => self.read()?,
            22..26 => self.sweep()?,
            26..56 => self.complete_one()?,
            56..66 => self.slot_takes(),
            66..76 => self.slot_answers(),
            76..84 => self.take_report()?,
            84..90 => self.deliver_one()?,
            90..92 => self.request_cancel(),
            92..95 => self.apply(Event::CancelPoll)?,
            95 => self.redis_up = !self.redis_up || self.chance(2),
            96 => {
                self.disk_works = !self.disk_works || self.chance(2);
                if self.chance(2) {
                    self.tell_of_the_store()?;
                }
            }
            97 => self.change_device()?,
            98 => self.pass_time()?,
            _ => self.stop_or_crash()?,
        }
        self.check()
    }

    /// Another write than the table's own finds the disk as it is.
    pub(super) fn tell_of_the_store(&mut self) -> Result<(), Broken> {
        let error = (!self.disk_works).then(|| "disk full".to_string());
        self.apply(Event::StoreChanged { error })
    }

    pub(super) fn send(&mut self) {
        let unread = self.durable.undelivered.len();
        if unread > 10 {
            return;
        }
        let id = MessageId { ms: self.next_message, seq: 0 };
        self.next_message += 1;
        let job = self.next_message / 8 + self.random.random_range(0..JOB_WINDOW);
        let content = match self.random.random_range(0..12) {
            0 => Content::Malformed,
            1 => Content::Unanswerable,
            2..5 => Content::Circuit { qubits: 3 },
            _ => Content::Circuit { qubits: 2 },
        };
        self.durable.stream.insert(id, Entry { job_id: format!("j{job}").into(), content });
        self.durable.undelivered.push_back(id);
    }

    /// New messages of the stream, as many as there are permits for.
    pub(super) fn read(&mut self) -> Result<(), Broken> {
        if !self.redis_up || self.memory.draining {
            return Ok(());
        }
        let count = self.memory.permits.min(self.durable.undelivered.len());
        let ids: Vec<MessageId> = self.durable.undelivered.drain(..count).collect();
        self.durable.pending.extend(&ids);
        self.claim(ids, ClaimOrigin::New)
    }

    pub(super) fn claim(&mut self, ids: Vec<MessageId>, origin: ClaimOrigin) -> Result<(), Broken> {
        if ids.is_empty() {
            return Ok(());
        }
        self.memory.permits -= ids.len();
        let messages = ids.into_iter().map(|id| Message { id, fields: Vec::new() }).collect();
        self.apply(Event::Claimed { messages, origin })
    }

    /// The look through the pending list.
    pub(super) fn sweep(&mut self) -> Result<(), Broken> {
        if !self.redis_up || self.memory.draining {
            return Ok(());
        }
        let pending: Vec<MessageId> = self.durable.pending.iter().copied().collect();
        let mut ids = self.memory.table.not_held(pending);
        if self.chance(40)
            && let Some(id) = ids.pop()
        {
            self.durable.stream.remove(&id);
            self.observed(id).trimmed = true;
        }
        let (there, gone): (Vec<_>, Vec<_>) =
            ids.into_iter().partition(|id| self.durable.stream.contains_key(id));
        if !gone.is_empty() {
            self.apply(Event::Trimmed(gone))?;
        }
        let count = there.len().min(self.memory.permits);
        self.claim(there.into_iter().take(count).collect(), ClaimOrigin::LeftPending)
    }

    pub(super) fn request_cancel(&mut self) {
        let newest = self.next_message / 8 + JOB_WINDOW;
        let job = newest.saturating_sub(self.random.random_range(0..2 * JOB_WINDOW));
        self.durable.cancel_keys.insert(format!("j{job}").into());
    }

    pub(super) fn change_device(&mut self) -> Result<(), Broken> {
        self.qubits = 5 - self.qubits;
        self.memory.queue.clear();
        self.memory.reloads_under_way += 1;
        self.memory.reports.push_back(Event::DeviceChanged { device: device(self.qubits) });
        Ok(())
    }

    pub(super) fn pass_time(&mut self) -> Result<(), Broken> {
        self.elapsed += Duration::from_millis(700);
        match self.memory.table.next_wake() {
            Some(at) if at <= self.elapsed => self.apply(Event::Tick),
            _ => Ok(()),
        }
    }

    pub(super) fn stop_or_crash(&mut self) -> Result<(), Broken> {
        match self.random.random_range(0..8) {
            0..2 => self.crash(true),
            2 if !self.memory.draining => {
                self.memory.draining = true;
                self.apply(Event::DrainRequested)?;
            }
            // The drain's limit is over.
            3 if self.memory.draining => self.crash(false),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn slot_takes(&mut self) {
        let Some(slot) = self.memory.slots.iter().position(Vec::is_empty) else { return };
        let mut jobs = Vec::new();
        while jobs.len() < BATCH_MAX
            && let Some((_, job)) = self.memory.queue.pop_first()
        {
            jobs.push(job);
        }
        if !jobs.is_empty() {
            let tickets = jobs.iter().map(|job| job.ticket).collect();
            for job in &jobs {
                self.observed(job.message_id).starts += 1;
                // As the slot's thread does before the call.
                if job.job.failed.count > 0 {
                    let (job_id, attempt) = (job.job.envelope.job_id.to_string(), job.job.failed.count);
                    let kept = KeptAnswer { job_id, attempt, answer: None };
                    self.durable.answers.insert(job.message_id, kept);
                }
            }
            self.memory.slots[slot] = jobs;
            self.memory.reports.push_back(Event::Started { slot, tickets });
        }
    }

    pub(super) fn slot_answers(&mut self) {
        let slot = self.pick(SLOTS);
        for job in std::mem::take(&mut self.memory.slots[slot]) {
            let answer = match self.random.random_range(0..12) {
                0 => Err(Error::new(ErrorCode::Hardware, "cold")),
                1..4 => {
                    self.observed(job.message_id).retryable += 1;
                    Err(Error::new(ErrorCode::Hardware, "busy").retryable())
                }
                _ => Ok(Outcome::from_counts([("0".to_string(), 1)])),
            };
            let job_id = job.job.envelope.job_id.to_string();
            let attempt = job.job.failed.count + 1;
            self.durable
                .answers
                .insert(job.message_id, KeptAnswer { job_id, attempt, answer: Some(answer.clone()) });
            let answer = match answer {
                Err(error) if self.is(Defect::RetriesWhatIsFinal) => Err(error.retryable()),
                answer => answer,
            };
            let times = if self.is(Defect::ReportsAnAnswerTwice) && self.chance(20) { 2 } else { 1 };
            for _ in 0..times {
                let (ticket, answer) = (job.ticket, answer.clone());
                self.memory.reports.push_back(Event::Answered { slot, ticket, answer });
            }
        }
    }

    pub(super) fn take_report(&mut self) -> Result<(), Broken> {
        let Some(report) = self.memory.reports.pop_front() else { return Ok(()) };
        if matches!(report, Event::DeviceChanged { .. }) {
            self.memory.reloads_under_way -= 1;
        }
        self.apply(report)
    }
}
