//! The last jobs, and the page of one.

use axum::response::Response;
use maud::{Markup, html};
use time::OffsetDateTime;

use super::{HostModel, mark};
use crate::activity::jobs::JobTrace;
use crate::activity::minutes::JobEnd;
use crate::model::cut;
use crate::page::shell::{PageDocument, Section};
use crate::page::text::{count, moment, seconds};

use super::now::{link, size};

pub fn section(model: &HostModel) -> Section {
    let jobs = &model.activity.ended;
    let delivering: Vec<&JobTrace> = model
        .activity
        .in_flight
        .iter()
        .filter(|job| job.stored.is_some() && job.attempts > 0)
        .take(20)
        .collect();
    let content = html! {
        @if jobs.is_empty() && delivering.is_empty() { p.quiet { "No job has ended yet." } }
        @else {
            div.table.jobs tabindex="0" role="region" aria-label="The last jobs" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Job" } th scope="col" { "Outcome" } th scope="col" { "Ended" }
                            th.number scope="col" { "Shots" } th.number scope="col" { "Qubits" } th.number scope="col" { "Gates" }
                            th.number scope="col" { "Wait" } th.number scope="col" { "Run" } th.number scope="col" { "Attempts" }
                            th scope="col" { "Error" }
                        }
                    }
                    tbody { @for job in delivering.into_iter().chain(jobs) { (row(model.now, job)) } }
                }
            }
        }
    };
    Section::new("recent", "The last jobs", "wide", content)
}

fn row(now: OffsetDateTime, job: &JobTrace) -> Markup {
    let number = |n: Option<u64>| n.map_or_else(|| "-".into(), count);
    let time = |t: Option<std::time::Duration>| t.map_or_else(|| "-".into(), |t| seconds(t.as_secs_f64()));
    let error = job.delivery_error.as_deref().or(job.error.as_deref()).unwrap_or_default();
    html! {
        tr data-key=(job.job_id) {
            td { (link(job)) }
            td { (outcome(job)) }
            td { @if let Some(at) = job.ended { (moment(at, now)) } }
            td.number { (number(job.size.map(|s| s.shots.into()))) }
            td.number { (number(job.size.map(|s| s.qubits.into()))) }
            td.number { (number(job.size.map(|s| s.gates as u64))) }
            td.number { (time(job.waited())) }
            td.number { (time(job.run_time)) }
            td.number { (if job.attempts > 0 { job.attempts.to_string() } else { "-".into() }) }
            td.wide-text title=(error) { (cut(error, 160)) }
        }
    }
}

fn outcome(job: &JobTrace) -> Markup {
    let class = match job.end {
        Some(JobEnd::Completed) => "good",
        Some(JobEnd::Failed | JobEnd::Undeliverable) => "bad",
        Some(JobEnd::Cancelled) => "off",
        None => "waits",
    };
    mark(class, job.step())
}

/// What the page of one job shows.
pub struct JobPageModel<'a> {
    pub now: OffsetDateTime,
    pub job: &'a JobTrace,
}

/// The page of one job: its steps with their times.
pub fn job_document(page: &JobPageModel<'_>) -> Response {
    let job = page.job;
    let in_flight = job.end.is_none();
    let last = match job.end {
        Some(JobEnd::Completed | JobEnd::Failed) | None => "Delivered",
        Some(JobEnd::Cancelled) => "Cancelled",
        Some(JobEnd::Undeliverable) => "Refused by the cloud",
    };
    let steps = [
        ("Claimed", job.claimed),
        ("Executing", job.started),
        ("Answered by the plugin", job.answered),
        ("Stored", job.stored),
        (last, job.ended),
    ];
    // Each step with the one before it that was taken.
    let taken = |step: usize| steps[..step].iter().rev().find_map(|(_, at)| *at);
    let content = html! {
        p.headline data-poll=[in_flight.then_some("")] { (outcome(job)) }
        ol.timeline {
            @for (step, (name, at)) in steps.into_iter().enumerate() {
                li class=(if at.is_some() { "done" } else { "open" }) {
                    strong { (name) } " "
                    @if let Some(at) = at {
                        (moment(at, page.now))
                        @if let Some(before) = taken(step).filter(|before| *before <= at) {
                            " " span.quiet { "after " (seconds((at - before).as_seconds_f64())) }
                        }
                    }
                }
            }
        }
        dl.facts {
            dt { "Circuit" } dd { (if job.size.is_some() { size(job) } else { "not kept over a restart".into() }) }
            @if let Some(slot) = job.slot { dt { "Slot" } dd { (slot) } }
            @if let Some(time) = job.run_time { dt { "Time in the plugin" } dd { (seconds(time.as_secs_f64())) } }
            @if job.attempts > 0 { dt { "Attempts to deliver" } dd { (job.attempts) } }
            @if let Some(error) = &job.error { dt { "Error" } dd.why { (error) } }
            @if let Some(error) = &job.delivery_error { dt { "Last attempt" } dd.why { (error) } }
        }
        p { a href="/" { "To the overview" } }
    };
    let section = Section::new("job", &format!("Job {}", job.job_id), "wide", content);
    PageDocument {
        title: &format!("Job {}", job.job_id),
        subject: "",
        events: None,
        sections: &[section],
        footer: html! { "coda-host " (env!("CARGO_PKG_VERSION")) },
    }
    .render()
}
