//! One slot, cloud jobs and peers that all want it: held and running never exceed the slots at any instant, by the
//! peer's event log and by the executor's own record.

use std::time::{Duration, Instant};

use coda_host::peers::swarm::Network;
use coda_host::peers::wire::{
    self, CancelRequest, CommitRequest, PeerStep, PrepareAnswer, PrepareRequest, StepAnswer,
};
use coda_host_tests::misbehaving_peers::{Behave, join};
use coda_host_tests::{Plan, TestHost, bell, eventually, eventually_some};
use serde_json::Value;

fn prepare(id: &str, ttl: i64) -> Vec<u8> {
    wire::write(&PrepareRequest {
        reservation_id: id.into(),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        requesting_peer_id: "whoever".into(),
        service_id: "hadamard".into(),
        estimated_qubits: 1,
        estimated_depth: 1,
        priority: 0,
        ttl_seconds: ttl,
        idempotency_key: coda_host::coordinator::fallback::uuid4(),
        sent_at: wire::time(0),
    })
}

async fn call(network: &Network, peer: &str, step: PeerStep, bytes: Vec<u8>) -> Value {
    let answer = network.call(peer, &[], step, bytes, Duration::from_secs(30)).await.expect("an answer");
    serde_json::from_slice(&answer.bytes).expect("JSON")
}

/// A host with one slot that lends it to anybody.
async fn lending(record: &str) -> (TestHost, String, String) {
    let device = format!("evolve: true\nclock: true\nrun_ms: 3\nrecord: {record}");
    lent(Plan::faulty(&device)).await
}

/// The same for any plugin; with the peer's address and id.
async fn lent(plan: Plan) -> (TestHost, String, String) {
    let host = plan.lends().start().await;
    let (address, id) = host.peer().await;
    (host, address, id)
}

