//! From a located file to an open library, refusing early and in words.
//!
//! The file is copied to `<state>/plugins/<sha256>.so`, and the copy's descriptor is opened: replacing a library by `cp`
//! while it runs would otherwise change the code under the host's feet. A library that finds its own companions by
//! `$ORIGIN` is opened in place, with the companions checked as well. What is checked, hashed and opened is one open file
//! (`trust`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use coda_plugin_abi::descriptor::Descriptor;
use rustix::fs::{MemfdFlags, StatVfsMountFlags, memfd_create};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::elf::{self, ElfError, Links};
use super::ffi::{Library, LibraryOpenError};
use super::locate::{FactorySource, LocatedLibrary};
use super::trust::{self, OpenRefusal, Trust};
use crate::error::{Explain, exit};
use crate::sys;

/// Libraries that a plugin may need beside itself.
const MAX_COMPANIONS: usize = 256;

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
    #[error("{} must run in a separate process, and was not known to when that was decided", path.display())]
    NeedsProcess { path: PathBuf },
    #[error("the function table of {} can't be used: {text}", path.display())]
    Table { path: PathBuf, text: String },
    #[error("{} may be changed by other users ({why}), and what is there would run with the host's rights", path.display())]
    Writable { path: PathBuf, why: String },
    #[error("{} needs {}, whose SHA-256 {found} CODA_EXECUTOR_SHA256 does not pin", path.display(), companion.display())]
    CompanionPinned { path: PathBuf, companion: PathBuf, found: String, pins: String },
    #[error("{} has changed since it was checked", path.display())]
    Changed { path: PathBuf },
    #[error("{} needs more than {MAX_COMPANIONS} libraries beside itself", path.display())]
    Companions { path: PathBuf },
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
            LoadError::NeedsProcess { .. } => "plugin-needs-process",
            LoadError::Table { .. } => "plugin-table",
            LoadError::Writable { .. } => "plugin-writable",
            LoadError::CompanionPinned { .. } => "plugin-companion-pinned",
            LoadError::Changed { .. } => "plugin-changed",
            LoadError::Companions { .. } => "plugin-companions",
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
            LoadError::NeedsProcess { .. } => "start coda-host again: the file was replaced during the start".into(),
            LoadError::Table { .. } => "ask the vendor to correct what coda_executor_entry returns".into(),
            LoadError::Writable { path, .. } => {
                format!("chown root:root {0} && chmod go-w {0}", path.display())
            }
            LoadError::CompanionPinned { pins, .. } => {
                format!("compare them with the vendor's figures, then set CODA_EXECUTOR_SHA256={pins}")
            }
            LoadError::Changed { .. } => "restart coda-host, or run coda-host reload, to load the new one".into(),
            LoadError::Companions { .. } => "ask the vendor to link them statically".into(),
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

/// A file that may be opened: checked, and copied where no one else writes.
#[derive(Debug, Clone)]
pub struct PreparedLibrary {
    pub descriptor: Descriptor,
    /// Where the operator keeps it.
    pub path: PathBuf,
    /// What is to be opened.
    pub opened: PathBuf,
    /// The very file: what was checked is what is opened.
    pub file: OpenLibrary,
    /// Libraries beside the plugin that it needs, in place.
    pub companions: Vec<HashedFile>,
    pub entry: String,
    pub source: FactorySource,
    /// Of the file's content.
    pub sha256: String,
}

/// An open library file.
#[derive(Debug, Clone)]
pub struct OpenLibrary(pub Arc<File>);

