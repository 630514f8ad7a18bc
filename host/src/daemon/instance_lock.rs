//! The instance lock: one host per state directory. A lock identifies the running host, never the number of a pid.
//!
//! The running host holds two locks on `coda-host.lock` until its process ends, however it ends, and describes itself
//! in that file. The record lock (`fcntl`) is the process's own: a plugin that forks can't take it along and keep it after the
//! host's end. The other one (`flock`) is what earlier versions look at. A process is signalled only when the lock is held and the description still fits the process: its pid and
//! its start time. So a stale file, a reused pid or a number like 0 or -1 can do no harm.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};
use serde::{Deserialize, Serialize};

use crate::error::{Explain, exit};
use crate::state::files;
use crate::sys;

/// How long a host may take from its lock to its description in the file.
const DESCRIBE_LIMIT: Duration = Duration::from_millis(500);
const DESCRIBE_POLL: Duration = Duration::from_millis(10);

const LOCK_FILE: &str = "coda-host.lock";
/// The pid file, for people and tools that look for one. The host itself never reads it.
pub const PID_FILE: &str = "coda-host.pid";
/// Name of the daemon's log file.
pub const LOG_FILE: &str = "coda-host.log";

/// Why a state directory can't be locked, or its host can't be identified.
#[derive(Debug, thiserror::Error)]
pub enum InstanceLockError {
    #[error("another coda-host is running with {}{}", dir.display(), in_parentheses(.holder))]
    Taken { dir: PathBuf, holder: Option<LockHolder> },
    #[error("the state directory {} can't be used", dir.display())]
    Dir { dir: PathBuf, source: io::Error },
    #[error("cannot verify that {} is the host of {}; not sending a signal", process(*.pid), dir.display())]
    Unclear { dir: PathBuf, pid: Option<u32> },
}

fn process(pid: Option<u32>) -> String {
    pid.map_or("any process".into(), |pid| format!("process {pid}"))
}

fn in_parentheses(holder: &Option<LockHolder>) -> String {
    holder.as_ref().map_or(String::new(), |h| format!(" (process {})", h.pid))
}

impl Explain for InstanceLockError {
    fn code(&self) -> &'static str {
        match self {
            InstanceLockError::Taken { .. } => "already-running",
            InstanceLockError::Dir { .. } => "state-dir",
            InstanceLockError::Unclear { .. } => "unclear-process",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            InstanceLockError::Taken { .. } => "stop it first (coda-host stop), or give this one its own \
                 CODA_STATE_DIR and CODA_CONSUMER_NAME"
                .into(),
            InstanceLockError::Dir { .. } => "make it writable for this user, or set CODA_STATE_DIR".into(),
            InstanceLockError::Unclear { .. } => "look for the host with ps and stop it by hand".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            InstanceLockError::Taken { .. } => exit::FAILURE,
            _ => exit::CONFIG,
        }
    }
}

/// How a running host describes itself in the lock file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockHolder {
    pub pid: u32,
    /// The start time in `/proc`, in clock ticks since the machine's start.
    pub started: u64,
    /// The address on which its local service listens, once it does.
    pub address: Option<String>,
    /// It was asked to stop, and finishes what runs.
    #[serde(default)]
    pub stopping: bool,
}

/// The lock of a state directory, held until the last clone is dropped or the process ends.
#[derive(Clone)]
pub struct InstanceLock(Arc<HeldLock>);

struct HeldLock {
    /// The only descriptor of this process for the file: to close any would release the record lock.
    file: Mutex<File>,
    description: Mutex<LockHolder>,
    dir: PathBuf,
    pid_file: PathBuf,
}

