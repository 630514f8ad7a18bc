//! What waits for a slot, who holds one, and the one count of slots.
//!
//! The driver adds jobs, the slot threads take them in ticket order the moment they are free: between two runs
//! nobody is asked. A start is announced while the queue is locked, so that a job which can't be withdrawn any
//! more has its announcement in the channel already.
//!
//! A slot can be held for somebody else, but never while jobs wait. What is held and what is busy never exceeds the
//! slots: all three change under this one lock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::evolve::EvolveJob;
use super::in_flight::lock;
use super::pool::RunJob;

/// What a slot does next.
pub(super) enum Call {
    Jobs(Vec<RunJob>),
    /// In a slot that is held.
    Evolve(SlotLease, Box<EvolveJob>),
}

/// How the slots are used at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SlotLoad {
    pub slots: usize,
    /// With jobs in the plugin.
    pub busy: usize,
    /// Kept for somebody, who may be in the plugin.
    pub leased: usize,
    /// Jobs without a slot.
    pub waiting: usize,
}

/// The jobs that wait, shared by the handle and the slot threads.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, RunJob>,
    /// What has a hold and takes no slot besides.
    guests: VecDeque<(SlotLease, Box<EvolveJob>)>,
    slots: usize,
    busy: usize,
    leased: usize,
    /// Most jobs of one call.
    batch_max: usize,
    /// Threads that wait for a change.
    idle: usize,
    /// Threads that have not ended.
    threads: usize,
    /// Calls in the plugin.
    inside: usize,
    /// Nothing is taken for a while.
    paused: bool,
    stopping: bool,
}

impl State {
    fn has_room(&self) -> bool {
        self.busy + self.leased < self.slots
    }

    /// Whether a thread that woke would find something.
    fn has_work(&self) -> bool {
        !self.paused && (!self.guests.is_empty() || (!self.waiting.is_empty() && self.has_room()))
    }

    fn next(&mut self) -> Option<Call> {
        if self.paused {
            return None;
        }
        if let Some((lease, guest)) = self.guests.pop_front() {
            return Some(Call::Evolve(lease, guest));
        }
        if self.waiting.is_empty() || !self.has_room() {
            return None;
        }
        let mut jobs = Vec::with_capacity(self.batch_max.min(self.waiting.len()));
        while jobs.len() < self.batch_max
            && let Some((_, job)) = self.waiting.pop_first()
        {
            jobs.push(job);
        }
        self.busy += 1;
        Some(Call::Jobs(jobs))
    }
}

/// A slot kept for somebody, until the last clone is dropped; a call in it has one.
#[derive(Clone)]
pub struct SlotLease(Arc<LeasedSlot>);

struct LeasedSlot(Arc<super::slot::Shared>);

impl SlotLease {
    /// Gives the slot something to do.
    pub(super) fn enter(&self, guest: Box<EvolveJob>) {
        self.0.0.queue.change(|state| state.guests.push_back((self.clone(), guest)));
    }
}

impl Drop for LeasedSlot {
    fn drop(&mut self) {
        self.0.queue.change(|state| state.leased -= 1);
    }
}

impl Queue {
    /// Lets so many slots take jobs, so many in one call.
    pub fn open(&self, slots: usize, batch_max: usize) {
        self.change(|state| (state.slots, state.batch_max) = (slots, batch_max.max(1)));
    }

    /// A slot thread will take from here until [`Queue::leave`].
    pub fn enter(&self) {
        lock(&self.state).threads += 1;
    }

    pub fn add(&self, jobs: Vec<RunJob>) {
        self.change(|state| state.waiting.extend(jobs.into_iter().map(|job| (job.ticket, job))));
    }

    /// Takes a job back; false when a slot has it or it never was here.
    pub fn withdraw(&self, ticket: u64) -> bool {
        lock(&self.state).waiting.remove(&ticket).is_some()
    }

    pub fn withdraw_all(&self) {
        lock(&self.state).waiting.clear();
    }

    pub fn load(&self) -> SlotLoad {
        let state = lock(&self.state);
        SlotLoad { slots: state.slots, busy: state.busy, leased: state.leased, waiting: state.waiting.len() }
    }

