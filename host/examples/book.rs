//! `make docs`: collects the pages of the documentation site for mdBook: the documents, a reference of the commands that is
//! generated from the command line's definition, and the files that pages link to, at the same paths as in the
//! repository, so that every relative link is right in both places.
//!
//! Usage: `book DIRECTORY`, started in the root of the repository.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use coda_host::cli::Cli;

/// Every page in its order: the title in the list, and the file.
const PAGES: &[(&str, &str)] = &[
    ("coda-host", "README.md"),
    ("Installing coda-host", "docs/install.md"),
    ("Operating coda-host", "docs/operations.md"),
    ("Writing a plugin", "docs/plugins.md"),
    ("The peer network", "docs/peers.md"),
    ("Command line", "docs/cli.md"),
    ("Interfaces of a plugin", "docs/interfaces.md"),
    ("Architecture", "docs/architecture.md"),
    ("Performance", "docs/performance.md"),
    ("Changes", "CHANGELOG.md"),
    ("Contributing", "CONTRIBUTING.md"),
    ("Security", "SECURITY.md"),
];

/// Pages that this program writes.
const GENERATED: &[&str] = &["docs/cli.md", "docs/interfaces.md"];

/// What pages link to. A directory gets a page that lists its files.
const LINKED: &[&str] = &[
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "plugin-abi/include",
    "plugins/example-c",
    "plugins/example-cpp",
    "plugins/example-instrument",
    "plugins/example-python",
    "plugins/example-rust",
    "plugins/simulator",
    "tests/fixtures",
];

/// What a directory holds besides sources.
const LEFT_OUT: &[&str] = &["__pycache__", "target"];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(std::env::args().nth(1).ok_or("usage: book DIRECTORY")?);
    check_that_all_documents_are_pages()?;
    for (_, page) in PAGES.iter().filter(|(_, page)| !GENERATED.contains(page)) {
        copy(Path::new(page), &out)?;
    }
    for linked in LINKED.iter().map(Path::new) {
        if linked.is_dir() { copy_directory(linked, &out)? } else { copy(linked, &out)? }
    }
    write(&out.join("docs/cli.md"), &command_reference())?;
    write(&out.join("docs/interfaces.md"), &interfaces())?;
    write(&out.join("SUMMARY.md"), &summary()?)
}

/// # Errors
/// A document that was added is not in the list of pages.
fn check_that_all_documents_are_pages() -> Result<(), Box<dyn Error>> {
    let mut documents = Vec::new();
    collect(Path::new("docs"), &mut documents)?;
    let is_page = |document: &Path| PAGES.iter().any(|(_, page)| Path::new(page) == document);
    documents.retain(|document| document.extension().is_some_and(|e| e == "md") && !is_page(document));
    match documents.first() {
        Some(document) => {
            Err(format!("{} is not in PAGES of host/examples/book.rs", document.display()).into())
        }
        None => Ok(()),
    }
}

/// The reference of all commands. What is hidden on the command line is hidden here.
fn command_reference() -> String {
    let options = clap_markdown::MarkdownOptions::new()
        .title("Command line".into())
        .show_footer(false)
        .show_table_of_contents(true);
    with_examples_as_code(&clap_markdown::help_markdown_command_custom(&Cli::command(), &options))
}

/// The help has examples and tables in columns, behind a line that ends in a colon, until the next heading.
fn with_examples_as_code(page: &str) -> String {
    let (mut text, mut is_in_columns, mut is_code) = (String::new(), false, false);
    for line in page.lines() {
        is_in_columns =
            (is_in_columns || line == "Examples:" || line == "Exit status:") && !line.starts_with('#');
        let is_column = is_in_columns && line.starts_with("  ");
        if is_column != is_code {
            text.push_str(if is_column { "\n```text\n" } else { "```\n" });
            is_code = is_column;
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

fn interfaces() -> String {
    "# Interfaces of a plugin\n\n\
     - Rust: [the crate coda_plugin_abi](../api/coda_plugin_abi/index.html), generated from its sources\n\
     - C: [coda_executor.h](../plugin-abi/include/coda_executor.h)\n\
     - C++: [coda_executor.hpp](../plugin-abi/include/coda_executor.hpp)\n\
     - Python: [an executor of several files](../plugins/example-python/index.html)\n\n\
     The tutorial and the rules are in [Writing a plugin](plugins.md).\n"
        .into()
}

/// mdBook's list of pages. Those of directories are reached by links alone, but mdBook only renders what is listed.
fn summary() -> Result<String, Box<dyn Error>> {
    let mut text = String::from("# Summary\n\n");
    for (title, page) in PAGES {
        writeln!(text, "- [{title}]({page})")?;
    }
    text.push_str("\n# Sources\n\n");
    for linked in LINKED.iter().filter(|path| Path::new(path).is_dir()) {
        writeln!(text, "- [{linked}]({linked}/README.md)")?;
    }
    Ok(text)
}

/// Copies the sources in `directory` and below, and writes a page that lists them after what its own README says.
fn copy_directory(directory: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let mut files = Vec::new();
    collect(directory, &mut files)?;
    files.sort();
    let readme = directory.join("README.md");
    let mut page = match fs::read_to_string(&readme) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => format!("# {}\n", directory.display()),
        Err(error) => return Err(format!("cannot read {}: {error}", readme.display()).into()),
    };
    page.push_str("\n## Files\n\n");
    for file in files.iter().filter(|file| **file != readme) {
        let name = file.strip_prefix(directory)?.display();
        // mdBook makes a page of each of these that is listed, and of no other.
        if file.extension().is_some_and(|extension| extension == "md") {
            continue;
        }
        copy(file, out)?;
        writeln!(page, "- [{name}]({name})")?;
    }
    write(&out.join(readme), &page)
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(directory).map_err(|e| format!("cannot read {}: {e}", directory.display()))? {
        let path = entry?.path();
        let is_left_out = path.file_name().is_some_and(|name| LEFT_OUT.iter().any(|left| name == *left));
        if path.is_dir() && !is_left_out {
            collect(&path, found)?;
        } else if path.is_file() {
            found.push(path);
        }
    }
    Ok(())
}

fn copy(file: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let to = out.join(file);
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::copy(file, &to).map_err(|e| format!("cannot copy {} to {}: {e}", file.display(), to.display()))?;
    Ok(())
}

fn write(to: &Path, text: &str) -> Result<(), Box<dyn Error>> {
    if let Some(directory) = to.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(to, text).map_err(|e| format!("cannot write {}: {e}", to.display()).into())
}
