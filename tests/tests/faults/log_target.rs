//! Standard error or standard output that can't be written: jobs go on, and commands keep their word.

use std::process::Stdio;

use coda_host::dev::cloud::Answer;
use coda_host_tests::{Circuit, Exit, LIMIT, Plan, TestHost, command, eventually, example};

/// Starts the program behind it with standard error replaced.
fn with_stderr(script: &str) -> Vec<String> {
    vec!["bash".into(), "-c".into(), format!("{script}; exec \"$@\""), "bash".into()]
}

/// Runs jobs on a host whose log can't be written, and stops it.
async fn jobs_go_through(wrapper: &[String]) -> TestHost {
    let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let plan = Plan::simulator("").env("CODA_LOG", "trace");
    let mut host = plan.within(&wrapper).start().await;
    for n in 0..20 {
        host.good_job_goes_through(&format!("J{n}")).await;
    }
    host.wait_nothing_pending().await;
    let (status, body) = host.ready().await;
    assert_eq!((status, &body["current_job"]), (200, &serde_json::Value::Null), "{body}");
    assert!(host.metric("coda_host_lost_log_lines_total").await > 0, "the log could not be written");
    assert_eq!(host.stop().await, Exit::Code(0));
    host
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_reader_is_gone_costs_no_job() {
    jobs_go_through(&with_stderr("exec 2> >(exec true); wait $!")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_on_a_full_disk_costs_no_job() {
    jobs_go_through(&with_stderr("exec 2> /dev/full")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_nobody_reads_costs_no_job() {
    // Open for reading too, so that it is full instead of broken.
    jobs_go_through(&with_stderr("mkfifo log.fifo && exec 2<> log.fifo && head -c 65000 /dev/zero >&2"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_descriptors_cost_no_job() {
    let plan = Plan::simulator("").within(&["bash", "-c", "exec \"$@\" <&- >&- 2>&-", "bash"]);
    let mut host = plan.start().await;
    host.good_job_goes_through("J1").await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

/// Runs a command with its two outputs as this script redirects them; its exit status.
async fn status_of(host: &TestHost, arguments: &[&str], redirect: &str) -> (i32, String) {
    let program = command(arguments, &host.env, host.dir());
    let mut shell = tokio::process::Command::new("bash");
    shell.args(["-c", &format!("{redirect}; \"$@\" 3>&-; echo $? >&3"), "bash"]).arg(program.get_program());
    shell.args(program.get_args()).env_clear().current_dir(host.dir()).stdin(Stdio::null());
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.kill_on_drop(true);
    let done = tokio::time::timeout(LIMIT, shell.output()).await.expect("it ends").expect("bash starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = text(&done.stdout).trim().parse();
    (status.unwrap_or_else(|e| panic!("{arguments:?}: {e}: {done:?}")), text(&done.stderr))
}

/// Commands that end by themselves on a stopped host, with their usual status.
const COMMANDS: &[(&[&str], i32)] = &[
    (&["--help"], 0),
    (&["--version"], 0),
    (&["results", "--help"], 0),
    (&["config"], 0),
    (&["config", "--json"], 0),
    (&["status"], 1),
    (&["results", "list"], 0),
    (&["completions", "bash"], 0),
    (&["man"], 0),
    (&["plugin", "device"], 0),
    (&["plugin", "check", "--list"], 0),
    (&["run", "circuit.json", "--shots", "3"], 0),
];

fn set_file_size_limit(host: &mut TestHost, limit: &str) {
    let pid = format!("--pid={}", host.process().pid());
    let set = std::process::Command::new("prlimit").args([&pid, &format!("--fsize={limit}:")]).status();
    assert!(set.is_ok_and(|status| status.success()), "prlimit");
}

/// `ulimit -f` or LimitFSIZE=, whose signal ends a process that does not expect it: log and database alike.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_on_the_size_of_files_costs_no_job() {
    let mut host = Plan::simulator("").start().await;
    host.good_job_goes_through("before").await;
    set_file_size_limit(&mut host, "4096");
    for n in 0..5 {
        host.submit(&format!("J{n}"), &example(), 10).await;
    }
    eventually("/ready says that nothing can be stored", async || {
        let (status, body) = host.ready().await;
        status == 503 && body["reasons"].to_string().contains("can't be stored")
    })
    .await;
    set_file_size_limit(&mut host, "unlimited");
    for n in 0..5 {
        host.delivered(&format!("J{n}")).await;
    }
    host.wait_nothing_pending().await;
    assert_eq!(host.stop().await, Exit::Code(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_end_quietly_for_a_closed_pipe_and_report_a_full_disk() {
    let host = Plan::simulator("").env("CODA_LOG", "error").prepare().await;
    let circuit = Circuit::new(1).json().to_string();
    std::fs::write(host.dir().join("circuit.json"), circuit).unwrap();
    for (arguments, usual) in COMMANDS {
        let (status, said) = status_of(&host, arguments, "exec 3>&1 > >(exec true); wait $!").await;
        assert_eq!((status, said.as_str()), (*usual, ""), "{arguments:?} without a reader");
        let (status, said) = status_of(&host, arguments, "exec 3>&1 > /dev/full").await;
        assert!(
            status == 1 && said.contains("the output could not be written"),
            "{arguments:?}: {status} {said}"
        );
        // What it was run for is written; that the notices are lost changes nothing.
        let (status, _) = status_of(&host, arguments, "exec 3>&1 > out 2> /dev/full").await;
        assert_eq!(status, *usual, "{arguments:?} with standard error on a full disk");
    }
    for redirect in ["exec 3>&1 2> /dev/full", "exec 3>&1 2> >(exec true); wait $!"] {
        assert_eq!(status_of(&host, &["no-such-command"], redirect).await.0, 2, "{redirect}");
        assert_eq!(status_of(&host, &["stop"], redirect).await.0, 1, "{redirect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_drops_the_results_even_when_it_can_not_say_so() {
    for (redirect, expected) in [("exec 3>&1 > >(exec true); wait $!", 0), ("exec 3>&1 > /dev/full", 1)] {
        let mut host = Plan::simulator("").env("CODA_WEBHOOK_BACKOFF_SEC", "60").start().await;
        host.cloud.on_webhook(|_| Some(Answer::status(400)));
        host.submit("J1", &Circuit::new(1), 7).await;
        host.wait_nothing_pending().await;
        assert_eq!(host.stop().await, Exit::Code(0));
        assert_eq!(host.state_file().kept().len(), 1, "the refused result is kept");
        let (status, said) = status_of(&host, &["reset", "--discard-results"], redirect).await;
        assert_eq!(status, expected, "{said}");
        assert_eq!(host.state_file().kept().len(), 0, "{redirect}: {said}");
    }
}
