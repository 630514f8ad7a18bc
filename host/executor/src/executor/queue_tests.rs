use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use coda_plugin_abi::{ErrorCode, Program};

use super::super::JobContext;
use super::*;

fn job(ticket: u64) -> RunJob {
    let ir = br#"{"version":"1.0","target":"cz","num_qubits":1,"gates":[],"measurements":[0],
        "metadata":{"source_hash":"h","compiled_at":"2026-01-01T00:00:00Z"}}"#;
    RunJob {
        ticket,
        message_id: None,
        job_id: "J".into(),
        program: Arc::new(Program::parse(ir).unwrap()),
        shots: 1,
        attempt: 1,
        context: Arc::new(JobContext::new("p".into(), "J".into())),
    }
}

fn jobs(tickets: impl IntoIterator<Item = u64>) -> Vec<RunJob> {
    tickets.into_iter().map(job).collect()
}

fn evolution(answer: impl FnOnce(EvolveOutcome) + Send + 'static) -> Box<EvolveJob> {
    Box::new(EvolveJob {
        ticket: 7,
        job_id: "J".into(),
        num_qubits: 0,
        amplitudes: Vec::new(),
        operations: [].into(),
        context: Arc::new(JobContext::new("p".into(), "J".into())),
        answer: Box::new(answer),
    })
}

fn tickets(call: &SlotCall) -> Vec<u64> {
    match call {
        SlotCall::Jobs(_, jobs) => jobs.iter().map(|j| j.ticket).collect(),
        SlotCall::Evolve(_, job) => vec![job.ticket],
    }
}

fn open(slots: usize, batch_max: usize) -> Arc<Queue> {
    let queue = Arc::new(Queue::default());
    queue.open(slots, batch_max);
    queue
}

#[test]
fn jobs_are_taken_in_order_so_many_at_once_and_withdrawn_ones_never() {
    let queue = open(1, 2);
    // In the order in which the checks came back.
    queue.add(Generation::default(), jobs([4, 2]));
    queue.add(Generation::default(), jobs([1, 3]));
    assert!(queue.withdraw(2));
    assert!(!queue.withdraw(2), "only once");
    let take = || tickets(&queue.take(|_| {}).unwrap().0);
    assert_eq!([take(), take()], [vec![1, 3], vec![4]]);
    assert!(!queue.withdraw(1), "a slot has it");
}

#[test]
fn what_can_not_be_withdrawn_has_been_announced() {
    let queue = open(2, 1);
    let (announced, seen) = channel();
    let slots: Vec<_> = (0..2)
        .map(|_| {
            let (queue, announced) = (queue.clone(), announced.clone());
            std::thread::spawn(move || {
                while queue.take(|call| announced.send(tickets(call)[0]).unwrap()).is_some() {}
            })
        })
        .collect();
    let mut taken = Vec::new();
    let mut withdrawn = Vec::new();
    for ticket in 0..2000 {
        queue.add(Generation::default(), jobs([ticket]));
        if ticket % 3 == 0 {
            std::thread::yield_now();
        }
        if queue.withdraw(ticket) {
            withdrawn.push(ticket);
        } else {
            taken.extend(seen.try_iter());
            assert!(taken.contains(&ticket), "{ticket} is neither here nor announced");
        }
    }
    queue.stop();
    slots.into_iter().for_each(|s| s.join().unwrap());
    taken.extend(withdrawn);
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..2000), "each exactly once");
}

#[test]
fn one_addition_wakes_as_many_slots_as_it_has_calls_for() {
    let queue = open(3, 1);
    let (taken, seen) = channel();
    let slots: Vec<_> = (0..3)
        .map(|_| {
            let (queue, taken) = (queue.clone(), taken.clone());
            // The leases go back only when all three have been seen.
            std::thread::spawn(move || taken.send(queue.take(|_| {})).unwrap())
        })
        .collect();
    queue.add(Generation::default(), jobs([1, 2, 3]));
    let calls: Vec<_> = (0..3).map(|_| seen.recv().unwrap().unwrap()).collect();
    assert_eq!(queue.load(), SlotLoad { slots: 3, busy: 3, ..SlotLoad::default() });
    let mut got: Vec<_> = calls.iter().map(|(call, _)| tickets(call)).collect();
    got.sort_unstable();
    assert_eq!(got, [vec![1], vec![2], vec![3]]);
    slots.into_iter().for_each(|s| s.join().unwrap());
}

