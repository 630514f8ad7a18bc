//! The client against real sockets and real TLS on loopback.

use super::*;
use crate::cloud::testing::{Reply, answer, read_request, scripted, settings};
use crate::error::Explain as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(400);

fn direct(settings: &CloudSettings) -> HttpClient {
    HttpClient::with(settings, Proxies::read(|_| None).unwrap()).unwrap()
}

fn client() -> HttpClient {
    direct(&settings("http://unused"))
}

fn text(response: &Response) -> String {
    response.excerpt(&Bearer::new(&Secret::new("tok.en")).unwrap(), 30)
}

async fn post(client: &HttpClient, url: &str, limit: Duration) -> Result<Response, HttpError> {
    let bearer = Bearer::new(&Secret::new("tok.en")).unwrap();
    let body = Bytes::from_static(b"{\"a\":1}");
    client.post_json(&Target::parse(url).unwrap(), &bearer, &HeaderMap::new(), body, limit).await
}

#[tokio::test]
async fn a_request_is_complete_and_its_connection_reused() {
    let mut server = scripted(vec![answer("200 OK", "fine")], None).await;
    let client = client();
    let url = format!("{}/p/q?x=1#part", server.url);
    for _ in 0..2 {
        let response = post(&client, &url, LONG).await.unwrap();
        assert_eq!((response.status.as_u16(), text(&response)), (200, "fine".into()));
    }
    let (_, first) = server.seen.recv().await.unwrap();
    assert!(first.starts_with("POST /p/q?x=1 HTTP/1.1\r\n"), "{first}");
    let (head, body) = first.split_once("\r\n\r\n").unwrap();
    for line in ["content-type: application/json", "authorization: Bearer tok.en", "content-length: 7"] {
        assert!(head.to_ascii_lowercase().contains(&line.to_ascii_lowercase()), "{line} in {head}");
    }
    assert!(head.contains("user-agent: coda-host/") && head.contains("host: localhost:"), "{head}");
    assert_eq!(body, "{\"a\":1}");
    assert_eq!(server.seen.recv().await.unwrap().0, 0, "the second request came on the first connection");
}

#[test]
fn an_excerpt_is_cut_between_characters_and_never_holds_the_token() {
    let bearer = Bearer::new(&Secret::new("tok.en")).unwrap();
    let excerpt = |body: &'static [u8], max| {
        let body = Ok(Bytes::from_static(body));
        Response { status: StatusCode::BAD_REQUEST, headers: HeaderMap::new(), body }.excerpt(&bearer, max)
    };
    assert_eq!(excerpt("  aé🙏z".as_bytes(), 3), "aé🙏");
    assert_eq!(excerpt(b"no tok.en here", 6), "no ***");
    assert_eq!(excerpt(b"bad tok.en", 7), "bad ***", "not even a part of it");
    assert_eq!(excerpt(b"a\xff\0b", 9), "a\u{fffd}\0b");
}

