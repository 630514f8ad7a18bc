//! The OpenVPN daemon that the host manages: its files, its start, its end.
//!
//! Starts and stops are serialized: each holds the start-stop lock until it has finished, even when the caller has gone.
//! A start whose caller has gone is interrupted and leaves nothing behind. The daemon is found by its pid file, which is
//! believed only when that process is an OpenVPN with this host's profile. It is signalled through a process descriptor,
//! so never another process. A tunnel that is already up is used: this host's own is managed again, any other is left
//! alone. The files have the names that the Python node uses, so that either can take over from the other.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::command::{CommandError, Programs};
use super::interface;
use super::profile::{self, CheckedProfile, MAX_PROFILE, ProfileError};
use crate::config::settings::VpnSettings;
use crate::error::{Explain, exit};
use crate::state::files::{self, FileError};
use crate::sys::ProcessHandle;

pub const PID_FILE: &str = "coda-node-openvpn.pid";
pub const LOG_FILE: &str = "coda-node-openvpn.log";

/// Number of log lines that an error shows, and the bytes that are read for them.
const TAIL_LINES: usize = 20;
const TAIL_BYTES: u64 = 16 << 10;
/// Pause between two looks at a starting daemon.
const POLL: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum OpenvpnError {
    #[error("openvpn binary not found in PATH")]
    NoBinary,
    #[error("Failed to start OpenVPN: {0}")]
    NotStarted(String),
    #[error("No VPN tunnel interface detected within {limit:?} of the start of OpenVPN")]
    NoTunnel { limit: Duration, source: LogTail },
    #[error("OpenVPN ended before the tunnel was up")]
    Ended { source: LogTail },
    #[error("Persisted VPN profile not found. Re-run node provisioning with a new token.")]
    NoStoredProfile { path: PathBuf },
    #[error("the stored VPN profile {} can't be used", .path.display())]
    StoredProfile { path: PathBuf, source: ProfileError },
    #[error("a file of the VPN can't be used")]
    File(#[from] FileError),
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("the OpenVPN process can't be {action}")]
    Process { action: &'static str, source: io::Error },
    #[error("OpenVPN is still running after SIGKILL")]
    Unstoppable,
    #[error("the start of the VPN was interrupted")]
    Interrupted,
    #[error("the VPN task ended unexpectedly")]
    Task(#[from] tokio::task::JoinError),
}

impl Explain for OpenvpnError {
    fn code(&self) -> &'static str {
        match self {
            OpenvpnError::NoBinary => "openvpn-missing",
            OpenvpnError::NotStarted(_) => "openvpn-start",
            OpenvpnError::NoTunnel { .. } | OpenvpnError::Ended { .. } => "vpn-no-tunnel",
            OpenvpnError::NoStoredProfile { .. } => "vpn-no-profile",
            OpenvpnError::StoredProfile { .. } => "vpn-profile",
            OpenvpnError::File(e) => e.code(),
            OpenvpnError::Command(e) => e.code(),
            OpenvpnError::Process { .. } | OpenvpnError::Unstoppable => "openvpn-process",
            OpenvpnError::Interrupted => "vpn-interrupted",
            OpenvpnError::Task(_) => "vpn-task",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            OpenvpnError::NoBinary => {
                "install the package openvpn, or set CODA_NODE_AUTO_VPN=false and bring the tunnel up yourself"
                    .into()
            }
            OpenvpnError::NotStarted(_) => "start the host as root (or with CAP_NET_ADMIN), and make sure that /dev/net/tun exists".into(),
            OpenvpnError::NoTunnel { .. } | OpenvpnError::Ended { .. } => {
                "see the lines of its log above; common reasons: the server can't be reached, the certificate has \
                 expired, or /dev/net/tun may not be used; CODA_VPN_START_TIMEOUT_SEC allows more time"
                    .into()
            }
            OpenvpnError::NoStoredProfile { path } => {
                format!("get a new token in the Coda admin panel; the profile is then stored as {}", path.display())
            }
            OpenvpnError::StoredProfile { .. } => {
                "provision again with a new node token: the file was changed after it was stored".into()
            }
            OpenvpnError::File(e) => return e.hint(),
            OpenvpnError::Command(e) => return e.hint(),
            OpenvpnError::Process { .. } | OpenvpnError::Unstoppable => {
                "look for it with ps -C openvpn, and stop it as the user it runs as".into()
            }
            OpenvpnError::Interrupted => return None,
            OpenvpnError::Task(_) => "report this as a bug of coda-host".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            OpenvpnError::NoBinary
            | OpenvpnError::NoStoredProfile { .. }
            | OpenvpnError::StoredProfile { .. }
            | OpenvpnError::File(_) => exit::CONFIG,
            _ => exit::FAILURE,
        }
    }
}

/// The end of OpenVPN's log, as a cause.
#[derive(Debug)]
pub struct LogTail {
    pub(crate) path: PathBuf,
    pub(crate) lines: String,
}

impl fmt::Display for LogTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lines.is_empty() {
            true => write!(f, "{} is empty", self.path.display()),
            false => write!(f, "the last lines of {}:\n{}", self.path.display(), self.lines),
        }
    }
}

