//! Flags, `CODA_` variables, persisted state and defaults, made into one checked [`Settings`].

pub mod settings;

pub use settings::Settings;
