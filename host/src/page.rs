//! The page in a browser: what operators of a host and users of a coordinator look at.
//!
//! ```text
//! a model (plain data) -> host, coordinator: sections of HTML -> shell: one document
//!                                                             -> live: the sections that changed, as server-sent events
//! ```
//!
//! The server renders everything, once for all who look, so a browser without scripts shows the same. The script puts
//! changed sections in place and counts times on. Nothing comes from another host, no script or style stands in the
//! document, and every text is escaped by the templates.

pub mod coordinator;
pub mod draw;
pub mod host;
pub mod live;
pub mod shell;
pub mod text;
