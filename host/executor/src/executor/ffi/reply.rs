//! Collects what a plugin replies during one call, by copying it.
//!
//! Nothing is believed: keys may be anything, counts wrong, answers missing, too many or too late.

use std::ffi::c_void;
use std::sync::Arc;

use coda_plugin_abi::raw::{
    Amplitude, RawCount, RawDevice, RawEdge, RawError, RawOutcome, RawReply, RawStr, WHOLE_CALL,
    connectivity, hook,
};
use coda_plugin_abi::{Connectivity, Device, Error, ErrorCode, Hooks, Outcome, Stage, Target};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::CallAnswer;
use super::cells::{Cells, Lent};
use super::handles::{ENDED, Handles};
use super::services::{JobContext, copied, lent, quietly};

/// Collects what a plugin replies during one call, from any of its threads; nothing once the call is over.
struct Reply(Mutex<Option<Replies>>);

#[derive(Default)]
pub(super) struct Replies {
    pub answers: Vec<CallAnswer>,
    /// Replies for an index beyond the jobs of the call, or for one that was answered already.
    pub surplus: usize,
    pub whole: Option<Error>,
    pub device: Option<DeviceReply>,
    pub amplitudes: Option<Vec<Amplitude>>,
    pub schema: Option<String>,
}

/// A device description as it came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceReply {
    pub device: Device,
    pub hooks: Hooks,
    /// Targets that this version does not know.
    pub unknown_targets: Vec<u16>,
    /// Number of qubits as replied, which may not fit.
    pub num_qubits: u32,
    pub slots: u32,
}

impl DeviceReply {
    /// Of no device.
    pub fn empty() -> DeviceReply {
        DeviceReply {
            device: Device::new("", 0, []),
            hooks: Hooks::default(),
            unknown_targets: Vec::new(),
            num_qubits: 0,
            slots: 0,
        }
    }
}

/// A reply that a plugin is lent, until this is closed or dropped.
pub(super) struct OpenReply<'a> {
    reply: Arc<Reply>,
    cell: Lent<RawReply>,
    handle: *mut c_void,
    job: Option<&'a Arc<JobContext>>,
}

/// The replies of calls that have not returned.
static REPLIES: Handles<Reply> = Handles::new();
static REPLY_CELLS: Cells<RawReply> = Cells::new(raw_reply(ENDED), |reply| *reply);

const fn raw_reply(ctx: *mut c_void) -> RawReply {
    RawReply {
        size: size_of::<RawReply>(),
        ctx,
        outcome: reply_outcome,
        error: reply_error,
        device: reply_device,
        amplitudes: reply_amplitudes,
        schema: reply_schema,
    }
}

impl<'a> OpenReply<'a> {
    /// For a call with so many jobs; `job` is the first of them.
    pub fn new(jobs: usize, job: Option<&'a Arc<JobContext>>) -> OpenReply<'a> {
        let answers = (0..jobs).map(|_| None).collect();
        let reply = Arc::new(Reply(Mutex::new(Some(Replies { answers, ..Replies::default() }))));
        let handle = REPLIES.open(reply.clone());
        OpenReply { reply, cell: REPLY_CELLS.lend(&[raw_reply(handle)]), handle, job }
    }

    pub fn as_ptr(&self) -> *const RawReply {
        self.cell.as_ptr()
    }

    /// As though the plugin had replied this error for the whole call.
    pub fn fail(&self, error: Error) {
        self.reply.change(|replies| replies.fail(error));
    }

    /// What was replied. Whatever comes now is too late.
    pub fn close(self) -> Replies {
        self.reply.0.lock().take().unwrap_or_default()
    }
}

impl Drop for OpenReply<'_> {
    fn drop(&mut self) {
        REPLIES.close(self.handle, self.job);
    }
}

impl Replies {
    fn put(&mut self, index: usize, answer: Result<Outcome, Error>) {
        match self.answers.get_mut(index) {
            Some(slot @ None) => *slot = Some(answer),
            _ => self.surplus += 1,
        }
    }

    fn fail(&mut self, error: Error) {
        match self.whole {
            None => self.whole = Some(error),
            Some(_) => self.surplus += 1,
        }
    }

    /// How many answers came, of any kind.
    pub fn count(&self) -> usize {
        let answers = self.answers.iter().flatten().count();
        answers + self.surplus + usize::from(self.whole.is_some()) + usize::from(self.amplitudes.is_some())
    }
}

impl Reply {
    /// Whether the call was still open.
    fn change(&self, body: impl FnOnce(&mut Replies)) -> bool {
        self.0.lock().as_mut().map(body).is_some()
    }
}

