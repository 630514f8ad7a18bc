//! What outlives the process: secure files and the stored credentials.

pub mod credentials;
pub mod files;
