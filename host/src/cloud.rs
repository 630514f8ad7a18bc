//! The cloud as the host sees it: one HTTP client, signed tokens, connecting, heartbeats.

pub mod bundle;
pub mod http;
pub mod jwt;
mod proxy;
#[cfg(test)]
pub(crate) mod testing;
