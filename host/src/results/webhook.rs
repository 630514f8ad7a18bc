//! ONE attempt to deliver a result: where it may go, the request, and what the answer means.
//!
//! The body's bytes are given and sent as they are; the token is never older than the settings allow, and a
//! refused one is replaced once within the attempt. Which answers are final is decided by [`classify`] alone.
//! Queueing, pauses and storage are not here. A signed token lets its holder speak for the QPU, so it goes
//! only where [`CallbackPolicy`] allows, and never in clear to a host that isn't loopback, unless the webapp
//! itself is plain http on that host.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use tokio::time::Instant;

use crate::cloud::http::{Bearer, HttpClient, HttpError, Origin, Response, Target, header_map, is_loopback};
use crate::cloud::jwt::Signer;
use crate::config::settings::{CallbackPolicy, CloudSettings, WebhookSettings};
use crate::error::{Explain, exit};

/// Characters of a refusal that are kept.
const EXCERPT: usize = 400;

/// What came of an attempt.
#[derive(Debug, Clone)]
pub enum AttemptOutcome {
    /// The receiver answered 2xx: it has the result.
    Accepted,
    /// The receiver can't take the result now; `after` is the pause that it asked for.
    Retry { after: Option<Duration>, why: String },
    /// A fresh token was refused as well: the result waits until the cloud accepts our tokens again.
    Unauthorized { why: String },
    /// The receiver refused the result for good.
    Refused { status: u16, excerpt: String },
    /// The URL may not be posted to; nothing was sent.
    Forbidden(PolicyError),
}

/// Why a callback URL is not posted to.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PolicyError {
    #[error("the callback URL can't be used")]
    Url(#[source] HttpError),
    #[error(
        "results may not be sent to {origin}: only to the webapp's host and those of CODA_CALLBACK_ORIGINS"
    )]
    Host { origin: Origin },
    #[error("results may not be sent to {origin}: the token would travel unencrypted")]
    Clear { origin: Origin },
    #[error("'{entry}' in CODA_CALLBACK_ORIGINS is not a host, host:port or origin")]
    Entry { entry: String },
}

