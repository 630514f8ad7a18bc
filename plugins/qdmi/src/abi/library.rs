//! An open library: loading, status of each call, and the two calls of each query.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{c_int, c_void};
use std::path::Path;
use std::rc::Rc;

use super::functions::{Functions, Symbols, Versioned};
use super::{Abi, Answer, Failure, Fault, SUCCESS, WARNING};

/// Why a file can't be used as a device library.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("can't be opened: {}", reason(.0))]
    Unloadable(libloading::Error),
    #[error("lacks what a QDMI library has: {}", first(.0))]
    Incomplete(Vec<String>),
    #[error("{0}")]
    Failed(Failure),
}

/// What the loader says: the error's own text is only the name of the function.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The first names of a list: with a wrong prefix all of them are missing.
fn first(names: &[String]) -> String {
    const MOST: usize = 3;
    match names.len() {
        0..=MOST => names.join(", "),
        all => format!("{} and {} more", names[..MOST].join(", "), all - MOST),
    }
}

/// An open and initialized library; finalized when it is dropped.
pub struct Library {
    pub(super) functions: Functions,
    /// Calls that were answered with a warning since the last look.
    warnings: RefCell<BTreeSet<&'static str>>,
}

impl Library {
    /// Opens the file where it lies, so that it finds its companions, and initializes it. This runs its code.
    ///
    /// # Errors
    /// When it can't be loaded, lacks a function, or doesn't initialize.
    pub fn open(path: &Path, prefix: &str) -> Result<Rc<Library>, OpenError> {
        use libloading::os::unix::{Library as Opened, RTLD_LOCAL, RTLD_NOW};
        // SAFETY: running the library's constructors is what the operator asked for by naming it.
        let opened = unsafe { Opened::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        // Leaked: it stays loaded, so that every function pointer stays valid and no thread of it loses its code.
        let opened: &'static libloading::Library =
            Box::leak(Box::new(opened.map_err(OpenError::Unloadable)?.into()));
        let symbols = Symbols { library: opened, prefix, missing: Vec::new() };
        let functions = symbols.functions().map_err(OpenError::Incomplete)?;
        // SAFETY: the interface asks for this call before all others.
        let status = unsafe { (functions.initialize)() };
        let warnings = RefCell::default();
        judge(&warnings, "initialize", status).map_err(OpenError::Failed)?;
        Ok(Rc::new(Library { functions, warnings }))
    }

    pub fn abi(&self) -> Abi {
        match self.functions.versioned {
            Versioned::V1_3 { .. } => Abi::V1_3,
            Versioned::V1_4 { .. } => Abi::V1_4,
        }
    }

    /// The calls that were answered with a warning since this was asked last.
    pub fn take_warnings(&self) -> BTreeSet<&'static str> {
        self.warnings.take()
    }

    pub(super) fn judge(&self, call: &'static str, status: c_int) -> Answer<()> {
        judge(&self.warnings, call, status)
    }

    /// Asks for a value of a known size, in one call: behind some properties is an HTTP request.
    pub(super) fn fetch_single<const N: usize>(
        &self,
        call: &'static str,
        ask: impl Fn(usize, *mut c_void, *mut usize) -> c_int,
    ) -> Answer<[u8; N]> {
        debug_assert!(N <= size_of::<u64>(), "a word holds it");
        let (mut word, mut size) = (0u64, 0usize);
        self.judge(call, ask(N, (&raw mut word).cast(), &mut size))?;
        match word.to_ne_bytes().first_chunk::<N>() {
            Some(value) if size == N => Ok(*value),
            _ => Err(Failure { call, fault: Fault::Size { found: size, unit: N } }),
        }
    }

    /// Asks for the size, then for the value. A size of 0 is an empty value and must not be asked for again.
    pub(super) fn fetch(
        &self,
        call: &'static str,
        most: usize,
        ask: impl Fn(usize, *mut c_void, *mut usize) -> c_int,
    ) -> Answer<Vec<u8>> {
        let mut size = 0usize;
        self.judge(call, ask(0, std::ptr::null_mut(), &mut size))?;
        if size == 0 {
            return Ok(Vec::new());
        }
        if size > most {
            return Err(Failure { call, fault: Fault::TooLarge { found: size, most } });
        }
        // Of words, since the library writes integers and pointers into it.
        let mut words = vec![0u64; size.div_ceil(size_of::<u64>())];
        let mut again = size;
        self.judge(call, ask(size, words.as_mut_ptr().cast(), &mut again))?;
        if again > size {
            return Err(Failure { call, fault: Fault::TooLarge { found: again, most: size } });
        }
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        // The second answer counts: a list may have become shorter.
        bytes.truncate(again);
        Ok(bytes)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: initialized in `open`, and sessions and jobs hold the library, so that this is the last call.
        let status = unsafe { (self.functions.finalize)() };
        // No one is left to tell.
        self.judge("finalize", status).ok();
    }
}

fn judge(warnings: &RefCell<BTreeSet<&'static str>>, call: &'static str, status: c_int) -> Answer<()> {
    match status {
        SUCCESS => Ok(()),
        WARNING => {
            warnings.borrow_mut().insert(call);
            Ok(())
        }
        status => Err(Failure { call, fault: Fault::Status(status) }),
    }
}
