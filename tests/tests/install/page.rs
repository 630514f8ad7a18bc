//! The commands of docs/install.md, typed: each of the three ways, where a user of it would be.

use std::path::{Path, PathBuf};

use coda_host_tests::artifacts::project_file;
use coda_host_tests::tree::Tree;

use super::archive::{archive, debian_arch};

/// More than these, and it is no short way.
const MOST_COMMANDS: usize = 5;

/// The commands of a chapter of the page.
pub fn commands(chapter: &str) -> Vec<String> {
    let page = std::fs::read_to_string(project_file("docs/install.md")).unwrap();
    let from =
        page.find(&format!("\n## {chapter}\n")).unwrap_or_else(|| panic!("there is no chapter {chapter}"));
    let text = &page[from + 4..];
    let text = &text[..text.find("\n## ").unwrap_or(text.len())];
    let blocks = text.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    blocks.flat_map(str::lines).map(String::from).collect()
}

/// What the commands of a chapter say, typed one after the other as root of a tree.
fn typed(tree: &Tree, chapter: &str) -> String {
    tree.run(&commands(chapter).join("\n"))
}

/// Both qubits or neither, each about half of the time.
pub fn is_bell_pair(said: &str) -> bool {
    let counted = |state: &str| said.lines().any(|line| line.split_whitespace().next() == Some(state));
    counted("00") && counted("11") && !counted("01") && !counted("10")
}

#[test]
fn every_way_is_short() {
    for chapter in ["Debian package", "Archive", "Container"] {
        let commands = commands(chapter);
        assert!((1..=MOST_COMMANDS).contains(&commands.len()), "{chapter}: {commands:?}");
    }
}

#[test]
fn the_package_is_installed_as_the_page_says() {
    let Some(package) = std::env::var_os("CODA_TEST_DEB").filter(|path| !path.is_empty()).map(PathBuf::from)
    else {
        println!("skipped: there is no package (make test-dist)");
        return;
    };
    // What is recommended beside it would need a network.
    let settings = tempfile::tempdir().unwrap();
    let settings = settings.path().join("no-recommends");
    std::fs::write(&settings, "APT::Install-Recommends \"false\";\n").unwrap();
    for tree in Tree::all("amd64").into_iter().filter(|tree| tree.name == "bookworm") {
        tree.give(&package);
        tree.give(Path::new(&settings));
        let typed = commands("Debian package").join("\n");
        let said = tree.run(&format!(
            "cp no-recommends /etc/apt/apt.conf.d/\n{typed}\n\
             getent passwd coda-executor\ncoda-host config --device /etc/coda-host/device.yaml > /dev/null\n\
             apt purge --yes coda-host\ntest ! -e /usr/bin/coda-host"
        ));
        assert!(is_bell_pair(&said), "{said}");
    }
}

#[test]
fn the_archive_is_installed_as_the_page_says() {
    let Some(archive) = archive() else { return };
    // `uname` of a tree for another architecture is the one of this machine.
    for tree in Tree::all(debian_arch(&archive)) {
        tree.give(&archive);
        let sums = archive.display().to_string().replace(".tar.gz", ".sha256");
        tree.give(Path::new(&sums));
        let said = typed(&tree, "Archive");
        assert!(is_bell_pair(&said), "{}: {said}", tree.name);
    }
}
