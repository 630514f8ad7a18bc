//! Claiming jobs from the Redis Stream and seeing each one to its end.
//!
//! ```text
//! stream     claims messages                              -> driver
//! driver     the one task: event -> table -> effects, performed
//! table      every decision about a claimed message, pure
//! check      reads messages, asks what is known about their jobs
//! admission  what to do with a job that was seen before, pure
//! message    a message's fields, pure
//! status     the fields of a job's status hash, pure
//! journal    what is in the plugin and what it answered, for the next process
//! redis      connections, and what is asked
//! replies    replies of Redis: a value, an absence or an error, pure
//! adopt      takes over what a dead consumer left
//! writes     what is written, in order, until it is confirmed
//! ```

mod admission;
pub mod adopt;
mod check;
pub mod driver;
pub mod journal;
pub mod message;
pub mod redis;
pub mod replies;
mod status;
pub mod stream;
pub mod table;
pub mod writes;