    /// Keeps a slot of `shared`, whose queue this is, unless every slot is taken or jobs wait for one.
    pub fn try_lease(shared: &Arc<super::slot::Shared>) -> Option<SlotLease> {
        let mut state = lock(&shared.queue.state);
        if state.stopping || !state.waiting.is_empty() || !state.has_room() {
            return None;
        }
        state.leased += 1;
        Some(SlotLease(Arc::new(LeasedSlot(shared.clone()))))
    }

    /// Waits for the next call; `announce` sees it before anyone can miss it here. `None` when the executor stops.
    pub fn take(&self, announce: impl FnOnce(&Call)) -> Option<Call> {
        let mut state = lock(&self.state);
        let call = loop {
            if state.stopping {
                return None;
            }
            if let Some(call) = state.next() {
                break call;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        };
        announce(&call);
        state.inside += 1;
        if state.idle > 0 && state.has_work() {
            self.changed.notify_one();
        }
        Some(call)
    }

    /// The call has come back.
    pub fn give_back(&self) {
        // The caller takes the next call itself.
        lock(&self.state).busy -= 1;
    }

    /// A call has come back, and the slot's thread has done with it.
    pub fn come_back(&self) {
        let mut state = lock(&self.state);
        state.inside -= 1;
        if state.paused {
            self.changed.notify_all();
        }
    }

    /// Takes nothing more and waits until no call is in the plugin; false when one still is after `limit`.
    pub fn pause(&self, limit: Duration) -> bool {
        let mut state = lock(&self.state);
        state.paused = true;
        let waited = self.changed.wait_timeout_while(state, limit, |s| s.inside > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.inside == 0
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        lock(&self.state).paused = false;
        self.changed.notify_all();
    }

    /// No job is taken any more; threads end when their call has come back.
    pub fn stop(&self) {
        let guests = {
            let mut state = lock(&self.state);
            state.stopping = true;
            std::mem::take(&mut state.guests)
        };
        // Whose holds need the lock to go.
        drop(guests);
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

    fn change<T>(&self, how: impl FnOnce(&mut State) -> T) {
        let mut state = lock(&self.state);
        how(&mut state);
        // A hold that ends leaves nothing to do, most often, and each wake-up costs a reservation's time.
        if state.idle > 0 && state.has_work() {
            self.changed.notify_one();
        }
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

    fn tickets(call: &Call) -> Vec<u64> {
        match call {
            Call::Jobs(jobs) => jobs.iter().map(|j| j.ticket).collect(),
            Call::Evolve(_, job) => vec![job.ticket],
        }
    }

    #[test]
    fn jobs_are_taken_in_order_so_many_at_once_and_withdrawn_ones_never() {
        let queue = Queue::default();
        queue.open(1, 2);
        // Whichever check came back first.
        queue.add(jobs([4, 2]));
        queue.add(jobs([1, 3]));
        assert!(queue.withdraw(2));
        assert!(!queue.withdraw(2), "only once");
        let take = || {
            let call = queue.take(|_| {}).unwrap();
            queue.give_back();
            tickets(&call)
        };
        assert_eq!([take(), take()], [vec![1, 3], vec![4]]);
        assert!(!queue.withdraw(1), "a slot has it");
    }

    #[test]
    fn what_can_not_be_withdrawn_has_been_announced() {
        let queue = Arc::new(Queue::default());
        queue.open(2, 1);
        let (announced, seen) = channel();
        let slots: Vec<_> = (0..2)
            .map(|_| {
                let (queue, announced) = (queue.clone(), announced.clone());
                std::thread::spawn(move || {
                    while queue.take(|call| announced.send(tickets(call)[0]).unwrap()).is_some() {
                        queue.give_back();
                    }
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
        queue.open(3, 1);
        let (taken, seen) = channel();
        let slots: Vec<_> = (0..3)
            .map(|_| {
                let (queue, taken) = (queue.clone(), taken.clone());
                std::thread::spawn(move || taken.send(queue.take(|_| {}).map(|c| tickets(&c))).unwrap())
            })
            .collect();
        queue.add(jobs([1, 2, 3]));
        let mut got: Vec<_> = (0..3).map(|_| seen.recv().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, [Some(vec![1]), Some(vec![2]), Some(vec![3])]);
        slots.into_iter().for_each(|s| s.join().unwrap());
    }
}
