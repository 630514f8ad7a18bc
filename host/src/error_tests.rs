//! Every error of every stage is well formed: one value of each kind, and the rules for its texts.
//!
//! A message is lower case, in one line, without a final stop. A hint is an instruction: it begins with a verb or with a
//! command to type. The test reads the sources, so an error type or a kind of error without a sample fails it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::mem::discriminant;
use std::path::Path;

use crate::api::BindError;
use crate::app::AppError;
use crate::error::{Explain, Failure, exit};

use self::samples::{join_error, path, text};

#[path = "error_samples_tests.rs"]
mod samples;

/// Messages that other programs and people know from the Python node, so their text stays as it is there
/// (`openvpn binary not found in PATH` fits the rules by itself).
const TEXTS_OF_THE_PYTHON_NODE: &[&str] = &[
    "Node request failed (",
    "Node connect failed after ",
    "Node response is not ",
    "Node response missing valid ",
    "Failed to start OpenVPN: ",
    "No VPN tunnel interface detected",
    "Persisted VPN profile not found. Re-run node provisioning with a new token.",
];

/// Names that keep their capitals at the beginning of a text.
const NAMES: &[&str] = &["OpenVPN", "Redis", "VPN", "HTTP", "TLS", "Python"];

/// First words of a hint: verbs, and commands to type.
const VERBS: &[&str] = &[
    "add",
    "ask",
    "bring",
    "change",
    "check",
    "choose",
    "compare",
    "copy",
    "correct",
    "create",
    "expect",
    "export",
    "find",
    "free",
    "get",
    "give",
    "have",
    "install",
    "let",
    "look",
    "make",
    "mount",
    "move",
    "name",
    "point",
    "provision",
    "put",
    "raise",
    "read",
    "register",
    "remove",
    "rename",
    "report",
    "restart",
    "restore",
    "run",
    "see",
    "set",
    "start",
    "stop",
    "tell",
    "try",
    "unset",
    "upgrade",
    "use",
    "wait",
    "write",
];
const COMMANDS: &[&str] = &["chmod", "chown", "coda-host", "mkdir", "mv"];

/// Collects what is wrong, and which types were looked at.
#[derive(Default)]
struct Findings {
    wrong: BTreeSet<String>,
    kinds: BTreeMap<String, usize>,
}

impl Findings {
    /// Checks the samples of one enum.
    fn of_enum<E: Explain>(&mut self, samples: Vec<E>) {
        let mut kinds: Vec<_> = Vec::new();
        for error in &samples {
            if !kinds.contains(&discriminant(error)) {
                kinds.push(discriminant(error));
            }
            self.check(error);
        }
        self.kinds.insert(type_name::<E>(), kinds.len());
    }

    /// Checks an error that is a struct.
    fn of_struct<E: Explain>(&mut self, error: &E) {
        self.check(error);
        self.kinds.insert(type_name::<E>(), 1);
    }

    fn check<E: Explain>(&mut self, error: &E) {
        let (message, name) = (error.to_string(), type_name::<E>());
        let of_the_node = TEXTS_OF_THE_PYTHON_NODE.iter().any(|text| message.starts_with(text));
        let mut found: Vec<String> = Vec::new();
        if !of_the_node {
            found.extend(wrong_with_text("message", &message));
        }
        if let Some(hint) = error.hint() {
            found.extend(wrong_with_text("hint", &hint));
            let first = hint.trim_start_matches(['`', '\'']).split([' ', ':', '`']).next().unwrap_or("");
            if !VERBS.contains(&first) && !COMMANDS.contains(&first) {
                found.push(format!("the hint begins with '{first}', which is not a verb or command: {hint}"));
            }
        }
        let code = error.code();
        let kebab = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if code.is_empty() || !code.chars().all(kebab) || code.starts_with('-') || code.ends_with('-') {
            found.push(format!("the code '{code}' is not kebab-case"));
        }
        self.wrong.extend(found.into_iter().map(|what| format!("{name}: {what}")));
    }
}

