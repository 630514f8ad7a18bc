//! A job of a session, and the way to cancel it from another thread.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use super::functions::{OnPointer, Pointer, Versioned};
use super::{
    Answer, Failure, Fault, Item, Library, MAX_TEXT, SET_PROGRAM, SUBMIT, SUCCESS, Session, WARNING,
    optional, text, values,
};

const FORMAT: c_int = 0;
const PROGRAM: c_int = 1;
const SHOTS: c_int = 2;
const JOB_ID: Item = Item(0, "the query of a job's ID");
const RESULT_SHOTS: Item = Item(0, "get_results of SHOTS");
const HIST_KEYS: Item = Item(1, "get_results of HIST_KEYS");
const HIST_VALUES: Item = Item(2, "get_results of HIST_VALUES");

/// A job's pointer, for the one call that may come from another thread.
struct JobPointer(Pointer);

// SAFETY: it is used for `job_cancel` alone, under the lock that keeps the job from being freed meanwhile.
unsafe impl Send for JobPointer {}

/// A job; freed when it is dropped, which doesn't cancel it.
pub struct Job {
    session: Session,
    pointer: Pointer,
    /// `None` once the job is being freed.
    live: Arc<Mutex<Option<JobPointer>>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Waits for a cancel of the control thread that is inside the library.
        self.live.lock().unwrap_or_else(PoisonError::into_inner).take();
        // SAFETY: made by this library and freed once.
        unsafe { (self.session.library().functions.job_free)(self.pointer) };
    }
}

impl Job {
    /// A job that the library has just given to this session.
    pub(super) fn of(session: Session, pointer: Pointer) -> Job {
        let live = Arc::new(Mutex::new(Some(JobPointer(pointer))));
        Job { session, pointer, live }
    }

    fn library(&self) -> &Library {
        self.session.library()
    }

    fn parameter(&self, number: c_int, call: &'static str, value: &[u8]) -> Answer<()> {
        // SAFETY: the job is live, and the value is valid for its length during the call.
        let status = unsafe {
            (self.library().functions.job_set_parameter)(
                self.pointer,
                number,
                value.len(),
                value.as_ptr().cast(),
            )
        };
        self.library().judge(call, status)
    }

    /// # Errors
    /// The library's answer.
    pub fn set_parameter(&self, parameter: Item, value: &[u8]) -> Answer<()> {
        self.parameter(parameter.0, parameter.1, value)
    }

    /// # Errors
    /// The library's answer.
    pub fn set_shots(&self, shots: usize) -> Answer<()> {
        self.parameter(SHOTS, "the number of shots", &shots.to_ne_bytes())
    }

    /// Hands the programs over; each ends with its NUL. With 1.3 there is one.
    ///
    /// # Errors
    /// The library's answer.
    pub fn set_programs(&self, format: c_int, programs: &[Vec<u8>]) -> Answer<()> {
        match self.library().functions.versioned {
            Versioned::V1_3 { .. } => {
                debug_assert_eq!(programs.len(), 1, "lists came with 1.4");
                self.parameter(FORMAT, "the program format", &format.to_ne_bytes())?;
                programs.iter().try_for_each(|program| self.parameter(PROGRAM, SET_PROGRAM, program))
            }
            Versioned::V1_4 { set_programs, .. } => {
                let sizes: Vec<usize> = programs.iter().map(Vec::len).collect();
                let texts: Vec<*const c_void> =
                    programs.iter().map(|program| program.as_ptr().cast()).collect();
                // SAFETY: the job is live; both arrays have as many elements as is said, each text as many bytes.
                let status = unsafe {
                    set_programs(self.pointer, format, programs.len(), sizes.as_ptr(), texts.as_ptr())
                };
                self.library().judge(SET_PROGRAM, status)
            }
        }
    }

    /// May block until the job has ended.
    ///
    /// # Errors
    /// The library's answer; success says nothing about the program.
    pub fn submit(&self) -> Answer<()> {
        // SAFETY: the job is live.
        let status = unsafe { (self.library().functions.job_submit)(self.pointer) };
        self.library().judge(SUBMIT, status)
    }

