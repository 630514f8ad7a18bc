//! A private Coda on this machine: cloud endpoints and a redis-server, for `coda-host dev`, tests and
//! benchmarks.

pub mod cloud;
pub mod redis;
