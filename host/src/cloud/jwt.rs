//! Signing as the QPU: RS256 tokens that the cloud checks against the key it gave out.
//!
//! A [`PrivateKey`] is read once from PEM (PKCS#1 or PKCS#8; line ends as they come, or written as `\n` as in
//! an environment file) and stored in the same form. A [`Signer`] hands out one token for up to `jwt_reuse` and then
//! signs a new one, because a signature costs more than everything else about a job; [`Signer::fresh`] signs
//! at once, for a token that was refused. Header `typ`, `alg`, `kid`; claims `sub`, `iss`, `iat`, `exp` in
//! whole seconds. Neither key nor token is ever shown or stored by this module.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header};
use parking_lot::Mutex;
use ring::error::KeyRejected;
use ring::signature::RsaKeyPair;
use serde::Serialize;

use super::http::Bearer;
use super::jwt_crypto;
use crate::error::{Explain, exit};
use crate::model::Secret;

const ISSUER: &str = "coda";
/// Seconds that a token is valid, as the cloud's contract fixes it.
const LIFETIME: u64 = 3600;

/// Why a private key can't be used. The text names what was given instead, never its content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("the JWT private key is not in PEM form (-----BEGIN PRIVATE KEY----- ...)")]
    NotPem,
    #[error("the JWT private key should be an RSA private key, but {0} was given")]
    Kind(&'static str),
    #[error("the JWT private key can't be read as an RSA key: {0}")]
    Rejected(String),
    #[error("the token could not be signed")]
    Signing(#[source] jsonwebtoken::errors::Error),
    #[error("the token can't be sent in a header")]
    Header,
    #[error("this machine's clock is set before 1970")]
    Clock,
}

impl Explain for KeyError {
    fn code(&self) -> &'static str {
        match self {
            KeyError::NotPem => "jwt-key-pem",
            KeyError::Kind(_) => "jwt-key-kind",
            KeyError::Rejected(_) => "jwt-key-rejected",
            KeyError::Signing(_) => "jwt-signing",
            KeyError::Header => "jwt-header",
            KeyError::Clock => "jwt-clock",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            KeyError::Clock => Some("set the clock (timedatectl set-ntp true)".into()),
            KeyError::Signing(_) | KeyError::Header => None,
            _ => Some(
                "set CODA_JWT_PRIVATE_KEY to the RSA key in PEM form, or unset it and provision with a \
                 node token"
                    .into(),
            ),
        }
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// An RSA private key, checked.
#[derive(Clone)]
pub struct PrivateKey {
    /// PEM as it was given, without blanks and comments.
    pem: Secret,
    key: EncodingKey,
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(***)")
    }
}

impl PrivateKey {
    pub fn parse(text: &Secret) -> Result<PrivateKey, KeyError> {
        // Read here, shown nowhere.
        let text = text.expose().replace("\\r", "").replace("\\n", "\n");
        // Blanks around the lines come from shells, YAML and copying.
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
        // The old form of encryption stands in headers, which the PEM reader wants apart from the rest.
        if lines.iter().any(|l| l.starts_with("Proc-Type:") && l.contains("ENCRYPTED")) {
            return Err(KeyError::Kind("a key encrypted with a passphrase"));
        }
        let block = pem::parse(lines.join("\n")).map_err(|_| KeyError::NotPem)?;
        let rejected = |e: KeyRejected| {
            KeyError::Rejected(match e.to_string().as_str() {
                "TooSmall" => "it has fewer than 2048 bits".into(),
                "TooLarge" => "it has more than 4096 bits".into(),
                "InvalidEncoding" => "its content is damaged".into(),
                other => other.to_owned(),
            })
        };
        match block.tag() {
            "RSA PRIVATE KEY" => RsaKeyPair::from_der(block.contents()).map_err(rejected)?,
            "PRIVATE KEY" => RsaKeyPair::from_pkcs8(block.contents())
                .map_err(|e| other_pkcs8(block.contents()).map_or_else(|| rejected(e), KeyError::Kind))?,
            "ENCRYPTED PRIVATE KEY" => {
                return Err(KeyError::Kind("a key encrypted with a passphrase"));
            }
            "EC PRIVATE KEY" => return Err(KeyError::Kind("an elliptic curve key")),
            "OPENSSH PRIVATE KEY" => return Err(KeyError::Kind("an OpenSSH key")),
            "PUBLIC KEY" | "RSA PUBLIC KEY" => return Err(KeyError::Kind("a public key")),
            "CERTIFICATE" => return Err(KeyError::Kind("a certificate")),
            _ => return Err(KeyError::Kind("another PEM block")),
        };
        let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
        let pem = pem::encode_config(&pem::Pem::new(block.tag(), block.contents()), config);
        let key = EncodingKey::from_rsa_pem(pem.as_bytes()).map_err(KeyError::Signing)?;
        jwt_crypto::install();
        Ok(PrivateKey { pem: Secret::new(pem), key })
    }

    /// The key in PEM, for the key file.
    pub fn pem(&self) -> &Secret {
        &self.pem
    }
}

/// Names the algorithm of a PKCS#8 key that isn't RSA by its object identifier.
fn other_pkcs8(der: &[u8]) -> Option<&'static str> {
    const EC: &[u8] = &[0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    const ED25519: &[u8] = &[0x06, 0x03, 0x2b, 0x65, 0x70];
    // It stands behind two headers and the version.
    let start = der.get(..32).unwrap_or(der);
    let holds = |id: &[u8]| memchr::memmem::find(start, id).is_some();
    match () {
        () if holds(EC) => Some("an elliptic curve key"),
        () if holds(ED25519) => Some("an Ed25519 key"),
        () => None,
    }
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    iss: &'static str,
    iat: u64,
    exp: u64,
}

/// Signs as one QPU. Cheap to clone; clones share the token.
#[derive(Clone)]
pub struct Signer {
    shared: Arc<Shared>,
}

struct Shared {
    key: PrivateKey,
    qpu_id: String,
    header: Header,
    reuse: Duration,
    current: Mutex<Option<Minted>>,
}

#[derive(Clone)]
struct Minted {
    bearer: Bearer,
    at: Instant,
    /// A clock that was set must not leave a token with times of the old one in use.
    issued: u64,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("sub", &self.shared.qpu_id).finish_non_exhaustive()
    }
}

