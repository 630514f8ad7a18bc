//! Timers for libp2p, on the runtime that polls them.
//!
//! libp2p starts and drops two timers for every request on each side, through the crate `futures-timer`, whose timers
//! live on a thread of their own: starting or dropping one wakes that thread, which costs more than the request.
//! libp2p runs on tokio here, which has a timer wheel on the same thread, so `[patch.crates-io]` puts this in place of
//! that crate. A timer that is dropped before it was polled costs nothing at all.
//!
//! Must be polled within a tokio runtime that has its timers on.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// What stands for ever: longer than any program runs.
const NEVER: Duration = Duration::from_secs(86_400 * 365 * 30);

/// Is over after a time.
pub struct Delay {
    at: Instant,
    /// Set by the first poll.
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Delay {
    /// Over so long from now.
    pub fn new(after: Duration) -> Delay {
        Delay { at: deadline(after), sleep: None }
    }

    /// Starts anew: over so long from now.
    pub fn reset(&mut self, after: Duration) {
        self.at = deadline(after);
        if let Some(sleep) = &mut self.sleep {
            sleep.as_mut().reset(self.at);
        }
    }
}

fn deadline(after: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(after).unwrap_or(now + NEVER)
}

impl Future for Delay {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.sleep.get_or_insert_with(|| Box::pin(sleep_until(this.at))).as_mut().poll(cx)
    }
}

impl fmt::Debug for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delay").field("at", &self.at).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let builder = &mut tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(test);
    }

    async fn is_over(delay: &mut Delay) -> bool {
        poll_fn(|cx| Poll::Ready(Pin::new(&mut *delay).poll(cx).is_ready())).await
    }

    #[test]
    fn a_delay_is_over_at_its_time_and_not_before() {
        run(async {
            let start = Instant::now();
            Delay::new(Duration::from_millis(300)).await;
            assert!(start.elapsed() >= Duration::from_millis(300));
            assert!(is_over(&mut Delay::new(Duration::ZERO)).await);
        });
    }

    #[test]
    fn time_counts_from_the_start_and_not_from_the_first_poll() {
        run(async {
            let mut delay = Delay::new(Duration::from_secs(5));
            tokio::time::advance(Duration::from_secs(6)).await;
            assert!(is_over(&mut delay).await);
        });
    }

    #[test]
    fn a_reset_starts_it_anew_polled_or_not_over_or_not() {
        run(async {
            let mut delay = Delay::new(Duration::from_secs(1));
            delay.reset(Duration::from_secs(3));
            tokio::time::advance(Duration::from_secs(2)).await;
            assert!(!is_over(&mut delay).await);
            delay.reset(Duration::from_secs(3));
            tokio::time::advance(Duration::from_secs(2)).await;
            assert!(!is_over(&mut delay).await);
            delay.await;
            let mut delay = Delay::new(Duration::ZERO);
            assert!(is_over(&mut delay).await);
            delay.reset(Duration::from_secs(1));
            assert!(!is_over(&mut delay).await);
        });
    }

    #[test]
    fn for_ever_is_no_overflow() {
        run(async { assert!(!is_over(&mut Delay::new(Duration::MAX)).await) });
    }
}
