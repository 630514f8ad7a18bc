//! The managed daemon against a real OpenVPN server: two network namespaces on one wire, certificates made
//! here. Skipped with a message where there is no openvpn, or no right to make namespaces.

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

use super::*;
use crate::error::Failure;
use crate::vpn::standin::{Standin, executable};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

/// Two namespaces and the server in one of them.
struct Network {
    name: String,
    standin: Standin,
    server: Option<Child>,
    ca: Option<Issuer<'static, KeyPair>>,
    ca_pem: String,
}

fn ip(arguments: &str) -> bool {
    let ran = Command::new("ip").args(arguments.split(' ')).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}

impl Network {
    /// `None`, and a message, where it can't be had.
    fn new(name: &str) -> Option<Network> {
        let name = format!("coda-{name}-{}", std::process::id());
        let programs = Programs::of_path("/usr/bin:/bin");
        let (Some(openvpn), Some(ip_path)) = (programs.find("openvpn"), programs.find("ip")) else {
            println!("skipped: openvpn and ip are not both installed");
            return None;
        };
        // One whose making fails is taken away by the drop.
        let network =
            Network { name, standin: Standin::new(""), server: None, ca: None, ca_pem: String::new() };
        let n = &network.name;
        let (s, c) = (format!("{n}-s"), format!("{n}-c"));
        let made = Path::new("/dev/net/tun").exists()
            && ip(&format!("netns add {s}"))
            && ip(&format!("netns add {c}"))
            && ip(&format!("link add wire netns {s} type veth peer name wire netns {c}"))
            && ip(&format!("-n {s} addr add {SERVER}/24 dev wire"))
            && ip(&format!("-n {c} addr add 10.77.0.2/24 dev wire"))
            && [&s, &c].iter().all(|ns| ip(&format!("-n {ns} link set wire up")));
        if !made {
            println!("skipped: no network namespaces with /dev/net/tun here");
            return None;
        }
        // What the host starts runs in the client's namespace; the process is the real openvpn.
        let bin = network.standin.bin();
        for (name, path) in [("openvpn", openvpn), ("ip", ip_path)] {
            let script = format!("#!/bin/sh\nexec ip netns exec {c} {} \"$@\"\n", path.display());
            executable(&bin.join(name), &script);
        }
        Some(network)
    }

    fn authority(&mut self) {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        self.ca_pem = params.self_signed(&key).unwrap().pem();
        self.ca = Some(Issuer::new(params, key));
    }

    fn certificate(&self, purpose: ExtendedKeyUsagePurpose) -> (String, String) {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(rcgen::DnType::CommonName, "vpn.example");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyAgreement];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, self.ca.as_ref().unwrap()).unwrap().pem(), key.serialize_pem())
    }

    /// Starts the server, whose certificate is for this purpose.
    fn serve(&mut self, purpose: ExtendedKeyUsagePurpose) {
        let (cert, key) = self.certificate(purpose);
        let dir = self.standin.bin();
        for (name, text) in [("ca.pem", &self.ca_pem), ("cert.pem", &cert), ("key.pem", &key)] {
            fs::write(dir.join(name), text).unwrap();
        }
        let arguments = format!(
            "netns exec {}-s openvpn --mode server --tls-server --dev tun --topology subnet --server 10.78.0.0 \
             255.255.255.0 --proto udp --local {SERVER} --port 1194 --ca ca.pem --cert cert.pem --key key.pem \
             --dh none --data-ciphers AES-256-GCM --keepalive 1 5 --verb 3",
            self.name
        );
        let mut command = Command::new("ip");
        let log = File::create(dir.join("server.log")).unwrap();
        command.args(arguments.split_whitespace()).current_dir(dir).stdout(log).stderr(Stdio::null());
        self.server = Some(crate::sys::spawn_dying_with_parent(command).unwrap());
    }

    /// As a cloud endpoint exports it, with CRLF, and without a `reneg-sec`.
    fn profile(&self) -> CheckedProfile {
        let (cert, key) = self.certificate(ExtendedKeyUsagePurpose::ClientAuth);
        let text = format!(
            "client\ndev tun\nproto udp\nremote {SERVER} 1194\nresolv-retry infinite\nnobind\n\
             remote-cert-tls server\ncipher AES-256-GCM\nverb 3\nverify-x509-name 'vpn.example' \"name\" # it\n\
             <ca>\n{}</ca>\n<cert>\n{cert}</cert>\n<key>\n{key}</key>\n",
            self.ca_pem
        );
        profile::check(text.replace("\r\n", "\n").replace('\n', "\r\n").as_bytes()).unwrap()
    }

    fn openvpn(&self, start_timeout: u64) -> Openvpn {
        let mut settings = self.standin.settings();
        settings.start_timeout = Duration::from_secs(start_timeout);
        Openvpn::new(&settings, self.standin.dir(), self.standin.programs())
    }

    fn stop_server(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            server.kill().ok();
            server.wait().ok();
        }
        for end in ["s", "c"] {
            ip(&format!("netns del {}-{end}", self.name));
        }
    }
}

