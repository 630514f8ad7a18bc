//! Every scenario, one module per concern.

mod cancels;
mod crashes;
mod kill_storm;
mod main_job;
mod plugins_together;
mod stopping;
