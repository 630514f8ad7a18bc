//! Pure: how single fields are read, with the limits of the contract.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Unexpected, Visitor};
use serde::ser::{Serialize, Serializer};

/// Longest text of an id: nothing that is kept may be as long as a document.
const MAX_TEXT: usize = 1024;
/// Most whole numbers of one list: far more than a state has qubits.
const MAX_NUMBERS: usize = 4096;

/// A text of at least `MIN` characters.
pub fn text<'de, const MIN: usize, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let text = String::deserialize(d)?;
    sized(text, MIN, MAX_TEXT).map_err(D::Error::custom)
}

/// A text within bounds, null or nothing.
pub fn maybe_text<'de, const MIN: usize, const MAX: usize, D: Deserializer<'de>>(
    d: D,
) -> Result<Option<String>, D::Error> {
    let text = Option::<String>::deserialize(d)?;
    text.map(|t| sized(t, MIN, MAX)).transpose().map_err(D::Error::custom)
}

fn sized(text: String, min: usize, max: usize) -> Result<String, String> {
    let length = text.chars().count();
    match (min..=max).contains(&length) {
        true => Ok(text),
        false => Err(format!("a text of {length} characters where {min} to {max} are allowed")),
    }
}

/// A whole number, also as `5.0`; beyond 64 bits it counts as the largest.
struct Int;

impl Visitor<'_> for Int {
    type Value = i64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number")
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<i64, E> {
        Ok(n)
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<i64, E> {
        Ok(i64::try_from(n).unwrap_or(i64::MAX))
    }

    fn visit_f64<E: Error>(self, n: f64) -> Result<i64, E> {
        // The cast saturates.
        (n.fract() == 0.0).then_some(n as i64).ok_or_else(|| E::invalid_value(Unexpected::Float(n), &self))
    }
}

pub fn number<'de, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
    d.deserialize_any(Int)
}

pub fn at_least<'de, const MIN: i64, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
    let n = number(d)?;
    (n >= MIN).then_some(n).ok_or_else(|| D::Error::custom(format!("{n} where at least {MIN} is allowed")))
}

pub fn between<'de, const MIN: i64, const MAX: i64, D: Deserializer<'de>>(d: D) -> Result<i64, D::Error> {
    let n = number(d)?;
    let message = || D::Error::custom(format!("{n} where {MIN} to {MAX} are allowed"));
    (MIN..=MAX).contains(&n).then_some(n).ok_or_else(message)
}

#[derive(serde::Deserialize)]
struct Whole(#[serde(deserialize_with = "number")] i64);

/// A list of at most `MAX` values: the text of a list may be far shorter than its decoded form.
pub fn bounded<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    d: D,
) -> Result<Vec<T>, D::Error> {
    struct List<T, const MAX: usize>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for List<T, MAX> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Vec<T>, A::Error> {
            let mut list = Vec::new();
            while let Some(value) = values.next_element()? {
                if list.len() == MAX {
                    return Err(A::Error::custom(format!("a list of more than {MAX} values")));
                }
                list.push(value);
            }
            Ok(list)
        }
    }

    d.deserialize_seq(List::<T, MAX>(PhantomData))
}

/// A list of whole numbers.
pub fn list<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<i64>, D::Error> {
    Ok(bounded::<MAX_NUMBERS, Whole, D>(d)?.into_iter().map(|n| n.0).collect())
}

/// A list of whole numbers, null or nothing.
pub fn maybe_list<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Vec<i64>>, D::Error> {
    #[derive(serde::Deserialize)]
    struct Numbers(#[serde(deserialize_with = "list")] Vec<i64>);

    Ok(Option::<Numbers>::deserialize(d)?.map(|numbers| numbers.0))
}

/// A list of texts that is part of a document and not needed: it is checked and not kept, and written empty.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnusedTexts;

impl Serialize for UnusedTexts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq([(); 0])
    }
}