impl Explain for PolicyError {
    fn code(&self) -> &'static str {
        match self {
            PolicyError::Url(_) => "callback-url",
            PolicyError::Host { .. } => "callback-host",
            PolicyError::Clear { .. } => "callback-clear",
            PolicyError::Entry { .. } => "callback-setting",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            PolicyError::Url(e) => return e.hint(),
            PolicyError::Host { origin } => {
                format!("set CODA_CALLBACK_ORIGINS={} if that host is to be trusted", origin.host)
            }
            PolicyError::Clear { .. } => "have the job sent with an https callback URL".into(),
            PolicyError::Entry { .. } => "write hosts with commas between them, or 'any'".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// A callback URL that the policy allows.
struct CheckedUrl {
    url: String,
    target: Target,
}

/// Sends results as one QPU. Cheap to clone.
#[derive(Clone)]
pub struct WebhookSender {
    client: HttpClient,
    signer: Signer,
    timeout: Duration,
    extra: HeaderMap,
    policy: Policy,
    /// The last URL that was found good: nearly every job has the same.
    last: Arc<Mutex<Option<CheckedUrl>>>,
}

impl WebhookSender {
    pub fn new(
        client: HttpClient,
        signer: Signer,
        cloud: &CloudSettings,
        webhook: &WebhookSettings,
    ) -> Result<WebhookSender, PolicyError> {
        let policy = Policy::new(&cloud.webapp_url, &webhook.callback)?;
        let extra = header_map(&cloud.connect_headers).map_err(PolicyError::Url)?;
        Ok(WebhookSender { client, signer, timeout: webhook.timeout, extra, policy, last: Arc::default() })
    }

    fn target(&self, url: &str) -> Result<Target, PolicyError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*last
            && known.url == url
        {
            return Ok(known.target.clone());
        }
        let target = self.policy.check(url)?;
        *last = Some(CheckedUrl { url: url.to_string(), target: target.clone() });
        Ok(target)
    }

    /// Whether a result may be sent there; the origin is what limits per receiver go by.
    pub fn allowed(&self, url: &str) -> Result<Origin, PolicyError> {
        self.target(url).map(|target| target.origin().clone())
    }

    /// One attempt, a second request with a fresh token included, within the settings' timeout.
    pub async fn attempt(&self, url: &str, body: Bytes) -> AttemptOutcome {
        let target = match self.target(url) {
            Ok(target) => target,
            Err(error) => return AttemptOutcome::Forbidden(error),
        };
        let deadline = Instant::now() + self.timeout;
        let unsigned =
            |e| AttemptOutcome::Retry { after: None, why: format!("no token could be signed: {e}") };
        let bearer = match self.signer.bearer() {
            Ok(bearer) => bearer,
            Err(error) => return unsigned(error),
        };
        let first = match self.post(&target, &bearer, body.clone(), deadline).await {
            Ok(answer) if answer.status == StatusCode::UNAUTHORIZED => answer,
            sent => return outcome(sent, &bearer),
        };
        tracing::debug!(to = %target.origin(), "a token was refused (401); trying once more with a fresh one");
        drop(first);
        let bearer = match self.signer.fresh() {
            Ok(bearer) => bearer,
            Err(error) => return unsigned(error),
        };
        outcome(self.post(&target, &bearer, body, deadline).await, &bearer)
    }

    async fn post(
        &self,
        target: &Target,
        bearer: &Bearer,
        body: Bytes,
        deadline: Instant,
    ) -> Result<Response, HttpError> {
        let none = HeaderMap::new();
        let extra = if self.policy.is_webapp(target.origin()) { &self.extra } else { &none };
        let left = deadline.saturating_duration_since(Instant::now());
        self.client.post_json(target, bearer, extra, body, left).await
    }
}

fn outcome(sent: Result<Response, HttpError>, bearer: &Bearer) -> AttemptOutcome {
    match sent {
        Ok(answer) => {
            let excerpt = || answer.excerpt(bearer, EXCERPT);
            classify(answer.status, &answer.headers, excerpt, SystemTime::now())
        }
        Err(error) => AttemptOutcome::Retry { after: None, why: error.line() },
    }
}

/// What an answer means for the result. 2xx: delivered, whatever the body. 3xx, 5xx, 408, 425 and 429 say
/// "not now"; 401 says that our token isn't taken; every other 4xx says "never".
pub fn classify(
    status: StatusCode,
    headers: &HeaderMap,
    excerpt: impl FnOnce() -> String,
    now: SystemTime,
) -> AttemptOutcome {
    match status.as_u16() {
        200..=299 => AttemptOutcome::Accepted,
        401 => AttemptOutcome::Unauthorized { why: status_line(status, &excerpt()) },
        408 | 425 | 429 => {
            AttemptOutcome::Retry { after: retry_after(headers, now), why: status_line(status, &excerpt()) }
        }
        code @ 400..=499 => AttemptOutcome::Refused { status: code, excerpt: excerpt() },
        _ => AttemptOutcome::Retry { after: retry_after(headers, now), why: status_line(status, &excerpt()) },
    }
}

fn status_line(status: StatusCode, excerpt: &str) -> String {
    match excerpt {
        "" => format!("HTTP {status}"),
        text => format!("HTTP {status}: {text}"),
    }
}

/// `Retry-After` in seconds or as a date; one that has passed means at once.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// The settings' policy with the webapp it refers to.
#[derive(Debug, Clone)]
struct Policy {
    webapp: Origin,
    /// `None`: any host.
    further: Option<Vec<Allowed>>,
}

/// An entry of the list; what it doesn't name may be anything.
#[derive(Debug, Clone)]
struct Allowed {
    host: String,
    port: Option<u16>,
    https: Option<bool>,
}

impl Policy {
    fn new(webapp_url: &str, policy: &CallbackPolicy) -> Result<Policy, PolicyError> {
        let webapp = Target::parse(webapp_url).map_err(PolicyError::Url)?.origin().clone();
        let further = match policy {
            CallbackPolicy::Any => None,
            CallbackPolicy::Hosts(list) => {
                Some(list.iter().map(|e| Allowed::parse(e)).collect::<Result<Vec<_>, _>>()?)
            }
        };
        Ok(Policy { webapp, further })
    }

