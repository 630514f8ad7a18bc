//! Claiming jobs from the Redis Stream and seeing each one to its end.
//!
//! ```text
//! stream     claims messages               -> driver
//! check      asks what is known of a job and reads its message
//! message    a message's fields
//! lifecycle  decides, pure
//! driver     the one owner of every job: slots, limits, cancels
//! finish     the end of a job: store, look at the cancel key, announce, acknowledge
//! redis      connections, and what is asked
//! adopt      takes over what a dead consumer left
//! writes     what is written, in order, until it is confirmed
//! ```

pub mod adopt;
mod check;
pub mod driver;
mod finish;
pub mod lifecycle;
pub mod message;
pub mod redis;
pub mod stream;
pub mod writes;
