//! The archive of `make dist`: what is in it, which C library it needs, and that it runs in trees of distributions that
//! have neither a compiler nor anything else of this machine.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host_tests::artifacts::project_file;
use coda_host_tests::tree::Tree;
use object::read::elf::{ElfFile64, FileHeader as _};
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use serde_json::Value;
use tempfile::TempDir;

use super::page::is_bell_pair;

/// The oldest C library that an archive may need: that of Debian 11 and Ubuntu 20.04.
const OLDEST_GLIBC: [u32; 2] = [2, 31];

/// What a user looks for, apart from the programs themselves. `make install` has the whole list.
const EXPECTED: &[&str] = &[
    "include/coda_executor.h",
    "include/coda_executor.hpp",
    "lib/systemd/system/coda-host.service",
    "lib/systemd/system/coda-host@.service",
    "share/bash-completion/completions/coda-host",
    "share/coda-host/python/coda_executor/__init__.py",
    "share/coda-host/sdk/coda-plugin-abi/Cargo.toml",
    "share/doc/coda-host/BUILD",
    "share/doc/coda-host/LICENSE-APACHE",
    "share/doc/coda-host/LICENSE-MIT",
    "share/doc/coda-host/SHA256SUMS",
    "share/doc/coda-host/coda-host.cdx.json",
    "share/doc/coda-host/examples/bell.json",
    "share/doc/coda-host/examples/simulator.yaml",
    "share/doc/coda-host/install.md",
    "share/doc/coda-host/monitoring/coda-host.rules.yml",
    "share/man/man1/coda-host.1.gz",
];

const PROGRAMS: &[&str] =
    &["bin/coda-host", "lib/coda-host/libcoda_simulator.so", "lib/coda-host/libcoda_qdmi.so"];

/// The archive's path, when it was built.
pub fn archive() -> Option<PathBuf> {
    let archive = std::env::var_os("CODA_TEST_ARCHIVE").filter(|path| !path.is_empty()).map(PathBuf::from);
    if archive.is_none() {
        println!("skipped: there is no archive (make test-dist)");
    }
    archive
}

/// An archive that is unpacked, and its one folder.
fn unpacked(archive: &Path) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let done = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(done.success(), "{} can't be unpacked", archive.display());
    let folders: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [folder] = &folders[..] else { panic!("one folder, not {folders:?}") };
    let folder = folder.clone();
    (dir, folder)
}

/// The files below a folder, by their paths in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => left.push(entry.path()),
                false => found.push(entry.path().strip_prefix(folder).unwrap().to_path_buf()),
            }
        }
    }
    found
}

/// Versions of glibc whose symbols an ELF file needs, from its version needs.
fn needed_glibc(bytes: &[u8]) -> BTreeSet<[u32; 2]> {
    let file = ElfFile64::<object::Endianness>::parse(bytes).unwrap();
    let endian = file.endian();
    let sections = file.elf_header().sections(endian, bytes).unwrap();
    let Some((mut needs, link)) = sections.gnu_verneed(endian, bytes).unwrap() else {
        return BTreeSet::new();
    };
    let strings = sections.strings(endian, bytes, link).unwrap();
    let mut versions = BTreeSet::new();
    while let Some((_, mut entries)) = needs.next().unwrap() {
        while let Some(entry) = entries.next().unwrap() {
            let name = String::from_utf8_lossy(entry.name(endian, strings).unwrap()).into_owned();
            let Some(version) = name.strip_prefix("GLIBC_") else { continue };
            let mut parts = version.split('.').map(|part| part.parse().unwrap());
            versions.insert([parts.next().unwrap(), parts.next().unwrap()]);
        }
    }
    versions
}

#[test]
fn an_archive_has_what_a_site_needs_and_the_checksums_of_all_of_it() {
    let Some(archive) = archive() else { return };
    let (_dir, folder) = unpacked(&archive);
    let found = files(&folder);
    for expected in EXPECTED.iter().chain(PROGRAMS) {
        assert!(
            found.iter().any(|file| file == Path::new(expected)),
            "{expected} is missing in {}",
            archive.display()
        );
    }
    let sums = folder.join("share/doc/coda-host/SHA256SUMS");
    let checked = Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet"])
        .arg(&sums)
        .current_dir(&folder)
        .output();
    let checked = checked.unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    let listed = std::fs::read_to_string(&sums).unwrap().lines().count();
    assert_eq!(listed, found.len() - 1, "every file but the list itself has a checksum");
    // The checksum of the archive is beside it.
    let beside =
        archive.with_file_name(archive.file_name().unwrap().to_str().unwrap().replace(".tar.gz", ".sha256"));
    let checked =
        Command::new("sha256sum").arg("--check").arg(beside).current_dir(archive.parent().unwrap()).output();
    assert!(checked.unwrap().status.success());
    // Every crate that is in the binary is in the list of its parts, with a licence.
    let list: Value = serde_json::from_slice(
        &std::fs::read(folder.join("share/doc/coda-host/coda-host.cdx.json")).unwrap(),
    )
    .unwrap();
    let components = list["components"].as_array().unwrap();
    for name in ["ring", "tokio", "libp2p", "coda-plugin-abi"] {
        let part = components
            .iter()
            .find(|part| part["name"] == name)
            .unwrap_or_else(|| panic!("{name} is not listed"));
        assert!(part["version"].is_string() && part["licenses"].is_array(), "{part}");
    }
}

