//! The few system calls that need `unsafe`: signals, process limits, children that die with their parent and give up
//! rights, processes of others.
//!
//! Stop signals are blocked in every thread and taken by one that no plugin runs on, so that a plugin's own
//! handlers can't swallow them (Linux keeps a blocked signal pending even where its disposition is to
//! ignore it). Dispositions that a plugin changed are put back.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What is waited for: what ends the host, and SIGHUP, which makes it reload.
pub const STOP_SIGNALS: [i32; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
/// Dispositions that the host depends on.
const WATCHED: [(i32, &str); 5] = [
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGCHLD, "SIGCHLD"),
    (libc::SIGPIPE, "SIGPIPE"),
];

/// Set by the C library on whatever it installs; says nothing about who did.
const SA_RESTORER: i32 = 0x0400_0000;

fn stop_set() -> libc::sigset_t {
    // SAFETY: sigset_t is plain data that sigemptyset initialises; the signal numbers are valid.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in STOP_SIGNALS {
            libc::sigaddset(&mut set, signal);
        }
        set
    }
}

/// Blocks the stop signals in this thread and all that it will start. Call it first thing in `main`.
///
/// # Errors
/// When the kernel refuses, which it does for no valid set.
pub fn block_stop_signals() -> io::Result<()> {
    let set = stop_set();
    // SAFETY: both pointers are valid or null, as pthread_sigmask allows.
    match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Waits for the next stop signal. For a thread of its own.
///
/// # Errors
/// What sigwait reports.
pub fn wait_stop_signal() -> io::Result<i32> {
    let set = stop_set();
    let mut signal = 0;
    // SAFETY: both pointers are valid for the call.
    match unsafe { libc::sigwait(&set, &mut signal) } {
        0 => Ok(signal),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Keeps the C library from making a heap per thread and from holding on to freed memory: after a load the host
/// would otherwise keep half as much again. `MALLOC_ARENA_MAX`, glibc's own variable, goes before.
pub fn keep_heap_small() {
    if std::env::var_os("MALLOC_ARENA_MAX").is_none() {
        // SAFETY: mallopt takes plain integers; called at the start of `main`, when this thread is the only one.
        unsafe {
            libc::mallopt(libc::M_ARENA_MAX, 1);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 128 << 10);
        }
    }
}

/// Takes a variable out of the environment, so that no plugin and no child sees it. Call it before any other
/// thread exists.
pub fn forget_variable(name: &str) {
    // SAFETY: called at the start of `main`, when this thread is the only one.
    unsafe { std::env::remove_var(name) };
}

/// The dispositions of the watched signals at one moment.
pub struct Dispositions([libc::sigaction; WATCHED.len()]);

impl Dispositions {
    /// Takes note of what is set now.
    pub fn capture() -> Dispositions {
        Dispositions(WATCHED.map(|(signal, _)| current(signal)))
    }

    /// Puts back what differs from the note and returns the names of the signals concerned.
    pub fn restore(&self) -> Vec<&'static str> {
        let mut changed = Vec::new();
        for (wanted, (signal, name)) in self.0.iter().zip(WATCHED) {
            let now = current(signal);
            let flags = |a: &libc::sigaction| a.sa_flags & !SA_RESTORER;
            if now.sa_sigaction != wanted.sa_sigaction || flags(&now) != flags(wanted) {
                // SAFETY: `wanted` was returned by sigaction for this signal in this process.
                unsafe { libc::sigaction(signal, wanted, std::ptr::null_mut()) };
                changed.push(name);
            }
        }
        changed
    }
}

fn current(signal: i32) -> libc::sigaction {
    // SAFETY: sigaction is plain data; with a null new action the call only reads.
    unsafe {
        let mut now = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut now);
        now
    }
}

