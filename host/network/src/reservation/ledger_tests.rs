use super::*;

fn request() -> ReservationRequest {
    ReservationRequest {
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        service_id: "hadamard".into(),
        requesting_peer_id: "12D3KooWcoordinator".into(),
        ttl_seconds: 60,
        idempotency_key: None,
    }
}

/// Runs commands as a writer does.
#[derive(Default)]
struct Life {
    state: Option<ReservationState>,
    kinds: Vec<&'static str>,
    now: i64,
}

impl Life {
    fn tell(&mut self, command: ReservationCommand) -> Result<(), Refusal> {
        for fact in decide(self.state.as_ref(), &command)? {
            self.now += 1;
            self.kinds.push(fact.kind());
            self.state = Some(fold(self.state.take(), self.now, &fact).expect("decided facts always fold"));
        }
        Ok(())
    }

    fn life_after(commands: &[ReservationCommand]) -> Life {
        let mut life = Life::default();
        for command in commands {
            life.tell(command.clone()).unwrap_or_else(|e| panic!("{command:?}: {e}"));
        }
        life
    }
}

fn accept(held: bool) -> ReservationCommand {
    ReservationCommand::Accept { peer: "12D3KooWpeer".into(), held }
}

fn cancel() -> ReservationCommand {
    ReservationCommand::Cancel { reason: "changed its mind".into() }
}

fn dispatch() -> ReservationCommand {
    ReservationCommand::Dispatch { execution_id: "exec-1".into() }
}

fn complete() -> ReservationCommand {
    ReservationCommand::Complete { execution_id: "exec-1".into(), fidelity: Some(1.0), latency_ms: 2.5 }
}

#[test]
fn a_hold_ends_once_by_each_of_its_three_ends() {
    use ReservationCommand::{Commit, Expire, Request as Ask};
    let ends: [(&[ReservationCommand], &[&str], HoldRelease); 6] = [
        (
            &[Ask(request()), accept(true), Commit, dispatch(), complete()],
            &["requested", "accepted", "committed", "dispatched", "completed", "hold_released"],
            HoldRelease::Dispatched,
        ),
        (
            &[Ask(request()), accept(true), cancel()],
            &["requested", "accepted", "cancelled", "hold_released"],
            HoldRelease::Cancelled,
        ),
        (
            &[Ask(request()), accept(true), Commit, cancel()],
            &["requested", "accepted", "committed", "hold_released"],
            HoldRelease::Cancelled,
        ),
        (
            &[Ask(request()), accept(true), Expire],
            &["requested", "accepted", "expired", "hold_released"],
            HoldRelease::Expired,
        ),
        (
            &[Ask(request()), accept(true), Commit, Expire],
            &["requested", "accepted", "committed", "hold_released"],
            HoldRelease::Expired,
        ),
        (
            &[
                Ask(request()),
                accept(true),
                Commit,
                dispatch(),
                ReservationCommand::Fail { execution_id: "exec-1".into(), error: "no such gate".into() },
            ],
            &["requested", "accepted", "committed", "dispatched", "failed", "hold_released"],
            HoldRelease::Dispatched,
        ),
    ];
    for (commands, kinds, why) in ends {
        let mut life = Life::life_after(commands);
        assert_eq!(life.kinds, kinds);
        let state = life.state.clone().unwrap();
        assert!(!state.held && state.released == Some(why) && state.transition.is_terminal());
        for again in [cancel(), Expire, dispatch(), complete()] {
            assert!(life.tell(again.clone()).is_err(), "{again:?} after {kinds:?}");
        }
    }
}

#[test]
fn without_a_hold_only_transitions_are_recorded() {
    let life = Life::life_after(&[
        ReservationCommand::Request(request()),
        accept(false),
        ReservationCommand::Commit,
        dispatch(),
        complete(),
    ]);
    assert_eq!(life.kinds, ["requested", "accepted", "committed", "dispatched", "completed"]);
    assert_eq!(life.state.unwrap().released, None);
}

#[test]
fn refusals_name_both_ends() {
    let mut life = Life::life_after(&[
        ReservationCommand::Request(request()),
        ReservationCommand::Reject { reason: "full".into() },
    ]);
    let refused = life.tell(ReservationCommand::Commit).unwrap_err();
    assert_eq!(refused.to_string(), "it is rejected and can't become committed");
    assert_eq!(life.tell(ReservationCommand::Request(request())), Err(Refusal::Exists));
    assert_eq!(Life::default().tell(ReservationCommand::Commit), Err(Refusal::Unknown));
}

#[test]
fn a_log_with_an_impossible_order_is_found() {
    let facts = [Fact::Requested(request()), Fact::Committed];
    let (place, what) = replay(facts.iter().map(|f| (0, f))).unwrap_err();
    assert_eq!((place, what.to_string()), (1, "'committed' can't follow requested".into()));
    let facts = [Fact::HoldReleased { why: HoldRelease::Expired }];
    assert_eq!(replay(facts.iter().map(|f| (0, f))).unwrap_err().0, 0);
}
