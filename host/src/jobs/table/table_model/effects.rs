//! The effects of the table, performed on the model's Redis, disk, executor and cloud.

use super::*;

impl World {
    pub(super) fn apply(&mut self, event: Event) -> Result<(), Broken> {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            self.events += 1;
            let now = Now { elapsed: self.elapsed, at: OffsetDateTime::UNIX_EPOCH + self.elapsed };
            self.trace("event", &event);
            self.memory.watch_store(&event);
            let event = match event {
                Event::DeviceChanged { .. } if self.is(Defect::KeepsTheFormerDevice) => {
                    Event::DeviceChanged { device: device(3) }
                }
                event => event,
            };
            let effects = self.memory.table.on(now, event);
            for effect in self.with_defect(effects) {
                if let Some(immediate) = self.perform(effect)? {
                    events.push_back(immediate);
                }
            }
        }
        Ok(())
    }

    /// Performs what the driver performs at once; everything else is under way from here on.
    pub(super) fn perform(&mut self, effect: Effect) -> Result<Option<Event>, Broken> {
        self.trace("effect", &effect);
        match effect {
            Effect::ReturnPermits(permits) => self.memory.permits += permits,
            Effect::Submit(submissions) => {
                for submission in submissions {
                    if self.memory.reloads_under_way > 0 {
                        // Judged by the former device: the executor drops it.
                        continue;
                    }
                    self.may_start(&submission)?;
                    self.in_order(submission.ticket)?;
                    let qubits = submission.job.work.program.num_qubits();
                    if qubits > self.qubits {
                        let id = submission.message_id;
                        return Err(format!(
                            "judged_by_its_device: {id} has {qubits} qubits of {}",
                            self.qubits
                        ));
                    }
                    self.memory.queue.insert(submission.ticket, submission);
                }
            }
            Effect::Withdraw(ticket) => {
                let withdrawn = self.memory.queue.remove(&ticket).is_some();
                return Ok(Some(Event::Withdrawn { ticket, withdrawn }));
            }
            Effect::WriteExecuting { message_id, job_id } => {
                // The slot's thread has counted this run already.
                if self.redis_up {
                    self.durable.status.insert(job_id, ("executing".into(), message_id));
                }
            }
            Effect::Deliver(result) => {
                let id = result.row.message_id;
                if self.observed(id).cancel_won || self.memory.cancel_read.contains(&id) {
                    return Err(format!("cancel_before_the_decision_wins: {id} is delivered"));
                }
                self.memory.deliveries.insert(id, Delivery::Fresh);
            }
            Effect::Notify(Notice::Impossible(fault)) => return Err(format!("no_faults: {fault}")),
            Effect::Notify(_) | Effect::CancelRun(_) => {}
            Effect::ForgetDeaths(id) => {
                self.durable.deaths.remove(&id);
            }
            later => self.memory.effects.push(later),
        }
        Ok(None)
    }

    /// Completes one effect that is under way, whichever.
    pub(super) fn complete_one(&mut self) -> Result<(), Broken> {
        if self.memory.effects.is_empty() {
            return Ok(());
        }
        let index = self.pick(self.memory.effects.len());
        let effect = self.memory.effects.swap_remove(index);
        match self.complete(effect)? {
            Ok(event) => self.apply(event),
            Err(not_yet) => {
                self.memory.effects.push(not_yet);
                Ok(())
            }
        }
    }

    pub(super) fn complete(&mut self, effect: Effect) -> Result<Result<Event, Effect>, Broken> {
        self.trace("completes", &effect);
        let (redis, disk) = (self.redis_up, self.disk_works);
        let down = || "connection refused".to_string();
        let full = || "disk full".to_string();
        let on_disk = if disk { Ok(()) } else { Err(full()) };
        Ok(Ok(match effect {
            Effect::Check(requests) if !redis || !disk => {
                let tickets = requests.iter().map(|r| r.ticket).collect();
                Event::CheckFailed { tickets, error: down() }
            }
            Effect::Check(mut requests) => {
                let request = requests.remove(0);
                let ticket = request.ticket;
                let outcome = self.check_message(request);
                if !requests.is_empty() {
                    self.memory.effects.push(Effect::Check(requests));
                }
                Event::Checked { ticket, outcome }
            }
            Effect::ReadCancelKeys(jobs) => {
                let set = |(_, job_id): &&(Ticket, JobId)| redis && self.durable.cancel_keys.contains(job_id);
                let cancelled = jobs.iter().filter(set).map(|(ticket, _)| *ticket).collect();
                Event::CancelKeysRead { cancelled, error: None }
            }
            Effect::ReadRecord { ticket, job_id } => {
                let record = if redis { Ok(self.record(&job_id)) } else { Err(down()) };
                Event::RecordRead { ticket, record }
            }
            Effect::ReadCancelKey { ticket, job_id } => {
                let set = self.durable.cancel_keys.contains(&job_id);
                let cancelled = if redis { Ok(set) } else { Err(down()) };
                if cancelled == Ok(true)
                    && let Some(job) = self.memory.table.jobs.get(&ticket)
                {
                    self.memory.cancel_read.insert(job.claim.message_id);
                }
                match self.is(Defect::IgnoresTheLastCancel) {
                    true => Event::CancelKeyRead { ticket, cancelled: Ok(false) },
                    false => Event::CancelKeyRead { ticket, cancelled },
                }
            }
            Effect::WriteStatus { ticket, message_id, job_id, end } => {
                if redis {
                    if end.status == Status::Completed {
                        self.completed.insert(job_id.clone());
                    }
                    self.durable.status.insert(job_id, (end.status.name().into(), message_id));
                    self.observed(message_id).decided = true;
                }
                // The reply can be lost although the server has written.
                let written = redis && !self.chance(10);
                Event::StatusWritten { ticket, written }
            }
            Effect::Store { ticket, message_id, result, at, replaces } => {
                let result = row_of(message_id, result, at, replaces);
                match disk {
                    true => {
                        let row = Row { row: result.row.clone(), phase: Phase::Stored };
                        self.durable.rows.insert(message_id, row);
                        Event::Stored { ticket, result }
                    }
                    false => Event::StoreFailed { ticket, result, error: full() },
                }
            }
            Effect::MarkAnnounced { ticket, message_id } => {
                if disk && let Some(row) = self.durable.rows.get_mut(&message_id) {
                    row.phase = Phase::Announced;
                    self.observed(message_id).decided = true;
                }
                Event::Marked { ticket, marked: on_disk }
            }
            Effect::Discard { ticket, message_id } => {
                if self.observed(message_id).decided {
                    return Err(format!("decision_is_final: {message_id} is discarded"));
                }
                if disk {
                    self.durable.rows.remove(&message_id);
                    self.observed(message_id).cancel_won = true;
                }
                Event::Discarded { ticket, discarded: on_disk }
            }
            Effect::Bury { ticket, letter } => {
                if disk {
                    self.durable.dead_letters.insert(letter.message_id);
                }
                Event::Buried { ticket, buried: on_disk }
            }
            Effect::Acknowledge { ticket, message_id, status, removal } => {
                if !redis {
                    return Ok(Err(Effect::Acknowledge { ticket, message_id, status, removal }));
                }
                self.may_acknowledge(message_id, status.as_ref())?;
                if let Some((job_id, status)) = status {
                    let state = match status {
                        TerminalStatus::Ended(end) => {
                            if end.status == Status::Completed {
                                self.completed.insert(job_id.clone());
                            }
                            end.status.name()
                        }
                        TerminalStatus::Cancelled { .. } => "cancelled",
                    };
                    self.durable.status.insert(job_id, (state.into(), message_id));
                }
                if removal != MessageRemoval::Leave {
                    self.durable.pending.remove(&message_id);
                }
                self.ended += 1;
                Event::Acknowledged { ticket }
            }
            Effect::AwaitFirstAttempts => {
                match self.memory.deliveries.values().any(|d| *d == Delivery::Fresh) {
                    true => return Ok(Err(Effect::AwaitFirstAttempts)),
                    false => Event::AllTried,
                }
            }
            other => return Err(format!("the model does not know the effect {other:?}")),
        }))
    }

    pub(super) fn record(&self, job_id: &JobId) -> JobRecord {
        let status = self.durable.status.get(job_id);
        JobRecord {
            state: status.map(|(state, _)| state.clone()),
            message_id: status.map(|(_, id)| id.to_string()),
            cancelled: self.durable.cancel_keys.contains(job_id),
        }
    }

    pub(super) fn check_message(&mut self, request: CheckRequest) -> CheckOutcome {
        let CheckRequest { message_id, deaths, left_pending, subject, .. } = request;
        let entry = self.durable.stream.get(&message_id).cloned();
        let Some(entry) = entry.filter(|e| e.content != Content::Unanswerable) else {
            return CheckOutcome::Unanswerable { reason: "no callback".into(), fields: String::new() };
        };
        let envelope = Envelope {
            job_id: entry.job_id.clone(),
            callback_url: "http://h/".into(),
            origin: "http://h".into(),
        };
        let past = self.durable.history.get(&message_id);
        let record = self.record(&entry.job_id);
        let facts = MessageFacts { past, left_pending, deaths };
        let verdict = match admit(message_id, &entry.job_id, &record, facts, MAX_DEATHS) {
            Admission::Duplicate if !self.is(Defect::RunsDuplicates) => Verdict::Duplicate,
            Admission::Settle(end) => Verdict::Settle(end),
            Admission::Cancel => Verdict::Cancelled,
            Admission::GiveUp { deaths } => Verdict::Fail(died_error(deaths)),
            Admission::Run | Admission::RunAgain | Admission::Duplicate => match entry.content {
                Content::Circuit { qubits } => Verdict::Run(Work { program: program(qubits), shots: 1 }),
                _ => Verdict::Fail("no circuit".into()),
            },
        };
        let replaces = record.replaced_by(message_id);
        CheckOutcome::Answerable { envelope, verdict, subject, replaces }
    }
}
