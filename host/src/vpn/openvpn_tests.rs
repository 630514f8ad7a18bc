//! The managed daemon, with small scripts in the place of `openvpn` and `ip`, and with the real ones where
//! this machine allows it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;

use super::*;
use crate::cloud::testing;
use crate::error::Failure;
use crate::vpn::standin::Standin;

const PROFILE: &str = "client\ndev tun\nremote vpn.example 443\nreneg-sec 0\n";

fn checked(text: &str) -> CheckedProfile {
    profile::check(text.as_bytes()).unwrap()
}

fn openvpn(standin: &Standin) -> Openvpn {
    Openvpn::new(&standin.settings(), standin.dir(), standin.programs())
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_tunnel_comes_up_is_adopted_and_goes_down() {
    let standin = Standin::new("");
    let vpn = openvpn(&standin);
    let tunnel = vpn.up_with(checked(PROFILE), None, true).await.unwrap();
    assert_eq!((&*tunnel.interface, tunnel.started), ("tun7", true));
    let pid = vpn.running().unwrap().unwrap();
    assert_eq!(standin.starts(), [standin.expected_arguments()]);
    for file in [standin.profile(), standin.dir().join(PID_FILE), standin.dir().join(LOG_FILE)] {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    assert_eq!(fs::read_to_string(standin.profile()).unwrap(), PROFILE);

    // As after a crash of the host: another one finds it.
    let next = openvpn(&standin);
    assert!(!next.up_stored(Some("tun7".into())).await.unwrap().started);
    assert!(!next.up_with(checked(PROFILE), None, true).await.unwrap().started);
    // The cloud gave a new profile on a reconnect: kept for the next start.
    let newer = PROFILE.replace("443", "444");
    assert!(!next.up_with(checked(&newer), None, false).await.unwrap().started);
    assert_eq!((next.running().unwrap(), standin.starts().len()), (Some(pid), 1));
    // Another profile on a first run: another tunnel.
    assert!(next.up_with(checked(PROFILE), None, true).await.unwrap().started);
    assert_ne!(next.running().unwrap(), Some(pid));

    assert!(next.down().await.unwrap());
    assert!(!next.down().await.unwrap());
    assert_eq!(next.interface(None).await.unwrap(), None);
    assert!(!standin.dir().join(PID_FILE).exists());
    // The profile stays for the next start, which checks it again.
    assert!(next.up_stored(None).await.unwrap().started);
    assert!(next.down().await.unwrap());
}

#[tokio::test]
async fn a_start_that_fails_leaves_nothing_and_shows_the_log() {
    let lines: String = (1..=30).map(|n| format!("echo \"line $((0 + {n}))\" >>\"$log\"\n")).collect();
    let cases = [
        ("NOTUN=1\n".to_owned() + &lines, "No VPN tunnel interface detected"),
        (format!("{lines}DIE=1\n"), "OpenVPN ended before the tunnel was up"),
        ("echo 'Options error: bad' >&2; exit 1\n".into(), "Failed to start OpenVPN: Options error: bad"),
        ("echo 'on stdout'; exit 1\n".into(), "Failed to start OpenVPN: on stdout"),
        ("echo logged >>\"$log\"; exit 1\n".into(), "Failed to start OpenVPN: logged"),
    ];
    for (script, expected) in cases {
        let standin = Standin::new(&script);
        let mut settings = standin.settings();
        settings.start_timeout = Duration::from_millis(700);
        let vpn = Openvpn::new(&settings, standin.dir(), standin.programs());
        let error = vpn.up_with(checked(PROFILE), None, true).await.unwrap_err();
        let failure = Failure::from(error);
        assert!(failure.message.starts_with(expected), "{}", failure.message);
        if failure.message.contains("tunnel") {
            let log = &failure.causes[0];
            assert!(
                log.contains("\nline 11\n") && log.ends_with("line 30") && !log.contains("line 10\n"),
                "{log}"
            );
        }
        assert!(standin.is_clean(), "{expected}: {:?}", standin.leftovers());
    }
    let standin = Standin::new("");
    let vpn = Openvpn::new(&standin.settings(), standin.dir(), standin.without_openvpn());
    let failure = Failure::from(vpn.up_with(checked(PROFILE), None, true).await.unwrap_err());
    assert!(failure.message.starts_with("openvpn binary not found") && failure.hint.is_some());
    assert!(standin.is_clean());
}

#[tokio::test]
async fn a_failed_start_puts_the_former_profile_back() {
    let standin = Standin::new("NOTUN=1\n");
    let mut settings = standin.settings();
    settings.start_timeout = Duration::from_millis(200);
    let vpn = Openvpn::new(&settings, standin.dir(), standin.programs());
    files::write(&standin.profile(), b"client\nremote old\n").unwrap();
    vpn.up_with(checked(PROFILE), None, true).await.unwrap_err();
    assert_eq!(fs::read(standin.profile()).unwrap(), b"client\nremote old\n");
    assert_eq!(vpn.running().unwrap(), None);
}

#[tokio::test]
async fn what_was_brought_up_can_be_taken_back() {
    let standin = Standin::new("");
    let vpn = openvpn(&standin);
    let tunnel = vpn.up_with(checked(PROFILE), None, true).await.unwrap();
    vpn.undo(tunnel).await.unwrap();
    assert!(standin.is_clean(), "{:?}", standin.leftovers());
}

#[tokio::test]
async fn whoever_goes_away_while_it_starts_leaves_no_daemon() {
    let standin = Standin::new("NOTUN=1\n");
    let vpn = openvpn(&standin);
    let starting = tokio::spawn({
        let vpn = vpn.clone();
        async move { vpn.up_with(checked(PROFILE), None, true).await.map(|_| ()) }
    });
    standin.wait(|| !standin.starts().is_empty()).await;
    starting.abort();
    // Waits for the lock, so for the end of the interrupted start.
    assert!(!vpn.down().await.unwrap());
    assert!(standin.is_clean(), "{:?}", standin.leftovers());
    assert!(!standin.tunnel_is_up());
}

#[tokio::test]
async fn a_pid_file_is_believed_only_for_an_openvpn_with_our_profile() {
    let standin = Standin::new("");
    let vpn = openvpn(&standin);
    let pid_file = standin.dir().join(PID_FILE);
    let mut other = Command::new("sleep").arg("600").spawn().unwrap();
    let other_pid = other.id().to_string();
    for content in ["0", "1", "-1", "", "abc", "99999999999", "4294967296", "2 3", "0x10", "+5", &other_pid] {
        fs::write(&pid_file, content).unwrap();
        assert_eq!(vpn.running().unwrap(), None, "{content:?}");
        assert!(!vpn.down().await.unwrap(), "{content:?}");
        assert!(!pid_file.exists(), "a stale file goes");
    }
    assert!(other.try_wait().unwrap().is_none(), "somebody else's process was stopped");
    // An OpenVPN, but with another profile.
    let elsewhere = Standin::new("");
    openvpn(&elsewhere).up_with(checked(PROFILE), None, true).await.unwrap();
    fs::copy(elsewhere.dir().join(PID_FILE), &pid_file).unwrap();
    assert_eq!(vpn.running().unwrap(), None);
    vpn.down().await.unwrap();
    assert!(openvpn(&elsewhere).down().await.unwrap(), "it still ran");
    // The profile's path in the arguments of something that is not OpenVPN.
    let mut like = Command::new("sh")
        .args(["-c", "read never", "x", "--config"])
        .arg(standin.profile())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    fs::write(&pid_file, like.id().to_string()).unwrap();
    assert_eq!(vpn.running().unwrap(), None);
    for child in [&mut other, &mut like] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[tokio::test]
async fn links_and_pipes_in_the_place_of_its_files_are_replaced_not_followed() {
    let standin = Standin::new("");
    let vpn = openvpn(&standin);
    let victim = standin.dir().join("victim");
    fs::write(&victim, "precious").unwrap();
    for name in [PID_FILE, LOG_FILE, "coda-node.ovpn"] {
        symlink(&victim, standin.dir().join(name)).unwrap();
    }
    vpn.up_with(checked(PROFILE), None, true).await.unwrap();
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    vpn.down().await.unwrap();
    fs::remove_file(standin.profile()).unwrap();
    symlink(&victim, standin.profile()).unwrap();
    let error = vpn.up_stored(None).await.unwrap_err();
    assert!(Failure::from(error).line().contains("a symbolic link"));
    fs::remove_file(standin.profile()).unwrap();
    fs::write(standin.profile(), PROFILE).unwrap();
    fs::set_permissions(standin.profile(), fs::Permissions::from_mode(0o644)).unwrap();
    let failure = Failure::from(vpn.up_stored(None).await.unwrap_err());
    assert!(failure.hint.unwrap().contains("chmod 600"));
}

#[tokio::test]
async fn a_stored_profile_is_checked_again() {
    let standin = Standin::new("");
    let vpn = openvpn(&standin);
    let failure = Failure::from(vpn.up_stored(None).await.unwrap_err());
    assert_eq!(
        failure.message,
        "Persisted VPN profile not found. Re-run node provisioning with a new token."
    );
    assert!(!vpn.has_profile().unwrap());
    files::write(&standin.profile(), b"client\nremote h\nup /bin/sh\n").unwrap();
    let failure = Failure::from(vpn.up_stored(None).await.unwrap_err());
    assert!(failure.line().contains("line 3") && failure.line().contains("'up'"), "{}", failure.line());
    assert!(standin.starts().is_empty(), "nothing was started");
    // As the Python node may have left it.
    files::write(&standin.profile(), b"client\nremote h").unwrap();
    vpn.up_stored(None).await.unwrap();
    assert_eq!(fs::read(standin.profile()).unwrap(), b"client\nremote h\nreneg-sec 0\n");
    vpn.down().await.unwrap();
}

#[tokio::test]
async fn a_daemon_that_ignores_sigterm_is_killed() {
    let standin = Standin::new("DEAF=1\n");
    let mut settings = standin.settings();
    settings.stop_timeout = Duration::from_millis(300);
    let vpn = Openvpn::new(&settings, standin.dir(), standin.programs());
    vpn.up_with(checked(PROFILE), None, true).await.unwrap();
    assert!(vpn.down().await.unwrap());
    assert_eq!(vpn.running().unwrap(), None);
}

#[tokio::test]
async fn a_hint_decides_which_interface_counts() {
    let standin = Standin::new("");
    let vpn = openvpn(&standin);
    vpn.up_with(checked(PROFILE), Some("tun7".into()), true).await.unwrap();
    assert_eq!(vpn.interface(None).await.unwrap().as_deref(), Some("tun7"));
    for hint in ["tun8", "-o", "tun7 up"] {
        assert_eq!(vpn.interface(Some(hint.into())).await.unwrap(), None, "{hint}");
    }
    vpn.down().await.unwrap();
}

#[test]
fn settings_name_the_files_of_the_python_node() {
    let managed = Openvpn::new(&testing::vpn(), Path::new("/x"), Programs::within(Vec::new())).0;
    assert_eq!(managed.pid_file, Path::new("/x/coda-node-openvpn.pid"));
    assert_eq!(managed.log_file, Path::new("/x/coda-node-openvpn.log"));
}
