//! Pure: what may happen to a reservation. A command and the state so far give the facts to append, or a named
//! refusal; folding the facts gives the state.

use super::event::{Fact, HoldRelease, ReservationRequest, Transition};

/// A reservation, rebuilt from its facts.
#[derive(Debug, Clone, PartialEq)]
pub struct ReservationState {
    pub request: ReservationRequest,
    pub accepting_peer_id: Option<String>,
    pub transition: Transition,
    /// Why it was cancelled or rejected.
    pub reason: Option<String>,
    /// When the first and the last fact were recorded, in microseconds since 1970.
    pub requested_at: i64,
    pub last_event_at: i64,
    /// A slot of this host is held for it.
    pub held: bool,
    /// How a held slot became free.
    pub released: Option<HoldRelease>,
    pub execution: Option<Execution>,
}

/// What became of its dispatch.
#[derive(Debug, Clone, PartialEq)]
pub struct Execution {
    pub execution_id: String,
    pub outcome: Option<Result<(), String>>,
}

/// What someone wants to record.
#[derive(Debug, Clone, PartialEq)]
pub enum ReservationCommand {
    Request(ReservationRequest),
    Accept {
        peer: String,
        held: bool,
    },
    Commit,
    Cancel {
        reason: String,
    },
    /// The reservation wasn't committed in time, or its hold is over.
    Expire,
    Reject {
        reason: String,
    },
    /// The process that held a slot for it has ended.
    Lose {
        reason: String,
    },
    Dispatch {
        execution_id: String,
    },
    Complete {
        execution_id: String,
        fidelity: Option<f64>,
        latency_ms: f64,
    },
    Fail {
        execution_id: String,
        error: String,
    },
}

/// Why a command records nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("there is no such reservation")]
    Unknown,
    #[error("there is such a reservation already")]
    Exists,
    #[error("it is {} and can't become {}", from.name(), to.name())]
    Transition { from: Transition, to: Transition },
    #[error("it has no execution {0} that is running")]
    NotRunning(String),
    #[error("it was dispatched before, or never committed")]
    NotDispatchable,
}

/// The facts that a command adds to a state.
///
/// # Errors
/// When the reservation's state doesn't allow it; nothing is to be recorded then.
pub fn decide(state: Option<&ReservationState>, command: &ReservationCommand) -> Result<Vec<Fact>, Refusal> {
    let Some(state) = state else {
        return match command {
            ReservationCommand::Request(request) => Ok(vec![Fact::Requested(request.clone())]),
            _ => Err(Refusal::Unknown),
        };
    };
    let step = |to: Transition, fact: Fact| match state.transition.allows(to) {
        true => Ok(vec![fact]),
        false => Err(Refusal::Transition { from: state.transition, to }),
    };
    let release = |why| Fact::HoldReleased { why };
    let running = |id: &str| match &state.execution {
        Some(e) if e.execution_id == id && e.outcome.is_none() => Ok(()),
        _ => Err(Refusal::NotRunning(id.to_string())),
    };
    match command {
        ReservationCommand::Request(_) => Err(Refusal::Exists),
        ReservationCommand::Accept { peer, held } => {
            step(Transition::Accepted, Fact::Accepted { accepting_peer_id: peer.clone(), held: *held })
        }
        ReservationCommand::Commit => step(Transition::Committed, Fact::Committed),
        ReservationCommand::Reject { reason } => {
            step(Transition::Rejected, Fact::Rejected { reason: reason.clone() })
        }
        ReservationCommand::Cancel { reason } => {
            // A committed reservation stays committed; what ends is the hold.
            if state.transition == Transition::Committed && state.held {
                return Ok(vec![release(HoldRelease::Cancelled)]);
            }
            let mut facts = step(Transition::Cancelled, Fact::Cancelled { reason: reason.clone() })?;
            facts.extend(state.held.then(|| release(HoldRelease::Cancelled)));
            Ok(facts)
        }
        ReservationCommand::Expire => {
            if state.transition == Transition::Committed && state.held {
                return Ok(vec![release(HoldRelease::Expired)]);
            }
            let mut facts = step(Transition::Expired, Fact::Expired)?;
            facts.extend(state.held.then(|| release(HoldRelease::Expired)));
            Ok(facts)
        }
        ReservationCommand::Lose { reason } => {
            if !state.held {
                return Ok(Vec::new());
            }
            let mut facts = Vec::new();
            if let Some(Execution { execution_id, outcome: None }) = &state.execution {
                facts.push(Fact::Failed { execution_id: execution_id.clone(), error: reason.clone() });
            } else if state.transition.allows(Transition::Cancelled) {
                facts.push(Fact::Cancelled { reason: reason.clone() });
            }
            facts.push(release(HoldRelease::Lost));
            Ok(facts)
        }
        ReservationCommand::Dispatch { execution_id } => {
            let given_up = state.released.is_some();
            if state.transition != Transition::Committed || state.execution.is_some() || given_up {
                return Err(Refusal::NotDispatchable);
            }
            Ok(vec![Fact::Dispatched { execution_id: execution_id.clone() }])
        }
        ReservationCommand::Complete { execution_id, fidelity, latency_ms } => {
            running(execution_id)?;
            let (execution_id, fidelity) = (execution_id.clone(), *fidelity);
            let mut facts = vec![Fact::Completed { execution_id, fidelity, latency_ms: *latency_ms }];
            facts.extend(state.held.then(|| release(HoldRelease::Dispatched)));
            Ok(facts)
        }
        ReservationCommand::Fail { execution_id, error } => {
            running(execution_id)?;
            let mut facts = vec![Fact::Failed { execution_id: execution_id.clone(), error: error.clone() }];
            facts.extend(state.held.then(|| release(HoldRelease::Dispatched)));
            Ok(facts)
        }
    }
}

