//! Reservations as facts: what happened to each, appended and never changed; the state is what replaying them
//! gives.
//!
//! ```text
//! event   the versioned facts
//! ledger  pure: command -> facts, fold -> state
//! journal pure: the same for a coordinator's jobs
//! job_options pure: what a job is asked for besides its circuit
//! lease   pure: who may hold the lease of a coordinator's identity, and when it is over
//! plan    pure: the plan of a coordinator's job as it is recorded
//! stream  pure: the streams that facts are appended to
//! log     append and replay: SQLite, or PostgreSQL for coordinators that share one log
//! export  a log as lines of text: written, read back, damage found
//! ```

pub mod event;
pub mod export;
pub mod job_options;
pub mod journal;
pub mod lease;
pub mod ledger;
pub mod log;
pub mod plan;
pub mod stream;
#[cfg(test)]
mod test_rows;
