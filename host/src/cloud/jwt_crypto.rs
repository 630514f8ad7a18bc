//! RS256 for the crate `jsonwebtoken`, by ring, which TLS and the peer network bring anyway.
//!
//! Nothing else is offered: other algorithms are refused as unsupported. The key is parsed for each signature, some tenths
//! of a millisecond, and a token serves a minute.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Signer, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::rand::SystemRandom;
use ring::signature::{
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents, UnparsedPublicKey,
};

/// The provider; `JWK` functions are not used, so it has none.
static RING: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Makes ring the process's provider. May be called any number of times.
pub fn install() {
    // The second time it is there already, and it is the same.
    RING.install_default().ok();
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    check(*algorithm, key.family())?;
    Ok(Box::new(Rs256Signer(key.clone())))
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    check(*algorithm, key.family())?;
    Ok(Box::new(Rs256Verifier(key.clone())))
}

fn check(algorithm: Algorithm, family: AlgorithmFamily) -> Result<(), Error> {
    match algorithm == Algorithm::RS256 && family == AlgorithmFamily::Rsa {
        true => Ok(()),
        false => Err(ErrorKind::InvalidAlgorithm.into()),
    }
}

struct Rs256Signer(EncodingKey);

impl Signer<Vec<u8>> for Rs256Signer {
    fn try_sign(&self, message: &[u8]) -> Result<Vec<u8>, signature::Error> {
        // The crate keeps RSA keys as PKCS#1.
        let pair = RsaKeyPair::from_der(self.0.as_bytes()).map_err(signature::Error::from_source)?;
        let mut signed = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signed)
            .map_err(|_| signature::Error::new())?;
        Ok(signed)
    }
}

impl JwtSigner for Rs256Signer {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

struct Rs256Verifier(DecodingKey);

impl Verifier<Vec<u8>> for Rs256Verifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> Result<(), signature::Error> {
        let checked = match self.0.kind() {
            DecodingKeyKind::SecretOrDer(der) => {
                UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).verify(message, signed)
            }
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                RsaPublicKeyComponents { n, e }.verify(&RSA_PKCS1_2048_8192_SHA256, message, signed)
            }
        };
        checked.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for Rs256Verifier {
    fn algorithm(&self) -> Algorithm {
        Algorithm::RS256
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloud::testing;

    #[test]
    fn what_is_signed_is_verified_and_nothing_else_is() {
        install();
        let pem = pem::parse(testing::private_pem()).unwrap();
        let pair = RsaKeyPair::from_pkcs8(pem.contents()).unwrap();
        let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
        let public = DecodingKey::from_rsa_raw_components(&n, &e);
        let private = EncodingKey::from_rsa_pem(testing::private_pem().as_bytes()).unwrap();
        let signed = signer(&Algorithm::RS256, &private).unwrap().try_sign(b"text").unwrap();
        let verifier = verifier(&Algorithm::RS256, &public).unwrap();
        assert!(verifier.verify(b"text", &signed).is_ok());
        assert!(verifier.verify(b"test", &signed).is_err());
        let mut wrong = signed.clone();
        wrong[7] ^= 1;
        assert!(verifier.verify(b"text", &wrong).is_err() && verifier.verify(b"text", &Vec::new()).is_err());
        for algorithm in [Algorithm::RS512, Algorithm::PS256, Algorithm::HS256] {
            assert!(signer(&algorithm, &private).is_err() && super::verifier(&algorithm, &public).is_err());
        }
    }
}
