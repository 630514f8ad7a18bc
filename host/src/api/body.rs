//! Request bodies of the coordinator's API: read into types, with errors that name the field and what is allowed.
//!
//! A type says what it takes: its fields, which are required, and the bounds of each. The description of the API is
//! generated from the same types.

use std::fmt;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Method, StatusCode};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::http::ApiProblem;
use crate::model::cut;
use crate::request_guard;

/// Longest body in bytes. A circuit is bounded by its parser.
pub const MAX_BODY: usize = (1 << 20) + (64 << 10);
/// Longest reason that repeats a part of a body, in characters.
const MAX_SHOWN: usize = 200;
/// Longest text of a field, in characters.
pub const MAX_TEXT: usize = 1024;

/// Reads the body of a request.
///
/// # Errors
/// When the body is too long, is not declared or written as JSON, or does not have the form of `T`.
pub async fn read_body<T: DeserializeOwned>(headers: &HeaderMap, body: Body) -> Result<T, ApiProblem> {
    let bytes = to_bytes(body, MAX_BODY).await.map_err(|_| {
        ApiProblem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body has more than {MAX_BODY} bytes"))
    })?;
    request_guard::check_content_type(&Method::POST, headers)
        .map_err(|e| ApiProblem::new(e.status(), e.to_string()))?;
    parse(&bytes)
}

/// Reads the bytes of a body. No bytes at all are an empty object.
///
/// # Errors
/// When the bytes are not JSON (400), or do not have the form of `T` (422, with the field).
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiProblem> {
    let fields = match bytes.is_empty() {
        true => RawFields::default(),
        false => RawFields::read(bytes)?,
    };
    T::deserialize(Fields { fields: fields.0.into_iter(), value: None }).map_err(|error| {
        let field = error.field.unwrap_or_else(|| "body".into());
        field_problem(&field, &error.message)
    })
}

/// The answer to a request that has a wrong field.
pub fn field_problem(field: &str, detail: &str) -> ApiProblem {
    ApiProblem::new(StatusCode::UNPROCESSABLE_ENTITY, detail).field(field)
}

/// Why an object does not have the form of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldError {
    field: Option<String>,
    message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for FieldError {}

impl de::Error for FieldError {
    fn custom<M: fmt::Display>(message: M) -> FieldError {
        FieldError { field: None, message: message.to_string() }
    }

    fn missing_field(field: &'static str) -> FieldError {
        FieldError { field: Some(field.into()), message: format!("{field} is missing") }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> FieldError {
        let field = cut(field, 80).to_string();
        let message = format!("the field '{field}' is unknown; known are {}", expected.join(", "));
        FieldError { field: Some(field), message }
    }
}

/// Most fields of a body: more than any has.
const MAX_FIELDS: usize = 64;

/// The fields of an object, each as the text that came: what is not asked for is not decoded.
#[derive(Default)]
struct RawFields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> RawFields<'a> {
    fn read(bytes: &'a [u8]) -> Result<RawFields<'a>, ApiProblem> {
        let whole: &RawValue = serde_json::from_slice(bytes).map_err(|e| {
            ApiProblem::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {e}"))
        })?;
        if !whole.get().starts_with('{') {
            return Err(field_problem("body", "the body must be a JSON object"));
        }
        serde_json::from_str(whole.get()).map_err(|e| field_problem("body", &e.to_string()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<RawFields<'a>, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = RawFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawFields<'de>, A::Error> {
                let mut fields: Vec<(String, &RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &RawValue>()? {
                    if fields.len() == MAX_FIELDS {
                        return Err(de::Error::custom(format!("the body has more than {MAX_FIELDS} fields")));
                    }
                    // The last one of a name is taken.
                    fields.retain(|(known, _)| *known != name);
                    fields.push((name, value));
                }
                fields.sort_by(|a, b| a.0.cmp(&b.0));
                Ok(RawFields(fields))
            }
        }

        deserializer.deserialize_map(Object)
    }
}

/// An object whose errors say in which field they are.
struct Fields<'a> {
    fields: std::vec::IntoIter<(String, &'a RawValue)>,
    /// The field whose name was read last.
    value: Option<(String, &'a RawValue)>,
}

impl<'de> Deserializer<'de> for Fields<'de> {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_map(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = FieldError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, FieldError> {
        let Some((name, value)) = self.fields.next() else { return Ok(None) };
        let key = seed.deserialize(name.clone().into_deserializer())?;
        self.value = Some((name, value));
        Ok(Some(key))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, FieldError> {
        let (name, value) = self.value.take().ok_or_else(|| de::Error::custom("a value without a name"))?;
        // An optional field is left out. The description promises no null.
        let read = match value.get() == "null" {
            true => Err("null is not allowed; give a value or leave the field out".to_string()),
            false => seed.deserialize(&mut serde_json::Deserializer::from_str(value.get())).map_err(|e| {
                // The position is one in the field, which would mislead.
                let text = e.to_string();
                let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
                cut(text, MAX_SHOWN).to_string()
            }),
        };
        read.map_err(|message| FieldError { message: format!("{name}: {message}"), field: Some(name) })
    }
}

/// A text of `MIN` to 1024 characters, other than U+0000, which an event log in PostgreSQL can't hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundedText<const MIN: usize>(pub String);

impl<'de, const MIN: usize> Deserialize<'de> for BoundedText<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BoundedText<MIN>, D::Error> {
        let text = String::deserialize(deserializer)?;
        BoundedText::new(text).map_err(de::Error::custom)
    }
}

impl<const MIN: usize> BoundedText<MIN> {
    /// # Errors
    /// When the text is too short, too long, or has a character that is not allowed. The error says what is allowed.
    pub fn new(text: String) -> Result<BoundedText<MIN>, String> {
        let length = text.chars().count();
        if !(MIN..=MAX_TEXT).contains(&length) {
            return Err(format!("the text has {length} characters, {MIN} to {MAX_TEXT} are allowed"));
        }
        match text.contains('\0') {
            true => Err("the character U+0000 is not allowed".into()),
            false => Ok(BoundedText(text)),
        }
    }
}

impl<const MIN: usize> JsonSchema for BoundedText<MIN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Text{MIN}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "minLength": MIN, "maxLength": MAX_TEXT, "pattern": "^[^\\x00]*$" })
    }
}

