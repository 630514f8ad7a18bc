//! The cloud as the host sees it: one HTTP client, signed tokens, connecting, heartbeats.

pub mod bundle;
pub mod connect;
pub mod error;
pub mod fingerprint;
pub mod heartbeat;
pub mod http;
pub mod jwt;
pub mod jwt_crypto;
mod no_proxy;
pub mod provision;
mod proxy;
#[cfg(test)]
pub(crate) mod testing;
