//! The host as a service: who holds this place, how it tells that it is up, how it is stopped.

pub mod notify;
pub mod place;
pub mod rotate;
