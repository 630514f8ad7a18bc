//! Why a request to the outside has no answer.
//!
//! The texts say how far a request got, because a one-time token may have been used up by a request that got far enough.

use std::error::Error as StdError;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Explain, exit};

/// Why a request has no answer. `Display` names the host, the source says the rest.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HttpError {
    #[error("'{url}' is not a usable http or https URL: {why}")]
    Url { url: String, why: String },
    #[error("the header '{name}' can't be sent: {why}")]
    Header { name: String, why: &'static str },
    #[error("{variable} {why}")]
    ProxySetting { variable: &'static str, why: &'static str },
    #[error("the CA file {} can't be used: {why}", .path.display())]
    CaFile { path: PathBuf, why: String },
    #[error("the TLS client could not be set up")]
    TlsSetup(#[source] Cause),
    #[error("the host name of {to} could not be resolved")]
    Dns { to: String, source: Cause },
    #[error("no connection to {to} could be made")]
    Connect { to: String, source: Cause },
    #[error("no secure connection to {to} could be made")]
    Tls { to: String, source: Cause },
    #[error("there was no connection to {to} within {limit:?}")]
    ConnectTimeout { to: String, limit: Duration },
    #[error("{to} did not answer within {limit:?}")]
    Timeout { to: String, limit: Duration },
    #[error("the connection to {to} was closed before the answer was complete")]
    Closed { to: String, source: Cause },
    #[error("{to} answered something that isn't HTTP")]
    Protocol { to: String, source: Cause },
    #[error("the answer of {to} is larger than {limit} bytes")]
    TooLarge { to: String, limit: usize },
}

/// The innermost reason, as text, so that an error can be kept and shown later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause(pub String);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Cause {}

impl HttpError {
    /// Whether the receiver can't have seen anything of the request.
    pub fn before_sending(&self) -> bool {
        !matches!(
            self,
            HttpError::Timeout { .. }
                | HttpError::Closed { .. }
                | HttpError::Protocol { .. }
                | HttpError::TooLarge { .. }
        )
    }

    /// Message and reason in one line.
    pub fn line(&self) -> String {
        match self.source() {
            Some(cause) => format!("{self}: {cause}"),
            None => self.to_string(),
        }
    }
}

impl Explain for HttpError {
    fn code(&self) -> &'static str {
        match self {
            HttpError::Url { .. } => "http-url",
            HttpError::Header { .. } => "http-header",
            HttpError::ProxySetting { .. } => "http-proxy-setting",
            HttpError::CaFile { .. } => "http-ca-file",
            HttpError::TlsSetup(_) => "http-tls-setup",
            HttpError::Dns { .. } => "http-dns",
            HttpError::Connect { .. } => "http-connect",
            HttpError::Tls { .. } => "http-tls",
            HttpError::ConnectTimeout { .. } => "http-connect-timeout",
            HttpError::Timeout { .. } => "http-timeout",
            HttpError::Closed { .. } => "http-closed",
            HttpError::Protocol { .. } => "http-protocol",
            HttpError::TooLarge { .. } => "http-too-large",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            HttpError::Url { .. } => "give a URL such as https://host/path".into(),
            HttpError::Header { .. } => "correct CODA_NODE_CONNECT_HEADERS or the token".into(),
            HttpError::ProxySetting { variable, .. } => {
                format!("set {variable} to a URL such as http://proxy:3128, or unset it")
            }
            HttpError::CaFile { .. } => "point CODA_CA_FILE at a readable PEM file of certificates".into(),
            HttpError::TlsSetup(_) => return None,
            HttpError::Dns { .. } => "check the name, this machine's DNS and its network".into(),
            HttpError::Connect { .. } | HttpError::ConnectTimeout { .. } => {
                "check the address and port, and whether a firewall or proxy stands between".into()
            }
            HttpError::Tls { .. } => "check this machine's clock; for a private authority set CODA_CA_FILE \
                 to its PEM certificate"
                .into(),
            HttpError::Timeout { .. } | HttpError::Closed { .. } | HttpError::TooLarge { .. } => {
                return None;
            }
            HttpError::Protocol { .. } => "check that scheme and port belong together".into(),
        })
    }

    fn exit(&self) -> u8 {
        match self {
            HttpError::Url { .. }
            | HttpError::Header { .. }
            | HttpError::ProxySetting { .. }
            | HttpError::CaFile { .. } => exit::CONFIG,
            _ => exit::CLOUD,
        }
    }
}
