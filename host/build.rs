//! Lets a plugin's calls of `_exit` find those of the host instead of the C library's; see `base/src/sys/exit_guard.rs`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=exports.ld");
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rustc-link-arg-bins=-Wl,--dynamic-list={folder}/exports.ld");
}
