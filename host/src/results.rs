//! From an executor's answer to a delivered webhook.

pub mod delivery;
pub mod delivery_queue;
pub mod dispatcher;
pub mod outcome;
pub mod webhook;