impl PartialEq for OpenLibrary {
    fn eq(&self, other: &OpenLibrary) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A file, and the content that it had when it was checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedFile {
    pub path: PathBuf,
    pub sha256: String,
}

/// Checks the library's file and makes the copy. Nothing of it has run then.
///
/// # Errors
/// When the file is not a plugin, others may write to it or in a folder on its way, it is not the pinned one, it can't be
/// copied, or it must not be opened in this process while it is not `isolated`.
pub fn prepare(
    located: &LocatedLibrary,
    state_dir: &Path,
    isolated: bool,
) -> Result<PreparedLibrary, LoadError> {
    let path = &located.path;
    let trust = Trust::of_this_process(located.pinned.is_some());
    let file = open(path, trust)?;
    let inspection = elf::inspect_file(path, &file)?;
    let own = || path.clone();
    if !inspection.descriptor.unwinds && !isolated {
        return Err(LoadError::PanicAborts { path: own() });
    }
    let known = &inspection.descriptor.entries;
    if !known.contains(&located.entry) {
        let (entry, known) = (located.entry.clone(), known.clone());
        return Err(LoadError::NoEntry { path: own(), entry, known });
    }
    let in_place = !inspection.links.beside.is_empty();
    let (opened, file, sha256) = if in_place {
        tracing::warn!(
            plugin = %path.display(),
            "the plugin looks for libraries beside itself, so it is opened in place: replace it by 'mv', \
             never by 'cp' over the running one"
        );
        let sha256 = copy_and_hash(&file, &mut std::io::sink()).map_err(|e| unreadable(path, e))?;
        (own(), file, sha256)
    } else {
        private_copy(path, &file, state_dir)?
    };
    let mut pins = located.pinned.iter().flat_map(|pins| pins.split(','));
    if let Some(pinned) = pins.next().filter(|p| !p.eq_ignore_ascii_case(&sha256)) {
        return Err(LoadError::Pinned { path: own(), pinned: pinned.into(), found: sha256 });
    }
    let companions = if in_place { companions(path, &inspection.links, trust)? } else { Vec::new() };
    if located.pinned.is_some() {
        let pinned: Vec<&str> = pins.collect();
        let other = companions.iter().find(|c| !pinned.iter().any(|p| p.eq_ignore_ascii_case(&c.sha256)));
        if let Some(HashedFile { path: companion, sha256: found }) = other.cloned() {
            let all = std::iter::once(&sha256).chain(companions.iter().map(|c| &c.sha256));
            let pins = all.cloned().collect::<Vec<_>>().join(",");
            return Err(LoadError::CompanionPinned { path: own(), companion, found, pins });
        }
    }
    Ok(PreparedLibrary {
        descriptor: inspection.descriptor,
        path: own(),
        opened,
        file: OpenLibrary(Arc::new(file)),
        companions,
        entry: located.entry.clone(),
        source: located.source.clone(),
        sha256,
    })
}

/// Opens a library's file; as root, or under a pin, only one that others can't exchange.
fn open(path: &Path, trust: Trust) -> Result<File, LoadError> {
    let file = trust::open(path, trust).map_err(|refusal| match refusal {
        OpenRefusal::Writable { path, why } => LoadError::Writable { path, why },
        OpenRefusal::Unreadable(source) => unreadable(path, source),
    })?;
    elf::check_size(path, &file)?;
    Ok(file)
}

fn unreadable(path: &Path, source: io::Error) -> LoadError {
    ElfError::Read { path: path.to_path_buf(), source }.into()
}

/// The libraries that a plugin finds beside itself, and those that these find.
fn companions(path: &Path, links: &Links, trust: Trust) -> Result<Vec<HashedFile>, LoadError> {
    let mut found: Vec<HashedFile> = Vec::new();
    let mut waiting = links.companions(path);
    while let Some(companion) = waiting.pop() {
        // Under its real name: links with other names lead to the same file.
        let real = companion.canonicalize().map_err(|e| unreadable(&companion, e))?;
        if found.iter().any(|known| known.path == real) {
            continue;
        }
        if found.len() == MAX_COMPANIONS {
            return Err(LoadError::Companions { path: path.to_path_buf() });
        }
        let file = open(&companion, trust)?;
        let sha256 = copy_and_hash(&file, &mut std::io::sink()).map_err(|e| unreadable(&companion, e))?;
        let own = elf::links(&companion, &file)?;
        // Also what it needs from the folders of the plugin, which the loader may search for it.
        let inherited = Links { needed: own.needed.clone(), beside: links.beside.clone() };
        waiting.extend(own.companions(&companion));
        waiting.extend(inherited.companions(path));
        found.push(HashedFile { path: real, sha256 });
    }
    Ok(found)
}

/// Makes sure that files which are opened in place are still the checked ones.
///
/// # Errors
/// When one of them is another by now, or can't be read.
pub fn unchanged(files: &[HashedFile]) -> Result<(), LoadError> {
    for HashedFile { path, sha256 } in files {
        let file = open(path, Trust::of_this_process(false))?;
        let found = copy_and_hash(&file, &mut std::io::sink()).map_err(|e| unreadable(path, e))?;
        if found != *sha256 {
            return Err(LoadError::Changed { path: path.clone() });
        }
    }
    Ok(())
}

impl PreparedLibrary {
    /// Opens the library in this process. Its constructors run on the calling thread.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn open(&self) -> Result<Library, LoadError> {
        // From here on the plugin can end this process, beginning with the library's constructors.
        if let Err(error) = sys::guard_exit() {
            tracing::warn!(%error, "an exit of the plugin may pass for an orderly end of the host");
        }
        if self.is_in_place() {
            unchanged(&self.in_place_files())?;
            return Library::open(&self.opened, self.descriptor.binding, self.descriptor.api_minor)
                .map_err(|e| self.refused(e));
        }
        // The descriptor stays open with the library: the loader takes a path that it has seen for the library it knows.
        let file: &'static File = Box::leak(Box::new(self.file.0.clone()));
        let place = descriptor_path(file);
        let opened = Library::open(&place, self.descriptor.binding, self.descriptor.api_minor);
        opened.map_err(|e| self.refused(e.of_file(&place, &self.opened)))
    }