impl std::error::Error for LogTail {}

/// A tunnel that is up, and what can be taken back.
#[derive(Debug)]
pub struct Tunnel {
    pub interface: String,
    /// Whether OpenVPN was started for it just now.
    pub started: bool,
    undo: Option<Undo>,
}

/// The profile file as it was before.
#[derive(Debug)]
struct Undo {
    profile: Option<Vec<u8>>,
}

/// The managed daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Openvpn(Arc<Managed>);

#[derive(Debug)]
struct Managed {
    programs: Programs,
    profile: PathBuf,
    pid_file: PathBuf,
    log_file: PathBuf,
    start_timeout: Duration,
    stop_timeout: Duration,
    command_timeout: Duration,
    start_stop_lock: Arc<Mutex<()>>,
}

impl Openvpn {
    /// `dir` is where the credentials are.
    pub fn new(settings: &VpnSettings, dir: &Path, programs: Programs) -> Openvpn {
        Openvpn(Arc::new(Managed {
            programs,
            profile: settings.profile_path.clone(),
            pid_file: dir.join(PID_FILE),
            log_file: dir.join(LOG_FILE),
            start_timeout: settings.start_timeout,
            stop_timeout: settings.stop_timeout,
            command_timeout: settings.command_timeout,
            start_stop_lock: Arc::default(),
        }))
    }

    /// Whether a profile is stored.
    ///
    /// # Errors
    /// The stored file is not a regular file of this user.
    pub fn has_profile(&self) -> Result<bool, OpenvpnError> {
        Ok(files::read(&self.0.profile, MAX_PROFILE as u64)?.is_some())
    }

    /// Brings the stored profile's tunnel up, unless one is up already.
    ///
    /// # Errors
    /// There is no stored profile, or the tunnel doesn't come up. No daemon is left then.
    pub async fn up_stored(&self, hint: Option<String>) -> Result<Tunnel, OpenvpnError> {
        self.with_start_stop_lock(move |managed, cancel| managed.up_stored(hint.as_deref(), cancel)).await
    }

    /// Stores this profile and brings its tunnel up, unless one is up already. `anew` also replaces a tunnel
    /// of ours that another profile made.
    ///
    /// # Errors
    /// The tunnel doesn't come up. The files are then as before, and no daemon is left.
    pub async fn up_with(
        &self,
        profile: CheckedProfile,
        hint: Option<String>,
        anew: bool,
    ) -> Result<Tunnel, OpenvpnError> {
        self.with_start_stop_lock(move |managed, cancel| {
            managed.up_with(&profile, hint.as_deref(), anew, cancel)
        })
        .await
    }

