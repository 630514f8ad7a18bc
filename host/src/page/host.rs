//! What a host's page shows, from one model of plain data.
//!
//! Customers' results are not shown, and of a callback only its origin. What changes by itself with the time (how long ago,
//! how long yet) is written as a moment, so that a section that stands still is not sent again.

mod hour;
mod now;
mod recent;

use std::sync::Arc;

use maud::{Markup, html};
use time::OffsetDateTime;

use super::draw::DeviceGraph;
use super::shell::Section;
use super::text::{count, counted, elapsed, moment};
use crate::activity::ActivityView;
use crate::activity::parts::{Part, PartState};
use crate::executor::{ActivePlugin, PluginInfo};
use crate::state::db::{KeptEntry, KeptKind, KeptOverview};

pub use recent::{JobPageModel, job_document};

/// Everything that the page shows.
pub struct HostModel {
    pub now: OffsetDateTime,
    pub started: OffsetDateTime,
    /// Why no jobs are taken, in the words of `/ready`.
    pub reasons: Vec<String>,
    pub qpu_id: Option<String>,
    /// `None` until the plugin is loaded.
    pub executor: Option<ExecutorModel>,
    pub activity: ActivityView,
    /// Jobs that were read ahead.
    pub waiting: usize,
    /// What waits for the operator, or why that can't be told; `None` without a cloud.
    pub kept: Option<Arc<Result<KeptOverview, String>>>,
    pub peers: Option<PeersModel>,
    /// Only in `coda-host dev`.
    pub sandbox: Option<SandboxModel>,
}

/// The plugin and its device.
pub struct ExecutorModel {
    pub active: Arc<ActivePlugin>,
    pub graph: Arc<DeviceGraph>,
    pub slots: usize,
    pub slots_busy: usize,
}

/// The peer network as this host sees it.
pub struct PeersModel {
    pub peer_id: String,
    pub addresses: Vec<String>,
    pub connected: usize,
    pub accepted: u64,
    pub declined: u64,
    pub completed: u64,
    pub failed: u64,
    pub lent: Vec<LentModel>,
}

/// A slot that is lent.
pub struct LentModel {
    pub owner: String,
    pub reservation_id: String,
    pub executes: bool,
    /// `None` for a time beyond the calendar.
    pub until: Option<OffsetDateTime>,
}

/// The sandbox of `coda-host dev`.
pub struct SandboxModel {
    /// Its last jobs with their counts, the newest first; or why they can't be had.
    pub results: Result<Vec<SandboxResult>, String>,
}

/// A result of the sandbox.
pub struct SandboxResult {
    pub job_id: String,
    /// Outcome and how often it was measured, the most frequent first.
    pub counts: Vec<(String, u64)>,
}