    fn check(&self, url: &str) -> Result<Target, PolicyError> {
        let target = Target::parse(url).map_err(PolicyError::Url)?;
        let origin = target.origin();
        let webapp = self.is_webapp(origin);
        let listed = self.further.as_ref().is_none_or(|list| list.iter().any(|entry| entry.matches(origin)));
        if !webapp && !listed {
            return Err(PolicyError::Host { origin: origin.clone() });
        }
        let clear_is_known = webapp && !self.webapp.https;
        if !origin.https && !is_loopback(&origin.host) && !clear_is_known {
            return Err(PolicyError::Clear { origin: origin.clone() });
        }
        Ok(target)
    }

    fn is_webapp(&self, origin: &Origin) -> bool {
        same_host(&origin.host, &self.webapp.host)
    }
}

impl Allowed {
    fn parse(entry: &str) -> Result<Allowed, PolicyError> {
        let wrong = || PolicyError::Entry { entry: entry.to_owned() };
        let text = entry.trim();
        let named = text.contains("://");
        let url = if named { text.to_owned() } else { format!("https://{text}") };
        // A port that is the scheme's own vanishes from a URL, so it is looked for in the text.
        let rest = url.split_once("://").map_or("", |(_, rest)| rest.trim_end_matches('/'));
        if rest.contains(['/', '?', '#', '@', '*']) {
            return Err(wrong());
        }
        let origin = Target::parse(&url).map_err(|_| wrong())?.origin().clone();
        let port = rest.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok());
        let https = named.then_some(origin.https);
        Ok(Allowed { host: origin.host.to_string(), port: port.map(|_| origin.port), https })
    }

    fn matches(&self, origin: &Origin) -> bool {
        same_host(&self.host, &origin.host)
            && self.port.is_none_or(|port| port == origin.port)
            && self.https.is_none_or(|https| https == origin.https)
    }
}