    /// Takes back what brought this tunnel up.
    ///
    /// # Errors
    /// The daemon can't be stopped, or a file can't be restored.
    pub async fn undo(&self, tunnel: Tunnel) -> Result<(), OpenvpnError> {
        self.with_start_stop_lock(move |managed, _| match tunnel.undo {
            Some(undo) => managed.take_back(undo, tunnel.started),
            None if tunnel.started => managed.down().map(|_| ()),
            None => Ok(()),
        })
        .await
    }

    /// Stops the daemon if it is ours; says whether there was one.
    ///
    /// # Errors
    /// The daemon can't be stopped.
    pub async fn down(&self) -> Result<bool, OpenvpnError> {
        self.with_start_stop_lock(|managed, _| managed.down()).await
    }

    /// The process id of our daemon.
    ///
    /// # Errors
    /// When it can't be found out.
    pub fn running(&self) -> Result<Option<u32>, OpenvpnError> {
        Ok(self.0.find()?.map(|(pid, _)| pid))
    }

    /// The tunnel's interface, when it is up.
    ///
    /// # Errors
    /// When it can't be found out.
    pub async fn interface(&self, hint: Option<String>) -> Result<Option<String>, OpenvpnError> {
        let managed = self.0.clone();
        tokio::task::spawn_blocking(move || managed.detect(hint.as_deref())).await?
    }

    /// Stops the daemon if it is ours, for a process that does nothing else with it; blocks.
    ///
    /// # Errors
    /// The daemon can't be stopped.
    pub fn stop_now(&self) -> Result<bool, OpenvpnError> {
        self.0.down()
    }

    /// Does blocking work while it holds the start-stop lock. When the caller goes away, the work is cancelled.
    async fn with_start_stop_lock<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Managed, &CancellationToken) -> Result<T, OpenvpnError> + Send + 'static,
    ) -> Result<T, OpenvpnError> {
        let lock = self.0.start_stop_lock.clone().lock_owned().await;
        let cancel = CancellationToken::new();
        let gone = cancel.clone().drop_guard();
        let managed = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let done = work(&managed, &cancel);
            drop(lock);
            done
        })
        .await?;
        drop(gone);
        done
    }
}

impl Managed {
    fn up_stored(&self, hint: Option<&str>, cancel: &CancellationToken) -> Result<Tunnel, OpenvpnError> {
        let path = || self.profile.clone();
        let Some(stored) = files::read(&self.profile, MAX_PROFILE as u64)? else {
            return Err(OpenvpnError::NoStoredProfile { path: path() });
        };
        if let Some(interface) = self.detect(hint)? {
            self.tell_adopted(&interface)?;
            return Ok(Tunnel { interface, started: false, undo: None });
        }
        let checked =
            profile::check(&stored).map_err(|source| OpenvpnError::StoredProfile { path: path(), source })?;
        if checked.reneg_appended {
            self.store(&checked)?;
        }
        let interface = self.start(hint, cancel)?;
        Ok(Tunnel { interface, started: true, undo: None })
    }

    fn up_with(
        &self,
        profile: &CheckedProfile,
        hint: Option<&str>,
        anew: bool,
        cancel: &CancellationToken,
    ) -> Result<Tunnel, OpenvpnError> {
        // A file that can't be read because of its mode or owner can't be restored later.
        let before = files::read(&self.profile, MAX_PROFILE as u64).unwrap_or_default();
        let same = before.as_deref() == Some(profile.text().expose().as_bytes());
        self.store(profile)?;
        let up = || {
            if anew && !same {
                self.down()?;
            }
            match self.detect(hint)? {
                Some(interface) => {
                    self.tell_adopted(&interface)?;
                    Ok((interface, false))
                }
                None => Ok((self.start(hint, cancel)?, true)),
            }
        };
        match up() {
            Ok((interface, started)) => {
                Ok(Tunnel { interface, started, undo: Some(Undo { profile: before }) })
            }
            Err(error) => {
                if let Err(left) = self.take_back(Undo { profile: before }, true) {
                    tracing::warn!(error = %left, "not everything of the failed VPN could be taken back");
                }
                Err(error)
            }
        }
    }

