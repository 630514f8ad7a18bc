//! Connects to a host: directly, or through the proxy that the environment names.
//!
//! `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` are read, in upper or lower case, upper case first; an
//! empty variable is treated as unset. A password may hold an `@`, as for curl: the last one ends it. https goes through a CONNECT tunnel, plain http is forwarded by the proxy. Loopback
//! is never proxied, whatever the variables say: a proxy's loopback is another machine. SOCKS is not supported.

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::dns::{GaiAddrs, GaiResolver, Name};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tower_service::Service;

use super::error::HttpError;
use super::no_proxy::NoProxy;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// The rules of the environment, read once.
pub(super) struct Proxies {
    rules: Option<Matcher>,
    exempt: NoProxy,
}

impl Proxies {
    pub(super) fn from_env() -> Result<Proxies, HttpError> {
        Proxies::read(|name| std::env::var(name).ok())
    }

    pub(super) fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Proxies, HttpError> {
        let get = |name: &str| {
            let set = |n: &str| lookup(n).filter(|v| !v.trim().is_empty()).map(|v| v.trim().to_owned());
            set(name).or_else(|| set(&name.to_lowercase()))
        };
        let proxy = |name: &'static str| -> Result<String, HttpError> {
            let Some(value) = get(name) else { return Ok(String::new()) };
            let value = escaped(&value).map_err(|why| HttpError::ProxySetting { variable: name, why })?;
            // A matcher silently drops a value that it can't read.
            let probe = Matcher::builder().all(value.as_str()).build();
            let why = match probe.intercept(&Uri::from_static("http://probe.invalid/")) {
                Some(proxy) if matches!(proxy.uri().scheme_str(), Some("http" | "https")) => {
                    return Ok(value);
                }
                Some(_) => "names a SOCKS proxy, and only http:// and https:// proxies are supported",
                None => "is not the URL of a proxy",
            };
            Err(HttpError::ProxySetting { variable: name, why })
        };
        let (http, https, all) = (proxy("HTTP_PROXY")?, proxy("HTTPS_PROXY")?, proxy("ALL_PROXY")?);
        if http.is_empty() && https.is_empty() && all.is_empty() {
            return Ok(Proxies { rules: None, exempt: NoProxy::default() });
        }
        let (exempt, ignored) = NoProxy::read(&get("NO_PROXY").unwrap_or_default());
        for entry in ignored {
            tracing::warn!(
                entry,
                "an entry of NO_PROXY is ignored; expected are a name, an address, a network, or * (with a port at most)"
            );
        }
        Ok(Proxies { rules: Some(Matcher::builder().http(http).https(https).all(all).build()), exempt })
    }

    fn find(&self, target: &Uri) -> Option<Intercept> {
        let (rules, host) = (self.rules.as_ref()?, target.host()?);
        let port = target.port_u16().or(match target.scheme_str() {
            Some("https") => Some(443),
            _ => Some(80),
        });
        if is_loopback(host) || self.exempt.exempts(host, port) { None } else { rules.intercept(target) }
    }

    /// Returns the `Proxy-Authorization` header of a plain request that a proxy forwards.
    pub(super) fn authorization(&self, target: &Uri) -> Option<HeaderValue> {
        if target.scheme_str() != Some("http") {
            return None;
        }
        self.find(target)?.basic_auth().cloned()
    }

    /// Returns `host:port` of the proxy that leads to the target.
    pub(super) fn name(&self, target: &Uri) -> Option<String> {
        Some(host_and_port(self.find(target)?.uri()))
    }
}

/// Where a proxy is, without its user and password.
fn host_and_port(proxy: &Uri) -> String {
    let host = proxy.host().unwrap_or_default();
    proxy.port().map_or_else(|| host.to_string(), |port| format!("{host}:{port}"))
}

/// The URL of a proxy with a user and password that every parser reads in the same way: up to the last `@` of the
/// authority, with what is special in a URL escaped.
///
/// # Errors
/// When a part of the password could be taken for the host.
fn escaped(value: &str) -> Result<String, &'static str> {
    let (scheme, rest) = value.split_once("://").map_or(("", value), |(scheme, rest)| (scheme, rest));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    if tail.contains('@') {
        return Err("has '/', '?' or '#' in its password; write them as %2F, %3F and %23");
    }
    let Some((user, host)) = authority.rsplit_once('@') else { return Ok(value.to_string()) };
    let mut escaped = String::with_capacity(value.len());
    if !scheme.is_empty() {
        escaped = format!("{scheme}://");
    }
    for (at, byte) in user.bytes().enumerate() {
        let is_escape = byte == b'%'
            && user.as_bytes().get(at + 1..at + 3).is_some_and(|d| d.iter().all(u8::is_ascii_hexdigit));
        match byte {
            b'-' | b'.' | b'_' | b'~' | b':' => escaped.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() || is_escape => escaped.push(byte.into()),
            // Writing to a String can't fail.
            byte => drop(write!(escaped, "%{byte:02X}")),
        }
    }
    Ok(format!("{escaped}@{host}{tail}"))
}

