//! Which jobs wait for a slot, who has leased one, and how many calls are in the plugin.
//!
//! The driver adds jobs and the slot threads take them in ticket order the moment they are free: nothing is asked
//! between two runs. A start is announced while the queue is locked, so that a job which can't be withdrawn any more
//! has its announcement in the channel already.
//!
//! No call is given out while the plugin's process is down, so that a job can be withdrawn, cancelled or judged again
//! until the moment at which it can run. A call that was lost with its process, perhaps because of another one, runs
//! again alone.
//!
//! A slot is leased for a reservation only while no job waits. See [`lease`](super::lease) for what a lease is.
//!
//! While starts are held, no call begins: jobs wait on and can be withdrawn, no slot is leased for a reservation, and
//! evolutions in slots that are leased already are answered with an error, so that their coordinators go elsewhere.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use coda_plugin_abi::{Error, Program};
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::job::{EvolveJob, EvolveOutcome, Generation, RunJob, held, stopped};
use super::lease::{LeaseOwner, LeasePurpose, LeaseRefusal, SlotLease, SlotLoad};
use super::run_pace::RunPace;

/// What a slot thread does next, with the lease of the slot in which it does so.
pub(super) enum SlotCall {
    Jobs(SlotLease, Vec<RunJob>),
    Evolve(SlotLease, Box<EvolveJob>),
}

/// The jobs that wait and the count of slots, shared by the handle, the slot threads and the leases.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, RunJob>,
    generation: Generation,
    /// Evolutions with the lease of their slot: they need no further one.
    leased_calls: VecDeque<(SlotLease, Box<EvolveJob>)>,
    slots: usize,
    /// Slots leased for jobs.
    busy: usize,
    /// Slots leased for reservations.
    reserved: usize,
    /// Most jobs of one call.
    batch_max: usize,
    /// Threads that wait for a change.
    idle: usize,
    /// Slot threads that have not ended.
    threads: usize,
    /// Calls in the plugin.
    inside: usize,
    /// No call is taken for a while.
    paused: bool,
    /// The plugin's process is down: no call can be made.
    away: bool,
    /// Why no call begins, in words: the device is paused or not available.
    held: Option<Arc<str>>,
    /// Before it every call must have come back, as far as that is known.
    window: Option<UpcomingWindow>,
    pace: RunPace,
    /// Calls that wait to be alone in the plugin, or are.
    suspects: usize,
    /// One of them is alone in the plugin.
    runs_alone: bool,
    stopping: bool,
}

impl State {
    fn has_free_slot(&self) -> bool {
        self.busy + self.reserved < self.slots
    }

    /// Whether a thread that woke would find something to do.
    fn has_work(&self) -> bool {
        let job_can_run = !self.waiting.is_empty() && self.has_free_slot();
        self.may_take() && (!self.leased_calls.is_empty() || job_can_run)
    }

    /// Whether a call may begin.
    fn may_take(&self) -> bool {
        !self.paused && !self.away && self.suspects == 0 && self.held.is_none()
    }

    /// The jobs of the next call; none where the first one would not come back in time.
    fn next_jobs(&mut self) -> Vec<RunJob> {
        let mut jobs = Vec::with_capacity(self.batch_max.min(self.waiting.len()));
        let now = Instant::now();
        let mut time = self.window.map(|window| (window.left(), window.lead));
        while jobs.len() < self.batch_max
            && let Some(next) = self.waiting.first_entry()
        {
            if let Some((left, lead)) = &mut time {
                let expected =
                    self.pace.expected(now, &next.get().program, next.get().shots).unwrap_or(*lead);
                match left.checked_sub(expected) {
                    Some(rest) => *left = rest,
                    // Those behind it wait too: they keep their order.
                    None => return jobs,
                }
            }
            jobs.push(next.remove());
        }
        jobs
    }

    /// Whether a reservation is refused now; how long its calls take is not known.
    fn refuses_reservations(&self) -> bool {
        self.held.is_some() || self.window.is_some_and(|window| window.left() < window.lead)
    }

