//! Keeps the executor from beginning anything, while the device is paused or not available. What runs goes on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::{Queue, Window};

/// The means to hold every start of an executor, also of the one that a reload puts in its place.
#[derive(Clone)]
pub struct StartHold {
    pub(super) queue: Arc<Queue>,
}

impl StartHold {
    /// Keeps calls from beginning that are not expected to have come back before `begins`. A call of which nothing is known
    /// is expected to take as long as `lead`.
    pub fn set_window(&self, begins: Option<Instant>, lead: Duration) {
        self.queue.set_window(begins.map(|begins| Window { begins, lead }));
    }

    /// Holds starts for this reason, or lets them begin again. Jobs wait meanwhile; reservations are refused.
    pub fn set(&self, why: Option<&str>) {
        self.queue.hold(why.map(Arc::from));
    }
}
