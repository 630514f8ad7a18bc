//! Runs one block: with the best candidate that has a slot free, then with the next one where a candidate fails.
//!
//! A candidate can be unusable in these ways, and each has its consequence:
//!
//! | it is | the block |
//! |---|---|
//! | full | waits until a slot may be free, behind those of earlier jobs, and is planned again then, until a deadline |
//! | gone before it had the work | is planned again at once without it; the peer may return |
//! | gone in a dispatch, silent, late, refusing, or its answer is invalid | goes on without it; after four of these it fails |
//! | gone in a dispatch or late before it, and no other is left | waits for it for a while, and is given to it again |
//! | far slower than with a block of its size | is given to another one as well, where a slot is free; the first answer counts |
//! | the only one, and gone | waits for peers for a while |
//!
//! A block that is too large for one dispatch to its peer goes on in pieces: what a peer has completed is not run again when
//! the next piece fails.
//!
//! A candidate of another kind shows first, with probes, that it does right what the block needs. Where a job asks for two
//! peers, each piece is run until two of them agree about its state.
//!
//! A candidate is chosen by the state of the network and of all jobs of this coordinator at that moment, not by the plan
//! that was recorded when the job began.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::attempt::{BlockResult, CandidateFailure, PeerReservation, at_once, work};
use super::combine::Component;
use super::directory::{Directory, PlaceInLine, SlotChoice, SlotClaim};
use super::plan::{Block, MAX_CANDIDATES, PlannedFragment};
use super::probe::{Probe, StatementKind, agree};
use super::track_record::PeerFailure;
use crate::peers::swarm::{Network, is_ours};
use crate::reservation::log::{Log, LogError};

/// How long a peer that has just been connected may take to say what it is.
const AGENT_WAIT: Duration = Duration::from_secs(2);
/// When another peer is looked for again, while none has a slot free.
const HEDGE_AGAIN: Duration = Duration::from_secs(1);

/// How long the steps may take.
#[derive(Debug, Clone)]
pub struct BlockLimits {
    pub call: Duration,
    pub dispatch: Duration,
    pub ttl_seconds: u64,
    /// How long a block waits for a slot.
    pub slot_wait: Duration,
    /// How long a block waits for a peer when there is none.
    pub peer_wait: Duration,
    /// Whether another peer is asked as well when one takes far too long.
    pub hedge: bool,
}

/// Runs blocks on peers: the network, the record, and the limits that all blocks share.
#[derive(Clone)]
pub struct BlockRunner {
    pub network: Network,
    pub log: Log,
    pub directory: Directory,
    pub limits: BlockLimits,
    /// Cancels that are being sent.
    pub tasks: TaskTracker,
    /// When the job was accepted whose blocks are run: of those that wait the earliest goes first.
    pub accepted: i64,
}

/// One block to run, with the state it starts from.
pub struct BlockRun<'a> {
    pub plan_id: &'a str,
    pub workflow_run_id: &'a str,
    pub block: &'a Block,
    /// What is to be run, in order; while it runs, what is left.
    pub fragments: Vec<&'a PlannedFragment>,
    /// The state before the first of them.
    pub state: Component,
    /// Candidates that a former process of the coordinator tried.
    pub attempts: u32,
    /// The peers that ran the blocks before.
    pub ran_on: &'a BTreeMap<String, String>,
    /// How many peers must agree about each state.
    pub redundancy: u8,
}

/// A candidate that is about to be asked. It is reported before the first message leaves.
#[derive(Debug, Clone)]
pub struct Attempt {
    pub attempt: u32,
    pub peer_id: String,
    pub reservation_id: String,
}

