//! What survives a restart: secure files, the embedded database, and the marks of running jobs.

pub mod db;
pub mod marks;
