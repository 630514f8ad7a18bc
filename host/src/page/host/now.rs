//! What runs and what waits.

use std::collections::BTreeSet;

use coda_plugin_abi::GateKind;
use maud::{Markup, html};

use super::HostModel;
use crate::activity::jobs::JobTrace;
use crate::page::shell::Section;
use crate::page::text::{count, counted, elapsed};

/// Rows of each list.
const SHOWN: usize = 20;

/// The qubits that the running jobs use.
pub fn busy_qubits(in_flight: &[JobTrace]) -> BTreeSet<u16> {
    let running = in_flight.iter().filter(|job| job.step() == "running").filter_map(|job| job.live.as_ref());
    // A bit for each qubit: circuits may have a million gates, and qubits are at most 50.
    let (mut busy, bit) = (0u64, |qubit: u16| 1u64.checked_shl(qubit.into()).unwrap_or(0));
    for live in running {
        for gate in live.program.gates() {
            busy |= bit(gate.q0);
            if GateKind::from_code(gate.kind).is_some_and(|kind| kind.num_qubits() == 2) {
                busy |= bit(gate.q1);
            }
        }
        live.program.measurements().iter().for_each(|qubit| busy |= bit(*qubit));
    }
    (0..64).filter(|qubit| busy & bit(*qubit) != 0).collect()
}

pub fn section(model: &HostModel) -> Section {
    let jobs = &model.activity.in_flight;
    let running: Vec<&JobTrace> = jobs.iter().filter(|job| job.step() == "running").collect();
    let waiting: Vec<&JobTrace> = jobs.iter().filter(|job| job.step() == "waiting").collect();
    let read_ahead = model.waiting.max(waiting.len());
    let content = html! {
        @if running.is_empty() { p.quiet { "Nothing runs." } }
        ul.running { @for job in running.iter().take(SHOWN) { (row(model, job)) } }
        @if running.len() > SHOWN { p.quiet { "and " (running.len() - SHOWN) " more" } }
        h3 { "Waiting" }
        @if read_ahead == 0 { p.quiet { "No job waits here." } }
        @else {
            p.quiet { (counted(read_ahead as u64, "job is", "jobs are")) " read ahead" }
            ol.waiting {
                @for job in waiting.iter().take(SHOWN) {
                    li data-key=(job.job_id) { (link(job)) " " span.quiet { (size(job)) } }
                }
            }
        }
    };
    Section::new("now", "Now", "narrow", content)
}

fn row(model: &HostModel, job: &JobTrace) -> Markup {
    let progress = job.live.as_ref().map(|live| live.context.progress()).filter(|(_, total)| *total > 0);
    html! {
        li data-key=(job.job_id) {
            p {
                (link(job)) " "
                @if let Some(slot) = job.slot { span.quiet { "slot " (slot) } " " }
                @if let Some(started) = job.started { span.elapsed { (elapsed(started, model.now)) } }
            }
            p.quiet { (size(job)) }
            @if let Some((done, total)) = progress {
                div.progress {
                    progress max=(total) value=(done.min(total)) aria-label={ "Progress of job " (job.job_id) } {}
                    span { (format!("{:.0} %", 100.0 * done.min(total) as f64 / total as f64)) }
                }
            }
        }
    }
}

/// The job's id, with its page behind it.
pub fn link(job: &JobTrace) -> Markup {
    html! { a.job href={ "/jobs/" (url_escaped(&job.job_id)) } { (job.job_id) } }
}

/// The size of its circuit.
pub fn size(job: &JobTrace) -> String {
    let Some(size) = job.size else { return String::new() };
    format!(
        "{} shots, {}, {}",
        count(size.shots.into()),
        counted(size.qubits.into(), "qubit", "qubits"),
        counted(size.gates as u64, "gate", "gates")
    )
}

/// A job's id in a path.
fn url_escaped(id: &str) -> String {
    url::form_urlencoded::byte_serialize(id.as_bytes()).collect::<String>().replace('+', "%20")
}
