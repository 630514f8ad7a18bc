use super::*;

const P: &str = "12D3KooWp";

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A peer that has completed a block.
fn proven() -> TrackRecords {
    let mut records = TrackRecords::default();
    records.completed(P, 4.0, Duration::from_millis(1));
    records
}

#[test]
fn each_failure_has_its_consequence() {
    for (failure, opens_after) in [
        (PeerFailure::Silent, 1),
        (PeerFailure::Overtaken, 1),
        (PeerFailure::Invalid, 1),
        (PeerFailure::Reported, REPORTED_FAILURES),
    ] {
        let mut records = proven();
        for n in 1..=opens_after {
            assert_eq!(records.admission(s(0), P), PeerAdmission::Yes, "{failure:?}, before the {n}.");
            records.failed(s(0), P, failure);
        }
        assert_eq!(records.admission(s(29), P), PeerAdmission::LastResort, "{failure:?}");
        assert_eq!(records.state(s(29), P), BreakerState::Open);
        assert_eq!(records.admission(s(30), P), PeerAdmission::Trial, "{failure:?}");
        assert!(records.penalty(P) > 0.09, "{failure:?}");
    }
    let mut records = proven();
    for _ in 0..10 {
        records.failed(s(0), P, PeerFailure::Reported);
        records.completed(P, 4.0, s(0));
    }
    assert_eq!(records.admission(s(0), P), PeerAdmission::Yes, "not in a row");
}

#[test]
fn a_new_peer_shows_first_with_one_block_what_it_is() {
    let mut records = TrackRecords::default();
    assert_eq!(records.admission(s(0), P), PeerAdmission::Trial);
    records.trial_begins(P);
    assert_eq!(records.admission(s(0), P), PeerAdmission::TrialUnderWay);
    records.trial_ends(P);
    assert_eq!(records.admission(s(0), P), PeerAdmission::Trial, "the block told nothing: the peer was full");
    records.trial_begins(P);
    records.completed(P, 4.0, s(1));
    records.trial_ends(P);
    assert_eq!(records.admission(s(0), P), PeerAdmission::Yes);
}

#[test]
fn the_pause_doubles_while_trials_fail_and_starts_over_after_a_good_one() {
    let mut records = proven();
    records.failed(s(0), P, PeerFailure::Silent);
    // A second block that was with it: no longer pause for that.
    records.failed(s(5), P, PeerFailure::Silent);
    assert_eq!(records.next_trial([P.to_string()].iter()), Some(s(30)));
    let mut now = s(30);
    for pause in [30, 60, 120, 240, 480, 600, 600] {
        records.trial_begins(P);
        records.failed(now, P, PeerFailure::Reported);
        records.trial_ends(P);
        assert_eq!(records.admission(now + s(pause - 1), P), PeerAdmission::LastResort, "{pause}");
        now += s(pause);
        assert_eq!(records.admission(now, P), PeerAdmission::Trial, "{pause}");
    }
    records.trial_begins(P);
    records.completed(P, 4.0, s(1));
    records.failed(now, P, PeerFailure::Silent);
    assert_eq!(records.next_trial([P.to_string()].iter()), Some(now + s(30)));
    records.returned(P);
    assert_eq!(records.admission(now, P), PeerAdmission::Trial, "another process, perhaps");
}

#[test]
fn time_limits_follow_the_answers() {
    let (mut records, most) = (TrackRecords::default(), s(15));
    assert_eq!(records.call_limit(P, most), s(5));
    assert_eq!(records.call_limit(P, s(2)), s(2), "never more than the setting");
    (0..50).for_each(|_| records.answered(P, Duration::from_millis(2)));
    assert_eq!(records.call_limit(P, most), s(1));
    (0..50).for_each(|_| records.answered(P, s(3)));
    let limit = records.call_limit(P, most);
    assert!(limit > s(3) && limit < s(4), "{limit:?}");
    records.failed(s(0), P, PeerFailure::Silent);
    assert_eq!(records.call_limit(P, most), limit * 2);
    (0..40).for_each(|_| records.failed(s(0), P, PeerFailure::Silent));
    assert_eq!(records.call_limit(P, most), most);
    records.answered(P, s(3));
    assert!(records.call_limit(P, most) < s(5), "an answer ends that");
}

#[test]
fn another_is_asked_when_a_dispatch_is_far_beyond_its_kind() {
    let mut records = TrackRecords::default();
    assert_eq!(records.overdue_after(P, 1000.0), s(5));
    records.completed(P, 1024.0, s(3));
    assert_eq!(records.overdue_after(P, 1024.0), s(12));
    assert_eq!(records.overdue_after(P, 1e9), s(5), "nothing of that size was seen");
    let quick = proven();
    assert_eq!(quick.overdue_after(P, 4.0), s(2));
}

#[test]
fn what_is_slow_or_fails_moves_down() {
    let mut records = TrackRecords::default();
    assert_eq!(records.penalty(P), 0.0);
    records.answered(P, s(3));
    assert_eq!(records.penalty(P), 0.1);
    records.failed(s(0), P, PeerFailure::Reported);
    assert!((records.penalty(P) - 0.2).abs() < 1e-9);
    (0..100).for_each(|_| records.completed(P, 4.0, s(1)));
    assert!((records.penalty(P) - 0.1).abs() < 1e-9);
    records.retain(|_| false);
    assert_eq!(records.penalty(P), 0.0);
}
