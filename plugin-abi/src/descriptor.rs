//! Facts about a plugin that can be read from its file without loading it.
//!
//! Plain C data in the ELF section [`SECTION`]: the host compares versions before any code of the plugin
//! runs, and `coda-host plugin inspect` shows it. Little-endian, fixed size; fields are only ever appended
//! and `size` says how many bytes there are. A reserved byte that gets a meaning has it from that minor version on.

use crate::version;

/// Name of the ELF section.
pub const SECTION: &str = ".coda_executor";
pub const MAGIC: [u8; 8] = *b"CODAEXEC";

/// Which of the two interfaces the library exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    Rust,
    C,
}

impl Binding {
    pub const fn code(self) -> u8 {
        match self {
            Binding::Rust => 1,
            Binding::C => 2,
        }
    }
}

/// What stands behind the executor. Only `Hardware` may be picked without being asked for by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Hardware,
    Simulator,
    Test,
}

impl Kind {
    pub const fn code(self) -> u8 {
        match self {
            Kind::Hardware => 1,
            Kind::Simulator => 2,
            Kind::Test => 3,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Hardware => "hardware",
            Kind::Simulator => "simulator",
            Kind::Test => "test",
        }
    }
}

/// Where the plugin may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// Where the operator wants it: in the host's process, or in a separate one.
    Configured,
    /// Only in a separate process, whatever the operator has set: for plugins on libraries that crash, start helper
    /// processes or block in a cancel.
    Required,
}

impl Isolation {
    pub const fn code(self) -> u8 {
        match self {
            Isolation::Configured => 0,
            Isolation::Required => 1,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Isolation::Configured => "configured",
            Isolation::Required => "required",
        }
    }
}

/// The minor version that gave one of the reserved bytes to [`Isolation`].
const ISOLATION_SINCE: u16 = 2;

/// The section's content. Text fields are UTF-8, padded with NUL.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawDescriptor {
    pub magic: [u8; 8],
    pub size: u32,
    pub api_major: u16,
    pub api_minor: u16,
    pub binding: u8,
    pub kind: u8,
    /// 1 when a panic unwinds (always 1 for C), 0 when it aborts.
    pub unwinds: u8,
    /// Since 1.2: see [`Isolation`].
    pub isolation: u8,
    pub reserved: [u8; 4],
    pub vendor: [u8; 64],
    pub name: [u8; 64],
    pub version: [u8; 32],
    pub rustc: [u8; 80],
    pub target: [u8; 48],
    /// Names of the factories, separated by commas.
    pub entries: [u8; 256],
}

impl RawDescriptor {
    /// The descriptor of a Rust plugin, for [`crate::export_executor!`].
    pub const fn for_rust(kind: Kind, vendor: &str, name: &str, version: &str, entries: &str) -> Self {
        RawDescriptor {
            magic: MAGIC,
            size: size_of::<RawDescriptor>() as u32,
            api_major: version::MAJOR,
            api_minor: version::MINOR,
            binding: Binding::Rust.code(),
            kind: kind.code(),
            unwinds: version::UNWINDS as u8,
            isolation: Isolation::Configured.code(),
            reserved: [0; 4],
            vendor: padded(vendor),
            name: padded(name),
            version: padded(version),
            rustc: padded(version::RUSTC),
            target: padded(version::TARGET),
            entries: padded(entries),
        }
    }

    /// The same with another statement of where the plugin may run.
    #[must_use]
    pub const fn with_isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation.code();
        self
    }
}

/// `text` in `N` bytes; fails to compile in a constant when it is too long.
const fn padded<const N: usize>(text: &str) -> [u8; N] {
    let bytes = text.as_bytes();
    assert!(bytes.len() <= N, "a text of the plugin's descriptor is too long");
    let mut out = [0; N];
    let mut i = 0;
    while i < bytes.len() {
        out[i] = bytes[i];
        i += 1;
    }
    out
}

/// A descriptor as read from a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    pub api_major: u16,
    pub api_minor: u16,
    pub binding: Binding,
    pub kind: Kind,
    pub unwinds: bool,
    pub isolation: Isolation,
    pub vendor: String,
    pub name: String,
    pub version: String,
    pub rustc: String,
    pub target: String,
    pub entries: Vec<String>,
}

/// Why a section's content is not a descriptor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DescriptorError {
    #[error("the {SECTION} section holds {0} bytes, a descriptor has at least {1}")]
    Short(usize, usize),
    #[error("the {SECTION} section does not start with the descriptor's magic bytes")]
    Magic,
    #[error("the descriptor's {0} is {1}, which this version does not know")]
    Unknown(&'static str, u8),
}

