//! Opening a library and taking its functions, whichever binding it has.
//!
//! Both bindings come down to one [`FunctionTable`] of C functions: the C binding hands over its own, the
//! module of the Rust binding is checked by abi_stable first and its functions have the same form.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use abi_stable::library::{AbiHeaderRef, LibraryError};
use coda_plugin_abi::descriptor::Binding;
use coda_plugin_abi::raw::{C_ENTRY_SYMBOL, RawApi, RawCreate, RawEvolution, RawJob, RawReply, RawStr};
use coda_plugin_abi::version::{self, Verdict};
use coda_plugin_abi::{Error, ErrorCode, ExecutorModuleRef, ROOT_MODULE_SYMBOL, Stage, v1_0};
use libloading::os::unix::{Library as DynamicLibrary, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

use super::handles::set_last_executor;
use super::reply::OpenReply;
use super::{Common, Instance, JobContext};

/// Why a library could not be opened.
#[derive(Debug, Serialize, Deserialize)]
pub enum LibraryOpenError {
    /// The system's loader refused it; its own words.
    Loader(String),
    /// It lacks the symbol that every plugin of its binding exports.
    NoModule(String),
    /// Its interface differs in memory layout; the first lines of the report.
    Layout(String),
    /// The C binding's function table can't be used.
    Table(String),
}

impl LibraryOpenError {
    /// The error with the operator's file in the place of the one by which the loader knows it.
    pub fn of_file(self, place: &Path, file: &Path) -> LibraryOpenError {
        match self {
            LibraryOpenError::Loader(text) => LibraryOpenError::Loader(
                text.replace(&place.display().to_string(), &file.display().to_string()),
            ),
            other => other,
        }
    }
}

/// A loaded library. It is never closed: code and statics of a plugin can't be unloaded safely.
#[derive(Clone, Copy)]
pub struct Library {
    table: FunctionTable,
}

type ReplyPtr = *const RawReply;

/// The functions of a plugin. What may be absent is optional.
#[derive(Clone, Copy)]
pub(super) struct FunctionTable {
    pub create: unsafe extern "C" fn(*const RawCreate, ReplyPtr) -> *mut c_void,
    pub device: unsafe extern "C" fn(*mut c_void, ReplyPtr),
    pub run: unsafe extern "C" fn(*mut c_void, *const RawJob, ReplyPtr),
    pub batch_run: Option<unsafe extern "C" fn(*mut c_void, *const RawJob, usize, ReplyPtr)>,
    pub cancel: Option<unsafe extern "C" fn(*mut c_void, *const RawStr, ReplyPtr)>,
    pub shutdown: Option<unsafe extern "C" fn(*mut c_void, ReplyPtr)>,
    pub destroy: unsafe extern "C" fn(*mut c_void, ReplyPtr),
    pub evolve_state: Option<unsafe extern "C" fn(*mut c_void, *const RawEvolution, ReplyPtr)>,
    pub config_schema: Option<unsafe extern "C" fn(*const RawStr, ReplyPtr)>,
}

impl Library {
    /// Opens the file with all symbols bound and takes the functions of the binding and of the minor version that its
    /// descriptor states; for the Rust binding after a check of the layout. Constructors of the library run in this call, on this thread.
    ///
    /// # Errors
    /// When the loader or the layout check refuses the library, in the words of either.
    pub fn open(path: &Path, binding: Binding, minor: u16) -> Result<Library, LibraryOpenError> {
        let flags = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: loading runs the library's constructors; that a plugin's code is trusted to run in this
        // process is the meaning of configuring it. The file was checked to be a whole library.
        let library = unsafe { DynamicLibrary::open(Some(path.as_os_str()), flags) }
            .map_err(|e| LibraryOpenError::Loader(loader_message(&e)))?;
        let table = match binding {
            Binding::Rust => rust_binding(&library, minor),
            Binding::C => c_binding(&library),
        }?;
        std::mem::forget(library);
        Ok(Library { table })
    }

    /// The JSON schema of an entry's device config, when the plugin exports one. Needs no executor.
    ///
    /// # Errors
    /// When the plugin replied an error, such as a panic.
    pub fn config_schema(&self, entry: &str) -> Result<Option<String>, Error> {
        let Some(hook) = self.table.config_schema else { return Ok(None) };
        let reply = OpenReply::new(0, None);
        // SAFETY: the function is the plugin's own; name and reply are lent for the length of the call.
        unsafe { hook(&RawStr::new(entry), reply.as_ptr()) };
        let replies = reply.close();
        replies.whole.map_or(Ok(replies.schema), Err)
    }

    /// Calls the factory. For thread 0.
    ///
    /// # Errors
    /// When the factory replied an error, or nothing.
    pub fn create(&self, request: &CreateRequest) -> Result<Instance, Error> {
        set_last_executor(&request.common);
        // The executor may log until it is dropped; and a thread that the plugin left behind may do so after `destroy`.
        let host =
            ManuallyDrop::new(Arc::new(JobContext::in_executor(request.common.clone(), "".into())).lend());
        let path = request.config_path.to_string_lossy();
        let raw = RawCreate {
            size: size_of::<RawCreate>(),
            entry: RawStr::new(&request.entry),
            config_path: RawStr::new(&path),
            config_text: RawStr::new(&request.config_text),
            native_gate_set: RawStr::new(&request.native_gate_set),
            num_qubits: u32::from(request.num_qubits),
            reserved: 0,
            host: host.as_ptr(),
        };
        let reply = OpenReply::new(0, None);
        // SAFETY: the function is the plugin's own; request and reply are lent for the length of the call, and the host's
        // services for ever.
        let this = unsafe { (self.table.create)(&raw, reply.as_ptr()) };
        if let Some(error) = reply.close().whole {
            return Err(error);
        }
        if this.is_null() {
            return Err(Error::new(ErrorCode::Contract, "the factory returned neither executor nor error")
                .at(Stage::Create));
        }
        Ok(Instance::new(self.table, this))
    }
}

/// libloading keeps the loader's text in its source.
fn loader_message(e: &libloading::Error) -> String {
    let text = std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string);
    text.trim().to_string()
}

