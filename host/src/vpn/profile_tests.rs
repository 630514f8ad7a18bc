//! The profile check against what OpenVPN would make of the same text.

use proptest::prelude::*;

use super::*;
use crate::error::Failure;

const CERT: &str = "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUZm9v\n-----END CERTIFICATE-----";

fn harmless() -> String {
    format!(
        "# exported by a cloud endpoint\n; and so is this\nclient\ndev tun\nproto udp\n\
         remote cvpn-endpoint-1.prod.clientvpn.example 443 # a comment behind words\n\
         remote-random-hostname\nresolv-retry infinite\nnobind\npersist-key\npersist-tun\n\
         remote-cert-tls server\ncipher AES-256-GCM\ndata-ciphers AES-256-GCM:AES-128-GCM\nauth SHA256\n\
         verb 3\nauth-nocache\nkey-direction 1\nverify-x509-name \"server one\" name\n\
         tls-version-min 1.2 or-highest\nkeepalive 10 60\nmute 20\nconnect-timeout 10\n\
         <connection>\n  remote vpn2.example 1194 tcp-client # second\n  connect-retry 2 60\n</connection>\n\
         <ca>\n{CERT}\n</ca>\n<cert>\n{CERT}\n  </cert>  \n<key>\nup /bin/sh\n</key>\n\
         <tls-auth>\n#\n# 2048 bit OpenVPN static key\n#\n</tls-auth>\n<tls-crypt>\nabc\n</tls-crypt>\n"
    )
}

/// A line laid into an otherwise harmless profile, and the error.
fn with(line: &str) -> Result<CheckedProfile, ProfileError> {
    check(format!("client\ndev tun\nremote vpn.example 1194\n{line}\nverb 3\n").as_bytes())
}

#[test]
fn a_harmless_profile_passes_and_gets_its_reneg_sec() {
    let text = harmless();
    let checked = check(text.as_bytes()).unwrap();
    assert!(checked.reneg_appended);
    assert_eq!(checked.text().expose(), format!("{text}reneg-sec 0\n"));
    for form in [text.replace('\n', "\r\n"), format!("\u{feff}{text}"), text.trim_end().to_owned()] {
        let checked = check(form.as_bytes()).unwrap();
        assert!(checked.text().expose().starts_with(&form));
        assert!(checked.text().expose().ends_with("\nreneg-sec 0\n"));
    }
    for said in ["reneg-sec 0", "--reneg-sec 3600", "\t\"reneg-sec\" 0", "reneg-sec 3600 60"] {
        let checked = with(said).unwrap();
        assert!(!checked.reneg_appended && !checked.text().expose().contains("reneg-sec 0\nreneg"), "{said}");
    }
    assert!(with("# reneg-sec 0").unwrap().reneg_appended, "a comment says nothing");
    // What is checked again, as on a restart, stays as it is.
    let again = check(checked.text().expose().as_bytes()).unwrap();
    assert_eq!(again.text(), checked.text());
    assert!(!format!("{checked:?}").contains("MIIB"));
}

#[test]
fn every_way_to_say_a_forbidden_directive_is_refused_by_its_name() {
    let forms = [
        "up /bin/sh",
        "--up /bin/sh",
        "\"up\" /bin/sh",
        "'up' x",
        "\tup x",
        " \t up x",
        "up\tx",
        "up x\r",
        "up",
        "\"--up\" x",
        "'--up' x",
        "\"up\"x",
        "''up x",
        "\\ up x",
        "\\\tup x",
        "up \"#\" # comment",
    ];
    for form in forms {
        let error = with(form).unwrap_err();
        match &error {
            ProfileError::Line { line: 4, problem: ProfileProblem::NotAllowed(name) } => {
                assert_eq!(name, "up")
            }
            // An empty first word is not a directive to OpenVPN either.
            ProfileError::Line { line: 4, problem: ProfileProblem::NoDirective } => {
                assert!(form.starts_with("''"))
            }
            other => panic!("{form:?}: {other:?}"),
        }
    }
    let first = check("\u{feff}up /bin/sh\nclient\nremote h\n".as_bytes()).unwrap_err();
    assert_eq!(first.to_string(), "line 1 of the VPN profile has the directive 'up', which is not allowed");
    let text = harmless().replace('\n', "\r\n") + "up x\r\n";
    let last = text.lines().count();
    assert!(matches!(check(text.as_bytes()), Err(ProfileError::Line { line, .. }) if line == last));
}

