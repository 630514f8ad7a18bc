//! What a coordinator's pages show: the overview from one model of plain data, and one job (`job`).

pub mod job;

use maud::{Markup, html};
use time::OffsetDateTime;

use super::host::mark;
use super::shell::Section;
use super::text::{count, counted, elapsed, moment};
use crate::coordinator::job_view::{JobStatus, JobSummary};
use crate::model::cut;

/// Peers that are listed: the table is sent again with each heartbeat.
const MAX_PEERS: usize = 100;

/// Circuits that the form can be filled with.
const EXAMPLES: [(&str, &str); 3] = [
    (
        "Bell pair",
        "OPENQASM 3.0;\ninclude \"stdgates.inc\";\nqubit[2] q;\nbit[2] c;\nh q[0];\ncx q[0], q[1];\nc = measure q;\n",
    ),
    (
        "GHZ state of eight qubits",
        "OPENQASM 3.0;\ninclude \"stdgates.inc\";\nqubit[8] q;\nbit[8] c;\nh q[0];\nfor int i in [0:6] { cx q[i], q[i + 1]; }\nc = measure q;\n",
    ),
    (
        "Fourier transform of three qubits",
        "OPENQASM 3.0;\ninclude \"stdgates.inc\";\nqubit[3] q;\nbit[3] c;\nx q[0];\nh q[2];\ncp(pi/2) q[1], q[2];\ncp(pi/4) q[0], q[2];\nh q[1];\ncp(pi/2) q[0], q[1];\nh q[0];\nswap q[0], q[2];\nc = measure q;\n",
    ),
];

/// Everything that the overview shows.
pub struct CoordinatorModel {
    pub now: OffsetDateTime,
    pub started: OffsetDateTime,
    pub peer_id: String,
    /// Why no job can be run, in the words of `/ready`.
    pub reasons: Vec<String>,
    pub connected: usize,
    /// Peers that may be planned on, those on trial too.
    pub usable: usize,
    pub peers: Vec<PeerModel>,
    /// The newest jobs of the chosen status, or why they can't be told.
    pub jobs: Result<Vec<JobSummary>, String>,
    pub filter: Option<JobStatus>,
}

/// One peer.
pub struct PeerModel {
    pub peer_id: String,
    /// One word: connected, stale, or what its breaker is.
    pub state: &'static str,
    pub class: &'static str,
    pub services: Vec<String>,
    pub reservations: u64,
    pub executions: u64,
    pub heard: OffsetDateTime,
    pub penalty: f64,
    /// The lowest fidelity that it reported.
    pub fidelity: Option<f64>,
    pub trust_tier: Option<String>,
}

impl CoordinatorModel {
    /// The sections in the order of the page.
    pub fn sections(&self) -> Vec<Section> {
        vec![self.state(), self.jobs(), submit(), self.peers()]
    }

    fn state(&self) -> Section {
        let usable = self.usable as u64;
        let (class, headline) = match self.reasons.is_empty() {
            true => ("good", format!("Ready, with {}", counted(usable, "peer", "peers"))),
            false => ("bad", "Not ready".into()),
        };
        let content = html! {
            p.headline role="status" aria-live="polite" {
                span class={ "dot " (class) } aria-hidden="true" {}
                span { (headline) }
            }
            @if !self.reasons.is_empty() {
                ul.reasons { @for reason in &self.reasons { li { (reason) } } }
            }
            p.quiet { "Coordinator " code { (self.peer_id) } " · up " (elapsed(self.started, self.now)) }
        };
        Section::new("state", "State", &format!("wide state {class}"), content)
    }

    fn jobs(&self) -> Section {
        let content = html! {
            nav.filter aria-label="Jobs of one status" {
                (self.filter_link(None))
                @for status in JobStatus::ALL { (self.filter_link(Some(status))) }
            }
            @match &self.jobs {
                Err(error) => p.why { (error) },
                Ok(jobs) if jobs.is_empty() => p.quiet { "No such job." },
                Ok(jobs) => div.table tabindex="0" role="region" aria-label="Jobs" {
                    table {
                        thead { tr {
                            th scope="col" { "Job" } th scope="col" { "Status" } th.number scope="col" { "Shots" }
                            th scope="col" { "Blocks" } th scope="col" { "Submitted" } th scope="col" { "Ended" } th scope="col" { "Error" }
                        } }
                        tbody { @for job in jobs { (self.row(job)) } }
                    }
                },
            }
        };
        Section::new("jobs", "Jobs", "wide", content)
    }

    fn filter_link(&self, status: Option<JobStatus>) -> Markup {
        let (name, href) = match status {
            None => ("all", "/".into()),
            Some(status) => (status.name(), format!("/?status={}", status.name())),
        };
        let current = (status == self.filter).then_some("page");
        html! { a href=(href) aria-current=[current] { (name) } " " }
    }

