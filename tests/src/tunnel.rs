//! A real OpenVPN server beyond a wire, for hosts that bring their own tunnel up. Everything happens in network
//! namespaces of the test, never in the machine's.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use coda_host::sys;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::wait::eventually;

/// Set in a process that has a separate network.
const INSIDE: &str = "CODA_TEST_OWN_NETWORK";
/// The server's end of the wire, and of the tunnel.
const WIRE: &str = "10.77.0.1";
pub const FAR_END: &str = "10.78.0.1";

/// Whether this process has a separate network, with nothing but loopback. If not, the test of this name is run
/// in a process that has, and its failure is this one's; where that can't be had, a message is all that comes of it.
///
/// # Panics
/// When the test fails there.
pub fn own_network(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("the test's own path");
    let unshared = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["-n", "sh", "-c", r#"ip link set lo up && exec "$@""#, "sh"]).args(arguments);
        command.env(INSIDE, "1").stdin(Stdio::null());
        command
    };
    let possible = unshared(&["true"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success());
    if !possible {
        println!("skipped: no network namespaces here (they need root, unshare and ip)");
        return false;
    }
    let path = program.to_str().expect("a plain path");
    let output = unshared(&[path, "--exact", test, "--nocapture"]).output().expect("unshare can be started");
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).join("\n");
    println!("{said}");
    assert!(output.status.success(), "{test}, in a separate network");
    assert!(said.contains("1 passed"), "there is a test of the name {test}");
    false
}

/// A server in a network namespace at the other end of a wire from this process's own network.
pub struct Tunnel {
    dir: TempDir,
    /// Holds the namespace.
    holder: Child,
    server: Option<Child>,
    profile: String,
}

impl Tunnel {
    /// Lays the wire; the server is not started. `None`, and a message, where it can't be had.
    pub async fn lay() -> Option<Tunnel> {
        let installed = Path::new("/usr/sbin/openvpn").exists() && Path::new("/dev/net/tun").exists();
        if !installed {
            println!("skipped: openvpn is not installed, or there is no /dev/net/tun");
            return None;
        }
        let dir = tempfile::Builder::new().prefix("coda-tunnel-").tempdir().expect("a directory");
        let mut holder = Command::new("unshare");
        holder.args(["-n", "sh", "-c", "ip link set lo up && exec sleep infinity"]).stdin(Stdio::null());
        let holder = sys::spawn_dying_with_parent(holder).expect("unshare can be started");
        let mut tunnel = Tunnel { profile: certify(dir.path()), dir, holder, server: None };
        let pid = tunnel.holder.id().to_string();
        let name = format!("/proc/{pid}/comm");
        eventually("the namespace is there", async || {
            assert!(tunnel.holder.try_wait().expect("the child can be waited for").is_none());
            fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
        })
        .await;
        let laid = [
            "ip tuntap add dev probe mode tun".to_string(),
            "ip tuntap del dev probe mode tun".to_string(),
            format!("ip link add wire type veth peer name wire netns {pid}"),
            "ip addr add 10.77.0.2/24 dev wire".to_string(),
            "ip link set wire up".to_string(),
            format!("nsenter -t {pid} -n ip addr add {WIRE}/24 dev wire"),
            format!("nsenter -t {pid} -n ip link set wire up"),
        ]
        .iter()
        .all(|command| ran(command));
        laid.then_some(tunnel)
    }

    /// Starts the server.
    pub fn serve(&mut self) {
        let arguments = format!(
            "openvpn --mode server --tls-server --dev tun --topology subnet --server 10.78.0.0 255.255.255.0 \
             --proto udp --local {WIRE} --port 1194 --ca ca.pem --cert cert.pem --key key.pem --dh none \
             --data-ciphers AES-256-GCM --keepalive 1 4 --verb 3"
        );
        let words: Vec<&str> = arguments.split_whitespace().collect();
        self.server = Some(self.beyond(&words, "server.log"));
    }

    /// Starts a program at the far end.
    pub fn beyond(&self, arguments: &[&str], log: &str) -> Child {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.holder.id().to_string(), "-n"]).args(arguments).stdin(Stdio::null());
        let log = File::create(self.dir.path().join(log)).expect("a log");
        command.current_dir(self.dir.path());
        command.stdout(log.try_clone().expect("a file can be shared")).stderr(log);
        sys::spawn_dying_with_parent(command).expect("nsenter can be started")
    }

    /// SIGKILL: the clients hear nothing any more.
    pub fn stop_serving(&mut self) {
        if let Some(mut server) = self.server.take() {
            // It may have ended by itself.
            server.kill().ok();
            server.wait().expect("the child can be waited for");
        }
    }

    /// A client's profile, as a cloud endpoint exports it: certificates inside, CRLF, and no `reneg-sec`.
    pub fn profile(&self) -> &str {
        &self.profile
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("server.log")).unwrap_or_default()
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.stop_serving();
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}

/// Whether a command went well; a message if not.
fn ran(command: &str) -> bool {
    let words: Vec<&str> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("it can be started");
    if !output.status.success() {
        println!("skipped: {command}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    output.status.success()
}

/// Leaves the server's files there and returns the client's profile.
fn certify(dir: &Path) -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
    let certificate = |purpose| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "vpn.example");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyAgreement];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &ca).expect("a certificate").pem(), key.serialize_pem())
    };
    let (cert, key) = certificate(ExtendedKeyUsagePurpose::ServerAuth);
    for (name, text) in [("ca.pem", ca.pem()), ("cert.pem", cert), ("key.pem", key)] {
        fs::write(dir.join(name), text).expect("a file of the server");
    }
    let (cert, key) = certificate(ExtendedKeyUsagePurpose::ClientAuth);
    let text = format!(
        "client\ndev tun\nproto udp\nremote {WIRE} 1194\nresolv-retry infinite\nnobind\nremote-cert-tls server\n\
         cipher AES-256-GCM\nverb 3\n<ca>\n{}</ca>\n<cert>\n{cert}</cert>\n<key>\n{key}</key>\n",
        ca.pem()
    );
    text.replace("\r\n", "\n").replace('\n', "\r\n")
}
