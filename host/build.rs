//! Lets a plugin's calls of `_exit` find those of the host instead of the C library's; see `src/sys/exit_guard.rs`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for symbol in ["_exit", "_Exit", "quick_exit"] {
        println!("cargo:rustc-link-arg-bins=-Wl,--export-dynamic-symbol={symbol}");
    }
}
