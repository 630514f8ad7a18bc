//! What /proc says of a process and its descendants.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// Clock ticks of /proc per second; 100 on every Linux that matters here.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU seconds (user and system, reaped children included) of a process and its descendants.
pub fn cpu_seconds(pid: i32) -> f64 {
    tree(pid).iter().map(|p| p.ticks).sum::<u64>() as f64 / TICKS_PER_SECOND
}

/// Resident memory of a process and its descendants in MiB.
pub fn rss_mib(pid: i32) -> f64 {
    tree(pid).iter().map(|p| status_kib(p.pid, "VmRSS:")).sum::<f64>() / 1024.0
}

/// Most resident memory that a process has had so far, in MiB.
pub fn peak_mib(pid: i32) -> f64 {
    status_kib(pid, "VmHWM:") / 1024.0
}

fn status_kib(pid: i32, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// File descriptors that a process has open.
pub fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// Processes that descend from this one.
pub fn descendants(pid: i32) -> Vec<i32> {
    tree(pid).iter().map(|p| p.pid).filter(|other| *other != pid).collect()
}

struct Process {
    pid: i32,
    parent: i32,
    ticks: u64,
}

fn tree(root: i32) -> Vec<Process> {
    let mut rest: Vec<Process> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?))
        .collect();
    let mut found: Vec<Process> = Vec::new();
    let mut parents = vec![root];
    let (own, others): (Vec<_>, Vec<_>) = rest.drain(..).partition(|p| p.pid == root);
    found.extend(own);
    rest = others;
    while let Some(parent) = parents.pop() {
        let (children, others): (Vec<_>, Vec<_>) = rest.drain(..).partition(|p| p.parent == parent);
        parents.extend(children.iter().map(|p| p.pid));
        found.extend(children);
        rest = others;
    }
    found
}

/// The fields behind the name in parentheses: state, parent, ..., utime, stime, cutime, cstime at 11 to 14.
fn read(pid: i32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let number = |i: usize| fields.get(i).and_then(|f| f.parse::<u64>().ok());
    Some(Process {
        pid,
        parent: number(1)? as i32,
        ticks: number(11)? + number(12)? + number(13)? + number(14)?,
    })
}

/// Processes whose parent is this one.
pub fn children(pid: i32) -> Vec<i32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok()) else { continue };
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent =
            stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1)?.parse::<i32>().ok());
        if parent == Some(pid) {
            found.push(child);
        }
    }
    found
}
