//! Signal dispositions that a plugin changed are put back after each call, and the change is logged.

use crate::sys::Dispositions;

/// Restores the dispositions as they were before the plugin's `call`.
pub(super) fn restore_after(dispositions: &Dispositions, plugin: &str, call: &str) {
    let changed = dispositions.restore();
    if !changed.is_empty() {
        tracing::warn!(
            plugin,
            call,
            signals = changed.join(" "),
            "the plugin changed signal handling; put back"
        );
    }
}
