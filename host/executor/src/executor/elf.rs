//! What a library file says of itself, read without loading it.
//!
//! Opening a file that isn't what it seems is worse than refusing it: a truncated library is a SIGBUS, and
//! for another machine's the loader says "No such file". So headers are checked here first.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use coda_plugin_abi::descriptor::{self, Descriptor, DescriptorError};
use coda_plugin_abi::version::{self, Verdict};
use object::elf::{
    DT_NEEDED, DT_RPATH, DT_RUNPATH, EM_AARCH64, EM_X86_64, ET_DYN, FileHeader64, SHT_DYNAMIC,
};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, FileKind, ReadCache, ReadRef};

use crate::error::{Explain, exit};

/// Larger libraries are refused: no control stack ships one.
const MAX_BYTES: u64 = 1 << 30;
// Budgets for what is read of a file, far above those of any library: a file that claims more is refused, so that none
// takes more than a few megabytes of memory, whatever its headers say.
const MAX_SEGMENTS: u16 = 1024;
const MAX_SECTIONS: u16 = 8192;
const MAX_DESCRIPTOR: u64 = 64 << 10;
const MAX_DYNAMIC: u64 = 1 << 20;
const MAX_NEEDED: usize = 256;
const MAX_FOLDERS: usize = 32;

/// A plugin file's facts.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub descriptor: Descriptor,
    pub links: Links,
    /// Length of the file.
    pub bytes: u64,
}

/// What a library needs of others.
#[derive(Debug, Clone, Default)]
pub struct Links {
    /// Libraries it needs, by name.
    pub needed: Vec<String>,
    /// Folders to look in that depend on where the library lies, as they are written: a copy elsewhere would not find what
    /// is there.
    pub beside: Vec<String>,
}

