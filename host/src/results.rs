//! From an executor's answer to a delivered webhook.

pub mod webhook;