impl Descriptor {
    /// Reads the content of [`SECTION`].
    ///
    /// # Errors
    /// When the bytes are too few, not a descriptor, or hold an unknown binding, kind or isolation. The interface version
    /// is read before these, so use [`Descriptor::api_version`] first to explain a plugin of another major.
    pub fn parse(bytes: &[u8]) -> Result<Descriptor, DescriptorError> {
        let need = size_of::<RawDescriptor>();
        let (api_major, api_minor) = Descriptor::api_version(bytes)?;
        if bytes.len() < need {
            return Err(DescriptorError::Short(bytes.len(), need));
        }
        let binding = match bytes[16] {
            1 => Binding::Rust,
            2 => Binding::C,
            other => return Err(DescriptorError::Unknown("binding", other)),
        };
        let kind = match bytes[17] {
            1 => Kind::Hardware,
            2 => Kind::Simulator,
            3 => Kind::Test,
            other => return Err(DescriptorError::Unknown("kind", other)),
        };
        // Before, the byte was reserved, and no one looked at what is in it.
        let isolation = match bytes[19] {
            _ if api_minor < ISOLATION_SINCE => Isolation::Configured,
            0 => Isolation::Configured,
            1 => Isolation::Required,
            other => return Err(DescriptorError::Unknown("isolation", other)),
        };
        let mut rest = &bytes[24..];
        let mut text = |len: usize| {
            let (field, tail) = rest.split_at(len);
            rest = tail;
            let end = field.iter().position(|b| *b == 0).unwrap_or(len);
            String::from_utf8_lossy(&field[..end]).into_owned()
        };
        let (vendor, name, version, rustc, target, entries) =
            (text(64), text(64), text(32), text(80), text(48), text(256));
        Ok(Descriptor {
            api_major,
            api_minor,
            binding,
            kind,
            unwinds: bytes[18] == 1,
            isolation,
            vendor,
            name,
            version,
            rustc,
            target,
            entries: entries.split(',').filter(|e| !e.is_empty()).map(String::from).collect(),
        })
    }

    /// The interface version alone, whose place never changes.
    ///
    /// # Errors
    /// When the bytes are too few or don't start with the magic.
    pub fn api_version(bytes: &[u8]) -> Result<(u16, u16), DescriptorError> {
        if bytes.len() < 16 {
            return Err(DescriptorError::Short(bytes.len(), size_of::<RawDescriptor>()));
        }
        if bytes[..8] != MAGIC {
            return Err(DescriptorError::Magic);
        }
        Ok((u16::from_le_bytes([bytes[12], bytes[13]]), u16::from_le_bytes([bytes[14], bytes[15]])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(d: &RawDescriptor) -> Vec<u8> {
        let p: *const RawDescriptor = d;
        // SAFETY: plain bytes without padding (checked by the offsets used in `parse`), read for its size.
        unsafe { std::slice::from_raw_parts(p.cast::<u8>(), size_of::<RawDescriptor>()) }.to_vec()
    }

    #[test]
    fn what_is_written_is_read() {
        let raw = RawDescriptor::for_rust(Kind::Simulator, "Coda", "sim", "1.2.3", "create_executor,other");
        let d = Descriptor::parse(&bytes(&raw)).unwrap();
        assert_eq!((d.api_major, d.api_minor), (version::MAJOR, version::MINOR));
        assert_eq!((d.binding, d.kind, d.unwinds), (Binding::Rust, Kind::Simulator, true));
        assert_eq!((d.vendor.as_str(), d.name.as_str(), d.version.as_str()), ("Coda", "sim", "1.2.3"));
        assert_eq!(d.isolation, Isolation::Configured);
        assert_eq!(d.entries, ["create_executor", "other"]);
        assert_eq!((d.rustc.as_str(), d.target.as_str()), (version::RUSTC, version::TARGET));
        assert!(!d.rustc.is_empty() && !d.target.is_empty());
    }

    #[test]
    fn a_byte_that_former_versions_reserved_is_read_of_later_ones_alone() {
        let raw = RawDescriptor::for_rust(Kind::Test, "v", "n", "1", "e");
        let mut own = bytes(&raw.with_isolation(Isolation::Required));
        assert_eq!(Descriptor::parse(&own).unwrap().isolation, Isolation::Required);
        own[19] = 2;
        assert_eq!(Descriptor::parse(&own), Err(DescriptorError::Unknown("isolation", 2)));
        // The minor version: whatever such a plugin has there means nothing.
        for minor in [0, 1] {
            own[14] = minor;
            for byte in [0, 1, 2, 255] {
                own[19] = byte;
                assert_eq!(
                    Descriptor::parse(&own).unwrap().isolation,
                    Isolation::Configured,
                    "1.{minor} {byte}"
                );
            }
        }
    }

    #[test]
    fn damaged_sections_are_named() {
        let good = bytes(&RawDescriptor::for_rust(Kind::Hardware, "v", "n", "1", "e"));
        assert!(matches!(Descriptor::parse(&good[..40]), Err(DescriptorError::Short(40, _))));
        assert!(matches!(Descriptor::parse(&[]), Err(DescriptorError::Short(0, _))));
        let mut other = good.clone();
        other[0] = b'X';
        assert_eq!(Descriptor::parse(&other), Err(DescriptorError::Magic));
        let mut other = good.clone();
        other[17] = 9;
        assert_eq!(Descriptor::parse(&other), Err(DescriptorError::Unknown("kind", 9)));
        let mut longer = good;
        longer.extend([7; 100]);
        assert!(Descriptor::parse(&longer).is_ok(), "a later version may append fields");
    }
}