impl InstanceLock {
    /// Acquires the lock.
    ///
    /// # Errors
    /// Another host holds the lock, or the directory can't be used.
    pub fn acquire(dir: &Path, pid_dir: &Path) -> Result<InstanceLock, InstanceLockError> {
        let failed = |source| InstanceLockError::Dir { dir: dir.to_path_buf(), source };
        files::ensure_dir(dir).map_err(|e| failed(io::Error::other(e)))?;
        let file = open(dir).map_err(failed)?;
        let taken = |file: &File| {
            let holder = read_description(file).ok();
            InstanceLockError::Taken { dir: dir.to_path_buf(), holder }
        };
        match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::ACCESS | Errno::AGAIN) => return Err(taken(&file)),
            Err(error) => return Err(failed(error.into())),
        }
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) if is_left_behind(&file) => {
                tracing::warn!(
                    dir = %dir.display(),
                    "a process that an ended host left behind still has its lock; going on without that lock"
                );
            }
            Err(TryLockError::WouldBlock) => return Err(taken(&file)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let pid = std::process::id();
        let started = started(pid).unwrap_or(0);
        let lock = InstanceLock(Arc::new(HeldLock {
            file: Mutex::new(file),
            description: Mutex::new(LockHolder { pid, started, address: None, stopping: false }),
            dir: dir.to_path_buf(),
            pid_file: pid_dir.join(PID_FILE),
        }));
        lock.describe(|_| {})?;
        if let Err(error) = files::write(&lock.0.pid_file, format!("{pid}\n").as_bytes()) {
            // Only for other tools: worth a word, not a refusal.
            tracing::warn!(%error, "the pid file could not be written");
        }
        Ok(lock)
    }

    /// Notes where the local service listens.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn listens(&self, address: String) -> Result<(), InstanceLockError> {
        self.describe(|now| now.address = Some(address))
    }

    /// Notes that the host was asked to stop.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn stops(&self) -> Result<(), InstanceLockError> {
        self.describe(|now| now.stopping = true)
    }

    /// Names the lock on this machine, until it is started again: two processes that hold locks of one name can't live at
    /// once. Random where the system does not tell.
    pub fn fingerprint(&self) -> String {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        match (boot, self.0.file.lock().metadata()) {
            (Ok(boot), Ok(file)) => format!("{}:{}:{}", boot.trim(), file.dev(), file.ino()),
            _ => format!("{:032x}", rand::random::<u128>()),
        }
    }

    fn describe(&self, change: impl FnOnce(&mut LockHolder)) -> Result<(), InstanceLockError> {
        let mut description = self.0.description.lock();
        change(&mut description);
        let write = || {
            let text = serde_json::to_vec(&*description)?;
            let mut file = self.0.file.lock();
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(&text)
        };
        write().map_err(|source| InstanceLockError::Dir { dir: self.0.dir.clone(), source })
    }
}

/// Whether the lock is held by no host: the record lock is free, and the host that described itself has ended. What
/// has the lock then is a process that inherited it.
fn is_left_behind(file: &File) -> bool {
    let unlocked = matches!(fcntl_getlk(file, &Flock::from(FlockType::WriteLock)), Ok(None));
    let ended = read_description(file).is_ok_and(|holder| started(holder.pid) != Some(holder.started));
    unlocked && ended
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // The lock goes with the file; the pid file only when it is still ours to remove.
        if let Err(error) = files::remove(&self.pid_file) {
            tracing::debug!(%error, "the pid file could not be removed");
        }
    }
}

/// The host that holds the lock now. One that has just acquired it gets a moment to describe itself.
///
/// # Errors
/// The directory can't be read, or the lock is held by a process that the description does not match.
pub fn holder(dir: &Path) -> Result<Option<LockHolder>, InstanceLockError> {
    let until = Instant::now() + DESCRIBE_LIMIT;
    loop {
        match look_at_holder(dir) {
            Err(InstanceLockError::Unclear { .. }) if Instant::now() < until => {
                std::thread::sleep(DESCRIBE_POLL);
            }
            known => return known,
        }
    }
}

fn look_at_holder(dir: &Path) -> Result<Option<LockHolder>, InstanceLockError> {
    let failed = |source| InstanceLockError::Dir { dir: dir.to_path_buf(), source };
    let file = match open_existing(dir) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(None),
        Err(TryLockError::Error(source)) => Err(failed(source)),
        Err(TryLockError::WouldBlock) if is_left_behind(&file) => Ok(None),
        Err(TryLockError::WouldBlock) => {
            let unclear = |pid| InstanceLockError::Unclear { dir: dir.to_path_buf(), pid };
            let holder = read_description(&file).map_err(|_| unclear(None))?;
            match started(holder.pid) == Some(holder.started) && holder.pid > 1 {
                true => Ok(Some(holder)),
                false => Err(unclear(Some(holder.pid))),
            }
        }
    }
}

