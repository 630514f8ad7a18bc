//! A local Coda sandbox: cloud endpoints and a redis-server, for `coda-host dev`, tests and
//! benchmarks; and what `coda-host dev` and `coda-host submit` need around them.

pub mod client;
pub mod cloud;
pub mod follow;
pub mod host;
pub mod redis;