    fn store(&self, profile: &CheckedProfile) -> Result<(), OpenvpnError> {
        if let Some(dir) = self.profile.parent() {
            files::ensure_dir(dir)?;
        }
        // A secret goes to its 0600 file.
        Ok(files::write(&self.profile, profile.text().expose().as_bytes())?)
    }

    fn take_back(&self, undo: Undo, started: bool) -> Result<(), OpenvpnError> {
        if started {
            self.down()?;
            files::remove(&self.log_file)?;
        }
        match undo.profile {
            Some(content) => files::write(&self.profile, &content)?,
            None => {
                files::remove(&self.profile)?;
            }
        }
        Ok(())
    }

    fn tell_adopted(&self, interface: &str) -> Result<(), OpenvpnError> {
        match self.find()? {
            Some((pid, _)) => {
                tracing::info!(interface, pid, "the VPN tunnel is up already, and managed again")
            }
            None => tracing::info!(interface, "a VPN tunnel that coda-host did not start is up and is used"),
        }
        Ok(())
    }

    /// Starts the daemon and waits for the interface; on failure nothing runs on.
    fn start(&self, hint: Option<&str>, cancel: &CancellationToken) -> Result<String, OpenvpnError> {
        // One of ours without an interface has lost its server, or hangs.
        self.down()?;
        self.launch()?;
        match self.wait_up(hint, cancel) {
            Ok(interface) => {
                tracing::info!(interface, "the VPN tunnel is up");
                Ok(interface)
            }
            Err(error) => {
                // Found without its pid file too: it forks before it writes that.
                if let Err(left) = self.down() {
                    tracing::warn!(error = %left, "OpenVPN could not be stopped after its failed start");
                }
                Err(error)
            }
        }
    }

    fn launch(&self) -> Result<(), OpenvpnError> {
        for file in [&self.pid_file, &self.log_file] {
            if let Some(dir) = file.parent() {
                files::ensure_dir(dir)?;
            }
            // New ones of our own: OpenVPN would write through a link, and make them readable to all.
            files::write(file, b"")?;
        }
        let arguments = [
            "--config".as_ref(),
            self.profile.as_os_str(),
            "--daemon".as_ref(),
            "--writepid".as_ref(),
            self.pid_file.as_os_str(),
            "--log".as_ref(),
            self.log_file.as_os_str(),
        ];
        tracing::info!(profile = %self.profile.display(), "starting OpenVPN");
        let output = match self.programs.run("openvpn", &arguments, self.command_timeout) {
            Err(CommandError::NotFound(_)) => return Err(OpenvpnError::NoBinary),
            output => output?,
        };
        if output.success {
            return Ok(());
        }
        let told = [output.stderr, output.stdout, self.tail().lines];
        let told = told.iter().map(|t| t.trim()).find(|t| !t.is_empty());
        Err(OpenvpnError::NotStarted(clean(told.unwrap_or("it gave no reason"))))
    }

    fn wait_up(&self, hint: Option<&str>, cancel: &CancellationToken) -> Result<String, OpenvpnError> {
        let until = Instant::now() + self.start_timeout;
        let mut seen: Option<ProcessHandle> = None;
        loop {
            if cancel.is_cancelled() {
                return Err(OpenvpnError::Interrupted);
            }
            if seen.is_none() {
                seen = self.find()?.map(|(_, process)| process);
            }
            if let Some(interface) = self.detect(hint)? {
                return Ok(interface);
            }
            let ended = match &seen {
                Some(process) => process.wait(POLL).map_err(watched)?,
                // What wrote the file is gone again.
                None if read_pid(&self.pid_file).is_some() => self.find()?.is_none(),
                None => {
                    std::thread::sleep(POLL);
                    false
                }
            };
            if ended {
                return Err(OpenvpnError::Ended { source: self.tail() });
            }
            if Instant::now() >= until {
                return Err(OpenvpnError::NoTunnel { limit: self.start_timeout, source: self.tail() });
            }
        }
    }

