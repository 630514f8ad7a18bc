//! Who this host is in the peer network: an Ed25519 key on disk, 0600, made at the first use, so that the peer id
//! stays the same.

use std::path::{Path, PathBuf};

use libp2p::identity::Keypair;

use crate::error::{Explain, exit};
use crate::state::files::{self, FileError};

const FILE: &str = "peer-identity.key";
const MAX_BYTES: u64 = 4096;

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the peer identity {} holds no Ed25519 key: {text}", path.display())]
    Key { path: PathBuf, text: String },
}

impl Explain for IdentityError {
    fn code(&self) -> &'static str {
        match self {
            IdentityError::File(e) => e.code(),
            IdentityError::Key { .. } => "peer-identity",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            IdentityError::File(e) => e.hint(),
            IdentityError::Key { path, .. } => Some(format!(
                "restore {} from a backup, or remove it to become a new peer (others must then allow its new id)",
                path.display()
            )),
        }
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Reads the key, if there is one.
///
/// # Errors
/// When the file can't be read or written, or does not hold a key.
pub fn stored(state_dir: &Path) -> Result<Option<Keypair>, IdentityError> {
    let path = state_dir.join(FILE);
    let bad = |e: &dyn std::fmt::Display| IdentityError::Key { path: path.clone(), text: e.to_string() };
    let Some(bytes) = files::read(&path, MAX_BYTES)? else { return Ok(None) };
    let key = Keypair::from_protobuf_encoding(&bytes).map_err(|e| bad(&e))?;
    match key.key_type() {
        libp2p::identity::KeyType::Ed25519 => Ok(Some(key)),
        other => Err(bad(&format!("it is of type {other}"))),
    }
}

/// Reads the key, or makes it.
///
/// # Errors
/// When the file can't be used; a damaged one is never replaced by itself.
pub fn load(state_dir: &Path) -> Result<Keypair, IdentityError> {
    if let Some(key) = stored(state_dir)? {
        return Ok(key);
    }
    let path = state_dir.join(FILE);
    let bad = |e: &dyn std::fmt::Display| IdentityError::Key { path: path.clone(), text: e.to_string() };
    let key = Keypair::generate_ed25519();
    let bytes = key.to_protobuf_encoding().map_err(|e| bad(&e))?;
    files::ensure_dir(state_dir)?;
    files::write(&path, &bytes)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_peer_id_stays_and_a_damaged_key_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let first = load(dir.path()).unwrap().public().to_peer_id();
        assert_eq!(load(dir.path()).unwrap().public().to_peer_id(), first);
        let path = dir.path().join(FILE);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&path, b"rubbish").unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains("no Ed25519 key"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(load(dir.path()).unwrap_err().to_string().contains("0600"));
    }
}