/// Asked for without a pause: what ends a moment too early is found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_is_held_for_the_whole_ttl() {
    const SLOTS: usize = 16;
    const TTL: u64 = 5;
    let (_host, address, peer) = lent(Plan::simulator(&format!("slots: {SLOTS}"))).await;
    let client = join(&address, Behave::Idle, &[]).await.network;
    let view = client.view();
    eventually("the client is connected", async || view.borrow().connected > 0).await;
    let caller = client.clone();
    // On the network's own thread an answer is read as soon as it is there.
    let asking = client.runtime().spawn(async move {
        // When each hold is over at the soonest: its ttl counts from the prepare's arrival, which is later than this.
        let mut ends: Vec<Instant> = Vec::new();
        let (mut accepted, mut n) = (0, 0);
        while accepted < 2 * SLOTS {
            n += 1;
            let sent = Instant::now();
            let request = prepare(&format!("reservation-{n}"), TTL as i64);
            let answer = call(&caller, &peer, PeerStep::Prepare, request).await;
            let read = Instant::now();
            if answer["transition"] == "accepted" {
                accepted += 1;
                ends.retain(|end| *end > read);
                ends.push(sent + Duration::from_secs(TTL));
                assert!(ends.len() <= SLOTS, "{} reservations hold {SLOTS} slots", ends.len());
            }
        }
    });
    asking.await.expect("never more holds than slots");
    client.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_peer_declines_with_that_reason_and_lends_again_afterwards() {
    let (host, address, peer) = lent(Plan::simulator("")).await;
    let client = join(&address, Behave::Idle, &[]).await.network;
    let view = client.view();
    eventually("the client is connected", async || view.borrow().connected > 0).await;
    assert_eq!(host.cli(&["pause", "--note", "warm"]).await.code, 0);
    let declined = call(&client, &peer, PeerStep::Prepare, prepare("reservation-1", 60)).await;
    assert_eq!(
        (&declined["transition"], &declined["reason"]),
        (&"rejected".into(), &"paused".into()),
        "{declined}"
    );
    assert_eq!(host.cli(&["resume"]).await.code, 0);
    let accepted = call(&client, &peer, PeerStep::Prepare, prepare("reservation-2", 60)).await;
    assert_eq!(accepted["transition"], "accepted", "{accepted}");
    client.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_and_running_never_exceed_the_slots() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record").display().to_string();
    let (host, address, peer) = lending(&record).await;
    let clients = [
        join(&address, Behave::Idle, &[]).await.network,
        join(&address, Behave::Idle, &[]).await.network,
        join(&address, Behave::Idle, &[]).await.network,
    ];
    for client in &clients {
        let view = client.view();
        eventually("the client is connected", async || view.borrow().connected > 0).await;
    }
    let mut accepted = 0;
    let mut job = 0;
    // Until both kinds have had the slot often enough, whoever wins.
    for round in 0..40 {
        let prepares = (0..100).map(|n| {
            let (client, peer) = (clients[n % 3].clone(), peer.clone());
            let id = format!("reservation-{round}-{n}");
            tokio::spawn(async move {
                let answer = call(&client, &peer, PeerStep::Prepare, prepare(&id, 60)).await;
                let answer: PrepareAnswer = serde_json::from_value(answer).expect("an answer to a prepare");
                (n, id, answer)
            })
        });
        let prepares: Vec<_> = prepares.collect();
        for _ in 0..3 {
            job += 1;
            host.submit(&format!("J{job}"), &bell(), 10).await;
        }
        let mut won = Vec::new();
        for prepare in prepares {
            let (n, id, answer) = prepare.await.unwrap();
            match answer.transition.name() {
                "accepted" => won.push((n, id)),
                _ => assert!(answer.reason.unwrap_or_default().contains("capacity exhausted")),
            }
        }
        assert!(won.len() <= 1, "one slot: {won:?}");
        accepted += won.len();
        for (n, id) in won {
            let client = &clients[n % 3];
            let commit = CommitRequest {
                reservation_id: id.clone(),
                workflow_run_id: "workflow-1".into(),
                fragment_id: "block-s01-b01".into(),
                sent_at: wire::time(0),
            };
            let answer: StepAnswer =
                serde_json::from_value(call(client, &peer, PeerStep::Commit, wire::write(&commit)).await)
                    .unwrap();
            assert_eq!(answer.transition.name(), "committed");
            if round % 2 == 0 {
                let cancel = CancelRequest { reservation_id: id, reason: None, sent_at: wire::time(0) };
                call(client, &peer, PeerStep::Cancel, wire::write(&cancel)).await;
            } else {
                let answer = call(client, &peer, PeerStep::Dispatch, dispatch(&id)).await;
                assert_eq!(answer["transition"], "completed", "{answer}");
            }
        }
        for n in job - 2..=job {
            host.wait_state(&format!("J{n}"), "completed").await;
        }
        if accepted >= 10 && round >= 9 {
            break;
        }
    }
    assert!(accepted > 0, "the peers had the slot as well");
    // Every interval in which the slot was used, by either record.
    let mut uses: Vec<(i64, i64, String)> = Vec::new();
    // The peer's log is written behind its answers.
    let said = eventually_some("every hold has its end in the log", async || {
        let said = host.cli(&["reservation", "replay", "--peer", "--lines"]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        (said.out.matches("\"hold_released\"").count() == accepted).then_some(said)
    })
    .await;
    let mut open: std::collections::HashMap<String, i64> = Default::default();
    for line in said.out.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let stream = event["stream"].as_str().unwrap().to_string();
        let at = event["at"].as_i64().unwrap();
        match event["fact"]["kind"].as_str().unwrap() {
            "accepted" => drop(open.insert(stream, at)),
            "hold_released" => {
                let from = open.remove(&stream).expect("a hold begins before it ends");
                uses.push((from, at, stream));
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "every hold has ended: {open:?}");
    assert_eq!(uses.len(), accepted);
    let mut started: Option<(i64, String)> = None;
    for line in std::fs::read_to_string(&record).unwrap().lines() {
        let [what, id, at] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let at: i64 = at.parse().unwrap();
        match (what, started.take()) {
            ("start", None) => started = Some((at, id.into())),
            // An execution lies inside its hold.
            ("end", Some((from, own))) if own == id && id.starts_with('J') => uses.push((from, at, own)),
            ("end", Some((_, own))) => assert_eq!(own, id),
            (_, before) => panic!("two runs at once: {line} after {before:?}"),
        }
    }
    uses.sort();
    for pair in uses.windows(2) {
        let ((_, end, first), (begin, _, second)) = (&pair[0], &pair[1]);
        assert!(end <= begin, "{first} and {second} had the one slot together");
    }
    assert!(uses.len() >= accepted + 27, "{} uses", uses.len());
}

fn dispatch(id: &str) -> Vec<u8> {
    serde_json::json!({
        "execution_id": format!("exec-{id}"), "reservation_id": id, "workflow_run_id": "workflow-1",
        "fragment_id": "block-s01-b01", "service_id": "hadamard", "max_retries": 2,
        "idempotency_key": "0123456789abcdef", "dispatched_at": wire::time(0),
        "input_payload": {
            "plan_id": "plan-0001", "block_id": "block-s01-b01", "fragment": null,
            "fragments": [{"fragment_id": "frag-0001", "service_id": "hadamard", "qubits": [0], "operation_ids": [],
                           "dependencies": [], "raw_text": ""}],
            "state": {"num_qubits": 1, "qubit_ids": [0], "amplitudes": null, "measured_qubits": [],
                      "previous_peer_id": null},
        },
    })
    .to_string()
    .into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_execution_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("record").display().to_string();
    let device =
        format!("executor_factory: coda_faulty\nevolve: true\nslots: 2\nrun_ms: 2000\nrecord: {record}");
    let mut net = coda_host_tests::net::Net::start(&[]).await;
    let node = net.add(&device, &[("CODA_PEER_ALLOW", "any")]).await;
    let (address, peer) = (node.address.clone(), node.peer_id.clone());
    let client = join(&address, Behave::Idle, &[]).await.network;
    let view = client.view();
    eventually("the client is connected", async || view.borrow().connected > 0).await;
    let id = "reservation-long";
    call(&client, &peer, PeerStep::Prepare, prepare(id, 60)).await;
    let commit = serde_json::json!({"reservation_id": id, "workflow_run_id": "workflow-1", "fragment_id": "block-s01-b01", "sent_at": wire::time(0)});
    call(&client, &peer, PeerStep::Commit, commit.to_string().into_bytes()).await;
    let long = {
        let (client, peer) = (client.clone(), peer.clone());
        tokio::spawn(async move { call(&client, &peer, PeerStep::Dispatch, dispatch(id)).await })
    };
    eventually("it runs", async || std::fs::read_to_string(&record).is_ok_and(|r| r.contains("start"))).await;
    // Beside it everything goes on.
    let answer = call(&client, &peer, PeerStep::Prepare, prepare("reservation-other", 60)).await;
    assert_eq!(answer["transition"], "accepted");
    assert!(!long.is_finished(), "the other one was answered meanwhile");
    // A stop waits for it, and its answer still goes out.
    assert_eq!(net.peers[0].stop().await, coda_host_tests::Exit::Code(0));
    let answer = long.await.unwrap();
    assert_eq!(answer["transition"], "completed", "{answer}");
}

/// A client that is connected to the peer.
async fn client(address: &str) -> Network {
    let network = join(address, Behave::Idle, &[]).await.network;
    let view = network.view();
    eventually("the client is connected", async || view.borrow().connected > 0).await;
    network
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_reload_the_peer_lends_what_the_new_executor_takes() {
    let plan = Plan::faulty("").env("CODA_EXECUTOR_ISOLATION", "process");
    let (host, address, peer) = lent(plan).await;
    let client = client(&address).await;
    let ask = async |id: &str, qubits: i64| -> PrepareAnswer {
        let mut request: Value = serde_json::from_slice(&prepare(id, 60)).unwrap();
        request["estimated_qubits"] = qubits.into();
        serde_json::from_value(
            call(&client, &peer, PeerStep::Prepare, request.to_string().into_bytes()).await,
        )
        .unwrap()
    };
    let reload = async |device: &str| {
        host.write_device(device);
        let done = host.cli(&["reload"]).await;
        assert_eq!(done.code, 0, "{}", done.text());
    };
    let declined = ask("reservation-1", 1).await;
    assert!(
        declined.reason.unwrap_or_default().contains("no evolve_state"),
        "{}",
        declined.transition.name()
    );
    reload("executor_factory: coda_simulator\nnum_qubits: 3").await;
    let declined = ask("reservation-2", 4).await;
    assert!(
        declined.reason.unwrap_or_default().contains("takes states of 3"),
        "{}",
        declined.transition.name()
    );
    assert_eq!(ask("reservation-3", 3).await.transition.name(), "accepted");
    let commit = CommitRequest {
        reservation_id: "reservation-3".into(),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        sent_at: wire::time(0),
    };
    call(&client, &peer, PeerStep::Commit, wire::write(&commit)).await;
    let answer = call(&client, &peer, PeerStep::Dispatch, dispatch("reservation-3")).await;
    assert_eq!(answer["transition"], "completed", "{answer}");
    assert_eq!(answer["fidelity_score"], 1.0, "a simulator is exact: {answer}");
    let (_, metrics) = host.get("/metrics").await;
    let infos: Vec<&str> = metrics.lines().filter(|l| l.starts_with("coda_host_plugin_info{")).collect();
    assert!(infos.len() == 1 && infos[0].contains("name=\"coda-plugin-simulator\""), "{infos:?}");
    reload("executor_factory: coda_faulty\nevolve: false").await;
    let declined = ask("reservation-4", 1).await;
    assert!(
        declined.reason.unwrap_or_default().contains("no evolve_state"),
        "{}",
        declined.transition.name()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_execution_beyond_the_time_limit_fails_with_the_limit() {
    for isolation in ["none", "process"] {
        let plan = Plan::simulator("mode: hang")
            .env("CODA_EXECUTOR_ISOLATION", isolation)
            .env("CODA_JOB_TIMEOUT_SEC", "0.2");
        let (host, address, peer) = lent(plan).await;
        let client = client(&address).await;
        call(&client, &peer, PeerStep::Prepare, prepare("reservation-1", 60)).await;
        let commit = CommitRequest {
            reservation_id: "reservation-1".into(),
            workflow_run_id: "workflow-1".into(),
            fragment_id: "block-s01-b01".into(),
            sent_at: wire::time(0),
        };
        call(&client, &peer, PeerStep::Commit, wire::write(&commit)).await;
        let answer = call(&client, &peer, PeerStep::Dispatch, dispatch("reservation-1")).await;
        let said = answer.to_string();
        assert_eq!(answer["transition"], "failed", "{isolation}: {said}");
        assert!(said.contains("took longer than 0.2 s and was ended"), "{isolation}: {said}");
        drop(host);
    }
}

/// Reserves and commits a slot.
async fn reserved(client: &Network, peer: &str, id: &str) {
    call(client, peer, PeerStep::Prepare, prepare(id, 60)).await;
    let commit = CommitRequest {
        reservation_id: id.into(),
        workflow_run_id: "workflow-1".into(),
        fragment_id: "block-s01-b01".into(),
        sent_at: wire::time(0),
    };
    let answer = call(client, peer, PeerStep::Commit, wire::write(&commit)).await;
    assert_eq!(answer["transition"], "committed", "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_uses_a_jobs_id_touches_only_its_own_execution() {
    for isolation in ["none", "process"] {
        let plan = Plan::simulator("mode: hang\nslots: 3").env("CODA_EXECUTOR_ISOLATION", isolation);
        let (host, address, peer) = lent(plan).await;
        let id = "job-of-a-customer";
        host.submit(id, &bell(), 10).await;
        host.wait_state(id, "executing").await;
        // Two peers with the customer's id; the second one's execution must live on as well.
        let (first, second) = (client(&address).await, client(&address).await);
        let mut running = Vec::new();
        for (network, reservation) in [(&first, "reservation-1"), (&second, "reservation-2")] {
            reserved(network, &peer, reservation).await;
            let mut request: Value = serde_json::from_slice(&dispatch(reservation)).unwrap();
            request["execution_id"] = id.into();
            let (network, peer) = (network.clone(), peer.clone());
            running.push(tokio::spawn(async move {
                call(&network, &peer, PeerStep::Dispatch, request.to_string().into_bytes()).await
            }));
        }
        eventually("both run", async || host.ready().await.1["peer"]["executions"] == 2).await;
        let cancel = |id: &str| {
            wire::write(&CancelRequest { reservation_id: id.into(), reason: None, sent_at: wire::time(0) })
        };
        call(&first, &peer, PeerStep::Cancel, cancel("reservation-1")).await;
        let answer = running.remove(0).await.unwrap();
        assert_eq!(answer["transition"], "failed", "{isolation}: {answer}");
        assert!(!running[0].is_finished(), "{isolation}: the other peer's execution was cancelled too");
        let (_, ready) = host.ready().await;
        assert_eq!(ready["current_job"], id, "{isolation}: the customer's job goes on: {ready}");
        host.request_cancel(id).await;
        host.wait_state(id, "cancelled").await;
        assert_eq!(host.attempts(id), (0, 0), "{isolation}: no one was told that it failed");
        call(&second, &peer, PeerStep::Cancel, cancel("reservation-2")).await;
        assert_eq!(running.remove(0).await.unwrap()["transition"], "failed", "{isolation}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_execution_is_ended_at_the_peers_own_limit_whatever_was_estimated() {
    let plan = Plan::simulator("mode: hang").env("CODA_PEER_MAX_EXECUTION_SEC", "0.3");
    let (_host, address, peer) = lent(plan).await;
    let client = client(&address).await;
    reserved(&client, &peer, "reservation-1").await;
    let answer = call(&client, &peer, PeerStep::Dispatch, dispatch("reservation-1")).await;
    let said = answer.to_string();
    assert_eq!(answer["transition"], "failed", "{said}");
    assert!(said.contains("it took longer than 0.3 s and was ended"), "{said}");
}

/// The most memory that a process has had, in MiB.
fn peak_mib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).expect("a peak");
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_costs_no_more_memory_than_its_bytes() {
    const BYTES: usize = 16 << 20;
    let (mut host, address, peer) = lent(Plan::simulator("")).await;
    let client = client(&address).await;
    let pid = host.process().pid();
    let before = peak_mib(pid);
    for (n, filling) in
        ["[],", "{},", "\"\",", "{\"fragment_id\":\"abc\",\"service_id\":\"qft\"},"].into_iter().enumerate()
    {
        // Once as a stranger, once with a reservation, as a payload and as a list inside of one.
        let list = filling.repeat(BYTES / filling.len());
        let list = list.trim_end_matches(',');
        for payload in [format!("{{\"a\":[{list}]}}"), format!("{{\"fragments\":[{list}]}}")] {
            for reservation in ["reservation-none".to_string(), format!("reservation-{n}-{}", payload.len())]
            {
                if reservation != "reservation-none" {
                    reserved(&client, &peer, &reservation).await;
                }
                let document = String::from_utf8(dispatch(&reservation)).unwrap();
                let (head, rest) = document.split_once("\"input_payload\":").unwrap();
                let (_, tail) = rest.split_once(",\"max_retries\"").unwrap();
                let document = format!("{head}\"input_payload\":{payload},\"max_retries\"{tail}");
                let answer = call(&client, &peer, PeerStep::Dispatch, document.into_bytes()).await;
                assert_eq!(answer["transition"], "failed", "{answer}");
            }
        }
    }
    let grown = peak_mib(pid).saturating_sub(before);
    // The document as it is read, and the buffers of the connection.
    assert!(grown < 200, "16 MiB of a document cost {grown} MiB");
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_is_reached_by_its_name() {
    let (_host, address, peer) = lent(Plan::simulator("")).await;
    let named = address.replace("/ip4/127.0.0.1/", "/dns4/localhost/");
    assert_ne!(named, address);
    let client = client(&named).await;
    reserved(&client, &peer, "reservation-1").await;
    let answer = call(&client, &peer, PeerStep::Dispatch, dispatch("reservation-1")).await;
    assert_eq!(answer["transition"], "completed", "{answer}");
}
