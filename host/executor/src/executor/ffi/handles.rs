//! Numbers that stand for what a plugin is lent. A number is never used again, so that a late use of it finds nothing
//! instead of what belongs to another job.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::services::{Common, JobContext};

/// So many ended ones are remembered, to name the job of a late use.
const REMEMBERED: usize = 256;
/// Late uses are logged at most this often.
const LATE_INTERVAL: Duration = Duration::from_secs(1);

/// What is lent, by its number.
pub struct Handles<V> {
    state: RwLock<State<V>>,
}

struct State<V> {
    last: usize,
    open: BTreeMap<usize, Arc<V>>,
    ended: VecDeque<(usize, Arc<JobContext>)>,
}

impl<V> Handles<V> {
    pub const fn new() -> Handles<V> {
        Handles { state: RwLock::new(State { last: 0, open: BTreeMap::new(), ended: VecDeque::new() }) }
    }

    /// A new number for this value.
    pub fn open(&self, value: Arc<V>) -> *mut c_void {
        let mut state = self.state.write();
        state.last += 1;
        let number = state.last;
        state.open.insert(number, value);
        without_provenance_mut(number)
    }

    /// What a number stands for; `None` once it has ended.
    pub fn get(&self, handle: *mut c_void) -> Option<Arc<V>> {
        self.state.read().open.get(&handle.addr()).cloned()
    }

    /// Ends a number. Whose it was is remembered for a while.
    pub fn close(&self, handle: *mut c_void, of: Option<&Arc<JobContext>>) {
        let mut state = self.state.write();
        state.open.remove(&handle.addr());
        if let Some(of) = of {
            if state.ended.len() >= REMEMBERED {
                state.ended.pop_front();
            }
            state.ended.push_back((handle.addr(), of.clone()));
        }
    }

    /// Logs the use of a number that has ended.
    pub fn report_late(&self, handle: *mut c_void, what: &str) {
        let ended = &self.state.read().ended;
        let whose = ended.iter().rev().find(|(number, _)| *number == handle.addr());
        let job = whose.map(|(_, context)| context.clone());
        report_late(job.as_ref(), what);
    }
}

/// The executor that was created last, for what can't be ascribed to a job.
static LAST_EXECUTOR: RwLock<Option<Arc<Common>>> = RwLock::new(None);
static LAST_REPORT: Mutex<Option<Instant>> = Mutex::new(None);
static UNREPORTED: AtomicU64 = AtomicU64::new(0);

/// Notes whose log takes what no job can be found for.
pub fn set_last_executor(common: &Arc<Common>) {
    *LAST_EXECUTOR.write() = Some(common.clone());
}

fn report_late(job: Option<&Arc<JobContext>>, what: &str) {
    {
        let mut last = LAST_REPORT.lock();
        if last.is_some_and(|last| last.elapsed() < LATE_INTERVAL) {
            UNREPORTED.fetch_add(1, Ordering::Relaxed);
            return;
        }
        *last = Some(Instant::now());
    }
    let more = match UNREPORTED.swap(0, Ordering::Relaxed) {
        0 => String::new(),
        n => format!(" (and {n} times before)"),
    };
    let text =
        format!("the plugin {what} of a call that has ended, which has no effect{more}; tell the vendor");
    match (job, &*LAST_EXECUTOR.read()) {
        (Some(job), _) => job.report(text),
        (None, Some(common)) => common.log(coda_plugin_abi::LogLevel::Error.code(), "", text),
        (None, None) => tracing::error!(target: "plugin", "{text}"),
    }
}

/// The number of a call that is long over.
pub const ENDED: *mut c_void = null_mut();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_stands_for_one_value_and_then_for_none() {
        let handles = Handles::<u32>::new();
        let first = handles.open(Arc::new(7));
        assert_eq!(handles.get(first).as_deref(), Some(&7));
        handles.close(first, None);
        let second = handles.open(Arc::new(8));
        assert_ne!(first, second);
        assert_eq!((handles.get(first), handles.get(ENDED)), (None, None));
        assert_eq!(handles.get(second).as_deref(), Some(&8));
    }
}