impl Links {
    /// The files that it finds beside itself when it lies at `path`.
    pub fn companions(&self, path: &Path) -> Vec<PathBuf> {
        let origin = path.parent().unwrap_or(Path::new("")).display().to_string();
        let places = self.beside.iter().flat_map(|folder| {
            let folder = folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
            self.needed.iter().map(move |name| Path::new(&folder).join(name))
        });
        places.filter(|p| p.is_file()).collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ElfError {
    #[error("the plugin {} can't be read", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} is {what}, not a plugin library", path.display())]
    NotALibrary { path: PathBuf, what: &'static str },
    #[error("{} is cut off: its headers describe {need} bytes, the file has {have}", path.display())]
    Truncated { path: PathBuf, need: u64, have: u64 },
    #[error("{} is built for {found}, this machine is {ours}", path.display())]
    OtherMachine { path: PathBuf, found: String, ours: &'static str },
    #[error("{} is a damaged library: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    #[error("{} is a shared library, but not a coda-host plugin: it has no {} section", path.display(), descriptor::SECTION)]
    NoDescriptor { path: PathBuf },
    #[error("{}: {source}", path.display())]
    Descriptor { path: PathBuf, source: DescriptorError },
    #[error("{} was built for plugin interface {major}.{minor}, this coda-host offers {}.{}",
            path.display(), version::MAJOR, version::MINOR)]
    Interface { path: PathBuf, major: u16, minor: u16, verdict: Verdict },
}

impl Explain for ElfError {
    fn code(&self) -> &'static str {
        match self {
            ElfError::Read { .. } => "plugin-unreadable",
            ElfError::NotALibrary { .. } => "plugin-not-a-library",
            ElfError::Truncated { .. } | ElfError::Damaged { .. } => "plugin-damaged",
            ElfError::OtherMachine { .. } => "plugin-other-machine",
            ElfError::NoDescriptor { .. } | ElfError::Descriptor { .. } => "plugin-no-descriptor",
            ElfError::Interface { .. } => "plugin-interface",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            ElfError::Read { .. } => "check the path and its permissions".into(),
            ElfError::NotALibrary { .. } => "set executor_factory to the vendor's .so file".into(),
            ElfError::Truncated { .. } | ElfError::Damaged { .. } => {
                "copy the library again (install new versions by 'mv', not by 'cp' over the old one)".into()
            }
            ElfError::OtherMachine { .. } => "ask the vendor for a build for this machine".into(),
            ElfError::NoDescriptor { .. } | ElfError::Descriptor { .. } => {
                "ask the vendor to build it with the coda-host SDK (export_executor! or coda_executor.h)"
                    .into()
            }
            ElfError::Interface { verdict: Verdict::NewerMinor, .. } => {
                "upgrade coda-host, or ask the vendor for a build against an older SDK".into()
            }
            ElfError::Interface { .. } => "ask the vendor to rebuild it with this version's SDK".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::PLUGIN
    }
}

/// Reads a plugin's descriptor and checks that the file is whole, for this machine and this interface.
///
/// # Errors
/// The first thing that speaks against loading it.
pub fn inspect(path: &Path) -> Result<Inspection, ElfError> {
    inspect_file(path, &open(path)?)
}

/// Opens a file that may be a library, without waiting for anyone.
///
/// # Errors
/// When it can't be opened, or is not a file of a size that a library has.
pub fn open(path: &Path) -> Result<File, ElfError> {
    let failed = |source| ElfError::Read { path: path.to_path_buf(), source };
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(failed)?;
    check_size(path, &file)?;
    Ok(file)
}

/// Refuses what is not a file of a size that a library has; returns its length.
///
/// # Errors
/// See above.
pub fn check_size(path: &Path, file: &File) -> Result<u64, ElfError> {
    let not = |what| ElfError::NotALibrary { path: path.to_path_buf(), what };
    let meta = file.metadata().map_err(|source| ElfError::Read { path: path.to_path_buf(), source })?;
    match meta.len() {
        _ if meta.is_dir() => Err(not("a directory")),
        _ if !meta.is_file() => Err(not("a special file")),
        0 => Err(not("an empty file")),
        len if len > MAX_BYTES => Err(not("larger than 1 GiB")),
        len => Ok(len),
    }
}

/// As [`inspect`], of an open file.
///
/// # Errors
/// The first thing that speaks against loading it.
pub fn inspect_file(path: &Path, file: &File) -> Result<Inspection, ElfError> {
    let bytes = check_size(path, file)?;
    inspect_reader(path, file, bytes)
}

/// As [`inspect`], of anything that can be read.
///
/// # Errors
/// The first thing that speaks against loading it.
pub fn inspect_reader(path: &Path, reader: impl Read + Seek, bytes: u64) -> Result<Inspection, ElfError> {
    let cache = ReadCache::new(reader);
    let Parsed { descriptor, links } = parse(path, &cache, bytes)?;
    let own = || path.to_path_buf();
    let content = descriptor.ok_or_else(|| ElfError::NoDescriptor { path: own() })?;
    let wrong = |source| ElfError::Descriptor { path: own(), source };
    let (major, minor) = Descriptor::api_version(content).map_err(wrong)?;
    match version::compare(major, minor) {
        Verdict::Compatible => {}
        verdict => return Err(ElfError::Interface { path: own(), major, minor, verdict }),
    }
    let descriptor = Descriptor::parse(content).map_err(wrong)?;
    Ok(Inspection { descriptor, links, bytes })
}

/// What a library needs of others, plugin or not.
///
/// # Errors
/// When it is not a library for this machine.
pub fn links(path: &Path, file: &File) -> Result<Links, ElfError> {
    let bytes = check_size(path, file)?;
    Ok(parse(path, &ReadCache::new(file), bytes)?.links)
}

struct Parsed<'a> {
    descriptor: Option<&'a [u8]>,
    links: Links,
}

fn parse<'a, R: ReadRef<'a>>(path: &Path, data: R, have: u64) -> Result<Parsed<'a>, ElfError> {
    let own = || path.to_path_buf();
    let ours = std::env::consts::ARCH;
    let machine = |found: String| ElfError::OtherMachine { path: own(), found, ours };
    let start = data.read_bytes_at(0, have.min(16)).unwrap_or_default();
    match FileKind::parse(data) {
        Ok(FileKind::Elf64) => {}
        Ok(FileKind::Elf32) => return Err(machine("a 32-bit machine".into())),
        Ok(_) => return Err(ElfError::NotALibrary { path: own(), what: "a library for another system" }),
        Err(_) if start.starts_with(b"\x7fELF") => {
            return Err(ElfError::Damaged { path: own(), what: "its ELF header is incomplete".into() });
        }
        Err(_) => return Err(ElfError::NotALibrary { path: own(), what: "no ELF file" }),
    }
    let damaged = |e: object::Error| ElfError::Damaged { path: own(), what: e.to_string() };
    let beyond = |what: &str| ElfError::Damaged { path: own(), what: format!("its headers claim {what}") };
    let header = FileHeader64::<Endianness>::parse(data).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let found = header.e_machine(endian);
    let expected = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
    if endian != Endianness::Little {
        return Err(machine("a big-endian machine".into()));
    }
    if found != expected {
        return Err(machine(match found {
            EM_X86_64 => "x86_64".into(),
            EM_AARCH64 => "aarch64".into(),
            other => format!("ELF machine {}", other.0),
        }));
    }
    if header.e_type(endian) != ET_DYN {
        return Err(ElfError::NotALibrary { path: own(), what: "a program or object file" });
    }
    // Numbers beyond these limits stand for others that are kept elsewhere in the file, and are limited as little.
    if header.e_phnum(endian) > MAX_SEGMENTS {
        return Err(beyond("more segments than a library has"));
    }
    let no_sections = header.e_shoff(endian) == 0;
    if header.e_shnum(endian) > MAX_SECTIONS || (header.e_shnum(endian) == 0 && !no_sections) {
        return Err(beyond("more sections than a library has"));
    }
    // What the loader would map, and where the section table would end.
    let table = header.e_shoff(endian).saturating_add(
        u64::from(header.e_shentsize(endian)).saturating_mul(u64::from(header.e_shnum(endian))),
    );
    let segments = header.program_headers(endian, data).map_err(damaged)?;
    let end =
        segments.iter().map(|s| s.p_offset(endian).saturating_add(s.p_filesz(endian))).max().unwrap_or(0);
    let need = table.max(end);
    if need > have {
        return Err(ElfError::Truncated { path: own(), need, have });
    }
    let sections = header.sections(endian, data).map_err(damaged)?;
    let descriptor = match sections.section_by_name(endian, descriptor::SECTION.as_bytes()) {
        Some((_, section)) if section.sh_size(endian) > MAX_DESCRIPTOR => {
            return Err(beyond("a descriptor of more than 64 KiB"));
        }
        Some((_, section)) => Some(section.data(endian, data).map_err(damaged)?),
        None => None,
    };
    if sections.iter().any(|s| s.sh_type(endian) == SHT_DYNAMIC && s.sh_size(endian) > MAX_DYNAMIC) {
        return Err(beyond("a dynamic section of more than 1 MiB"));
    }
    let mut links = Links::default();
    if let Some((entries, link)) = sections.dynamic(endian, data).map_err(damaged)? {
        let strings = sections.strings(endian, data, link).map_err(damaged)?;
        for entry in entries {
            let tag = entry.tag(endian);
            let text = || match entry.string(endian, strings) {
                Ok(bytes) => Ok(String::from_utf8_lossy(bytes)),
                // What can't be read can't be judged, and the loader may well read it.
                Err(_) => Err(beyond("a dependency whose name can't be read")),
            };
            if tag == DT_NEEDED {
                links.needed.push(text()?.into_owned());
            } else if tag == DT_RUNPATH || tag == DT_RPATH {
                let text = text()?;
                let of_origin = text.split(':').filter(|folder| folder.contains("ORIGIN"));
                links.beside.extend(of_origin.take(MAX_FOLDERS + 1).map(String::from));
            }
            if links.needed.len() > MAX_NEEDED || links.beside.len() > MAX_FOLDERS {
                return Err(beyond("more dependencies than a library has"));
            }
        }
    }
    Ok(Parsed { descriptor, links })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(content: &[u8]) -> ElfError {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), content).unwrap();
        inspect(file.path()).unwrap_err()
    }

    #[test]
    fn what_is_no_library_is_named() {
        assert!(matches!(inspect(Path::new("/nowhere/lib.so")), Err(ElfError::Read { .. })));
        let dir = tempfile::tempdir().unwrap();
        let e = inspect(dir.path()).unwrap_err();
        assert!(e.to_string().ends_with("is a directory, not a plugin library"), "{e}");
        assert!(refused(b"").to_string().contains("an empty file"));
        assert!(refused(b"hello, I am text\n").to_string().contains("no ELF file"));
        assert!(matches!(refused(b"\x7fELF\x02\x01"), ElfError::Damaged { .. }));
    }

    #[test]
    fn this_test_binary_is_no_plugin_and_its_parts_are_noticed() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let whole = refused(&own);
        assert!(matches!(whole, ElfError::NoDescriptor { .. }), "{whole}");
        let half = refused(&own[..own.len() / 2]);
        assert!(matches!(half, ElfError::Truncated { .. }), "{half}");
        let mut other = own.clone();
        other[18] = 0xb7 ^ if cfg!(target_arch = "aarch64") { 0xb7 ^ 0x3e } else { 0 };
        other[19] = 0;
        let e = refused(&other);
        assert!(matches!(e, ElfError::OtherMachine { .. }), "{e}");
        let mut small = own;
        small[4] = 1;
        assert!(matches!(refused(&small), ElfError::OtherMachine { .. } | ElfError::Damaged { .. }));
    }
}
