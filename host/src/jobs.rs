//! Claiming jobs from the Redis Stream and seeing each one to its end.
//!
//! ```text
//! stream      claims messages                              -> driver
//! claim_gate  why nothing is claimed
//! driver      the one task: event -> table -> effects, performed
//! table       every decision about a claimed message, pure
//! check       reads messages, asks what is known about their jobs
//! admission   what to do with a job that was seen before, pure
//! message     a message's fields, pure
//! status      the fields of a job's status hash, pure
//! standing_error  an error that stays is logged now and then, pure
//! job_facts   sizes, waits and runs of the jobs in flight, for the record of ended jobs, pure
//! journal     what is in the plugin and what it answered, for the next process
//! redis       connections, what is asked and what is written
//! ```

mod admission;
mod check;
pub mod claim_gate;
pub mod driver;
pub mod job_facts;
pub mod journal;
pub mod limits;
pub mod message;
pub mod redis;
pub mod standing_error;
mod status;
pub mod stream;
pub mod table;