#[tokio::test]
async fn additional_headers_are_laid_over_ours() {
    let mut server = scripted(vec![answer("200 OK", "")], None).await;
    let extra =
        header_map(&[("X-Bypass".into(), Secret::new("s3")), ("user-agent".into(), Secret::new("me"))])
            .unwrap();
    let target = Target::parse(&server.url).unwrap();
    let bearer = Bearer::new(&Secret::new("t")).unwrap();
    client().post_json(&target, &bearer, &extra, Bytes::new(), LONG).await.unwrap();
    let (_, head) = server.seen.recv().await.unwrap();
    assert!(head.contains("x-bypass: s3") && head.contains("user-agent: me\r\n"), "{head}");
    assert!(!format!("{extra:?} {bearer:?}").contains("s3"));
    for (name, value) in [("bad name", "x"), ("X-A", "a\nb"), ("Content-Length", "5")] {
        let error = header_map(&[(name.into(), Secret::new(value))]).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[tokio::test]
async fn redirects_are_handed_back_not_followed() {
    let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let server = scripted(vec![Reply::Keep(moved.into())], None).await;
    let response = post(&client(), &server.url, LONG).await.unwrap();
    assert_eq!(response.status.as_u16(), 302);
    assert_eq!(response.headers["location"], "http://127.0.0.1:1/");
}

#[tokio::test]
async fn failures_to_connect_say_so_in_plain_words() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = post(&client(), &format!("http://{free}/"), LONG).await.unwrap_err();
    assert!(matches!(error, HttpError::Connect { .. }) && error.before_sending(), "{error:?}");
    assert_eq!(
        error.line(),
        format!("no connection to http://{free} could be made: Connection refused (os error 111)")
    );

    // A label of 70 characters is not a name: the resolver refuses it without asking anyone.
    let name = "x".repeat(70);
    let error = post(&client(), &format!("http://{name}/"), LONG).await.unwrap_err();
    assert!(matches!(error, HttpError::Dns { .. }) && error.before_sending(), "{error:?}");
    let start = format!("the host name of http://{name} could not be resolved: failed to lookup");
    assert!(error.line().starts_with(&start), "{}", error.line());
}

#[tokio::test]
async fn a_server_that_never_answers_meets_the_deadline() {
    let server = scripted(vec![Reply::Hang], None).await;
    let error = post(&client(), &server.url, SHORT).await.unwrap_err();
    assert_eq!(error.to_string(), format!("{} did not answer within 400ms", server.url));
    assert!(!error.before_sending());
}

#[tokio::test]
async fn a_handshake_that_hangs_is_no_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let error = post(&client(), &url, SHORT).await.unwrap_err();
    assert!(matches!(error, HttpError::ConnectTimeout { .. }) && error.before_sending(), "{error:?}");
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_told_from_none_at_all() {
    let partial = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc";
    let server = scripted(vec![Reply::Close(partial.into()), Reply::Close(String::new())], None).await;
    let response = post(&client(), &server.url, LONG).await.unwrap();
    assert_eq!(response.status.as_u16(), 200);
    assert!(matches!(response.body, Err(HttpError::Closed { .. })), "{:?}", response.body);
    assert_eq!(text(&response), "");

    let error = post(&client(), &server.url, LONG).await.unwrap_err();
    assert!(matches!(error, HttpError::Closed { .. }) && !error.before_sending(), "{error:?}");
}

#[tokio::test]
async fn a_body_that_hangs_or_never_ends_leaves_the_status() {
    let head = "HTTP/1.1 202 Accepted\r\nContent-Length: 9999999\r\n\r\n";
    let long = format!("{head}{}", "x".repeat(BODY_LIMIT + 1));
    let server = scripted(vec![Reply::Keep(head.into()), Reply::Keep(long)], None).await;
    let response = post(&client(), &server.url, SHORT).await.unwrap();
    assert_eq!(response.status.as_u16(), 202);
    assert!(matches!(response.body, Err(HttpError::Timeout { .. })), "{:?}", response.body);
    let response = post(&client(), &server.url, LONG).await.unwrap();
    assert!(matches!(response.body, Err(HttpError::TooLarge { .. })), "{:?}", response.body);
}

#[tokio::test]
async fn what_is_not_http_is_named() {
    let server = scripted(vec![Reply::Close("SSH-2.0-OpenSSH_9.2\r\n".into())], None).await;
    let error = post(&client(), &server.url, LONG).await.unwrap_err();
    assert!(matches!(error, HttpError::Protocol { .. }), "{error:?}");

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        read_request(&mut stream).await
    });
    let error = post(&client(), &url, LONG).await.unwrap_err();
    assert!(error.line().ends_with("it doesn't speak TLS on that port"), "{}", error.line());
}