/// A block that a peer has completed.
#[derive(Debug)]
pub struct CompletedBlock {
    pub state: Component,
    pub peer_id: String,
    pub attempts: u32,
    /// The lowest that was reported for a piece of it.
    pub fidelity: Option<f64>,
    /// Of all pieces together.
    pub latency_ms: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    #[error("Execution block {block_id} failed across all assigned peers: {last}")]
    AllFailed { block_id: String, attempts: u32, last: String },
    #[error("the job was stopped because its event could not be recorded")]
    Log(#[from] LogError),
}

/// How a block's search for a peer stands.
struct Search {
    attempts: u32,
    /// Candidates that failed at this block.
    failed: BTreeSet<String>,
    /// Failures of candidates.
    failures: usize,
    /// Those that were lost with the block or late before they had it: when no other is left, they may have it again.
    excused: BTreeSet<String>,
    /// Those of them that it is given to again when they are back.
    awaited: BTreeSet<String>,
    last: Option<String>,
    slot_deadline: Instant,
    place: PlaceInLine,
    /// Since when there has been no candidate.
    alone_since: Option<Instant>,
    /// The peers that the state comes from.
    ran_on: BTreeSet<String>,
    /// What the block's statements are.
    kinds: BTreeSet<StatementKind>,
    /// Peers that have answered the piece already: another one is to agree.
    agreed: BTreeSet<String>,
}

impl Search {
    /// Peers that are not to be asked.
    fn apart(&self) -> impl Iterator<Item = &String> {
        self.failed.iter().chain(&self.agreed)
    }

    fn fail(&mut self, peer_id: String, why: String) {
        self.awaited.remove(&peer_id);
        self.failed.insert(peer_id);
        self.failures += 1;
        self.last = Some(why);
    }

    /// Whether there is a peer to wait for that may have the block again when it is back.
    fn awaits_excused(&mut self) -> bool {
        for peer in std::mem::take(&mut self.excused) {
            self.failed.remove(&peer);
            self.awaited.insert(peer);
        }
        !self.awaited.is_empty()
    }
}

impl BlockRunner {
    /// Runs a block on the first candidate that completes it. `on_attempt` is called before each attempt and stops the
    /// run with an error.
    ///
    /// # Errors
    /// When candidates have failed and no other is left, there is no slot or no peer in time, or an event can't be
    /// recorded.
    pub async fn run_block<F, T>(
        &self,
        mut run: BlockRun<'_>,
        on_attempt: F,
    ) -> Result<CompletedBlock, BlockError>
    where
        F: Fn(Attempt) -> T,
        T: Future<Output = Result<(), LogError>>,
    {
        let mut search = Search {
            attempts: run.attempts,
            failed: BTreeSet::new(),
            failures: 0,
            excused: BTreeSet::new(),
            awaited: BTreeSet::new(),
            last: None,
            place: self.directory.place_in_line(self.accepted),
            slot_deadline: Instant::now() + self.limits.slot_wait,
            alone_since: None,
            ran_on: run.block.predecessors.iter().filter_map(|b| run.ran_on.get(b)).cloned().collect(),
            kinds: StatementKind::of_block(&run.fragments),
            agreed: BTreeSet::new(),
        };
        let (mut fidelity, mut latency_ms) = (None, 0.0);
        loop {
            let (peer_id, piece) = self.run_agreed(&run, &mut search, &on_attempt).await?;
            if let Some(found) = piece.fidelity {
                self.directory.report_fidelity(&peer_id, &run.block.services, found);
                fidelity = Some(fidelity.map_or(found, |f: f64| f.min(found)));
            }
            latency_ms += piece.latency_ms;
            run.fragments.drain(..piece.fragments);
            run.state = piece.state;
            if run.fragments.is_empty() {
                let (state, attempts) = (run.state, search.attempts);
                return Ok(CompletedBlock { state, peer_id, attempts, fidelity, latency_ms });
            }
            // The next piece is not another attempt at this one; its state is with this peer.
            search.attempts -= 1;
            search.slot_deadline = Instant::now() + self.limits.slot_wait;
            search.ran_on = BTreeSet::from([peer_id]);
        }
    }