    fn count(&mut self, purpose: LeasePurpose) -> &mut usize {
        match purpose {
            LeasePurpose::Jobs => &mut self.busy,
            LeasePurpose::Reservation => &mut self.reserved,
        }
    }
}

/// A time in which nothing may run.
#[derive(Debug, Clone, Copy)]
pub struct UpcomingWindow {
    pub begins: Instant,
    /// How long a call is expected to take of which nothing is known.
    pub lead: Duration,
}

impl UpcomingWindow {
    fn left(&self) -> Duration {
        self.begins.saturating_duration_since(Instant::now())
    }
}

/// A slot thread is alive until this is dropped.
pub(super) struct SlotThread(Arc<Queue>);

impl Drop for SlotThread {
    fn drop(&mut self) {
        self.0.state.lock().threads -= 1;
        self.0.changed.notify_all();
    }
}

/// A call is in the plugin, or its thread has not yet finished with it, until this is dropped.
pub(super) struct CallGuard {
    queue: Arc<Queue>,
    /// Of the executor for which the call's jobs were judged.
    generation: Generation,
    /// Nothing else is in the plugin, and nothing joins it.
    alone: Cell<bool>,
}

/// Whether a call can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ready {
    Yes,
    /// It never can: the executor is being stopped.
    Stopping,
    /// Another executor has taken the place of the one for which the call was meant.
    Replaced,
}

/// The only call in the plugin, until this is dropped.
pub(super) struct AloneGuard<'a>(&'a CallGuard);

impl CallGuard {
    /// Waits until the plugin's process is there and no other call is to be alone in it. Meanwhile the call does not count as one in the plugin: nothing can
    /// come back from it that a reload should wait for.
    pub fn wait_ready(&self) -> Ready {
        let mut state = self.queue.state.lock();
        let alone = self.alone.get();
        let must_wait = |s: &State| s.away || (s.suspects > 0 && !alone);
        if must_wait(&state) {
            state.inside -= 1;
            self.queue.changed.notify_all();
            self.queue.changed.wait_while(&mut state, |s| (must_wait(s) || s.paused) && !s.stopping);
            state.inside += 1;
        }
        match state.generation == self.generation {
            _ if state.stopping => Ready::Stopping,
            true => Ready::Yes,
            false => Ready::Replaced,
        }
    }

    /// Waits until no other call is in the plugin but those that wait here too, and keeps others from beginning; `None`
    /// when the executor stops.
    pub fn wait_alone(&self) -> Option<AloneGuard<'_>> {
        let mut state = self.queue.state.lock();
        state.suspects += 1;
        // Others that wait here may have waited for this one.
        self.queue.changed.notify_all();
        let must_wait = |s: &mut State| (s.runs_alone || s.inside > s.suspects) && !s.stopping;
        self.queue.changed.wait_while(&mut state, must_wait);
        if state.stopping {
            state.suspects -= 1;
            return None;
        }
        state.runs_alone = true;
        self.alone.set(true);
        Some(AloneGuard(self))
    }
}

impl Drop for AloneGuard<'_> {
    fn drop(&mut self) {
        self.0.alone.set(false);
        let queue = &self.0.queue;
        let mut state = queue.state.lock();
        state.runs_alone = false;
        state.suspects -= 1;
        queue.changed.notify_all();
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.inside -= 1;
        if state.paused || state.suspects > 0 {
            // `pause` and `wait_alone` wait for calls to come back.
            self.queue.changed.notify_all();
        }
    }
}

impl Queue {
    /// Sets the number of slots and the most jobs of one call.
    pub fn open(&self, slots: usize, batch_max: usize) {
        self.change(|state| (state.slots, state.batch_max) = (slots, batch_max.max(1)));
    }

    /// Counts a slot thread, which will take calls until the value is dropped.
    pub fn register_thread(self: &Arc<Self>) -> SlotThread {
        self.state.lock().threads += 1;
        SlotThread(self.clone())
    }