fn type_name<T>() -> String {
    let full = std::any::type_name::<T>();
    let plain = full.split('<').next().unwrap_or(full);
    plain.rsplit("::").next().unwrap_or(plain).to_string()
}

fn wrong_with_text(what: &str, text: &str) -> Option<String> {
    let first = text.split([' ', ':']).next().unwrap_or("");
    let is_variable = first.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    let capital = text.chars().next().is_some_and(char::is_uppercase);
    let reason = if text.trim().is_empty() {
        "is empty"
    } else if text.contains("  ") || text.contains('\n') || text.trim() != text {
        "has blanks or lines that don't belong there"
    } else if text.ends_with('.') && !text.ends_with("...") {
        "ends with a full stop"
    } else if capital && !is_variable && !NAMES.contains(&first) {
        "begins with a capital"
    } else {
        return None;
    };
    Some(format!("the {what} {reason}: {text}"))
}

/// The error types of the sources, each with its number of kinds.
fn types_in_sources() -> BTreeMap<String, usize> {
    fn collect(dir: &Path, texts: &mut Vec<String>) {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, texts);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("error_tests.rs") {
                texts.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }
    let mut texts = Vec::new();
    for sources in ["src", "base/src", "qasm/src", "network/src", "executor/src"] {
        collect(&Path::new(env!("CARGO_MANIFEST_DIR")).join(sources), &mut texts);
    }
    let name = |line: &str| -> Option<String> {
        let (before, after) = line.split_once("Explain for ")?;
        let plain = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        before.starts_with("impl").then(|| after.chars().take_while(plain).collect())
    };
    let names: Vec<String> = texts.iter().flat_map(|t| t.lines()).filter_map(name).collect();
    names
        .into_iter()
        .map(|name| {
            let begin = format!("pub enum {name} {{");
            let body = texts.iter().find_map(|text| text.split_once(&begin)?.1.split_once("\n}"));
            let kinds = body.map_or(1, |(body, _)| body.matches("#[error(").count());
            (name, kinds)
        })
        .collect()
}

#[tokio::test]
async fn every_error_is_well_formed() {
    let mut found = Findings::default();
    samples::of_the_command_line(&mut found, join_error().await);
    samples::of_cloud_and_config(&mut found);
    samples::of_vpn(&mut found, join_error().await);
    samples::of_the_executor(&mut found);
    samples::of_daemon_and_dev(&mut found);
    samples::of_state_and_peers(&mut found, join_error().await);
    let wrong: Vec<String> = found.wrong.into_iter().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(found.kinds, types_in_sources(), "a type or a kind of error has no sample here");
}

#[test]
fn malformed_texts_are_found() {
    for text in ["Failed.", "failed.", "the  file", "a\nb", "", "Failed to"] {
        assert!(wrong_with_text("message", text).is_some(), "{text:?}");
    }
    for text in ["the file is gone", "CODA_PORT is wrong", "Redis is unreachable", "'x' is not a file"] {
        assert_eq!(wrong_with_text("message", text), None);
    }
}

#[test]
fn what_the_machine_lacks_is_blamed_whatever_was_asked_of_it() {
    use rustix::io::Errno;
    for (errno, says) in [
        (Errno::MFILE, "LimitNOFILE"),
        (Errno::NOSPC, "free space"),
        (Errno::DQUOT, "quota"),
        (Errno::FBIG, "ulimit -f"),
        (Errno::IO, "dmesg"),
    ] {
        let source = || io::Error::from_raw_os_error(errno.raw_os_error());
        for failure in [
            Failure::from(AppError::StateDir { path: path(), source: source() }),
            Failure::from(BindError { host: text(), port: 1, source: source() }),
        ] {
            let hint = failure.hint.clone().unwrap_or_default();
            assert!(hint.contains(says) && failure.exit == exit::FAILURE, "{errno}: {failure:?}");
        }
    }
    let denied = io::Error::from_raw_os_error(Errno::ACCESS.raw_os_error());
    let denied = Failure::from(AppError::StateDir { path: path(), source: denied });
    assert_eq!(denied.exit, exit::CONFIG);
}
