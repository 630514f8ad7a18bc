//! The HTTP client: every request of the host to other machines goes through it.
//!
//! HTTP/1.1 over TCP or TLS (system roots, plus a CA file from the settings), pooled, through the proxy that
//! the environment names (see [`super::proxy`]). One deadline covers a whole request, connecting and reading
//! the answer included. Redirects are never followed. The status of an answer is valid as soon as its head has
//! arrived; a body that breaks off afterwards is an error of the body alone. Errors tell in plain words how far
//! the request got, because a one-time token may have been used up by one that got far enough.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, PROXY_AUTHORIZATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::capture_connection;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::Instant;
use url::{Host, Url};

use super::error::Cause;
use super::proxy::{Proxies, ProxyConnector, ProxyRefusal, Unresolved};
use crate::config::settings::CloudSettings;
use crate::model::{Secret, cut};

pub use super::error::HttpError;
pub use super::proxy::is_loopback;

/// Largest answer that is read; the answers of the cloud have a few kilobytes.
const BODY_LIMIT: usize = 1 << 20;
/// Largest answer that is read from a service on this machine, which may send whole results.
const LOCAL_BODY_LIMIT: usize = 256 << 20;
/// Idle connections to services of this machine are kept this long.
const LOCAL_IDLE: Duration = Duration::from_secs(4);
/// Idle connections kept for each host: as many as there are ever posts at once.
const IDLE_PER_HOST: usize = 64;

/// Scheme, host and port of a URL.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Origin {
    pub https: bool,
    /// Lower case, IPv6 in brackets.
    pub host: Arc<str>,
    pub port: u16,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, usual) = if self.https { ("https", 443) } else { ("http", 80) };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port == usual { Ok(()) } else { write!(f, ":{}", self.port) }
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A URL ready to be requested. One parser decides both whom it names and where the request goes, so that
/// the two can't differ.
#[derive(Debug, Clone)]
pub struct Target {
    uri: Uri,
    origin: Origin,
}

impl Target {
    pub fn parse(text: &str) -> Result<Target, HttpError> {
        let wrong = |why: String| HttpError::Url { url: crate::model::masked_url(text), why };
        let mut url = Url::parse(text).map_err(|e| wrong(e.to_string()))?;
        let https = match url.scheme() {
            "https" => true,
            "http" => false,
            other => return Err(wrong(format!("its scheme is '{other}'"))),
        };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("it holds a user name or password".into()));
        }
        let host = match url.host() {
            Some(Host::Domain(name)) => Arc::from(name),
            Some(address) => Arc::from(address.to_string()),
            None => return Err(wrong("it names no host".into())),
        };
        let port = url.port_or_known_default().unwrap_or(if https { 443 } else { 80 });
        url.set_fragment(None);
        let uri = url.as_str().parse().map_err(|e: http::uri::InvalidUri| wrong(e.to_string()))?;
        Ok(Target { uri, origin: Origin { https, host, port } })
    }

    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// An Authorization header made once; its text is never shown.
#[derive(Clone)]
pub struct Bearer(HeaderValue);

impl Bearer {
    pub fn new(token: &Secret) -> Result<Bearer, HttpError> {
        // To the wire.
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| HttpError::Header {
                name: "authorization".into(),
                why: "the token holds characters that a header can't carry",
            })?;
        value.set_sensitive(true);
        Ok(Bearer(value))
    }

    /// A text of the receiver's without this token, which some servers echo.
    fn blot_out(&self, text: &str) -> String {
        let token = self.0.as_bytes().strip_prefix(b"Bearer ").and_then(|t| std::str::from_utf8(t).ok());
        match token {
            Some(token) if !token.is_empty() && text.contains(token) => text.replace(token, "***"),
            _ => text.to_owned(),
        }
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(***)")
    }
}

/// The settings' additional headers, checked.
pub fn header_map(headers: &[(String, Secret)]) -> Result<HeaderMap, HttpError> {
    let mut map = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let wrong = |why| HttpError::Header { name: name.clone(), why };
        let key = HeaderName::try_from(name.as_str()).map_err(|_| wrong("it isn't a header name"))?;
        if matches!(key.as_str(), "content-length" | "transfer-encoding" | "connection") {
            return Err(wrong("it would break the request, whose length is set here"));
        }
        let mut value = HeaderValue::from_str(value.expose())
            .map_err(|_| wrong("its value holds characters that a header can't carry"))?;
        value.set_sensitive(true);
        map.insert(key, value);
    }
    Ok(map)
}

