//! Records the compiler and target, which the descriptor of every plugin states.
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let version = Command::new(rustc).arg("--version").output().ok().filter(|o| o.status.success());
    let version = version.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string()).unwrap_or_default();
    println!("cargo:rustc-env=CODA_ABI_RUSTC={version}");
    println!("cargo:rustc-env=CODA_ABI_TARGET={}", std::env::var("TARGET").unwrap_or_default());
}
