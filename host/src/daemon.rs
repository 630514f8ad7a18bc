//! The host as a service: the lock of its state directory, conflicting hosts on this machine, readiness
//! notification, log rotation, and the systemd unit that starts it.

pub mod conflicts;
pub mod instance_lock;
pub mod notify;
pub mod python_node;
pub mod rotate;
pub mod unit;