/// A refusal's body without the values of our own headers, which some servers echo.
fn without(body: Bytes, sent: &HeaderMap) -> Bytes {
    // Shorter values are not secrets, and would hide half of the text.
    let secret = |v: &&str| v.len() >= 8 && memchr::memmem::find(&body, v.as_bytes()).is_some();
    let found: Vec<&str> = sent.values().filter_map(|v| v.to_str().ok()).filter(secret).collect();
    if found.is_empty() {
        return body;
    }
    let text = String::from_utf8_lossy(&body).into_owned();
    found.iter().fold(text, |text, v| text.replace(v, "***")).into()
}

/// An answer whose head has come.
#[derive(Debug)]
pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The whole body, or why it could not be read to its end.
    pub body: Result<Bytes, HttpError>,
}

impl Response {
    /// The first `max` characters of the body as text, empty when there is none, without the token.
    pub fn excerpt(&self, bearer: &Bearer, max: usize) -> String {
        let Ok(body) = &self.body else { return String::new() };
        // Blotted out before it is cut: a part of the token is a secret too.
        let text = bearer.blot_out(&String::from_utf8_lossy(body));
        cut(text.trim(), max).to_owned()
    }
}

/// An answer that goes on, or one that does not.
#[derive(Debug)]
pub enum Opened {
    Stream(AnswerStream),
    Refused(Response),
}

/// The body of an answer, as it comes.
#[derive(Debug)]
pub struct AnswerStream {
    body: Incoming,
    to: String,
}

impl AnswerStream {
    /// The next bytes; none at the end.
    ///
    /// # Errors
    /// When the connection breaks off, or nothing comes within the limit.
    pub async fn next(&mut self, limit: Duration) -> Result<Option<Bytes>, HttpError> {
        loop {
            match tokio::time::timeout(limit, self.body.frame()).await {
                Ok(None) => return Ok(None),
                // A frame without data has trailers.
                Ok(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Ok(Some(Err(error))) => {
                    return Err(HttpError::Closed { to: self.to.clone(), source: innermost(&error) });
                }
                Err(_) => return Err(HttpError::Timeout { to: self.to.clone(), limit }),
            }
        }
    }
}

/// Cheap to clone; all clones share their connections.
#[derive(Clone)]
pub struct HttpClient {
    inner: Client<HttpsConnector<ProxyConnector>, Full<Bytes>>,
    proxies: Arc<Proxies>,
    body_limit: usize,
}

impl HttpClient {
    pub fn new(settings: &CloudSettings) -> Result<HttpClient, HttpError> {
        HttpClient::with(settings, Proxies::from_env()?)
    }

    /// For services of this machine, as the development cloud: no proxy, large answers.
    pub fn local() -> Result<HttpClient, HttpError> {
        let tls = client_config(rustls::RootCertStore::empty())?;
        Ok(HttpClient::build(tls, Proxies::read(|_| None)?, LOCAL_IDLE, LOCAL_BODY_LIMIT))
    }

    fn with(settings: &CloudSettings, proxies: Proxies) -> Result<HttpClient, HttpError> {
        let tls = tls_config(settings.ca_file.as_deref())?;
        Ok(HttpClient::build(tls, proxies, settings.http_idle, BODY_LIMIT))
    }

    fn build(tls: rustls::ClientConfig, proxies: Proxies, idle: Duration, body_limit: usize) -> HttpClient {
        let (tls, proxies) = (Arc::new(tls), Arc::new(proxies));
        let connector = HttpsConnector::from((ProxyConnector::new(proxies.clone(), tls.clone()), tls));
        let inner = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(idle)
            .pool_max_idle_per_host(IDLE_PER_HOST)
            .build(connector);
        HttpClient { inner, proxies, body_limit }
    }

    /// Posts JSON. The headers in `extra` replace those that are set here.
    pub async fn post_json(
        &self,
        target: &Target,
        bearer: &Bearer,
        extra: &HeaderMap,
        body: Bytes,
        limit: Duration,
    ) -> Result<Response, HttpError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        let headers = request.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(AUTHORIZATION, bearer.0.clone());
        self.send(request, target, extra, limit).await
    }

