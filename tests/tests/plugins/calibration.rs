//! A device that changes while it is in use.

use coda_host_tests::{Plan, eventually, flips};

/// A calibration takes qubits away: waiting and later jobs are judged by what the device is now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_shrinks_while_it_is_in_use_refuses_what_no_longer_fits() {
    for isolation in ["none", "process"] {
        let qubits = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(qubits.path(), "5").unwrap();
        let keys = format!("run_ms: 2500\nqubits_file: {}", qubits.path().display());
        let host = Plan::faulty(&keys)
            .env("CODA_DEVICE_REFRESH_SEC", "0.05")
            .env("CODA_EXECUTOR_ISOLATION", isolation)
            .start()
            .await;
        host.submit("runs", &flips(3, &[0]), 10).await;
        host.wait_state("runs", "executing").await;
        host.submit("waits", &flips(3, &[0]), 10).await;
        eventually("it waits for the slot", async || host.ready().await.1["waiting"] == 1).await;
        std::fs::write(qubits.path(), "2").unwrap();
        host.wait_log("the device has changed").await;
        host.delivered("runs").await;
        let error = host.failure("waits").await;
        assert!(error.contains("3 qubits") && error.contains("has 2"), "{isolation}: {error}");
        host.good_job_goes_through("small").await;

        std::fs::write(qubits.path(), "0").unwrap();
        host.wait_log("can't be used; the former one stays").await;
        std::fs::write(qubits.path(), "5").unwrap();
        host.wait_log("can be used again").await;
        host.submit("large", &flips(3, &[0]), 10).await;
        host.delivered("large").await;
        assert_eq!((host.runs().await, host.attempts("waits")), (3, (1, 1)), "{isolation}");
    }
}
