//! File, descriptor, loading, creation, device and config; and what a plugin does to its process.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use coda_plugin_abi::ErrorCode;
use coda_plugin_abi::descriptor::{Binding, Kind};

use super::bench::Bench;
use super::{Done, failed, skipped};
use crate::executor::elf;
use crate::executor::schema::{self, SchemaError};
use crate::sys;

/// Longest that loading may take.
const LOAD_LIMIT: Duration = Duration::from_secs(1);
/// How long threads may take to end after `destroy`.
const SETTLE: Duration = Duration::from_secs(3);
/// Growth over the runs that is not a leak yet.
const GROWTH: u64 = 8 << 20;

pub fn descriptor(bench: &Bench) -> Done {
    if bench.options.python.is_some() {
        return skipped("Python code has no descriptor");
    }
    let found = match elf::inspect(&bench.options.library) {
        Ok(found) => found,
        Err(e) => {
            let shown = crate::error::Failure::from(e);
            return failed("a plugin library", shown.line(), shown.hint.unwrap_or_default());
        }
    };
    let d = found.descriptor;
    for (field, text) in
        [("vendor", &d.vendor), ("name", &d.name), ("version", &d.version), ("target", &d.target)]
    {
        if text.trim().is_empty() {
            return failed(
                format!("a descriptor with a {field}"),
                "an empty text",
                format!("fill in {field}"),
            );
        }
    }
    if d.entries.is_empty() {
        return failed("a descriptor that names its entries", "none", "name at least one entry");
    }
    if !d.target.starts_with(std::env::consts::ARCH) {
        let got = format!("'{}'", d.target);
        return failed(
            format!("a target that begins with {}", std::env::consts::ARCH),
            got,
            "build for this machine",
        );
    }
    let binding = if d.binding == Binding::Rust { "Rust" } else { "C" };
    Ok(Some(format!(
        "{} {} by {}, interface {}.{}, {binding} binding",
        d.name, d.version, d.vendor, d.api_major, d.api_minor
    )))
}

pub fn load(bench: &Bench) -> Done {
    if let Some(python) = &bench.options.python {
        return bench.inspect(python).map(Some);
    }
    bench.load().map(|_| None)
}

pub fn scan_time(bench: &Bench) -> Done {
    let start = Instant::now();
    bench.load()?;
    let took = start.elapsed();
    if took > LOAD_LIMIT {
        return failed(
            format!("a library that loads within {LOAD_LIMIT:?}"),
            format!("{took:.1?}"),
            "do no work in constructors of the library: connect in `create`",
        );
    }
    Ok(Some(format!("{:.0} ms", took.as_secs_f64() * 1e3)))
}

pub fn config_schema(bench: &Bench) -> Done {
    let loaded = bench.load()?;
    let exported = loaded.library.config_schema(&bench.options.entry).or_else(|e| {
        failed("a schema or none", format!("the error '{}'", e.text), "correct config_schema")
    })?;
    let Some(text) = exported else { return skipped("it exports no schema of its device config") };
    match schema::check(&text, &bench.options.config_text) {
        Ok(_) => Ok(None),
        Err(SchemaError::Schema(what)) => failed("a JSON schema", what, "correct what config_schema replies"),
        Err(e) => failed(
            "a device config that fits the plugin's schema",
            e.to_string(),
            "correct the device config",
        ),
    }
}

pub fn create(bench: &Bench) -> Done {
    let live = bench.start()?;
    live.good_job(bench, "after create")?;
    live.end()?;
    Ok(None)
}

pub fn create_twice(bench: &Bench) -> Done {
    // A library is loaded once; Python code gets a process each time.
    let loaded = match bench.options.python {
        Some(_) => None,
        None => Some(bench.load()?),
    };
    for when in ["of the first executor", "of the second executor"] {
        let live = loaded.as_ref().map_or_else(|| bench.start(), |loaded| bench.start_from(loaded))?;
        live.good_job(bench, when)?;
        live.end()?;
    }
    Ok(None)
}

pub fn malformed_config(bench: &Bench) -> Done {
    let loaded = bench.load()?;
    let schema = loaded.library.config_schema(&bench.options.entry).unwrap_or_default();
    for (what, config) in [
        ("no YAML", "a: [1\nb: }"),
        ("a list", "- 1\n- 2\n"),
        ("a text", "just some words\n"),
        ("an unknown key", "surely_no_key_of_this_plugin: 1\n"),
    ] {
        // What the schema refuses never reaches the plugin.
        if schema.as_deref().is_some_and(|s| schema::check(s, config).is_err()) {
            continue;
        }
        match bench.create(&loaded, config) {
            Ok(instance) => {
                instance.destroy();
                return failed(
                    format!("an error for a device config that is {what}"),
                    "an executor, as though nothing were wrong",
                    "export a schema with \"additionalProperties\": false, or check the config in create: a typo would go unnoticed",
                );
            }
            Err(e) if e.code == ErrorCode::Config && !e.text.trim().is_empty() => {}
            Err(e) => {
                return failed(
                    format!("an error of code config with a text, for a device config that is {what}"),
                    format!("'{}' ({})", e.text, e.code),
                    "return an error of code config that names file, line and key",
                );
            }
        }
    }
    Ok(None)
}

