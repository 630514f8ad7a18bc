//! Starts the process of an executor: this program again, which gives up its rights and then opens the library or becomes
//! the interpreter.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::super::loader;
use super::spec::{LibrarySpec, WorkerSpec};
use crate::sys;

/// Starts the process with these sockets.
///
/// # Errors
/// When a file of the library has changed since it was checked, or the process can't be started.
pub fn spawn(spec: &WorkerSpec, mut descriptors: Vec<OwnedFd>) -> io::Result<Child> {
    if let WorkerSpec::Library(spec) = spec {
        descriptors.push(library(spec)?);
    }
    let numbers: Vec<String> = descriptors.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    // This very program, also when its file has been replaced meanwhile: both ends must be of one version.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("coda-host");
    command.args(["executor-worker", &spec.plugin(), "--descriptors", &numbers.join(",")]);
    // The password of a proxy is not its business; `main` has taken away the host's own secrets.
    std::env::vars_os().filter(|(name, value)| is_proxy_with_password(name, value)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    if let Some(account) = spec.account() {
        command.args(["--account", account.name.as_str()]);
        command.env("HOME", &account.home).env("USER", &account.name).env("LOGNAME", &account.name);
    }
    if !spec.capabilities().is_empty() {
        command.args(["--capabilities", &spec.capabilities().bits().to_string()]);
    }
    if let WorkerSpec::Python(spec) = spec {
        let interpreter = &spec.interpreter.path;
        command.arg("--python").arg(interpreter);
        activate(&mut command, interpreter);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::spawn_worker(command, descriptors)
}

/// The library's file. One in place may have been exchanged since it was checked, before this process or an earlier one
/// started.
fn library(spec: &LibrarySpec) -> io::Result<OwnedFd> {
    loader::unchanged(&spec.in_place).map_err(io::Error::other)?;
    let file = match &spec.file {
        Some(file) => file.0.try_clone(),
        None => std::fs::File::open(&spec.opened),
    };
    Ok(file?.into())
}

/// The environment of an activated virtual environment, when the interpreter is one's: helpers that the executor starts by
/// their bare names are found there.
fn activate(command: &mut Command, interpreter: &Path) {
    let Some(bin) = interpreter.parent() else { return };
    let Some(prefix) = bin.parent().filter(|prefix| prefix.join("pyvenv.cfg").is_file()) else { return };
    command.env("VIRTUAL_ENV", prefix);
    let mut path = OsString::from(bin);
    if let Some(rest) = std::env::var_os("PATH").filter(|rest| !rest.is_empty()) {
        path.push(":");
        path.push(rest);
    }
    command.env("PATH", path);
}

fn is_proxy_with_password(name: &OsStr, value: &OsStr) -> bool {
    let name = name.to_string_lossy().to_ascii_lowercase();
    name.ends_with("_proxy") && value.to_string_lossy().contains('@')
}
