//! What the Rust binding exports: one abi_stable root module, a table of functions over [`crate::raw`].
//!
//! Every function is safe against panics (the glue in `author` catches them) and answers through its
//! [`RawReply`]; a function that returns without having replied gave no answer. The executor is an opaque
//! pointer that only its own module may use.
//!
//! Threads: `create` and `destroy` on one thread, `run`, `batch_run` and `evolve_state` on at most `slots` threads
//! at once, each slot always on the same thread, `device`, `cancel` and `shutdown` on a control thread that may
//! run beside all others; `config_schema` on any thread, before `create` or beside everything.

use std::ffi::c_void;

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::sabi_types::VersionStrings;

use crate::raw::{CreateArg, EvolutionArg, Gate, JobArg, ReplyArg, TextArg};

/// The symbol under which abi_stable looks for the module.
pub const ROOT_MODULE_SYMBOL: &str = "_1as_0lib_1header_0root_bmodule_bloader";

/// The table as interface 1.0 had it, for libraries whose descriptor says so: abi_stable takes a library with more
/// functions than the host's type, never one with fewer. The name is compared, so it is the same.
pub mod v1_0 {
    use super::*;

    #[repr(C)]
    #[derive(StableAbi)]
    #[sabi(kind(Prefix(prefix_ref = ExecutorModuleRef)))]
    #[sabi(missing_field(panic))]
    pub struct ExecutorModule {
        pub layout: extern "C" fn(Gate),
        pub create: extern "C" fn(CreateArg, ReplyArg) -> *mut c_void,
        pub device: extern "C" fn(*mut c_void, ReplyArg),
        pub run: extern "C" fn(*mut c_void, JobArg, ReplyArg),
        pub batch_run: extern "C" fn(*mut c_void, JobArg, usize, ReplyArg),
        pub cancel: extern "C" fn(*mut c_void, TextArg, ReplyArg),
        pub shutdown: extern "C" fn(*mut c_void, ReplyArg),
        #[sabi(last_prefix_field)]
        pub destroy: extern "C" fn(*mut c_void, ReplyArg),
    }

    impl RootModule for ExecutorModuleRef {
        abi_stable::declare_root_module_statics! {ExecutorModuleRef}

        const BASE_NAME: &'static str = "coda_executor";
        const NAME: &'static str = "coda_executor";
        const VERSION_STRINGS: VersionStrings = package_version_strings!();
    }
}

/// The function table. Functions are only ever appended, behind `last_prefix_field`; whoever appends some adds a
/// copy of the table before to the former ones above.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ExecutorModuleRef)))]
#[sabi(missing_field(panic))]
pub struct ExecutorModule {
    /// Never called: makes abi_stable compare the layout of the fixed structs.
    pub layout: extern "C" fn(Gate),
    /// Makes the executor of the named entry. Null, with an error replied, when it can't.
    pub create: extern "C" fn(CreateArg, ReplyArg) -> *mut c_void,
    /// Describes the device through `RawReply::device`.
    pub device: extern "C" fn(*mut c_void, ReplyArg),
    /// Runs one job and replies for index 0.
    pub run: extern "C" fn(*mut c_void, JobArg, ReplyArg),
    /// Runs `len` jobs and replies once for each index, or once for the whole call.
    pub batch_run: extern "C" fn(*mut c_void, JobArg, usize, ReplyArg),
    /// Asks the run of this job (id lent) to end soon. Unknown ids are ignored.
    pub cancel: extern "C" fn(*mut c_void, TextArg, ReplyArg),
    /// Brings the device to rest; no call follows but `destroy`.
    pub shutdown: extern "C" fn(*mut c_void, ReplyArg),
    /// Frees the executor.
    #[sabi(last_prefix_field)]
    pub destroy: extern "C" fn(*mut c_void, ReplyArg),
    /// Since 1.1: applies operations to a state and replies the amplitudes.
    pub evolve_state: extern "C" fn(*mut c_void, EvolutionArg, ReplyArg),
    /// Since 1.1: replies the JSON schema of the named entry's config, or nothing. Needs no executor.
    pub config_schema: extern "C" fn(TextArg, ReplyArg),
}

impl RootModule for ExecutorModuleRef {
    abi_stable::declare_root_module_statics! {ExecutorModuleRef}

    const BASE_NAME: &'static str = "coda_executor";
    const NAME: &'static str = "coda_executor";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_symbol_is_the_one_abi_stable_looks_for() {
        assert_eq!(super::ROOT_MODULE_SYMBOL, abi_stable::library::ROOT_MODULE_LOADER_NAME);
    }
}