/// All names of loopback are one host; a dot at the end changes nothing.
fn same_host(a: &str, b: &str) -> bool {
    let plain = |host: &str| host.trim_end_matches('.').to_ascii_lowercase();
    a == b || plain(a) == plain(b) || (is_loopback(a) && is_loopback(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::jwt::PrivateKey;
    use crate::cloud::testing::{self, Reply, Scripted, answer, scripted};
    use crate::model::Secret;

    fn sender(webapp: &str, callback: CallbackPolicy, timeout: Duration) -> WebhookSender {
        let mut cloud = testing::settings(webapp);
        cloud.connect_headers = vec![("x-bypass".into(), Secret::new("b1"))];
        let key = PrivateKey::parse(&Secret::new(testing::private_pem())).unwrap();
        let signer = Signer::new(key, "q1", None, Duration::from_secs(60));
        let second = Duration::from_secs(1);
        let webhook = WebhookSettings {
            timeout,
            backoff: second,
            backoff_max: second,
            max_in_flight: 64,
            max_per_origin: 16,
            callback,
        };
        WebhookSender::new(HttpClient::new(&cloud).unwrap(), signer, &cloud, &webhook).unwrap()
    }

    fn list(hosts: &[&str]) -> CallbackPolicy {
        CallbackPolicy::Hosts(hosts.iter().map(|h| (*h).to_string()).collect())
    }

    async fn deliver(replies: Vec<Reply>) -> (Scripted, AttemptOutcome) {
        let server = scripted(replies, None).await;
        let sender = sender(&server.url, list(&[]), Duration::from_secs(20));
        let url = format!("{}/cb", server.url.replace("localhost", "127.0.0.1"));
        let delivery = sender.attempt(&url, Bytes::from_static(b"{\"n\":1}")).await;
        (server, delivery)
    }

    #[tokio::test]
    async fn a_result_is_sent_as_it_is_with_a_token() {
        let (mut server, delivery) = deliver(vec![answer("202 Accepted", "<not json>")]).await;
        assert!(matches!(delivery, AttemptOutcome::Accepted), "{delivery:?}");
        let (_, request) = server.seen.recv().await.unwrap();
        assert!(request.starts_with("POST /cb HTTP/1.1\r\n") && request.ends_with("\r\n\r\n{\"n\":1}"));
        assert!(request.contains("authorization: Bearer ey"), "{request}");
        assert!(request.contains("x-bypass: b1"), "the webapp under another loopback name: {request}");
    }

    #[tokio::test]
    async fn a_2xx_counts_although_its_body_breaks_off() {
        let cut = Reply::Close("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab".into());
        assert!(matches!(deliver(vec![cut]).await.1, AttemptOutcome::Accepted));
    }

    #[tokio::test]
    async fn a_refused_token_is_replaced_once() {
        let refused = answer("401 Unauthorized", "expired");
        let (mut server, delivery) = deliver(vec![refused.clone(), answer("200 OK", "")]).await;
        assert!(matches!(delivery, AttemptOutcome::Accepted), "{delivery:?}");
        let body = |request: String| request.split_once("\r\n\r\n").unwrap().1.to_owned();
        let first = body(server.seen.recv().await.unwrap().1);
        assert_eq!(body(server.seen.recv().await.unwrap().1), first);

        let (mut server, delivery) = deliver(vec![refused]).await;
        assert!(matches!(&delivery, AttemptOutcome::Unauthorized { why } if why.ends_with(": expired")));
        let (_, request) = server.seen.recv().await.unwrap();
        server.seen.recv().await.unwrap();
        assert!(server.seen.try_recv().is_err(), "two requests, not more: {request}");
    }

    #[tokio::test]
    async fn transport_errors_are_for_later() {
        let (_, delivery) = deliver(vec![Reply::Close(String::new())]).await;
        let AttemptOutcome::Retry { after: None, why } = delivery else { panic!("{delivery:?}") };
        assert!(why.contains("closed before the answer was complete"), "{why}");

        let server = scripted(vec![Reply::Hang], None).await;
        let short = sender(&server.url, list(&[]), Duration::from_millis(400));
        let delivery = short.attempt(&server.url, Bytes::new()).await;
        let AttemptOutcome::Retry { after: None, why } = delivery else { panic!("{delivery:?}") };
        assert!(why.contains("did not answer within"), "{why}");
    }

    #[tokio::test]
    async fn other_hosts_get_no_additional_headers() {
        let mut server = scripted(vec![answer("200 OK", "")], None).await;
        let sender = sender("https://coda.example", CallbackPolicy::Any, Duration::from_secs(20));
        assert!(matches!(sender.attempt(&server.url, Bytes::new()).await, AttemptOutcome::Accepted));
        let (_, request) = server.seen.recv().await.unwrap();
        assert!(request.contains("authorization: Bearer") && !request.contains("x-bypass"), "{request}");
    }

    #[tokio::test]
    async fn a_forbidden_url_is_not_posted_to() {
        let mut server = scripted(vec![answer("200 OK", "")], None).await;
        let sender = sender("https://coda.example", list(&[]), Duration::from_secs(20));
        let delivery = sender.attempt(&server.url, Bytes::new()).await;
        assert!(matches!(delivery, AttemptOutcome::Forbidden(PolicyError::Host { .. })), "{delivery:?}");
        assert!(server.seen.try_recv().is_err());
    }

    #[test]
    fn statuses_mean_what_the_contract_says() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        let kind = |code: u16, retry: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            if let Some(text) = retry {
                headers.insert(RETRY_AFTER, text.parse().unwrap());
            }
            classify(StatusCode::from_u16(code).unwrap(), &headers, || "text".into(), now)
        };
        for code in [200, 201, 202, 204, 299] {
            assert!(matches!(kind(code, None), AttemptOutcome::Accepted), "{code}");
        }
        for code in [300, 301, 302, 303, 307, 308, 408, 425, 429, 500, 502, 503, 504, 599] {
            assert!(matches!(kind(code, None), AttemptOutcome::Retry { after: None, .. }), "{code}");
            assert!(
                matches!(kind(code, Some(" 7 ")), AttemptOutcome::Retry { after: Some(d), .. } if d.as_secs() == 7)
            );
        }
        for code in [400, 402, 403, 404, 405, 409, 410, 413, 422, 451, 499] {
            let AttemptOutcome::Refused { status, excerpt } = kind(code, Some("7")) else { panic!("{code}") };
            assert_eq!((status, &*excerpt), (code, "text"));
        }
        assert!(matches!(kind(401, None), AttemptOutcome::Unauthorized { .. }));
        let after = |text| match kind(429, Some(text)) {
            AttemptOutcome::Retry { after, why } => {
                assert_eq!(why, "HTTP 429 Too Many Requests: text");
                after.map(|d| d.as_secs())
            }
            other => panic!("{other:?}"),
        };
        // The three forms of an HTTP date, 7 seconds from now; one that has passed; nonsense.
        assert_eq!(after("Sun, 06 Nov 1994 08:49:37 GMT"), Some(7));
        assert_eq!(after("Sunday, 06-Nov-94 08:49:37 GMT"), Some(7));
        assert_eq!(after("Sun Nov  6 08:49:37 1994"), Some(7));
        assert_eq!(after("Sun, 06 Nov 1994 00:00:00 GMT"), Some(0));
        for nonsense in ["soon", "-1", "1.5", ""] {
            assert_eq!(after(nonsense), None, "{nonsense}");
        }
    }

    fn check(webapp: &str, policy: CallbackPolicy, url: &str) -> Result<String, PolicyError> {
        Policy::new(webapp, &policy)?.check(url).map(|t| t.origin().to_string())
    }

    #[test]
    fn by_default_only_the_webapps_host_gets_results() {
        let check = |url: &str| check("https://coda.example", list(&[]), url);
        assert_eq!(check("https://coda.example/x").unwrap(), "https://coda.example");
        assert_eq!(check("https://CODA.example.:8443/x").unwrap(), "https://coda.example.:8443");
        for other in [
            "https://evil.example/x",
            "https://coda.example.evil.example/",
            "https://xcoda.example/",
            "https://127.0.0.1/",
        ] {
            assert!(matches!(check(other), Err(PolicyError::Host { .. })), "{other}");
        }
        assert!(matches!(check("http://coda.example/x"), Err(PolicyError::Clear { .. })));
        for unusable in ["https://coda.example@evil.example/", "ftp://coda.example/", "coda.example", ""] {
            assert!(matches!(check(unusable), Err(PolicyError::Url(_))), "{unusable}");
        }
        let error = check("https://evil.example/x?secret=1").unwrap_err();
        assert!(!error.to_string().contains("secret"));
        assert_eq!(
            error.hint().unwrap(),
            "set CODA_CALLBACK_ORIGINS=evil.example if that host is to be trusted"
        );
    }

    #[test]
    fn loopback_is_one_host_under_many_names() {
        for url in ["http://localhost:1/", "http://127.0.0.1:2/", "http://[::1]/", "http://2130706433/"] {
            assert!(check("http://127.0.0.1:9000", list(&[]), url).is_ok(), "{url}");
            assert!(check("https://coda.example", list(&[]), url).is_err(), "{url}");
            assert!(check("https://coda.example", list(&["localhost"]), url).is_ok(), "{url}");
        }
    }

    #[test]
    fn clear_text_needs_a_webapp_in_clear_on_that_host() {
        assert!(check("http://lab.example", list(&[]), "http://lab.example:81/x").is_ok());
        let other = check("http://lab.example", CallbackPolicy::Any, "http://other.example/");
        assert!(matches!(other, Err(PolicyError::Clear { .. })));
        assert!(check("https://coda.example", CallbackPolicy::Any, "https://other.example/").is_ok());
    }

    #[test]
    fn entries_name_hosts_ports_or_origins() {
        let ok = |entry: &str, url: &str| check("https://coda.example", list(&[entry]), url).is_ok();
        assert!(
            ok("hooks.example", "https://hooks.example:444/")
                && ok(" Hooks.example ", "https://hooks.example/")
        );
        assert!(ok("hooks.example:444", "https://hooks.example:444/"));
        assert!(!ok("hooks.example:444", "https://hooks.example/"));
        assert!(ok("https://hooks.example:443/", "https://hooks.example/"));
        assert!(!ok("hooks.example:443", "https://hooks.example:444/"));
        assert!(ok("[::1]", "http://[::1]:7/") && ok("[::1]:7", "http://[::1]:7/"));
        assert!(!ok("http://localhost", "https://localhost/"));
        for bad in ["", "a/b", "a b", "ftp://x", "u@h", "https://h/path", "*.example", "h:99999"] {
            let result = Policy::new("https://coda.example", &list(&[bad]));
            assert!(matches!(result, Err(PolicyError::Entry { .. })), "{bad}: {result:?}");
        }
    }
}
