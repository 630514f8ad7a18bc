//! A session: parameters, and what it tells of its device.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;

use super::functions::Pointer;
use super::job::Job;
use super::{
    Answer, Failure, Fault, Item, Library, MAX_LIST, MAX_TEXT, device_property, operation_property,
    site_property, text, values,
};

fn pointer(bytes: [u8; size_of::<usize>()]) -> Pointer {
    std::ptr::with_exposed_provenance_mut(usize::from_ne_bytes(bytes))
}

/// A site of a session's device. Compared with others, and passed back to the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Site<'s>(Pointer, PhantomData<&'s Session>);

/// An operation of a session's device. It may become invalid with a calibration, so none is kept.
#[derive(Debug, Clone, Copy)]
pub struct Operation<'s>(Pointer, PhantomData<&'s Session>);

/// A session; freed when it and its jobs are dropped.
#[derive(Clone)]
pub struct Session(Rc<OwnedSession>);

struct OwnedSession {
    library: Rc<Library>,
    pointer: Pointer,
}

impl Drop for OwnedSession {
    fn drop(&mut self) {
        // SAFETY: allocated by this library, freed once, and jobs hold the session.
        unsafe { (self.library.functions.session_free)(self.pointer) };
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:?})", self.0.pointer)
    }
}

impl Session {
    /// # Errors
    /// When the library makes none.
    pub fn alloc(library: &Rc<Library>) -> Answer<Session> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        let status = unsafe { (library.functions.session_alloc)(&mut pointer) };
        library.judge("session_alloc", status)?;
        if pointer.is_null() {
            return Err(Failure { call: "session_alloc", fault: Fault::NoHandle });
        }
        Ok(Session(Rc::new(OwnedSession { library: Rc::clone(library), pointer })))
    }

    pub fn library(&self) -> &Library {
        &self.0.library
    }

    /// # Errors
    /// The library's answer, an absence for a parameter that it doesn't have.
    pub fn set_parameter(&self, parameter: Item, value: &[u8]) -> Answer<()> {
        let Item(number, call) = parameter;
        // SAFETY: the session is live, and the value is valid for its length during the call.
        let status = unsafe {
            (self.library().functions.session_set_parameter)(
                self.0.pointer,
                number,
                value.len(),
                value.as_ptr().cast(),
            )
        };
        self.library().judge(call, status)
    }

    /// Connects to the device.
    ///
    /// # Errors
    /// The library's answer.
    pub fn init(&self) -> Answer<()> {
        // SAFETY: the session is live.
        let status = unsafe { (self.library().functions.session_init)(self.0.pointer) };
        self.library().judge("session_init", status)
    }

    /// Asks for a property of the device, in the form that the library's queries have.
    fn ask(&self, number: c_int) -> impl Fn(usize, *mut c_void, *mut usize) -> c_int {
        move |size, value, size_ret| {
            // SAFETY: the session is live, and both kinds of `fetch` lend `size` writable bytes.
            unsafe { (self.library().functions.query_device)(self.0.pointer, number, size, value, size_ret) }
        }
    }

    fn property(&self, item: Item, most: usize) -> Answer<Vec<u8>> {
        self.library().fetch(item.1, most, self.ask(item.0))
    }

    fn single<const N: usize>(&self, item: Item) -> Answer<[u8; N]> {
        self.library().fetch_single(item.1, self.ask(item.0))
    }

    /// # Errors
    /// The library's answer, or one that is not a text.
    pub fn text(&self, item: Item) -> Answer<String> {
        text(item.1, &self.property(item, MAX_TEXT)?)
    }

    /// # Errors
    /// The library's answer, or one that is no `size_t`.
    pub fn size(&self, item: Item) -> Answer<usize> {
        Ok(usize::from_ne_bytes(self.single(item)?))
    }

    /// # Errors
    /// The library's answer, or one that is no `int`.
    pub fn int(&self, item: Item) -> Answer<i32> {
        Ok(i32::from_ne_bytes(self.single(item)?))
    }

    /// # Errors
    /// The library's answer, or one that is not a list of `int`s.
    pub fn ints(&self, item: Item) -> Answer<Vec<i32>> {
        values(item.1, &self.property(item, MAX_TEXT)?, i32::from_ne_bytes)
    }

    /// # Errors
    /// The library's answer, or one that is not a list of handles.
    pub fn sites(&self, item: Item) -> Answer<Vec<Site<'_>>> {
        values(item.1, &self.property(item, MAX_LIST)?, |bytes| Site(pointer(bytes), PhantomData))
    }

    /// # Errors
    /// As for `sites`.
    pub fn operations(&self) -> Answer<Vec<Operation<'_>>> {
        let item = device_property::OPERATIONS;
        values(item.1, &self.property(item, MAX_LIST)?, |bytes| Operation(pointer(bytes), PhantomData))
    }

    fn ask_of(&self, site: Site<'_>, number: c_int) -> impl Fn(usize, *mut c_void, *mut usize) -> c_int {
        move |size, value, size_ret| {
            // SAFETY: as in `ask`; the site is one that the library gave for this session.
            unsafe {
                (self.library().functions.query_site)(self.0.pointer, site.0, number, size, value, size_ret)
            }
        }
    }

    /// # Errors
    /// The library's answer, or one that is no `size_t`.
    pub fn site_index(&self, site: Site<'_>) -> Answer<usize> {
        let item = site_property::INDEX;
        Ok(usize::from_ne_bytes(self.library().fetch_single(item.1, self.ask_of(site, item.0))?))
    }

    /// # Errors
    /// The library's answer, or one that is not a text.
    pub fn site_name(&self, site: Site<'_>) -> Answer<String> {
        let item = site_property::NAME;
        text(item.1, &self.library().fetch(item.1, MAX_TEXT, self.ask_of(site, item.0))?)
    }

    /// # Errors
    /// The library's answer, or one that is no `bool`.
    pub fn site_is_zone(&self, site: Site<'_>) -> Answer<bool> {
        let item = site_property::IS_ZONE;
        Ok(self.library().fetch_single::<1>(item.1, self.ask_of(site, item.0))? != [0])
    }

    fn operation_property(&self, operation: Operation<'_>, item: Item, most: usize) -> Answer<Vec<u8>> {
        let Item(number, call) = item;
        self.library().fetch(call, most, |size, value, size_ret| {
            // SAFETY: as in `property`; the operation is one that the library gave for this session just before.
            unsafe {
                (self.library().functions.query_operation)(
                    self.0.pointer,
                    operation.0,
                    0,
                    std::ptr::null(),
                    0,
                    std::ptr::null(),
                    number,
                    size,
                    value,
                    size_ret,
                )
            }
        })
    }

    /// # Errors
    /// The library's answer, or one that is not a text.
    pub fn operation_name(&self, operation: Operation<'_>) -> Answer<String> {
        let item = operation_property::NAME;
        text(item.1, &self.operation_property(operation, item, MAX_TEXT)?)
    }

    /// The tuples of sites that an operation acts on, laid flat.
    ///
    /// # Errors
    /// The library's answer, or one that is not a list of handles.
    pub fn operation_sites(&self, operation: Operation<'_>) -> Answer<Vec<Site<'_>>> {
        let item = operation_property::SITES;
        let bytes = self.operation_property(operation, item, MAX_LIST)?;
        values(item.1, &bytes, |bytes| Site(pointer(bytes), PhantomData))
    }

    /// # Errors
    /// When the library makes none.
    pub fn create_job(&self) -> Answer<Job> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the session is live; the library writes one pointer.
        let status = unsafe { (self.library().functions.create_job)(self.0.pointer, &mut pointer) };
        self.library().judge("create_device_job", status)?;
        self.owned_job("create_device_job", pointer)
    }

    /// A job that an earlier process submitted; `None` where the library can't look jobs up.
    ///
    /// # Errors
    /// When it doesn't know the job.
    pub fn retrieve_job(&self, id: &CStr) -> Answer<Option<Job>> {
        let Some(retrieve) = self.library().functions.retrieve_job else { return Ok(None) };
        let mut pointer = std::ptr::null_mut();
        // SAFETY: the session is live, the id ends with NUL; the library writes one pointer.
        let status = unsafe { retrieve(self.0.pointer, id.as_ptr(), &mut pointer) };
        self.library().judge("retrieve_device_job_by_id", status)?;
        self.owned_job("retrieve_device_job_by_id", pointer).map(Some)
    }

    fn owned_job(&self, call: &'static str, pointer: Pointer) -> Answer<Job> {
        if pointer.is_null() {
            return Err(Failure { call, fault: Fault::NoHandle });
        }
        Ok(Job::of(self.clone(), pointer))
    }
}
