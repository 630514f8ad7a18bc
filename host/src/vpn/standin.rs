//! For tests: a directory with scripts in the place of `openvpn` and `ip`. The tunnel is up while a file is
//! there; the daemon makes it and takes it away at its end.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::command::Programs;
use crate::config::settings::VpnSettings;

/// Everything an OpenVPN does that the host sees. What a test wants otherwise stands at `@@`.
const OPENVPN: &str = r#"#!/bin/sh
here=@dir@
echo "$*" >>"$here/starts"
while [ $# -gt 0 ]; do
  case "$1" in
    --writepid) pidfile="$2"; shift ;;
    --log) log="$2"; shift ;;
  esac
  shift
done
@@
(
  end() { rm -f "$here/tunnel"; exit 0; }
  trap end TERM
  [ -z "$DEAF" ] || trap '' TERM
  [ -z "$DIE" ] || exit 1
  [ -n "$NOTUN" ] || : >"$here/tunnel"
  while :; do sleep 0.02; done
) >/dev/null 2>&1 &
echo $! >"$pidfile"
"#;

const IP: &str = r#"#!/bin/sh
[ -e @dir@/tunnel ] || exit 0
case "$*" in
  "-o link show type tun" | "link show tun7")
    echo "7: tun7: <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP> mtu 1500 qdisc fq state UNKNOWN mode DEFAULT" ;;
  *) exit 1 ;;
esac
"#;

pub(crate) struct Standin {
    dir: tempfile::TempDir,
    state: PathBuf,
}

impl Standin {
    /// `script` runs in the stand-in before it becomes a daemon.
    pub fn new(script: &str) -> Standin {
        let dir = tempfile::tempdir().unwrap();
        for sub in ["bin", "ip-only", "state"] {
            fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let place = |text: &str| text.replace("@dir@", dir.path().to_str().unwrap());
        executable(&dir.path().join("bin/openvpn"), &place(&OPENVPN.replace("@@", script)));
        executable(&dir.path().join("bin/ip"), &place(IP));
        executable(&dir.path().join("ip-only/ip"), &place(IP));
        let state = dir.path().join("state");
        Standin { dir, state }
    }

    /// Where credentials and the files of the VPN are.
    pub fn dir(&self) -> &Path {
        &self.state
    }

    pub fn profile(&self) -> PathBuf {
        self.dir().join("coda-node.ovpn")
    }

    /// Where the scripts are.
    pub fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    pub fn programs(&self) -> Programs {
        Programs::within(vec![self.bin()])
    }

    pub fn without_openvpn(&self) -> Programs {
        Programs::within(vec![self.dir.path().join("ip-only")])
    }

    pub fn settings(&self) -> VpnSettings {
        VpnSettings { profile_path: self.profile(), interface_hint: None, ..crate::cloud::testing::vpn() }
    }

    /// The arguments of every start.
    pub fn starts(&self) -> Vec<String> {
        let starts = fs::read_to_string(self.dir.path().join("starts")).unwrap_or_default();
        starts.lines().map(str::to_owned).collect()
    }

    pub fn expected_arguments(&self) -> String {
        let dir = self.dir().display();
        format!(
            "--config {dir}/coda-node.ovpn --daemon --writepid {dir}/coda-node-openvpn.pid --log \
             {dir}/coda-node-openvpn.log"
        )
    }

    /// There while the tunnel is up.
    pub fn tunnel_file(&self) -> PathBuf {
        self.dir.path().join("tunnel")
    }

    pub fn tunnel_is_up(&self) -> bool {
        self.tunnel_file().exists()
    }

    /// As if somebody brought a tunnel up, or took it down.
    pub fn set_tunnel(&self, up: bool) {
        let path = self.tunnel_file();
        match up {
            true => fs::write(path, "").unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
    }

    pub fn leftovers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir()).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Neither files nor a process.
    pub fn is_clean(&self) -> bool {
        let processes = fs::read_dir("/proc").unwrap().filter_map(|e| {
            let line = fs::read(e.unwrap().path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(self.profile().to_str().unwrap()).then_some(())
        });
        self.leftovers().is_empty() && processes.count() == 0
    }

    pub async fn wait(&self, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < until, "waited in vain");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        // A daemon that a failed test left: this one is killed by its own pid file.
        if let Ok(pid) = fs::read_to_string(self.dir().join(super::openvpn::PID_FILE))
            && let Ok(pid) = pid.trim().parse()
            && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                String::from_utf8_lossy(&line).contains(self.profile().to_str().unwrap_or("?"))
            })
            && let Ok(Some(process)) = crate::sys::ProcessHandle::open(pid)
        {
            process.signal(libc::SIGKILL).ok();
        }
    }
}

/// Written by a separate process: a descriptor for writing that a fork of another test inherits would make
/// the script unusable for a moment.
pub(crate) fn executable(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    install.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(install.wait().unwrap().success());
}