/// `localhost`, names below it, and the loopback addresses.
pub fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
    if let Ok(address) = host.parse::<std::net::IpAddr>() {
        return address.to_canonical().is_loopback();
    }
    let host = host.to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

/// Connects to the target's host, or to the proxy that leads there. TLS with the target comes on top.
#[derive(Clone)]
pub(super) struct ProxyConnector {
    proxies: Arc<Proxies>,
    tcp: HttpConnector<Resolver>,
    /// Connects to a proxy, which may itself require TLS.
    to_proxy: HttpsConnector<HttpConnector<Resolver>>,
}

impl ProxyConnector {
    pub(super) fn new(proxies: Arc<Proxies>, tls: Arc<rustls::ClientConfig>) -> ProxyConnector {
        let mut tcp = HttpConnector::new_with_resolver(Resolver(GaiResolver::new()));
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let to_proxy = HttpsConnector::from((tcp.clone(), tls));
        ProxyConnector { proxies, tcp, to_proxy }
    }
}

impl Service<Uri> for ProxyConnector {
    type Response = Stream;
    type Error = BoxError;
    type Future = BoxFuture<Stream>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.find(&target) else {
            let connecting = self.tcp.call(target);
            return Box::pin(async {
                Ok(Stream { io: MaybeHttpsStream::Http(connecting.await?), forwarded: false })
            });
        };
        if target.scheme_str() == Some("https") {
            let mut tunnel = Tunnel::new(proxy.uri().clone(), self.to_proxy.clone());
            if let Some(authorization) = proxy.basic_auth() {
                tunnel = tunnel.with_auth(authorization.clone());
            }
            let connecting = tunnel.call(target);
            return Box::pin(async move {
                let io = connecting.await.map_err(|e| {
                    BoxError::from(ProxyRefusal { at: host_and_port(proxy.uri()), source: e.into() })
                })?;
                Ok(Stream { io, forwarded: false })
            });
        }
        let connecting = self.to_proxy.call(proxy.uri().clone());
        Box::pin(async move { Ok(Stream { io: connecting.await?, forwarded: true }) })
    }
}

/// The proxy refused to open a tunnel.
#[derive(Debug, thiserror::Error)]
#[error("the proxy {at} opened no tunnel")]
pub(super) struct ProxyRefusal {
    at: String,
    source: BoxError,
}

/// A host name without an address, as a separate type so that it differs from other connection failures.
#[derive(Debug, thiserror::Error)]
#[error("the name could not be resolved")]
pub(super) struct Unresolved(#[source] std::io::Error);

/// The system's resolver, with its failures marked.
#[derive(Clone)]
pub(super) struct Resolver(GaiResolver);

impl Service<Name> for Resolver {
    type Response = GaiAddrs;
    type Error = Unresolved;
    type Future = Pin<Box<dyn Future<Output = Result<GaiAddrs, Unresolved>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Unresolved>> {
        self.0.poll_ready(cx).map_err(Unresolved)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let resolving = self.0.call(name);
        Box::pin(async { resolving.await.map_err(Unresolved) })
    }
}

/// A connection to the target or its proxy. With `forwarded`, requests name the whole URL. `Read` and `Write` are
/// delegated by hand, because only this type reports [`Connected::proxy`].
pub(super) struct Stream {
    io: MaybeHttpsStream<TokioIo<TcpStream>>,
    forwarded: bool,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.forwarded)
    }
}

