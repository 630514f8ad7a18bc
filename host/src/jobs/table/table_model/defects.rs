//! Tables that are wrong in one way each.

use super::*;

impl World {
    pub(super) fn with_defect(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        let Some(defect) = self.defect else { return effects };
        let mut changed = Vec::with_capacity(effects.len());
        for effect in effects {
            match (defect, effect) {
                (
                    Defect::AcknowledgesBeforeTheStore,
                    Effect::Store { ticket, message_id, result, at, replaces },
                ) => {
                    self.memory.effects.push(Effect::Acknowledge {
                        ticket,
                        message_id,
                        status: None,
                        removal: MessageRemoval::Remove,
                    });
                    changed.push(Effect::Store { ticket, message_id, result, at, replaces });
                }
                (Defect::SubmitsTwice, Effect::Submit(jobs)) => {
                    let again = jobs.iter().map(|s| Submission {
                        ticket: s.ticket + 1_000_000,
                        message_id: s.message_id,
                        job: s.job.clone(),
                    });
                    let again = again.collect();
                    changed.push(Effect::Submit(jobs));
                    changed.push(Effect::Submit(again));
                }
                (Defect::SubmitsInReverse, Effect::Submit(mut jobs)) => {
                    jobs.reverse();
                    changed.push(Effect::Submit(jobs));
                }
                (Defect::DropsASubmission, Effect::Submit(_)) if self.chance(20) => {}
                (Defect::KeepsPermits, Effect::ReturnPermits(_)) if self.chance(20) => {}
                (Defect::GivesTooManyPermits, Effect::ReturnPermits(n)) => {
                    changed.push(Effect::ReturnPermits(n + 1));
                }
                (Defect::DropsAnAcknowledgement, Effect::Acknowledge { .. }) if self.chance(20) => {}
                (Defect::CancelsAfterTheDecision, Effect::Deliver(result)) if self.chance(5) => {
                    let (message_id, job_id) = (result.row.message_id, result.row.job_id.clone());
                    let status = Some((job_id.clone(), TerminalStatus::Cancelled { at: String::new() }));
                    self.durable.cancel_keys.insert(job_id);
                    self.memory.effects.push(Effect::Acknowledge {
                        ticket: 0,
                        message_id,
                        status,
                        removal: MessageRemoval::Remove,
                    });
                    changed.push(Effect::Deliver(result));
                }
                (Defect::RunsWhileTheStoreFails, Effect::Notify(Notice::StoreFails { .. })) => {
                    self.memory.table.store_error = StandingError::default();
                }
                (Defect::RetriesForEver, Effect::Notify(Notice::RunsAgain { job_id, .. })) => {
                    let jobs = self.memory.table.jobs.values_mut();
                    for job in jobs.filter(|job| job.state.job_id() == Some(&job_id)) {
                        if let JobState::Resting { job, .. } = &mut job.state {
                            job.failed = FailedRuns::default();
                        }
                    }
                }
                (Defect::ForgetsParking, Effect::Notify(Notice::Parked { job_id })) => {
                    let owner = self.memory.table.ids.owner(&job_id);
                    for parked in owner.map(|t| self.memory.table.ids.release(&job_id, t)).unwrap_or_default()
                    {
                        changed.push(Effect::Notify(Notice::NotParked {
                            job_id: job_id.clone(),
                            message_id: MessageId { ms: parked, seq: 0 },
                        }));
                    }
                }
                (_, effect) => changed.push(effect),
            }
        }
        changed
    }
}
