//! The peer network: reservations and fragments over libp2p, and the registry of peers.
//!
//! ```text
//! scan       where a document ends            \
//! wire       the documents, strict and bounded  | pure
//! amplitude  complex numbers as texts           |
//! statement  one line of raw_text               |
//! operation  a fragment as operations           |
//! protocol   reservations, holds, rights        |
//! kept_answers  answers that may be asked for again /
//! used_keys     idempotency keys of prepares        /
//! registry   who is there, from gossip         pure
//! swarm      libp2p: streams, gossip, one thread
//! executing  a dispatch on the executor
//! peer       the role that lends slots
//! identity   the key on disk
//! ```

pub mod amplitude;
pub mod evolution;
pub mod executing;
pub mod identity;
mod kept_answers;
pub mod operation;
pub mod pace;
pub mod peer;
pub mod protocol;
pub mod registry;
pub mod scan;
pub mod statement;
pub mod swarm;
mod used_keys;
pub mod wire;
