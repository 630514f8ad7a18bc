//! The container image: a host in it takes a job to its end, on a read-only root and as an ordinary user, and the health
//! check tells the truth. And the Kubernetes example, against the schemas of Kubernetes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use coda_host_tests::artifacts::project_file;
use coda_host_tests::{Exit, LIMIT, Plan, TestHost, eventually, example};
use tempfile::TempDir;

use super::page::{commands, is_bell_pair};

/// The user of the image, by its number.
const USER: u32 = 65532;

fn given(variable: &str, target: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
    if path.is_none() {
        println!("skipped: {variable} is not set (make {target})");
    }
    path
}

fn text_of(output: &Output) -> String {
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    out + &err
}

/// A podman with storage of its own, found as `podman` by what a user types. Everything of it goes with the value.
struct Podman {
    dir: TempDir,
}

impl Podman {
    fn new() -> Podman {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        // What it may not raise it would ask for; of several runtimes, the one that copes with every kind of control groups.
        let limits = "[containers]\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=1024:1024\"]\n";
        std::fs::write(dir.path().join("containers.conf"), limits).unwrap();
        std::fs::write(dir.path().join("environment"), "").unwrap();
        let runtime = if Path::new("/usr/sbin/runc").exists() { "runc" } else { "crun" };
        // A container on this machine's loopback, with the settings of a site, and otherwise what is typed.
        let script = format!(
            "#!/bin/sh\nexport CONTAINERS_CONF='{0}/containers.conf'\nverb=$1\nshift\n\
             if [ \"$verb\" = run ]; then set -- --network host --env-file '{0}/environment' \"$@\"; fi\n\
             exec /usr/bin/podman --root '{0}/storage' --runroot '{0}/run' --storage-driver vfs \
             --cgroup-manager cgroupfs --events-backend none --runtime {runtime} \"$verb\" \"$@\"\n",
            dir.path().display()
        );
        std::fs::write(bin.join("podman"), script).unwrap();
        let podman = Podman { dir };
        podman.sh("chmod +x bin/podman");
        podman
    }

    /// Why no container runs here, if that is so: any image shows it.
    fn unusable(&self) -> Option<String> {
        let probe = "mkdir -p probe/proc probe/dev && podman run --rm --rootfs \"$PWD/probe\" /nothing 2>&1";
        let said = text_of(&self.try_sh(probe));
        // The one thing that is missing is the program.
        (!said.contains("/nothing")).then_some(said)
    }

    /// The settings of the containers from now on.
    fn environment(&self, host: &TestHost) {
        let lines: String = host.env.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        std::fs::write(self.dir.path().join("environment"), lines).unwrap();
    }

    /// Runs a shell script in the directory of this podman; it has to succeed.
    fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        assert!(output.status.success(), "{script}: {}", text_of(&output));
        text_of(&output)
    }

    fn try_sh(&self, script: &str) -> Output {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.dir.path().join("bin").display());
        Command::new("sh")
            .args(["-euc", script])
            .env("PATH", path)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let gone = self.try_sh("podman rm --all --force --time 0");
        if !gone.status.success() {
            eprintln!("containers were left behind: {}", text_of(&gone));
        }
    }
}

/// A site whose host will run in a container: redis-server and cloud are here, on loopback.
async fn site() -> TestHost {
    let mut host = Plan::device("executor_factory: coda_simulator\nnum_qubits: 5\n").prepare().await;
    host.choose_port();
    // The image says where these are.
    for name in ["CODA_STATE_DIR", "CODA_DEVICE_CONFIG", "LAB_NOTES", "PATH"] {
        host.unset(name);
    }
    host
}