    /// Posts JSON without showing a token.
    pub async fn post_plain(
        &self,
        target: &Target,
        body: Bytes,
        limit: Duration,
    ) -> Result<Response, HttpError> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        self.send(request, target, &HeaderMap::new(), limit).await
    }

    pub async fn get(&self, target: &Target, limit: Duration) -> Result<Response, HttpError> {
        self.send(Request::new(Full::default()), target, &HeaderMap::new(), limit).await
    }

    /// A request without a body, with the token if there is one.
    pub async fn request(
        &self,
        method: Method,
        target: &Target,
        bearer: Option<&Bearer>,
        limit: Duration,
    ) -> Result<Response, HttpError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = method;
        if let Some(bearer) = bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.0.clone());
        }
        self.send(request, target, &HeaderMap::new(), limit).await
    }

    /// Begins to read an answer that goes on. The limit is that of its head; an answer that is no success is read whole.
    pub async fn open(
        &self,
        target: &Target,
        bearer: Option<&Bearer>,
        extra: &HeaderMap,
        limit: Duration,
    ) -> Result<Opened, HttpError> {
        let mut request = Request::new(Full::default());
        if let Some(bearer) = bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.0.clone());
        }
        let deadline = Instant::now() + limit;
        let (head, body) = self.send_head(request, target, extra, (deadline, limit)).await?.into_parts();
        if head.status == StatusCode::OK {
            return Ok(Opened::Stream(AnswerStream { body, to: self.to(target) }));
        }
        let body = self.read_whole(body, target, (deadline, limit)).await;
        Ok(Opened::Refused(Response { status: head.status, headers: head.headers, body }))
    }

    /// Asks for the head alone; what a reachability probe needs.
    pub async fn head(
        &self,
        target: &Target,
        extra: &HeaderMap,
        limit: Duration,
    ) -> Result<Response, HttpError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::HEAD;
        self.send(request, target, extra, limit).await
    }

    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        target: &Target,
        extra: &HeaderMap,
        limit: Duration,
    ) -> Result<Response, HttpError> {
        let deadline = Instant::now() + limit;
        let answer = self.send_head(request, target, extra, (deadline, limit)).await?;
        let (head, body) = answer.into_parts();
        let body = self.read_whole(body, target, (deadline, limit)).await;
        let body = match head.status.is_success() {
            true => body,
            false => body.map(|body| without(body, extra)),
        };
        Ok(Response { status: head.status, headers: head.headers, body })
    }

    /// Sends a request and waits for the head of its answer, until a deadline that comes from a limit.
    async fn send_head(
        &self,
        mut request: Request<Full<Bytes>>,
        target: &Target,
        extra: &HeaderMap,
        (deadline, limit): (Instant, Duration),
    ) -> Result<http::Response<Incoming>, HttpError> {
        const AGENT: HeaderValue = HeaderValue::from_static(concat!("coda-host/", env!("CARGO_PKG_VERSION")));
        *request.uri_mut() = target.uri.clone();
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, AGENT);
        if let Some(authorization) = self.proxies.authorization(&target.uri) {
            headers.insert(PROXY_AUTHORIZATION, authorization);
        }
        for (name, value) in extra {
            headers.insert(name, value.clone());
        }
        let connection = capture_connection(&mut request);
        match tokio::time::timeout_at(deadline, self.inner.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.explain(target, &error)),
            Err(_) => {
                let to = self.to(target);
                Err(match connection.connection_metadata().is_some() {
                    true => HttpError::Timeout { to, limit },
                    false => HttpError::ConnectTimeout { to, limit },
                })
            }
        }
    }

    async fn read_whole(
        &self,
        body: Incoming,
        target: &Target,
        (deadline, limit): (Instant, Duration),
    ) -> Result<Bytes, HttpError> {
        let body = Limited::new(body, self.body_limit).collect();
        match tokio::time::timeout_at(deadline, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(e)) if e.is::<LengthLimitError>() => {
                Err(HttpError::TooLarge { to: self.to(target), limit: self.body_limit })
            }
            Ok(Err(error)) => {
                Err(HttpError::Closed { to: self.to(target), source: innermost(error.as_ref()) })
            }
            Err(_) => Err(HttpError::Timeout { to: self.to(target), limit }),
        }
    }

    /// The target for people, with the proxy on the way.
    fn to(&self, target: &Target) -> String {
        match self.proxies.name(&target.uri) {
            Some(proxy) => format!("{} (through the proxy {proxy})", target.origin),
            None => target.origin.to_string(),
        }
    }

    fn explain(&self, target: &Target, error: &hyper_util::client::legacy::Error) -> HttpError {
        let to = self.to(target);
        let source = innermost(error);
        if find::<Unresolved>(error).is_some() {
            return HttpError::Dns { to, source };
        }
        if let Some(tls) = find::<rustls::Error>(error) {
            return HttpError::Tls { to, source: Cause(tls_words(tls)) };
        }
        if let Some(refusal) = find::<ProxyRefusal>(error) {
            return HttpError::Connect { to, source: Cause(format!("{refusal}: {source}")) };
        }
        if error.is_connect() {
            return HttpError::Connect { to, source };
        }
        if find::<hyper::Error>(error).is_some_and(hyper::Error::is_parse) {
            return HttpError::Protocol { to, source };
        }
        HttpError::Closed { to, source }
    }
}

