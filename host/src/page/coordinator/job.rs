//! One job of a coordinator: its blocks over time, what came of each, its counts, and the reservations behind it.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use time::OffsetDateTime;

use super::{parsed, status_class};
use crate::coordinator::job_view::{BlockState, BlockView, CoordinatorJob};
use crate::model::cut;
use crate::page::host::{histogram, mark};
use crate::page::shell::Section;
use crate::page::text::{count, counted, moment, seconds};
use crate::reservation::journal::JobFact;

/// Blocks that are listed and drawn.
const MAX_BLOCKS: usize = 200;
/// Peers that have a lane each.
const MAX_LANES: usize = 40;

/// How an attempt is drawn, and what that means.
const CLASSES: [(&str, &str); 5] = [
    ("completed", "completed"),
    ("passed-on", "declined, or another peer was asked"),
    ("failed", "failed"),
    ("abandoned", "abandoned"),
    ("running", "running"),
];

/// What the page of a job shows.
pub struct JobModel {
    pub now: OffsetDateTime,
    pub job: CoordinatorJob,
    /// Its facts with their times, in microseconds since 1970.
    pub facts: Vec<(i64, JobFact)>,
    /// The events of each reservation: what, and when in microseconds since 1970.
    pub reservations: Vec<(String, Vec<(&'static str, i64)>)>,
}

/// One attempt of a block at a peer.
struct Attempt<'a> {
    block: &'a str,
    number: u32,
    peer: &'a str,
    from: i64,
    to: i64,
    class: &'static str,
}

impl JobModel {
    /// The sections in the order of the page.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = vec![self.summary()];
        sections.extend(self.counts());
        sections.push(self.timeline());
        sections.push(self.blocks());
        sections.extend(self.reservations());
        sections
    }

    fn summary(&self) -> Section {
        let job = &self.job;
        let (from, to) =
            (job.submitted_at.as_deref().and_then(parsed), job.finished_at.as_deref().and_then(parsed));
        let progress = job.progress;
        let content = html! {
            p.headline role="status" aria-live="polite" { (mark(status_class(job.status), job.status.name())) }
            @if progress.blocks > 0 && !job.status.is_final() {
                div.progress {
                    progress max=(progress.blocks) value=(progress.blocks_completed) aria-label="Blocks that are done" {}
                    span { (progress.blocks_completed) " of " (progress.blocks) " blocks, stage " (progress.stage) " of " (progress.stages) }
                }
            }
            dl.facts {
                dt { "Shots" } dd { (count(job.shots.into())) }
                @if let Some(plan) = &job.plan {
                    dt { "Circuit" }
                    dd {
                        (counted(plan.qubits.into(), "qubit", "qubits")) ", " (counted(plan.fragments.len() as u64, "operation", "operations"))
                        " in " (counted(progress.blocks as u64, "block", "blocks")) " of " (counted(progress.stages as u64, "stage", "stages"))
                    }
                }
                @if let Some(at) = from { dt { "Submitted" } dd { (moment(at, self.now)) } }
                @if let Some(at) = to {
                    dt { "Ended" }
                    dd { (moment(at, self.now)) @if let Some(from) = from { " " span.quiet { "after " (seconds((at - from).as_seconds_f64())) } } }
                }
                @if let Some(fidelity) = job.result.as_ref().and_then(|r| r.fidelity) { dt { "Fidelity" } dd { (format!("{fidelity:.6}")) } }
                @if let Some(error) = &job.error { dt { "Error" } dd.why { (error) } }
            }
            @if !job.status.is_final() {
                form data-send={ "/api/v1/jobs/" (job.job_id) } data-method="DELETE" data-done="Cancelled" data-keep {
                    button.plain type="submit" { "Cancel the job" }
                    span role="status" {}
                }
            }
            p { a href="/" { "To the overview" } }
        };
        Section::new("job", &format!("Job {}", job.job_id), "wide", content)
    }

