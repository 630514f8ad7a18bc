//! Waiting for conditions: the one place that sleeps.

use std::time::{Duration, Instant};

/// How long anything may take on a busy machine before it counts as not happening.
pub const LIMIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks until there is an answer.
///
/// # Panics
/// When there is none within [`LIMIT`].
pub async fn eventually<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Asks until it is so.
///
/// # Panics
/// When it isn't within [`LIMIT`].
pub async fn holds(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    eventually(what, async || probe().await.then_some(())).await;
}