impl HostModel {
    /// The sections in the order of the page.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = vec![self.state(), now::section(self), hour::section(self), self.parts()];
        sections.extend(self.sandbox.as_ref().map(sandbox));
        sections.extend(self.executor.as_ref().map(|executor| self.device(executor)));
        sections.extend(hour::gauges(self));
        sections.extend(self.kept.as_deref().map(kept));
        sections.extend(self.peers.as_ref().map(|peers| self.peers(peers)));
        sections.push(recent::section(self));
        sections
    }

    /// Whether it works.
    fn state(&self) -> Section {
        let running = self.activity.in_flight.iter().filter(|job| job.step() == "running").count() as u64;
        let (class, headline) = match (&self.reasons[..], running, &self.executor) {
            ([], 0, _) if self.qpu_id.is_none() => ("good", "Ready, lending slots to peers".into()),
            ([], 0, _) => ("good", "Ready, waiting for jobs".into()),
            ([], n, _) => ("good", format!("Running {}", counted(n, "job", "jobs"))),
            (_, _, None) => ("waits", "Starting".into()),
            (_, 0, _) => ("bad", "Not ready".into()),
            (_, n, _) => ("bad", format!("Not ready; {} still running", counted(n, "job", "jobs"))),
        };
        let name = self.executor.as_ref().map_or("", |executor| executor.active.device.name.as_str());
        let content = html! {
            p.headline role="status" aria-live="polite" {
                span class={ "dot " (class) } aria-hidden="true" {}
                span { (headline) }
            }
            @if !self.reasons.is_empty() {
                ul.reasons { @for reason in &self.reasons { li { (reason) } } }
            }
            p.quiet {
                @if !name.is_empty() { strong { (name) } " · " }
                @if let Some(qpu) = &self.qpu_id { "QPU " code { (qpu) } " · " }
                "up " (elapsed(self.started, self.now))
            }
        };
        Section::new("state", "State", &format!("wide state {class}"), content)
    }

    /// The parts that the host depends on.
    fn parts(&self) -> Section {
        let content = html! {
            @if self.activity.parts.all().next().is_none() { p.quiet { "Nothing is known yet." } }
            dl.parts {
                @for (name, part) in self.activity.parts.all() {
                    dt { (name.title()) }
                    dd { (self.part(part)) }
                }
            }
        };
        Section::new("parts", "Connections", "narrow", content)
    }

    fn part(&self, part: &Part) -> Markup {
        match &part.state {
            PartState::Works(at) => html! {
                (mark("good", "works"))
                @if let Some(at) = at { span.quiet { (moment(*at, self.now)) } }
                @else { span.quiet { "since " (moment(part.since, self.now)) } }
            },
            PartState::Fails(why) => html! {
                (mark("bad", "fails"))
                span.quiet {
                    @match part.last_success {
                        Some(at) => { "last worked " (moment(at, self.now)) }
                        None => "has not worked since the start",
                    }
                }
                p.why { (why) }
            },
            PartState::Unused(why) => html! { (mark("off", why)) },
        }
    }

    /// The device and its plugin.
    fn device(&self, executor: &ExecutorModel) -> Section {
        let (device, info) = (&executor.active.device, &executor.active.info);
        let busy = now::busy_qubits(&self.activity.in_flight);
        let targets: Vec<&str> = device.targets.iter().map(|t| t.name()).collect();
        let content = html! {
            div.device {
                figure {
                    (executor.graph.draw(&busy))
                    @if device.connectivity.edges().is_none() {
                        figcaption.quiet { "The plugin reports no couplings." }
                    }
                }
                dl.facts {
                    dt { "Device" } dd { (device.name) }
                    dt { "Qubits" } dd { (device.num_qubits) }
                    dt { "Gate sets" } dd { (targets.join(", ")) }
                    dt { "Slots" } dd { (executor.slots_busy) " of " (executor.slots) " in use" }
                    @if let Some(most) = device.max_shots { dt { "Most shots" } dd { (count(most.into())) } }
                    dt { "Plugin" } dd { (info.name) " " (info.version) " " span.quiet { "(" (info.kind.name()) ", " (info.vendor) ")" } }
                    (origin(info))
                }
            }
        };
        Section::new("device", "Device", "wide", content)
    }

    /// The peer network.
    fn peers(&self, peers: &PeersModel) -> Section {
        let content = html! {
            dl.facts {
                dt { "Peer id" } dd { code { (peers.peer_id) } }
                dt { "Connected" } dd { (counted(peers.connected as u64, "peer", "peers")) }
                dt { "Reservations" } dd { (count(peers.accepted)) " accepted, " (count(peers.declined)) " declined" }
                dt { "Executions" } dd { (count(peers.completed)) " completed, " (count(peers.failed)) " failed" }
            }
            @if peers.lent.is_empty() { p.quiet { "No slot is lent now." } }
            @else {
                div.table tabindex="0" role="region" aria-label="Slots that are lent" {
                    table {
                        thead { tr { th scope="col" { "Lent to" } th scope="col" { "Reservation" } th scope="col" { "State" } th scope="col" { "Until" } } }
                        tbody {
                            @for slot in &peers.lent {
                                tr data-key=(slot.reservation_id) {
                                    td { code { (slot.owner) } }
                                    td { code { (slot.reservation_id) } }
                                    td { (if slot.executes { "executing" } else { "reserved" }) }
                                    td { @if let Some(until) = slot.until { (moment(until, self.now)) } }
                                }
                            }
                        }
                    }
                }
            }
        };
        Section::new("peers", "Peer network", "", content)
    }
}

/// Where the executor's code comes from.
fn origin(info: &PluginInfo) -> Markup {
    match &info.python {
        Some(python) => html! {
            dt { "Code" } dd { code { (python.facts.factory) } }
            dt { "Interpreter" } dd { code { (python.interpreter.path.display()) } " " span.quiet { "Python " (python.facts.python) } }
        },
        None => html! {
            dt { "Library" } dd { code { (info.path.display()) } }
        },
    }
}

