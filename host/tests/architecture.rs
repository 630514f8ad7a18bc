//! Holds the dependency table of `docs/architecture.md`: who may use whom, and which files stay pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Module, and the modules that it may use. Unit tests may use more.
const MAY_USE: &[(&str, &[&str])] = &[
    ("backoff", &[]),
    ("connections", &[]),
    ("error", &[]),
    ("failpoint", &[]),
    ("model", &[]),
    ("output", &[]),
    ("sys", &[]),
    ("telemetry", &["output"]),
    ("supervise", &["error", "failpoint"]),
    ("state", &["error", "model"]),
    ("config", &["error", "model", "state"]),
    ("cloud", &["backoff", "config", "error", "model", "state"]),
    ("vpn", &["cloud", "config", "error", "model", "state", "sys"]),
    ("executor", &["backoff", "error", "model", "output", "sys"]),
    ("activity", &["executor", "model"]),
    ("availability", &["error", "model", "state"]),
    ("page", &["activity", "coordinator", "executor", "model", "reservation", "state"]),
    ("check", &["error", "executor", "model", "sys"]),
    ("request_guard", &["cloud"]),
    ("coordinator", &["error", "model", "peers", "qasm", "reservation"]),
    ("peers", &["connections", "error", "model", "qasm", "reservation", "state"]),
    ("qasm", &["model"]),
    ("reservation", &["backoff", "error", "model", "state"]),
    ("results", &["activity", "backoff", "cloud", "config", "error", "model", "state", "telemetry"]),
    (
        "jobs",
        &[
            "activity",
            "backoff",
            "config",
            "error",
            "executor",
            "failpoint",
            "model",
            "results",
            "state",
            "sys",
            "telemetry",
        ],
    ),
    (
        "api",
        &[
            "activity",
            "availability",
            "cloud",
            "config",
            "connections",
            "coordinator",
            "dev",
            "error",
            "executor",
            "jobs",
            "model",
            "page",
            "peers",
            "request_guard",
            "reservation",
            "state",
            "supervise",
            "telemetry",
            "vpn",
        ],
    ),
    ("daemon", &["error", "model", "state", "sys"]),
    ("dev", &["cloud", "error", "model", "request_guard", "sys"]),
    (
        "app",
        &[
            "activity",
            "api",
            "availability",
            "cloud",
            "config",
            "coordinator",
            "daemon",
            "error",
            "executor",
            "jobs",
            "model",
            "peers",
            "reservation",
            "results",
            "state",
            "supervise",
            "sys",
            "telemetry",
            "vpn",
        ],
    ),
    (
        "cli",
        &[
            "app",
            "availability",
            "check",
            "cloud",
            "config",
            "coordinator",
            "daemon",
            "dev",
            "error",
            "executor",
            "jobs",
            "model",
            "output",
            "peers",
            "reservation",
            "results",
            "state",
            "sys",
            "telemetry",
            "vpn",
        ],
    ),
];