/// The first error of type `T` in the chain. An io::Error hides the error it carries from `source()`.
fn find<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        next = below(error);
    }
    None
}

fn below<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        Some(carried) => Some(carried),
        None => error.source(),
    }
}

fn innermost(error: &(dyn StdError + 'static)) -> Cause {
    let mut error = error;
    while let Some(next) = below(error) {
        error = next;
    }
    Cause(error.to_string())
}

fn tls_words(error: &rustls::Error) -> String {
    use rustls::{CertificateError as C, Error as E};
    match error {
        E::InvalidCertificate(C::UnknownIssuer) => {
            "its certificate is not signed by an authority that this machine trusts".into()
        }
        E::InvalidCertificate(C::Expired | C::ExpiredContext { .. }) => "its certificate has expired".into(),
        E::InvalidCertificate(C::NotValidYet | C::NotValidYetContext { .. }) => {
            "its certificate is not valid yet".into()
        }
        E::InvalidCertificate(C::NotValidForName | C::NotValidForNameContext { .. }) => {
            "its certificate belongs to another host name".into()
        }
        E::InvalidCertificate(C::Other(other)) if is_ca_as_server(other) => {
            "its certificate is that of a certificate authority (CA:TRUE), which a server may not use as its own; \
             the server needs one that is signed by it (CA:FALSE)"
                .into()
        }
        E::InvalidMessage(_) => "it doesn't speak TLS on that port".into(),
        other => other.to_string(),
    }
}

/// Whether a server has sent the certificate of an authority as its own. Such a one is typical of test servers, and
/// trusting it does not help.
fn is_ca_as_server(error: &rustls::OtherError) -> bool {
    // The verifier's own type is none of our dependencies.
    error.0.to_string().contains("CaUsedAsEndEntity")
}

fn tls_config(ca_file: Option<&Path>) -> Result<rustls::ClientConfig, HttpError> {
    let mut roots = rustls::RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    if let Some(error) = system.errors.first() {
        let count = system.errors.len();
        tracing::warn!(%error, count, "some of the system's trusted certificates could not be read");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = ca_file {
        let wrong = |why: String| HttpError::CaFile { path: path.to_path_buf(), why };
        let text = std::fs::read(path).map_err(|e| wrong(e.to_string()))?;
        let mut added = 0;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|e| wrong(e.to_string()))?;
            roots.add(certificate).map_err(|e| wrong(e.to_string()))?;
            added += 1;
        }
        if added == 0 {
            return Err(wrong("it holds no PEM certificate".into()));
        }
    }
    if roots.is_empty() {
        tracing::warn!("this machine trusts no certificate authority: https will fail (ca-certificates)");
    }
    client_config(roots)
}

fn client_config(roots: rustls::RootCertStore) -> Result<rustls::ClientConfig, HttpError> {
    // The provider is named, not taken from the process: a library must not depend on what main installed.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| HttpError::TlsSetup(Cause(e.to_string())))?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
