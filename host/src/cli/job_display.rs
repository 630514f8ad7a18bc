//! A coordinator's job on the terminal while it runs: a bar with its stages and the peers at work, or, where the output
//! is no terminal, a line for each block that has ended.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

use indicatif::{ProgressBar, ProgressStyle};

use super::terminal::{Terminal, one_line};
use crate::coordinator::job_view::{BlockCounts, BlockState, BlockView};
use crate::error::Failure;
use crate::output;

/// Most peers that are shown below the bar.
const SHOWN_PEERS: usize = 8;
const STYLE: &str = "{prefix} {bar:30} {pos}/{len} blocks, {elapsed_precise}{msg}";

/// What is shown of a job.
pub struct JobDisplay<'a> {
    out: Option<&'a mut Terminal>,
    bar: ProgressBar,
    /// Blocks whose end is shown.
    reported: HashSet<String>,
    /// Blocks that peers are running, by their ids.
    running: BTreeMap<String, String>,
}

impl<'a> JobDisplay<'a> {
    /// For a person; a bar where everything that is written reaches a terminal.
    pub fn new(out: &'a mut Terminal) -> JobDisplay<'a> {
        match output::prints_to_terminal() && output::notices_to_terminal() {
            true => JobDisplay::with(None, bar()),
            false => JobDisplay::with(Some(out), ProgressBar::hidden()),
        }
    }

    /// Shows nothing.
    pub fn hidden() -> JobDisplay<'a> {
        JobDisplay::with(None, ProgressBar::hidden())
    }

    fn with(out: Option<&'a mut Terminal>, bar: ProgressBar) -> JobDisplay<'a> {
        JobDisplay { out, bar, reported: HashSet::new(), running: BTreeMap::new() }
    }

    /// Shows how many blocks are done.
    pub fn counts(&mut self, counts: &BlockCounts) {
        let number = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        // A bar of no length is drawn as a full one.
        self.bar.set_length(number(counts.blocks.max(1)));
        self.bar.set_position(number(counts.blocks_completed));
        let prefix = match counts.stages {
            0 => "waiting".to_string(),
            stages => format!("stage {}/{stages}", counts.stage),
        };
        self.bar.set_prefix(prefix);
    }

    /// Shows what is known of a block.
    ///
    /// # Errors
    /// When the terminal can't be written.
    pub fn block(&mut self, block: &BlockView, counts: &BlockCounts) -> Result<(), Failure> {
        let id = block.block_id.clone();
        match block.state {
            BlockState::Running => drop(self.running.insert(id, running_line(block))),
            BlockState::Waiting | BlockState::Completed | BlockState::Failed | BlockState::Abandoned => {
                self.running.remove(&id);
            }
        }
        self.counts(counts);
        self.bar.set_message(peers_text(&self.running));
        let Some(state) = end_state(block) else { return Ok(()) };
        if !self.reported.insert(block.block_id.clone()) {
            return Ok(());
        }
        let n = self.reported.len();
        match self.out.as_deref_mut() {
            Some(out) => out.line(&end_line(block, state, n, counts.blocks)),
            None => Ok(()),
        }
    }
}

impl Drop for JobDisplay<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(1);
    if let Ok(style) = ProgressStyle::with_template(STYLE) {
        bar.set_style(style);
    }
    bar.set_prefix("waiting");
    // The time goes on while nothing happens.
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// The end of a peer id, which tells peers apart.
fn short(block: &BlockView) -> String {
    let peer = block.peer_id.as_deref().unwrap_or("-");
    let tail: String = peer.chars().skip(peer.chars().count().saturating_sub(8)).collect();
    format!("..{}", output::inline(&tail))
}

fn running_line(block: &BlockView) -> String {
    let attempt = if block.attempts > 1 { format!(", attempt {}", block.attempts) } else { String::new() };
    format!("{} runs {}{attempt}", short(block), output::inline(&block.block_id))
}

/// The lines below the bar.
fn peers_text(running: &BTreeMap<String, String>) -> String {
    let mut text = String::new();
    for line in running.values().take(SHOWN_PEERS) {
        // Writing to a String can't fail.
        write!(text, "\n  {line}").ok();
    }
    let more = running.len().saturating_sub(SHOWN_PEERS);
    if more > 0 {
        write!(text, "\n  and {more} more").ok();
    }
    text
}

/// The name of a block's end, if it has ended.
fn end_state(block: &BlockView) -> Option<&'static str> {
    match block.state {
        BlockState::Completed => Some("completed"),
        BlockState::Failed => Some("failed"),
        BlockState::Abandoned => Some("abandoned"),
        BlockState::Waiting | BlockState::Running => None,
    }
}

fn end_line(block: &BlockView, state: &str, n: usize, all: usize) -> String {
    let attempts = match block.attempts {
        0 | 1 => String::new(),
        n => format!(", {n} attempts"),
    };
    let latency = block.latency_ms.map_or(String::new(), |ms| {
        let digits = if ms < 10.0 { 3 } else { 1 };
        format!(", {ms:.digits$} ms")
    });
    let error = block.error.as_deref().map_or(String::new(), |e| format!(": {}", one_line(e)));
    let (id, peer) = (&block.block_id, short(block));
    format!("  {n:>3}/{all} {id} {state} on {peer}{attempts}{latency}{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: &str, state: BlockState) -> BlockView {
        BlockView {
            block_id: id.into(),
            state,
            peer_id: Some("12D3KooWabcdefgh\x1b[2J".into()),
            attempts: 2,
            fidelity: None,
            latency_ms: Some(1.25),
            error: None,
            tried: Vec::new(),
        }
    }

    #[test]
    fn lines_name_the_block_its_peer_and_attempts_and_no_peer_acts_on_the_terminal() {
        let ended = block("block-s01-b02", BlockState::Completed);
        let line = end_line(&ended, "completed", 3, 12);
        assert_eq!(line, "    3/12 block-s01-b02 completed on ..efgh\\u{1b}[2J, 2 attempts, 1.250 ms");
        assert_eq!(running_line(&ended), "..efgh\\u{1b}[2J runs block-s01-b02, attempt 2");
    }

    #[test]
    fn a_crowd_of_peers_is_cut() {
        let running: BTreeMap<String, String> =
            (0..10).map(|n| (format!("{n}"), format!("line {n}"))).collect();
        let text = peers_text(&running);
        assert!(text.starts_with("\n  line 0\n") && text.ends_with("\n  line 7\n  and 2 more"), "{text}");
        assert_eq!(peers_text(&BTreeMap::new()), "");
    }

    #[test]
    fn a_block_that_ends_is_not_shown_as_running() {
        let mut display = JobDisplay::hidden();
        let counts = BlockCounts::default();
        display.block(&block("a", BlockState::Running), &counts).unwrap();
        assert_eq!(display.running.len(), 1);
        display.block(&block("a", BlockState::Completed), &counts).unwrap();
        assert!(display.running.is_empty() && display.reported.contains("a"));
    }
}
