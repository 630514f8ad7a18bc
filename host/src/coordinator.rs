//! The coordinator: a circuit becomes blocks, blocks are reserved, dispatched and, where a peer fails, tried with the
//! next one.
//!
//! ```text
//! plan      stages, blocks, ranked candidates      \ pure; circuits come from `qasm`
//! combine   states into one, counts out of it       |
//! registry  (in peers) who is there                /
//! job_view  a job as its facts tell it             pure
//! fallback  prepare, commit and dispatch one block with its candidates, in order
//! job       the stages of one job, its record
//! role      the coordinator in the network
//! service   jobs at once, what a restart finds
//! ```

pub mod combine;
pub mod fallback;
pub mod job;
pub mod job_view;
pub mod plan;
pub mod role;
pub mod service;