pub fn device(bench: &Bench) -> Done {
    let live = bench.start()?;
    if live.device.name.trim().is_empty() {
        return failed("a device with a name", "an empty one", "name the device in `device`");
    }
    let again = live.instance.device().or_else(|e| {
        failed("the same description again", format!("the error '{}'", e.text), "answer `device` at any time")
    })?;
    if again.device != live.device || again.hooks != live.hooks {
        let got = format!("{:?}, then {:?}", live.device, again.device);
        return failed(
            "the same description each time",
            got,
            "describe the device as it is, not as it happens to be",
        );
    }
    let d = live.device.clone();
    live.end()?;
    let targets: Vec<&str> = d.targets.iter().map(|t| t.name()).collect();
    Ok(Some(format!("{}: {} qubits, {}, {} slot(s)", d.name, d.num_qubits, targets.join(" "), d.slots)))
}

/// Threads and open files of this process.
fn holdings() -> (usize, usize) {
    let count = |dir: &str| fs::read_dir(dir).map_or(0, Iterator::count);
    (count("/proc/self/task"), count("/proc/self/fd"))
}

pub fn left_behind(bench: &Bench) -> Done {
    let loaded = bench.load()?;
    // What the first executor leaves in caches is not a leak.
    for round in 0..2 {
        let before = holdings();
        let live = bench.start_from(&loaded)?;
        let program = live.plain()?;
        for _ in 0..3 {
            if let Err(e) = live.run(&program, bench.shots(&live, 100)) {
                return failed("counts", format!("the error '{}'", e.text), "run a plain circuit");
            }
        }
        live.end()?;
        if round == 0 {
            continue;
        }
        let until = Instant::now() + SETTLE;
        let mut after = holdings();
        while (after.0 > before.0 || after.1 > before.1) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
            after = holdings();
        }
        if after.0 > before.0 {
            let got = format!("{} more", after.0 - before.0);
            return failed("no threads after destroy", got, "join every thread in shutdown or destroy");
        }
        if after.1 > before.1 {
            let got = format!("{} more", after.1 - before.1);
            return failed("no open files after destroy", got, "close every file and socket in destroy");
        }
    }
    Ok(None)
}

/// What a plugin must leave alone, by name.
fn process() -> BTreeMap<&'static str, String> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = |name: &str| {
        let value = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or_default().trim().to_string()
    };
    BTreeMap::from([
        ("blocked signals", line("SigBlk")),
        ("ignored signals", line("SigIgn")),
        ("handled signals", line("SigCgt")),
        ("umask", line("Umask")),
        ("locale", sys::locale()),
        ("working directory", std::env::current_dir().map(|d| d.display().to_string()).unwrap_or_default()),
    ])
}

pub fn process_state(bench: &Bench) -> Done {
    // The first use of a thread or of a lock may set handlers of the runtime's own.
    std::thread::scope(|s| drop(s.spawn(|| ()).join()));
    let mut before = process();
    let mut look = |after: &str| {
        let now = process();
        for (what, value) in &now {
            let was = before.get(what).cloned().unwrap_or_default();
            if *value != was {
                return failed(
                    format!("{what} left as they were ({was})"),
                    format!("{value} after {after}"),
                    format!("leave {what} to the host"),
                );
            }
        }
        before = now;
        Ok(())
    };
    let loaded = bench.load()?;
    look("loading")?;
    let live = bench.start_from(&loaded)?;
    look("create")?;
    let program = live.plain()?;
    if let Err(e) = live.run(&program, bench.shots(&live, 100)) {
        return failed("counts", format!("the error '{}'", e.text), "run a plain circuit");
    }
    look("run")?;
    live.end()?;
    look("destroy")?;
    Ok(None)
}

/// Bytes in memory.
fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

pub fn memory(bench: &Bench) -> Done {
    let loaded = bench.load()?;
    if loaded.descriptor.kind == Kind::Hardware {
        return skipped("a thousand runs are dear on hardware");
    }
    let live = bench.start_from(&loaded)?;
    let (program, runs) = (live.plain()?, if bench.options.quick { 200 } else { 1_000 });
    let shots = bench.shots(&live, 100);
    let round = |runs: u32| -> Result<(), super::Stop> {
        for _ in 0..runs {
            if let Err(e) = live.run(&program, shots) {
                return failed(
                    "counts",
                    format!("the error '{}'", e.text),
                    "run the same circuit again and again",
                );
            }
        }
        Ok(())
    };
    round(runs / 10)?;
    let before = resident();
    round(runs)?;
    let growth = resident().saturating_sub(before);
    live.end()?;
    if growth > GROWTH {
        return failed(
            format!("less than {} MiB more after {runs} runs", GROWTH >> 20),
            format!("{} MiB more", growth >> 20),
            "free what a run allocates; bound what it keeps",
        );
    }
    Ok(Some(format!("{} KiB more after {runs} runs", growth >> 10)))
}
