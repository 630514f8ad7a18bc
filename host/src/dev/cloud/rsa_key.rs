//! RSA keys for the sandbox and the tests: what a cloud does when it provisions a QPU.
//!
//! Two random probable primes of 1,024 bits (FIPS 186-5, appendix A.1.3: trial division, then Miller-Rabin), e = 65537.
//! ring, which signs with the key, checks it once more when it reads it. Not for keys that protect anything: the
//! arithmetic does not take the same time for every value.

use num_bigint::{BigInt, BigUint, Sign};
use simple_asn1::{ASN1Block, to_der};

const PRIME_BITS: usize = 1024;
const EXPONENT: u32 = 65_537;
/// A composite number passes so many rounds with a probability below 4^-rounds; for random ones far below.
const ROUNDS: usize = 16;
/// Candidates with a smaller divisor are not tested further.
const SMALL: u32 = 2_000;

/// A key of 2,048 bits as PKCS#1 DER; `None` when it could not be encoded.
pub fn generate() -> Option<Vec<u8>> {
    let (p, q) = loop {
        let (p, q) = (prime(), prime());
        // The larger one first, as the Chinese remainder wants it; equal ones are as likely as a repeated key.
        match p.cmp(&q) {
            std::cmp::Ordering::Greater => break (p, q),
            std::cmp::Ordering::Less => break (q, p),
            std::cmp::Ordering::Equal => {}
        }
    };
    let (one, e) = (BigUint::from(1u8), BigUint::from(EXPONENT));
    let (p1, q1) = (&p - &one, &q - &one);
    let d = e.modinv(&(&p1 * &q1))?;
    let numbers =
        [BigUint::ZERO, &p * &q, e, d.clone(), p.clone(), q.clone(), &d % &p1, &d % &q1, q.modinv(&p)?];
    let integer = |n: BigUint| ASN1Block::Integer(0, BigInt::from_biguint(Sign::Plus, n));
    to_der(&ASN1Block::Sequence(0, numbers.into_iter().map(integer).collect())).ok()
}

/// A random probable prime p whose two highest bits are set and for which 65537 has an inverse modulo p - 1.
fn prime() -> BigUint {
    loop {
        let mut bytes = [0u8; PRIME_BITS / 8];
        rand::fill(&mut bytes);
        bytes[0] |= 0xc0;
        bytes[PRIME_BITS / 8 - 1] |= 1;
        let candidate = BigUint::from_bytes_be(&bytes);
        let has_inverse = (&candidate - 1u8) % EXPONENT != BigUint::ZERO;
        if has_inverse && is_prime(&candidate) {
            return candidate;
        }
    }
}

fn is_prime(candidate: &BigUint) -> bool {
    if (3..SMALL).step_by(2).any(|divisor| candidate % divisor == BigUint::ZERO) {
        return false;
    }
    let (one, two) = (BigUint::from(1u8), BigUint::from(2u8));
    let less_one = candidate - &one;
    let twos = less_one.trailing_zeros().unwrap_or(0);
    let odd = &less_one >> twos;
    (0..ROUNDS).all(|_| {
        let mut bytes = [0u8; PRIME_BITS / 8];
        rand::fill(&mut bytes);
        // 2 to candidate - 2.
        let base = BigUint::from_bytes_be(&bytes) % (&less_one - &two) + &two;
        let mut power = base.modpow(&odd, candidate);
        if power == one || power == less_one {
            return true;
        }
        (1..twos).any(|_| {
            power = power.modpow(&two, candidate);
            power == less_one
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_takes_the_keys_and_no_two_are_the_same() {
        let keys = [generate().unwrap(), generate().unwrap()];
        assert_ne!(keys[0], keys[1]);
        for key in keys {
            let pair = ring::signature::RsaKeyPair::from_der(&key).unwrap();
            assert_eq!(pair.public().modulus_len(), 256);
        }
    }

    #[test]
    fn known_primes_and_composites_are_told_apart() {
        let power = |n: u32| BigUint::from(1u8) << n;
        for prime in [power(521) - 1u8, power(607) - 1u8, power(255) - 19u8] {
            assert!(is_prime(&prime), "{prime}");
        }
        for composite in [power(523) - 1u8, power(521) + 1u8, (power(89) - 1u8) * (power(107) - 1u8)] {
            assert!(!is_prime(&composite), "{composite}");
        }
    }
}