#[test]
fn an_archive_knows_nothing_of_the_machine_that_built_it() {
    let Some(archive) = archive() else { return };
    let home = format!("{}/.", std::env::var("HOME").unwrap_or_else(|_| "/home".into()));
    let project = project_file("").display().to_string();
    let places = [project.trim_end_matches('/'), &home, "/.cargo/registry", "/.rustup/"];
    let debug = PathBuf::from(archive.display().to_string().replace(".tar.gz", "-debug.tar.gz"));
    for archive in [&archive, &debug] {
        let (_dir, folder) = unpacked(archive);
        for file in files(&folder) {
            // Comments in sources and documents may tell of such places; what is compiled or generated may not.
            let text =
                file.starts_with("share/coda-host/sdk/vendor") || file.extension().is_some_and(|e| e == "md");
            if text {
                continue;
            }
            let bytes = std::fs::read(folder.join(&file)).unwrap();
            for place in places.iter().filter(|place| place.len() > 1) {
                let at = bytes.windows(place.len()).position(|part| part == place.as_bytes());
                let around =
                    at.map(|at| String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 120)]).into_owned());
                assert!(around.is_none(), "{} of {}: {around:?}", file.display(), archive.display());
            }
        }
    }
}

#[test]
fn programs_are_stripped_and_their_debug_information_is_in_an_archive_of_its_own() {
    let Some(archive) = archive() else { return };
    let (_dir, folder) = unpacked(&archive);
    let (_debug_dir, debug) =
        unpacked(Path::new(&archive.display().to_string().replace(".tar.gz", "-debug.tar.gz")));
    for program in PROGRAMS {
        let bytes = std::fs::read(folder.join(program)).unwrap();
        let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
        let extra = file.sections().filter_map(|section| section.name().ok().map(String::from));
        let extra: Vec<_> = extra
            .filter(|name| (name.starts_with(".debug_") && name != ".debug_gdb_scripts") || name == ".symtab")
            .collect();
        assert!(extra.is_empty(), "{program} has {extra:?}");
        let id: String =
            file.build_id().unwrap().expect("a build id").iter().map(|b| format!("{b:02x}")).collect();
        let beside = debug.join(format!(".build-id/{}/{}.debug", &id[..2], &id[2..]));
        let bytes = std::fs::read(&beside).unwrap_or_else(|e| panic!("{}: {e}", beside.display()));
        let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
        assert!(file.section_by_name(".debug_line").is_some_and(|lines| lines.size() > 1000), "{program}");
    }
}

#[test]
fn programs_need_no_newer_c_library_than_that_of_debian_11() {
    let Some(archive) = archive() else { return };
    let (_dir, folder) = unpacked(&archive);
    for program in PROGRAMS {
        let needed = needed_glibc(&std::fs::read(folder.join(program)).unwrap());
        assert!(!needed.is_empty(), "{program} needs no version of glibc at all");
        let newest = needed.last().copied().unwrap();
        assert!(newest <= OLDEST_GLIBC, "{program} needs glibc {}.{}", newest[0], newest[1]);
    }
}

#[test]
fn a_host_exports_what_stands_for_the_c_library_s_ends_and_nothing_else() {
    let Some(archive) = archive() else { return };
    let (_dir, folder) = unpacked(&archive);
    let bytes = std::fs::read(folder.join("bin/coda-host")).unwrap();
    let file = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let exported = file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.is_global());
    let mut names: Vec<_> = exported.map(|symbol| symbol.name().unwrap().to_string()).collect();
    names.sort();
    assert_eq!(names, ["_Exit", "_exit", "quick_exit"]);
}

/// The architecture of an archive as Debian names it.
pub fn debian_arch(archive: &Path) -> &'static str {
    let name = archive.file_name().unwrap().to_str().unwrap();
    if name.contains("aarch64") { "arm64" } else { "amd64" }
}

#[test]
fn an_archive_runs_a_circuit_in_old_and_new_distributions_without_a_compiler() {
    let Some(archive) = archive() else { return };
    for tree in Tree::all(debian_arch(&archive)) {
        tree.give(&archive);
        let examples = "/usr/local/share/doc/coda-host/examples";
        let said = tree.run(&format!(
            "! command -v cc && ! command -v rustc
             tar -xzf coda-host-*.tar.gz -C /usr/local --strip-components=1
             coda-host --version
             ldd --version | head -n 1
             coda-host run {examples}/bell.json --device {examples}/simulator.yaml --shots 1000
             coda-host plugin check --device {examples}/simulator.yaml --quick --seed 7"
        ));
        println!("{}: {said}", tree.name);
        assert!(is_bell_pair(&said), "{}: {said}", tree.name);
        assert!(said.contains(" 0 failed"), "{}: {said}", tree.name);
    }
}

#[test]
fn an_archive_takes_jobs_from_redis_to_the_cloud_where_a_redis_server_is() {
    let Some(archive) = archive() else { return };
    for tree in Tree::all(debian_arch(&archive)).into_iter().filter(|tree| tree.has("usr/bin/redis-server")) {
        tree.give(&archive);
        let said = tree.run(
            "tar -xzf coda-host-*.tar.gz -C /usr/local --strip-components=1
             redis-server --version
             coda-host dev --demo --once --device /usr/local/share/doc/coda-host/examples/simulator.yaml",
        );
        println!("{}: {said}", tree.name);
        assert!(said.matches("shots").count() >= 3, "{}: {said}", tree.name);
    }
}