impl Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxy_of(variables: &[(&str, &str)], target: &str) -> Option<String> {
        let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_string());
        Proxies::read(lookup).unwrap().name(&target.parse().unwrap())
    }

    #[test]
    fn the_usual_variables_choose_the_proxy() {
        let some = |s: &str| Some(s.to_string());
        assert_eq!(proxy_of(&[], "https://coda.example/"), None);
        assert_eq!(proxy_of(&[("https_proxy", "http://p:1")], "https://coda.example/"), some("p:1"));
        assert_eq!(proxy_of(&[("https_proxy", "http://p:1")], "http://coda.example/"), None);
        assert_eq!(proxy_of(&[("HTTP_PROXY", "p:2")], "http://coda.example/"), some("p:2"));
        assert_eq!(proxy_of(&[("ALL_PROXY", "http://p:3")], "https://coda.example/"), some("p:3"));
        let both = [("HTTPS_PROXY", ""), ("https_proxy", "http://p:4")];
        assert_eq!(proxy_of(&both, "https://coda.example/"), some("p:4"), "an empty variable is unset");
        let exempt = [("ALL_PROXY", "http://p:5"), ("no_proxy", "example, 10.0.0.0/8")];
        assert_eq!(proxy_of(&exempt, "https://coda.example/"), None);
        assert_eq!(proxy_of(&exempt, "https://10.1.2.3/"), None);
        assert_eq!(proxy_of(&exempt, "https://coda.example.org/"), some("p:5"));
        let ports = [("ALL_PROXY", "http://p:5"), ("NO_PROXY", "*.example:443 [2001:db8::1]")];
        assert_eq!(proxy_of(&ports, "https://coda.example/"), None);
        assert_eq!(proxy_of(&ports, "http://coda.example/"), some("p:5"), "another port");
        assert_eq!(proxy_of(&ports, "https://[2001:db8::1]:8443/"), None);
    }

    #[test]
    fn no_part_of_a_password_is_shown_and_all_of_it_is_sent() {
        for (value, sent) in [
            ("http://u:p%40ss@p:1", "u:p@ss"),
            ("http://u:p@ss@p:1", "u:p@ss"),
            ("u:p@ss@p:1", "u:p@ss"),
            ("http://u:p@s@s w%rd@p:1/", "u:p@s@s w%rd"),
            ("http://u:hunter2:3@p:1", "u:hunter2:3"),
        ] {
            let lookup = |name: &str| (name == "ALL_PROXY").then(|| value.to_string());
            let proxies = Proxies::read(lookup).unwrap();
            let target = "http://coda.example/".parse().unwrap();
            assert_eq!(proxies.name(&target).as_deref(), Some("p:1"), "{value}");
            let header = proxies.authorization(&target).unwrap();
            let expected = format!("Basic {}", base64(sent.as_bytes()));
            assert_eq!(header.to_str().unwrap(), expected, "{value}");
        }
        for value in ["http://u:1/hunter2@p:1", "http://u:1?hunter2@p:1", "http://u:1#hunter2@p:1"] {
            let lookup = |name: &str| (name == "ALL_PROXY").then(|| value.to_string());
            let error = Proxies::read(lookup).err().unwrap().to_string();
            assert!(error.contains("%2F") && !error.contains("hunter2"), "{error}");
        }
    }

    /// RFC 4648, for the header that is expected.
    fn base64(bytes: &[u8]) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |chunk: &[u8]| {
            let n = chunk.iter().enumerate().fold(0_u32, |n, (i, b)| n | u32::from(*b) << (16 - 8 * i));
            (0..4)
                .map(
                    |i| if i <= chunk.len() { DIGITS[(n >> (18 - 6 * i) & 63) as usize].into() } else { '=' },
                )
                .collect::<String>()
        };
        bytes.chunks(3).map(group).collect()
    }

    #[test]
    fn loopback_is_never_proxied() {
        let all = [("ALL_PROXY", "http://p:1")];
        for host in ["localhost", "127.0.0.1", "127.8.0.1", "[::1]", "LOCALHOST", "a.localhost"] {
            assert_eq!(proxy_of(&all, &format!("http://{host}:80/")), None, "{host}");
        }
        assert!(proxy_of(&all, "http://localhost.example/").is_some());
        assert!(is_loopback("::ffff:127.0.0.1") && !is_loopback("128.0.0.1"));
    }

    #[test]
    fn a_variable_that_names_no_usable_proxy_is_an_error() {
        let error = |value: &str| {
            let lookup = |name: &str| (name == "HTTPS_PROXY").then(|| value.to_string());
            Proxies::read(lookup).err().unwrap().to_string()
        };
        assert!(error("socks5://u:secret@p:1").starts_with("HTTPS_PROXY names a SOCKS proxy"));
        let text = error("http://bad host");
        assert_eq!(text, "HTTPS_PROXY is not the URL of a proxy");
        assert!(!error("ftp://u:secret@p").contains("secret"));
    }
}