    /// Whether it is opened where the operator keeps it.
    pub fn is_in_place(&self) -> bool {
        self.opened == self.path
    }

    /// The files that are opened where the operator keeps them.
    pub fn in_place_files(&self) -> Vec<HashedFile> {
        if !self.is_in_place() {
            return Vec::new();
        }
        let own = HashedFile { path: self.path.clone(), sha256: self.sha256.clone() };
        std::iter::once(own).chain(self.companions.iter().cloned()).collect()
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
pub fn load(located: &LocatedLibrary, state_dir: &Path) -> Result<Loaded, LoadError> {
    let prepared = prepare(located, state_dir, false)?;
    Ok(Loaded { library: prepared.open()?, descriptor: prepared.descriptor })
}

/// The path by which this process finds an open file, and a debugger of it where the number of this process is the one
/// that /proc knows it by.
pub fn descriptor_path(file: &impl AsRawFd) -> PathBuf {
    let number = file.as_raw_fd();
    let own = PathBuf::from(format!("/proc/self/fd/{number}"));
    let for_debuggers = PathBuf::from(format!("/proc/{}/fd/{number}", std::process::id()));
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let same = identity(&own).is_some() && identity(&own) == identity(&for_debuggers);
    if same { for_debuggers } else { own }
}

/// Refuses, for root, a file that another user could replace with one of their own.
///
/// # Errors
/// When others may change the file, or a folder on the way to it.
pub fn trusted(path: &Path) -> Result<(), LoadError> {
    match trust::open(path, Trust::of_this_process(false)) {
        Err(OpenRefusal::Writable { path, why }) => Err(LoadError::Writable { path, why }),
        // A file that can't be read is refused where it is read.
        Ok(_) | Err(OpenRefusal::Unreadable(_)) => Ok(()),
    }
}

/// Mode of the private copy. Its directory keeps others out; a plugin's process is handed the open file.
const COPY_MODE: u32 = 0o555;

/// Copies the library where no other user writes; returns the copy's path, the copy, and its hash.
fn private_copy(path: &Path, file: &File, state_dir: &Path) -> Result<(PathBuf, File, String), LoadError> {
    let dir = state_dir.join("plugins");
    let failed = |source| LoadError::Copy { path: dir.clone(), source };
    fs::create_dir_all(&dir).map_err(failed)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    let mount = rustix::fs::statvfs(&dir).map_err(|e| failed(e.into()))?;
    if mount.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        // A file system that runs nothing: the copy is in memory.
        let copy =
            File::from(memfd_create("coda-plugin", MemfdFlags::CLOEXEC).map_err(|e| failed(e.into()))?);
        let sha256 = copy_and_hash(file, &mut &copy).map_err(failed)?;
        elf::inspect_file(path, &copy)?;
        return Ok((path.to_path_buf(), copy, sha256));
    }
    let mut copy = tempfile::Builder::new().tempfile_in(&dir).map_err(failed)?;
    let sha256 = copy_and_hash(file, &mut copy).map_err(failed)?;
    copy.as_file().sync_all().map_err(failed)?;
    copy.as_file().set_permissions(fs::Permissions::from_mode(COPY_MODE)).map_err(failed)?;
    // Read-only: nothing can be executed that is open for writing somewhere.
    let opened = File::open(copy.path()).map_err(failed)?;
    elf::inspect_file(path, &opened)?;
    let target = dir.join(format!("{sha256}.so"));
    // In the place of a copy from an earlier start, whatever has become of that.
    copy.persist(&target).map_err(|e| failed(e.error))?;
    Ok((target, opened, sha256))
}

/// The SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// When the file can't be read.
pub fn sha256(path: &Path, file: &File) -> Result<String, LoadError> {
    copy_and_hash(file, &mut std::io::sink()).map_err(|e| unreadable(path, e))
}

/// Copies a file from its start, and hashes what is copied.
fn copy_and_hash(file: &File, to: &mut impl Write) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match file.read_at(&mut buffer, at)? {
            0 => return Ok(hex::encode(hash.finalize())),
            n => {
                hash.update(&buffer[..n]);
                to.write_all(&buffer[..n])?;
                at += n as u64;
            }
        }
    }
}
