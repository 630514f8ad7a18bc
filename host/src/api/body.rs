//! Request bodies of the coordinator's API: read into types, with errors that name the field and what is allowed.
//!
//! A type says what it takes: its fields, which are required, and the bounds of each. The description of the API is
//! generated from the same types.

use std::fmt;

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, StatusCode, header};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, DeserializeOwned, DeserializeSeed, IntoDeserializer as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::http::ApiProblem;
use crate::model::cut;

/// Longest body in bytes. A circuit is bounded by its parser.
pub const MAX_BODY: usize = (1 << 20) + (64 << 10);
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
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    if !media_type.eq_ignore_ascii_case("application/json") {
        let detail = "the Content-Type must be application/json";
        return Err(ApiProblem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    parse(&bytes)
}

/// Reads the bytes of a body. No bytes at all are an empty object.
///
/// # Errors
/// When the bytes are not JSON (400), or do not have the form of `T` (422, with the field).
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiProblem> {
    let value = match bytes.is_empty() {
        true => Value::Object(Map::new()),
        false => serde_json::from_slice(bytes).map_err(|e| {
            ApiProblem::new(StatusCode::BAD_REQUEST, format!("the body is not valid JSON: {e}"))
        })?,
    };
    let Value::Object(fields) = value else {
        return Err(field_problem("body", "the body must be a JSON object"));
    };
    T::deserialize(Fields { fields: fields.into_iter(), value: None }).map_err(|error| {
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

/// An object whose errors say in which field they are.
struct Fields {
    fields: serde_json::map::IntoIter,
    /// The field whose name was read last.
    value: Option<(String, Value)>,
}

impl<'de> Deserializer<'de> for Fields {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        visitor.visit_map(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> MapAccess<'de> for Fields {
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
        let is_null = value.is_null();
        let read = match is_null {
            true => Err("null is not allowed; give a value or leave the field out".to_string()),
            false => seed.deserialize(value).map_err(|e| e.to_string()),
        };
        read.map_err(|message| FieldError { message: format!("{name}: {message}"), field: Some(name) })
    }
}

/// A text of `MIN` to 1024 characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundedText<const MIN: usize>(pub String);

impl<'de, const MIN: usize> Deserialize<'de> for BoundedText<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<BoundedText<MIN>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let length = text.chars().count();
        match (MIN..=MAX_TEXT).contains(&length) {
            true => Ok(BoundedText(text)),
            false => Err(de::Error::custom(format!(
                "the text has {length} characters, {MIN} to {MAX_TEXT} are allowed"
            ))),
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
        json_schema!({ "type": "string", "minLength": MIN, "maxLength": MAX_TEXT })
    }
}

/// A whole number of `MIN` to `MAX`, also written as `5.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct WholeNumber<const MIN: u64, const MAX: u64>(pub u64);

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for WholeNumber<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WholeNumber<MIN, MAX>, D::Error> {
        let value = Value::deserialize(deserializer)?;
        // The cast saturates, and the largest number is out of bounds.
        let whole = |f: f64| (f.fract() == 0.0 && f >= 0.0).then_some(f as u64);
        let number = value.as_u64().or_else(|| value.as_f64().and_then(whole));
        match number.filter(|n| (MIN..=MAX).contains(n)) {
            Some(number) => Ok(WholeNumber(number)),
            None => {
                let shown = value.to_string();
                let shown = cut(&shown, 40);
                Err(de::Error::custom(format!("{shown} is not a whole number from {MIN} to {MAX}")))
            }
        }
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
    use serde_json::json;

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
