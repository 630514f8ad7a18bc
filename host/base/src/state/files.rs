//! Secret files: private from the start, whole or absent, and owned by this user.
//!
//! [`write`] makes a new 0600 file beside the target, syncs it, renames it over the target and syncs the
//! directory: a reader sees the old content or the new one, whatever happens, and what stood there before
//! (a link, a FIFO, a file with a loose mode) is replaced, never written through. [`read`] opens without
//! following a link and without waiting for a FIFO's writer, then accepts only a regular file of the running
//! user with mode 0600. Directories, pipes and links are told apart in the error, with the command that
//! corrects it.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rand::Rng as _;

use crate::error::{Explain, exit};

const MODE: u32 = 0o600;

/// Why a secret file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{} could not be {action}", .path.display())]
    Io { path: PathBuf, action: &'static str, source: io::Error },
    #[error("{} is {found}, not a regular file", .path.display())]
    NotAFile { path: PathBuf, found: &'static str },
    #[error("{} has mode {mode:04o}, but holds secrets and must have 0600", .path.display())]
    Mode { path: PathBuf, mode: u32 },
    #[error("{} belongs to user id {owner}, but this process runs as user id {user}", .path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("{} is larger than the {limit} bytes such a file may have", .path.display())]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("{} can't be a file: the path names no directory entry", .path.display())]
    NoName { path: PathBuf },
    #[error("the user this process runs as could not be found out from /proc/self/status")]
    User(#[source] io::Error),
}

impl Explain for FileError {
    fn code(&self) -> &'static str {
        match self {
            FileError::Io { .. } => "state-file-io",
            FileError::NotAFile { .. } => "state-file-kind",
            FileError::Mode { .. } => "state-file-mode",
            FileError::Owner { .. } => "state-file-owner",
            FileError::TooLarge { .. } => "state-file-size",
            FileError::NoName { .. } => "state-file-name",
            FileError::User(_) => "state-file-user",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            FileError::Io { path, source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => {
                    format!("check who may write in {} (ls -ld)", parent(path).display())
                }
                io::ErrorKind::NotFound => format!("mkdir -p {}", quoted(parent(path))),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "free some space on that disk".into()
                }
                io::ErrorKind::IsADirectory | io::ErrorKind::DirectoryNotEmpty => {
                    format!("move the directory away: mv {0} {0}.old", quoted(path))
                }
                _ => return None,
            },
            FileError::NotAFile { path, .. } => {
                format!("look at it (ls -l {0}), then move it away: mv {0} {0}.old", quoted(path))
            }
            FileError::Mode { path, .. } => {
                format!(
                    "chmod 600 {}, and renew the secret if others may have read it: coda-host reset, \
                     then a new token",
                    quoted(path)
                )
            }
            FileError::Owner { owner, user: 0, .. } => {
                format!("run this as the user that it belongs to: sudo -u '#{owner}' coda-host ...")
            }
            FileError::Owner { path, user, .. } => {
                format!("chown {user} {} if the file is yours; else move it away", quoted(path))
            }
            FileError::TooLarge { path, .. } => format!("look at it: head -c 300 {}", quoted(path)),
            FileError::NoName { .. } => return None,
            FileError::User(_) => "mount /proc".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            FileError::Io { source, .. } if is_passing(source) => exit::FAILURE,
            _ => exit::CONFIG,
        }
    }
}

/// Whether a disk may do later what it refuses now, without anything being corrected in the settings.
pub fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, ResourceBusy, StorageFull, TimedOut};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge | ResourceBusy | TimedOut)
        || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Replaces the file at `path` by one with this content. The directory must exist.
