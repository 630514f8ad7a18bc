//! A device library that misbehaves in every way that is known of them (`plugins/faulty-qdmi`): each fault has its text,
//! and costs neither the host nor the job after it.

use coda_host_tests::artifacts::library;
use coda_host_tests::{Exit, Plan, TestHost, eventually, example};
use serde_json::json;

/// Of which interface the library is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Abi {
    V1_3,
    V1_4,
}

pub const BOTH: [Abi; 2] = [Abi::V1_3, Abi::V1_4];

/// Shots of the jobs that a fault is for; the first of them.
const FIRST: u32 = 101;

pub fn device(abi: Abi, faults: &str, keys: &str) -> String {
    let name = match abi {
        Abi::V1_3 => "coda_faulty_qdmi13",
        Abi::V1_4 => "coda_faulty_qdmi14",
    };
    let library = library(name).display().to_string();
    format!(
        "executor_factory: coda_qdmi\nlibrary: {library}\nbit_order: first_right\ncheck_retry_ms: 200\n\
         session: {{custom1: \"{faults}\"}}\n{keys}"
    )
}

pub fn plan(abi: Abi, faults: &str, keys: &str) -> Plan {
    Plan::device(device(abi, faults, keys)).env("CODA_EXECUTOR_RESTART_BACKOFF_SEC", "0.02")
}

