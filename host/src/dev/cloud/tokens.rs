//! The development cloud's side of signed tokens: its RSA keys, and checking what a node signs.
//!
//! A token that was found good is remembered until it expires, because a node uses one for many requests and
//! checking a signature costs more than everything else about a request.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use parking_lot::Mutex;
use serde::Deserialize;

use ring::signature::{RsaKeyPair, RsaPublicKeyComponents};

use super::{DevCloudError, rsa_key};
use crate::cloud::jwt_crypto;
use crate::model::Secret;

/// Good tokens remembered; more than a node makes in hours.
const REMEMBERED: usize = 1024;
/// Seconds that a node's clock may be ahead.
const LEEWAY: u64 = 60;

/// PKCS#8 around a PKCS#1 key (RFC 5958): what the cloud gives out.
fn pkcs8_pem(pkcs1: &[u8]) -> String {
    // PrivateKeyInfo: version 0, rsaEncryption without parameters, and the key of some 1,190 bytes.
    const ALGORITHM: &[u8] = b"\x02\x01\x00\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00";
    let long = |tag: u8, content: &[u8]| {
        let [high, low] = (content.len() as u16).to_be_bytes();
        [&[tag, 0x82, high, low], content].concat()
    };
    let info = long(0x30, &[ALGORITHM, &long(0x04, pkcs1)].concat());
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("PRIVATE KEY", info), config)
}

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
        let der = rsa_key::generate().ok_or_else(failed)?;
        let pair = RsaKeyPair::from_der(&der).map_err(|_| failed())?;
        let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let verify = DecodingKey::from_rsa_raw_components(&n, &e);
        jwt_crypto::install();
        Ok(Keys {
            private_pem: Secret::new(pkcs8_pem(&der)),
            kid: kid.into(),
            verify,
            good: Mutex::default(),
        })
    }

    /// The private key in PEM, as a node is given it.
    pub fn private_pem(&self) -> &Secret {
        &self.private_pem
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