/// Takes one reply of the plugin's, unless its call has ended.
fn take(ctx: *mut c_void, body: impl FnOnce(&mut Replies)) {
    quietly(|| {
        if !REPLIES.get(ctx).is_some_and(|reply| reply.change(body)) {
            REPLIES.report_late(ctx, "used the reply");
        }
    });
}

extern "C" fn reply_outcome(ctx: *mut c_void, index: usize, outcome: *const RawOutcome) {
    take(ctx, |replies| {
        // SAFETY: the plugin lends the outcome during this call.
        let raw = unsafe { &*outcome };
        // SAFETY: lent during this call.
        let counts: &[RawCount] = unsafe { lent(raw.counts, raw.counts_len) };
        let outcome = Outcome {
            // SAFETY: as above.
            counts: counts.iter().map(|c| (unsafe { copied(c.bits) }, c.count)).collect(),
            execution_time_ms: (raw.has_execution_time != 0).then_some(raw.execution_time_ms),
            shots_completed: (raw.has_shots_completed != 0).then_some(raw.shots_completed),
        };
        replies.put(index, Ok(outcome));
    });
}

extern "C" fn reply_error(ctx: *mut c_void, index: usize, error: *const RawError) {
    take(ctx, |replies| {
        // SAFETY: as in `reply_outcome`.
        let raw = unsafe { &*error };
        let error = Error {
            code: ErrorCode::from_code(raw.code),
            stage: Stage::from_code(raw.stage),
            retryable: raw.retryable != 0,
            // SAFETY: lent during this call.
            text: unsafe { copied(raw.text) },
        };
        match index {
            WHOLE_CALL => replies.fail(error),
            _ => replies.put(index, Err(error)),
        }
    });
}

extern "C" fn reply_device(ctx: *mut c_void, device: *const RawDevice) {
    take(ctx, |replies| {
        // SAFETY: as in `reply_outcome`; a plugin of an older interface lends a shorter description.
        let raw = &unsafe { whole_device(device) };
        // SAFETY: lent during this call.
        let (name, codes, edges): (String, &[u16], &[RawEdge]) =
            unsafe { (copied(raw.name), lent(raw.targets, raw.targets_len), lent(raw.edges, raw.edges_len)) };
        let edges: Vec<(u16, u16)> = edges.iter().map(|e| (e.a, e.b)).collect();
        let described = DeviceReply {
            device: Device {
                name,
                num_qubits: u16::try_from(raw.num_qubits).unwrap_or(u16::MAX),
                targets: codes.iter().filter_map(|c| Target::from_code(*c)).collect(),
                connectivity: match raw.connectivity {
                    connectivity::UNDIRECTED => Connectivity::Undirected(edges),
                    connectivity::DIRECTED => Connectivity::Directed(edges),
                    _ => Connectivity::Unknown,
                },
                slots: u16::try_from(raw.slots).unwrap_or(u16::MAX),
                max_shots: (raw.max_shots != 0).then_some(raw.max_shots),
            },
            hooks: Hooks {
                batch_run: raw.hooks & hook::BATCH_RUN != 0,
                cancel: raw.hooks & hook::CANCEL != 0,
                evolve_qubits: (raw.hooks & hook::EVOLVE_STATE != 0)
                    .then(|| u16::try_from(raw.evolve_qubits).unwrap_or(u16::MAX)),
            },
            unknown_targets: codes.iter().copied().filter(|c| Target::from_code(*c).is_none()).collect(),
            num_qubits: raw.num_qubits,
            slots: raw.slots,
        };
        replies.device = Some(described);
    });
}

extern "C" fn reply_amplitudes(ctx: *mut c_void, amplitudes: *const Amplitude, len: usize) {
    take(ctx, |replies| {
        if replies.amplitudes.is_some() {
            replies.surplus += 1;
            return;
        }
        // SAFETY: the plugin lends `len` amplitudes during this call.
        replies.amplitudes = Some(unsafe { lent(amplitudes, len) }.to_vec());
    });
}

extern "C" fn reply_schema(ctx: *mut c_void, json: RawStr) {
    take(ctx, |replies| {
        // SAFETY: the plugin lends the text during this call.
        let bytes = unsafe { json.bytes() };
        replies.schema = Some(String::from_utf8_lossy(bytes).into_owned());
    });
}

/// A copy of a description, with zeros for what its lender did not know.
///
/// # Safety
/// `device` must be valid for as many bytes as its first field says.
unsafe fn whole_device(device: *const RawDevice) -> RawDevice {
    let mut whole = std::mem::MaybeUninit::<RawDevice>::zeroed();
    // SAFETY: the first field is always there; no more is copied than the lender has and we hold; zeros are a
    // legal value of every field.
    unsafe {
        let size = device.cast::<usize>().read().min(size_of::<RawDevice>());
        std::ptr::copy_nonoverlapping(device.cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), size);
        whole.assume_init()
    }
}
