//! From a located file to an open library, refusing early and in words.
//!
//! The file is copied to `<state>/plugins/<sha256>.so` and opened there: replacing a library by `cp` while
//! it runs would otherwise change the code under the host's feet. A library that finds its own companions
//! by `$ORIGIN` is opened in place.

use std::fs;
use std::os::fd::IntoRawFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use coda_plugin_abi::descriptor::Descriptor;
use rustix::fs::{MemfdFlags, StatVfsMountFlags, memfd_create};
use sha2::{Digest as _, Sha256};

use super::elf::{self, ElfError};
use super::ffi::{Library, LibraryOpenError};
use super::locate::{FactorySource, Located};
use crate::error::{Explain, exit};

/// A library that is open and speaks our interface.
pub struct Loaded {
    pub library: Library,
    pub descriptor: Descriptor,
}

/// Why a library can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Elf(#[from] ElfError),
    #[error("{} has the SHA-256 {found}, and CODA_EXECUTOR_SHA256 pins {pinned}", path.display())]
    Pinned { path: PathBuf, pinned: String, found: String },
    #[error("{} is built with panic=abort, so an error in it would end the whole host", path.display())]
    PanicAborts { path: PathBuf },
    #[error("the function table of {} can't be used: {text}", path.display())]
    Table { path: PathBuf, text: String },
    #[error("{} may be changed by other users ({why}), and the host runs as root", path.display())]
    Writable { path: PathBuf, why: String },
    #[error("the plugin can't be copied to {}", path.display())]
    Copy { path: PathBuf, source: std::io::Error },
    #[error("the system's loader refuses {}: {text}", path.display())]
    Loader { path: PathBuf, text: String },
    #[error("{} carries a descriptor, but not the module that belongs to it: {text}", path.display())]
    NoModule { path: PathBuf, text: String },
    #[error("{} differs from this coda-host in the memory layout of the interface: {text}", path.display())]
    Layout { path: PathBuf, text: String },
    #[error("{} has no entry '{entry}'; it offers: {}", path.display(), known.join(", "))]
    NoEntry { path: PathBuf, entry: String, known: Vec<String> },
}

impl Explain for LoadError {
    fn code(&self) -> &'static str {
        match self {
            LoadError::Elf(e) => e.code(),
            LoadError::Pinned { .. } => "plugin-pinned",
            LoadError::PanicAborts { .. } => "plugin-panic-aborts",
            LoadError::Table { .. } => "plugin-table",
            LoadError::Writable { .. } => "plugin-writable",
            LoadError::Copy { .. } => "plugin-copy",
            LoadError::Loader { .. } => "plugin-loader",
            LoadError::NoModule { .. } => "plugin-no-module",
            LoadError::Layout { .. } => "plugin-layout",
            LoadError::NoEntry { .. } => "plugin-no-entry",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            LoadError::Elf(e) => return e.hint(),
            LoadError::Pinned { .. } => {
                "compare it with the vendor's figure; set CODA_EXECUTOR_SHA256 to the new one if it is meant"
                    .into()
            }
            LoadError::PanicAborts { .. } => {
                "ask the vendor to build it with panic = \"unwind\", or set CODA_EXECUTOR_ISOLATION=process"
                    .into()
            }
            LoadError::Table { .. } => "ask the vendor to correct what coda_executor_entry returns".into(),
            LoadError::Writable { path, .. } => {
                format!("chown root:root {0} && chmod go-w {0}", path.display())
            }
            LoadError::Copy { .. } => "check space and permissions of the state directory".into(),
            LoadError::Loader { text, .. } => loader_hint(text),
            LoadError::NoModule { .. } => {
                "ask the vendor to export it: by export_executor! in Rust, as coda_executor_entry in C and C++"
                    .into()
            }
            LoadError::Layout { .. } => "ask the vendor to rebuild it with this version's SDK".into(),
            LoadError::NoEntry { .. } => "correct the part behind the colon in executor_factory".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::PLUGIN
    }
}

/// What to do about glibc's most frequent refusals.
fn loader_hint(text: &str) -> String {
    // "version `GLIBC_2.99' not found", likewise for the C++ library.
    if text.contains("version `") && text.contains("' not found") {
        "ask the vendor for a build for this system, or upgrade the system: the library was built on a newer system \
         than this one"
            .into()
    } else if text.contains("undefined symbol") {
        "tell the vendor: a library it uses is missing from its dependencies, or has another version".into()
    } else if text.contains("cannot open shared object file") {
        "install the library it names, or set LD_LIBRARY_PATH to where the vendor keeps it".into()
    } else {
        "tell the vendor".into()
    }
}

/// A file that may be opened: checked, and copied where nobody else writes.
#[derive(Debug, Clone)]
pub struct PreparedLibrary {
    pub descriptor: Descriptor,
    /// Where the operator keeps it.
    pub path: PathBuf,
    /// What is to be opened.
    pub opened: PathBuf,
    /// Libraries beside the plugin that it needs.
    pub companions: Vec<PathBuf>,
    pub entry: String,
    pub source: FactorySource,
    /// Of the file's content.
    pub sha256: String,
}