    /// Runs as much of the block as a peer takes at once, on as many peers as must agree about it.
    async fn run_agreed<F, T>(
        &self,
        run: &BlockRun<'_>,
        search: &mut Search,
        on_attempt: &F,
    ) -> Result<(String, BlockResult), BlockError>
    where
        F: Fn(Attempt) -> T,
        T: Future<Output = Result<(), LogError>>,
    {
        let mut answers: Vec<(String, BlockResult)> = Vec::new();
        search.agreed.clear();
        loop {
            let (peer_id, piece) = self.run_piece(run, search, on_attempt).await?;
            if run.redundancy <= 1 {
                return Ok((peer_id, piece));
            }
            let same =
                |other: &BlockResult| other.fragments == piece.fragments && agree(&other.state, &piece.state);
            if let Some(at) = answers.iter().position(|(_, other)| same(other)) {
                let agreed = answers.swap_remove(at);
                for (wrong, _) in answers {
                    tracing::warn!(peer = wrong, "the peer's state is another than that of two others");
                    self.directory.failed(&wrong, PeerFailure::Invalid);
                }
                // The next attempts are those of another piece.
                search.attempts = search.attempts.saturating_sub(1);
                return Ok(agreed);
            }
            search.agreed.insert(peer_id.clone());
            answers.push((peer_id, piece));
            if answers.len() >= MAX_CANDIDATES {
                let peers: Vec<&str> = answers.iter().map(|(peer, _)| peer.as_str()).collect();
                let last = format!("no two of {} agree about the state", peers.join(", "));
                return Err(self.all_failed(run, search, last));
            }
        }
    }

    fn all_failed(&self, run: &BlockRun<'_>, search: &Search, last: String) -> BlockError {
        BlockError::AllFailed { block_id: run.block.block_id.clone(), attempts: search.attempts, last }
    }

    /// Runs as much of the block as a peer takes at once, on the first candidate that completes it.
    async fn run_piece<F, T>(
        &self,
        run: &BlockRun<'_>,
        search: &mut Search,
        on_attempt: &F,
    ) -> Result<(String, BlockResult), BlockError>
    where
        F: Fn(Attempt) -> T,
        T: Future<Output = Result<(), LogError>>,
    {
        let work = work(run.state.qubits.len(), at_once(run).len());
        // In the order in which they began. What is dropped in the middle is cancelled at its peer.
        let mut running: FuturesUnordered<_> = FuturesUnordered::new();
        let mut asked: Vec<String> = Vec::new();
        let mut overdue = Instant::now();
        loop {
            let claim = match asked.is_empty() {
                true => {
                    let found = self.find(run, search).await?;
                    match self.prove(run, search, found).await? {
                        Some(proven) => Some(proven),
                        None => continue,
                    }
                }
                false => None,
            };
            let claim = match claim {
                Some(claim) => claim,
                None => tokio::select! {
                    Some((peer_id, ended)) = running.next() => match self.ended(run, search, &mut asked, peer_id, ended)? {
                        Some(piece) => return Ok(piece),
                        None => continue,
                    },
                    () = tokio::time::sleep_until(overdue), if self.limits.hedge && asked.len() == 1 => {
                        match self.find_another(run, search, &asked) {
                            Some(claim) => claim,
                            None => {
                                overdue = Instant::now() + HEDGE_AGAIN;
                                continue;
                            }
                        }
                    }
                },
            };
            search.attempts += 1;
            let (peer_id, reservation_id) = (claim.peer.clone(), format!("res-{}", uuid4()));
            let attempt = Attempt {
                attempt: search.attempts,
                peer_id: peer_id.clone(),
                reservation_id: reservation_id.clone(),
            };
            on_attempt(attempt).await?;
            overdue = Instant::now() + self.directory.overdue_after(&peer_id, work);
            asked.push(peer_id.clone());
            let reservation = PeerReservation::new(self, claim, reservation_id);
            running.push(async move { (peer_id, reservation.run(run).await) });
        }
    }

