//! Every scenario, one module per concern.

mod batches;
mod cancels;
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
mod plugin_check;
mod plugin_docs;
mod plugins_together;
mod redis_faults;
mod redis_tls;
mod secrets;
mod stopping;
mod stored_plugins;
mod vpn;
mod walk;
mod webhooks;
