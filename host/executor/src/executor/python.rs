//! Executors in Python code: `pkg.module:attr`, run by the vendor's interpreter in a separate process.
//!
//! ```text
//! interpreter  which interpreter: a decision; `files` is the disk that it looks at
//! spec         what the process is told, and what it tells of itself
//! circuit      circuits as NativeGateIR JSON
//! device       what the host's device is, from what a Python executor knows of it
//! secrets      values of the device config that are not shown
//! carried      modules that the bridge brings along
//! boot.py      what the interpreter runs first: reads the bridge
//! bridge.py    the process's part: creation, runs, cancels, results, errors
//! ```
//!
//! The process is an ordinary worker (`worker`): it is restarted when it dies and killed when it does not return. Both
//! Python texts are part of this program, so that both ends of the sockets are of one version.

pub mod carried;
pub mod circuit;
pub mod device;
pub mod files;
pub mod interpreter;
pub mod secrets;
pub mod spec;

/// What the interpreter is started with.
pub const BOOT: &str = include_str!("python/boot.py");
/// What it reads next.
pub const BRIDGE: &str = include_str!("python/bridge.py");
