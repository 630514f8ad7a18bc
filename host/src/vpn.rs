//! The tunnel to the cloud: which profiles may be used, the OpenVPN daemon, and the watch over both.

pub mod command;
mod directives;
pub mod guard;
pub mod interface;
pub mod openvpn;
pub mod profile;
#[cfg(test)]
pub(crate) mod standin;
