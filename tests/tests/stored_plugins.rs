//! Plugins that were built long ago: every stored binary loads, describes itself and runs.

use coda_host_tests::artifacts::project_file;
use coda_host_tests::{Plan, example};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugins_of_every_former_interface_still_run() {
    let mut found = 0;
    for folder in std::fs::read_dir(project_file("tests/fixtures")).unwrap() {
        let folder = folder.unwrap().path();
        let Some(version) = folder.file_name().and_then(|n| n.to_str()?.strip_prefix("interface-")) else {
            continue;
        };
        for file in std::fs::read_dir(&folder).unwrap() {
            let file = file.unwrap().path();
            if !file.to_str().unwrap().ends_with(&format!(".{}.so", std::env::consts::ARCH)) {
                continue;
            }
            let device = format!("executor_factory: {}\nhost: 127.0.0.1\nport: 7000\n", file.display());
            let bed = Plan::device(device).start().await;
            bed.submit("J1", &example(), 100).await;
            let body = bed.delivered("J1").await;
            assert_eq!(body["counts"]["10"], 100, "interface {version}, {}: {body}", file.display());
            let (_, ready) = bed.ready().await;
            let name = ready["plugin"]["name"].as_str().unwrap_or_default();
            assert!(["coda-plugin-example-rust", "acme-example-c"].contains(&name), "{name}");
            found += 1;
        }
    }
    if cfg!(target_arch = "x86_64") {
        assert!(found >= 2, "there are stored plugins for this machine");
    } else {
        println!("SKIPPED: no stored plugins for this machine");
    }
}