/// Files without tokio, clock, randomness or I/O: time comes in as an argument.
const PURE: &[&str] = &[
    "activity/jobs.rs",
    "activity/minutes.rs",
    "activity/parts.rs",
    "activity/samples.rs",
    "api/readiness.rs",
    "availability.rs",
    "availability/calendar.rs",
    "backoff.rs",
    "cloud/bundle.rs",
    "cloud/no_proxy.rs",
    "cli/event_text.rs",
    "cli/usage/report.rs",
    "config/suggest.rs",
    "connections.rs",
    "coordinator/combine.rs",
    "coordinator/expiry.rs",
    "coordinator/submission_times.rs",
    "coordinator/job_events.rs",
    "coordinator/job_queue.rs",
    "coordinator/job_view.rs",
    "coordinator/measures.rs",
    "coordinator/plan.rs",
    "coordinator/resume.rs",
    "coordinator/slot_book.rs",
    "coordinator/waiting_line.rs",
    "error.rs",
    "executor/evolve.rs",
    "executor/python/circuit.rs",
    "executor/python/device.rs",
    "executor/python/interpreter.rs",
    "executor/python/secrets.rs",
    "jobs/admission.rs",
    "jobs/job_facts.rs",
    "jobs/redis/replies.rs",
    "jobs/status.rs",
    "jobs/table.rs",
    "jobs/table/end.rs",
    "jobs/table/event.rs",
    "jobs/table/hand_over.rs",
    "jobs/table/intake.rs",
    "jobs/table/job_ids.rs",
    "jobs/table/retries.rs",
    "jobs/table/run.rs",
    "jobs/table/state.rs",
    "jobs/limits.rs",
    "jobs/message.rs",
    "page/draw.rs",
    "page/draw/layout.rs",
    "page/host.rs",
    "page/host/hour.rs",
    "page/host/now.rs",
    "page/text.rs",
    "peers/amplitude.rs",
    "peers/executing.rs",
    "peers/kept_answers.rs",
    "peers/operation.rs",
    "peers/protocol.rs",
    "peers/protocol/lent.rs",
    "peers/protocol/slots.rs",
    "peers/registry.rs",
    "peers/scan.rs",
    "peers/statement.rs",
    "peers/used_keys.rs",
    "peers/wire.rs",
    "peers/wire/dispatch.rs",
    "peers/wire/fields.rs",
    "peers/wire/health.rs",
    "peers/wire/transition.rs",
    "qasm.rs",
    "qasm/budget.rs",
    "qasm/circuit.rs",
    "qasm/declarations.rs",
    "qasm/expand.rs",
    "qasm/expression.rs",
    "qasm/gates.rs",
    "qasm/lexer.rs",
    "qasm/operands.rs",
    "qasm/parser.rs",
    "qasm/power.rs",
    "qasm/program.rs",
    "qasm/selection.rs",
    "request_guard.rs",
    "reservation/event.rs",
    "reservation/export.rs",
    "reservation/job_options.rs",
    "reservation/journal.rs",
    "reservation/lease.rs",
    "reservation/ledger.rs",
    "reservation/plan.rs",
    "reservation/stream.rs",
    "results/delivery.rs",
    "results/delivery_queue.rs",
    "results/outcome.rs",
    "telemetry/exposition.rs",
    "vpn/directives.rs",
    "vpn/profile.rs",
];
const IMPURE_WORDS: &[&str] = &[
    "tokio::",
    "Instant::now",
    "SystemTime::now",
    "now_utc",
    "rand::",
    "std::fs",
    "std::net",
    "std::process",
];

/// The only modules in which `unsafe` is allowed, by the file that declares them. The compiler denies it elsewhere.
const UNSAFE: &[(&str, &str)] = &[
    ("executor.rs", "ffi"),
    ("sys.rs", "c_library"),
    ("sys.rs", "dispositions"),
    ("sys.rs", "exit_guard"),
    ("sys.rs", "signals"),
    ("sys.rs", "spawn"),
];

/// Longest file; a test file may be longer.
const MAX_LINES: usize = 620;

/// The crates of the host, each with the modules that it holds; all other modules are in the host itself. What a crate
/// may not use it can't: its `Cargo.toml` says so.
const CRATES: &[(&str, &[&str])] = &[
    ("base", &["backoff", "connections", "error", "model", "output", "state", "sys"]),
    ("qasm", &["qasm"]),
    ("network", &["coordinator", "peers", "qasm_tests", "reservation"]),
    ("executor", &["check", "executor"]),
];

/// Where the sources of the host and of its crates are, each with the name of the crate.
fn sources() -> Vec<(&'static str, PathBuf)> {
    let host = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = CRATES.iter().map(|(name, _)| (*name, host.join(name).join("src")));
    [("host", host.join("src"))].into_iter().chain(crates).collect()
}