    /// # Errors
    /// The library's answer, [`INVALID_ARGUMENT`] when the job has ended.
    pub fn cancel(&self) -> Answer<()> {
        // SAFETY: the job is live.
        let status = unsafe { (self.library().functions.job_cancel)(self.pointer) };
        self.library().judge("cancel", status)
    }

    /// The job's state, as the library numbers it.
    ///
    /// # Errors
    /// The library's answer.
    pub fn check(&self) -> Answer<c_int> {
        let mut state = -1;
        // SAFETY: the job is live; the library writes one int.
        let status = unsafe { (self.library().functions.job_check)(self.pointer, &mut state) };
        self.library().judge("check", status)?;
        Ok(state)
    }

    /// The job's id at the device; `None` where the library tells none.
    ///
    /// # Errors
    /// The library's answer.
    pub fn id(&self) -> Answer<Option<String>> {
        let Some(query) = self.library().functions.job_query else { return Ok(None) };
        let Item(number, call) = JOB_ID;
        let id = self.library().fetch(call, MAX_TEXT, |size, value, size_ret| {
            // SAFETY: the job is live, and `fetch` lends `size` writable bytes.
            unsafe { query(self.pointer, number, size, value, size_ret) }
        });
        optional(id.and_then(|bytes| text(call, &bytes)))
    }

    /// The state of one program of a list; `None` where the library doesn't tell.
    ///
    /// # Errors
    /// The library's answer.
    pub fn program_state(&self, index: usize) -> Answer<Option<c_int>> {
        let Versioned::V1_4 { program_status: Some(program_status), .. } = self.library().functions.versioned
        else {
            return Ok(None);
        };
        let mut state = -1;
        // SAFETY: the job is live; the library writes one int.
        let status = unsafe { program_status(self.pointer, index, &mut state) };
        optional(self.library().judge("get_program_status", status).map(|()| state))
    }

    fn result(&self, index: usize, item: Item, most: usize) -> Answer<Vec<u8>> {
        let Item(number, call) = item;
        self.library().fetch(call, most, |size, value, size_ret| match self.library().functions.versioned {
            // SAFETY: the job is live, and `fetch` lends `size` writable bytes.
            Versioned::V1_3 { results } => unsafe { results(self.pointer, number, size, value, size_ret) },
            // SAFETY: as above.
            Versioned::V1_4 { results, .. } => unsafe {
                results(self.pointer, index, number, size, value, size_ret)
            },
        })
    }

    /// The keys of a program's histogram: one text with commas. At most `most` bytes are taken.
    ///
    /// # Errors
    /// The library's answer, or one that is not a text.
    pub fn histogram_keys(&self, index: usize, most: usize) -> Answer<String> {
        text(HIST_KEYS.1, &self.result(index, HIST_KEYS, most)?)
    }

    /// # Errors
    /// The library's answer, or one that is not a list of `size_t`s.
    pub fn histogram_values(&self, index: usize, most: usize) -> Answer<Vec<u64>> {
        values(HIST_VALUES.1, &self.result(index, HIST_VALUES, most)?, u64::from_ne_bytes)
    }

    /// The outcomes of single shots: one text with commas, for libraries without histograms.
    ///
    /// # Errors
    /// The library's answer, or one that is not a text.
    pub fn shots(&self, index: usize, most: usize) -> Answer<String> {
        text(RESULT_SHOTS.1, &self.result(index, RESULT_SHOTS, most)?)
    }

    pub fn remote_cancel(&self) -> RemoteCancel {
        RemoteCancel { live: Arc::clone(&self.live), cancel: self.library().functions.job_cancel }
    }
}

/// Cancels a job from another thread, while the library's own is inside a call that doesn't return.
#[derive(Clone)]
pub struct RemoteCancel {
    live: Arc<Mutex<Option<JobPointer>>>,
    cancel: OnPointer,
}

impl RemoteCancel {
    /// Nothing where the job has been freed.
    ///
    /// # Errors
    /// The library's answer.
    pub fn cancel(&self) -> Answer<()> {
        let live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(JobPointer(pointer)) = *live else { return Ok(()) };
        // SAFETY: the lock keeps the job from being freed, and the library is never unloaded.
        let status = unsafe { (self.cancel)(pointer) };
        match status {
            SUCCESS | WARNING => Ok(()),
            status => Err(Failure { call: "cancel", fault: Fault::Status(status) }),
        }
    }
}