/// Ids of a process, as `/proc/<pid>/status` has them.
fn ids(pid: &str, name: &str) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.trim())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Whether a process can't write to its root.
fn root_is_read_only(pid: &str) -> bool {
    let mounts = std::fs::read_to_string(format!("/proc/{}/mountinfo", pid.trim())).unwrap();
    let root = mounts.lines().rfind(|line| line.split(' ').nth(4) == Some("/")).unwrap();
    root.split(' ').nth(5).unwrap().split(',').any(|option| option == "ro")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_image_serves_a_qpu_as_the_page_says() {
    let Some(image) = given("CODA_TEST_CONTAINER", "test-container") else { return };
    let podman = Podman::new();
    if let Some(reason) = podman.unusable() {
        println!("skipped: podman does not run containers here: {reason}");
        return;
    }
    std::fs::copy(&image, podman.dir.path().join(image.file_name().unwrap())).unwrap();
    let typed = commands("Container");
    let [load, bell, start, status, stop] = &typed[..] else { panic!("{typed:?}") };
    podman.sh(load);
    assert!(is_bell_pair(&podman.sh(bell)));

    let mut host = site().await;
    podman.sh("mkdir -p site");
    std::fs::copy(host.dir().join("device.yaml"), podman.dir.path().join("site/device.yaml")).unwrap();
    podman.sh("chmod 755 . site; chmod 644 site/device.yaml");
    host.set("CODA_NODE_TOKEN", coda_host_tests::TOKEN);
    podman.environment(&host);
    podman.sh(start);
    eventually("the host is ready", async || {
        host.try_get("/ready").await.is_some_and(|(code, _)| code == 200)
    })
    .await;
    host.submit("J1", &example(), 100).await;
    assert_eq!(host.delivered("J1").await["counts"]["10"], 100);
    let said = podman.sh(status);
    assert!(said.contains("ready         yes"), "{said}");
    podman.sh("podman healthcheck run coda-host");

    let pid = podman.sh("podman inspect --format '{{.State.Pid}}' coda-host");
    assert_eq!(ids(&pid, "Uid:"), [USER; 4]);
    assert!(root_is_read_only(&pid));

    // A host that can't take jobs is not healthy.
    host.redis.kill().unwrap();
    eventually("the host is not ready", async || {
        host.try_get("/ready").await.is_some_and(|(code, _)| code != 200)
    })
    .await;
    assert!(!podman.try_sh("podman healthcheck run coda-host").status.success());
    host.redis.restart(LIMIT).await.unwrap();

    // A stop drains, and the volume has what the next start needs.
    podman.sh(stop);
    assert_eq!(podman.sh("podman inspect --format '{{.State.ExitCode}}' coda-host").trim(), "0");
    podman.sh("podman start coda-host");
    host.submit("J2", &example(), 100).await;
    assert_eq!(host.delivered("J2").await["counts"]["10"], 100);
    podman.sh(stop);
}

/// Becomes the image's user in its file system: `$0` has the folders of the image, `$1` the site.
const CHROOT: &str = r#"
mkdir "$1/root"
mount -t overlay -o "ro,lowerdir=$0/host:$0/system" overlay "$1/root"
mount --bind "$1/etc" "$1/root/etc/coda-host"
mount --bind "$1/state" "$1/root/var/lib/coda-host"
mount -t tmpfs -o mode=1777 tmpfs "$1/root/tmp"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
exec chroot --userspec=65532:65532 "$1/root" /usr/bin/coda-host start
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_system_of_the_image_is_all_that_a_host_needs() {
    let Some(folder) = given("CODA_TEST_CONTAINER_TREE", "test-container") else { return };
    let site_dir = tempfile::tempdir().unwrap();
    let at = site_dir.path().display().to_string();
    let wrapper = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-euc",
        CHROOT,
        folder.to_str().unwrap(),
        &at,
    ];
    let mut host =
        Plan::device("executor_factory: coda_simulator\nnum_qubits: 5\n").within(&wrapper).prepare().await;
    let script = "mkdir etc state && chown 65532:65532 state && chmod 700 state && chmod 755 . etc";
    assert!(Command::new("sh").args(["-euc", script]).current_dir(&at).status().unwrap().success());
    std::fs::copy(host.dir().join("device.yaml"), site_dir.path().join("etc/device.yaml")).unwrap();
    host.set("CODA_STATE_DIR", "/var/lib/coda-host");
    host.set("CODA_DEVICE_CONFIG", "/etc/coda-host/device.yaml");
    host.unset("LAB_NOTES");
    host.start().await;
    host.submit("J1", &example(), 100).await;
    assert_eq!(host.delivered("J1").await["counts"]["10"], 100);
    let pid = host.process().pid().to_string();
    assert_eq!(ids(&pid, "Uid:"), [USER; 4]);
    assert!(root_is_read_only(&pid));
    assert_eq!(host.stop().await, Exit::Code(0));
    assert!(site_dir.path().join("state/coda.config").exists(), "credentials are in the volume");
    // Nothing in it can be started by whoever gets into the container: no shell, no interpreter.
    for part in ["host", "system"] {
        for folder_of in ["bin", "sbin", "usr/bin", "usr/sbin"] {
            let path = folder.join(part).join(folder_of);
            let Ok(entries) = std::fs::read_dir(&path) else { continue };
            let programs: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            assert!(programs.iter().all(|name| name == "coda-host"), "{} has {programs:?}", path.display());
        }
    }
}

/// A number that docs/operations.md gives as the default of a setting.
fn default_of(setting: &str) -> u64 {
    let page = std::fs::read_to_string(project_file("docs/operations.md")).unwrap();
    let row = page.lines().find_map(|line| line.strip_prefix(&format!("| `{setting}` | "))).unwrap();
    row.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn the_kubernetes_example_fits_the_schemas_and_the_drain() {
    let text = std::fs::read_to_string(project_file("packaging/kubernetes/coda-host.yaml")).unwrap();
    let documents: Vec<serde_json::Value> = serde_yaml::Deserializer::from_str(&text)
        .map(|document| serde::Deserialize::deserialize(document).unwrap())
        .collect();
    let set = documents.iter().find(|document| document["kind"] == "StatefulSet").unwrap();
    let pod = &set["spec"]["template"]["spec"];
    let drain = default_of("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC") + default_of("CODA_SHUTDOWN_MARGIN_SEC");
    assert!(pod["terminationGracePeriodSeconds"].as_u64().unwrap() > drain);
    assert_eq!(set["spec"]["replicas"], 1, "two hosts would run two jobs on one device");
    let container = &pod["containers"][0];
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/health");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/ready");
    let image = container["image"].as_str().unwrap();
    assert!(image.ends_with(&format!(":{}", env!("CARGO_PKG_VERSION"))), "{image} is not this version");

    let Some(checker) = given("CODA_TEST_KUBERNETES_VALIDATE", "test-container") else { return };
    let check = |path: &Path| Command::new(&checker).arg("--strict").arg(path).output().unwrap();
    let output = check(&project_file("packaging/kubernetes/coda-host.yaml"));
    assert!(output.status.success(), "{}", text_of(&output));
    // The checker looks at fields: a wrong one is refused.
    let dir = tempfile::tempdir().unwrap();
    let wrong = dir.path().join("wrong.yaml");
    std::fs::write(&wrong, text.replace("terminationGracePeriodSeconds", "terminationGraceSeconds")).unwrap();
    assert!(!check(&wrong).status.success());
}
