//! Pure: the answers that owners may ask for again, bounded for each owner and in all.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Most answers that are kept for one owner.
const KEPT_ANSWERS: usize = 1024;
/// Most bytes of answers that are kept for one owner.
const KEPT_BYTES: usize = 32 << 20;
/// Most bytes of answers that are kept for all owners.
const KEPT_TOTAL_BYTES: usize = 128 << 20;
/// Most owners whose answers are kept.
const KEPT_OWNERS: usize = 256;

/// The answers that one owner may ask for again.
#[derive(Debug, Default)]
struct AnswersOfOwner {
    order: VecDeque<String>,
    executions: HashMap<String, Execution>,
    bytes: usize,
}

/// An execution that its owner may ask for.
#[derive(Debug)]
pub(super) enum Execution {
    Running,
    Done(Arc<[u8]>),
}

/// What is kept of executions.
#[derive(Debug, Default)]
pub(super) struct KeptAnswers {
    /// By owner.
    answers: HashMap<String, AnswersOfOwner>,
    /// Owners with kept answers, the least recent first.
    owners: VecDeque<String>,
}

impl KeptAnswers {
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// What is known of an execution of this owner.
    pub(super) fn get(&self, owner: &str, execution_id: &str) -> Option<&Execution> {
        self.answers.get(owner)?.executions.get(execution_id)
    }

    /// Keeps what is known of an execution; older answers go for it.
    pub(super) fn keep(&mut self, owner: &str, execution_id: &str, execution: Execution) {
        if !self.answers.contains_key(owner) {
            let oldest = |k: &AnswersOfOwner| !k.executions.values().any(|e| matches!(e, Execution::Running));
            while self.owners.len() >= KEPT_OWNERS {
                let Some(at) = self.owners.iter().position(|o| self.answers.get(o).is_none_or(oldest)) else {
                    break;
                };
                if let Some(gone) = self.owners.remove(at) {
                    self.answers.remove(&gone);
                }
            }
            self.owners.push_back(owner.into());
        }
        let kept = self.answers.entry(owner.into()).or_default();
        if let Execution::Done(answer) = &execution {
            kept.bytes += answer.len();
        }
        if kept.executions.insert(execution_id.into(), execution).is_none() {
            kept.order.push_back(execution_id.into());
        }
        let mut looked = 0;
        while (kept.order.len() > KEPT_ANSWERS || kept.bytes > KEPT_BYTES) && looked < kept.order.len() {
            let Some(oldest) = kept.order.pop_front() else { break };
            match kept.executions.get(&oldest) {
                // The newest is what was just answered.
                Some(Execution::Done(answer)) if oldest != execution_id => {
                    kept.bytes -= answer.len();
                    kept.executions.remove(&oldest);
                }
                _ => {
                    kept.order.push_back(oldest);
                    looked += 1;
                }
            }
        }
        self.forget_beyond_the_total(owner);
    }

    /// Forgets answers of the owners that came first, until all that are kept fit. The newest owner's are bounded by
    /// themselves.
    fn forget_beyond_the_total(&mut self, newest: &str) {
        let mut total: usize = self.answers.values().map(|kept| kept.bytes).sum();
        for owner in self.owners.iter().filter(|owner| *owner != newest) {
            if total <= KEPT_TOTAL_BYTES {
                return;
            }
            let Some(kept) = self.answers.get_mut(owner) else { continue };
            total -= kept.bytes;
            kept.bytes = 0;
            kept.executions.retain(|_, execution| matches!(execution, Execution::Running));
            kept.order.retain(|id| kept.executions.contains_key(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answers_of_an_owner_are_bounded() {
        let mut kept = KeptAnswers::default();
        let answer: Arc<[u8]> = b"answer".as_slice().into();
        for n in 0..KEPT_ANSWERS * 2 {
            kept.keep("owner", &format!("execution-{n:08}"), Execution::Done(answer.clone()));
        }
        let of_owner = &kept.answers["owner"];
        assert_eq!((of_owner.order.len(), of_owner.executions.len()), (KEPT_ANSWERS, KEPT_ANSWERS));
        assert_eq!(of_owner.bytes, KEPT_ANSWERS * answer.len());
        assert!(kept.get("owner", "execution-00000000").is_none());
    }

    #[test]
    fn all_answers_together_are_bounded() {
        let mut kept = KeptAnswers::default();
        let answer: Arc<[u8]> = vec![b'x'; 1 << 20].into();
        for n in 0..KEPT_OWNERS {
            kept.keep(&format!("owner-{n}"), "execution-1", Execution::Done(answer.clone()));
        }
        let bytes: usize = kept.answers.values().map(|kept| kept.bytes).sum();
        assert!(bytes <= KEPT_TOTAL_BYTES, "{bytes}");
        assert!(
            kept.get(&format!("owner-{}", KEPT_OWNERS - 1), "execution-1").is_some(),
            "the newest is kept"
        );
    }

    #[test]
    fn what_is_running_is_never_forgotten() {
        let mut kept = KeptAnswers::default();
        kept.keep("owner", "execution-1", Execution::Running);
        let answer: Arc<[u8]> = vec![b'x'; 1 << 20].into();
        for n in 0..KEPT_OWNERS * 2 {
            kept.keep(&format!("owner-{n}"), "execution-1", Execution::Done(answer.clone()));
        }
        assert!(matches!(kept.get("owner", "execution-1"), Some(Execution::Running)));
    }
}