pub fn write(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let io = |action| move |source| FileError::Io { path: path.to_path_buf(), action, source };
    let (Some(name), dir) = (path.file_name(), parent(path)) else {
        return Err(FileError::NoName { path: path.to_path_buf() });
    };
    let mut temporary = name.to_os_string();
    temporary.push(format!(".{:016x}.new", rand::rng().random::<u64>()));
    let temporary = dir.join(temporary);

    // create_new is O_EXCL: nothing that somebody laid there beforehand is opened, a link least of all.
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temporary)
        .map_err(io("created"))?;
    let written = (|| {
        // The umask can only have taken bits away.
        file.set_permissions(Permissions::from_mode(MODE))?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if let Err(error) = written {
        // The first error is the one to tell; a leftover is private and has a random name.
        fs::remove_file(&temporary).ok();
        return Err(io("written")(error));
    }
    File::open(dir).and_then(|d| d.sync_all()).map_err(io("made durable"))
}

/// Makes the file for this user alone where it is missing; one that is there becomes so.
pub fn private(path: &Path) -> Result<(), FileError> {
    let io = |source| FileError::Io { path: path.to_path_buf(), action: "made private", source };
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(MODE).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path).map_err(io)?;
    let facts = file.metadata().map_err(io)?;
    if !facts.is_file() {
        return Err(FileError::NotAFile { path: path.to_path_buf(), found: "a FIFO or device" });
    }
    match facts.mode() & 0o7777 {
        MODE => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(MODE)).map_err(io),
    }
}

/// Whether [`write`] would work, as far as that can be known: the directory takes new files, and nothing at
/// `path` is of a kind that a rename can't replace.
pub fn can_write(path: &Path) -> Result<(), FileError> {
    let io = |action| move |source| FileError::Io { path: path.to_path_buf(), action, source };
    tempfile::tempfile_in(parent(path)).map_err(io("created"))?;
    match fs::symlink_metadata(path) {
        Ok(facts) if facts.is_dir() => Err(io("written")(io::ErrorKind::IsADirectory.into())),
        _ => Ok(()),
    }
}

/// The content of the file at `path`, `None` when there is none.
pub fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, FileError> {
    let io = |action| move |source| FileError::Io { path: path.to_path_buf(), action, source };
    let not_a_file = |found| FileError::NotAFile { path: path.to_path_buf(), found };
    // O_NONBLOCK: opening a FIFO would otherwise wait for its writer for ever.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Err(not_a_file("a symbolic link")),
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => return Err(not_a_file("a socket or device")),
        // Another user's file is best explained by its owner, which needs no right to read it.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            let facts = fs::symlink_metadata(path).map_err(io("read"))?;
            check(path, &facts, effective_user()?)?;
            return Err(io("read")(e));
        }
        Err(e) => return Err(io("read")(e)),
    };
    let facts = file.metadata().map_err(io("read"))?;
    check(path, &facts, effective_user()?)?;
    let mut content = Vec::new();
    // One byte more than the limit, because a file may grow while it is read.
    file.take(limit.saturating_add(1)).read_to_end(&mut content).map_err(io("read"))?;
    if content.len() as u64 > limit {
        return Err(FileError::TooLarge { path: path.to_path_buf(), limit });
    }
    Ok(Some(content))
}

/// Removes the file (or link); says whether there was one.
pub fn remove(path: &Path) -> Result<bool, FileError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(FileError::Io { path: path.to_path_buf(), action: "removed", source }),
    }
}

/// Makes the directory and those above it, for the running user alone; one that exists stays as it is.
pub fn ensure_dir(path: &Path) -> Result<(), FileError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path).map_err(|source| FileError::Io {
        path: path.to_path_buf(),
        action: "made as a directory",
        source,
    })
}

/// The user whose rights this process has. `/proc/self/status` says it even for a process that may not be
/// traced, whose files under /proc belong to root.
pub fn effective_user() -> Result<u32, FileError> {
    let status = fs::read_to_string("/proc/self/status").map_err(FileError::User)?;
    let line = status.lines().find_map(|l| l.strip_prefix("Uid:"));
    let effective = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse().ok());
    effective.ok_or_else(|| FileError::User(io::Error::new(io::ErrorKind::InvalidData, "no 'Uid:' line")))
}