fn rust_binding(library: &DynamicLibrary, minor: u16) -> Result<FunctionTable, LibraryOpenError> {
    // SAFETY: the symbol, when present, is abi_stable's header, whose address is what AbiHeaderRef holds.
    let header = unsafe { library.get::<AbiHeaderRef>(ROOT_MODULE_SYMBOL.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|e| LibraryOpenError::NoModule(loader_message(&e)))?;
    let header = header.upgrade().map_err(|e| LibraryOpenError::Layout(brief(&e)))?;
    // Each argument of the module's functions is a pointer or a transparent struct around one.
    macro_rules! table {
        ($module:ident, $evolve_state:expr, $config_schema:expr) => {
            // SAFETY: both sides are pointers to functions of one calling convention, whose arguments and results
            // differ in nothing but the name of a pointer's type.
            unsafe {
            FunctionTable {
                create: same_form($module.create()),
                device: same_form($module.device()),
                run: same_form($module.run()),
                batch_run: Some(same_form($module.batch_run())),
                cancel: Some(same_form($module.cancel())),
                shutdown: Some(same_form($module.shutdown())),
                destroy: same_form($module.destroy()),
                evolve_state: $evolve_state,
                config_schema: $config_schema,
            }
            }
        };
    }
    let refused = |e| LibraryOpenError::Layout(brief(&e));
    if minor == 0 {
        let module = header.init_root_module::<v1_0::ExecutorModuleRef>().map_err(refused)?;
        return Ok(table!(module, None, None));
    }
    let module = header.init_root_module::<ExecutorModuleRef>().map_err(refused)?;
    Ok(table!(module, Some(same_form(module.evolve_state())), Some(same_form(module.config_schema()))))
}

/// A function of the Rust binding in the form of the C binding.
///
/// # Safety
/// Both must be pointers to functions of the same calling convention, whose arguments and results differ in nothing
/// but the name of a pointer's type.
unsafe fn same_form<F: Copy, G: Copy>(function: F) -> G {
    const { assert!(size_of::<F>() == size_of::<*const ()>() && size_of::<G>() == size_of::<*const ()>()) };
    // SAFETY: by this function's contract; the sizes are equal.
    unsafe { std::mem::transmute_copy(&function) }
}

fn c_binding(library: &DynamicLibrary) -> Result<FunctionTable, LibraryOpenError> {
    // SAFETY: the symbol's type is fixed by `coda_executor.h`, which the descriptor says this library follows.
    let entry = unsafe { library.get::<extern "C" fn() -> *const RawApi>(C_ENTRY_SYMBOL.as_bytes()) }
        .map_err(|e| LibraryOpenError::NoModule(loader_message(&e)))?;
    let api = entry();
    if api.is_null() {
        return Err(LibraryOpenError::Table(format!("{C_ENTRY_SYMBOL} returned null")));
    }
    // SAFETY: `size` comes first in every version of the table.
    let size = unsafe { api.cast::<usize>().read() };
    let least = std::mem::offset_of!(RawApi, destroy) + size_of::<usize>();
    if size < least || size > 1 << 16 {
        let text = format!(
            "its size is {size} bytes, expected {least} or more (set it to sizeof(coda_executor_api))"
        );
        return Err(LibraryOpenError::Table(text));
    }
    let mut whole = std::mem::MaybeUninit::<RawApi>::zeroed();
    // SAFETY: no more is copied than the plugin states and we hold; zeros are a legal value of every field.
    let api = unsafe {
        let known = size.min(size_of::<RawApi>());
        std::ptr::copy_nonoverlapping(api.cast::<u8>(), whole.as_mut_ptr().cast::<u8>(), known);
        whole.assume_init()
    };
    if version::compare(api.api_major, api.api_minor) != Verdict::Compatible {
        let text = format!("it states interface {}.{}, unlike the descriptor", api.api_major, api.api_minor);
        return Err(LibraryOpenError::Table(text));
    }
    let missing = |name: &str| LibraryOpenError::Table(format!("it has no '{name}'"));
    Ok(FunctionTable {
        create: api.create.ok_or_else(|| missing("create"))?,
        device: api.device.ok_or_else(|| missing("device"))?,
        run: api.run.ok_or_else(|| missing("run"))?,
        batch_run: api.batch_run,
        cancel: api.cancel,
        shutdown: api.shutdown,
        destroy: api.destroy.ok_or_else(|| missing("destroy"))?,
        evolve_state: api.evolve_state,
        config_schema: api.config_schema,
    })
}

/// The start of a layout report, which can have 60 KB.
fn brief(error: &LibraryError) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|l| !l.is_empty()).take(6);
    lines.collect::<Vec<_>>().join("; ")
}

/// What the factory is told.
#[derive(Clone)]
pub struct CreateRequest {
    pub common: Arc<Common>,
    pub entry: String,
    pub config_path: std::path::PathBuf,
    pub config_text: String,
    pub native_gate_set: String,
    pub num_qubits: u16,
}
