//! Files that only trusted users can have put where they are: what is run with the host's rights is one of these.
//!
//! A file is as trustworthy as every folder and link on the way to it: a user who may write in one of them can put another
//! file in its place at any moment. So the way is walked from `/`, link by link, and the file that is opened at its end is
//! the one that is judged, hashed and loaded.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};

use crate::sys;

/// Links on the way to one file.
const MAX_LINKS: usize = 40;

/// Whose files may be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Whatever the operator names: it gets no rights that its owner could not have.
    Anyone,
    /// Those of root.
    Root,
    /// Those of root and of this user.
    RootAnd(u32),
}

impl Trust {
    /// For this process: as root the files of root alone; under a pin no file that others can exchange.
    pub fn of_this_process(pinned: bool) -> Trust {
        match sys::effective_user() {
            0 => Trust::Root,
            user if pinned => Trust::RootAnd(user),
            _ => Trust::Anyone,
        }
    }

    fn trusts(self, user: u32) -> bool {
        match self {
            Trust::Anyone => true,
            Trust::Root => user == 0,
            Trust::RootAnd(own) => user == 0 || user == own,
        }
    }

    /// Why others may change a file or put something into a folder.
    fn objection(self, meta: &Metadata) -> Option<String> {
        let mode = meta.mode() & 0o7777;
        // In a folder with the sticky bit, such as /tmp, everyone may create files and no user may exchange those of others.
        let sticky = meta.is_dir() && mode & 0o1000 != 0;
        let group = mode & 0o020 != 0 && meta.gid() != 0;
        if !self.trusts(meta.uid()) {
            return Some(format!("owned by user {}", meta.uid()));
        }
        ((group || mode & 0o002 != 0) && !sticky).then(|| format!("mode {mode:04o}"))
    }
}

/// Why a file is not opened.
#[derive(Debug)]
pub enum OpenRefusal {
    /// Others may change this file or folder.
    Writable {
        path: PathBuf,
        why: String,
    },
    Unreadable(io::Error),
}

impl From<io::Error> for OpenRefusal {
    fn from(error: io::Error) -> OpenRefusal {
        OpenRefusal::Unreadable(error)
    }
}

/// Opens a file, once nothing on the way to it and not the file itself can be changed by users who are not trusted.
///
/// # Errors
/// When one of them can, or the file can't be opened.
pub fn open(path: &Path, trust: Trust) -> Result<File, OpenRefusal> {
    let open =
        |path: &Path, flags| File::options().read(true).custom_flags(libc::O_NONBLOCK | flags).open(path);
    if trust == Trust::Anyone {
        return Ok(open(path, 0)?);
    }
    let real = walk(&std::path::absolute(path)?, trust)?;
    let file = open(&real, libc::O_NOFOLLOW)?;
    match trust.objection(&file.metadata()?) {
        Some(why) => Err(OpenRefusal::Writable { path: real, why }),
        None => Ok(file),
    }
}

/// Follows the path from the root, and returns where it leads.
fn walk(path: &Path, trust: Trust) -> Result<PathBuf, OpenRefusal> {
    let own = |component: Component<'_>| component.as_os_str().to_os_string();
    let mut left: VecDeque<OsString> = path.components().map(own).collect();
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    while let Some(next) = left.pop_front() {
        if next == ".." {
            at.pop();
            continue;
        }
        // An absolute name takes the place of what was there.
        let there = at.join(&next);
        let meta = there.symlink_metadata()?;
        if meta.is_symlink() {
            links += 1;
            if links > MAX_LINKS {
                return Err(io::Error::from_raw_os_error(libc::ELOOP).into());
            }
            // Its mode says nothing; where it lies was judged, and whose it is counts in a folder of everyone.
            if !trust.trusts(meta.uid()) {
                return Err(OpenRefusal::Writable {
                    path: there,
                    why: format!("a link of user {}", meta.uid()),
                });
            }
            let target = std::fs::read_link(&there)?;
            target.components().map(own).rev().for_each(|part| left.push_front(part));
            continue;
        }
        if meta.is_dir()
            && let Some(why) = trust.objection(&meta)
        {
            return Err(OpenRefusal::Writable { path: there, why });
        }
        at = there;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    /// A folder with `a/b/lib.so`, all of it this user's.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/lib.so"), "x").unwrap();
        for part in ["a", "a/b", "a/b/lib.so"] {
            mode(&dir.path().join(part), if part.ends_with("so") { 0o644 } else { 0o755 });
        }
        dir
    }

    fn mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    fn refused(path: &Path) -> (PathBuf, String) {
        match open(path, Trust::RootAnd(sys::effective_user())) {
            Err(OpenRefusal::Writable { path, why }) => (path, why),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_folder_and_link_on_the_way_counts() {
        let trust = Trust::RootAnd(sys::effective_user());
        let dir = tree();
        let (top, library) = (dir.path().canonicalize().unwrap(), dir.path().join("a/b/lib.so"));
        assert!(open(&library, trust).is_ok(), "below a folder with the sticky bit");
        symlink("b/../b/lib.so", dir.path().join("a/link.so")).unwrap();
        assert!(open(&dir.path().join("a/link.so"), trust).is_ok());
        for (part, bad) in [("a/b/lib.so", 0o646), ("a/b", 0o757), ("a", 0o757)] {
            let path = dir.path().join(part);
            let good = path.metadata().unwrap().mode() & 0o7777;
            mode(&path, bad);
            for way in ["a/b/lib.so", "a/link.so"] {
                assert_eq!(refused(&dir.path().join(way)), (top.join(part), format!("mode {bad:04o}")));
            }
            mode(&path, good);
        }
        // A link from a good folder into a bad one.
        std::fs::create_dir(dir.path().join("open")).unwrap();
        std::fs::write(dir.path().join("open/lib.so"), "x").unwrap();
        mode(&dir.path().join("open"), 0o777);
        symlink(dir.path().join("open/lib.so"), dir.path().join("a/out.so")).unwrap();
        assert_eq!(refused(&dir.path().join("a/out.so")).0, top.join("open"));
        assert!(open(&dir.path().join("a/out.so"), Trust::Anyone).is_ok());
        symlink("loop", dir.path().join("a/loop")).unwrap();
        assert!(matches!(open(&dir.path().join("a/loop"), trust), Err(OpenRefusal::Unreadable(_))));
    }

    #[test]
    fn what_another_user_owns_is_not_trusted() {
        if sys::effective_user() != 0 {
            println!("SKIPPED: only root can give files away");
            return;
        }
        for part in ["a/b/lib.so", "a/b", "a"] {
            let dir = tree();
            chown(dir.path().join(part), Some(12345), None).unwrap();
            assert_eq!(refused(&dir.path().join("a/b/lib.so")).1, "owned by user 12345");
        }
    }
}