#[test]
fn forbidden_directives_are_named_with_their_line() {
    let names = [
        "up x",
        "down x",
        "route-up x",
        "ipchange x",
        "tls-verify x",
        "auth-user-pass-verify x via-env",
        "client-connect x",
        "learn-address x",
        "up-restart",
        "down-pre",
        "config other.ovpn",
        "plugin x.so",
        "management 0.0.0.0 1",
        "management-external-key",
        "log /etc/cron.d/x",
        "log-append x",
        "status /etc/x",
        "writepid /etc/x",
        "setenv LD_PRELOAD x",
        "setenv opt up",
        "setenv-safe A b",
        "script-security 2",
        "auth-user-pass /etc/shadow",
        "auth-user-pass",
        "askpass x",
        "cd /tmp",
        "chroot /tmp",
        "daemon x",
        "user nobody",
        "iproute /tmp/x",
        "tmp-dir /tmp",
        "tls-export-cert /tmp",
        "providers legacy /tmp/x.so",
        "engine x",
        "pkcs11-providers x.so",
        "pkcs12 /etc/x",
        "crl-verify /etc/x",
        "extra-certs /etc/x",
        "secret /etc/x",
        "http-proxy h 1 /etc/x",
        "server 10.0.0.0 255.0.0.0",
        "mode server",
        "redirect-gateway",
        "ignore-unknown-option up",
        "dev-node /dev/x",
        "lladdr x",
        "remap-usr1 SIGTERM",
        "port-share h 1",
        "capath /etc",
        "dhcp-option DNS 1.1.1.1",
    ];
    for line in names {
        let name = line.split(' ').next().unwrap();
        let error = with(line).unwrap_err();
        let expected = ProfileError::Line { line: 4, problem: ProfileProblem::NotAllowed(name.into()) };
        assert_eq!(error, expected, "{line}");
        let inside = with(&format!("<connection>\nremote h\n{line}\n</connection>")).unwrap_err();
        assert_eq!(inside, ProfileError::Line { line: 6, problem: ProfileProblem::NotAllowed(name.into()) });
    }
}

