//! Accounts of this machine, and how a process takes one on and gives up every other right.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::parent_id;
use std::path::Path;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgrouplist, setgid, setgroups, setresgid, setresuid, setuid};
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities,
};

/// An account of this machine, with all its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub home: String,
}

/// The account of this name, wherever this machine keeps its accounts; `None` when there is none.
///
/// # Errors
/// When the accounts can't be looked up.
pub fn account(name: &str) -> io::Result<Option<Account>> {
    let user = match User::from_name(name) {
        Ok(user) => user,
        // What libraries behind the look-up answer for a name that they don't know.
        Err(Errno::ENOENT | Errno::ESRCH) => None,
        Err(error) => return Err(error.into()),
    };
    let Some(user) = user else { return Ok(None) };
    let groups = getgrouplist(&CString::new(name)?, user.gid)?;
    Ok(Some(Account {
        name: name.into(),
        uid: user.uid.as_raw(),
        gid: user.gid.as_raw(),
        groups: groups.into_iter().map(Gid::as_raw).collect(),
        home: user.dir.to_string_lossy().into_owned(),
    }))
}

/// Takes on the account that a directory belongs to, for good, when this process is root and the directory is not root's.
/// Returns that user's id when it did. Call it while this is the only thread.
///
/// # Errors
/// The owner can't be looked up, or the kernel refuses a step.
pub fn act_as_owner(dir: &Path) -> io::Result<Option<u32>> {
    let facts = match std::fs::metadata(dir) {
        Ok(facts) => facts,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    if effective_user() != 0 || facts.uid() == 0 {
        return Ok(None);
    }
    let known = match User::from_uid(Uid::from_raw(facts.uid()))? {
        Some(user) => account(&user.name)?,
        None => None,
    };
    let unnamed = || Account {
        name: facts.uid().to_string(),
        uid: facts.uid(),
        gid: facts.gid(),
        groups: Vec::new(),
        home: "/".into(),
    };
    take_on(&known.unwrap_or_else(unnamed))?;
    Ok(Some(facts.uid()))
}

/// The user that this process acts as.
pub fn effective_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Capabilities of root that a process keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeptCapabilities(CapabilitySet);

impl Default for KeptCapabilities {
    fn default() -> KeptCapabilities {
        KeptCapabilities(CapabilitySet::empty())
    }
}

impl KeptCapabilities {
    /// From names such as `CAP_SYS_RAWIO`, in any case and also without `CAP_`; `keep` stands for all that the host has.
    ///
    /// # Errors
    /// The name that is none of a capability.
    pub fn from_names(names: &[String]) -> Result<KeptCapabilities, String> {
        let mut kept = CapabilitySet::empty();
        for name in names {
            let upper = name.to_ascii_uppercase();
            kept |= match upper.as_str() {
                "KEEP" => own_capabilities().map_err(|e| e.to_string())?,
                name => CapabilitySet::from_name(name.strip_prefix("CAP_").unwrap_or(name))
                    .ok_or_else(|| upper.clone())?,
            };
        }
        Ok(KeptCapabilities(kept))
    }

    /// As a number, for the command line of the process.
    pub fn bits(self) -> u64 {
        self.0.bits()
    }

    pub fn from_bits(bits: u64) -> KeptCapabilities {
        KeptCapabilities(CapabilitySet::from_bits_retain(bits))
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for KeptCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
        f.write_str(&names.join(" "))
    }
}

fn own_capabilities() -> io::Result<CapabilitySet> {
    Ok(capabilities(None)?.permitted)
}

/// Takes on the account, if there is one, and gives up every capability but those that are kept: for good. The process goes
/// on dying with its parent. Call it while this is the only thread.
///
/// # Errors
/// When the kernel refuses a step, the rights could be had back, the host lacks a capability that is to be kept, or the
/// parent has ended. Then nothing may be run here.
pub fn give_up_rights(account: Option<&Account>, kept: KeptCapabilities) -> io::Result<()> {
    let parent = parent_id();
    if !kept.is_empty() {
        let missing = KeptCapabilities(kept.0.difference(own_capabilities()?));
        if !missing.is_empty() {
            return Err(io::Error::other(format!("the host itself lacks {missing}")));
        }
    }
    empty_bounding_set(kept);
    if let Some(account) = account {
        take_on(account)?;
    }
    clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept.0, permitted: kept.0, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)?;
    // Another user's process has lost both by now: the signal, and that its death can be looked into.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    if account.is_some_and(can_become_root_again) {
        return Err(io::Error::other("root's rights could be had back"));
    }
    match parent_id() == parent {
        true => Ok(()),
        // Its end came before the signal was asked for, so no one would send it.
        false => Err(io::Error::other("the parent has ended")),
    }
}

/// Drops every other capability that the kernel knows, where this may be done: what is executed gains nothing in any case.
fn empty_bounding_set(kept: KeptCapabilities) {
    for capability in (0..u64::BITS).filter(|number| kept.bits() & 1 << number == 0) {
        // The first refusal is for the number after the last one, or for want of the right to do so.
        if remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << capability)).is_err() {
            return;
        }
    }
}

/// Groups first: without root's rights they can't be set any more.
fn take_on(account: &Account) -> nix::Result<()> {
    let (uid, gid) = (Uid::from_raw(account.uid), Gid::from_raw(account.gid));
    let groups: Vec<Gid> = account.groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups)?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

fn can_become_root_again(account: &Account) -> bool {
    let user = account.uid != 0 && setuid(Uid::from_raw(0)).is_ok();
    let group = account.gid != 0 && setgid(Gid::from_raw(0)).is_ok();
    user || group
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_names() {
        let kept = |names: &[&str]| {
            KeptCapabilities::from_names(&names.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert!(kept(&[]).unwrap().is_empty());
        let two = kept(&["cap_sys_rawio", "NET_RAW"]).unwrap();
        assert_eq!(two.to_string(), "CAP_NET_RAW CAP_SYS_RAWIO");
        assert_eq!(KeptCapabilities::from_bits(two.bits()), two);
        assert_eq!(kept(&["CAP_EVERYTHING"]), Err("CAP_EVERYTHING".into()));
        assert!(kept(&["keep"]).is_ok());
    }

    #[test]
    fn accounts_are_known_with_their_groups() {
        let root = account("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0) && root.home.starts_with('/'), "{root:?}");
        assert_eq!(account("no-such-account").unwrap(), None);
        assert_eq!(account("a\0b").unwrap(), None);
    }
}
