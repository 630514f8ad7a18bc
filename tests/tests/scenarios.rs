//! Every scenario, one module per concern.

mod main_job;