    /// Takes the end of an attempt: what it completed, if it did.
    fn ended(
        &self,
        run: &BlockRun<'_>,
        search: &mut Search,
        asked: &mut Vec<String>,
        peer_id: String,
        ended: Result<BlockResult, CandidateFailure>,
    ) -> Result<Option<(String, BlockResult)>, BlockError> {
        match ended {
            Ok(piece) => {
                for slower in asked.iter().take_while(|peer| **peer != peer_id) {
                    self.directory.failed(slower, PeerFailure::Overtaken);
                }
                return Ok(Some((peer_id, piece)));
            }
            Err(CandidateFailure::Full(why) | CandidateFailure::Gone(why)) => search.last = Some(why),
            Err(CandidateFailure::Lost(why)) => {
                let block = &run.block.block_id;
                tracing::warn!(
                    block,
                    peer = peer_id,
                    why,
                    "the peer was lost with the block; trying the next one"
                );
                search.excused.insert(peer_id.clone());
                search.fail(peer_id.clone(), why);
            }
            Err(CandidateFailure::Late(why)) => {
                let block = &run.block.block_id;
                tracing::warn!(block, peer = peer_id, why, "the peer was late; trying the next one");
                search.excused.insert(peer_id.clone());
                search.fail(peer_id.clone(), why);
            }
            Err(CandidateFailure::Failed(why) | CandidateFailure::Reported(why)) => {
                let block = &run.block.block_id;
                tracing::warn!(block, peer = peer_id, why, "the peer failed; trying the next one");
                search.fail(peer_id.clone(), why);
            }
            Err(CandidateFailure::Stop(error)) => return Err(error.into()),
        }
        asked.retain(|peer| *peer != peer_id);
        Ok(None)
    }

    /// Another candidate that has a slot free now, beside those that were asked.
    fn find_another(&self, run: &BlockRun<'_>, search: &Search, asked: &[String]) -> Option<SlotClaim> {
        let apart = search.apart().chain(asked).cloned().collect();
        match self.directory.claim(None, run.block, &search.kinds, &apart, &search.ran_on) {
            // One that would have to be probed first is no help in a hurry.
            SlotChoice::Peer(claim) => self.network.reads_whole_documents(&claim.peer).then_some(claim),
            SlotChoice::Full(_) | SlotChoice::None => None,
        }
    }

    /// Has a peer of another kind show that it does right what the block needs. None when it does not, or can't be asked.
    async fn prove(
        &self,
        run: &BlockRun<'_>,
        search: &mut Search,
        mut claim: SlotClaim,
    ) -> Result<Option<SlotClaim>, BlockError> {
        let peer = claim.peer.clone();
        let addresses = self.directory.addresses(&peer);
        let agent = self.network.agent(&peer, &addresses, self.limits.call.min(AGENT_WAIT)).await;
        let agent = match agent {
            Some(agent) if is_ours(&agent) => return Ok(Some(claim)),
            other => other.unwrap_or_default(),
        };
        while let Some(kind) = self.directory.unproven(&peer, &agent, &search.kinds) {
            let right = match Probe::new(&kind) {
                Err(error) => Err(CandidateFailure::Reported(error.to_string())),
                Ok(probe) => {
                    let workflow = format!("probe-{}", uuid4());
                    let probing = BlockRun {
                        plan_id: run.plan_id,
                        workflow_run_id: &workflow,
                        block: &probe.block,
                        fragments: probe.fragments.iter().collect(),
                        state: probe.state.clone(),
                        attempts: 0,
                        ran_on: run.ran_on,
                        redundancy: 1,
                    };
                    let reservation = PeerReservation::new(self, claim, format!("res-{}", uuid4()));
                    let is_right =
                        |a: BlockResult| a.fragments == probe.fragments.len() && probe.is_right(&a.state);
                    reservation.run(&probing).await.map(is_right)
                }
            };
            let why = match right {
                Ok(true) => None,
                Ok(false) => Some(format!("the peer does {kind} wrong, as a probe has shown")),
                Err(CandidateFailure::Reported(why)) => {
                    Some(format!("the peer failed at a probe of {kind}: {why}"))
                }
                Err(CandidateFailure::Full(why) | CandidateFailure::Gone(why)) => {
                    search.last = Some(why);
                    return Ok(None);
                }
                Err(
                    CandidateFailure::Failed(why) | CandidateFailure::Lost(why) | CandidateFailure::Late(why),
                ) => {
                    search.fail(peer, why);
                    return Ok(None);
                }
                Err(CandidateFailure::Stop(error)) => return Err(error.into()),
            };
            let is_right = why.is_none();
            self.directory.proved(&peer, &agent, kind, is_right);
            if let Some(why) = why {
                tracing::warn!(peer, agent, why, "such statements are not sent to the peer");
                search.last = Some(why);
                return Ok(None);
            }
            match self.directory.claim_of(&peer) {
                Some(next) => claim = next,
                None => return Ok(None),
            }
        }
        Ok(Some(claim))
    }