impl<'de> Deserialize<'de> for UnusedTexts {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<UnusedTexts, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = UnusedTexts;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<UnusedTexts, A::Error> {
                // One at a time: none is kept.
                while texts.next_element::<Cow<'de, str>>()?.is_some() {}
                Ok(UnusedTexts)
            }
        }

        d.deserialize_seq(Texts)
    }
}

/// A number from 0, null or nothing.
pub fn maybe_from_zero<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    maybe_within(d, f64::MAX)
}

/// A number from 0 to 1, null or nothing.
pub fn maybe_share<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    maybe_within(d, 1.0)
}

fn maybe_within<'de, D: Deserializer<'de>>(d: D, max: f64) -> Result<Option<f64>, D::Error> {
    let Some(n) = Option::<f64>::deserialize(d)? else { return Ok(None) };
    let message = || D::Error::custom(format!("{n} where 0 to {max} are allowed"));
    (0.0..=max).contains(&n).then_some(Some(n)).ok_or_else(message)
}

pub fn trust_tier<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    const TIERS: [&str; 6] = [
        "platform_managed",
        "external",
        "org_managed",
        "user_contributed",
        "public_untrusted",
        "quarantined",
    ];
    let tier = String::deserialize(d)?;
    match TIERS.contains(&tier.as_str()) {
        true => Ok(tier),
        false => Err(D::Error::unknown_variant(&tier, &TIERS)),
    }
}

/// A time, with or without a zone.
pub fn time_text<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let text = String::deserialize(d)?;
    is_time(&text, false).then_some(text).ok_or_else(|| D::Error::custom("no RFC 3339 time"))
}

/// A time that names its zone.
pub fn zoned_time<'de, D: Deserializer<'de>>(d: D) -> Result<String, D::Error> {
    let text = String::deserialize(d)?;
    is_time(&text, true).then_some(text).ok_or_else(|| D::Error::custom("no RFC 3339 time with a zone"))
}

/// `2026-04-20T00:55:00`, then perhaps a fraction, then `Z`, an offset or (where allowed) nothing.
fn is_time(text: &str, zone_needed: bool) -> bool {
    let Some((head, tail)) = text.split_at_checked(19) else { return false };
    let shape = head.bytes().zip(*b"0000-00-00T00:00:00").all(|(byte, shape)| match shape {
        b'0' => byte.is_ascii_digit(),
        b'T' => matches!(byte, b'T' | b't' | b' '),
        mark => byte == mark,
    });
    if !shape {
        return false;
    }
    let two = |at: usize| head[at..at + 2].parse::<u32>().unwrap_or(u32::MAX);
    let date = (1..=12).contains(&two(5)) && (1..=31).contains(&two(8));
    let clock = two(11) <= 23 && two(14) <= 59 && two(17) <= 60;
    let zone = match tail.strip_prefix('.') {
        Some(fraction) => {
            let rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
            if rest.len() == fraction.len() {
                return false;
            }
            rest
        }
        None => tail,
    };
    let zone = match zone.as_bytes() {
        [] => !zone_needed,
        [b'Z' | b'z'] => true,
        [b'+' | b'-', a, b, b':', c, d] => [a, b, c, d].into_iter().all(u8::is_ascii_digit),
        _ => false,
    };
    date && clock && zone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_every_form() {
        for good in ["2026-04-20T00:55:00.123456Z", "2026-04-20T02:55:00.5+02:00", "2026-04-20T00:55:00Z"] {
            assert!(is_time(good, true) && is_time(good, false), "{good}");
        }
        assert!(is_time("2026-04-20T00:55:00.123456", false) && !is_time("2026-04-20T00:55:00", true));
        for bad in [
            "yesterday",
            "2026-13-20T00:55:00Z",
            "2026-04-20T24:00:00Z",
            "2026-04-20T00:55:00.Z",
            "2026-04-20T00:55:00+2",
            "é026-04-20T00:55:00Z",
            "2026-04-20",
        ] {
            assert!(!is_time(bad, false), "{bad}");
        }
    }
}
