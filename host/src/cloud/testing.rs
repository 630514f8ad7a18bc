//! For the tests of this module: short settings, and a server that answers with scripted bytes.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::config::settings::CloudSettings;

/// Settings for a cloud at this URL, short enough for tests.
pub(crate) fn settings(webapp_url: &str) -> CloudSettings {
    CloudSettings {
        webapp_url: webapp_url.into(),
        connect_path: "/api/internal/qpu/connect".into(),
        heartbeat_path: "/api/internal/qpu/heartbeat".into(),
        webhook_path: "/api/internal/qpu/webhook".into(),
        timeout: Duration::from_secs(20),
        connect_attempts: 3,
        connect_backoff: Duration::from_millis(5),
        connect_headers: Vec::new(),
        machine_fingerprint: "lab-42".into(),
        ca_file: None,
        heartbeat_interval: Duration::from_millis(20),
        heartbeat_timeout: Duration::from_secs(20),
        http_idle: Duration::from_secs(4),
        jwt_reuse: Duration::from_secs(60),
    }
}

/// What a scripted server does with a request once it has read it whole.
#[derive(Clone)]
pub(crate) enum Reply {
    /// Sends these bytes and reads the next request on the same connection.
    Keep(String),
    /// Sends these bytes and closes.
    Close(String),
    /// Neither answers nor closes.
    Hang,
}

/// An answer with a length.
pub(crate) fn answer(status: &str, body: &str) -> Reply {
    Reply::Keep(format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

pub(crate) struct Scripted {
    pub url: String,
    /// Each request as received, with the number of its connection.
    pub seen: mpsc::UnboundedReceiver<(usize, String)>,
}

/// Serves on a free port of loopback; the n-th request of all gets the n-th reply, later ones the last.
pub(crate) async fn scripted(replies: Vec<Reply>, tls: Option<Arc<rustls::ServerConfig>>) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let scheme = if tls.is_some() { "https" } else { "http" };
    let url = format!("{scheme}://localhost:{}", listener.local_addr().unwrap().port());
    let (seen, receiver) = mpsc::unbounded_channel();
    let replies = Arc::new((std::sync::Mutex::new(0), replies));
    tokio::spawn(async move {
        let mut number = 0;
        while let Ok((stream, _)) = listener.accept().await {
            let (seen, replies) = (seen.clone(), replies.clone());
            let tls = tls.clone();
            tokio::spawn(async move {
                match tls {
                    Some(config) => {
                        if let Ok(s) = tokio_rustls::TlsAcceptor::from(config).accept(stream).await {
                            talk(s, number, seen, &replies).await;
                        }
                    }
                    None => talk(stream, number, seen, &replies).await,
                }
            });
            number += 1;
        }
    });
    Scripted { url, seen: receiver }
}

async fn talk(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    number: usize,
    seen: mpsc::UnboundedSender<(usize, String)>,
    (next, replies): &(std::sync::Mutex<usize>, Vec<Reply>),
) {
    while let Some(request) = read_request(&mut stream).await {
        let reply = {
            let mut next = next.lock().unwrap();
            let reply = replies[(*next).min(replies.len() - 1)].clone();
            *next += 1;
            reply
        };
        seen.send((number, request)).ok();
        match reply {
            Reply::Keep(text) => stream.write_all(text.as_bytes()).await.unwrap(),
            Reply::Close(text) => {
                stream.write_all(text.as_bytes()).await.unwrap();
                stream.shutdown().await.ok();
                return;
            }
            Reply::Hang => std::future::pending().await,
        }
    }
}

/// Head and body of one request; `None` when the connection ends first.
pub(crate) async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).await.ok()?;
        text.push(byte[0]);
        if text.ends_with(b"\r\n\r\n") {
            break;
        }
    }
    let head = String::from_utf8(text).unwrap();
    let length = head
        .to_ascii_lowercase()
        .lines()
        .find_map(|l| l.strip_prefix("content-length:").map(|n| n.trim().parse().unwrap()))
        .unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head + &String::from_utf8(body).unwrap())
}

/// One RSA key for all tests, in PKCS#8 PEM: making one is slow.
pub(crate) fn private_pem() -> &'static str {
    static PEM: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
        crate::dev::cloud::Keys::generate("test").unwrap().private_pem().expose().to_string()
    });
    &PEM
}

/// The token inside a bearer.
pub(crate) fn token(bearer: &super::http::Bearer) -> String {
    bearer.text().strip_prefix("Bearer ").unwrap().to_owned()
}

pub(crate) fn vpn() -> crate::config::settings::VpnSettings {
    crate::config::settings::VpnSettings {
        required: true,
        check_interval: Duration::from_secs(10),
        interface_hint: Some("tun0".into()),
        probe_targets: vec!["https://held".into()],
        allow_degraded: false,
        auto: true,
        profile_path: "/nowhere/coda-node.ovpn".into(),
        start_timeout: Duration::from_secs(20),
        stop_timeout: Duration::from_secs(5),
        command_timeout: Duration::from_secs(10),
        probe_timeout: Duration::from_secs(5),
    }
}
