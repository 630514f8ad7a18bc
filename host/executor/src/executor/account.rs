//! Which account a plugin's process runs as.
//!
//! A host that is root gives it an account of its own: the one that is named, or the usual one when this machine has
//! it. Any other host can only share its own.

use crate::error::{Explain, exit};
use crate::sys::{self, Account, KeptCapabilities};

/// The account that is used when none is named.
pub const USUAL: &str = "coda-executor";
/// The command that creates the usual account.
pub const MAKE_USUAL: &str =
    "useradd --system --user-group --no-create-home --shell /usr/sbin/nologin coda-executor";

/// Whose rights the plugin's process has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunsAs {
    /// Those of the host, which isn't root.
    Host,
    Account(Account),
    /// Those of root without its capabilities: no account is named, and the usual one doesn't exist.
    Root,
}

impl RunsAs {
    /// Whether the process stays one of root.
    pub fn is_root(&self) -> bool {
        match self {
            RunsAs::Host => sys::effective_user() == 0,
            RunsAs::Account(account) => account.uid == 0,
            RunsAs::Root => true,
        }
    }
}

/// Why the plugin's process can't have the account.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    #[error("CODA_EXECUTOR_USER names '{name}', and this machine has no such account")]
    Unknown { name: String },
    #[error("CODA_EXECUTOR_USER names '{name}', but only root can start a process of another account")]
    NotRoot { name: String },
    #[error("CODA_EXECUTOR_USER has no effect on a plugin in the host's own process")]
    NotIsolated,
    #[error("CODA_EXECUTOR_CAPABILITIES names '{name}', which is not a capability")]
    UnknownCapability { name: String },
    #[error("CODA_EXECUTOR_CAPABILITIES has an effect only on a process of root")]
    CapabilitiesWithoutRoot,
    #[error("the account '{name}' can't be looked up")]
    LookUp { name: String, source: std::io::Error },
}

impl Explain for AccountError {
    fn code(&self) -> &'static str {
        match self {
            AccountError::Unknown { .. } => "executor-user-unknown",
            AccountError::NotRoot { .. } => "executor-user-not-root",
            AccountError::NotIsolated => "executor-user-not-isolated",
            AccountError::UnknownCapability { .. } | AccountError::CapabilitiesWithoutRoot => {
                "executor-capabilities"
            }
            AccountError::LookUp { .. } => "executor-user-look-up",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            AccountError::Unknown { .. } => format!("correct it, or make the account, as in: {MAKE_USUAL}"),
            AccountError::NotRoot { .. } => {
                "unset it: the plugin's process then runs as the host does; or start the host as root".into()
            }
            AccountError::NotIsolated => "set CODA_EXECUTOR_ISOLATION=process too, or unset it".into(),
            AccountError::UnknownCapability { .. } => {
                "write names such as CAP_SYS_RAWIO (man 7 capabilities), or keep for all that the host has"
                    .into()
            }
            AccountError::CapabilitiesWithoutRoot => {
                "set CODA_EXECUTOR_USER=root too if the executor needs them, or unset it".into()
            }
            AccountError::LookUp { name, .. } => format!("try: getent passwd {name}"),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// Decides whose rights the plugin's process has: `isolated` tells whether it has one, `named` is the value of
/// `CODA_EXECUTOR_USER`.
///
/// # Errors
/// When the named account doesn't exist or can't be looked up, only root could take it on, or the plugin runs in the
/// host's process.
pub fn resolve(isolated: bool, named: Option<&str>) -> Result<RunsAs, AccountError> {
    if !isolated {
        return if named.is_some() { Err(AccountError::NotIsolated) } else { Ok(RunsAs::Host) };
    }
    let own = sys::effective_user();
    if named.is_none() && own != 0 {
        return Ok(RunsAs::Host);
    }
    let name = named.unwrap_or(USUAL);
    let found = sys::account(name).map_err(|source| AccountError::LookUp { name: name.into(), source })?;
    match found {
        None if named.is_none() => Ok(RunsAs::Root),
        None => Err(AccountError::Unknown { name: name.into() }),
        Some(account) if own == 0 => Ok(RunsAs::Account(account)),
        Some(account) if account.uid == own => Ok(RunsAs::Host),
        Some(_) => Err(AccountError::NotRoot { name: name.into() }),
    }
}

/// The capabilities that the process keeps, by the values of `CODA_EXECUTOR_CAPABILITIES`.
///
/// # Errors
/// When a name is none of a capability, or the process isn't root's.
pub fn kept_capabilities(names: &[String], runs_as: &RunsAs) -> Result<KeptCapabilities, AccountError> {
    let kept =
        KeptCapabilities::from_names(names).map_err(|name| AccountError::UnknownCapability { name })?;
    match kept.is_empty() || runs_as.is_root() {
        true => Ok(kept),
        false => Err(AccountError::CapabilitiesWithoutRoot),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_there_or_an_error_before_anything_else() {
        assert_eq!(resolve(false, None).unwrap(), RunsAs::Host);
        assert!(matches!(resolve(false, Some("root")), Err(AccountError::NotIsolated)));
        assert!(matches!(resolve(true, Some("no-such-account")), Err(AccountError::Unknown { .. })));
        match (sys::effective_user(), resolve(true, Some("root"))) {
            (0, Ok(RunsAs::Account(root))) => assert_eq!(root.uid, 0),
            (1.., Err(AccountError::NotRoot { name })) => assert_eq!(name, "root"),
            other => panic!("{other:?}"),
        }
    }
}