/// Runs jobs one after the other in one device, each with a good one behind it. A fault is for the jobs of its shots alone.
async fn each_has_its_text(abi: Abi, cases: &[(&str, Result<(), &str>)]) -> TestHost {
    let words = cases.iter().zip(FIRST..).flat_map(|((fault, _), shots)| {
        fault.split_whitespace().map(move |word| format!("{word}@{shots}")).collect::<Vec<_>>()
    });
    let mut host = plan(abi, &words.collect::<Vec<_>>().join(" "), "").start().await;
    let pid = host.process().pid();
    for ((fault, expected), shots) in cases.iter().zip(FIRST..) {
        let id = format!("J{shots}");
        host.submit(&id, &example(), shots).await;
        let body = host.delivered(&id).await;
        match expected {
            Ok(()) => assert_eq!(body["status"], "completed", "{abi:?} {fault}: {body}"),
            Err(says) => {
                let error = body["error"].as_str().unwrap_or_default();
                assert!(error.contains(says), "{abi:?} {fault}: {body}");
            }
        }
        host.good_job_goes_through(&format!("after-{shots}")).await;
    }
    assert_eq!(host.process().pid(), pid);
    assert_eq!(host.get("/ready").await.0, 200, "{abi:?}");
    host
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_is_never_overlooked() {
    let names = [
        (-1, "-1 (fatal error)"),
        (-2, "-2 (out of memory)"),
        (-3, "-3 (not implemented)"),
        (-4, "-4 (library not found)"),
        (-5, "-5 (not found)"),
        (-6, "-6 (out of range)"),
        (-7, "-7 (invalid argument)"),
        (-8, "-8 (permission denied)"),
        (-9, "-9 (not supported)"),
        (-10, "-10 (bad state)"),
        (-11, "-11 (timeout)"),
        (-77, "-77 (unknown status)"),
        (2, "2 (unknown status)"),
    ];
    for abi in BOTH {
        let submits =
            names.map(|(code, name)| (format!("status:submit={code}"), format!("{name} to submit")));
        let mut cases: Vec<(&str, Result<(), &str>)> =
            submits.iter().map(|(fault, text)| (fault.as_str(), Err(text.as_str()))).collect();
        cases.extend([
            ("status:results:1=-1", Err("answered -1 (fatal error) to")),
            ("status:results:2=-2", Err("answered -2 (out of memory) to")),
            ("status:check=-1", Err("answered -1 (fatal error) to check for")),
            ("status:check=-11", Err("answered -11 (timeout) to check for")),
            ("status:submit=1", Ok(())),
            ("status:results=1", Ok(())),
            ("status:job_query=-1", Ok(())),
            ("status:job_query=-9", Ok(())),
            ("check_fails=3", Ok(())),
        ]);
        let mut host = each_has_its_text(abi, &cases).await;
        let log = host.log();
        for says in
            ["answered with a warning to submit", "the job's id is not known", "to check; trying again"]
        {
            assert!(log.contains(says), "{abi:?}: {says}: {log}");
        }
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_before_the_job_is_submitted_is_never_overlooked() {
    let v1_3 = [
        ("status:set_job:0=-9#2", "answered -9 (not supported) to"),
        ("status:set_job:1=-7#4", "answered -7 (invalid argument) to"),
        ("status:set_job:2=-6#6", "answered -6 (out of range) to"),
        ("status:set_job:999999996=-9#8", "answered -9 (not supported) to"),
    ];
    let v1_4 = [
        ("status:set_programs=-9#2", "answered -9 (not supported) to"),
        ("status:set_programs=-7#4", "answered -7 (invalid argument) to"),
        ("status:set_job:2=-6#6", "answered -6 (out of range) to"),
        ("status:set_job:999999996=-9#8", "answered -9 (not supported) to"),
    ];
    for (abi, cases) in [(Abi::V1_3, v1_3), (Abi::V1_4, v1_4)] {
        let faults = cases.map(|(fault, _)| fault).join(" ");
        let mut host = plan(abi, &faults, "job: {custom2: {u64: 7}}\n").start().await;
        for ((fault, says), n) in cases.iter().zip(0..) {
            host.good_job_goes_through(&format!("before-{n}")).await;
            let id = format!("J{n}");
            host.submit(&id, &example(), 10).await;
            let error = host.failure(&id).await;
            assert!(error.contains(says), "{abi:?} {fault}: {error}");
        }
        host.good_job_goes_through("last").await;
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_can_not_be_true_fail_their_job() {
    for abi in BOTH {
        let cases = [
            ("wide", Err("the key \"100\", and 2 qubits were measured")),
            ("narrow", Err("and 2 qubits were measured")),
            ("letters", Err("which is not of 0 and 1")),
            // Of two bytes, which are none of a text.
            ("not_text", Err("and 2 qubits were measured")),
            ("sum=1", Err("were asked for")),
            ("overflow", Err("were asked for")),
            ("twice", Err("twice")),
            ("no_nul", Err("without its final NUL")),
            ("size0", Err("is done, and gave no counts")),
            ("no_results", Err("answered -10 (bad state) to")),
            ("few_values", Err("1 keys and 0 values")),
            ("odd_values", Err("answered 5 bytes to")),
            ("huge", Err("announced 1099511627776 bytes")),
            ("grows", Err("answered -7 (invalid argument) to")),
            ("ends=6", Err("the job failed in the device; its log has the reason")),
            ("ends=5", Err("the job was cancelled at the device, and not by its sender")),
            ("ends=42", Err("the state 42 to check, which no job can have")),
            ("ends=-1", Err("the state -1 to check, which no job can have")),
            // What is legal.
            ("only_shots", Ok(())),
            ("sum=-1", Ok(())),
            ("queue_ms=50 run_ms=50", Ok(())),
            ("block=50", Ok(())),
            ("print=out_of_helium", Ok(())),
        ];
        let mut host = each_has_its_text(abi, &cases).await;
        let log = host.log();
        for says in ["out of calibration", "out of helium", "the job in the device is faulty-"] {
            assert!(log.contains(says), "{abi:?}: {says}: {log}");
        }
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_ends_the_process_costs_the_job_in_it() {
    for abi in BOTH {
        let cases = [
            ("crash", Err("died of SIGSEGV")),
            ("exit", Err("ended by itself with status 0")),
            ("abort", Err("died of SIGABRT")),
            ("crash=check", Err("died of SIGSEGV")),
            ("crash=results", Err("died of SIGSEGV")),
            ("exit=job_query", Err("ended by itself with status 0")),
        ];
        let mut host = each_has_its_text(abi, &cases).await;
        assert!(host.log().contains("faulty: the process ends in submit"), "{}", host.log());
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

/// Starts a job of 13 shots that does not end, and waits until the log tells that it is in the library.
pub async fn stuck_job(host: &TestHost, id: &str, until: &str) {
    host.submit(id, &example(), 13).await;
    host.wait_log(until).await;
}

pub const SUBMITTED: &str = "the job in the device is";
pub const IN_SUBMIT: &str = "faulty: submit blocks";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_a_job_that_runs_and_one_whose_submit_blocks() {
    for abi in BOTH {
        for (fault, until) in
            [("never@13", SUBMITTED), ("queue_ms=600000@13", SUBMITTED), ("block=600000@13", IN_SUBMIT)]
        {
            let mut host = plan(abi, &format!("{fault} life"), "").start().await;
            stuck_job(&host, "J1", until).await;
            host.request_cancel("J1").await;
            host.wait_state("J1", "cancelled").await;
            host.good_job_goes_through("after").await;
            let log = host.log();
            assert!(log.contains("faulty: job cancel"), "{abi:?} {fault}: {log}");
            assert!(!log.contains("its process is killed"), "{abi:?} {fault}: {log}");
            assert_eq!(host.stop().await, Exit::Code(0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_that_has_no_effect_costs_the_process() {
    for abi in BOTH {
        for (fault, until) in [
            ("never@13 cancel_ignored@13", SUBMITTED),
            ("never@13 cancel_blocks@13", SUBMITTED),
            ("never@13 status:cancel=-9@13", SUBMITTED),
            ("block_deaf=600000@13", IN_SUBMIT),
        ] {
            let plan = plan(abi, fault, "").env("CODA_CANCEL_GRACE_SEC", "0.5");
            let mut host = plan.start().await;
            stuck_job(&host, "J1", until).await;
            host.request_cancel("J1").await;
            host.wait_state("J1", "cancelled").await;
            host.good_job_goes_through("after").await;
            let log = host.log();
            assert!(log.contains("the run did not end; its process is killed"), "{abi:?} {fault}: {log}");
            assert_eq!(host.stop().await, Exit::Code(0));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_takes_back_a_job_that_waits_for_the_submit_of_another() {
    for abi in BOTH {
        let faults = "block=500@11 never@11 block=600000@13";
        let mut host = plan(abi, faults, "slots: 3\n").env("CODA_CANCEL_GRACE_SEC", "2").start().await;
        host.submit("first", &example(), 11).await;
        host.wait_log(IN_SUBMIT).await;
        // Both wait for the submit of the first; then the second one blocks.
        host.submit("J1", &example(), 13).await;
        host.wait_state("J1", "executing").await;
        host.submit("J2", &example(), 12).await;
        host.wait_state("J2", "executing").await;
        eventually("the second submit blocks", async || host.log().matches(IN_SUBMIT).count() == 2).await;
        host.request_cancel("J2").await;
        // Its slot is free for the next job, while the other one is still in the library.
        host.submit("J3", &example(), 12).await;
        host.wait_state("J3", "executing").await;
        for id in ["J1", "first"] {
            host.request_cancel(id).await;
            host.wait_state(id, "cancelled").await;
        }
        host.good_job_goes_through("after").await;
        let log = host.log();
        assert!(!log.contains("its process is killed"), "{abi:?}: {log}");
        assert_eq!(host.stop().await, Exit::Code(0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_library_is_called_from_one_thread_however_many_jobs_there_are() {
    for abi in BOTH {
        let keys = "slots: 4\nrefresh_ms: 100\npoll_max_ms: 2\n";
        let mut host = plan(abi, "run_ms=5 never@13", keys).env("CODA_FAULTY_QDMI", "life").start().await;
        stuck_job(&host, "stuck", SUBMITTED).await;
        for n in 0..40 {
            host.submit(&format!("J{n}"), &example(), 20).await;
        }
        for n in 0..40 {
            assert_eq!(host.delivered(&format!("J{n}")).await["counts"], json!({ "10": 20 }));
        }
        host.request_cancel("stuck").await;
        host.wait_state("stuck", "cancelled").await;
        host.good_job_goes_through("last").await;
        // Also the end is in order, on the same thread.
        assert_eq!(host.stop().await, Exit::Code(0));
        let log = host.log();
        assert!(!log.contains("from a second thread"), "{abi:?}: {log}");
        let finalized = log.find("faulty: finalize").unwrap_or_else(|| panic!("{abi:?}: {log}"));
        assert!(log.find("faulty: session free").is_some_and(|freed| freed < finalized), "{abi:?}: {log}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_list_that_fails_is_its_job_alone() {
    for (faults, failing) in [
        ("part_fails=1@20", Some("J1")),
        ("lists=no", None),
        ("status:program_status=-3", None),
        ("status:submit=-9@20", Some("all")),
    ] {
        // Those behind it form one list meanwhile.
        let host = plan(Abi::V1_4, &format!("run_ms=400@13 {faults}"), "").start().await;
        stuck_job(&host, "first", SUBMITTED).await;
        for id in ["J0", "J1", "J2"] {
            host.submit(id, &example(), 20).await;
        }
        for id in ["J0", "J1", "J2"] {
            let body = host.delivered(id).await;
            match failing {
                Some(failing) if failing == id || failing == "all" => {
                    assert_eq!(body["status"], "failed", "{faults} {id}: {body}");
                }
                _ => assert_eq!(body["counts"], json!({ "10": 20 }), "{faults} {id}: {body}"),
            }
        }
        host.good_job_goes_through("after").await;
    }
}

/// What of a library makes its device unusable, with the variable that asks for it, and the text.
const REFUSED: &[(&str, &str)] = &[
    ("status:initialize=-1", "answered -1 (fatal error) to initialize"),
    ("status:initialize=-4", "-4 (library not found)"),
    ("status:alloc=-2", "answered -2 (out of memory) to"),
    (
        "status:set_session=-9",
        "answered -9 (not supported) to `session.custom1`: it has no such parameter; remove it",
    ),
    ("status:set_session=-7", "answered -7 (invalid argument) to `session.custom1`"),
    ("status:init=-8", "the device refused the credentials"),
    ("status:init=-7", "the library wants other parameters"),
    ("status:init=-1", "no connection to the device"),
    ("status:init=-11", "no connection to the device"),
    ("token=other", "the device refused the credentials"),
    ("status:session_query:0=-1", "-1 (fatal error) to the query of NAME"),
    ("status:session_query:4=-9", "-9 (not supported) to the query of QUBITSNUM"),
    ("status:session_query:5=-10", "to the query of SITES"),
    ("status:session_query:6=-1", "to the query of OPERATIONS"),
    ("status:session_query:7=-1", "to the query of COUPLINGMAP"),
    ("status:session_query:15=-1", "to the query of SUPPORTEDPROGRAMFORMATS"),
    ("status:site_query:0=-1", "to the query of a site's INDEX"),
    ("status:site_query:7=-1", "to the query of a site's ISZONE"),
    ("status:operation_query:0=-1", "to the query of an operation's NAME"),
    ("version=2.0.0", "states interface 2.0.0"),
    ("no_sites", "gives no sites that are not zones"),
    ("odd_map", "answered 7 sites to the query of COUPLINGMAP, which has pairs"),
    ("ops=gpi,ms,measure", "make up no native gate set (they are: gpi, ms, measure)"),
    ("ops=r,cz,move,measure no_map", "only over a resonator"),
    ("crash=init", "died of SIGSEGV"),
    ("exit=session_query", "ended by itself with status 0"),
    ("abort=initialize", "died of SIGABRT"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_can_not_be_used_is_refused_with_the_reason() {
    for abi in BOTH {
        let other = match abi {
            Abi::V1_3 => ("version=1.4.0", "states interface 1.4.0"),
            Abi::V1_4 => ("version=1.3.3", "states interface 1.3.3"),
        };
        for (faults, says) in REFUSED.iter().chain(&[other]) {
            let mut host = plan(abi, "", "").env("CODA_FAULTY_QDMI", *faults).prepare().await;
            host.launch();
            assert_eq!(host.wait_exit().await, Exit::Code(3), "{abi:?} {faults}: {}", host.log());
            let log = host.log();
            let error = log.rsplit("error: ").next().unwrap_or_default();
            assert!(error.contains(says), "{abi:?} {faults}: {log}");
            assert!(
                error.contains("device.yaml") || says.contains("status 0") || says.contains("SIG"),
                "{error}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_with_gaps_zones_and_resonators_is_what_its_qubits_are() {
    for abi in BOTH {
        for faults in [
            "gaps",
            "zones",
            "resonators",
            "gaps zones resonators",
            "many=60",
            "no_map zones",
            // What a library has not implemented, it has not.
            "status:session_query:1=-3 status:session_query:2=-3 status:session_query:17=-3 status:job_query=-3",
            "status:site_query:3=-3 status:operation_query:9=-3",
        ] {
            let host = plan(abi, faults, "").start().await;
            let device = host.dir().join("device.yaml").display().to_string();
            let said = host.cli(&["plugin", "device", "--device", &device, "--json"]).await;
            let told: serde_json::Value = serde_json::from_str(&said.out).unwrap_or_default();
            assert_eq!(told["num_qubits"], 5, "{abi:?} {faults}: {}", said.text());
            if !faults.contains("no_map") {
                let edges = json!([[0, 1], [1, 2], [2, 3], [3, 4]]);
                assert_eq!(told["edges"], edges, "{abi:?} {faults}: {}", said.text());
            }
            host.submit("J1", &example(), 10).await;
            assert_eq!(host.delivered("J1").await["counts"], json!({ "10": 10 }), "{abi:?} {faults}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_that_takes_no_jobs_says_why() {
    for (faults, says) in [
        ("device_status=0", "the device is offline"),
        ("device_status=3", "the device reports an error"),
        ("device_status=4", "the device is in maintenance"),
        ("device_status=5", "the device is being calibrated"),
        ("no_formats", "takes no program format that is known here"),
        ("formats=2,7", "it takes 2, 7"),
    ] {
        // A device may be back a moment later, so its refusal is retryable.
        let host = plan(Abi::V1_4, faults, "").env("CODA_RETRY_MAX", "0").start().await;
        host.submit("J1", &example(), 10).await;
        let error = host.failure("J1").await;
        assert!(error.contains(says), "{faults}: {error}");
        // The device config is corrected, or the device is back.
        host.write_device(&device(Abi::V1_4, "", ""));
        let said = host.cli(&["reload"]).await;
        assert_eq!(said.code, 0, "{}", said.text());
        host.good_job_goes_through("after").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parameters_arrive_as_they_are_written() {
    let text = device(Abi::V1_4, "", "").replace(
        "session: {",
        "session: {base_url: 'http://x', token: sesame, custom2: ab, custom3: {u64: 30000}, custom4: {f64: 0.5}, \
         custom5: {hex: \"00ff\"}, ",
    );
    let mut host = Plan::device(text).env("CODA_FAULTY_QDMI", "life").start().await;
    host.good_job_goes_through("J1").await;
    let log = host.log();
    for says in [
        "session parameter 0 has 9 bytes: 68 74 74 70 3a 2f 2f 78 00",
        "session parameter 999999996 has 3 bytes: 61 62 00",
        "session parameter 999999997 has 8 bytes: 30 75 00 00 00 00 00 00",
        "session parameter 999999998 has 8 bytes: 00 00 00 00 00 00 e0 3f",
        "session parameter 999999999 has 2 bytes: 00 ff",
    ] {
        assert!(log.contains(says), "{says}: {log}");
    }
    assert_eq!(host.stop().await, Exit::Code(0));

    // What the library has not, and what is of another type.
    for (key, says) in [
        ("username: me", "`session.username`: it has no such parameter; remove it"),
        ("custom3: \"30000\"", "answered -7 (invalid argument) to `session.custom3`"),
    ] {
        let text = device(Abi::V1_4, "", "").replace("session: {", &format!("session: {{{key}, "));
        let mut host = Plan::device(text).prepare().await;
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(3), "{key}: {}", host.log());
        assert!(host.log().contains(says), "{key}: {}", host.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_whole_library_is_refused_with_the_reason() {
    let good = library("coda_faulty_qdmi14");
    let bytes = std::fs::read(&good).expect("the library");
    let mut host = plan(Abi::V1_4, "", "").prepare().await;
    let file = host.dir().join("lib with blanks:and.so");
    let text = "executor_factory: coda_qdmi\nlibrary: 'lib with blanks:and.so'\nprefix: CODA_FAULTY\nbit_order: first_right\n";
    host.write_device(text);
    // The text of the loader, for a companion that is missing, is the only thing that says which one.
    let needs = bytes.windows(9).position(|name| name == b"libm.so.6").expect("it needs libm");
    let mut lacking = bytes.clone();
    lacking[needs..needs + 4].copy_from_slice(b"lib?");
    for (content, says) in [
        (&bytes[..bytes.len() / 2], "is the file complete?"),
        (lacking.as_slice(), "lib?.so.6: cannot open shared object file"),
    ] {
        std::fs::write(&file, content).expect("a library");
        host.launch();
        assert_eq!(host.wait_exit().await, Exit::Code(3), "{}", host.log());
        assert!(host.log().contains(says), "{says}: {}", host.log());
    }
    std::fs::copy(&good, &file).expect("a library");
    host.start().await;
    host.good_job_goes_through("J1").await;
}
