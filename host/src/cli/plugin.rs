//! `coda-host plugin inspect`: what a library says of itself, without running any of it.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use coda_plugin_abi::version;
use sha2::{Digest as _, Sha256};

use crate::error::Failure;
use crate::executor::elf;

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show a plugin's descriptor; nothing of the plugin is run
    #[command(after_help = "Example:\n  coda-host plugin inspect /usr/lib/coda-host/libacme.so --json")]
    Inspect {
        /// The library
        #[arg(value_name = "FILE.so", value_hint = clap::ValueHint::FilePath)]
        file: PathBuf,
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
}

pub fn run(command: Command) -> Result<ExitCode, Failure> {
    let Command::Inspect { file, json } = command;
    let found = elf::inspect(&file)?;
    let d = &found.descriptor;
    let sha256: String = Sha256::digest(&found.bytes).iter().map(|b| format!("{b:02x}")).collect();
    if json {
        let value = serde_json::json!({
            "file": file, "vendor": d.vendor, "name": d.name, "version": d.version,
            "kind": d.kind.name(), "interface": format!("{}.{}", d.api_major, d.api_minor),
            "door": format!("{:?}", d.door).to_lowercase(), "entries": d.entries, "rustc": d.rustc,
            "target": d.target, "panics_unwind": d.unwinds, "needs": found.needed, "sha256": sha256,
            "bytes": found.bytes.len(),
        });
        println!("{value}");
        return Ok(ExitCode::SUCCESS);
    }
    let line = |name: &str, value: &str| println!("{name:<12}{value}");
    line("plugin", &format!("{} {} by {}", d.name, d.version, d.vendor));
    line("kind", d.kind.name());
    let ours = format!("{}.{}", version::MAJOR, version::MINOR);
    line(
        "interface",
        &format!("{}.{} ({:?}); this coda-host offers {ours}", d.api_major, d.api_minor, d.door),
    );
    line("entries", &d.entries.join(", "));
    line("built by", &d.rustc);
    line("built for", &d.target);
    line("on panic", if d.unwinds { "unwinds" } else { "aborts" });
    line("needs", &found.needed.join(", "));
    line("sha256", &sha256);
    Ok(ExitCode::SUCCESS)
}