    fn down(&self) -> Result<bool, OpenvpnError> {
        let found = self.find()?;
        if let Some((pid, process)) = &found {
            let stopped = |signal| {
                process
                    .signal(signal)
                    .map_err(|source| OpenvpnError::Process { action: "stopped", source })?;
                process.wait(self.stop_timeout).map_err(watched)
            };
            if !stopped(libc::SIGTERM)? {
                tracing::warn!(pid, "OpenVPN does not end when asked to: killing it");
                if !stopped(libc::SIGKILL)? {
                    return Err(OpenvpnError::Unstoppable);
                }
            }
            tracing::info!(pid, "OpenVPN has ended");
        }
        files::remove(&self.pid_file)?;
        Ok(found.is_some())
    }

    /// Our daemon: by its pid file, or by its arguments as long as it has not written that file, or the file was removed.
    fn find(&self) -> Result<Option<(u32, ProcessHandle)>, OpenvpnError> {
        if let Some(pid) = read_pid(&self.pid_file)
            && let Some(process) = self.own(pid)?
        {
            return Ok(Some((pid, process)));
        }
        for pid in processes() {
            if is_openvpn_with(pid, &self.profile)
                && let Some(process) = self.own(pid)?
            {
                return Ok(Some((pid, process)));
            }
        }
        Ok(None)
    }

    /// This process, if it is our daemon. The descriptor is taken before the look at the process, so both mean the
    /// same one.
    fn own(&self, pid: u32) -> Result<Option<ProcessHandle>, OpenvpnError> {
        let process = ProcessHandle::open(pid).map_err(watched)?;
        Ok(process.filter(|_| is_openvpn_with(pid, &self.profile)))
    }

    fn detect(&self, hint: Option<&str>) -> Result<Option<String>, OpenvpnError> {
        Ok(interface::detect(&self.programs, hint, self.command_timeout)?)
    }

    fn tail(&self) -> LogTail {
        let lines = read_end(&self.log_file, TAIL_BYTES).unwrap_or_default();
        let lines = String::from_utf8_lossy(&lines);
        let skipped = lines.lines().count().saturating_sub(TAIL_LINES);
        let lines: Vec<String> = lines.lines().skip(skipped).map(clean).collect();
        LogTail { path: self.log_file.clone(), lines: lines.join("\n") }
    }
}

fn watched(source: io::Error) -> OpenvpnError {
    OpenvpnError::Process { action: "watched", source }
}

/// The numbers of all processes.
fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid > 1)
}

/// Text for a terminal: control characters, which a server may have sent, become blanks.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// Reads a pid: a number above 1 and nothing else. Any other content is treated as no pid.
fn read_pid(path: &Path) -> Option<u32> {
    let content = read_end(path, 32).ok()?;
    let text = std::str::from_utf8(&content).ok()?.trim();
    let digits = (1..=10).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|pid| *pid > 1)
}

/// The last bytes of a regular file, never through a link and without waiting for a pipe.
fn read_end(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut file: File =
        OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    file.seek(SeekFrom::Start(facts.len().saturating_sub(most)))?;
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

/// Whether the process is an OpenVPN that was started with this profile.
fn is_openvpn_with(pid: u32, profile: &Path) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let by_comm = fs::read(proc.join("comm")).is_ok_and(|comm| comm.trim_ascii() == b"openvpn");
    let by_exe =
        || fs::read_link(proc.join("exe")).is_ok_and(|exe| exe.file_name() == Some(OsStr::new("openvpn")));
    let with_profile = || {
        fs::read(proc.join("cmdline")).is_ok_and(|line| {
            let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
            words.windows(2).any(|w| w == [b"--config", profile.as_os_str().as_bytes()])
        })
    };
    (by_comm || by_exe()) && with_profile()
}

#[cfg(test)]
#[path = "openvpn_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "real_tests.rs"]
mod real_tests;
