//! A plugin whose run never returns, and Python code that fails in every way.

use coda_host_tests::load::Load;
use coda_host_tests::process::children;
use coda_host_tests::{Exit, LIMIT, Plan, python};

use crate::{Row, Scale};

const BEFORE: usize = 5;
const BEHIND: usize = 10;

pub async fn hangs_until_cancelled(_: Scale) -> Row {
    let mut load = Load::new();
    let device = format!("fault: result_after_cancel\nafter: {BEFORE}\n{}", load.device());
    let host = Plan::faulty(&device).start().await;
    load.send_all(&host, BEFORE).await;
    for _ in 0..BEHIND {
        let id = load.send(&host).await;
        host.wait_state(&id, "executing").await;
        host.request_cancel(&id).await;
        host.wait_state(&id, "cancelled").await;
    }
    Ok(load.settle(&host, LIMIT).await)
}

/// The operator restarts it: what the plugin had is the one job that was cut off.
pub async fn hangs_for_good(_: Scale) -> Row {
    let mut load = Load::new();
    let device = format!("fault: hang\nafter: {BEFORE}\n{}", load.device());
    let mut host = Plan::faulty(&device)
        .env("CODA_CONTROL_TIMEOUT_SEC", "0.3")
        .env("CODA_SHUTDOWN_DRAIN_TIMEOUT_SEC", "0.3")
        .start()
        .await;
    load.send_all(&host, BEFORE).await;
    let stuck = load.send(&host).await;
    host.wait_state(&stuck, "executing").await;
    host.request_cancel(&stuck).await;
    host.wait_state(&stuck, "cancelled").await;
    let again = load.send(&host).await;
    load.send_all(&host, BEHIND).await;
    // Nothing is left unfinished: the one job in the plugin is cancelled, the others wait in Redis.
    assert_eq!(host.stop().await, Exit::Code(0));
    host.write_device(&format!("executor_factory: coda_faulty\n{}", load.device()));
    host.start().await;
    host.delivered(&again).await;
    Ok(load.settle(&host, LIMIT).await)
}

/// Two minutes at 20 jobs/s: one run in ten hangs, blocks, crashes or exits. The host stays, and nothing else is left.
pub async fn python_fails_at_random(scale: Scale) -> Row {
    let venv = python::venv().ok_or("no coda-node is here")?;
    let mut load = Load::new();
    let plan = Plan::python(&venv, "unreliable:create_executor", "").env("UNRELIABLE_RECORD", load.record());
    let mut host = plan.env("CODA_JOB_TIMEOUT_SEC", "0.3").env("CODA_CANCEL_GRACE_SEC", "0.1").start().await;
    let pid = host.process().pid();
    let time = scale.seconds(120.0);
    load.send_for(&host, 20.0, time).await;
    // Each failure costs a start of the interpreter, so that the jobs come faster than they can run.
    let tally = load.settle(&host, LIMIT + 4 * time).await;
    assert_eq!(host.process().pid(), pid, "the host is the same");
    assert!(children(pid).len() <= 1, "nothing is left behind: {:?}", children(pid));
    Ok(tally)
}
