//! Files and tokens: what a start finds on the disk, and what it does with a token that serves once.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use coda_host::dev::cloud::Answer;
use coda_host_tests::artifacts::{binary, project_file};
use coda_host_tests::{Exit, Plan, TestHost, eventually};
use serde_json::Value;

const FILES: [&str; 2] = ["coda.config", "coda-private-key"];

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Starts the host, which refuses; returns what it has said since.
async fn refused(host: &mut TestHost, code: i32) -> String {
    let before = host.log().len();
    host.launch();
    assert_eq!(host.wait_exit().await, Exit::Code(code), "{}", host.log());
    host.log()[before..].to_string()
}

/// The bodies of the connects so far, and whether each was made with a signed token.
fn connects(host: &TestHost) -> Vec<(String, bool)> {
    let state = host.cloud.state();
    let fingerprint = |body: &Value| body["machine_fingerprint"].as_str().unwrap_or_default().to_string();
    state.connects.iter().map(|c| (fingerprint(&c.body), c.jwt)).collect()
}

// --- files

/// What somebody made of a file, and what the start says to it.
type Case = (&'static str, fn(&Path), &'static str, &'static str);

const CASES: [Case; 5] = [
    (
        "mode",
        |p| fs::set_permissions(p, fs::Permissions::from_mode(0o644)).unwrap(),
        "has mode 0644",
        "chmod 600",
    ),
    (
        "link",
        |p| {
            let victim = p.with_extension("victim");
            fs::rename(p, &victim).unwrap();
            symlink(victim, p).unwrap();
        },
        "is a symbolic link",
        "move it away",
    ),
    (
        "fifo",
        |p| {
            fs::remove_file(p).unwrap();
            assert!(Command::new("mkfifo").arg(p).status().unwrap().success());
        },
        "is a FIFO",
        "move it away",
    ),
    (
        "directory",
        |p| {
            fs::remove_file(p).unwrap();
            fs::create_dir(p).unwrap();
        },
        "is a directory",
        "move it away",
    ),
    // Only root can give a file away.
    (
        "owner",
        |p| drop(chown(p, Some(65_534), None)),
        "belongs to user id 65534",
        "run this as the user that it belongs to",
    ),
];

fn remove_anything(path: &Path) {
    let removed = if path.is_dir() { fs::remove_dir(path) } else { fs::remove_file(path) };
    removed.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_others_could_have_made_is_refused_with_the_remedy() {
    let mut host = Plan::simulator("").start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    let asked = connects(&host).len();
    for name in FILES {
        let path = host.state_dir().join(name);
        let good = fs::read(&path).unwrap();
        let root = fs::metadata(&path).unwrap().uid() == 0;
        for (case, spoil, says, todo) in CASES {
            if case == "owner" && !root {
                continue;
            }
            spoil(&path);
            let before = fs::symlink_metadata(&path).unwrap().file_type();
            let log = refused(&mut host, 2).await;
            for part in [name, says, "to do:", todo] {
                assert!(log.contains(part), "{name}, {case}: {part} is missing in {log}");
            }
            let doctor = host.cli(&["doctor"]).await;
            assert!(doctor.code == 1 && doctor.out.contains(says), "{name}, {case}: {doctor:?}");
            let after = fs::symlink_metadata(&path).unwrap().file_type();
            assert!(
                before == after && before.is_fifo() == (case == "fifo"),
                "{name}, {case}: left as it was"
            );
            remove_anything(&path);
            fs::write(&path, &good).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    assert_eq!(connects(&host).len(), asked, "the cloud was not asked");
    host.start().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_in_the_way_of_a_first_start_is_replaced_and_never_written_through() {
    for case in ["mode", "link", "fifo"] {
        let mut host = Plan::simulator("").prepare().await;
        fs::create_dir(host.state_dir()).unwrap();
        let (key, victim) = (host.state_dir().join("coda-private-key"), host.dir().join("authorized_keys"));
        fs::write(&victim, "precious").unwrap();
        match case {
            "mode" => {
                fs::write(&key, "old").unwrap();
                fs::set_permissions(&key, fs::Permissions::from_mode(0o666)).unwrap();
            }
            "link" => symlink(&victim, &key).unwrap(),
            _ => assert!(Command::new("mkfifo").arg(&key).status().unwrap().success()),
        }
        host.start().await;
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{case}");
        assert!(fs::symlink_metadata(&key).unwrap().is_file() && mode(&key) == 0o600, "{case}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_not_spent_where_its_credentials_cannot_be_stored() {
    let mut host = Plan::simulator("").prepare().await;
    let key = host.state_dir().join("coda-private-key");
    fs::create_dir_all(&key).unwrap();
    let log = refused(&mut host, 2).await;
    assert!(log.contains("coda-private-key") && log.contains("to do: move"), "{log}");
    assert!(connects(&host).is_empty(), "the token is still good");
    fs::remove_dir(&key).unwrap();
    host.start().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_private_from_birth_whatever_the_umask() {
    let mut host = Plan::simulator("").prepare().await;
    host.choose_port();
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" start --daemon --token one-time-q1"]).arg(binary());
    command.env_clear().env("PATH", "/usr/bin:/bin").envs(&host.env).current_dir(host.dir());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    host.good_job_goes_through("J1").await;
    let mut directories = vec![host.state_dir()];
    let mut seen = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        assert_eq!(mode(&directory) & 0o077, 0, "{}", directory.display());
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => directories.push(path),
                // SQLite's side files come and go.
                false if path.exists() => {
                    // Copies of libraries may be opened by a plugin's account, to which the host hands them.
                    let mask = if directory.ends_with("plugins") { 0o022 } else { 0o077 };
                    assert_eq!(mode(&path) & mask, 0, "{}", path.display());
                    seen.insert(path.file_name().unwrap().to_string_lossy().into_owned());
                }
                false => {}
            }
        }
    }
    for name in ["coda.config", "coda-private-key", "coda-host.token", "coda-host.log", "coda-host.pid"] {
        assert!(seen.contains(name), "{name} is missing in {seen:?}");
    }
    assert_eq!(host.cli(&["stop"]).await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_lies_under_the_names_of_our_files_is_never_written_through_and_never_hangs() {
    let names = ["coda-host.log", "coda-host.pid", "coda-host.lock", "coda-host.db", "running"];
    let mut host = Plan::simulator("").prepare().await;
    host.choose_port();
    fs::create_dir(host.state_dir()).unwrap();
    let victim = host.dir().join("authorized_keys");
    for name in names {
        let path = host.state_dir().join(name);
        for kind in ["link", "fifo"] {
            fs::write(&victim, "precious").unwrap();
            // From a start that went well.
            fs::remove_file(&path).ok();
            match kind {
                "link" => symlink(&victim, &path).unwrap(),
                _ => assert!(Command::new("mkfifo").arg(&path).status().unwrap().success()),
            }
            let said = host.cli(&["start", "--daemon", "--token", "one-time-q1"]).await;
            assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}, {kind}: {said:?}");
            if name == "coda-host.pid" {
                // No one believes it, so it does not prevent a start.
                assert_eq!(said.code, 0, "{name}, {kind}: {said:?}");
                assert_eq!(host.cli(&["stop"]).await.code, 0);
                host.cloud.add_token("one-time-q1");
                fs::remove_file(host.state_dir().join("coda.config")).unwrap();
                continue;
            }
            assert!(matches!(said.code, 1 | 2), "{name}, {kind}: {said:?}");
            let place = host.state_dir().display().to_string();
            assert!(said.err.contains(&place), "{name}, {kind}: {said:?}");
            assert!(said.err.contains("to do:"), "{name}, {kind}: {said:?}");
            fs::remove_file(&path).unwrap();
        }
    }
    assert!(connects(&host).len() == 2, "no token was spent by a refused start");
}

// --- tokens

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_survives_a_cloud_that_is_not_there_yet() {
    let mut host = Plan::simulator("").env("CODA_NODE_CONNECT_RETRIES", "1000").prepare().await;
    host.cloud.go_down().await;
    host.launch();
    host.wait_log("connecting to Coda failed").await;
    let tries = AtomicU32::new(0);
    host.cloud.on_connect(move |_| (tries.fetch_add(1, Ordering::Relaxed) < 2).then(|| Answer::status(503)));
    host.cloud.come_up().await.unwrap();
    host.wait_ready().await;
    let seen = connects(&host);
    assert!(seen.len() == 3 && seen.iter().all(|c| c == &seen[0]), "one fingerprint: {seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_whose_answer_got_lost_is_said_to_be_used_and_nothing_is_written() {
    let mut host = Plan::simulator("").prepare().await;
    let tries = AtomicU32::new(0);
    host.cloud.on_connect(move |_| {
        (tries.fetch_add(1, Ordering::Relaxed) == 0).then(|| Answer::drop_connection().having_processed())
    });
    let log = refused(&mut host, 4).await;
    assert!(log.contains("probably used") && log.contains("new node token"), "{log}");
    for name in ["coda.config", "coda-private-key", "coda-host.token"] {
        assert!(!host.state_dir().join(name).exists(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_left_in_the_environment_breaks_no_restart() {
    let mut host = Plan::simulator("").env("CODA_NODE_TOKEN", "one-time-q1").start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    assert!(host.log().contains("was redeemed before"), "{}", host.log());
    let seen: Vec<bool> = connects(&host).into_iter().map(|(_, jwt)| jwt).collect();
    assert_eq!(seen, [false, true]);
    assert_eq!(host.stop().await, Exit::Code(0));
    let before = FILES.map(|name| fs::read(host.state_dir().join(name)).unwrap());
    host.set("CODA_NODE_TOKEN", "another");
    let log = refused(&mut host, 4).await;
    assert!(log.contains("stored credentials of an earlier provisioning exist"), "{log}");
    assert!(!log.contains("another-"), "{log}");
    assert_eq!(FILES.map(|name| fs::read(host.state_dir().join(name)).unwrap()), before);
    host.unset("CODA_NODE_TOKEN");
    host.start().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fingerprint_stays_what_it_was() {
    let mut host = Plan::simulator("").start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    host.start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    let seen = connects(&host);
    assert!(!seen[0].0.is_empty() && seen[0].0 == seen[1].0, "{seen:?}");
    // As on a machine whose name and cards have changed since.
    let path = host.state_dir().join("coda.config");
    let text = fs::read_to_string(&path).unwrap().replace(&seen[0].0, "old-name-57005");
    fs::write(&path, text).unwrap();
    host.start().await;
    assert_eq!(host.stop().await, Exit::Code(0));
    assert_eq!(connects(&host)[2].0, "old-name-57005");
    host.set("CODA_NODE_MACHINE_FINGERPRINT", "given");
    host.start().await;
    assert_eq!(connects(&host)[3].0, "given");
}

// --- taking over from the Python node

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_files_of_a_python_node_are_taken_over() {
    let mut host = Plan::simulator("").prepare().await;
    let dir = host.state_dir();
    fs::create_dir(&dir).unwrap();
    let stored = fs::read_to_string(project_file("tests/fixtures/python-node/coda.config")).unwrap();
    let stored = stored
        .replace("@DIR@", &dir.display().to_string())
        .replace("@REDIS@", &host.redis.url())
        .replace("@WEBAPP@", host.cloud.url());
    let (key, _) = host.cloud.private_key();
    for (name, content) in [("coda.config", &*stored), ("coda-private-key", key.expose())] {
        fs::write(dir.join(name), content).unwrap();
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    // Where that node keeps them, they are found without any setting.
    let mut env = host.env.clone();
    env.remove("CODA_STATE_DIR");
    env.insert("TMPDIR".into(), dir.display().to_string());
    let said = coda_host_tests::said(&["config", "--set"], &env, host.dir()).await;
    assert!(said.code == 0 && said.out.contains("lab-57005"), "{said:?}");

    host.unset("CODA_WEBAPP_URL");
    host.start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(connects(&host), [("lab-57005".to_string(), true)]);
    assert_eq!(host.stop().await, Exit::Code(0));
    // And it can go back: the same keys, of the same kinds, in the same form.
    let now = fs::read_to_string(dir.join("coda.config")).unwrap();
    let (then, now): (Value, Value) =
        (serde_json::from_str(&stored).unwrap(), serde_json::from_str(&now).unwrap());
    let kinds = |v: &Value| -> Vec<(String, std::mem::Discriminant<Value>)> {
        let object = v.as_object().unwrap();
        object.iter().map(|(k, v)| (k.clone(), std::mem::discriminant(v))).collect()
    };
    assert_eq!(kinds(&then), kinds(&now), "{now}");
    for name in FILES {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
    eventually("nothing is left in the air", async || host.cloud.state().accepted("J1")).await;
}