/// Checks the library's file and makes the copy. Nothing of it has run then.
///
/// # Errors
/// When the file is no plugin, others may write to it, it is not the pinned one, it can't be copied, or it must not be
/// opened in this process while it is not `isolated`.
pub fn prepare(located: &Located, state_dir: &Path, isolated: bool) -> Result<PreparedLibrary, LoadError> {
    let path = &located.path;
    let inspection = elf::inspect(path)?;
    let own = || path.clone();
    if !inspection.descriptor.unwinds && !isolated {
        return Err(LoadError::PanicAborts { path: own() });
    }
    let known = &inspection.descriptor.entries;
    if !known.contains(&located.entry) {
        let (entry, known) = (located.entry.clone(), known.clone());
        return Err(LoadError::NoEntry { path: own(), entry, known });
    }
    trusted(path)?;
    let sha256 = hex::encode(Sha256::digest(&inspection.bytes));
    if let Some(pinned) = located.pinned.as_ref().filter(|p| !p.eq_ignore_ascii_case(&sha256)) {
        return Err(LoadError::Pinned { path: own(), pinned: pinned.clone(), found: sha256 });
    }
    let opened = if inspection.uses_origin {
        tracing::warn!(
            plugin = %path.display(),
            "the plugin looks for libraries beside itself, so it is opened in place: replace it by 'mv', \
             never by 'cp' over the running one"
        );
        own()
    } else {
        private_copy(&inspection.bytes, &sha256, state_dir)?
    };
    Ok(PreparedLibrary {
        descriptor: inspection.descriptor,
        path: own(),
        opened,
        companions: inspection.companions,
        entry: located.entry.clone(),
        source: located.source.clone(),
        sha256,
    })
}

impl PreparedLibrary {
    /// Opens the library in this process. Its constructors run on the calling thread.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn open(&self) -> Result<Library, LoadError> {
        Library::open(&self.opened, self.descriptor.binding, self.descriptor.api_minor)
            .map_err(|e| self.refused(e))
    }

    /// An error of the opening in terms of the operator's file.
    pub fn refused(&self, error: LibraryOpenError) -> LoadError {
        let path = self.path.clone();
        match error {
            // The loader knows the copy; its own words begin with it, or name it.
            LibraryOpenError::Loader(text) => {
                let (copy, own) = (self.opened.display().to_string(), path.display().to_string());
                let text = text.strip_prefix(&format!("{copy}: ")).unwrap_or(&text).replace(&copy, &own);
                LoadError::Loader { path, text }
            }
            LibraryOpenError::NoModule(text) => LoadError::NoModule { path, text },
            LibraryOpenError::Layout(text) => LoadError::Layout { path, text },
            LibraryOpenError::Table(text) => LoadError::Table { path, text },
        }
    }
}

/// Prepares and opens the library in this process.
///
/// # Errors
/// See [`LoadError`]; nothing of a refused library's code has run, except where the loader itself or the
/// layout check refuses it.
pub fn load(located: &Located, state_dir: &Path) -> Result<Loaded, LoadError> {
    let prepared = prepare(located, state_dir, false)?;
    Ok(Loaded { library: prepared.open()?, descriptor: prepared.descriptor })
}

/// Refuses, for root, a file that another user could replace with code of their own.
///
/// # Errors
/// When the file belongs to another user, or others may write to it.
pub fn trusted(path: &Path) -> Result<(), LoadError> {
    let root = fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0);
    if !root {
        return Ok(());
    }
    let refuse = |why: String| Err(LoadError::Writable { path: path.to_path_buf(), why });
    match fs::metadata(path) {
        Ok(m) if m.uid() != 0 => refuse(format!("owned by user {}", m.uid())),
        Ok(m) if m.mode() & 0o022 != 0 => refuse(format!("mode {:04o}", m.mode() & 0o7777)),
        // A file that can't be read is refused where it is read.
        _ => Ok(()),
    }
}

/// Mode of the private copy. Its directory keeps others out; a plugin's process is handed the open file.
const COPY_MODE: u32 = 0o555;

/// A copy for a state directory whose file system runs nothing (mounted `noexec`). It is there as long as the process:
/// a plugin is never unloaded.
fn copy_in_memory(bytes: &[u8]) -> std::io::Result<PathBuf> {
    let file = fs::File::from(memfd_create("coda-plugin", MemfdFlags::CLOEXEC)?);
    std::io::Write::write_all(&mut &file, bytes)?;
    Ok(PathBuf::from(format!("/proc/self/fd/{}", file.into_raw_fd())))
}

fn private_copy(bytes: &[u8], sha256: &str, state_dir: &Path) -> Result<PathBuf, LoadError> {
    let dir = state_dir.join("plugins");
    let target = dir.join(format!("{sha256}.so"));
    let failed = |source| LoadError::Copy { path: target.clone(), source };
    fs::create_dir_all(&dir).map_err(failed)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    let mount = rustix::fs::statvfs(&dir).map_err(|e| failed(e.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return copy_in_memory(bytes).map_err(failed);
    }
    // A copy from an earlier start is used only while its content is still what its name says.
    if fs::read(&target).is_ok_and(|old| old == bytes) {
        fs::set_permissions(&target, fs::Permissions::from_mode(COPY_MODE)).map_err(failed)?;
        return Ok(target);
    }
    let mut file = tempfile::Builder::new().tempfile_in(&dir).map_err(failed)?;
    std::io::Write::write_all(&mut file, bytes).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.as_file().set_permissions(fs::Permissions::from_mode(COPY_MODE)).map_err(failed)?;
    file.persist(&target).map_err(|e| failed(e.error))?;
    Ok(target)
}