    /// Lets jobs wait that were judged for this generation. Jobs of an earlier one are dropped: their owner has not
    /// heard of the reload yet, and submits them again when it does.
    pub fn add(&self, generation: Generation, jobs: Vec<RunJob>) {
        self.change(|state| {
            if generation == state.generation {
                state.waiting.extend(jobs.into_iter().map(|job| (job.ticket, job)));
            }
        });
    }

    /// Begins a new generation and drops the jobs that wait.
    pub fn begin_generation(&self) -> Generation {
        let mut state = self.state.lock();
        state.waiting.clear();
        state.generation = Generation(state.generation.0 + 1);
        state.generation
    }

    /// Takes a job back; false when a slot has it or it never was here.
    pub fn withdraw(&self, ticket: u64) -> bool {
        self.state.lock().waiting.remove(&ticket).is_some()
    }

    pub fn load(&self) -> SlotLoad {
        let state = self.state.lock();
        SlotLoad {
            slots: state.slots,
            busy: state.busy,
            reserved: state.reserved,
            waiting: state.waiting.len(),
        }
    }

    /// Leases a slot for a reservation.
    ///
    /// # Errors
    /// When every slot is leased, jobs wait for one, starts are held, or the executor is stopping.
    pub fn try_lease(self: &Arc<Self>) -> Result<SlotLease, LeaseRefusal> {
        let mut state = self.state.lock();
        if state.stopping {
            return Err(LeaseRefusal::Stopping);
        }
        if state.refuses_reservations() {
            return Err(LeaseRefusal::Held);
        }
        if !state.waiting.is_empty() {
            return Err(LeaseRefusal::JobsWait);
        }
        if !state.has_free_slot() {
            return Err(LeaseRefusal::Full);
        }
        Ok(self.lease(&mut state, LeasePurpose::Reservation))
    }

    /// Counts one more slot as leased. The caller has seen that one is free.
    fn lease(self: &Arc<Self>, state: &mut State, purpose: LeasePurpose) -> SlotLease {
        debug_assert!(state.has_free_slot(), "a slot is leased only while one is free");
        *state.count(purpose) += 1;
        SlotLease::new(self.clone(), purpose)
    }

    /// Has a slot of this queue that is leased for a reservation evolve a state. After `stop` the job is answered with
    /// an error.
    pub fn evolve(&self, lease: SlotLease, job: Box<EvolveJob>) {
        let mut state = self.state.lock();
        let refusal = match &state.held {
            _ if state.stopping => Some(stopped()),
            Some(why) => Some(held(why)),
            None if state.refuses_reservations() => Some(held("its maintenance begins in a moment")),
            None => None,
        };
        if let Some(refusal) = refusal {
            // The answer gives the lease back, which needs the lock.
            drop(state);
            refuse(lease, *job, refusal);
            return;
        }
        state.leased_calls.push_back((lease, job));
        self.wake_for_work(&state);
    }

    /// Waits for the next call; `announce` sees it before anyone can miss it here. `None` when the executor stops.
    pub fn take(self: &Arc<Self>, announce: impl FnOnce(&SlotCall)) -> Option<(SlotCall, CallGuard)> {
        let mut state = self.state.lock();
        let call = loop {
            if state.stopping {
                return None;
            }
            if let Some(call) = self.next(&mut state) {
                break call;
            }
            state.idle += 1;
            self.changed.wait(&mut state);
            state.idle -= 1;
        };
        announce(&call);
        state.inside += 1;
        // One addition may bring work for several threads, but wakes one: each passes the news on.
        self.wake_for_work(&state);
        let generation = state.generation;
        Some((call, CallGuard { queue: self.clone(), generation, alone: Cell::new(false) }))
    }

    fn next(self: &Arc<Self>, state: &mut State) -> Option<SlotCall> {
        if !state.may_take() {
            return None;
        }
        if let Some((lease, job)) = state.leased_calls.pop_front() {
            return Some(SlotCall::Evolve(lease, job));
        }
        if state.waiting.is_empty() || !state.has_free_slot() {
            return None;
        }
        let jobs = state.next_jobs();
        if jobs.is_empty() {
            return None;
        }
        Some(SlotCall::Jobs(self.lease(state, LeasePurpose::Jobs), jobs))
    }

