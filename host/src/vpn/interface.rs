//! Whether a tunnel's interface is up, as `ip` says it.

use std::time::Duration;

use super::command::{CommandError, Programs};

/// The kinds of a tunnel's interface: made by OpenVPN itself, or by the kernel that moves its packets (data channel
/// offload: built in since Linux 6.16, a module before).
const KINDS: [&str; 3] = ["tun", "ovpn", "ovpn-dco"];

/// The tunnel's interface: the one that is hinted at, else the first of a tunnel's kind; `None` when it isn't up.
///
/// # Errors
/// The program `ip` can't be run.
pub fn detect(
    programs: &Programs,
    hint: Option<&str>,
    limit: Duration,
) -> Result<Option<String>, CommandError> {
    let Some(hint) = hint else {
        for kind in KINDS {
            // A kind that this `ip` does not know is an error of it, without output.
            let arguments = ["-o", "link", "show", "type", kind].map(AsRef::as_ref);
            let output = programs.run("ip", &arguments, limit)?;
            if let Some(interface) = first_up(&output.stdout) {
                return Ok(Some(interface));
            }
        }
        return Ok(None);
    };
    // It comes from the cloud, and `ip` would take other texts for options.
    if !is_name(hint) {
        return Ok(None);
    }
    let output = programs.run("ip", &["link", "show", hint].map(AsRef::as_ref), limit)?;
    let up = output.success && output.stdout.lines().next().is_some_and(is_up);
    Ok(up.then(|| hint.to_owned()))
}

/// Whether this can be the name of an interface.
pub fn is_name(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && !text.starts_with('-')
        && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/')
}

/// `4: tun0: <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP> mtu ...`
fn first_up(list: &str) -> Option<String> {
    let line = list.lines().find(|line| is_up(line))?;
    let name = line.split(':').nth(1)?.trim();
    (!name.is_empty()).then(|| name.to_owned())
}

fn is_up(line: &str) -> bool {
    let flags = line.split_once('<').and_then(|(_, rest)| rest.split_once('>'));
    flags.is_some_and(|(flags, _)| flags.split(',').any(|flag| flag == "UP"))
}

/// Whether everything that has no route of its own goes through the tunnel: a server that pushes
/// `redirect-gateway` has that effect, and a control system in another network is then cut off.
///
/// # Errors
/// The program `ip` can't be run.
pub fn has_default_route(
    programs: &Programs,
    interface: &str,
    limit: Duration,
) -> Result<bool, CommandError> {
    let output = programs.run("ip", &["-4", "route", "show"].map(AsRef::as_ref), limit)?;
    Ok(takes_over(&output.stdout, interface))
}

/// OpenVPN either replaces the default route or covers it by two halves (`def1`).
fn takes_over(routes: &str, interface: &str) -> bool {
    let through = |destination: &str| {
        routes.lines().any(|line| {
            let mut words = line.split_whitespace();
            words.next() == Some(destination)
                && words.zip(line.split_whitespace().skip(2)).any(|pair| pair == ("dev", interface))
        })
    };
    through("default") || through("0.0.0.0/1") && through("128.0.0.0/1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_route_through_the_tunnel_is_told() {
        let usual =
            "default via 192.168.1.1 dev eth0 proto dhcp metric 100\n10.8.0.0/24 dev tun0 scope link\n";
        assert!(!takes_over(usual, "tun0"));
        assert!(
            !takes_over(&format!("0.0.0.0/1 via 10.8.0.1 dev tun0\n{usual}"), "tun0"),
            "a half is not all"
        );
        let halves = format!("0.0.0.0/1 via 10.8.0.1 dev tun0\n128.0.0.0/1 via 10.8.0.1 dev tun0\n{usual}");
        assert!(takes_over(&halves, "tun0") && !takes_over(&halves, "tun1"));
        assert!(takes_over("default dev tun0 scope link\n", "tun0"));
        assert!(!takes_over("", "tun0"));
    }

    #[test]
    fn an_interface_of_the_kernels_own_kind_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"#!/bin/sh
case "$*" in
  *"type ovpn") echo "9: tun3: <POINTOPOINT,NOARP,UP,LOWER_UP> mtu 1420 qdisc noqueue state UP mode DEFAULT" ;;
  *"type tun") ;;
  *) echo "Garbage instead of arguments" >&2; exit 1 ;;
esac
"#;
        crate::vpn::standin::executable(&dir.path().join("ip"), script);
        let programs = Programs::within(vec![dir.path().into()]);
        let found = detect(&programs, None, Duration::from_secs(20)).unwrap();
        assert_eq!(found.as_deref(), Some("tun3"));
    }

    #[test]
    fn only_an_interface_that_is_up_counts() {
        let down = "2: tun9: <POINTOPOINT,MULTICAST,NOARP> mtu 1500 qdisc noop state DOWN mode DEFAULT\n";
        let up = "3: tun0: <POINTOPOINT,MULTICAST,NOARP,UP,LOWER_UP> mtu 1500 qdisc fq state UNKNOWN\n";
        assert_eq!(first_up(&format!("{down}{up}")).as_deref(), Some("tun0"));
        assert_eq!(first_up(down), None);
        assert_eq!(first_up("3: tun0: <LOWER_UP> mtu"), None);
        assert_eq!(first_up(""), None);
        for (name, good) in [
            ("tun0", true),
            ("", false),
            ("-a", false),
            ("a/b", false),
            ("a b", false),
            ("x".repeat(16).as_str(), false),
        ] {
            assert_eq!(is_name(name), good, "{name:?}");
        }
    }
}
