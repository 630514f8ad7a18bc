//! The coordinator: a circuit becomes blocks, blocks are reserved, dispatched and, where a peer fails, tried with the
//! next one.
//!
//! ```text
//! plan      stages, blocks, ranked candidates      \ pure; circuits come from `qasm`
//! combine   states into one, counts out of it       |
//! registry  (in peers) who is there                /
//! job_view  a job as its facts tell it             pure
//! slot_book which slots of which peer this coordinator holds   pure
//! waiting_line which block that waits for a slot goes first   pure
//! probe     whether a peer of another kind does what a statement says   pure
//! simulation the final state of a circuit, to check that of the peers   pure
//! track_record what has happened with each peer: circuit breakers, time limits   pure
//! directory who is there, with the slots: chooses the peer of a block
//! job_events  what happens to a job, for those who follow it   pure
//! resume    where a job begins, after a restart too   pure
//! fallback  one block with one candidate after another, and its waits
//! attempt   prepare, commit and dispatch with one candidate
//! answer    reads and checks what a peer answers
//! schedule  which blocks of a job may run, and which states are behind its stages   pure
//! job       the blocks of one job, its record
//! measures  what a state says about its qubits   pure
//! result    what a job is asked for, taken from the final state
//! expiry    when reservations expire   pure
//! role      the coordinator in the network
//! service   jobs at once, their submission and their cancel
//! live_jobs the jobs in memory
//! job_queue running places, and which jobs are still this coordinator's   pure
//! taking    takes jobs from the queue that coordinators share
//! lease_keeper the lease of this coordinator's identity
//! recovery  what a restart, a cancel and time leave to do
//! watching  waiting for a job, event by event or for its end
//! job_list  all jobs, page by page
//! metrics   counters, durations, levels
//! ```

pub mod answer;
pub mod attempt;
pub mod combine;
pub mod directory;
pub mod expiry;
pub mod fallback;
#[cfg(test)]
mod growth_tests;
pub mod job;
pub mod job_events;
pub mod job_list;
pub mod job_queue;
pub mod job_view;
pub mod lease_keeper;
mod live_jobs;
pub mod measures;
pub mod metrics;
pub mod plan;
pub mod probe;
pub mod recovery;
pub mod result;
pub mod resume;
pub mod role;
pub mod schedule;
pub mod service;
pub mod simulation;
pub mod slot_book;
pub mod submission_times;
mod taking;
pub mod track_record;
mod waiting_line;
pub mod watching;
