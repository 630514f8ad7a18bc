//! The operator's document names every setting and every metric, and no others.

use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// The names of `CODA_` variables between `before` and `after` in a text.
fn variables(text: &str, before: &str, after: char) -> BTreeSet<String> {
    let mark = format!("{before}CODA_");
    let names = text.split(&mark).skip(1).filter_map(|rest| rest.split_once(after));
    let name = |n: &str| !n.is_empty() && n.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    names.filter(|(n, _)| name(n)).map(|(n, _)| format!("CODA_{n}")).collect()
}

#[test]
fn the_document_names_every_setting_and_no_other() {
    let mut known = variables(&read("src/config/load.rs"), "\"", '"');
    assert!(known.len() > 50, "{known:?}");
    known.extend(variables(&read("src/config/load/peers.rs"), "\"", '"'));
    let elsewhere = read("src/config/suggest.rs");
    known.extend(variables(elsewhere.split("#[cfg(test)]").next().unwrap(), "\"", '"'));
    let document = read("../docs/operations.md");
    let rows: Vec<&str> = document.lines().filter(|l| l.starts_with("| `CODA_")).collect();
    let rows = rows.join("\n");
    let documented = variables(&rows, "| `", '`');
    assert_eq!(
        known.difference(&documented).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "not in docs/operations.md"
    );
    assert_eq!(documented.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "no such setting");
}

#[test]
fn the_document_names_every_alert() {
    let (document, rules) =
        (read("../docs/operations.md"), read("../packaging/monitoring/coda-host.rules.yml"));
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 15, "{alerts:?}");
    for alert in alerts {
        assert!(document.contains(&format!("`{alert}`")), "{alert} is not in docs/operations.md");
    }
}

#[test]
fn the_document_names_every_metric() {
    let document = read("../docs/operations.md");
    let mut known = 0;
    for (prefix, path) in [
        ("coda_host", "src/telemetry.rs"),
        ("coda_host", "src/telemetry/levels.rs"),
        ("coda_coordinator", "network/src/coordinator/metrics.rs"),
    ] {
        let source = read(path);
        let source = source.split("#[cfg(test)]").next().unwrap_or_default();
        let registered = source.split("r.register").skip(1);
        let mut names: Vec<&str> = registered.filter_map(|call| call.split('"').nth(1)).collect();
        // Gauges that are read at each scrape, on one line or several.
        for before in ["            (\"", "            (\n                \""] {
            names.extend(source.split(before).skip(1).filter_map(|entry| entry.split('"').next()));
        }
        // Families with labels.
        names.extend(source.split("= (\"coda_host_").skip(1).filter_map(|entry| entry.split('"').next()));
        known += names.len();
        for name in names {
            let name = format!("`{prefix}_{name}");
            assert!(document.contains(&name), "{name} is not in docs/operations.md");
        }
    }
    assert!(known > 20, "{known}");
}
