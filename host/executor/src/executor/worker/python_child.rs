//! The executor's process becomes a Python interpreter, once it has given up its rights.

use std::fs;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use super::super::python::BOOT;
use super::super::wire::MAX_FRAME;
use super::frames::{Frame, SlotAnswer, write};
use super::spec::StepOutcome;
use crate::sys;

/// Links on the way to one file.
const MAX_LINKS: usize = 40;

/// Replaces this process by the interpreter, which gets the host's sockets. Returns only when that can't be done, after
/// the host was told why.
///
/// # Errors
/// When the host has not prepared what it must, or is gone.
pub fn run(interpreter: &Path, descriptors: &[i32], rights: Result<(), String>) -> io::Result<ExitCode> {
    let outcome = match rights {
        Err(text) => StepOutcome::Rights(text),
        Ok(()) => {
            let mut command = Command::new(interpreter);
            // Not `-I` and not `-E`: what the vendor's environment sets for its interpreter applies.
            command.args(["-u", "-c", BOOT]);
            let error = command.args(descriptors.iter().map(ToString::to_string)).exec();
            refusal(interpreter, &error)
        }
    };
    let handed = sys::inherited(descriptors)?;
    let [_, _, slot]: [_; 3] =
        handed.try_into().map_err(|_| io::Error::other("the host hands over three sockets"))?;
    let mut slot = UnixStream::from(slot);
    // The bridge and the check: what is not read would take the answer with it.
    for _ in 0..2 {
        Frame::read(&mut slot, MAX_FRAME)?;
    }
    write(&mut slot, SlotAnswer::Step(outcome).encode())?;
    Ok(ExitCode::SUCCESS)
}

fn refusal(interpreter: &Path, error: &io::Error) -> StepOutcome {
    if error.kind() == io::ErrorKind::PermissionDenied
        && let Some((path, why)) = first_unreadable(interpreter)
    {
        return StepOutcome::Unreadable { path, why: why.to_string() };
    }
    StepOutcome::PythonRefused {
        what: format!("the interpreter {} can't be started: {error}", interpreter.display()),
        hint: "set CODA_EXECUTOR_PYTHON to an interpreter that starts, or make its virtual environment again"
            .into(),
    }
}

/// The first folder, link or file on the way to a file that this process may not use.
fn first_unreadable(path: &Path) -> Option<(PathBuf, io::Error)> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        let mut at = PathBuf::new();
        let mut link = None;
        for component in path.components() {
            let folder = at.clone();
            at.push(component);
            match fs::symlink_metadata(&at) {
                // A folder that can't be searched hides what is in it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Some((folder, error));
                }
                Err(error) => return Some((at, error)),
                Ok(meta) if meta.is_symlink() => {
                    let rest = path.strip_prefix(&at).ok()?.to_path_buf();
                    let to = folder.join(fs::read_link(&at).ok()?);
                    link = Some(if rest.as_os_str().is_empty() { to } else { to.join(rest) });
                    break;
                }
                Ok(_) => {}
            }
        }
        match link {
            Some(next) => path = next,
            None => return fs::File::open(&path).err().map(|error| (path, error)),
        }
    }
    None
}
