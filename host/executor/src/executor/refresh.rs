//! The device is asked for again from time to time: a calibration may have taken qubits or couplers away.
//!
//! A change is published as a reload's is: the jobs that wait go back to their owner, which judges them by the new device.
//! A description that can't be used changes nothing, and is logged once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};

use super::active::{ActivePlugin, check_device};
use super::job::SlotReport;
use super::plugin::Plugin;
use super::shared::Shared;

/// Asks for the device and publishes what has changed. For the control thread.
pub(super) struct DeviceRefresh {
    /// Weak, so that the watchdog, which asks from time to time, keeps nothing of the executor.
    pub shared: Weak<Shared>,
    pub plugin: Plugin,
    pub active: Arc<RwLock<Arc<ActivePlugin>>>,
    /// Most jobs of one call, where the plugin takes batches.
    pub batch_max: usize,
    /// Why the last description could not be used.
    pub refusal: Mutex<Option<String>>,
    /// It was asked for, and not yet done.
    pub is_due: AtomicBool,
}

impl DeviceRefresh {
    /// Notes that it is to be done; false when it was noted before.
    pub fn request(&self) -> bool {
        !self.is_due.swap(true, Ordering::AcqRel)
    }

    /// Asks for the device, and publishes it when it is another one.
    pub fn perform(&self) {
        self.is_due.store(false, Ordering::Release);
        let Some(shared) = self.shared.upgrade() else { return };
        // A reload would be answered by the former executor, and published after it.
        let _swap = shared.swap_lock.lock();
        let Some(reply) = self.plugin.describe_again() else { return };
        let described = reply.map_err(|error| error.text).and_then(check_device);
        let (mut device, hooks) = match described {
            Ok(described) => described,
            Err(refusal) => return self.note_refusal(Some(refusal)),
        };
        self.note_refusal(None);

        let former = self.active.read().clone();
        let slots = std::mem::replace(&mut device.slots, former.device.slots);
        if device == former.device && hooks == former.hooks {
            return;
        }
        let (name, qubits) = (&*device.name, device.num_qubits);
        tracing::info!(
            device = name,
            qubits,
            former_qubits = former.device.num_qubits,
            "the device has changed"
        );
        if slots != former.device.slots {
            tracing::warn!(
                slots,
                in_use = former.device.slots,
                "restart coda-host to use another number of slots"
            );
        }
        let active = Arc::new(ActivePlugin { device, hooks, info: former.info.clone() });
        let batch_max = if hooks.batch_run { self.batch_max } else { 1 };
        shared.queue.open(usize::from(former.device.slots), batch_max);
        *self.active.write() = active.clone();
        let generation = shared.queue.begin_generation();
        if shared.reports.send(SlotReport::DeviceChanged { active, generation }).is_err() {
            tracing::debug!("the host stopped listening before its device changed");
        }
    }

    /// Logs each change of the refusal once.
    fn note_refusal(&self, refusal: Option<String>) {
        let mut known = self.refusal.lock();
        if *known == refusal {
            return;
        }
        match &refusal {
            Some(why) => tracing::warn!(
                why,
                "the plugin's new description of its device can't be used; the former one stays"
            ),
            None => tracing::info!("the plugin's description of its device can be used again"),
        }
        *known = refusal;
    }
}
