//! A site that ran the Python node: its device config, its environment, its packages.

use std::path::{Path, PathBuf};
use std::process::Command;

use coda_host::config::device::factory_line;
use coda_host_tests::python::{executors, lab_job, packages, venv};
use coda_host_tests::{Plan, TestHost};
use serde_json::json;

/// Runs a program that must succeed, and returns what it wrote.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("it can be started");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}{}", text, String::from_utf8_lossy(&output.stderr));
    text
}

/// Device configs of every kind, by what is odd about them.
const FILES: [&str; 24] = [
    "executor_factory: a.b:c\n",
    "target: cz\nexecutor_factory: a.b:c # ours\n",
    "executor_factory: a.b:c#x\n",
    "executor_factory: \"a.b:c\"\n",
    "executor_factory: 'a.b:c'  # x\n",
    "executor_factory: 'a.b:c#d'\n",
    "executor_factory: \"a.b:c\n",
    "executor_factory:a.b:c\n",
    "executor_factory : a.b:c\n",
    "executor_factory: a.b:c\nexecutor_factory: d.e:f\n",
    "  executor_factory: a.b:c\nexecutor_factory: d.e:f\n",
    "\texecutor_factory: a.b:c\n",
    "\"executor_factory\": a.b:c\n",
    "{\"executor_factory\": \"a.b:c\"}",
    "executor_factory: >-\n  a.b:c\n",
    "\u{feff}executor_factory: a.b:c\n",
    "x: 1\r\nexecutor_factory: a.b:c\r\n",
    "x: 1\u{2028}executor_factory: a.b:c\u{85}y: 2\n",
    "executor_factory:\u{a0}a.b:c\u{3000}\n",
    "site:\n  executor_factory: a.b:c\n",
    "executor_factory:\ntarget: cz\n",
    "executor_factory: # later\nexecutor_factory: a.b:c\n",
    "executor_factory: ''\n",
    "executor_factorys: a.b:c\n",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_config_is_read_line_by_line_as_the_python_node_reads_it() {
    let Some(venv) = venv() else { return };
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..FILES.len()).map(|n| dir.path().join(format!("{n}.yaml"))).collect();
    for (path, text) in paths.iter().zip(FILES) {
        std::fs::write(path, text).unwrap();
    }
    let program = "import sys, json\n\
        from coda_node.server.config import _load_executor_factory_from_device_config as read\n\
        print(json.dumps([read(path) for path in sys.argv[1:]]))";
    let said = output(Command::new(venv.join("bin/python")).args(["-c", program]).args(&paths));
    let theirs: Vec<String> = serde_json::from_str(said.trim()).unwrap();
    for (text, theirs) in FILES.iter().zip(theirs) {
        let ours = factory_line(text).unwrap_or_default();
        assert_eq!(ours, theirs, "{text:?}");
    }
}

/// A device config that is not YAML runs, with a warning.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_config_that_only_the_python_node_reads_is_accepted() {
    let Some(venv) = venv() else { return };
    let plan = Plan::device("executor_factory: lab:create_executor\n[login]\npassword = hunter22\n");
    let host = plan.with_interpreter(&venv).start().await;
    host.send(&lab_job(&host, "J1", "secret", 10)).await;
    assert_eq!(host.failure("J1").await, "login with *** failed");
    let log = host.log();
    assert!(log.contains("is not YAML, which may be right for this executor"), "{log}");
    assert!(!log.contains("hunter22"), "{log}");
}

/// A virtual environment beside the device config, whose packages are those of the tests' own.
fn venv_at(dir: &Path, base: &Path) -> PathBuf {
    let venv = dir.join(".venv");
    output(Command::new(base.join("bin/python")).args(["-m", "venv", "--without-pip"]).arg(&venv));
    let (ours, theirs) = (packages(&venv), packages(base));
    std::fs::write(ours.join("base.pth"), format!("{}\n", theirs.display())).unwrap();
    for entry in std::fs::read_dir(&theirs).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with("coda_node-") {
            std::os::unix::fs::symlink(entry.path(), ours.join(name)).unwrap();
        }
    }
    venv
}