/// What waits for the operator, with the command for each kind.
fn kept(kept: &Result<KeptOverview, String>) -> Section {
    let command = |entry: &KeptEntry| {
        let id = if entry.job_id.is_empty() { &entry.message_id } else { &entry.job_id };
        match entry.kind {
            KeptKind::Undelivered => "coda-host logs".to_string(),
            KeptKind::Refused => format!("coda-host results retry {id}"),
            KeptKind::DeadLetter => format!("coda-host results show {id}"),
        }
    };
    let content = match kept {
        Err(error) => html! { p.why { "What is kept can't be read: " (error) } },
        Ok(kept) => html! {
            dl.figures {
                div { dt { "Undelivered" } dd { (count(kept.undelivered)) } }
                div { dt { "Refused" } dd { (count(kept.refused)) } }
                div { dt { "Dead letters" } dd { (count(kept.dead_letters)) } }
            }
            @if kept.first.is_empty() { p.quiet { "Nothing is stuck." } }
            @else {
                div.table tabindex="0" role="region" aria-label="What is kept" {
                    table {
                        thead { tr { th scope="col" { "Job" } th scope="col" { "Kind" } th scope="col" { "Attempts" } th scope="col" { "Why" } th scope="col" { "Command" } } }
                        tbody {
                            @for entry in &kept.first {
                                tr data-key=(entry.message_id) {
                                    td { code { (if entry.job_id.is_empty() { &entry.message_id } else { &entry.job_id }) } }
                                    td { (entry.kind.name()) }
                                    td.number { (entry.attempts) }
                                    td.wide-text { (crate::model::cut(&entry.why, 200)) }
                                    td { code { (command(entry)) } }
                                }
                            }
                        }
                    }
                }
                @let more = (kept.undelivered + kept.refused + kept.dead_letters).saturating_sub(kept.first.len() as u64);
                @if more > 0 { p.quiet { "and " (count(more)) " more: " code { "coda-host results list" } } }
            }
        },
    };
    Section::new("kept", "Waiting for you", "", content)
}

/// The sandbox: an example to send, and the last results.
fn sandbox(sandbox: &SandboxModel) -> Section {
    let content = html! {
        form data-send="/sandbox/jobs" data-done="Sent" data-keep {
            label for="circuit" { "Circuit" }
            select #circuit name="circuit" {
                option value="bell" { "bell: two qubits, entangled" }
                option value="ghz5" { "ghz5: five qubits, all or none" }
                option value="random12" { "random12: twelve qubits, eight random layers" }
            }
            label for="shots" { "Shots" }
            input #shots name="shots" type="number" min="1" max="100000" value="1000" required;
            button type="submit" { "Run it" }
            span role="status" {}
        }
        noscript { p.quiet { "The form needs scripts. In a terminal: " code { "coda-host submit CIRCUIT.json --wait" } } }
        @match &sandbox.results {
            Err(error) => p.why { (error) },
            Ok(results) if results.is_empty() => p.quiet { "No result yet." },
            Ok(results) => div.results {
                @for result in results {
                    figure data-key=(result.job_id) {
                        figcaption { "Counts of " code { (result.job_id) } }
                        (histogram(&result.counts))
                    }
                }
            },
        }
    };
    Section::new("sandbox", "Sandbox", "wide", content)
}

/// Counts as bars, the most frequent outcomes first.
pub fn histogram(counts: &[(String, u64)]) -> Markup {
    const SHOWN: usize = 8;
    let total: u64 = counts.iter().map(|(_, n)| n).sum();
    let share = |n: u64| n as f64 / total.max(1) as f64;
    let most = counts.iter().map(|(_, n)| *n).max().unwrap_or(0).max(1);
    html! {
        table.histogram {
            tbody {
                @for (outcome, n) in counts.iter().take(SHOWN) {
                    tr data-key=(outcome) {
                        th scope="row" { code { (outcome) } }
                        td { (super::draw::level(*n as f64 / most as f64, "filled")) }
                        td.number { (count(*n)) }
                        td.number.quiet { (format!("{:.1} %", 100.0 * share(*n))) }
                    }
                }
            }
        }
        @if counts.len() > SHOWN { p.quiet { "and " (counts.len() - SHOWN) " more outcomes" } }
    }
}

/// A word with a mark: never the colour alone.
pub fn mark(class: &str, word: &str) -> Markup {
    html! { span class={ "mark-word " (class) } { span class={ "dot " (class) } aria-hidden="true" {} (word) } }
}
