//! A place to stop for crash tests.
//!
//! `CODA_TEST_HOLD=<step>:<file>` makes the host create the file when a job reaches the step and go no
//! further with it, so that a test can kill the process at exactly that moment. Unset it costs nothing.

use std::path::PathBuf;

/// Steps that can be named: `claimed`, `executing`, `returned`, `stored`, `decided`, `announced`, `delivered`.
#[derive(Debug, Default)]
pub struct HoldAt(Option<(String, PathBuf)>);

impl HoldAt {
    /// Reads `CODA_TEST_HOLD`.
    pub fn from_env() -> HoldAt {
        let value = std::env::var("CODA_TEST_HOLD").ok();
        let parts = value.as_deref().and_then(|v| v.split_once(':'));
        HoldAt(parts.map(|(step, file)| (step.to_string(), PathBuf::from(file))))
    }

    /// Waits for ever when this is the step.
    pub async fn at(&self, step: &str) {
        if self.reached(step) {
            std::future::pending::<()>().await;
        }
    }

    /// Blocks the thread for ever when this is the step.
    pub fn block_at(&self, step: &str) {
        while self.reached(step) {
            std::thread::park();
        }
    }

    fn reached(&self, step: &str) -> bool {
        let Some((_, file)) = self.0.as_ref().filter(|(wanted, _)| wanted == step) else { return false };
        tracing::warn!(step, "holding here, as CODA_TEST_HOLD asks");
        if let Err(error) = std::fs::write(file, step) {
            tracing::error!(path = %file.display(), %error, "the hold can't be shown");
        }
        true
    }
}
