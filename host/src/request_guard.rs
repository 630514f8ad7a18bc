//! Pure: which requests a service on loopback takes. A page in a browser is on loopback too: it can send requests there
//! without asking, with its own origin, under a name that it has bound to loopback, or with a plain content type.

use http::{HeaderMap, Method, StatusCode, header};

use crate::cloud::http::is_loopback;

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    #[error("the Host header does not name this machine: use 127.0.0.1 or localhost")]
    Host,
    #[error("the Origin header names another site: pages of other sites may not use this service")]
    Origin,
    #[error("the Content-Type must be application/json")]
    ContentType,
}

impl GuardError {
    pub fn status(self) -> StatusCode {
        match self {
            GuardError::Host | GuardError::Origin => StatusCode::FORBIDDEN,
            GuardError::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        }
    }
}

/// Checks whom a request names, and where the page behind it comes from.
///
/// # Errors
/// When the Host header, or an Origin header, names anything but this machine.
pub fn check_site(headers: &HeaderMap) -> Result<(), GuardError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
    if !text(header::HOST).is_some_and(is_here) {
        return Err(GuardError::Host);
    }
    match text(header::ORIGIN) {
        None => Ok(()),
        Some(origin) => match origin.split_once("://") {
            Some(("http" | "https", host)) if is_here(host) => Ok(()),
            // Also `null`, the origin of sandboxed pages and files.
            Some(_) | None => Err(GuardError::Origin),
        },
    }
}

/// Checks that a request that changes something declares JSON, which a page can't send without asking first.
///
/// # Errors
/// When it declares anything else.
pub fn check_content_type(method: &Method, headers: &HeaderMap) -> Result<(), GuardError> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media_type = declared.split(';').next().unwrap_or_default().trim();
    let only_reads = *method == Method::GET || *method == Method::HEAD;
    match only_reads || media_type.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(GuardError::ContentType),
    }
}

/// Whether `host` or `host:port` is this machine.
fn is_here(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.chars().all(|c| c.is_ascii_digit()) => name,
        _ => host,
    };
    !name.is_empty() && is_loopback(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (header::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn only_this_machine_is_named() {
        for host in ["localhost", "LOCALHOST:1", "[::1]:80", "[::1]", "127.0.0.2", "127.0.0.1:8090"] {
            assert_eq!(check_site(&headers(&[("host", host)])), Ok(()), "{host}");
        }
        for host in ["localhost.evil.example", "192.0.2.1", "127.0.0.1.evil.example", "", ":80"] {
            assert_eq!(check_site(&headers(&[("host", host)])), Err(GuardError::Host), "{host}");
        }
        assert_eq!(check_site(&headers(&[])), Err(GuardError::Host));
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let check = |origin: &str| check_site(&headers(&[("host", "localhost"), ("origin", origin)]));
        for origin in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:1"] {
            assert_eq!(check(origin), Ok(()), "{origin}");
        }
        for origin in ["https://evil.example", "null", "", "http://localhost.evil.example", "file://"] {
            assert_eq!(check(origin), Err(GuardError::Origin), "{origin}");
        }
    }

    #[test]
    fn what_changes_something_is_json() {
        let check = |method: Method, value: &str| {
            check_content_type(&method, &headers(&[("content-type", value)])).is_ok()
        };
        assert!(
            check(Method::POST, "application/json") && check(Method::POST, "Application/JSON; charset=utf-8")
        );
        assert!(check(Method::GET, "") && check(Method::HEAD, "text/plain"));
        for value in ["", "text/plain", "application/jsonp", "multipart/form-data"] {
            assert!(!check(Method::POST, value) && !check(Method::DELETE, value), "{value}");
        }
        assert!(check_content_type(&Method::POST, &headers(&[])).is_err());
    }
}