/// Asks the kernel to send this signal to the process when its parent dies (for children that the host starts).
pub fn die_with_parent(signal: i32) -> io::Result<()> {
    // SAFETY: prctl with PR_SET_PDEATHSIG takes a plain integer.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process to start, and where its handle goes.
type SpawnOrder = (Command, SyncSender<io::Result<Child>>);

/// The thread that starts such processes. The kernel takes the death of the thread that forked for the death
/// of the parent, so it must be one that lives as long as the process.
static SPAWNER: Mutex<Option<Sender<SpawnOrder>>> = Mutex::new(None);

/// Starts a process that the kernel kills when this one dies, however it dies.
///
/// # Errors
/// When it can't be started.
pub fn spawn_dying_with_parent(mut command: Command) -> io::Result<Child> {
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes two async-signal-safe system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            die_with_parent(libc::SIGKILL)?;
            // The parent may have died before the call; then nobody would send the signal.
            match libc::getppid().cast_unsigned() == parent {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        });
    }
    let (answer, answered) = mpsc::sync_channel(1);
    let gone = || io::Error::other("the thread that starts processes has ended");
    spawner()?.send((command, answer)).map_err(|_| gone())?;
    answered.recv().map_err(|_| gone())?
}

fn spawner() -> io::Result<Sender<SpawnOrder>> {
    let mut known = SPAWNER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(orders) = &*known {
        return Ok(orders.clone());
    }
    let (orders, taken) = mpsc::channel::<SpawnOrder>();
    std::thread::Builder::new().name("spawner".into()).spawn(move || {
        for (mut command, answer) in taken {
            // Whoever asked waits for the answer; one that is gone has died, and the child with it.
            if let Err(mpsc::SendError(Ok(mut child))) = answer.send(command.spawn()) {
                child.kill().ok();
                child.wait().ok();
            }
        }
    })?;
    Ok(known.insert(orders).clone())
}

