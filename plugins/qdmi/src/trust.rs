//! Files that are run, or decide what is run: for root they must be such that no other user can exchange them.
//!
//! Contract: as another user than root nothing is refused. As root, the file and every directory and link on the way to
//! it must be root's, and writable by root alone; a directory with the sticky bit, such as /tmp, may be open to all.
//! The host judges a plugin's own library by the same rule; a plugin depends on the interface alone, so the rule is here
//! for what this one opens.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// Links on the way to one file.
const MAX_LINKS: usize = 40;

/// # Errors
/// When this process is root's, and others may change the file or what leads to it.
pub fn check(path: &Path) -> Result<(), String> {
    if rustix::process::geteuid().is_root() { check_for(path, 0) } else { Ok(()) }
}

fn check_for(path: &Path, owner: u32) -> Result<(), String> {
    let refusal = |at: &Path, why: &str| {
        format!(
            "{} {why}, so others could change what runs as root; give it and its directories to root, mode 755",
            at.display()
        )
    };
    let unreadable = |at: &Path, e: std::io::Error| format!("{} can't be read: {e}", at.display());
    let absolute = std::path::absolute(path).map_err(|e| unreadable(path, e))?;
    let part = |component: Component<'_>| component.as_os_str().to_os_string();
    let mut left: VecDeque<OsString> = absolute.components().map(part).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(next) = left.pop_front() {
        if next == ".." {
            at.pop();
            continue;
        }
        // An absolute name replaces what was there.
        let there = at.join(&next);
        let meta = there.symlink_metadata().map_err(|e| unreadable(&there, e))?;
        if meta.uid() != owner && meta.uid() != 0 {
            return Err(refusal(&there, &format!("is owned by user {}", meta.uid())));
        }
        if meta.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(format!("{} has too many symbolic links on its way", path.display()));
            }
            let target = std::fs::read_link(&there).map_err(|e| unreadable(&there, e))?;
            target.components().map(part).rev().for_each(|part| left.push_front(part));
            continue;
        }
        if is_writable_by_others(&meta) {
            return Err(refusal(&there, &format!("has mode {:04o}", meta.mode() & 0o7777)));
        }
        at = there;
    }
    Ok(())
}

fn is_writable_by_others(meta: &Metadata) -> bool {
    let mode = meta.mode();
    let sticky_directory = meta.is_dir() && mode & 0o1000 != 0;
    let group = mode & 0o020 != 0 && meta.gid() != 0;
    (group || mode & 0o002 != 0) && !sticky_directory
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn every_directory_and_link_on_the_way_is_looked_at() {
        let own = rustix::process::geteuid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        let (folder, file, link) =
            (dir.path().join("a"), dir.path().join("a/lib.so"), dir.path().join("link.so"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&file, "x").unwrap();
        symlink("a/../a/lib.so", &link).unwrap();
        set(&folder, 0o755);
        set(&file, 0o644);
        for path in [&file, &link] {
            assert_eq!(check_for(path, own), Ok(()));
        }
        for (bad, mode, good) in [(&file, 0o646, 0o644), (&folder, 0o757, 0o755)] {
            set(bad, mode);
            for path in [&file, &link] {
                let error = check_for(path, own).unwrap_err();
                assert!(error.contains(&format!("has mode {mode:04o}")), "{error}");
            }
            set(bad, good);
        }
        assert!(check_for(&dir.path().join("missing"), own).unwrap_err().contains("can't be read"));
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(check_for(&dir.path().join("loop"), own).unwrap_err().contains("too many symbolic links"));
        if own == 0 {
            std::os::unix::fs::chown(&file, Some(12345), None).unwrap();
            assert!(check_for(&link, own).unwrap_err().contains("is owned by user 12345"));
        }
    }
}
