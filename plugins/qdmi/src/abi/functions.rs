//! The functions of a library, by their types in the interface, and how they are found in it.

use std::ffi::{c_char, c_int, c_void};

/// An opaque pointer of the library.
pub(super) type Pointer = *mut c_void;
pub(super) type Command = unsafe extern "C" fn() -> c_int;
pub(super) type OnPointer = unsafe extern "C" fn(Pointer) -> c_int;
pub(super) type Free = unsafe extern "C" fn(Pointer);
pub(super) type Make = unsafe extern "C" fn(*mut Pointer) -> c_int;
pub(super) type MakeJob = unsafe extern "C" fn(Pointer, *mut Pointer) -> c_int;
pub(super) type Retrieve = unsafe extern "C" fn(Pointer, *const c_char, *mut Pointer) -> c_int;
pub(super) type SetParameter = unsafe extern "C" fn(Pointer, c_int, usize, *const c_void) -> c_int;
pub(super) type Query = unsafe extern "C" fn(Pointer, c_int, usize, *mut c_void, *mut usize) -> c_int;
pub(super) type SiteQuery =
    unsafe extern "C" fn(Pointer, Pointer, c_int, usize, *mut c_void, *mut usize) -> c_int;
pub(super) type OperationQuery = unsafe extern "C" fn(
    Pointer,
    Pointer,
    usize,
    *const Pointer,
    usize,
    *const f64,
    c_int,
    usize,
    *mut c_void,
    *mut usize,
) -> c_int;
pub(super) type Check = unsafe extern "C" fn(Pointer, *mut c_int) -> c_int;
pub(super) type ResultsOfList =
    unsafe extern "C" fn(Pointer, usize, c_int, usize, *mut c_void, *mut usize) -> c_int;
pub(super) type SetPrograms =
    unsafe extern "C" fn(Pointer, c_int, usize, *const usize, *const *const c_void) -> c_int;
pub(super) type ProgramStatus = unsafe extern "C" fn(Pointer, usize, *mut c_int) -> c_int;

/// What the versions do differently.
#[derive(Clone, Copy)]
pub(super) enum Versioned {
    V1_3 { results: Query },
    V1_4 { results: ResultsOfList, set_programs: SetPrograms, program_status: Option<ProgramStatus> },
}

#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) initialize: Command,
    pub(super) finalize: Command,
    pub(super) session_alloc: Make,
    pub(super) session_set_parameter: SetParameter,
    pub(super) session_init: OnPointer,
    pub(super) session_free: Free,
    pub(super) query_device: Query,
    pub(super) query_site: SiteQuery,
    pub(super) query_operation: OperationQuery,
    pub(super) create_job: MakeJob,
    pub(super) retrieve_job: Option<Retrieve>,
    pub(super) job_set_parameter: SetParameter,
    pub(super) job_query: Option<Query>,
    pub(super) job_submit: OnPointer,
    pub(super) job_cancel: OnPointer,
    pub(super) job_check: Check,
    pub(super) job_free: Free,
    pub(super) versioned: Versioned,
}

/// Looks symbols up and notes which are missing.
pub(super) struct Symbols<'a> {
    pub(super) library: &'a libloading::Library,
    pub(super) prefix: &'a str,
    pub(super) missing: Vec<String>,
}

impl Symbols<'_> {
    /// # Safety
    /// `T` must be the type of the function of this name.
    unsafe fn find<T: Copy>(&self, name: &str) -> Option<T> {
        let symbol = format!("{}_QDMI_device_{name}", self.prefix);
        // SAFETY: the type is the caller's promise; the pointer is copied out, and the library is never unloaded.
        unsafe { self.library.get::<T>(symbol.as_bytes()) }.ok().map(|found| *found)
    }

    /// # Safety
    /// As for `find`.
    unsafe fn need<T: Copy>(&mut self, name: &str) -> Option<T> {
        // SAFETY: by this function's contract.
        let found = unsafe { self.find::<T>(name) };
        if found.is_none() {
            self.missing.push(format!("{}_QDMI_device_{name}", self.prefix));
        }
        found
    }

    pub(super) fn functions(mut self) -> Result<Functions, Vec<String>> {
        // SAFETY: these are the names and types of the interface's functions. Which of the two types
        // `job_get_results` has is what the presence of `job_set_programs` tells.
        let found = unsafe {
            let set_programs = self.find::<SetPrograms>("job_set_programs");
            // Never called, since some libraries can't be stopped in it; a library without it is not a complete one.
            let wait = self.need::<OnPointer>("job_wait");
            let versioned = match set_programs {
                Some(set_programs) => {
                    let program_status = self.find("job_get_program_status");
                    self.need("job_get_results").map(|results| Versioned::V1_4 {
                        results,
                        set_programs,
                        program_status,
                    })
                }
                None => self.need("job_get_results").map(|results| Versioned::V1_3 { results }),
            };
            (
                wait,
                self.need("initialize"),
                self.need("finalize"),
                self.need("session_alloc"),
                self.need("session_set_parameter"),
                self.need("session_init"),
                self.need("session_free"),
                self.need("session_query_device_property"),
                self.need("session_query_site_property"),
                self.need("session_query_operation_property"),
                (
                    self.need("session_create_device_job"),
                    self.find("session_retrieve_device_job_by_id"),
                    self.need("job_set_parameter"),
                    self.find("job_query_property"),
                    self.need("job_submit"),
                    self.need("job_cancel"),
                    self.need("job_check"),
                    self.need("job_free"),
                    versioned,
                ),
            )
        };
        let complete = || {
            let (_, initialize, finalize, alloc, set_parameter, init, free, device, site, operation, job) =
                found;
            let (create, retrieve_job, parameter, job_query, submit, cancel, check, job_free, versioned) =
                job;
            Some(Functions {
                initialize: initialize?,
                finalize: finalize?,
                session_alloc: alloc?,
                session_set_parameter: set_parameter?,
                session_init: init?,
                session_free: free?,
                query_device: device?,
                query_site: site?,
                query_operation: operation?,
                create_job: create?,
                retrieve_job,
                job_set_parameter: parameter?,
                job_query,
                job_submit: submit?,
                job_cancel: cancel?,
                job_check: check?,
                job_free: job_free?,
                versioned: versioned?,
            })
        };
        match complete() {
            Some(functions) if self.missing.is_empty() => Ok(functions),
            _ => Err(self.missing),
        }
    }
}
