//! Waiting for conditions: the one place that sleeps.

use std::time::{Duration, Instant};

/// How long anything may take on a busy machine before it counts as not happening.
pub const LIMIT: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks until there is an answer; `None` when there is none within [`LIMIT`].
pub async fn in_time<T>(mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(answer) = probe().await {
            return Some(answer);
        }
        if start.elapsed() >= LIMIT {
            return None;
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

/// Asks until there is an answer.
///
/// # Panics
/// When there is none within [`LIMIT`].
pub async fn eventually_some<T>(what: &str, probe: impl AsyncFnMut() -> Option<T>) -> T {
    in_time(probe).await.unwrap_or_else(|| panic!("not within {LIMIT:?}: {what}"))
}

/// Asks until it is so.
///
/// # Panics
/// When it isn't within [`LIMIT`].
pub async fn eventually(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    eventually_some(what, async || probe().await.then_some(())).await;
}
