//! What survives the process: secure files, the stored credentials, the embedded database, and the journals of running
//! jobs and their answers.

pub mod answer_journal;
pub mod credentials;
pub mod db;
pub mod files;
pub mod run_journal;
pub mod sqlite_actor;