impl LockHolder {
    /// Whether the other description is of the same process.
    pub fn is_process_of(&self, other: &LockHolder) -> bool {
        (self.pid, self.started) == (other.pid, other.started)
    }

    /// Sends it a signal, if it is still the process that acquired the lock.
    ///
    /// # Errors
    /// The signal can't be sent.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        match started(self.pid) == Some(self.started) {
            true => sys::signal(self.pid, signal),
            false => Ok(()),
        }
    }
}

fn open(dir: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    regular(&mut options, dir)
}

fn open_existing(dir: &Path) -> io::Result<File> {
    regular(File::options().read(true), dir)
}

/// Neither a link is followed nor a FIFO's other end waited for.
fn regular(options: &mut std::fs::OpenOptions, dir: &Path) -> io::Result<File> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(dir.join(LOCK_FILE))?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("{LOCK_FILE} is not a regular file"))),
    }
}

fn read_description(file: &File) -> io::Result<LockHolder> {
    let mut text = String::new();
    let mut file = file;
    file.rewind()?;
    file.take(4096).read_to_string(&mut text)?;
    Ok(serde_json::from_str(&text)?)
}

/// When a process started: field 22 of its stat, counted after the name in parentheses.
fn started(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_host_holds_the_lock_and_tells_who_it_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(holder(dir.path()).unwrap(), None);
        let lock = InstanceLock::acquire(dir.path(), dir.path()).unwrap();
        lock.listens("127.0.0.1:8080".into()).unwrap();
        let found = holder(dir.path()).unwrap().unwrap();
        assert_eq!((found.pid, found.address.as_deref()), (std::process::id(), Some("127.0.0.1:8080")));
        let taken = InstanceLock::acquire(dir.path(), dir.path()).err().unwrap().to_string();
        drop(lock.clone());
        assert!(taken.contains(&format!("(process {})", std::process::id())), "{taken}");
        assert!(dir.path().join(PID_FILE).exists());
        drop(lock);
        assert_eq!(holder(dir.path()).unwrap(), None);
        assert!(!dir.path().join(PID_FILE).exists());
    }

    #[test]
    fn what_a_file_says_without_the_lock_means_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "0", "-1", "abc", "99999999999", r#"{"pid":1,"started":0,"address":null}"#] {
            std::fs::write(dir.path().join(LOCK_FILE), text).unwrap();
            std::fs::write(dir.path().join(PID_FILE), text).unwrap();
            assert_eq!(holder(dir.path()).unwrap(), None, "{text}");
        }
    }

    #[test]
    fn a_description_that_fits_no_process_is_not_believed() {
        for text in ["".to_string(), "{".into()] {
            // Each in another folder: a process that a test beside this one is starting keeps a lock for a moment.
            let dir = tempfile::tempdir().unwrap();
            let file = open(dir.path()).unwrap();
            file.try_lock().unwrap();
            std::fs::write(dir.path().join(LOCK_FILE), &text).unwrap();
            let error = holder(dir.path()).unwrap_err();
            assert!(matches!(error, InstanceLockError::Unclear { .. }), "{text}");
            assert!(error.to_string().starts_with("cannot verify that "), "{error}");
        }
    }

    #[test]
    fn a_lock_that_a_forked_process_kept_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        // What is left of a host: its description, and its lock in a process that inherited the descriptor.
        let file = open(dir.path()).unwrap();
        let own = std::process::id();
        std::fs::write(dir.path().join(LOCK_FILE), format!(r#"{{"pid":{own},"started":1,"address":null}}"#))
            .unwrap();
        file.try_lock().unwrap();
        let mut child = std::process::Command::new("sleep").arg("600").stdin(file).spawn().unwrap();
        assert_eq!(holder(dir.path()).unwrap(), None);
        let lock = InstanceLock::acquire(dir.path(), dir.path()).unwrap();
        assert_eq!(holder(dir.path()).unwrap().map(|holder| holder.pid), Some(own));
        drop(lock);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
