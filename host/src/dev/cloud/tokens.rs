//! The development cloud's side of signed tokens: its RSA keys, and checking what a node signs.
//!
//! A token that was found good is remembered until it expires, because a node uses one for many requests and
//! checking a signature costs more than everything else about a request.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::KeyPair as _;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::Mutex;
use serde::Deserialize;

use super::DevCloudError;
use crate::model::Secret;

/// Good tokens remembered; more than a node makes in hours.
const REMEMBERED: usize = 1024;
/// Seconds that a node's clock may be ahead.
const LEEWAY: u64 = 60;

/// A key pair and the id it is known by.
pub struct Keys {
    pub(super) private_pem: Secret,
    pub(super) kid: String,
    verify: DecodingKey,
    good: Mutex<HashMap<String, u64>>,
}

#[derive(Deserialize)]
struct Claims {
    iat: u64,
    exp: u64,
}

impl Keys {
    /// Takes some tenths of a second; share one pair among the clouds of a test run.
    pub fn generate(kid: &str) -> Result<Keys, DevCloudError> {
        let failed = || DevCloudError::Keys;
        let pair = KeyPair::generate(KeySize::Rsa2048).map_err(|_| failed())?;
        let private: Pkcs8V1Der<'static> = pair.as_der().map_err(|_| failed())?;
        let public: PublicKeyX509Der<'static> = pair.public_key().as_der().map_err(|_| failed())?;
        let pem = |tag: &str, der: &[u8]| {
            let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
            pem::encode_config(&pem::Pem::new(tag, der), config)
        };
        let verify =
            DecodingKey::from_rsa_pem(pem("PUBLIC KEY", public.as_ref()).as_bytes()).map_err(|_| failed())?;
        Ok(Keys {
            private_pem: Secret::new(pem("PRIVATE KEY", private.as_ref())),
            kid: kid.into(),
            verify,
            good: Mutex::default(),
        })
    }

    /// A token as a node with this key signs it, for measurements of this cloud alone.
    pub fn token(&self, qpu_id: &str) -> Result<Secret, DevCloudError> {
        let failed = || DevCloudError::Keys;
        let iat = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|_| failed())?.as_secs();
        let mut header = jsonwebtoken::Header::new(Algorithm::RS256);
        header.kid = Some(self.kid.clone());
        let claims = serde_json::json!({ "sub": qpu_id, "iss": "coda", "iat": iat, "exp": iat + 3600 });
        let key = jsonwebtoken::EncodingKey::from_rsa_pem(self.private_pem.expose().as_bytes());
        let token = jsonwebtoken::encode(&header, &claims, &key.map_err(|_| failed())?);
        token.map(Secret::new).map_err(|_| failed())
    }

    /// Checks signature, algorithm, `kid`, `sub`, `iss`, `iat` and `exp`; the reason is for the answer.
    pub(super) fn check(&self, token: &str, qpu_id: &str) -> Result<(), &'static str> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let mut good = self.good.lock();
        match good.get(token) {
            Some(exp) if *exp > now => return Ok(()),
            Some(_) => return Err("the JWT has expired"),
            None => (),
        }
        let mut validation = Validation::new(Algorithm::RS256);
        validation.leeway = 0;
        validation.set_issuer(&["coda"]);
        validation.set_required_spec_claims(&["sub", "iss", "exp"]);
        validation.sub = Some(qpu_id.to_owned());
        let data =
            jsonwebtoken::decode::<Claims>(token, &self.verify, &validation).map_err(|e| match e.kind() {
                ErrorKind::ExpiredSignature => "the JWT has expired",
                ErrorKind::InvalidIssuer => "the JWT's iss is not 'coda'",
                ErrorKind::InvalidSubject => "the JWT's sub is not this QPU",
                ErrorKind::InvalidSignature => "the JWT's signature is wrong",
                ErrorKind::MissingRequiredClaim(_) => "the JWT lacks a claim",
                _ => "not a usable JWT",
            })?;
        if data.header.kid.as_deref() != Some(&self.kid) {
            return Err("the JWT's kid is unknown");
        }
        if data.header.typ.as_deref() != Some("JWT") {
            return Err("the JWT's typ is not 'JWT'");
        }
        let Claims { iat, exp } = data.claims;
        if iat > now + LEEWAY {
            return Err("the JWT's iat lies in the future");
        }
        if exp != iat + 3600 {
            return Err("the JWT doesn't last an hour");
        }
        if good.len() >= REMEMBERED {
            good.clear();
        }
        good.insert(token.to_owned(), exp);
        Ok(())
    }
}
