//! Plugins that were built long ago: every stored binary loads, describes itself, runs and passes its checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use coda_host_tests::artifacts::project_file;
use coda_host_tests::{LIMIT, Plan, example, said, said_within};

/// What is stored for each interface version and architecture.
const STORED: &[(&str, &str, &[&str])] = &[
    ("1.0", "x86_64", &["libcoda_example_rust"]),
    ("1.1", "x86_64", &["libacme_example_c", "libacme_example_cpp", "libcoda_example_rust"]),
    ("1.2", "aarch64", &["libacme_example_c", "libacme_example_cpp", "libcoda_example_rust"]),
    ("1.2", "x86_64", &["libacme_example_c", "libacme_example_cpp", "libcoda_example_rust"]),
];

/// The stored libraries for the machine whose programs are tested, each with its interface version.
fn stored() -> Vec<(&'static str, PathBuf)> {
    // Another one than the tests' own where programs for ARM are run by qemu.
    let arch = std::env::var("CODA_TEST_ARCH").unwrap_or_else(|_| std::env::consts::ARCH.into());
    let file = |version: &str, name: &str| {
        project_file(&format!("tests/fixtures/interface-{version}")).join(format!("{name}.{arch}.so"))
    };
    let here = STORED.iter().filter(|(_, of, _)| *of == arch);
    let all: Vec<_> = here.flat_map(|(v, _, names)| names.iter().map(|name| (*v, file(v, name)))).collect();
    assert!(!all.is_empty(), "no stored plugins for {arch}");
    all
}

#[test]
fn what_is_stored_is_what_is_listed() {
    let mut found = BTreeMap::<(String, String), Vec<String>>::new();
    for folder in std::fs::read_dir(project_file("tests/fixtures")).unwrap() {
        let folder = folder.unwrap();
        let name = folder.file_name().into_string().unwrap();
        let Some(version) = name.strip_prefix("interface-") else { continue };
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap().file_name().into_string().unwrap();
            let parts: Vec<_> = file.split('.').collect();
            let [name, arch, "so"] = parts[..] else { panic!("{file} is not NAME.ARCHITECTURE.so") };
            found.entry((version.into(), arch.into())).or_default().push(name.into());
        }
    }
    found.values_mut().for_each(|names| names.sort());
    let listed = STORED.iter().map(|(version, arch, names)| {
        ((version.to_string(), arch.to_string()), names.iter().map(ToString::to_string).collect::<Vec<_>>())
    });
    assert_eq!(found, listed.collect());
}

#[test]
fn they_are_small_and_know_nothing_of_the_machine_that_built_them() {
    for (_, file) in stored() {
        let bytes = std::fs::read(&file).unwrap();
        assert!(bytes.len() < 1 << 20, "{} has {} bytes", file.display(), bytes.len());
        let here = env!("CARGO_MANIFEST_DIR").as_bytes();
        for part in [&b"/home/"[..], b"/tmp/", b"/.cargo/", b"/.rustup/", here] {
            assert!(
                !bytes.windows(part.len()).any(|w| w == part),
                "{} has {}",
                file.display(),
                String::from_utf8_lossy(part)
            );
        }
    }
}

const KEYS: &str = "host: 127.0.0.1\nport: 7000\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_of_every_former_interface_still_run_in_either_place() {
    for (version, file) in stored() {
        for isolation in ["none", "process"] {
            let device = format!("executor_factory: {}\n{KEYS}", file.display());
            let host = Plan::device(device).env("CODA_EXECUTOR_ISOLATION", isolation).start().await;
            host.submit("J1", &example(), 100).await;
            let body = host.delivered("J1").await;
            assert_eq!(body["counts"]["10"], 100, "interface {version}, {}: {body}", file.display());
            let (_, ready) = host.ready().await;
            let name = ready["plugin"]["name"].as_str().unwrap_or_default();
            let names = ["coda-plugin-example-rust", "acme-example-c", "acme-example-cpp"];
            assert!(names.contains(&name), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_pass_the_checks_of_today() {
    // The example of 1.0 had a single gate, which the checks need more than.
    for (version, file) in stored().into_iter().filter(|(v, _)| *v != "1.0") {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("device.yaml"), KEYS).unwrap();
        let env = BTreeMap::from([("CODA_STATE_DIR".into(), dir.path().join("state").display().to_string())]);
        let file = Path::new(&file).display().to_string();
        let check = ["plugin", "check", &file, "--device", "device.yaml", "--quick", "--seed", "7"];
        // By qemu it takes longer.
        let done = said_within(10 * LIMIT, &check, &env, dir.path()).await;
        assert_eq!(done.code, 0, "interface {version}, {file}: {}", done.text());
        assert!(done.out.contains(" 0 failed"), "{}", done.text());
        let inspected = said(&["plugin", "inspect", &file], &env, dir.path()).await;
        assert!(inspected.out.contains(&format!("interface   {version} (")), "{}", inspected.text());
    }
}
