//! Every scenario, one module per concern.

mod batches;
mod cancels;
mod crashes;
mod daemon;
mod device_configs;
mod kill_storm;
mod loading;
mod main_job;
mod messages;
mod misbehaving;
mod plugins_together;
mod redis_faults;
mod redis_tls;
mod stopping;
mod stored_plugins;
mod webhooks;
