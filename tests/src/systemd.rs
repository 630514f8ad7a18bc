//! A real systemd for the units of `packaging/systemd`: pid 1 of namespaces of its own, over a copy-on-write view
//! of this machine's files. Nothing of the machine's own systemd, if it has one, is touched.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::artifacts::{binary, library, project_file};
use crate::host_process::Said;
use crate::process::is_root;
use crate::test_host::TestHost;
use crate::wait::{LIMIT, in_time};

const PROGRAM: &str = "/usr/lib/systemd/systemd";
const SCRIPT: &str = include_str!("systemd.sh");
/// Reached when the system is up; nothing else of the machine is started.
const TARGET: &str = "[Unit]\nRequires=basic.target\nAfter=basic.target\nAllowIsolate=yes\n";

/// A system with the units of the package, the binary and the plugins under test. It ends when dropped.
pub struct Systemd {
    boot: Child,
    pid: u32,
    stage: TempDir,
}

impl Systemd {
    /// Boots one. `None`, and a message, where it can't be had.
    pub async fn boot() -> Option<Systemd> {
        if !Path::new(PROGRAM).exists() || !is_root() {
            println!("skipped: systemd is not installed, or this is not root");
            return None;
        }
        let stage = tempfile::Builder::new().prefix("coda-systemd-").tempdir().expect("a directory");
        lay(stage.path());
        // A mount namespace of its own from the first step on: every mount goes with its last process.
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "sh"]);
        command.arg(stage.path().join("boot.sh")).arg(stage.path());
        let log = File::create(stage.path().join("boot.log")).expect("a log");
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        let boot = coda_host::sys::spawn_dying_with_parent(command).expect("unshare can be started");
        let mut system = Systemd { boot, pid: 0, stage };
        let begun = in_time(async || match system.boot.try_wait() {
            Ok(None) => descendant(system.boot.id()).map(Some),
            _ => Some(None),
        })
        .await;
        system.pid = begun.flatten().unwrap_or_default();
        // What else of the machine fails there is not looked at.
        let up = async || {
            let state = system.run(&["systemctl", "is-system-running"]).await.out;
            ["running", "degraded"].contains(&state.trim()).then_some(())
        };
        if system.pid == 0 || in_time(up).await.is_none() {
            let log = fs::read_to_string(system.stage.path().join("boot.log")).unwrap_or_default();
            println!("skipped: no systemd comes up in namespaces here: {}", log.trim());
            return None;
        }
        Some(system)
    }

    /// Runs a command as root of that system.
    pub async fn run(&self, arguments: &[&str]) -> Said {
        let mut command = tokio::process::Command::new("nsenter");
        command.args(["-t", &self.pid.to_string(), "-m", "-p", "-u", "-i", "-C", "env", "-i"]);
        command.args(["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]).args(arguments);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let done = tokio::time::timeout(LIMIT, command.output()).await;
        let output = done.expect("the command ends").expect("nsenter can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    /// `systemctl` with these arguments, which has to succeed.
    pub async fn systemctl(&self, arguments: &[&str]) -> String {
        let said = self.run(&[&["systemctl"], arguments].concat()).await;
        if said.code != 0 {
            let journal = self.run(&["journalctl", "--no-pager", "-o", "cat", "-n", "40"]).await.out;
            panic!("systemctl {arguments:?}: {}\n{journal}", said.text());
        }
        said.out
    }

    /// A property of a unit, as `systemctl show` has it.
    pub async fn property(&self, unit: &str, name: &str) -> String {
        self.systemctl(&["show", unit, "--value", "-p", name]).await.trim().into()
    }

    /// What a unit's processes have said.
    pub async fn journal(&self, unit: &str) -> String {
        self.run(&["journalctl", "--no-pager", "-o", "cat", "-u", unit]).await.out
    }

    /// Changes of a unit, in a drop-in as `systemctl edit` makes it.
    pub async fn edit(&self, unit: &str, text: &str) {
        let dir = self.stage.path().join(format!("units/{unit}.d"));
        fs::create_dir_all(&dir).expect("a directory");
        fs::write(dir.join("override.conf"), text).expect("a drop-in");
        self.systemctl(&["daemon-reload"]).await;
    }

    /// The host's settings as the unit reads them; the state directory is the unit's own.
    pub fn configure(&self, host: &TestHost, name: &str) {
        let device =
            fs::read_to_string(host.dir().join("device.yaml")).expect("the host has a device config");
        fs::write(self.site().join(format!("{name}.yaml")), device).expect("the device config");
        let mut text = format!("CODA_NODE_TOKEN={}\n", crate::test_host::TOKEN);
        for (key, value) in &host.env {
            match key.as_str() {
                "CODA_STATE_DIR" | "PATH" => {}
                "CODA_DEVICE_CONFIG" => text.push_str(&format!("{key}=/etc/coda-host/{name}.yaml\n")),
                _ => text.push_str(&format!("{key}='{value}'\n")),
            }
        }
        fs::write(self.site().join(format!("{name}.env")), text).expect("the unit's environment");
    }

    /// `/etc/coda-host`
    pub fn site(&self) -> PathBuf {
        self.stage.path().join("site")
    }

    /// `/var/lib/coda-host`
    pub fn state(&self) -> PathBuf {
        self.stage.path().join("state")
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // Its namespaces' processes end with it, then the script that waits for it tidies up and ends.
        if self.pid != 0 && self.boot.try_wait().is_ok_and(|ended| ended.is_none()) {
            coda_host::sys::signal(self.pid, libc::SIGKILL).ok();
        } else {
            self.boot.kill().ok();
        }
        self.boot.wait().ok();
    }
}

/// Fills the directory that `systemd.sh` reads.
fn lay(stage: &Path) {
    let tree = stage.join("tree");
    for dir in ["tree/usr/bin", "units", "site", "plugins", "state"] {
        fs::create_dir_all(stage.join(dir)).expect("a directory");
    }
    fs::copy(binary(), tree.join("usr/bin/coda-host")).expect("the binary");
    for name in ["coda_simulator", "coda_faulty"] {
        fs::copy(library(name), stage.join(format!("plugins/lib{name}.so"))).expect("a plugin");
    }
    for unit in ["coda-host.service", "coda-host@.service"] {
        let from = project_file("packaging/systemd").join(unit);
        fs::copy(from, stage.join("units").join(unit)).expect("a unit");
    }
    fs::write(stage.join("units/coda.target"), TARGET).expect("a target");
    fs::write(stage.join("boot.sh"), SCRIPT).expect("a script");
    fs::set_permissions(stage, fs::Permissions::from_mode(0o755)).expect("a mode");
}

/// The systemd that a process has among its descendants.
fn descendant(of: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{of}/task/{of}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find_map(|pid: u32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        if name.trim() == "systemd" { Some(pid) } else { descendant(pid) }
    })
}