#[test]
fn every_other_trick_is_refused() {
    let long = format!("verb 3 # {}", "x".repeat(300));
    let in_key = format!("<ca>\n{}</ca>\nup x\n</ca>", "A".repeat(255));
    let many = format!("remote {}", "a ".repeat(20));
    let at = |line, problem| Err(ProfileError::Line { line, problem });
    let arguments = |name| ProfileProblem::Arguments(directives::find(name).unwrap());
    let cases = [
        ("u\\p x", at(4, ProfileProblem::Backslash)),
        ("\\up x", at(4, ProfileProblem::Backslash)),
        ("verb \\3", at(4, ProfileProblem::Backslash)),
        ("verb 3\\", at(4, ProfileProblem::Backslash)),
        ("\"up x", at(4, ProfileProblem::Quote('"'))),
        ("verify-x509-name 'x", at(4, ProfileProblem::Quote('\''))),
        ("UP x", at(4, ProfileProblem::NoDirective)),
        ("----up x", at(4, ProfileProblem::NotAllowed("--up".into()))),
        ("-up x", at(4, ProfileProblem::NotAllowed("-up".into()))),
        ("\u{feff}up x", at(4, ProfileProblem::NoDirective)),
        ("<up>\nx\n</up>", at(4, ProfileProblem::Block("up".into()))),
        ("\"<up>\"\nx\n</up>", at(4, ProfileProblem::Block("up".into()))),
        ("--<up>\nx\n</up>", at(4, ProfileProblem::Block("up".into()))),
        (
            "<auth-user-pass>\nme\npw\n</auth-user-pass>",
            at(4, ProfileProblem::Block("auth-user-pass".into())),
        ),
        ("<config>\nx\n</config>", at(4, ProfileProblem::Block("config".into()))),
        ("<CA>\nx\n</CA>", at(4, ProfileProblem::NoDirective)),
        ("<ca> x", at(4, ProfileProblem::NoDirective)),
        ("<ca>\nup x", at(4, ProfileProblem::Unclosed("ca".into()))),
        ("<ca>\nx\n< /ca>\nup x", at(4, ProfileProblem::Unclosed("ca".into()))),
        ("<ca>\nx\n</CA>\nup x", at(4, ProfileProblem::Unclosed("ca".into()))),
        ("<ca>\nx\n</ca> up x", at(6, ProfileProblem::BehindEnd("ca".into()))),
        ("<ca>\nx\n</ca>up x", at(6, ProfileProblem::BehindEnd("ca".into()))),
        ("<ca>\nx\n\t </ca>\nup x\n</ca>", at(7, ProfileProblem::NotAllowed("up".into()))),
        ("</ca>", at(4, ProfileProblem::NoDirective)),
        (
            "<connection>\nremote h\n<ca>\nx\n</ca>\n</connection>",
            at(6, ProfileProblem::NotInConnection("ca".into())),
        ),
        (
            "<connection>\nremote h\nclient\n</connection>",
            at(6, ProfileProblem::NotInConnection("client".into())),
        ),
        ("<connection>\nproto udp\n</connection>", at(4, ProfileProblem::NoRemote)),
        ("<connection>\nremote h\n--up x\n</connection>", at(6, ProfileProblem::NotAllowed("up".into()))),
        ("<connection>\nremote h\n", at(7, ProfileProblem::NotInConnection("verb".into()))),
        ("ca /etc/shadow", at(4, ProfileProblem::NotInline("ca"))),
        ("tls-auth [inline] 1", at(4, ProfileProblem::NotInline("tls-auth"))),
        ("up x\0", at(4, ProfileProblem::Control(0))),
        ("verb 3\0\nup x", at(4, ProfileProblem::Control(0))),
        ("<ca>\nx\0\n</ca>", at(5, ProfileProblem::Control(0))),
        ("verb 3\rup x", at(4, ProfileProblem::Control(b'\r'))),
        ("verb 3\x0bup", at(4, ProfileProblem::Control(0x0b))),
        ("<ca>\nx\r</ca>\n", at(5, ProfileProblem::Control(b'\r'))),
        (&long, at(4, ProfileProblem::TooLong)),
        (&in_key, at(5, ProfileProblem::TooLong)),
        (&many, at(4, ProfileProblem::TooManyWords)),
        ("dev tap", at(4, arguments("dev"))),
        ("dev /dev/sda", at(4, arguments("dev"))),
        ("verb 11", at(4, arguments("verb"))),
        ("verb", at(4, arguments("verb"))),
        ("verb 3 3", at(4, arguments("verb"))),
        ("client x", at(4, arguments("client"))),
        ("remote", at(4, arguments("remote"))),
        ("remote /etc/x", at(4, arguments("remote"))),
        ("remote h 99999", at(4, arguments("remote"))),
        ("remote h 443 unix", at(4, arguments("remote"))),
        ("resolv-retry never", at(4, arguments("resolv-retry"))),
        ("remote-cert-tls client", at(4, arguments("remote-cert-tls"))),
        ("cipher 'AES 256'", at(4, arguments("cipher"))),
        ("comp-lzo", at(4, arguments("comp-lzo"))),
        ("comp-lzo yes", at(4, arguments("comp-lzo"))),
        ("auth-retry interact", at(4, arguments("auth-retry"))),
        ("tls-version-min 1.2 up", at(4, arguments("tls-version-min"))),
        ("reneg-sec -1", at(4, arguments("reneg-sec"))),
    ];
    for (text, expected) in cases {
        assert_eq!(with(text), expected, "{text:?}");
    }
    assert_eq!(check(b"client\nremote h\xff\n"), at(2, ProfileProblem::NotText));
    assert_eq!(check(b"remote h\n"), Err(ProfileError::Missing("client")));
    assert_eq!(check(b"client\n# remote h\n"), Err(ProfileError::Missing("remote")));
    assert_eq!(check(b""), Err(ProfileError::Missing("client")));
    assert_eq!(check(&vec![b'\n'; MAX_PROFILE + 1]), Err(ProfileError::TooLarge));
}

#[test]
fn lines_are_measured_as_openvpn_reads_them() {
    let comment = |n: usize| format!("#{}", "x".repeat(n - 2));
    assert!(with(&comment(255)).is_ok(), "255 bytes with the line feed");
    assert!(with(&comment(256)).is_err());
    assert!(with(&format!("<ca>\n{}\n</ca>", "A".repeat(254))).is_ok());
    assert!(with(&format!("<ca>\n{}\n</ca>", "A".repeat(255))).is_err());
}

