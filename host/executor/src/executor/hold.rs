//! Keeps the executor from beginning anything, while the device is paused or not available. What runs goes on.

use std::sync::Arc;

use super::queue::Queue;
pub use super::queue::UpcomingWindow;

/// The means to hold every start of an executor, also of the one that a reload puts in its place.
#[derive(Clone)]
pub struct StartHold {
    pub(super) queue: Arc<Queue>,
}

impl StartHold {
    /// Holds starts for this reason, or lets them begin again: jobs wait meanwhile, and reservations are refused. `window`
    /// keeps calls from beginning that are not expected to have come back before it.
    pub fn set(&self, why: Option<&str>, window: Option<UpcomingWindow>) {
        self.queue.hold(why.map(Arc::from), window);
    }
}
