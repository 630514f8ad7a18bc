//! The tunnel to the cloud: which profiles may be used, the OpenVPN daemon, and the watch over both.

mod directives;
pub mod profile;