    /// Takes nothing more and waits until no call is in the plugin; false when one still is after `limit`.
    pub fn pause(&self, limit: Duration) -> bool {
        let mut state = self.state.lock();
        state.paused = true;
        self.changed.wait_while_for(&mut state, |s| s.inside > 0, limit);
        state.inside == 0
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.state.lock().paused = false;
        self.changed.notify_all();
    }

    /// Gives out no call while the plugin's process is down.
    pub fn set_away(&self, away: bool) {
        self.state.lock().away = away;
        self.changed.notify_all();
    }

    /// Begins no call while there is a reason, nor one that is not expected to have come back before the window; calls in
    /// the plugin go on. Evolutions that wait are answered with an error while there is a reason. Both change at once: when
    /// a window begins, it becomes a reason, and nothing may begin in between.
    pub fn hold(&self, why: Option<Arc<str>>, window: Option<UpcomingWindow>) {
        let refused = {
            let mut state = self.state.lock();
            state.held = why;
            state.window = window;
            state.held.clone().map(|why| (why, std::mem::take(&mut state.leased_calls)))
        };
        // Without the lock: the end of each lease needs it.
        if let Some((why, leased_calls)) = refused {
            for (lease, job) in leased_calls {
                refuse(lease, *job, held(&why));
            }
        }
        self.changed.notify_all();
    }

    /// Notes how long a run took that has completed.
    pub fn ran(&self, job: &RunJob, run_time: Duration) {
        self.state.lock().pace.ran(Instant::now(), &job.program, job.shots, run_time);
    }

    /// How long a run of this circuit is expected to take, if one of its kind has completed of late.
    pub fn expected(&self, program: &Program, shots: u32) -> Option<Duration> {
        self.state.lock().pace.expected(Instant::now(), program, shots)
    }

    /// Whether reservations are refused now.
    pub fn is_held(&self) -> bool {
        self.state.lock().refuses_reservations()
    }

    /// Takes no more calls: threads end when their call has come back, evolutions that wait are answered with an
    /// error.
    pub fn stop(&self) {
        let leased_calls = {
            let mut state = self.state.lock();
            state.stopping = true;
            std::mem::take(&mut state.leased_calls)
        };
        // Without the lock: the end of each lease needs it.
        for (lease, job) in leased_calls {
            refuse(lease, *job, stopped());
        }
        self.changed.notify_all();
    }

    /// Waits until the caller's thread is the last slot thread.
    pub fn wait_for_other_threads(&self) {
        self.changed.wait_while(&mut self.state.lock(), |s| s.threads > 1);
    }

    fn change(&self, how: impl FnOnce(&mut State)) {
        let mut state = self.state.lock();
        how(&mut state);
        self.wake_for_work(&state);
    }

    /// Wakes one idle thread if it would find something to do. Most often the end of a lease leaves nothing to do, and
    /// each needless wake-up would be paid by the next reservation.
    fn wake_for_work(&self, state: &MutexGuard<'_, State>) {
        if state.idle > 0 && state.has_work() {
            self.changed.notify_one();
        }
    }
}

impl LeaseOwner for Queue {
    fn end_lease(&self, purpose: LeasePurpose) {
        let mut state = self.state.lock();
        let count = state.count(purpose);
        debug_assert!(*count > 0, "a lease that ends was counted");
        *count -= 1;
        if purpose == LeasePurpose::Reservation {
            self.wake_for_work(&state);
        }
        // After jobs the slot's own thread takes the next call: waking another one would make two threads compete.
    }
}

/// Answers an evolution that will not run.
fn refuse(lease: SlotLease, job: EvolveJob, error: Error) {
    (job.answer)(EvolveOutcome { answer: Err(error), run_time: Duration::ZERO, lease });
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