/// A whole number of `MIN` to `MAX`, also written as `5.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WholeNumber<const MIN: u64, const MAX: u64>(pub u64);

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for WholeNumber<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WholeNumber<MIN, MAX>, D::Error> {
        struct Number<const MIN: u64, const MAX: u64>;

        impl<const MIN: u64, const MAX: u64> Number<MIN, MAX> {
            fn within<E: de::Error>(
                number: Option<u64>,
                shown: impl fmt::Display,
            ) -> Result<WholeNumber<MIN, MAX>, E> {
                let number = number.filter(|n| (MIN..=MAX).contains(n)).map(WholeNumber);
                let wrong = || E::custom(format!("{shown} is not a whole number from {MIN} to {MAX}"));
                number.ok_or_else(wrong)
            }
        }

        impl<const MIN: u64, const MAX: u64> Visitor<'_> for Number<MIN, MAX> {
            type Value = WholeNumber<MIN, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from {MIN} to {MAX}")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                Number::<MIN, MAX>::within(Some(number), number)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                Number::<MIN, MAX>::within(u64::try_from(number).ok(), number)
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Self::Value, E> {
                // The cast saturates, and the largest number is out of bounds.
                let whole = (number.fract() == 0.0 && number >= 0.0).then_some(number as u64);
                // With an exponent where it has one.
                Number::<MIN, MAX>::within(whole, format_args!("{number:?}"))
            }
        }

        deserializer.deserialize_any(Number::<MIN, MAX>)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for WholeNumber<MIN, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("WholeNumber{MIN}To{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        name: BoundedText<3>,
        #[serde(default)]
        label: Option<BoundedText<1>>,
        #[serde(default = "five")]
        count: WholeNumber<1, 10>,
    }

    fn five() -> WholeNumber<1, 10> {
        WholeNumber(5)
    }

    fn error(body: &str) -> (u16, String, String) {
        let problem = parse::<Sample>(body.as_bytes()).expect_err(body);
        let body = problem.body();
        let field = body.errors.first().map(|e| e.field.clone()).unwrap_or_default();
        (body.status, field, body.detail.clone())
    }

    #[test]
    fn a_body_is_read_with_its_defaults() {
        let read = |value: Value| parse::<Sample>(value.to_string().as_bytes()).map_err(|p| p.body().clone());
        let sample = Sample { name: BoundedText("abc".into()), label: None, count: WholeNumber(5) };
        assert_eq!(read(json!({ "name": "abc" })), Ok(sample));
        assert_eq!(read(json!({ "name": "abc", "count": 10.0 })).unwrap().count, WholeNumber(10));
        assert_eq!(read(json!({ "name": "a".repeat(1024) })).unwrap().name.0.len(), 1024);
    }

    #[test]
    fn an_error_names_the_field_and_what_is_allowed() {
        for (body, status, field, part) in [
            ("{", 400, "", "the body is not valid JSON"),
            ("[]", 422, "body", "must be a JSON object"),
            ("", 422, "name", "name is missing"),
            (r#"{"count": 1}"#, 422, "name", "name is missing"),
            (r#"{"name": "ab"}"#, 422, "name", "name: the text has 2 characters, 3 to 1024 are allowed"),
            (r#"{"name": 7}"#, 422, "name", "expected a string"),
            (r#"{"name": "ab\u0000c"}"#, 422, "name", "U+0000 is not allowed"),
            (r#"{"name": "abc", "label": null}"#, 422, "label", "leave the field out"),
            (r#"{"name": "abc", "count": 0}"#, 422, "count", "0 is not a whole number from 1 to 10"),
            (r#"{"name": "abc", "count": 1.5}"#, 422, "count", "1.5 is not a whole number from 1 to 10"),
            (r#"{"name": "abc", "count": 1e300}"#, 422, "count", "from 1 to 10"),
            (r#"{"name": "abc", "surprise": 1}"#, 422, "surprise", "known are name, label, count"),
        ] {
            let (found_status, found_field, detail) = error(body);
            assert_eq!((found_status, found_field.as_str()), (status, field), "{body}: {detail}");
            assert!(detail.contains(part), "{body}: {detail}");
        }
    }
}
