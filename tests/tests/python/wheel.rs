//! The wheel of coda-host in a fresh virtual environment: the binary runs the executor that is installed beside it.

use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host_tests::artifacts::circuit_file;

/// An executor that tells which environment it runs in.
const EXECUTOR: &str = "\
import sys
from coda_executor import ExecutionResult

class Executor:
    num_qubits = 2

    async def run(self, ir, shots):
        print('environment', sys.prefix, file=sys.stderr)
        return ExecutionResult(counts={'00': shots}, execution_time_ms=1.0, shots_completed=shots)

def create_executor():
    return Executor()
";

/// The wheel, when it was built.
fn wheel() -> Option<PathBuf> {
    let wheel = std::env::var_os("CODA_TEST_WHEEL").filter(|path| !path.is_empty()).map(PathBuf::from);
    if wheel.is_none() {
        eprintln!("skipped: there is no wheel (make wheel)");
    }
    wheel
}

/// What a program wrote to standard output and standard error; it must succeed.
fn said(command: &mut Command) -> (String, String) {
    let output = command.output().expect("it can be started");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {out}{err}");
    (out.into_owned(), err.into_owned())
}

/// Runs a circuit with a device config, in an environment that names no interpreter and no plugin directory.
fn run(venv: &Path, dir: &Path, device: &str) -> (String, String) {
    let config = dir.join("device.yaml");
    std::fs::write(&config, device).unwrap();
    let mut command = Command::new(venv.join("bin/coda-host"));
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", dir).current_dir(dir);
    said(command.arg("run").arg(circuit_file("bell.json")).args(["--shots", "100", "--device"]).arg(&config))
}

#[test]
fn a_host_from_a_wheel_runs_plugins_and_the_executor_of_its_environment() {
    let Some(wheel) = wheel() else { return };
    let dir = tempfile::tempdir().unwrap();
    let venv = dir.path().join("lab");
    said(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    let pip = venv.join("bin/pip");
    said(
        Command::new(pip)
            .args(["install", "--quiet", "--no-index", "--disable-pip-version-check"])
            .arg(&wheel),
    );
    let (version, _) = said(Command::new(venv.join("bin/coda-host")).arg("--version"));
    assert!(version.starts_with("coda-host "), "{version}");

    let (counts, _) = run(&venv, dir.path(), "executor_factory: coda_simulator\nnum_qubits: 3\n");
    assert!(counts.contains("100 shots"), "{counts}");

    let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let (packages, _) = said(Command::new(venv.join("bin/python")).args(["-c", packages]));
    std::fs::write(Path::new(packages.trim()).join("acme_lab.py"), EXECUTOR).unwrap();
    let (counts, log) = run(&venv, dir.path(), "executor_factory: acme_lab:create_executor\n");
    assert!(counts.contains("00") && counts.contains("100.0 %"), "{counts}");
    assert!(log.contains(&format!("environment {}", venv.display())), "{log}");
    // The types that executors import are a package of the same wheel.
    let typed = "import coda_executor, pathlib; assert pathlib.Path(coda_executor.__file__).with_name('py.typed').exists()";
    said(Command::new(venv.join("bin/python")).args(["-c", typed]));
}