impl Signer {
    /// `key_id` falls back to the QPU's id. `reuse` of zero signs each time.
    pub fn new(key: PrivateKey, qpu_id: &str, key_id: Option<&str>, reuse: Duration) -> Signer {
        let mut header = Header::new(Algorithm::RS256);
        header.kid = Some(key_id.filter(|k| !k.is_empty()).unwrap_or(qpu_id).to_owned());
        let current = Mutex::new(None);
        Signer { shared: Arc::new(Shared { key, qpu_id: qpu_id.into(), header, reuse, current }) }
    }

    /// A token that is at most `reuse` old.
    pub fn bearer(&self) -> Result<Bearer, KeyError> {
        let now = unix_now()?;
        // The lock is held while signing, so that a burst signs once and not sixty-four times.
        let mut current = self.shared.current.lock();
        if let Some(minted) = &*current
            && minted.at.elapsed() < self.shared.reuse
            && now.abs_diff(minted.issued) <= self.shared.reuse.as_secs().saturating_add(1)
        {
            return Ok(minted.bearer.clone());
        }
        let bearer = self.sign(now)?;
        *current = Some(Minted { bearer: bearer.clone(), at: Instant::now(), issued: now });
        Ok(bearer)
    }

    /// A token signed now, used by later calls of [`Signer::bearer`] too.
    pub fn fresh(&self) -> Result<Bearer, KeyError> {
        let now = unix_now()?;
        let bearer = self.sign(now)?;
        let minted = Minted { bearer: bearer.clone(), at: Instant::now(), issued: now };
        *self.shared.current.lock() = Some(minted);
        Ok(bearer)
    }

    fn sign(&self, now: u64) -> Result<Bearer, KeyError> {
        let claims =
            Claims { sub: &self.shared.qpu_id, iss: ISSUER, iat: now, exp: now.saturating_add(LIFETIME) };
        let token = jsonwebtoken::encode(&self.shared.header, &claims, &self.shared.key.key)
            .map_err(KeyError::Signing)?;
        Bearer::new(&Secret::new(token)).map_err(|_| KeyError::Header)
    }
}