fn check(path: &Path, facts: &fs::Metadata, user: u32) -> Result<(), FileError> {
    use std::os::unix::fs::FileTypeExt as _;
    let kind = facts.file_type();
    if !kind.is_file() {
        let found = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a FIFO",
            () if kind.is_symlink() => "a symbolic link",
            () => "a socket or device",
        };
        return Err(FileError::NotAFile { path: path.to_path_buf(), found });
    }
    // The owner first: changing the mode of another user's file mends nothing.
    if facts.uid() != user {
        return Err(FileError::Owner { path: path.to_path_buf(), owner: facts.uid(), user });
    }
    let mode = facts.mode() & 0o7777;
    if mode != MODE {
        return Err(FileError::Mode { path: path.to_path_buf(), mode });
    }
    Ok(())
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    fn dir() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn entries(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_is_written_is_private_and_read_back() {
        let d = dir();
        let path = d.path().join("key");
        assert!(read(&path, 100).unwrap().is_none());
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(read(&path, 3).unwrap().unwrap(), b"two");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(entries(d.path()), ["key"], "no temporary file is left");
        assert!(matches!(read(&path, 2), Err(FileError::TooLarge { limit: 2, .. })));
        assert!(remove(&path).unwrap() && !remove(&path).unwrap());
    }

    #[test]
    fn a_loose_file_is_refused_with_the_command_and_replaced_when_written() {
        let d = dir();
        let path = d.path().join("my key");
        for loose in [0o644, 0o640, 0o400, 0o700, 0o4600] {
            fs::write(&path, "old").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(loose)).unwrap();
            let error = read(&path, 100).unwrap_err();
            assert!(matches!(error, FileError::Mode { mode, .. } if mode == loose), "{error}");
            let hint = error.hint().unwrap();
            assert!(hint.starts_with(&format!("chmod 600 '{}'", path.display())), "{hint}");
            write(&path, b"new").unwrap();
            assert_eq!(read(&path, 100).unwrap().unwrap(), b"new");
        }
    }

    #[test]
    fn a_link_is_neither_followed_nor_written_through() {
        let d = dir();
        let (path, victim) = (d.path().join("key"), d.path().join("authorized_keys"));
        write(&victim, b"precious").unwrap();
        symlink(&victim, &path).unwrap();
        let error = read(&path, 100).unwrap_err();
        assert!(error.to_string().ends_with("is a symbolic link, not a regular file"), "{error}");
        write(&path, b"secret").unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn a_fifo_never_hangs_and_a_socket_or_directory_is_named() {
        let d = dir();
        let path = d.path().join("key");
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = read(&path, 100).unwrap_err();
        assert!(error.to_string().ends_with("is a FIFO, not a regular file"), "{error}");
        write(&path, b"x").unwrap();
        assert_eq!(read(&path, 100).unwrap().unwrap(), b"x");

        let socket = d.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        assert!(matches!(read(&socket, 1), Err(FileError::NotAFile { found: "a socket or device", .. })));
        drop(listener);

        let folder = d.path().join("folder");
        fs::create_dir(&folder).unwrap();
        assert!(matches!(read(&folder, 1), Err(FileError::NotAFile { found: "a directory", .. })));
        let error = write(&folder, b"x").unwrap_err();
        assert!(error.hint().unwrap().starts_with("move the directory away"), "{error:?}");
        assert_eq!(entries(d.path()), ["folder", "key", "socket"], "no temporary file is left");
    }

    #[test]
    fn another_users_file_is_refused() {
        let d = dir();
        let path = d.path().join("key");
        write(&path, b"x").unwrap();
        let facts = fs::metadata(&path).unwrap();
        let error = check(&path, &facts, facts.uid() + 1).unwrap_err();
        assert!(matches!(error, FileError::Owner { .. }), "{error}");
        assert!(error.hint().unwrap().contains("chown"));
        // Only root can give a file away, so the real thing is tried when the tests run as root.
        if effective_user().unwrap() == 0 {
            chown(&path, Some(65_534), None).unwrap();
            assert!(matches!(read(&path, 1), Err(FileError::Owner { owner: 65_534, user: 0, .. })));
            write(&path, b"y").unwrap();
            assert_eq!(read(&path, 1).unwrap().unwrap(), b"y");
        }
    }

    #[test]
    fn a_missing_directory_and_a_path_without_a_name_are_told() {
        let d = dir();
        let error = write(&d.path().join("none/key"), b"x").unwrap_err();
        assert_eq!(error.hint().unwrap(), format!("mkdir -p {}", d.path().join("none").display()));
        ensure_dir(&d.path().join("a/b")).unwrap();
        assert_eq!(mode(&d.path().join("a")), 0o700);
        assert!(matches!(write(Path::new("/"), b"x"), Err(FileError::NoName { .. })));
    }

    #[test]
    fn the_user_is_the_owner_of_new_files() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(effective_user().unwrap(), file.as_file().metadata().unwrap().uid());
    }
}
