//! Every scenario, one module per concern.

mod batches;
mod cancels;
mod coordinator;
mod crashes;
mod credentials;
mod daemon;
mod device_configs;
mod kill_storm;
mod loading;
mod main_job;
mod messages;
mod misbehaving;
mod neighbours;
mod operator;
mod peer_admission;
mod plugins_together;
mod python_peers;
mod redis_faults;
mod redis_tls;
mod secrets;
mod shared_log;
mod stopping;
mod stored_plugins;
mod walk;
mod webhooks;