    fn row(&self, job: &JobSummary) -> Markup {
        let at = |text: &Option<String>| text.as_deref().and_then(parsed);
        html! {
            tr data-key=(job.job_id) {
                td { a.job href={ "/jobs/" (job.job_id) } { (job.job_id) } }
                td { (mark(status_class(job.status), job.status.name())) }
                td.number { (count(job.shots.into())) }
                td {
                    @if let Some(progress) = job.progress.filter(|p| p.blocks > 0) {
                        (progress.blocks_completed) " of " (progress.blocks)
                    }
                }
                td { @if let Some(at) = at(&job.submitted_at) { (moment(at, self.now)) } }
                td { @if let Some(at) = at(&job.finished_at) { (moment(at, self.now)) } }
                td.wide-text { (cut(job.error.as_deref().unwrap_or_default(), 160)) }
            }
        }
    }

    fn peers(&self) -> Section {
        let content = html! {
            p.quiet { (counted(self.connected as u64, "connection", "connections")) }
            @if self.peers.is_empty() { p.quiet { "No peer was heard of yet." } }
            @else {
                div.table tabindex="0" role="region" aria-label="Peers" {
                    table {
                        thead { tr {
                            th scope="col" { "Peer" } th scope="col" { "State" } th.number scope="col" { "Reserved" }
                            th.number scope="col" { "Executing" } th.number scope="col" { "Penalty" } th.number scope="col" { "Fidelity" }
                            th scope="col" { "Heard" } th scope="col" { "Services" }
                        } }
                        tbody {
                            @for peer in self.peers.iter().take(MAX_PEERS) {
                                tr data-key=(peer.peer_id) {
                                    td { code { (peer.peer_id) } }
                                    td { (mark(peer.class, peer.state)) }
                                    td.number { (peer.reservations) }
                                    td.number { (peer.executions) }
                                    td.number { (format!("{:.2}", peer.penalty)) }
                                    td.number { (peer.fidelity.map_or_else(|| "-".into(), |f| format!("{f:.4}"))) }
                                    td { (moment(peer.heard, self.now)) }
                                    td.wide-text { (cut(&peer.services.join(", "), 200)) }
                                }
                            }
                        }
                    }
                }
            }
            @if self.peers.len() > MAX_PEERS {
                p.quiet { "and " (self.peers.len() - MAX_PEERS) " more: " code { "coda-host peers" } }
            }
        };
        Section::new("peers", "Peers", "wide", content)
    }
}

/// The form that submits a circuit.
fn submit() -> Section {
    let content = html! {
        form data-send="/api/v1/jobs" data-done="Accepted" data-keep {
            label for="example" { "Example" }
            select #example data-fills="qasm" {
                option { "your own" }
                @for (name, circuit) in EXAMPLES { option data-text=(circuit) { (name) } }
            }
            label for="shots" { "Shots" }
            input #shots name="shots" type="number" min="1" max="10000000" value="1024" required;
            label.block for="qasm" { "OpenQASM 2 or 3" }
            textarea #qasm name="qasm" spellcheck="false" required {}
            button type="submit" { "Submit" }
            span role="status" {}
        }
        noscript { p.quiet { "The form needs scripts. In a terminal: " code { "coda-host coordinate CIRCUIT.qasm" } } }
    };
    Section::new("submit", "Submit a circuit", "wide", content)
}

/// What the token is needed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenUse {
    /// To see anything.
    Read,
    /// To submit and to cancel: it is asked for when that is refused.
    Change,
}

/// Asks for the token; shown by the script when the service does.
pub fn sign_in(token_use: TokenUse) -> Section {
    let (purpose, class) = match token_use {
        TokenUse::Read => ("What this service shows needs its token", "wide sign-in"),
        TokenUse::Change => {
            ("To submit and to cancel needs the token of this service", "wide sign-in to-change")
        }
    };
    let content = html! {
        p { (purpose) " (CODA_API_TOKEN). It is kept until this tab is closed." }
        form #sign-in {
            label for="token" { "Token" }
            input #token type="password" autocomplete="current-password" required;
            button type="submit" { "Show" }
        }
        noscript { p.quiet { "This page needs scripts where a token is set." } }
    };
    Section::new("sign-in-card", "Sign in", class, content)
}

pub(super) fn parsed(text: &str) -> Option<OffsetDateTime> {
    OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).ok()
}

pub(super) fn status_class(status: JobStatus) -> &'static str {
    match status {
        JobStatus::Completed => "good",
        JobStatus::Failed => "bad",
        JobStatus::Cancelled => "off",
        JobStatus::Queued | JobStatus::Running => "waits",
    }
}