    fn counts(&self) -> Option<Section> {
        let result = self.job.result.as_ref()?;
        let mut counts: Vec<(String, u64)> =
            result.counts.iter().map(|(outcome, n)| (outcome.clone(), u64::from(*n))).collect();
        counts.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        Some(Section::new("counts", "Counts", "wide", histogram(&counts)))
    }

    /// The attempts of every block, from the facts.
    fn attempts(&self) -> Vec<Attempt<'_>> {
        let last = self.facts.last().map_or(0, |(at, _)| *at);
        let now = i64::try_from(self.now.unix_timestamp_nanos() / 1000).unwrap_or(last);
        let end = if self.job.status.is_final() { last } else { now.max(last) };
        let open_class = if self.job.status.is_final() { "abandoned" } else { "running" };
        let mut attempts: Vec<Attempt<'_>> = Vec::new();
        // The attempt of each block that has no end yet.
        let mut open: BTreeMap<&str, usize> = BTreeMap::new();
        for (at, fact) in &self.facts {
            let (block, class) = match fact {
                // The next attempt begins where the one before came to nothing.
                JobFact::Attempted { block_id, .. } => (block_id, "passed-on"),
                JobFact::BlockFailed { block_id, .. } => (block_id, "failed"),
                JobFact::BlockCompleted { block_id, .. } => (block_id, "completed"),
                _ => continue,
            };
            if let Some(place) = open.remove(block.as_str()) {
                (attempts[place].to, attempts[place].class) = (*at, class);
            }
            if let JobFact::Attempted { attempt, peer_id, .. } = fact
                && attempts.len() < MAX_BLOCKS
            {
                open.insert(block, attempts.len());
                attempts.push(Attempt {
                    block,
                    number: *attempt,
                    peer: peer_id,
                    from: *at,
                    to: end,
                    class: open_class,
                });
            }
        }
        attempts
    }

    /// A lane for each peer, and in it the attempts that it had.
    fn timeline(&self) -> Section {
        let attempts = self.attempts();
        let lanes: Vec<&str> =
            attempts.iter().map(|a| a.peer).collect::<BTreeSet<_>>().into_iter().take(MAX_LANES).collect();
        let content = match (attempts.first(), attempts.iter().map(|a| a.to).max()) {
            (Some(first), Some(to)) => self.lanes(&attempts, &lanes, first.from, to),
            _ => html! { p.quiet { "No block was begun yet." } },
        };
        Section::new("timeline", "Blocks over time", "wide", content)
    }

    fn lanes(&self, attempts: &[Attempt<'_>], lanes: &[&str], from: i64, to: i64) -> Markup {
        const NAME: f64 = 120.0;
        const WIDTH: f64 = 1000.0;
        const LANE: f64 = 26.0;
        let span = (to - from).max(1) as f64;
        let x = |at: i64| NAME + (WIDTH - NAME) * ((at - from) as f64 / span).clamp(0.0, 1.0);
        let height = LANE * lanes.len() as f64;
        let number = |value: f64| format!("{:.1}", value);
        html! {
            div.table tabindex="0" role="region" aria-label="Blocks over time, a row for each peer" {
                svg.plan viewBox={ "0 0 " (WIDTH) " " (number(height)) } role="img"
                    aria-label={ (counted(attempts.len() as u64, "attempt", "attempts")) " at " (counted(lanes.len() as u64, "peer", "peers")) } {
                    @for (row, peer) in lanes.iter().enumerate() {
                        @let y = LANE * row as f64;
                        text x="0" y=(number(y + 17.0)) { (short(peer)) title { (peer) } }
                        line.lane x1="0" x2=(WIDTH) y1=(number(y + LANE - 0.5)) y2=(number(y + LANE - 0.5)) {}
                        @for attempt in attempts.iter().filter(|a| a.peer == *peer) {
                            g {
                                title {
                                    (attempt.block) ", attempt " (attempt.number) ", " (attempt.class) ", "
                                    (seconds((attempt.to - attempt.from) as f64 / 1e6))
                                }
                                rect class={ "block " (attempt.class) } x=(number(x(attempt.from))) y=(number(y + 4.0))
                                    width=(number((x(attempt.to) - x(attempt.from)).max(2.0))) height=(LANE - 9.0) rx="2" {}
                            }
                        }
                    }
                }
            }
            div.axis-labels.quiet { span { "0" } span { (seconds(span / 1e6)) } }
            ul.legend aria-hidden="true" {
                @for (class, name) in CLASSES { li { span class={ "swatch " (class) } {} (name) } }
            }
        }
    }

    fn blocks(&self) -> Section {
        let blocks = &self.job.blocks;
        let content = html! {
            @if blocks.is_empty() { p.quiet { "No block was begun yet." } }
            @else {
                div.table tabindex="0" role="region" aria-label="Blocks" {
                    table {
                        thead { tr {
                            th scope="col" { "Block" } th scope="col" { "State" } th scope="col" { "Peer" } th.number scope="col" { "Attempts" }
                            th.number scope="col" { "Fidelity" } th.number scope="col" { "Latency" } th scope="col" { "Tried before" } th scope="col" { "Error" }
                        } }
                        tbody { @for block in blocks.iter().take(MAX_BLOCKS) { (block_row(block)) } }
                    }
                }
                @if blocks.len() > MAX_BLOCKS { p.quiet { "and " (blocks.len() - MAX_BLOCKS) " more" } }
            }
        };
        Section::new("blocks", "Blocks", "wide", content)
    }

    fn reservations(&self) -> Option<Section> {
        let all = &self.reservations;
        let content = html! {
            div.table tabindex="0" role="region" aria-label="Reservations" {
                table {
                    thead { tr { th scope="col" { "Reservation" } th scope="col" { "Events" } } }
                    tbody {
                        @for (id, events) in all {
                            tr data-key=(id) {
                                td { code { (id) } }
                                td {
                                    @for (n, (event, at)) in events.iter().enumerate() {
                                        @if n > 0 { " → " }
                                        (event)
                                        @if let Some(first) = events.first().filter(|_| n > 0) {
                                            " " span.quiet { "+" (seconds((at - first.1) as f64 / 1e6)) }
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        };
        (!all.is_empty()).then(|| Section::new("reservations", "Reservations", "wide", content))
    }
}

fn block_row(block: &BlockView) -> Markup {
    let class = match block.state {
        BlockState::Completed => "good",
        BlockState::Failed => "bad",
        BlockState::Abandoned => "off",
        BlockState::Waiting | BlockState::Running => "waits",
    };
    let name = match block.state {
        BlockState::Waiting => "waiting",
        BlockState::Running => "running",
        BlockState::Completed => "completed",
        BlockState::Failed => "failed",
        BlockState::Abandoned => "abandoned",
    };
    let before = &block.tried[..block.tried.len().saturating_sub(1)];
    html! {
        tr data-key=(block.block_id) {
            td { code { (block.block_id) } }
            td { (mark(class, name)) }
            td { @if let Some(peer) = &block.peer_id { code title=(peer) { (short(peer)) } } }
            td.number { (block.attempts) }
            td.number { (block.fidelity.map_or_else(|| "-".into(), |f| format!("{f:.4}"))) }
            td.number { (block.latency_ms.map_or_else(|| "-".into(), |ms| seconds(ms / 1e3))) }
            td { @for tried in before { code title=(tried.peer_id) { (short(&tried.peer_id)) } " " } }
            td.wide-text { (cut(block.error.as_deref().unwrap_or_default(), 200)) }
        }
    }
}

/// The end of a peer id, which tells peers apart.
fn short(peer: &str) -> String {
    let from = peer.char_indices().rev().nth(9).map_or(0, |(at, _)| at);
    if from == 0 { peer.into() } else { format!("…{}", &peer[from..]) }
}
