//! Collects what a plugin replies during one call, by copying it.
//!
//! Nothing is believed: keys may be anything, counts wrong, answers missing or too many.

use std::ffi::c_void;

use coda_plugin_abi::raw::{
    Amplitude, RawCount, RawDevice, RawEdge, RawError, RawOutcome, RawReply, RawStr, WHOLE_CALL,
    connectivity, hook,
};
use coda_plugin_abi::{Connectivity, Device, Error, ErrorCode, Hooks, Outcome, Stage, Target};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};

use super::CallAnswer;
use super::services::{copied, lent, quietly};

/// Collects what a plugin replies during one call, from whatever thread of its own.
pub(super) struct Reply(Mutex<Replies>);

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

impl Reply {
    pub fn new(jobs: usize) -> Reply {
        let answers = (0..jobs).map(|_| None).collect();
        Reply(Mutex::new(Replies { answers, ..Replies::default() }))
    }

    pub fn raw(&self) -> RawReply {
        let ctx: *const Reply = self;
        RawReply {
            size: size_of::<RawReply>(),
            ctx: ctx.cast_mut().cast(),
            outcome: reply_outcome,
            error: reply_error,
            device: reply_device,
            amplitudes: reply_amplitudes,
            schema: reply_schema,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Replies> {
        self.0.lock()
    }

    fn put(&self, index: usize, answer: Result<Outcome, Error>) {
        let mut replies = self.lock();
        match replies.answers.get_mut(index) {
            Some(slot @ None) => *slot = Some(answer),
            _ => replies.surplus += 1,
        }
    }

    /// As though the plugin had replied this error for the whole call.
    pub fn fail(&self, error: Error) {
        self.lock().whole.get_or_insert(error);
    }

    pub fn take(self) -> Replies {
        self.0.into_inner()
    }
}

/// # Safety
/// `ctx` must be the one of a `Reply` whose call has not returned.
unsafe fn reply<'a>(ctx: *mut c_void) -> &'a Reply {
    // SAFETY: by this function's contract.
    unsafe { &*ctx.cast::<Reply>() }
}

extern "C" fn reply_outcome(ctx: *mut c_void, index: usize, outcome: *const RawOutcome) {
    quietly(|| {
        // SAFETY: the plugin passes back the ctx of the call and lends the outcome during this one.
        let (reply, raw) = unsafe { (reply(ctx), &*outcome) };
        // SAFETY: lent during this call.
        let counts: &[RawCount] = unsafe { lent(raw.counts, raw.counts_len) };
        let outcome = Outcome {
            // SAFETY: as above.
            counts: counts.iter().map(|c| (unsafe { copied(c.bits) }, c.count)).collect(),
            execution_time_ms: (raw.has_execution_time != 0).then_some(raw.execution_time_ms),
            shots_completed: (raw.has_shots_completed != 0).then_some(raw.shots_completed),
        };
        reply.put(index, Ok(outcome));
    });
}

extern "C" fn reply_error(ctx: *mut c_void, index: usize, error: *const RawError) {
    quietly(|| {
        // SAFETY: as in `reply_outcome`.
        let (reply, raw) = unsafe { (reply(ctx), &*error) };
        let error = Error {
            code: ErrorCode::from_code(raw.code),
            stage: Stage::from_code(raw.stage),
            retryable: raw.retryable != 0,
            // SAFETY: lent during this call.
            text: unsafe { copied(raw.text) },
        };
        if index == WHOLE_CALL {
            reply.lock().whole.get_or_insert(error);
        } else {
            reply.put(index, Err(error));
        }
    });
}

extern "C" fn reply_device(ctx: *mut c_void, device: *const RawDevice) {
    quietly(|| {
        // SAFETY: as in `reply_outcome`; a plugin of an older interface lends a shorter description.
        let (reply, raw) = unsafe { (reply(ctx), whole_device(device)) };
        let raw = &raw;
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
        reply.lock().device = Some(described);
    });
}

extern "C" fn reply_amplitudes(ctx: *mut c_void, amplitudes: *const Amplitude, len: usize) {
    quietly(|| {
        // SAFETY: the plugin passes back the ctx of the call and lends `len` amplitudes during this one.
        let (reply, amplitudes) = unsafe { (reply(ctx), lent(amplitudes, len)) };
        reply.lock().amplitudes = Some(amplitudes.to_vec());
    });
}

extern "C" fn reply_schema(ctx: *mut c_void, json: RawStr) {
    quietly(|| {
        // SAFETY: the plugin passes back the ctx of the call and lends the text during this one.
        let (reply, bytes) = unsafe { (reply(ctx), json.bytes()) };
        reply.lock().schema = Some(String::from_utf8_lossy(bytes).into_owned());
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
