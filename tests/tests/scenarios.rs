//! Every scenario, one module per concern.

#![forbid(unsafe_code)]

mod batches;
mod cancels;
mod coordinator;
mod crashes;
mod credentials;
mod daemon;
mod device_configs;
mod isolation;
mod kill_storm;
mod loading;
mod main_job;
mod messages;
mod misbehaving;
mod neighbours;
mod operator;
mod peer_admission;
mod peer_network;
mod plugin_check;
mod plugin_docs;
mod plugins_together;
mod python_peers;
mod redis_faults;
mod redis_tls;
mod rights;
mod secrets;
mod shared_log;
mod startup;
mod stopping;
mod stored_plugins;
mod units;
mod vpn;
mod walk;
mod webhooks;