fn unix_now() -> Result<u64, KeyError> {
    SystemTime::now().duration_since(UNIX_EPOCH).map(|d| d.as_secs()).map_err(|_| KeyError::Clock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::testing;
    use jsonwebtoken::{DecodingKey, Validation};
    use serde_json::Value;

    fn secret(text: &str) -> Secret {
        Secret::new(text)
    }

    /// Runs the openssl command, an implementation that isn't ours.
    fn openssl(arguments: &[&str], input: &str) -> String {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let mut child = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this test needs the openssl command");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "openssl {arguments:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    fn decode(bearer: &Bearer, pkcs8: &str) -> (Header, Value) {
        let public = openssl(&["pkey", "-pubout"], pkcs8);
        let mut validation = Validation::new(Algorithm::RS256);
        validation.set_issuer(&["coda"]);
        validation.set_required_spec_claims(&["sub", "iss", "exp"]);
        let key = DecodingKey::from_rsa_pem(public.as_bytes()).unwrap();
        let token = testing::token(bearer);
        let data = jsonwebtoken::decode::<Value>(token.as_str(), &key, &validation).unwrap();
        (data.header, data.claims)
    }

    #[test]
    fn both_rsa_forms_are_read_however_their_lines_end() {
        let pkcs8 = testing::private_pem();
        let pkcs1 = openssl(&["rsa", "-traditional"], pkcs8);
        assert!(pkcs1.starts_with("-----BEGIN RSA PRIVATE KEY-----"));
        for pem in [pkcs8, &pkcs1] {
            let dressed = [
                pem.to_string(),
                pem.trim().replace('\n', "\\n"),
                pem.replace('\n', "\r\n"),
                pem.replace('\n', "\\r\\n"),
                format!("\n  {}  \n\n", pem.replace('\n', " \n\t ")),
                format!("{}\\n", pem.trim().replace('\n', "\\n")),
            ];
            for text in dressed {
                let key = PrivateKey::parse(&secret(&text)).unwrap();
                assert_eq!(key.pem().expose(), pem, "stored in the form that it came in");
            }
        }
        let key = PrivateKey::parse(&secret(&pkcs1)).unwrap();
        let signer = Signer::new(key, "q1", Some("k1"), Duration::ZERO);
        decode(&signer.bearer().unwrap(), pkcs8);
        assert!(!format!("{signer:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_token_says_who_and_how_long() {
        let pem = testing::private_pem();
        let before = unix_now().unwrap();
        let key = PrivateKey::parse(&secret(pem)).unwrap();
        let signer = Signer::new(key.clone(), "q1", Some("key-7"), Duration::from_secs(60));
        let (header, claims) = decode(&signer.bearer().unwrap(), pem);
        assert_eq!((header.typ.as_deref(), header.kid.as_deref()), (Some("JWT"), Some("key-7")));
        assert_eq!(header.alg, Algorithm::RS256);
        let iat = claims["iat"].as_u64().unwrap();
        assert!((before..=unix_now().unwrap()).contains(&iat));
        assert_eq!(claims, serde_json::json!({"sub": "q1", "iss": "coda", "iat": iat, "exp": iat + 3600}));
        for none in [None, Some("")] {
            let signer = Signer::new(key.clone(), "q1", none, Duration::ZERO);
            assert_eq!(decode(&signer.bearer().unwrap(), pem).0.kid.as_deref(), Some("q1"));
        }
    }

    #[test]
    fn a_token_is_reused_until_its_time_is_up() {
        let key = PrivateKey::parse(&secret(testing::private_pem())).unwrap();
        let signer = Signer::new(key.clone(), "q1", None, Duration::from_secs(60));
        let minted = |s: &Signer| s.shared.current.lock().as_ref().unwrap().at;
        signer.bearer().unwrap();
        let first = minted(&signer);
        signer.clone().bearer().unwrap();
        assert_eq!(minted(&signer), first, "clones share the token");
        signer.fresh().unwrap();
        let second = minted(&signer);
        assert!(second > first);
        signer.bearer().unwrap();
        assert_eq!(minted(&signer), second, "the fresh one serves on");

        // The clock was set back by an hour after the token had been signed.
        signer.shared.current.lock().as_mut().unwrap().issued += 3600;
        signer.bearer().unwrap();
        assert!(minted(&signer) > second);

        let each = Signer::new(key, "q1", None, Duration::ZERO);
        each.bearer().unwrap();
        let first = minted(&each);
        each.bearer().unwrap();
        assert!(minted(&each) > first);
    }

    #[test]
    fn other_keys_are_named_and_never_shown() {
        let pem = testing::private_pem();
        let ec8 = openssl(&["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"], "");
        let encrypted = openssl(&["pkcs8", "-topk8", "-passout", "pass:x"], pem);
        let encrypted1 = openssl(&["rsa", "-traditional", "-aes128", "-passout", "pass:x"], pem);
        let cases = [
            (ec8.clone(), "an elliptic curve key was given"),
            (openssl(&["ec"], &ec8), "an elliptic curve key was given"),
            (openssl(&["genpkey", "-algorithm", "ed25519"], ""), "an Ed25519 key was given"),
            (encrypted, "a key encrypted with a passphrase was given"),
            (encrypted1, "a key encrypted with a passphrase was given"),
            (openssl(&["pkey", "-pubout"], pem), "a public key was given"),
            (openssl(&["genrsa", "1024"], ""), "fewer than 2048 bits"),
            (pem[..28 + 5 * 65].to_string() + "-----END PRIVATE KEY-----\n", "its content is damaged"),
            (pem[..400].to_string(), "not in PEM form"),
            ("hunter2".to_string(), "not in PEM form"),
            (String::new(), "not in PEM form"),
        ];
        for (text, expected) in cases {
            let error = PrivateKey::parse(&secret(&text)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error} instead of {expected}");
            let shown = format!("{error} {error:?} {:?}", error.hint());
            let middle: String = text.chars().skip(40).take(12).collect();
            assert!(middle.is_empty() || !shown.contains(&middle), "{shown}");
            assert!(!shown.contains("hunter2"));
        }
    }
}