/// Every source file: its path under `src` and its text up to the unit tests. The root of a crate is `CRATE/lib.rs`, and
/// that of the host `lib.rs`.
fn files() -> BTreeMap<String, String> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|e| e == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    for (package, root) in sources() {
        let mut paths = Vec::new();
        walk(&root, &mut paths);
        found.extend(paths.into_iter().map(|path| {
            let name = path.strip_prefix(&root).unwrap().to_str().unwrap();
            let name = match name {
                "lib.rs" if package != "host" => format!("{package}/lib.rs"),
                _ => name.to_string(),
            };
            (name, path)
        }));
    }
    assert!(found.len() > 30, "the sources are where this test looks");
    let tests = |name: &str| {
        name.ends_with("_tests.rs")
            || name.ends_with("testing.rs")
            || name.ends_with("standin.rs")
            || name.ends_with("_model.rs")
            || name.ends_with("/model.rs")
            || name.ends_with("/tests.rs")
    };
    found
        .into_iter()
        .filter(|(name, _)| !tests(name))
        .map(|(name, p)| {
            let text = fs::read_to_string(p).unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap().to_string();
            (name, code)
        })
        .collect()
}

fn module(file: &str) -> &str {
    file.split('/').next().unwrap().trim_end_matches(".rs")
}