#[tokio::test]
async fn a_real_tunnel_comes_up_carries_packets_is_adopted_and_goes_down() {
    let Some(mut network) = Network::new("up") else { return };
    network.authority();
    network.serve(ExtendedKeyUsagePurpose::ServerAuth);
    let vpn = network.openvpn(30);
    let tunnel = match vpn.up_with(network.profile(), None, true).await {
        Ok(tunnel) => tunnel,
        Err(error) => panic!("{}", Failure::from(error).render()),
    };
    assert_eq!((&*tunnel.interface, tunnel.started), ("tun0", true));
    let pid = vpn.running().unwrap().unwrap();
    let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(exe.file_name().unwrap(), "openvpn");
    let log = fs::read_to_string(network.standin.dir().join(LOG_FILE)).unwrap();
    assert!(log.contains("VERIFY EKU OK") && log.contains("VERIFY X509NAME OK"), "{log}");
    // Through the tunnel, to the server's address in it.
    let reach = format!("netns exec {}-c bash -c </dev/tcp/10.78.0.1/9", network.name);
    let output = Command::new("ip").args(reach.splitn(6, ' ')).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("refused"), "the other end answers that nothing listens: {said}");

    let next = network.openvpn(30);
    assert!(!next.up_stored(None).await.unwrap().started);
    assert_eq!(next.running().unwrap(), Some(pid));
    assert!(next.down().await.unwrap());
    assert_eq!((next.running().unwrap(), next.interface(None).await.unwrap()), (None, None));
    // From the disk, as after a restart.
    assert!(next.up_stored(Some("tun0".into())).await.unwrap().started);
    assert!(next.down().await.unwrap());
}

#[tokio::test]
async fn a_real_server_that_is_not_trusted_gives_no_tunnel_and_the_log_says_why() {
    let Some(mut network) = Network::new("bad") else { return };
    network.authority();
    network.serve(ExtendedKeyUsagePurpose::ClientAuth);
    let failure = Failure::from(network.openvpn(4).up_with(network.profile(), None, true).await.unwrap_err());
    assert!(failure.message.contains("No VPN tunnel interface detected"), "{}", failure.render());
    assert!(failure.causes[0].contains("unsuitable certificate purpose"), "{}", failure.render());
    assert!(network.standin.is_clean(), "{:?}", network.standin.leftovers());

    // No one there, and the one that asked goes away.
    network.stop_server();
    let vpn = network.openvpn(30);
    let starting = tokio::spawn({
        let (vpn, profile) = (vpn.clone(), network.profile());
        async move { vpn.up_with(profile, None, true).await.map(|_| ()) }
    });
    network.standin.wait(|| vpn.running().unwrap().is_some()).await;
    starting.abort();
    assert!(!vpn.down().await.unwrap());
    assert!(network.standin.is_clean(), "{:?}", network.standin.leftovers());
}

/// What the real parser says of a profile, without starting anything.
fn parsed_by_openvpn(openvpn: &Path, text: &str) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let output = Command::new(openvpn)
        .args(["--config".as_ref(), file.path().as_os_str(), "--show-digests".as_ref()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() && !said.contains("Options error") { Ok(()) } else { Err(said) }
}

#[test]
fn the_real_parser_takes_every_directive_of_the_table_and_the_same_words() {
    use super::super::directives::{ALLOWED, Shape};
    let Some(openvpn) = Programs::of_path("/usr/bin:/bin").find("openvpn") else {
        println!("skipped: openvpn is not installed");
        return;
    };
    let sample = |shape: &Shape| match shape {
        Shape::Word(words) => words[0].to_owned(),
        Shape::Number(low, _) | Shape::NumberOr(low, ..) => low.max(&1).to_string(),
        Shape::Host => "vpn.example".into(),
        Shape::TunDevice => "tun".into(),
        Shape::Algorithms => "AES-256-GCM".into(),
        Shape::Text => "text".into(),
    };
    for directive in ALLOWED {
        for count in directive.required..=directive.arguments.len() {
            let arguments = directive.arguments.iter().take(count).map(&sample);
            let line =
                std::iter::once(directive.name.to_owned()).chain(arguments).collect::<Vec<_>>().join(" ");
            assert!(profile::check(format!("client\nremote h\n{line}\n").as_bytes()).is_ok(), "{line}");
            let said = parsed_by_openvpn(&openvpn, &format!("{line}\n"));
            assert!(said.is_ok(), "{line}: {said:?}");
            if directive.in_connection {
                let block = format!("<connection>\nremote h\n{line}\n</connection>\n");
                let said = parsed_by_openvpn(&openvpn, &block);
                assert!(said.is_ok(), "{line} in a block: {said:?}");
            }
        }
    }
    // Ours alone refuses these; to OpenVPN they are the directive itself.
    for line in [
        "--up /bin/true",
        "\"up\" /bin/true",
        "'up' /bin/true",
        "\tup /bin/true",
        "\u{feff}up /bin/true",
        "\\ up /bin/true",
        "'--up' /bin/true",
        "up /bin/true\r",
    ] {
        assert!(parsed_by_openvpn(&openvpn, &format!("{line}\n")).is_ok(), "{line:?}");
        let error = profile::check(format!("{line}\nclient\nremote h\n").as_bytes()).unwrap_err();
        assert!(error.to_string().contains("'up'"), "{line:?}: {error}");
    }
    // And these are errors to both.
    for line in
        ["u\\p x", "\"up x", "UP x", "<ca>\nx", "----up x", "# \u{feff}\n\u{feff}verb 3", &"#".repeat(300)]
    {
        assert!(parsed_by_openvpn(&openvpn, &format!("{line}\n")).is_err(), "{line:?}");
        assert!(profile::check(format!("client\nremote h\n{line}\n").as_bytes()).is_err(), "{line:?}");
    }
}