#[test]
fn words_are_those_of_openvpn() {
    let cases: [(&str, &[&str]); 14] = [
        ("", &[]),
        ("  \t ", &[]),
        ("#x", &[]),
        (" ;x", &[]),
        ("\\# x", &[]),
        ("a b", &["a", "b"]),
        ("a#b c", &["a#b", "c"]),
        ("a #b", &["a"]),
        ("\"a\"#b", &["a"]),
        ("\"a\"b'c'", &["a", "b'c'"]),
        ("\"a b\" 'c \\ d'", &["a b", "c \\ d"]),
        ("a\\ b \\\\ \"\\\"\"", &["a b", "\\", "\""]),
        ("\"\" ''", &["", ""]),
        ("a\"b c\"", &["a\"b", "c\""]),
    ];
    for (line, expected) in cases {
        assert_eq!(split(line).unwrap(), expected, "{line:?}");
    }
}

#[test]
fn errors_tell_line_and_directive_but_nothing_of_a_key() {
    let text = format!("client\nremote h\n<key>\n{CERT}\n</key>\nMIIBszCCAVmgAwIBAgIUZm9v\n");
    let failure = Failure::from(check(text.as_bytes()).unwrap_err());
    assert_eq!(failure.message, "line 8 of the VPN profile begins with something that is not a directive");
    let shown = format!("{} {failure:?}", failure.render());
    assert!(!shown.contains("MIIB") && failure.hint.is_some(), "{shown}");
    let failure = Failure::from(with("remote SECRET/ 1").unwrap_err());
    assert!(failure.message.contains("'remote'") && !failure.message.contains("SECRET"), "{failure:?}");
}

#[test]
fn the_table_has_no_name_twice_and_a_reason_for_each() {
    for (i, directive) in directives::ALLOWED.iter().enumerate() {
        assert!(!directive.why.is_empty() && directive.required <= directive.arguments.len());
        assert!(!INLINE.contains(&directive.name));
        let later = directives::ALLOWED.iter().skip(i + 1).any(|d| d.name == directive.name);
        assert!(!later, "{} stands twice", directive.name);
    }
}

/// An idea of a profile that shares nothing with the check: what begins a line outside of blocks, whatever
/// quotes, dashes, backslashes and blanks stand around it, is a directive.
fn naive(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside: Option<String> = None;
    for line in text.trim_start_matches('\u{feff}').lines() {
        let line = line.trim();
        match &inside {
            Some(end) if line.starts_with(end.as_str()) => inside = None,
            Some(_) => (),
            None if line.starts_with(['#', ';']) || line.is_empty() => (),
            None => {
                let bare: String = line.chars().filter(|c| !matches!(c, '"' | '\'' | '\\')).collect();
                let first = bare.split_whitespace().next().unwrap_or_default().trim_start_matches('-');
                match first.strip_prefix('<').and_then(|t| t.strip_suffix('>')) {
                    Some("connection" | "/connection") => (),
                    Some(tag) => inside = Some(format!("</{tag}>")),
                    None if first.starts_with(['#', ';']) => (),
                    None => found.push(first.to_owned()),
                }
            }
        }
    }
    assert!(inside.is_none(), "a block is left open");
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_comes_is_judged_and_what_passes_holds_only_allowed_directives(
        cuts in prop::collection::vec((any::<prop::sample::Index>(), 0..6usize, 0..24usize), 0..5),
    ) {
        const PIECES: [&str; 24] = [
            "\n", "\r\n", "\r", "\0", "\"", "'", "\\", " ", "\t", "#", ";", "--", "<ca>", "</ca>", "\n</ca>\n",
            "<connection>\n", "\n</connection>\n", "up x", "\nup x\n", "\n\"up\" x\n", "\u{feff}", "client",
            "remote h\n", "\nverb 3\n",
        ];
        let mut bytes = harmless().into_bytes();
        for (place, drop, piece) in cuts {
            let start = place.index(bytes.len());
            let end = (start + drop).min(bytes.len());
            bytes.splice(start..end, PIECES[piece].bytes());
        }
        if let Ok(checked) = check(&bytes) {
            for name in naive(checked.text().expose()) {
                prop_assert!(directives::find(&name).is_some(), "'{name}' got through");
            }
        }
    }

    #[test]
    fn any_bytes_are_judged(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        check(&bytes).ok();
    }
}