/// A fact that can't follow what was before it: the log is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{kind}' can't follow {after}")]
pub struct Impossible {
    pub kind: &'static str,
    pub after: String,
}

/// The state after one more fact.
///
/// # Errors
/// When the fact can't follow the state.
pub fn fold(state: Option<ReservationState>, at: i64, fact: &Fact) -> Result<ReservationState, Impossible> {
    let impossible = |after: &str| Impossible { kind: fact.kind(), after: after.into() };
    let Some(mut state) = state else {
        return match fact {
            Fact::Requested(request) => Ok(ReservationState {
                request: request.clone(),
                accepting_peer_id: None,
                transition: Transition::Requested,
                reason: None,
                requested_at: at,
                last_event_at: at,
                held: false,
                released: None,
                execution: None,
            }),
            _ => Err(impossible("nothing")),
        };
    };
    if let Some(to) = fact.transition() {
        if !state.transition.allows(to) {
            return Err(impossible(state.transition.name()));
        }
        state.transition = to;
    }
    match fact {
        Fact::Requested(_) | Fact::Committed | Fact::Expired => {}
        Fact::Accepted { accepting_peer_id, held } => {
            state.accepting_peer_id = Some(accepting_peer_id.clone());
            state.held = *held;
        }
        Fact::Cancelled { reason } | Fact::Rejected { reason } => state.reason = Some(reason.clone()),
        Fact::HoldReleased { why } => {
            if !state.held {
                return Err(impossible("a slot that isn't held"));
            }
            state.held = false;
            state.released = Some(*why);
        }
        Fact::Dispatched { execution_id } => {
            if state.transition != Transition::Committed || state.execution.is_some() {
                return Err(impossible(state.transition.name()));
            }
            state.execution = Some(Execution { execution_id: execution_id.clone(), outcome: None });
        }
        Fact::Completed { execution_id, .. } | Fact::Failed { execution_id, .. } => {
            let outcome = match fact {
                Fact::Failed { error, .. } => Err(error.clone()),
                _ => Ok(()),
            };
            match &mut state.execution {
                Some(e) if e.execution_id == *execution_id && e.outcome.is_none() => {
                    e.outcome = Some(outcome);
                }
                _ => return Err(impossible("no such execution")),
            }
        }
    }
    state.last_event_at = at;
    Ok(state)
}

/// The state after all of them; none for none.
///
/// # Errors
/// When a fact can't follow the ones before it; the first one is named by its index.
pub fn replay<'a>(
    facts: impl IntoIterator<Item = (i64, &'a Fact)>,
) -> Result<Option<ReservationState>, (usize, Impossible)> {
    let mut state = None;
    for (n, (at, fact)) in facts.into_iter().enumerate() {
        state = Some(fold(state, at, fact).map_err(|e| (n, e))?);
    }
    Ok(state)
}

#[cfg(test)]
#[path = "ledger_tests.rs"]
mod tests;