async fn good_job(host: &TestHost, id: &str) {
    host.send(&lab_job(host, id, "ok", 7)).await;
    assert_eq!(host.delivered(id).await["counts"], json!({ "00": 7 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interpreter_is_found_beside_the_device_config_and_by_the_script_of_the_node() {
    let Some(venv) = venv() else { return };
    let executors = executors().display().to_string();
    // The site's own virtual environment.
    let plan = Plan::device("executor_factory: lab:create_executor\n").as_own_user();
    let mut host = plan.env("PYTHONPATH", &executors).prepare().await;
    let own = venv_at(host.dir(), &venv);
    host.start().await;
    good_job(&host, "J1").await;
    let python = host.ready().await.1["plugin"]["python"].clone();
    assert_eq!(python["interpreter"], own.join("bin/python").display().to_string());
    assert_eq!(python["chosen_by"], format!("the virtual environment {}", own.display()));
    // None there, and coda-node on PATH.
    let path = format!("{}:{}", venv.join("bin").display(), std::env::var("PATH").unwrap());
    let plan = Plan::device("executor_factory: lab:create_executor\n").as_own_user();
    let host = plan.env("PYTHONPATH", &executors).env("PATH", path).start().await;
    good_job(&host, "J1").await;
    let python = host.ready().await.1["plugin"]["python"].clone();
    assert_eq!(python["chosen_by"], format!("the script {}", venv.join("bin/coda-node").display()));
    // Neither, and no other interpreter: the error names every place.
    let plan = Plan::device("executor_factory: lab:create_executor\n").as_own_user();
    let mut host = plan.env("PATH", "/nowhere").prepare().await;
    host.launch();
    assert_eq!(host.wait_exit().await, coda_host_tests::Exit::Code(3));
    let log = host.log();
    for part in ["VIRTUAL_ENV (not set)", ".venv (not there)", "CODA_EXECUTOR_PYTHON=/opt/acme"] {
        assert!(log.contains(part), "{part}: {log}");
    }
}

/// A package that offers an executor by coda-node's convention.
fn offer(dir: &Path, package: &str) {
    let package = dir.join(package);
    std::fs::create_dir_all(&package).unwrap();
    std::fs::write(
        package.join("__init__.py"),
        "raise RuntimeError('no package is imported to look for it')\n",
    )
    .unwrap();
    std::fs::write(package.join("executor_factory.py"), "from lab import create_executor\n").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_factory_the_only_package_that_offers_one_is_used_and_never_all_zeros() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::device("num_qubits: 5\n").with_interpreter(&venv).prepare().await;
    let packages = host.dir().join("packages");
    let path = format!("{}:{}", executors().display(), packages.display());
    host.set("PYTHONPATH", path);
    let device = async |host: &TestHost| host.cli(&["plugin", "device"]).await;
    let said = device(&host).await;
    assert!(said.code == 3 && said.err.contains("no executor is configured"), "{}", said.text());
    assert!(said.err.contains("executor_factory: <module>:<attribute>"), "{}", said.text());

    offer(&packages, "acme_one");
    std::fs::write(packages.join("acme_one/__init__.py"), "").unwrap();
    host.start().await;
    good_job(&host, "J1").await;
    let ready = host.ready().await.1;
    assert_eq!(ready["plugin"]["python"]["factory"], "acme_one.executor_factory:create_executor");
    assert!(host.log().contains("acme_one/executor_factory.py"), "the file is logged");

    // Private ones and coda-node itself are not meant.
    offer(&packages, "_acme_private");
    assert_eq!(device(&host).await.code, 0);
    offer(&packages, "acme_two");
    let said = device(&host).await;
    assert!(said.code == 3 && said.err.contains("several packages offer one"), "{}", said.text());
    assert!(said.err.contains("acme_one") && said.err.contains("acme_two"), "{}", said.text());
}

/// How a package is installed: its build backend, the installer, and whether it stays where it is.
const INSTALLS: [(&str, &str, bool); 5] = [
    ("setuptools.build_meta", "pip", false),
    ("setuptools.build_meta", "pip", true),
    ("hatchling.build", "pip", true),
    ("hatchling.build", "uv", true),
    ("setuptools.build_meta", "uv", true),
];

/// Installs a package that offers an executor, with what `base` has: nothing is downloaded.
fn install((backend, installer, editable): (&str, &str, bool), base: &Path, venv: &Path, project: &Path) {
    offer(project, "acme_one");
    std::fs::write(project.join("acme_one/__init__.py"), "").unwrap();
    let requires = backend.split('.').next().unwrap();
    let text = format!(
        "[build-system]\nrequires = [\"{requires}\"]\nbuild-backend = \"{backend}\"\n\n\
         [project]\nname = \"acme-one\"\nversion = \"1.2\"\n"
    );
    std::fs::write(project.join("pyproject.toml"), text).unwrap();
    let python = venv.join("bin/python");
    let mut command = if installer == "uv" {
        let mut command = Command::new(base.join("bin/uv"));
        command.args(["pip", "install", "--offline", "--no-cache", "--python"]).arg(&python);
        command
    } else {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "install", "--no-index", "--disable-pip-version-check"]);
        command
    };
    command.args(["--quiet", "--no-deps", "--no-build-isolation"]);
    if editable {
        command.arg("--editable");
    }
    output(command.arg(project));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_package_is_found_however_it_is_installed() {
    let Some(venv) = venv() else { return };
    for how in INSTALLS {
        let plan = Plan::device("num_qubits: 5\n").as_own_user();
        let mut host = plan.env("PYTHONPATH", executors().display().to_string()).prepare().await;
        let own = venv_at(host.dir(), &venv);
        let project = host.dir().join("project");
        std::fs::create_dir(&project).unwrap();
        install(how, &venv, &own, &project);
        host.start().await;
        good_job(&host, "J1").await;
        let python = host.ready().await.1["plugin"]["python"].clone();
        assert_eq!(python["factory"], "acme_one.executor_factory:create_executor", "{how:?}");
        assert_eq!(python["package"], "acme-one 1.2", "{how:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interpreter_that_can_not_run_coda_node_says_so() {
    let Some(venv) = venv() else { return };
    let mut host = Plan::python(&venv, "lab:create_executor", "").prepare().await;
    let device = async |host: &TestHost| host.cli(&["plugin", "device"]).await;
    // Without coda-node.
    let bare = host.dir().join("bare");
    output(Command::new(venv.join("bin/python")).args(["-m", "venv", "--without-pip"]).arg(&bare));
    host.set("CODA_EXECUTOR_PYTHON", bare.display().to_string());
    let said = device(&host).await;
    let missing = "No module named 'numpy'; install what has it for this interpreter";
    assert!(said.code == 3 && said.err.contains(missing), "{}", said.text());
    assert!(
        said.err.contains(&format!("{}/bin/python -m pip install numpy", bare.display())),
        "{}",
        said.text()
    );
    // A program that is not an interpreter, and one that does not start.
    for (program, says) in
        [("/bin/true", "ended by itself with status 0"), ("/etc/passwd", "can't be started")]
    {
        host.set("CODA_EXECUTOR_PYTHON", program);
        let said = device(&host).await;
        assert!(said.code == 3 && said.err.contains(says), "{program}: {}", said.text());
    }
    // Too old, where there is such a one.
    let old =
        (6..11).map(|minor| PathBuf::from(format!("/usr/bin/python3.{minor}"))).find(|path| path.is_file());
    match old.or_else(|| std::env::var_os("CODA_TEST_OLD_PYTHON").map(PathBuf::from)) {
        None => eprintln!("SKIPPED: no Python before 3.11 is here"),
        Some(old) => {
            host.set("CODA_EXECUTOR_PYTHON", old.display().to_string());
            let said = device(&host).await;
            assert!(
                said.code == 3 && said.err.contains("is too old, coda-node needs 3.11"),
                "{}",
                said.text()
            );
        }
    }
}