#[test]
fn modules_use_only_what_the_table_allows() {
    let table: BTreeMap<&str, BTreeSet<&str>> =
        MAY_USE.iter().map(|(module, uses)| (*module, uses.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for (file, text) in files() {
        let from = module(&file);
        if matches!(from, "lib" | "main") || file.ends_with("/lib.rs") {
            continue;
        }
        let Some(allowed) = table.get(from) else {
            wrong.push(format!("{file}: the module '{from}' is missing in the table"));
            continue;
        };
        for (n, line) in text.lines().enumerate() {
            for part in line.split("crate::").skip(1) {
                let to: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
                if to != from && table.contains_key(to.as_str()) && !allowed.contains(to.as_str()) {
                    wrong.push(format!("{file}:{}: '{from}' may not use '{to}'", n + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn each_crate_holds_the_modules_that_are_listed() {
    for (package, root) in sources().iter().filter(|(package, _)| *package != "host") {
        let entries =
            fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let found: BTreeSet<String> = entries.map(|name| name.trim_end_matches(".rs").to_string()).collect();
        let (_, listed) = CRATES.iter().find(|(name, _)| name == package).unwrap();
        let listed: BTreeSet<String> =
            listed.iter().chain(&["lib"]).map(|name| (*name).to_string()).collect();
        assert_eq!(found, listed, "the crate {package}");
    }
}

#[test]
fn pure_files_stay_pure() {
    let files = files();
    for name in PURE {
        let text = files.get(*name).unwrap_or_else(|| panic!("{name} is gone: correct the list"));
        for word in IMPURE_WORDS {
            // `Operand::` does not use `rand::`.
            let is_whole = |at: usize| !text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let is_used = text.match_indices(word).any(|(at, _)| is_whole(at));
            assert!(!is_used, "{name} is pure, but uses {word}");
        }
    }
}

#[test]
fn every_file_opens_with_its_contract_and_keeps_its_size() {
    for (name, text) in files() {
        assert!(text.starts_with("//!"), "{name} has no head comment");
        assert!(
            text.lines().count() <= MAX_LINES,
            "{name} has more than {MAX_LINES} lines: is it one concern?"
        );
    }
}

/// What writes to standard output or standard error: most of it panics where that fails.
const DIRECT_OUTPUT: &[&str] =
    &["println!", "print!(", "eprintln!", "eprint!(", "dbg!(", "io::stdout", "io::stderr"];

#[test]
fn one_file_writes_to_standard_output_and_standard_error() {
    let files = files();
    assert!(files["output.rs"].contains("io::stderr()"), "this test can fail");
    let mut wrong = Vec::new();
    for (name, text) in files.iter().filter(|(name, _)| *name != "output.rs") {
        for (n, line) in text.lines().enumerate() {
            let word = DIRECT_OUTPUT.iter().find(|word| line.contains(**word));
            wrong.extend(word.map(|word| format!("{name}:{}: {word} instead of output.rs", n + 1)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn unsafe_is_allowed_in_the_listed_modules_alone() {
    let files = files();
    for (root, says) in [
        ("lib.rs", "forbid"),
        ("main.rs", "forbid"),
        ("qasm/lib.rs", "forbid"),
        ("network/lib.rs", "forbid"),
        ("base/lib.rs", "deny"),
        ("executor/lib.rs", "deny"),
    ] {
        assert!(
            files[root].contains(&format!("\n#![{says}(unsafe_code)]\n")),
            "{root} does not {says} unsafe code"
        );
    }
    let mut found = BTreeSet::new();
    for (file, text) in &files {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (n, line) in lines.iter().enumerate().filter(|(_, line)| line.contains("(unsafe_code)")) {
            if line.starts_with("#![") {
                continue;
            }
            assert_eq!(
                *line,
                "#[allow(unsafe_code)]",
                "{file}:{}: only a whole module may be allowed it",
                n + 1
            );
            let module = lines.get(n + 1).and_then(|next| next.strip_suffix(';')?.split_once("mod "));
            let (_, module) = module.unwrap_or_else(|| panic!("{file}:{}: not before a module", n + 1));
            found.insert((file.as_str(), module));
        }
    }
    assert_eq!(found, UNSAFE.iter().copied().collect(), "correct the list, or the code");
}

/// Modules of the command line that several commands use.
const CLI_SHARED: &[&str] = &[
    "circuit_file",
    "coordinator_client",
    "daemonize",
    "dev_session",
    "device_view",
    "event_text",
    "follow_job",
    "histogram",
    "job_display",
    "kit",
    "measures",
    "record_window",
    "running_host",
    "terminal",
];

/// The modules that a line imports behind `prefix`, alone or in braces.
fn imported<'a>(line: &'a str, prefix: &str) -> Vec<&'a str> {
    let module =
        |text: &'a str| text.split(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap_or("");
    let imports = line.split(prefix).skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap_or("").split(',').map(str::trim).map(module).collect(),
        None => vec![module(rest)],
    });
    imports.filter(|name| !name.is_empty() && *name != "self").collect()
}

#[test]
fn a_command_uses_what_commands_share_and_no_other_command() {
    let mut wrong = Vec::new();
    for (file, text) in files() {
        let Some(name) = file.strip_prefix("cli/") else { continue };
        let prefix = if name.contains('/') { "crate::cli::" } else { "super::" };
        for line in text.lines() {
            for module in imported(line, prefix).iter().filter(|m| !CLI_SHARED.contains(m)) {
                wrong.push(format!("{file} uses the command '{module}'"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(imported("use super::{kit, run};", "super::"), ["kit", "run"], "this test can fail");
}

/// Names that several public types have, and why. Everywhere else a name stands for one type.
const SHARED_TYPE_NAMES: &[(&str, &str)] = &[
    ("Answer", "of an executor to a run; of the development cloud to a request, as a hook scripts it"),
    ("Args", "the arguments of each command"),
];

/// The name of a public type that this line declares.
fn declared_type(line: &str) -> Option<&str> {
    let declaration = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let name = kinds.iter().find_map(|kind| declaration.strip_prefix(kind))?;
    name.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()
}

#[test]
fn a_public_type_name_stands_for_one_type() {
    let mut declared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (file, text) in files() {
        for name in text.lines().filter_map(declared_type) {
            declared.entry(name.to_string()).or_default().push(file.clone());
        }
    }
    declared.retain(|_, files| files.len() > 1);
    let listed = |name: &str| SHARED_TYPE_NAMES.iter().any(|(shared, _)| *shared == name);
    let wrong: Vec<String> = declared
        .iter()
        .filter(|(name, _)| !listed(name))
        .map(|(name, files)| format!("{name} is declared in {}", files.join(", ")))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (name, _) in SHARED_TYPE_NAMES {
        assert!(declared.contains_key(*name), "{name} stands for one type now: take it off the list");
    }
    assert_eq!(declared_type("    pub enum Kind {"), Some("Kind"), "this test can fail");
}
