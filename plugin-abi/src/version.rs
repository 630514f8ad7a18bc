//! The interface version, compared before anything else of a plugin is read.
//!
//! Fields and functions are only ever appended within a major version, so a host serves every plugin of
//! its own major whose minor is not newer than the host's.

/// Changes when something is removed or altered; a plugin must then be rebuilt.
pub const MAJOR: u16 = 1;
/// Counts appended functions and fields. 1.1 appended `evolve_state`, `config_schema` and gauges; 1.2 the
/// descriptor's `isolation`.
pub const MINOR: u16 = 2;

/// What a comparison of a plugin's interface version with this host's says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Compatible,
    /// The plugin was built for an interface that this host no longer (or does not yet) speak.
    OtherMajor,
    /// The plugin may use functions that this host lacks.
    NewerMinor,
}

/// Compares a plugin's interface version with this one.
pub const fn compare(major: u16, minor: u16) -> Verdict {
    if major != MAJOR {
        Verdict::OtherMajor
    } else if minor > MINOR {
        Verdict::NewerMinor
    } else {
        Verdict::Compatible
    }
}

/// The compiler and target that built this crate, and so the plugin that links it.
pub const RUSTC: &str = env!("CODA_ABI_RUSTC");
pub const TARGET: &str = env!("CODA_ABI_TARGET");
/// Whether a panic unwinds, so that the glue can catch it.
pub const UNWINDS: bool = cfg!(panic = "unwind");
