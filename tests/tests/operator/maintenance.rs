//! Times of maintenance in a calendar: a pause that begins and ends by itself, and runs that would overlap it wait.

use std::time::Duration;

use coda_host_tests::{Plan, TestHost, eventually, example};
use time::OffsetDateTime;
use time::macros::format_description;

/// An event that begins and ends so many seconds from now.
fn event(begin: i64, end: i64, summary: &str) -> String {
    let form = format_description!("[year][month][day]T[hour][minute][second]Z");
    let at =
        |seconds| (OffsetDateTime::now_utc() + Duration::from_secs(seconds as u64)).format(form).unwrap();
    format!(
        "BEGIN:VEVENT\r\nUID:{summary}\r\nDTSTART:{}\r\nDTEND:{}\r\nSUMMARY:{summary}\r\nEND:VEVENT\r\n",
        at(begin),
        at(end)
    )
}

fn calendar(events: &[String]) -> String {
    format!("BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:-//lab//EN\r\n{}END:VCALENDAR\r\n", events.concat())
}

fn write(host: &TestHost, text: &str) {
    let path = host.dir().join("calendar.ics");
    std::fs::write(path.with_extension("new"), text).unwrap();
    std::fs::rename(path.with_extension("new"), path).unwrap();
}

/// A host with a calendar; runs of which nothing is known are expected to take no time.
fn with_calendar(keys: &str) -> Plan {
    Plan::simulator(keys)
        .env("CODA_MAINTENANCE_CALENDAR", "calendar.ics")
        .env("CODA_MAINTENANCE_LEAD_SEC", "0.001")
        .env("CODA_AVAILABILITY_INTERVAL_SEC", "0.05")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_holds_what_comes_and_ends_by_itself() {
    let mut host = with_calendar("").prepare().await;
    write(&host, &calendar(&[]));
    host.start().await;
    host.good_job_goes_through("before").await;
    // Times of a calendar are whole seconds.
    write(&host, &calendar(&[event(0, 4, "warm-up"), event(3600, 7200, "later")]));
    eventually("the window is there", async || host.ready().await.0 == 503).await;
    let ready = host.ready().await.1;
    assert_eq!(
        (&ready["hold"]["state"], &ready["hold"]["note"]),
        (&"maintenance".into(), &"warm-up".into()),
        "{ready}"
    );
    assert_eq!(host.metric("coda_host_held{reason=\"maintenance\"}").await, 1);
    let runs = host.runs().await;
    host.submit("J1", &example(), 10).await;
    let said = host.cli(&["maintenance"]).await;
    assert!(
        said.code == 0 && said.out.contains("warm-up  (now)") && said.out.contains("later"),
        "{}",
        said.text()
    );
    assert_eq!(host.runs().await, runs, "nothing has begun");
    assert_eq!(host.delivered("J1").await["status"], "completed");
    let ready = host.ready().await.1;
    assert_eq!(ready["next_maintenance"]["summary"], "later", "{ready}");
    assert!(host.cli(&["status"]).await.out.contains("later"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_would_overlap_a_window_waits_until_it_is_over() {
    let mut host = with_calendar("execution_time_ms: 3000").prepare().await;
    write(&host, &calendar(&[]));
    host.start().await;
    // Now it is known how long such a circuit takes.
    host.submit("J0", &example(), 10).await;
    host.delivered("J0").await;
    write(&host, &calendar(&[event(2, 4, "warm-up")]));
    host.wait_log("the maintenance calendar is read").await;
    eventually("the window is known", async || {
        host.ready().await.1["next_maintenance"]["summary"] == "warm-up"
    })
    .await;
    tokio::time::timeout(Duration::from_secs(20), async {
        host.submit("J1", &example(), 10).await;
        host.delivered("J1").await;
    })
    .await
    .expect("it runs after the window");
    let log = host.log();
    let began = log.rfind("in maintenance until").expect("the window began");
    let ran = log.rfind("running job_id=\"J1\"").expect("J1 ran");
    let over = log.rfind("jobs are claimed and run again").expect("the window is over");
    assert!(began < over && over < ran, "J1 ran before or in the window");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_calendar_keeps_the_last_good_one_and_is_told() {
    let mut host = with_calendar("").prepare().await;
    write(&host, &calendar(&[event(0, 3600, "warm-up")]));
    host.launch();
    host.wait_log("in maintenance until").await;
    write(&host, "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\n");
    host.wait_log("the maintenance calendar can't be used; its last good state counts").await;
    assert_eq!(host.ready().await.1["hold"]["state"], "maintenance");
    let said = host.cli(&["maintenance"]).await;
    assert!(said.code == 2 && said.err.contains("calendar.ics"), "{}", said.text());
    write(&host, &calendar(&[]));
    host.wait_ready().await;
    host.good_job_goes_through("J1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_beyond_a_limit_of_the_site_is_refused_with_its_name() {
    let host = Plan::simulator("execution_time_ms: 300")
        .env("CODA_MAX_SHOTS", "100")
        .env("CODA_MAX_GATES", "5")
        .env("CODA_MAX_RUN_SEC", "1")
        .start()
        .await;
    host.submit("J1", &example(), 101).await;
    assert!(host.failure("J1").await.contains("CODA_MAX_SHOTS"));
    host.submit("J2", &coda_host_tests::ghz(5), 10).await;
    assert!(host.failure("J2").await.contains("CODA_MAX_GATES"));
    // As long as the last one, and ten times as long with ten times as many shots.
    host.submit("J3", &example(), 10).await;
    assert_eq!(host.delivered("J3").await["status"], "completed");
    host.submit("J4", &example(), 100).await;
    assert!(host.failure("J4").await.contains("CODA_MAX_RUN_SEC"));
    assert_eq!(host.runs().await, 1);
}
