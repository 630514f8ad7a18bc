//! The connect request: shows a one-time token or a signed token, brings back the bundle's bytes.
//!
//! Server errors and transport errors are tried again with growing pauses up to the number of attempts; any
//! other refusal ends it at once. An attempt that may have reached the cloud may have used the token up, so
//! a refusal after it is explained differently. An answer's excerpt is shown with the token blotted out.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};

use super::http::{Bearer, HttpClient, HttpError, Target, header_map};
use crate::backoff::Backoff;
use crate::config::settings::CloudSettings;
use crate::error::{Explain, exit};

/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// How many characters of a refusal are shown.
const EXCERPT: usize = 400;

/// The credential that a connect presents, as far as the hint of an error depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PresentedCredential {
    /// `stored`: usable credentials of an earlier provisioning exist.
    Token { stored: bool },
    /// A token that was signed with the stored key.
    Key,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum ConnectError {
    #[error("the connect request can't be made")]
    Request(#[source] HttpError),
    #[error("Node request failed ({}): {excerpt}", .status.as_u16())]
    Refused {
        status: StatusCode,
        excerpt: String,
        location: Option<String>,
        shown: PresentedCredential,
        /// An earlier attempt may have used the token up.
        maybe_used: bool,
    },
    #[error("Node connect failed after {attempts} attempts: {last}")]
    Failed { attempts: u32, last: String, hint: Option<String>, shown: PresentedCredential, maybe_used: bool },
}

impl Explain for ConnectError {
    fn code(&self) -> &'static str {
        match self {
            ConnectError::Request(e) => e.code(),
            ConnectError::Refused { .. } => "connect-refused",
            ConnectError::Failed { .. } => "connect-failed",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            ConnectError::Request(e) => e.hint(),
            ConnectError::Refused { status, location, shown, maybe_used, .. } => {
                Some(advice(status.as_u16(), location.as_deref(), *shown, *maybe_used))
            }
            ConnectError::Failed { hint, shown, maybe_used, .. } => {
                let lost = matches!(shown, PresentedCredential::Token { .. }) && *maybe_used;
                let lost = lost.then(|| {
                    "get a new token if this one is refused next time, because an attempt may have used it up"
                        .to_owned()
                });
                let parts: Vec<String> = hint.iter().cloned().chain(lost).collect();
                (!parts.is_empty()).then(|| parts.join("; "))
            }
        }
    }

    fn exit(&self) -> u8 {
        match self {
            ConnectError::Request(e) => e.exit(),
            _ => exit::CLOUD,
        }
    }
}

fn advice(status: u16, location: Option<&str>, shown: PresentedCredential, maybe_used: bool) -> String {
    match (status, shown) {
        (300..=399, _) => {
            let to = location.unwrap_or("another address");
            return format!("set CODA_WEBAPP_URL to the cloud's new address, {to}");
        }
        (404 | 405, _) => return "check CODA_WEBAPP_URL and CODA_CONNECT_PATH".into(),
        (400 | 422, _) => {
            return "compare the device that the executor reports (qubits, connectivity) with the QPU's \
                    registration in Coda"
                .into();
        }
        _ => (),
    }
    let advice = match shown {
        PresentedCredential::Token { stored: true } => {
            "remove CODA_NODE_TOKEN (or --token) to reconnect, because stored credentials of an earlier provisioning \
             exist; to provision again, get a new node token"
        }
        PresentedCredential::Token { stored: false } if maybe_used => {
            "get a new node token in Coda: this one was probably used up by an attempt whose answer got lost"
        }
        PresentedCredential::Token { stored: false } => {
            "get a new node token in Coda: this one was used before, revoked, or has expired"
        }
        PresentedCredential::Key if status == 409 => {
            "run `coda-host reset` and start with a new node token, because the cloud no longer knows this QPU"
        }
        PresentedCredential::Key => {
            "check this machine's clock, then run `coda-host reset` and start with a new node token: the cloud does not \
             accept the stored key"
        }
    };
    advice.into()
}

/// The request's body. `connectivity` is left out when the executor reports none, sent as `[]` when it is
/// empty.
pub fn body(fingerprint: &str, connectivity: Option<&[(u16, u16)]>) -> Bytes {
    let mut body = json!({ "machine_fingerprint": fingerprint });
    if let Some(edges) = connectivity {
        body["connectivity"] = Value::from_iter(edges.iter().map(|&(a, b)| json!([a, b])));
    }
    body.to_string().into()
}

/// Sends the connect request until the cloud answers or no attempt is left.
pub async fn request(
    client: &HttpClient,
    cloud: &CloudSettings,
    bearer: &Bearer,
    shown: PresentedCredential,
    body: Bytes,
) -> Result<Bytes, ConnectError> {
    let target = Target::parse(&format!("{}{}", cloud.webapp_url, cloud.connect_path))
        .map_err(ConnectError::Request)?;
    let extra = header_map(&cloud.connect_headers).map_err(ConnectError::Request)?;
    let attempts = cloud.connect_attempts.max(1);
    let mut maybe_used = false;
    let mut backoff = Backoff::new(cloud.connect_backoff, LONGEST_PAUSE);
    let mut attempt = 1;
    loop {
        let sent = client.post_json(&target, bearer, &extra, body.clone(), cloud.timeout).await;
        let (last, hint) = match sent {
            Ok(answer) if answer.status.is_server_error() => {
                // 503 says that nothing was done; the others may have been raised on the way back.
                maybe_used |= answer.status != StatusCode::SERVICE_UNAVAILABLE;
                let excerpt = answer.excerpt(bearer, EXCERPT);
                (format!("Node request failed ({}): {excerpt}", answer.status.as_u16()), None)
            }
            Ok(answer) if answer.status.is_success() => match answer.body {
                Ok(body) => return Ok(body),
                Err(error) => {
                    maybe_used = true;
                    (error.line(), error.hint())
                }
            },
            Ok(answer) => {
                return Err(ConnectError::Refused {
                    status: answer.status,
                    excerpt: answer.excerpt(bearer, EXCERPT),
                    location: location(&answer.headers),
                    shown,
                    maybe_used,
                });
            }
            Err(error) => {
                maybe_used |= !error.before_sending();
                (error.line(), error.hint())
            }
        };
        if attempt >= attempts {
            return Err(ConnectError::Failed { attempts, last, hint, shown, maybe_used });
        }
        let pause = backoff.after_failure(rand::random());
        tracing::warn!(attempt, attempts, retry_in = ?pause, "connecting to Coda failed: {last}");
        tokio::time::sleep(pause).await;
        attempt += 1;
    }
}

fn location(headers: &http::HeaderMap) -> Option<String> {
    let text = headers.get(http::header::LOCATION)?.to_str().ok()?;
    Some(crate::model::cut(text, 200).to_owned())
}
