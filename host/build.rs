//! Lets a plugin's calls of `_exit` find those of the host instead of the C library's; see `base/src/sys/exit_guard.rs`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=exports.ld");
    println!("cargo:rerun-if-env-changed=RUSTC_LINKER");
    // Zig's linker doesn't know the option. It exports the three on its own, because the C library has functions of the same
    // names; so do others, but that is their habit and no promise. `make test-dist` looks at what an archive exports.
    let linker = std::env::var("RUSTC_LINKER").unwrap_or_default();
    if linker.contains("zigcc") {
        return;
    }
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rustc-link-arg-bins=-Wl,--dynamic-list={folder}/exports.ld");
}