#[test]
fn while_starts_are_held_nothing_begins_and_reservations_are_refused() {
    let queue = open(2, 1);
    let lease = queue.try_lease().unwrap();
    let (answered, outcomes) = channel();
    queue.hold(Some("paused: new cables".into()), None);
    assert_eq!(queue.try_lease().unwrap_err(), LeaseRefusal::Held);
    queue.evolve(lease, evolution(move |outcome| answered.send(outcome.answer).unwrap()));
    let refusal = outcomes.recv().unwrap().unwrap_err();
    assert!(refusal.retryable && refusal.text.contains("paused: new cables"), "{refusal:?}");
    queue.add(Generation::default(), jobs([1, 2]));
    let (taken, seen) = channel();
    let slot = {
        let queue = queue.clone();
        std::thread::spawn(move || while queue.take(|call| taken.send(tickets(call)).unwrap()).is_some() {})
    };
    assert!(queue.withdraw(1), "a job that waits can be withdrawn");
    assert_eq!(queue.load(), SlotLoad { slots: 2, waiting: 1, ..SlotLoad::default() });
    assert!(seen.try_recv().is_err(), "nothing has begun");
    queue.hold(None, None);
    assert_eq!(seen.recv().unwrap(), [2]);
    queue.stop();
    slot.join().unwrap();
}

#[test]
fn no_call_begins_that_would_not_come_back_before_a_window() {
    let hour = Duration::from_secs(3600);
    let queue = open(1, 3);
    queue.hold(None, Some(UpcomingWindow { begins: Instant::now() + hour, lead: hour * 2 }));
    assert_eq!(queue.try_lease().unwrap_err(), LeaseRefusal::Held, "nothing is known of a reservation");
    queue.add(Generation::default(), jobs([1, 2, 3, 4]));
    let take = || {
        // The lock is gone when the lease ends.
        let call = queue.next(&mut queue.state.lock());
        call.map(|call| tickets(&call))
    };
    assert_eq!(take(), None, "nothing is known of such circuits");
    // Two of them fit, and the third one does not.
    queue.ran(&job(0), hour.mul_f64(0.4));
    assert_eq!(take(), Some(vec![1, 2]));
    queue.ran(&job(0), hour * 2);
    assert_eq!(take(), None);
    queue.hold(None, None);
    assert_eq!(take(), Some(vec![3, 4]));
}

#[test]
fn evolutions_that_wait_when_starts_are_held_are_refused() {
    let queue = open(1, 1);
    let lease = queue.try_lease().unwrap();
    let (answered, outcomes) = channel();
    queue.evolve(lease, evolution(move |outcome| answered.send(outcome.answer.is_err()).unwrap()));
    queue.hold(Some("paused".into()), None);
    assert!(outcomes.recv().unwrap());
    assert_eq!(queue.load().reserved, 0, "the lease is over");
}

#[test]
fn a_lease_takes_a_slot_until_it_is_dropped_and_none_is_given_while_jobs_wait() {
    let queue = open(2, 1);
    let lease = queue.try_lease().unwrap();
    queue.add(Generation::default(), jobs([1, 2]));
    assert_eq!(queue.try_lease().unwrap_err(), LeaseRefusal::JobsWait);
    let call = queue.take(|_| {}).unwrap();
    assert_eq!(queue.load(), SlotLoad { slots: 2, busy: 1, reserved: 1, waiting: 1 });
    assert!(queue.withdraw(2));
    assert_eq!(queue.try_lease().unwrap_err(), LeaseRefusal::Full);
    drop(call);
    let other = queue.try_lease().unwrap();
    drop((lease, other));
    assert_eq!(queue.load(), SlotLoad { slots: 2, ..SlotLoad::default() });
    queue.stop();
    assert_eq!(queue.try_lease().unwrap_err(), LeaseRefusal::Stopping);
}

#[test]
fn an_evolution_that_will_not_run_is_answered_and_gives_its_slot_back() {
    let queue = open(2, 1);
    let (answered, answers) = channel();
    let send = |answered: &std::sync::mpsc::Sender<EvolveOutcome>| {
        let answered = answered.clone();
        evolution(move |outcome| answered.send(outcome).unwrap())
    };
    let (first, second) = (queue.try_lease().unwrap(), queue.try_lease().unwrap());
    queue.evolve(first, send(&answered));
    queue.stop();
    queue.evolve(second, send(&answered));
    drop(answered);
    let codes: Vec<_> = answers.iter().map(|outcome| outcome.answer.unwrap_err().code).collect();
    assert_eq!(codes, [ErrorCode::Other, ErrorCode::Other]);
    assert_eq!(queue.load(), SlotLoad { slots: 2, ..SlotLoad::default() });
}