/// Starts a process as [`spawn_dying_with_parent`] does, with these descriptors as its numbers 3, 4 and so on, and none
/// besides. It gains no privileges by what it executes.
///
/// # Errors
/// When it can't be started.
pub fn spawn_worker(mut command: Command, descriptors: Vec<OwnedFd>) -> io::Result<Child> {
    // SAFETY: between fork and exec the closure makes async-signal-safe system calls on descriptors that it owns, and
    // allocates nothing.
    unsafe {
        command.pre_exec(move || {
            const HIGH: i32 = 512;
            // Out of the way first: one of them may have a number that another is to get.
            for (i, fd) in descriptors.iter().enumerate() {
                if libc::dup2(fd.as_raw_fd(), HIGH + i as i32) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            for i in 0..descriptors.len() as i32 {
                if libc::dup2(HIGH + i, FIRST_INHERITED + i) < 0 || libc::close(HIGH + i) < 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            // Also what this process was given without its knowing. A kernel before 5.11 can't.
            let first = FIRST_INHERITED as libc::c_uint + descriptors.len() as libc::c_uint;
            libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
    spawn_dying_with_parent(command)
}

const FIRST_INHERITED: i32 = 3;

/// The descriptors that [`spawn_worker`] gave to this process, `count` of them. Call it once.
///
/// # Errors
/// When one of them isn't there.
pub fn inherited(count: usize) -> io::Result<Vec<OwnedFd>> {
    let own = |fd: i32| {
        // SAFETY: a plain system call; nothing that the plugin starts shall inherit it.
        match unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } {
            // SAFETY: the descriptor is open, and nobody else in this process knows of it.
            0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
            _ => Err(io::Error::last_os_error()),
        }
    };
    (FIRST_INHERITED..).take(count).map(own).collect()
}

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
/// When they can't be looked up.
pub fn account(name: &str) -> io::Result<Option<Account>> {
    let Ok(text) = std::ffi::CString::new(name) else { return Ok(None) };
    let mut buffer = vec![0 as libc::c_char; 1 << 12];
    // SAFETY: passwd is plain data that the call fills in.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    loop {
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call, the length is the buffer's.
        let code = unsafe {
            libc::getpwnam_r(text.as_ptr(), &mut entry, buffer.as_mut_ptr(), buffer.len(), &mut found)
        };
        match code {
            libc::ERANGE if buffer.len() < 1 << 24 => buffer.resize(buffer.len() * 2, 0),
            libc::EINTR => (),
            // What libraries behind it answer for a name that they don't know.
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            0 => break,
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
    let mut groups = vec![0; 64];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: there is room for `count` groups; the call says how many there are.
        let all =
            unsafe { libc::getgrouplist(text.as_ptr(), entry.pw_gid, groups.as_mut_ptr(), &mut count) >= 0 };
        let room = groups.len();
        groups.resize(usize::try_from(count).unwrap_or(room).max(if all { 0 } else { room + 1 }), 0);
        if all {
            break;
        }
    }
    // SAFETY: the call has made it a text in `buffer`, which still lives.
    let home = unsafe { std::ffi::CStr::from_ptr(entry.pw_dir) }.to_string_lossy().into_owned();
    Ok(Some(Account { name: name.into(), uid: entry.pw_uid, gid: entry.pw_gid, groups, home }))
}

/// Who this process acts as.
pub fn effective_user() -> u32 {
    // SAFETY: a plain system call that can't fail.
    unsafe { libc::geteuid() }
}

/// Takes on the account, if there is one, and gives up every capability: for good. The process goes on dying with its
/// parent. Call it while this is the only thread.
///
/// # Errors
/// When the kernel refuses a step, or the rights could be had back. Then nothing may be run here.
pub fn give_up_rights(account: Option<&Account>) -> io::Result<()> {
    let checked = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let parent = std::os::unix::process::parent_id();
    // SAFETY: plain system calls on integers, and on lists and structs that outlive them.
    unsafe {
        // Out of the bounding set too, where this may be done; what is executed gains nothing in any case.
        let mut capability = 0;
        while libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == 0 {
            capability += 1;
        }
        if let Some(account) = account {
            checked(libc::setgroups(account.groups.len(), account.groups.as_ptr()))?;
            checked(libc::setresgid(account.gid, account.gid, account.gid))?;
            checked(libc::setresuid(account.uid, account.uid, account.uid))?;
        }
        checked(libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))?;
        // linux/capability.h: version 3, this process; two times permitted, effective and inheritable.
        let (head, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
        match libc::syscall(libc::SYS_capset, head.as_ptr(), none.as_ptr()) {
            0 => (),
            _ => return Err(io::Error::last_os_error()),
        }
        // Another user's process has lost both by now: the signal, and that its death can be looked into.
        die_with_parent(libc::SIGKILL)?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
        if account.is_some_and(|a| a.uid != 0 && libc::setuid(0) == 0 || a.gid != 0 && libc::setgid(0) == 0) {
            return Err(io::Error::other("root's rights could be had back"));
        }
    }
    match std::os::unix::process::parent_id() == parent {
        true => Ok(()),
        false => Err(io::Error::other("the parent has ended")),
    }
}

/// Starts a process in a session of its own, which neither the caller's terminal nor its end touches.
///
/// # Errors
/// When it can't be started.
pub fn spawn_detached(mut command: Command) -> io::Result<Child> {
    // SAFETY: between fork and exec the closure makes one async-signal-safe system call.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    command.spawn()
}

/// A signal's usual name.
pub fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL (illegal instruction)",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT (abort)",
        libc::SIGBUS => "SIGBUS (bus error)",
        libc::SIGFPE => "SIGFPE (arithmetic error)",
        libc::SIGKILL => "SIGKILL (killed, perhaps for want of memory)",
        libc::SIGSEGV => "SIGSEGV (segmentation fault)",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU (CPU time limit)",
        libc::SIGSYS => "SIGSYS (forbidden system call)",
        other => return format!("signal {other}"),
    };
    name.to_string()
}

/// The C library's locale for all categories.
pub fn locale() -> String {
    // SAFETY: with a null locale the call only reads; the text is copied before anyone could set another.
    unsafe {
        let text = libc::setlocale(libc::LC_ALL, std::ptr::null());
        match text.is_null() {
            true => String::new(),
            false => std::ffi::CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// Sends a signal to one process; never to a group, as the numbers 0 and below would.
///
/// # Errors
/// When there is no such process or it may not be signalled.
pub fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().filter(|p| *p > 1).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: kill takes plain integers.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Asks a child to stop, as SIGTERM does; one that has ended already is left alone.
///
/// # Errors
/// When the signal can't be sent.
pub fn ask_to_stop(child: &mut Child) -> io::Result<()> {
    if child.try_wait()?.is_some() {
        return Ok(());
    }
    // SAFETY: a plain system call; the child has not been waited for, so the id is still its own.
    match unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A process that isn't a child of this one, held by a descriptor: its number can't come to mean another one.
#[derive(Debug)]
pub struct ProcessHandle(OwnedFd);

impl ProcessHandle {
    /// The process that has this number now; `None` when there is none.
    ///
    /// # Errors
    /// When the kernel can't say.
    pub fn open(pid: u32) -> io::Result<Option<ProcessHandle>> {
        let Ok(pid @ 1..) = libc::pid_t::try_from(pid) else { return Ok(None) };
        // SAFETY: a plain system call; what it returns is a new descriptor of our own.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: as above.
            Ok(fd @ 0..) => Ok(Some(ProcessHandle(unsafe { OwnedFd::from_raw_fd(fd) }))),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ESRCH) => Ok(None),
                e => Err(e),
            },
        }
    }

    /// Sends a signal; one that has ended already is left alone.
    ///
    /// # Errors
    /// When the signal can't be sent.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: a plain system call on a descriptor that is ours; no signal information is given.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.0.as_raw_fd(),
                signal,
                std::ptr::null::<libc::siginfo_t>(),
                0,
            )
        };
        match sent {
            0 => Ok(()),
            _ => match io::Error::last_os_error() {
                e if e.raw_os_error() == Some(libc::ESRCH) => Ok(()),
                e => Err(e),
            },
        }
    }

    /// Waits until it has ended, at most so long; says whether it has.
    ///
    /// # Errors
    /// When the kernel can't say.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            // SAFETY: one pollfd, valid for the call.
            match unsafe { libc::poll(&mut poll, 1, millis) } {
                0 if left.is_zero() => return Ok(false),
                0 => (),
                1.. => return Ok(true),
                _ => match io::Error::last_os_error() {
                    e if e.kind() == io::ErrorKind::Interrupted => (),
                    e => return Err(e),
                },
            }
            if left.as_millis() == 0 {
                return Ok(false);
            }
        }
    }
}