    /// Waits for a candidate with a slot, and claims the slot.
    async fn find(&self, run: &BlockRun<'_>, search: &mut Search) -> Result<SlotClaim, BlockError> {
        let failed = |search: &mut Search, or: String| BlockError::AllFailed {
            block_id: run.block.block_id.clone(),
            attempts: search.attempts,
            last: search.last.take().unwrap_or(or),
        };
        let mut changes = self.directory.changes();
        if search.failures >= MAX_CANDIDATES {
            return Err(failed(search, String::new()));
        }
        loop {
            // Marked before the look: what changes during it is looked at again.
            changes.mark_unchanged();
            let now = Instant::now();
            let until = match self.directory.claim(
                Some(&search.place),
                run.block,
                &search.kinds,
                &search.apart().cloned().collect(),
                &search.ran_on,
            ) {
                SlotChoice::Peer(claim) => {
                    search.alone_since = None;
                    return Ok(claim);
                }
                SlotChoice::Full(_) if now >= search.slot_deadline => {
                    let waited = self.limits.slot_wait;
                    let last = search.last.take().unwrap_or_else(|| "every candidate is full".into());
                    search.last = Some(format!("{last} (no slot came free within {waited:?})"));
                    return Err(failed(search, String::new()));
                }
                SlotChoice::Full(again) => {
                    search.alone_since = None;
                    search.slot_deadline.min(now + again)
                }
                // The others have failed at it: there is no one to wait for.
                SlotChoice::None if !search.awaits_excused() && !search.failed.is_empty() => {
                    return Err(failed(search, String::new()));
                }
                SlotChoice::None => {
                    let end = *search.alone_since.get_or_insert(now) + self.limits.peer_wait;
                    if now >= end {
                        let services = run.block.services.join(" and ");
                        if !search.agreed.is_empty() {
                            let why =
                                format!("no second peer offers {services} and could agree with the first");
                            return Err(failed(search, why));
                        }
                        return Err(failed(search, format!("no healthy peer offers {services}")));
                    }
                    end
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                // The directory lives as long as its receivers.
                _ = changes.changed() => {}
            }
        }
    }
}

/// A random id in the form of RFC 9562, version 4.
pub fn uuid4() -> String {
    uuid::Uuid::new_v4().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_their_form() {
        let id = uuid4();
        let bytes = id.as_bytes();
        assert_eq!((id.len(), bytes[8], bytes[13], bytes[18], bytes[23]), (36, b'-', b'-', b'-', b'-'));
        assert!(bytes[14] == b'4' && b"89ab".contains(&bytes[19]), "{id}");
        assert_ne!(uuid4(), uuid4());
    }
}