/// A server config with its own authority, and that authority as PEM.
fn tls_server(name: &str) -> (Arc<rustls::ServerConfig>, String) {
    let made = rcgen::generate_simple_self_signed([name.to_string()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (Arc::new(config), made.cert.pem())
}

#[tokio::test]
async fn tls_trusts_the_ca_file_and_nobody_else() {
    let d = tempfile::tempdir().unwrap();
    let ca = d.path().join("ca.pem");
    let (config, pem) = tls_server("localhost");
    std::fs::write(&ca, pem).unwrap();
    let trusting = direct(&CloudSettings { ca_file: Some(ca.clone()), ..settings("https://unused") });
    let server = scripted(vec![answer("200 OK", "hi")], Some(config)).await;
    assert_eq!(text(&post(&trusting, &server.url, LONG).await.unwrap()), "hi");

    let error = post(&client(), &server.url, LONG).await.unwrap_err();
    assert!(error.before_sending());
    assert_eq!(
        error.line(),
        format!(
            "no secure connection to {} could be made: its certificate is not signed by an authority \
             that this machine trusts",
            server.url
        )
    );
    assert!(error.hint().unwrap().contains("CODA_CA_FILE"));

    let (config, pem) = tls_server("elsewhere.example");
    std::fs::write(&ca, pem).unwrap();
    let trusting = direct(&CloudSettings { ca_file: Some(ca.clone()), ..settings("https://unused") });
    let server = scripted(vec![answer("200 OK", "hi")], Some(config)).await;
    let error = post(&trusting, &server.url, LONG).await.unwrap_err();
    assert!(error.line().ends_with("its certificate belongs to another host name"), "{}", error.line());
}

/// What `openssl req -x509` makes: a certificate of an authority, which a server then uses as its own.
#[tokio::test]
async fn the_certificate_of_an_authority_in_a_servers_place_is_the_servers_mistake() {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(["localhost".to_string()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap();
    let der = rustls::pki_types::PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der)
        .unwrap();
    let d = tempfile::tempdir().unwrap();
    let ca = d.path().join("ca.pem");
    std::fs::write(&ca, certificate.pem()).unwrap();
    let trusting = direct(&CloudSettings { ca_file: Some(ca), ..settings("https://unused") });
    let server = scripted(vec![answer("200 OK", "hi")], Some(config.into())).await;
    let error = post(&trusting, &server.url, LONG).await.unwrap_err();
    let line = error.line();
    assert!(line.contains("certificate authority (CA:TRUE)") && line.contains("the server needs"), "{line}");
}

#[test]
fn a_ca_file_without_certificates_is_an_error() {
    let d = tempfile::tempdir().unwrap();
    let ca = d.path().join("ca.pem");
    let with = |ca: &Path| {
        let settings = CloudSettings { ca_file: Some(ca.into()), ..settings("https://unused") };
        HttpClient::new(&settings).err().unwrap().to_string()
    };
    assert!(with(&ca).contains("No such file"));
    std::fs::write(&ca, "nothing").unwrap();
    assert_eq!(with(&ca), format!("the CA file {} can't be used: it holds no PEM certificate", ca.display()));
    std::fs::write(&ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    assert!(with(&ca).contains("can't be used"));
}

/// A client that goes through a proxy at this address for every host that isn't loopback.
fn through(proxy: &str) -> HttpClient {
    let url = proxy.replace("http://localhost", "http://u:p%40ss@127.0.0.1");
    let proxies = Proxies::read(|name| (name == "ALL_PROXY").then(|| url.clone())).unwrap();
    HttpClient::with(&settings("http://unused"), proxies).unwrap()
}

#[tokio::test]
async fn plain_http_is_forwarded_by_the_proxy() {
    let mut proxy = scripted(vec![answer("200 OK", "via")], None).await;
    let response = post(&through(&proxy.url), "http://coda.invalid/x", LONG).await.unwrap();
    assert_eq!(text(&response), "via");
    let (_, head) = proxy.seen.recv().await.unwrap();
    assert!(head.starts_with("POST http://coda.invalid/x HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("proxy-authorization: Basic dTpwQHNz\r\n"), "{head}");
    assert!(head.contains("host: coda.invalid\r\n"), "{head}");
}

#[tokio::test]
async fn https_goes_through_a_tunnel_that_may_be_refused() {
    let refusing = answer("407 Proxy Authentication Required", "");
    let mut proxy = scripted(vec![refusing], None).await;
    let error = post(&through(&proxy.url), "https://coda.invalid/x", LONG).await.unwrap_err();
    let at = proxy.url.replace("http://localhost", "127.0.0.1");
    assert_eq!(
        error.line(),
        format!(
            "no connection to https://coda.invalid (through the proxy {at}) could be made: the proxy {at} \
             opened no tunnel: tunnel error: proxy authorization required"
        )
    );
    let (_, head) = proxy.seen.recv().await.unwrap();
    assert!(head.starts_with("CONNECT coda.invalid:443 HTTP/1.1\r\n"), "{head}");
    assert!(!head.contains("tok.en"), "the token stays inside the tunnel");
}

#[tokio::test]
async fn a_granted_tunnel_carries_tls_to_the_target() {
    let d = tempfile::tempdir().unwrap();
    let ca = d.path().join("ca.pem");
    let (config, pem) = tls_server("coda.invalid");
    std::fs::write(&ca, pem).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let connect = read_request(&mut stream).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        let mut tls = tokio_rustls::TlsAcceptor::from(config).accept(stream).await.unwrap();
        let request = read_request(&mut tls).await.unwrap();
        tls.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await.unwrap();
        tls.flush().await.unwrap();
        (connect, request)
    });
    let proxies = Proxies::read(|name| (name == "HTTPS_PROXY").then(|| proxy.clone())).unwrap();
    let settings = CloudSettings { ca_file: Some(ca), ..settings("https://unused") };
    let client = HttpClient::with(&settings, proxies).unwrap();
    let response = post(&client, "https://coda.invalid:8443/x", LONG).await.unwrap();
    assert_eq!(response.status.as_u16(), 204);
    let (connect, request) = server.await.unwrap();
    assert!(connect.starts_with("CONNECT coda.invalid:8443 "), "{connect}");
    assert!(request.starts_with("POST /x HTTP/1.1\r\n"), "{request}");
}

#[test]
fn targets_are_normalised_before_anyone_judges_them() {
    let origin = |text: &str| Target::parse(text).map(|t| t.origin().to_string());
    assert_eq!(origin("https://CODA.example:443/x").unwrap(), "https://coda.example");
    assert_eq!(origin("http://127.1:80/").unwrap(), "http://127.0.0.1");
    assert_eq!(origin("http://0x7f000001:81/").unwrap(), "http://127.0.0.1:81");
    assert_eq!(origin("http://[0:0::1]:80/").unwrap(), "http://[::1]");
    let refused = |text: &str| origin(text).unwrap_err().to_string();
    assert!(refused("ftp://h/").contains("its scheme is 'ftp'"));
    assert!(refused("http://u:secret@h/").contains("user name or password"));
    assert!(!refused("http://u:secret@h/").contains("secret"));
    assert!(origin("/relative").is_err() && origin("http://").is_err() && origin("").is_err());
}
