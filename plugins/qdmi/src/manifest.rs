//! The manifests (`*.qdmi.json`) that lie beside device libraries, and the prefix that a library's symbols have.
//!
//! Contract: reads files and runs none of their code. A manifest of another version, or one that names a parameter with
//! something other than text, is an error that names the file; keys that are not known here are the vendor's own. An id
//! names one enabled device of all manifests of a directory, or none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use object::{Architecture, Object as _, ObjectSymbol as _, ReadCache};
use serde::Deserialize;

/// Most bytes of a manifest.
const MAX_MANIFEST: u64 = 1 << 20;
const SUFFIX: &str = ".qdmi.json";
const INITIALIZE: &str = "_QDMI_device_initialize";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Manifest {
    schema_version: u32,
    qdmi: Devices,
}

#[derive(Debug, Deserialize)]
struct Devices {
    devices: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    id: String,
    library: PathBuf,
    prefix: Option<String>,
    #[serde(default = "yes")]
    enabled: bool,
    #[serde(default)]
    session: BTreeMap<String, serde_json::Value>,
}

fn yes() -> bool {
    true
}

/// A device as a manifest describes it, with absolute paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestDevice {
    pub manifest: PathBuf,
    pub library: PathBuf,
    pub prefix: Option<String>,
    /// Parameters of the session by the names of this plugin's config, such as `base_url`.
    pub session: BTreeMap<&'static str, String>,
    /// The file that `device-config` names: the library reads it.
    pub device_config: Option<PathBuf>,
}

/// The manifest's name of a parameter, and the config's.
const PARAMETERS: &[(&str, &str)] = &[
    ("base-url", "base_url"),
    ("token", "token"),
    ("auth-file", "auth_file"),
    ("auth-url", "auth_url"),
    ("username", "username"),
    ("password", "password"),
    ("custom1", "custom1"),
    ("custom2", "custom2"),
    ("custom3", "custom3"),
    ("custom4", "custom4"),
    ("custom5", "custom5"),
];

/// Finds a device by its id in the manifests of a directory.
///
/// # Errors
/// When no manifest has it enabled, more than one entry has it, or the manifest that has it can't be used; the text lists
/// the ids that there are.
pub fn find(dir: &Path, id: &str) -> Result<ManifestDevice, String> {
    let mut known = BTreeSet::new();
    let (mut unusable, mut disabled) = (None, None);
    let mut found: Vec<(PathBuf, Entry)> = Vec::new();
    for file in files(dir, |name| name.ends_with(SUFFIX))? {
        let manifest = match read(&file) {
            Ok(manifest) => manifest,
            // Another vendor's broken file is no reason against a device that is described elsewhere.
            Err(why) => {
                unusable.get_or_insert(why);
                continue;
            }
        };
        for entry in manifest.qdmi.devices {
            match (entry.id == id, entry.enabled) {
                (true, true) => found.push((file.clone(), entry)),
                (true, false) => disabled = Some(file.clone()),
                (false, true) => drop(known.insert(entry.id)),
                (false, false) => {}
            }
        }
    }
    if found.len() > 1 {
        let files: BTreeSet<String> = found.iter().map(|(file, _)| file.display().to_string()).collect();
        let files: Vec<String> = files.into_iter().collect();
        return Err(format!(
            "`device` is '{id}', and more than one enabled entry has this id, in {}; disable all but one",
            files.join(", ")
        ));
    }
    if let Some((file, entry)) = found.pop() {
        return device(&file, entry);
    }
    if let Some(file) = disabled {
        return Err(format!(
            "`device` is '{id}' of the manifest {}, and is disabled there; set its `enabled` to true, or leave `device` \
             out and set `prefix` and `session`",
            file.display()
        ));
    }
    if let Some(why) = unusable {
        return Err(why);
    }
    let known: Vec<String> = known.into_iter().collect();
    let there = if known.is_empty() {
        format!("{} has no *{SUFFIX}; leave `device` out and set `session`", dir.display())
    } else {
        format!("the manifests in {} have: {}", dir.display(), known.join(", "))
    };
    Err(format!("`device` is '{id}', which no manifest has; {there}"))
}

