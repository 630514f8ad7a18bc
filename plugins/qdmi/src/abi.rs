//! The C interface of a QDMI device library, and the only unsafe code of this plugin.
//!
//! Contract: whatever the library answers comes back as a value or as a [`Failure`] that names the call; no status is
//! ignored, and no size that it states is believed before it is compared with a limit. A [`Library`] and everything made
//! from it stays on the thread that opened it, which the types enforce (`Rc` is not `Send`); [`RemoteCancel`] is the one
//! exception. A library is never unloaded, because its threads may outlive it.
//!
//! There are two versions of the interface, which share names and differ in arguments. `<prefix>_..._job_set_programs`
//! exists in 1.4 alone, so it tells them apart before the first call.

mod functions;
mod job;
mod library;
mod session;

use std::ffi::c_int;
use std::fmt;

pub use job::{Job, RemoteCancel};
pub use library::{Library, OpenError};
pub use session::{Session, Site};

/// Most bytes of a text that is asked for: names, versions, ids.
const MAX_TEXT: usize = 64 << 10;
/// Most bytes of a list of handles, such as sites or pairs of them.
const MAX_LIST: usize = 64 << 20;

pub const WARNING: i32 = 1;
const SUCCESS: i32 = 0;
pub const FATAL: i32 = -1;
pub const OUT_OF_MEMORY: i32 = -2;
const NOT_IMPLEMENTED: i32 = -3;
pub const INVALID_ARGUMENT: i32 = -7;
pub const PERMISSION_DENIED: i32 = -8;
const NOT_SUPPORTED: i32 = -9;
pub const TIMEOUT: i32 = -11;

/// The name of a status, as the interface's documentation has it.
fn status_name(status: i32) -> &'static str {
    match status {
        1 => "warning",
        0 => "success",
        -1 => "fatal error",
        -2 => "out of memory",
        -3 => "not implemented",
        -4 => "library not found",
        -5 => "not found",
        -6 => "out of range",
        -7 => "invalid argument",
        -8 => "permission denied",
        -9 => "not supported",
        -10 => "bad state",
        -11 => "timeout",
        _ => "unknown status",
    }
}

/// What is wrong with an answer of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    Status(i32),
    /// The size that it stated doesn't fit the value that was asked for.
    Size {
        found: usize,
        unit: usize,
    },
    TooLarge {
        found: usize,
        most: usize,
    },
    /// A text without the NUL at its end.
    NoEnd,
    /// Success, and a null handle.
    NoHandle,
}

/// A call that did not do what was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub call: &'static str,
    pub fault: Fault,
}

impl Failure {
    /// The status that the library answered, if it is the status that is wrong.
    pub fn status(&self) -> Option<i32> {
        match self.fault {
            Fault::Status(status) => Some(status),
            _ => None,
        }
    }

    /// Whether the library says that it has no such thing. The interface asks for "not supported"; of a function whose
    /// body is missing some say "not implemented".
    pub fn is_absence(&self) -> bool {
        matches!(self.status(), Some(NOT_SUPPORTED | NOT_IMPLEMENTED))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = self.call;
        match self.fault {
            Fault::Status(status) => {
                write!(f, "the device library answered {status} ({}) to {call}", status_name(status))
            }
            Fault::Size { found, unit } => {
                write!(f, "the device library answered {found} bytes to {call}, which has values of {unit}")
            }
            Fault::TooLarge { found, most } => {
                write!(
                    f,
                    "the device library announced {found} bytes for {call}; {most} is the most that is read"
                )
            }
            Fault::NoEnd => write!(f, "the device library answered a text without its final NUL to {call}"),
            Fault::NoHandle => write!(f, "the device library answered success and no handle to {call}"),
        }
    }
}

impl std::error::Error for Failure {}

/// Success with a value, or what was wrong.
pub type Answer<T> = Result<T, Failure>;

/// `None` where the library says that it has no such thing.
///
/// # Errors
/// Every other failure.
pub fn optional<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(failure) if failure.is_absence() => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// A property, parameter or result: its number, and the name by which errors call it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item(pub c_int, pub &'static str);

pub mod device_property {
    use super::Item;

    pub const NAME: Item = Item(0, "the query of NAME");
    pub const VERSION: Item = Item(1, "the query of VERSION");
    pub const STATUS: Item = Item(2, "the query of STATUS");
    pub const LIBRARY_VERSION: Item = Item(3, "the query of LIBRARYVERSION");
    pub const QUBITS_NUM: Item = Item(4, "the query of QUBITSNUM");
    pub const SITES: Item = Item(5, "the query of SITES");
    pub const OPERATIONS: Item = Item(6, "the query of OPERATIONS");
    pub const COUPLING_MAP: Item = Item(7, "the query of COUPLINGMAP");
    pub const PROGRAM_FORMATS: Item = Item(15, "the query of SUPPORTEDPROGRAMFORMATS");
    pub const QUEUE_LENGTH: Item = Item(17, "the query of QUEUELENGTH");
}

pub mod site_property {
    use super::Item;

    pub const INDEX: Item = Item(0, "the query of a site's INDEX");
    pub const NAME: Item = Item(3, "the query of a site's NAME");
    pub const IS_ZONE: Item = Item(7, "the query of a site's ISZONE");
}

pub mod operation_property {
    use super::Item;

    pub const NAME: Item = Item(0, "the query of an operation's NAME");
    pub const SITES: Item = Item(9, "the query of an operation's SITES");
}

/// The first of the five parameters whose meaning and type each library defines itself.
const CUSTOM1: c_int = 999_999_995;

/// The number of `custom<n>`, n from 1 to 5.
pub const fn custom(n: u8) -> c_int {
    CUSTOM1 + n as c_int - 1
}

/// How calls are named where their status decides what is done.
pub const SET_PROGRAM: &str = "the program";
pub const SUBMIT: &str = "submit";

/// Which version of the interface a library has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Abi {
    V1_3,
    V1_4,
}

impl fmt::Display for Abi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Abi::V1_3 => "1.3",
            Abi::V1_4 => "1.4",
        })
    }
}

fn text(call: &'static str, bytes: &[u8]) -> Answer<String> {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(end) => Ok(String::from_utf8_lossy(&bytes[..end]).into_owned()),
        None if bytes.is_empty() => Ok(String::new()),
        None => Err(Failure { call, fault: Fault::NoEnd }),
    }
}

/// The values of a list whose elements have `N` bytes.
fn values<const N: usize, T>(
    call: &'static str,
    bytes: &[u8],
    value: impl Fn([u8; N]) -> T,
) -> Answer<Vec<T>> {
    let (whole, rest) = bytes.as_chunks::<N>();
    if !rest.is_empty() {
        return Err(Failure { call, fault: Fault::Size { found: bytes.len(), unit: N } });
    }
    Ok(whole.iter().map(|chunk| value(*chunk)).collect())
}
