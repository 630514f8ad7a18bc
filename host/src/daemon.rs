//! The host as a service: who holds this place, who else serves the same QPU here, how it tells that it is up, how
//! it is stopped.

pub mod neighbours;
pub mod notify;
pub mod place;
pub mod rotate;
pub mod unit;
