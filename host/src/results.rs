//! From an executor's answer to a delivered webhook.

pub mod outbox;
pub mod outcome;
pub mod webhook;