fn read(path: &Path) -> Result<Manifest, String> {
    let unusable = |why: String| format!("the manifest {} can't be used: {why}", path.display());
    let mut text = String::new();
    let file = File::open(path).map_err(|e| unusable(e.to_string()))?;
    let bytes = file.take(MAX_MANIFEST + 1).read_to_string(&mut text).map_err(|e| unusable(e.to_string()))?;
    if bytes as u64 > MAX_MANIFEST {
        return Err(unusable(format!("it has more than {MAX_MANIFEST} bytes")));
    }
    let manifest: Manifest = serde_json::from_str(&text).map_err(|e| unusable(e.to_string()))?;
    match manifest.schema_version {
        1 => Ok(manifest),
        other => Err(unusable(format!("its schema-version is {other}, and 1 is the one that is known"))),
    }
}

fn device(manifest: &Path, entry: Entry) -> Result<ManifestDevice, String> {
    let dir = manifest.parent().unwrap_or(Path::new("/"));
    let no_text = |key: &str| {
        format!("the manifest {}: `{key}` of device '{}' is not text", manifest.display(), entry.id)
    };
    let mut session = BTreeMap::new();
    let mut device_config = None;
    for (key, value) in &entry.session {
        if key == "device-config" {
            match (value.get("file"), value.get("inline")) {
                (Some(file), None) => {
                    let file = dir.join(file.as_str().ok_or_else(|| no_text("device-config"))?);
                    session.insert("custom2", file.display().to_string());
                    device_config = Some(file);
                }
                (None, Some(serde_json::Value::String(inline))) => {
                    session.insert("custom1", inline.clone());
                }
                (None, Some(inline)) => {
                    session.insert("custom1", inline.to_string());
                }
                _ => return Err(no_text("device-config")),
            }
            continue;
        }
        let Some((_, name)) = PARAMETERS.iter().find(|(theirs, _)| theirs == key) else { continue };
        let text = value.as_str().ok_or_else(|| no_text(key))?;
        let is_path = *name == "auth_file";
        let text = if is_path { dir.join(text).display().to_string() } else { text.to_string() };
        session.insert(*name, text);
    }
    Ok(ManifestDevice {
        manifest: manifest.to_path_buf(),
        library: dir.join(&entry.library),
        prefix: entry.prefix,
        session,
        device_config,
    })
}

/// Whether two files are versions of one library, as `libx.so` and `libx.so.1.2` are.
pub fn same_library(a: &Path, b: &Path) -> bool {
    let stem = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split(".so").next().unwrap_or_default().to_string()
    };
    stem(a) == stem(b)
}

/// The only device library of a directory.
///
/// # Errors
/// When there are several or none; the text lists them.
pub fn only_library(dir: &Path) -> Result<PathBuf, String> {
    let mut found = Vec::new();
    // Versions of one library, `libx.so` and `libx.so.1`, are one; the shortest name sorts first.
    for file in files(dir, |name| name.contains(".so"))? {
        let is_device = prefixes(&file).is_ok_and(|prefixes| !prefixes.is_empty());
        if is_device && !found.iter().any(|other: &PathBuf| same_library(other, &file)) {
            found.push(file);
        }
    }
    let names = || found.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(format!("`library` is the directory {}, which has no QDMI library", dir.display())),
        _ => {
            Err(format!("`library` is a directory with several QDMI libraries; set it to one of {}", names()))
        }
    }
}

