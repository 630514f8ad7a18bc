//! The machine's fingerprint, by which the cloud knows a node again: `<host name>-<MAC as a decimal number>`.
//!
//! A given or persisted one goes before this. Of several network interfaces the choice doesn't wander when a
//! tunnel or bridge is added: physical ones first, then those whose address the maker gave, then by name. A
//! machine without any gets a random number, stored before it is first sent.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rand::Rng as _;

use crate::error::{Explain, exit};
use crate::state::files::{self, FileError};

pub const FILE: &str = "coda-host.fingerprint";

const NET: &str = "/sys/class/net";
const HOST_NAME: &str = "/proc/sys/kernel/hostname";
/// The value of `type` in /sys/class/net for Ethernet and similar interfaces.
const ETHERNET: &str = "1";

#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    #[error("this machine's name could not be read from {HOST_NAME}")]
    HostName(#[source] io::Error),
    #[error("the machine's fingerprint could not be stored")]
    File(#[from] FileError),
    #[error("{} doesn't hold a fingerprint", .0.display())]
    Damaged(PathBuf),
}

impl Explain for FingerprintError {
    fn code(&self) -> &'static str {
        "fingerprint"
    }

    fn hint(&self) -> Option<String> {
        match self {
            FingerprintError::HostName(_) => Some("set CODA_NODE_MACHINE_FINGERPRINT".into()),
            FingerprintError::File(e) => e.hint(),
            FingerprintError::Damaged(path) => Some(format!("remove it: rm {}", path.display())),
        }
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// The fingerprint of this machine; `dir` keeps the random number, should one be needed.
pub fn of_this_machine(dir: &Path) -> Result<String, FingerprintError> {
    let name = fs::read_to_string(HOST_NAME).map_err(FingerprintError::HostName)?;
    resolve(name.trim(), Path::new(NET), dir)
}

fn resolve(host: &str, net: &Path, dir: &Path) -> Result<String, FingerprintError> {
    let path = dir.join(FILE);
    // A stored one goes first: a machine that got a network card later stays the same machine.
    if let Some(stored) = files::read(&path, 1024)? {
        let text = String::from_utf8(stored).unwrap_or_default();
        let text = text.trim();
        if text.is_empty() || text.contains(char::is_control) {
            return Err(FingerprintError::Damaged(path));
        }
        return Ok(text.to_owned());
    }
    if let Some(mac) = preferred_mac(net) {
        return Ok(format!("{host}-{mac}"));
    }
    let number = rand::rng().random::<u64>() >> 16;
    let made = format!("{host}-{number}");
    files::ensure_dir(dir)?;
    files::write(&path, made.as_bytes())?;
    Ok(made)
}

/// An interface that can't be read is skipped, like one without an address.
fn preferred_mac(net: &Path) -> Option<u64> {
    let interfaces = fs::read_dir(net).ok()?.filter_map(Result::ok);
    let candidates = interfaces.filter_map(|entry| {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).ok();
        if read("type")?.trim() != ETHERNET {
            return None;
        }
        let mac = parse_mac(read("address")?.trim())?;
        let first = mac >> 40;
        let (multicast, local) = (first & 1 == 1, first & 2 == 2);
        let made_up = !entry.path().join("device").exists();
        (mac != 0 && !multicast).then(|| ((made_up, local, entry.file_name()), mac))
    });
    candidates.min().map(|(_, mac)| mac)
}

fn parse_mac(text: &str) -> Option<u64> {
    let bytes: Vec<u8> = text.split(':').map(|b| u8::from_str_radix(b, 16).ok()).collect::<Option<_>>()?;
    (bytes.len() == 6).then(|| bytes.iter().fold(0, |n, b| n << 8 | u64::from(*b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(net: &Path, name: &str, kind: &str, mac: &str, physical: bool) {
        let dir = net.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("type"), format!("{kind}\n")).unwrap();
        fs::write(dir.join("address"), format!("{mac}\n")).unwrap();
        if physical {
            fs::create_dir(dir.join("device")).unwrap();
        }
    }

    #[test]
    fn the_physical_card_is_chosen_whatever_else_comes() {
        let d = tempfile::tempdir().unwrap();
        let (net, state) = (d.path().join("net"), d.path().join("state"));
        interface(&net, "lo", "772", "00:00:00:00:00:00", false);
        interface(&net, "enp3s0", "1", "3c:52:82:01:02:03", true);
        let first = resolve("lab", &net, &state).unwrap();
        assert_eq!(first, format!("lab-{}", 0x3c52_8201_0203_u64));
        interface(&net, "docker0", "1", "02:42:ac:11:00:02", false);
        interface(&net, "br-lan", "1", "3c:52:82:00:00:01", false);
        interface(&net, "enp4s0", "1", "3c:52:82:00:00:02", true);
        interface(&net, "aaa0", "1", "06:00:00:00:00:01", true);
        interface(&net, "tun0", "65534", "", false);
        interface(&net, "bad0", "1", "xx:yy", true);
        assert_eq!(resolve("lab", &net, &state).unwrap(), first);
        assert!(!state.exists(), "nothing needs to be stored");
    }

    #[test]
    fn without_a_card_a_number_is_stored_and_kept() {
        let d = tempfile::tempdir().unwrap();
        let (net, state) = (d.path().join("net"), d.path().join("state"));
        interface(&net, "lo", "772", "00:00:00:00:00:00", false);
        interface(&net, "dummy0", "1", "00:00:00:00:00:00", false);
        let first = resolve("lab", &net, &state).unwrap();
        let number = first.strip_prefix("lab-").unwrap().parse::<u64>().unwrap();
        assert!(number < 1 << 48);
        interface(&net, "eth0", "1", "3c:52:82:01:02:03", true);
        assert_eq!(resolve("renamed", &net, &state).unwrap(), first);
        files::write(&state.join(FILE), b" \n").unwrap();
        assert!(resolve("lab", &net, &state).unwrap_err().hint().unwrap().starts_with("remove it: rm "));
    }

    #[test]
    fn a_container_without_a_physical_card_uses_what_it_has() {
        let d = tempfile::tempdir().unwrap();
        interface(d.path(), "eth0", "1", "02:42:ac:11:00:02", false);
        assert_eq!(preferred_mac(d.path()), Some(0x0242_ac11_0002));
    }
}
