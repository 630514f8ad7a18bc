//! What waits for a slot, and the one count of slots.
//!
//! The driver adds jobs, the slot threads take them in ticket order the moment they are free: between two runs
//! nobody is asked. A start is announced while the queue is locked, so that a job which can't be withdrawn any
//! more has its announcement in the channel already.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};

use super::pool::{EvolveJob, RunJob};
use super::turn::lock;

/// The jobs that wait, shared by the handle and the slot threads.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// What one call of the plugin is for.
pub(super) enum Call {
    Jobs(Vec<RunJob>),
    Evolve(u64, Box<EvolveJob>),
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, RunJob>,
    /// States to evolve, with their tickets. They go first: somebody else's circuit waits for each.
    states: VecDeque<(u64, Box<EvolveJob>)>,
    /// Most jobs of one call.
    batch_max: usize,
    /// Threads that wait for a change.
    idle: usize,
    /// Threads that have not ended.
    threads: usize,
    stopping: bool,
}

impl State {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.states.is_empty()
    }
}

/// What is about to be taken.
pub(super) enum Announced<'a> {
    Jobs(&'a [RunJob]),
    State(u64, &'a EvolveJob),
}

impl Queue {
    /// Lets jobs be taken, so many in one call.
    pub fn open(&self, batch_max: usize) {
        lock(&self.state).batch_max = batch_max;
    }

    /// A slot thread will take from here until [`Queue::leave`].
    pub fn enter(&self) {
        lock(&self.state).threads += 1;
    }

    pub fn add(&self, jobs: Vec<RunJob>) {
        let mut state = lock(&self.state);
        state.waiting.extend(jobs.into_iter().map(|job| (job.ticket, job)));
        if state.idle > 0 {
            self.changed.notify_one();
        }
    }

    pub fn add_state(&self, ticket: u64, job: EvolveJob) {
        let mut state = lock(&self.state);
        state.states.push_back((ticket, Box::new(job)));
        if state.idle > 0 {
            self.changed.notify_one();
        }
    }

    /// Takes a job back; false when a slot has it or it never was here.
    pub fn withdraw(&self, ticket: u64) -> bool {
        lock(&self.state).waiting.remove(&ticket).is_some()
    }

    pub fn withdraw_all(&self) {
        lock(&self.state).waiting.clear();
    }

    /// Waits for the next call's jobs; `announce` sees them before anyone can miss them here. `None` when the
    /// executor stops.
    pub fn take(&self, announce: impl FnOnce(Announced<'_>)) -> Option<Call> {
        let mut state = lock(&self.state);
        while !state.stopping && (state.is_empty() || state.batch_max == 0) {
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
        if state.stopping {
            return None;
        }
        if let Some((ticket, job)) = state.states.pop_front() {
            announce(Announced::State(ticket, &job));
            self.wake_next(&state);
            return Some(Call::Evolve(ticket, job));
        }
        let mut jobs = Vec::with_capacity(state.batch_max.min(state.waiting.len()));
        while jobs.len() < state.batch_max
            && let Some((_, job)) = state.waiting.pop_first()
        {
            jobs.push(job);
        }
        announce(Announced::Jobs(&jobs));
        self.wake_next(&state);
        Some(Call::Jobs(jobs))
    }

    fn wake_next(&self, state: &State) {
        if state.idle > 0 && !state.is_empty() {
            self.changed.notify_one();
        }
    }

    /// No job is taken any more; threads end when their call has come back.
    pub fn stop(&self) {
        let mut state = lock(&self.state);
        state.stopping = true;
        // Whoever waits for a state is told by the end of its channel.
        state.states.clear();
        drop(state);
        self.changed.notify_all();
    }

    /// A slot thread has ended.
    pub fn leave(&self) {
        lock(&self.state).threads -= 1;
        self.changed.notify_all();
    }

    /// Waits until the caller's thread is the last.
    pub fn wait_alone(&self) {
        let state = lock(&self.state);
        drop(self.changed.wait_while(state, |s| s.threads > 1));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use coda_plugin_abi::Program;

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
            context: Arc::new(JobContext::new("p".into(), "J".into())),
        }
    }

    fn jobs(tickets: impl IntoIterator<Item = u64>) -> Vec<RunJob> {
        tickets.into_iter().map(job).collect()
    }

    fn tickets(call: Call) -> Vec<u64> {
        match call {
            Call::Jobs(jobs) => jobs.iter().map(|j| j.ticket).collect(),
            Call::Evolve(..) => Vec::new(),
        }
    }

    fn state() -> EvolveJob {
        EvolveJob {
            job_id: "E".into(),
            num_qubits: 0,
            amplitudes: Vec::new(),
            operations: [].into(),
            context: Arc::new(JobContext::new("p".into(), "E".into())),
            answer: tokio::sync::oneshot::channel().0,
        }
    }

    #[test]
    fn states_go_first_and_alone() {
        let queue = Queue::default();
        queue.open(3);
        queue.add(jobs([1, 2]));
        queue.add_state(9, state());
        let taken = queue.take(|a| assert!(matches!(a, Announced::State(9, _))));
        assert!(matches!(taken, Some(Call::Evolve(9, _))));
        assert_eq!(tickets(queue.take(|_| {}).unwrap()), [1, 2]);
    }

    #[test]
    fn jobs_are_taken_in_order_so_many_at_once_and_withdrawn_ones_never() {
        let queue = Queue::default();
        queue.open(2);
        // Whichever check came back first.
        queue.add(jobs([4, 2]));
        queue.add(jobs([1, 3]));
        assert!(queue.withdraw(2));
        assert!(!queue.withdraw(2), "only once");
        let take = || tickets(queue.take(|_| {}).unwrap());
        assert_eq!([take(), take()], [vec![1, 3], vec![4]]);
        assert!(!queue.withdraw(1), "a slot has it");
    }

    #[test]
    fn what_can_not_be_withdrawn_has_been_announced() {
        let queue = Arc::new(Queue::default());
        queue.open(1);
        let (announced, seen) = channel();
        let slots: Vec<_> = (0..2)
            .map(|_| {
                let (queue, announced) = (queue.clone(), announced.clone());
                std::thread::spawn(move || {
                    let announce = |a: Announced<'_>| {
                        if let Announced::Jobs(jobs) = a {
                            announced.send(jobs[0].ticket).unwrap();
                        }
                    };
                    while queue.take(announce).is_some() {}
                })
            })
            .collect();
        let mut taken = Vec::new();
        let mut withdrawn = Vec::new();
        for ticket in 0..2000 {
            queue.add(jobs([ticket]));
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
        let queue = Arc::new(Queue::default());
        queue.open(1);
        let (taken, seen) = channel();
        let slots: Vec<_> = (0..3)
            .map(|_| {
                let (queue, taken) = (queue.clone(), taken.clone());
                std::thread::spawn(move || taken.send(queue.take(|_| {}).map(|c| tickets(c)[0])).unwrap())
            })
            .collect();
        queue.add(jobs([1, 2, 3]));
        let mut got: Vec<_> = (0..3).map(|_| seen.recv().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [Some(1), Some(2), Some(3)]);
        slots.into_iter().for_each(|s| s.join().unwrap());
    }
}
