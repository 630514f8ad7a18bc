//! What a library file says of itself, read without loading it.
//!
//! Opening a file that isn't what it seems is worse than refusing it: a truncated library is a SIGBUS, and
//! for another machine's the loader says "No such file". So headers are checked here first.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use coda_plugin_abi::descriptor::{self, Descriptor, DescriptorError};
use coda_plugin_abi::version::{self, Verdict};
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, EM_AARCH64, EM_X86_64, ET_DYN, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _};
use object::{Endianness, FileKind};

use crate::error::{Explain, exit};

/// Larger libraries are refused: no control stack ships one, and it is read into memory.
const MAX_BYTES: u64 = 1 << 30;

/// A plugin file's facts.
#[derive(Debug, Clone)]
pub struct Inspection {
    pub descriptor: Descriptor,
    /// Libraries it needs.
    pub needed: Vec<String>,
    /// Whether it looks for libraries beside itself, so that a copy elsewhere would not find them.
    pub uses_origin: bool,
    /// Those of them that it finds there.
    pub companions: Vec<PathBuf>,
    /// The file's bytes, for hashing and copying.
    pub bytes: Vec<u8>,
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
    let bytes = read(path)?;
    let own = || path.to_path_buf();
    let section = parse(path, &bytes)?;
    let Some(content) = section.descriptor else {
        return Err(ElfError::NoDescriptor { path: own() });
    };
    let wrong = |source| ElfError::Descriptor { path: own(), source };
    let (major, minor) = Descriptor::api_version(content).map_err(wrong)?;
    match version::compare(major, minor) {
        Verdict::Compatible => {}
        verdict => return Err(ElfError::Interface { path: own(), major, minor, verdict }),
    }
    let descriptor = Descriptor::parse(content).map_err(wrong)?;
    let (needed, folders) = (section.needed, section.beside);
    let uses_origin = !folders.is_empty();
    let origin = path.parent().unwrap_or(Path::new("")).display().to_string();
    let places = folders.iter().flat_map(|folder| {
        let folder = folder.replace("${ORIGIN}", &origin).replace("$ORIGIN", &origin);
        needed.iter().map(move |name| Path::new(&folder).join(name))
    });
    let companions = places.filter(|p| p.is_file()).collect();
    Ok(Inspection { descriptor, needed, uses_origin, companions, bytes })
}

fn read(path: &Path) -> Result<Vec<u8>, ElfError> {
    let failed = |source| ElfError::Read { path: path.to_path_buf(), source };
    let not = |what| ElfError::NotALibrary { path: path.to_path_buf(), what };
    let meta = std::fs::metadata(path).map_err(failed)?;
    if meta.is_dir() {
        return Err(not("a directory"));
    }
    if !meta.is_file() {
        return Err(not("a special file"));
    }
    if meta.len() > MAX_BYTES {
        return Err(not("larger than 1 GiB"));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(MAX_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.is_empty() {
        return Err(not("an empty file"));
    }
    Ok(bytes)
}

struct Parsed<'a> {
    descriptor: Option<&'a [u8]>,
    needed: Vec<String>,
    /// Folders to look in that depend on where the library lies.
    beside: Vec<String>,
}

fn parse<'a>(path: &Path, bytes: &'a [u8]) -> Result<Parsed<'a>, ElfError> {
    let own = || path.to_path_buf();
    let machine = |found: String| ElfError::OtherMachine { path: own(), found, ours: std::env::consts::ARCH };
    match FileKind::parse(bytes) {
        Ok(FileKind::Elf64) => {}
        Ok(FileKind::Elf32) => return Err(machine("a 32-bit machine".into())),
        Ok(_) => return Err(ElfError::NotALibrary { path: own(), what: "a library for another system" }),
        Err(_) if bytes.starts_with(b"\x7fELF") => {
            return Err(ElfError::Damaged { path: own(), what: "its ELF header is incomplete".into() });
        }
        Err(_) => return Err(ElfError::NotALibrary { path: own(), what: "no ELF file" }),
    }
    let damaged = |e: object::Error| ElfError::Damaged { path: own(), what: e.to_string() };
    let header = FileHeader64::<Endianness>::parse(bytes).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    let found = header.e_machine(endian);
    let ours = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };
    if endian != Endianness::Little {
        return Err(machine("a big-endian machine".into()));
    }
    if found != ours {
        return Err(machine(match found {
            EM_X86_64 => "x86_64".into(),
            EM_AARCH64 => "aarch64".into(),
            other => format!("ELF machine {}", other.0),
        }));
    }
    if header.e_type(endian) != ET_DYN {
        return Err(ElfError::NotALibrary { path: own(), what: "a program or object file" });
    }
    // What the loader would map, and where the section table would end.
    let have = bytes.len() as u64;
    let table = header.e_shoff(endian).saturating_add(
        u64::from(header.e_shentsize(endian)).saturating_mul(u64::from(header.e_shnum(endian))),
    );
    let segments = header.program_headers(endian, bytes).map_err(damaged)?;
    let end =
        segments.iter().map(|s| s.p_offset(endian).saturating_add(s.p_filesz(endian))).max().unwrap_or(0);
    let need = table.max(end);
    if need > have {
        return Err(ElfError::Truncated { path: own(), need, have });
    }
    let sections = header.sections(endian, bytes).map_err(damaged)?;
    let descriptor = match sections.section_by_name(endian, descriptor::SECTION.as_bytes()) {
        Some((_, section)) => Some(section.data(endian, bytes).map_err(damaged)?),
        None => None,
    };
    let (mut needed, mut beside) = (Vec::new(), Vec::new());
    if let Some((entries, link)) = sections.dynamic(endian, bytes).map_err(damaged)? {
        let strings = sections.strings(endian, bytes, link).map_err(damaged)?;
        for entry in entries {
            let tag = entry.tag(endian);
            let text = || entry.string(endian, strings).map(String::from_utf8_lossy).unwrap_or_default();
            if tag == DT_NEEDED {
                needed.push(text().into_owned());
            } else if tag == DT_RUNPATH || tag == DT_RPATH {
                beside.extend(text().split(':').filter(|f| f.contains("ORIGIN")).map(String::from));
            }
        }
    }
    Ok(Parsed { descriptor, needed, beside })
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