/// Free bytes for this user on the file system that holds `path`.
///
/// # Errors
/// When the path doesn't exist or can't be reached.
pub fn free_bytes(path: &std::path::Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain data, filled in by the call; the path is NUL-terminated.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        match libc::statvfs(path.as_ptr(), &mut stat) {
            0 => Ok(stat.f_bavail.saturating_mul(stat.f_frsize)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_disposition_is_put_back_and_named() {
        let note = Dispositions::capture();
        // SAFETY: ignoring a signal is always allowed.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        assert_eq!(note.restore(), ["SIGHUP"]);
        assert!(note.restore().is_empty());
    }

    #[test]
    fn children_outlive_the_thread_that_asked_for_them_and_stop_when_asked() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("600");
            spawn_dying_with_parent(command)
        };
        let mut child = std::thread::spawn(start).join().unwrap().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(child.try_wait().unwrap().is_none(), "the asking thread's end killed it");
        ask_to_stop(&mut child).unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()),
            Some(libc::SIGTERM)
        );
        assert!(ask_to_stop(&mut child).is_ok());
        assert!(spawn_dying_with_parent(Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn a_process_is_held_even_when_its_number_is_gone() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let process = ProcessHandle::open(child.id()).unwrap().unwrap();
        assert!(!process.wait(Duration::from_millis(20)).unwrap());
        process.signal(libc::SIGTERM).unwrap();
        assert!(process.wait(Duration::from_secs(20)).unwrap());
        child.wait().unwrap();
        assert!(ProcessHandle::open(child.id()).unwrap().is_none());
        process.signal(libc::SIGTERM).unwrap();
        assert!(
            ProcessHandle::open(0).unwrap().is_none() && ProcessHandle::open(u32::MAX).unwrap().is_none()
        );
    }

    #[test]
    fn accounts_are_known_with_their_groups() {
        let root = account("root").unwrap().unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert!(root.groups.contains(&0) && root.home.starts_with('/'), "{root:?}");
        assert_eq!(account("no-such-account").unwrap(), None);
        assert_eq!(account("a\0b").unwrap(), None);
    }

    #[test]
    fn free_space_is_known() {
        assert!(free_bytes(std::path::Path::new("/")).unwrap() > 0);
        assert!(free_bytes(std::path::Path::new("/nowhere")).is_err());
    }
}