/// Counts the leases in use as the users see them, apart from the queue's own count.
#[derive(Default)]
struct Users {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Users {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn busy_and_reserved_together_never_exceed_the_slots() {
    const SLOTS: usize = 3;
    const JOBS: u64 = 3_000;
    let queue = open(SLOTS, 2);
    let users = Users::default();
    let check = |queue: &Queue| {
        let load = queue.load();
        assert!(load.busy + load.reserved <= load.slots, "{load:?}");
    };
    std::thread::scope(|threads| {
        let (queue, users) = (&queue, &users);
        for _ in 0..SLOTS {
            threads.spawn(move || {
                let _thread = queue.register_thread();
                while let Some((call, guard)) = queue.take(|_| {}) {
                    if let SlotCall::Evolve(lease, job) = call {
                        let outcome =
                            EvolveOutcome { answer: Ok(Vec::new()), run_time: Duration::ZERO, lease };
                        (job.answer)(outcome);
                        continue;
                    }
                    users.enter();
                    check(queue);
                    users.leave();
                    drop((call, guard));
                }
            });
        }
        let reserving: Vec<_> = (0..SLOTS)
            .map(|_| {
                threads.spawn(move || {
                    let (mut leases, mut evolved) = (0, 0);
                    while leases < 500 || evolved < 50 {
                        let Ok(lease) = queue.try_lease() else {
                            std::thread::yield_now();
                            continue;
                        };
                        leases += 1;
                        users.enter();
                        check(queue);
                        if leases % 10 != 0 {
                            users.leave();
                            continue;
                        }
                        let (answered, answer) = channel();
                        let send = move |outcome: EvolveOutcome| answered.send(outcome.lease).unwrap();
                        queue.evolve(lease, evolution(send));
                        let lease = answer.recv().unwrap();
                        evolved += 1;
                        users.leave();
                        drop(lease);
                    }
                })
            })
            .collect();
        for ticket in 0..JOBS {
            queue.add(Generation::default(), jobs([ticket]));
            if ticket % 7 == 0 {
                std::thread::yield_now();
            }
        }
        reserving.into_iter().for_each(|r| r.join().unwrap());
        queue.stop();
    });
    assert!(
        users.most.load(Ordering::SeqCst) <= SLOTS,
        "{} leases at once",
        users.most.load(Ordering::SeqCst)
    );
    let load = queue.load();
    assert_eq!((load.busy, load.reserved), (0, 0), "every lease was given back");
}

#[test]
fn jobs_that_were_judged_for_a_former_executor_are_dropped() {
    let queue = Arc::new(Queue::default());
    queue.open(1, 10);
    queue.add(Generation::default(), jobs([1, 2]));
    let generation = queue.begin_generation();
    assert_eq!(queue.load().waiting, 0, "what waited goes back to its owner");
    queue.add(Generation::default(), jobs([3]));
    assert_eq!(queue.load().waiting, 0, "its owner has not heard of the reload");
    queue.add(generation, jobs([1, 3]));
    assert_eq!(queue.load().waiting, 2);
}

#[test]
fn no_call_is_given_out_while_the_plugin_is_away_and_its_jobs_can_be_withdrawn() {
    let queue = open(2, 1);
    queue.set_away(true);
    queue.add(Generation::default(), jobs([1, 2]));
    let taking = {
        let queue = queue.clone();
        std::thread::spawn(move || queue.take(|_| {}).map(|(call, _guard)| tickets(&call)))
    };
    assert!(queue.withdraw(1), "no slot has it");
    assert!(queue.pause(Duration::from_secs(20)), "no call is in the plugin");
    queue.resume();
    assert!(!taking.is_finished());
    queue.set_away(false);
    assert_eq!(taking.join().unwrap(), Some(vec![2]));
}

#[test]
fn a_call_that_waits_for_the_process_does_not_keep_a_reload_from_beginning() {
    let queue = open(1, 1);
    queue.add(Generation::default(), jobs([1]));
    let (_call, guard) = queue.take(|_| {}).unwrap();
    assert_eq!(guard.wait_ready(), Ready::Yes);
    queue.set_away(true);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(move || guard.wait_ready());
        assert!(queue.pause(Duration::from_secs(20)));
        queue.set_away(false);
        assert!(!waiting.is_finished(), "the reload is not over");
        queue.begin_generation();
        queue.resume();
        assert_eq!(waiting.join().unwrap(), Ready::Replaced, "it was judged by another device");
    });
}

#[test]
fn suspects_are_in_the_plugin_one_at_a_time_and_nothing_joins_them() {
    let queue = open(3, 1);
    queue.add(Generation::default(), jobs(1..=3));
    let inside = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        let suspects: Vec<_> = (0..2).map(|_| queue.take(|_| {}).unwrap().1).collect();
        let other = queue.take(|_| {}).unwrap();
        let waiting: Vec<_> = suspects
            .into_iter()
            .map(|guard| {
                let (inside, queue) = (&inside, &queue);
                threads.spawn(move || {
                    let alone = guard.wait_alone().unwrap();
                    assert_eq!(guard.wait_ready(), Ready::Yes);
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "alone");
                    queue.add(Generation::default(), jobs([9]));
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(alone);
                })
            })
            .collect();
        assert!(waiting.iter().all(|thread| !thread.is_finished()), "another call is in the plugin");
        drop(other);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
    assert_eq!(tickets(&queue.take(|_| {}).unwrap().0), [9], "then others go on");
}