fn files(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, String> {
    let unreadable = |e: std::io::Error| format!("the directory {} can't be read: {e}", dir.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_file() && path.file_name().is_some_and(|name| wanted(&name.to_string_lossy())) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The prefix of a library, from its own symbols.
///
/// # Errors
/// When it has several or none.
pub fn prefix_of(library: &Path) -> Result<String, String> {
    let found =
        prefixes(library).map_err(|why| format!("the library {} can't be read: {why}", library.display()))?;
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => {
            Err(format!("{} is not a QDMI device library: no symbol ends in {INITIALIZE}", library.display()))
        }
        several => Err(format!(
            "{} has the devices {}; set `prefix` to one of them",
            library.display(),
            several.join(", ")
        )),
    }
}

/// Checks what the loader doesn't: it crashes on a file that is cut off, and calls one of another machine missing.
///
/// # Errors
/// When the file is not a whole library for this machine.
pub fn check_loadable(library: &Path) -> Result<(), String> {
    let unreadable = |why: String| {
        format!("the library {} can't be read: {why}; is the file complete?", library.display())
    };
    let file = File::open(library).map_err(|e| unreadable(e.to_string()))?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).map_err(|e| unreadable(e.to_string()))?;
    let machine = match std::env::consts::ARCH {
        "x86_64" => Architecture::X86_64,
        "aarch64" => Architecture::Aarch64,
        // Others are left to the loader.
        _ => return Ok(()),
    };
    if elf.architecture() == machine {
        return Ok(());
    }
    Err(format!(
        "the library {} is for {:?}, and this machine is {machine:?}; install the vendor's package for this machine",
        library.display(),
        elf.architecture()
    ))
}

/// Every prefix in the dynamic symbols of a file; nothing of it is loaded.
fn prefixes(library: &Path) -> Result<Vec<String>, String> {
    let file = File::open(library).map_err(|e| e.to_string())?;
    let cache = ReadCache::new(file);
    let elf = object::File::parse(&cache).map_err(|e| e.to_string())?;
    let mut found = BTreeSet::new();
    for symbol in elf.dynamic_symbols().filter(|symbol| symbol.is_definition()) {
        let Ok(name) = symbol.name() else { continue };
        if let Some(prefix) = name.strip_suffix(INITIALIZE).filter(|prefix| !prefix.is_empty()) {
            found.insert(prefix.to_string());
        }
    }
    Ok(found.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, devices: &str) {
        let text = format!(r#"{{"schema-version": 1, "qdmi": {{"devices": [{devices}]}}}}"#);
        std::fs::write(dir.join(name), text).unwrap();
    }

    #[test]
    fn a_device_is_found_in_any_manifest_with_absolute_paths() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "a.qdmi.json", r#"{"id": "a", "library": "liba.so", "prefix": "A"}"#);
        write(
            dir.path(),
            "b.qdmi.json",
            r#"{"id": "b", "library": "sub/libb.so.1", "prefix": "B", "enabled": true, "later": 1,
               "session": {"base-url": "https://b", "custom3": "7", "device-config": {"file": "b.json"}}},
               {"id": "c", "library": "libb.so", "session": {"device-config": {"inline": {"n": 2}}}},
               {"id": "d", "library": "libb.so", "session": {"device-config": {"inline": "{}"}, "future": 3}}"#,
        );
        let b = find(dir.path(), "b").unwrap();
        let file = dir.path().join("b.json");
        let text = file.display().to_string();
        assert_eq!(b.library, dir.path().join("sub/libb.so.1"));
        assert_eq!((b.prefix.as_deref(), b.device_config), (Some("B"), Some(file)));
        let session = [("base_url", "https://b"), ("custom2", &text), ("custom3", "7")];
        assert_eq!(b.session, session.map(|(name, value)| (name, value.to_string())).into());
        assert_eq!(find(dir.path(), "c").unwrap().session["custom1"], r#"{"n":2}"#);
        assert_eq!(find(dir.path(), "d").unwrap().session["custom1"], "{}");
        assert!(find(dir.path(), "e").unwrap_err().ends_with("have: a, b, c, d"));
    }

    #[test]
    fn manifests_that_are_not_understood_are_refused() {
        for (text, says) in [
            (r#"{"schema-version": 2, "qdmi": {"devices": []}}"#, "its schema-version is 2"),
            (r#"{"qdmi": {"devices": []}}"#, "schema-version"),
            ("{", "EOF"),
            (
                r#"{"schema-version": 1, "qdmi": {"devices": [{"id": "a", "library": "x", "session": {"token": 1}}]}}"#,
                "`token` of device 'a' is not text",
            ),
            (
                r#"{"schema-version": 1, "qdmi": {"devices": [{"id": "a", "library": "x", "session": {"device-config": {}}}]}}"#,
                "`device-config` of device 'a'",
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("m.qdmi.json"), text).unwrap();
            let error = find(dir.path(), "a").unwrap_err();
            assert!(error.contains("m.qdmi.json") && error.contains(says), "{error}");
        }
        let empty = tempfile::tempdir().unwrap();
        assert!(find(empty.path(), "a").unwrap_err().contains("has no *.qdmi.json"));
        assert!(only_library(empty.path()).unwrap_err().contains("has no QDMI library"));
    }

    #[test]
    fn an_id_names_one_enabled_device() {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            "a.qdmi.json",
            r#"{"id": "off", "library": "liba.so", "enabled": false},
               {"id": "one", "library": "liba.so", "prefix": "A", "enabled": false},
               {"id": "one", "library": "liba.so", "prefix": "B"},
               {"id": "two", "library": "liba.so"}, {"id": "two", "library": "libb.so"},
               {"id": "far", "library": "liba.so"}"#,
        );
        write(dir.path(), "b.qdmi.json", r#"{"id": "far", "library": "libc.so", "enabled": true}"#);
        assert_eq!(find(dir.path(), "one").unwrap().prefix.as_deref(), Some("B"));
        for (id, says) in [
            ("off", &["a.qdmi.json", "'off'", "is disabled there"][..]),
            ("two", &["'two'", "a.qdmi.json", "more than one"]),
            ("far", &["'far'", "a.qdmi.json", "b.qdmi.json", "more than one"]),
            ("none", &["have: far, one, two"]),
        ] {
            let error = find(dir.path(), id).unwrap_err();
            assert!(says.iter().all(|says| error.contains(says)), "{id}: {error}");
        }
        // A manifest that can't be used matters only where no other has the device.
        std::fs::write(dir.path().join("c.qdmi.json"), "{").unwrap();
        assert!(find(dir.path(), "one").is_ok());
        assert!(find(dir.path(), "none").unwrap_err().contains("c.qdmi.json"));
    }

    #[test]
    fn versions_of_a_library_are_one_library() {
        assert!(same_library(Path::new("/x/liba.so"), Path::new("/y/liba.so.1.2")));
        assert!(!same_library(Path::new("liba.so"), Path::new("libb.so")));
    }

    #[test]
    fn a_file_that_the_loader_would_crash_on_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let whole = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let foreign = if cfg!(target_arch = "x86_64") { 183u16 } else { 62 };
        let mut other = whole.clone();
        other[18..20].copy_from_slice(&foreign.to_le_bytes());
        for (bytes, says) in [
            (&whole[..whole.len() / 2], "is the file complete?"),
            (&whole[..10], "is the file complete?"),
            (&[], "is the file complete?"),
            (other.as_slice(), "and this machine is"),
        ] {
            let path = dir.path().join("x.so");
            std::fs::write(&path, bytes).unwrap();
            let error = check_loadable(&path).unwrap_err();
            assert!(error.contains(says) && error.contains("x.so"), "{error}");
        }
        assert_eq!(check_loadable(&std::env::current_exe().unwrap()), Ok(()));
    }

    #[test]
    fn a_library_without_the_symbol_is_named() {
        let own = std::env::current_exe().unwrap();
        assert!(prefix_of(&own).unwrap_err().contains("is not a QDMI device library"));
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("x.so");
        std::fs::write(&text, "text").unwrap();
        assert!(prefix_of(&text).unwrap_err().contains("can't be read"));
    }
}
