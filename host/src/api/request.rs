//! Parts of a request beside its body: ids in paths, query parameters, the idempotency key. Errors have the form of the
//! API and name the parameter.

use std::ops::RangeInclusive;

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use url::form_urlencoded;

use super::body::{BoundedText, MAX_TEXT, field_problem};
use super::http::ApiProblem;
use crate::model::cut;

/// Most query parameters: more than any path has.
const MAX_PARAMETERS: usize = 64;
/// The header with a job's idempotency key.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// An id in a path. One that no job and no reservation can have is not looked for.
pub struct PathId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = ApiProblem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<PathId, ApiProblem> {
        let Path(id) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| {
            ApiProblem::new(StatusCode::BAD_REQUEST, "the id in the path is not percent-encoded UTF-8")
        })?;
        match id.chars().count() > MAX_TEXT || id.chars().any(char::is_control) {
            true => Err(ApiProblem::new(StatusCode::NOT_FOUND, "nothing has such an id")),
            false => Ok(PathId(id)),
        }
    }
}

/// The query of a request.
#[derive(Debug)]
pub struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads a query whose parameters are among the known ones.
    ///
    /// # Errors
    /// When it has another one (422).
    pub fn read(query: Option<&str>, known: &[&str]) -> Result<Parameters, ApiProblem> {
        let pairs = form_urlencoded::parse(query.unwrap_or_default().as_bytes());
        let pairs: Vec<(String, String)> = pairs.into_owned().take(MAX_PARAMETERS + 1).collect();
        if pairs.len() > MAX_PARAMETERS {
            return Err(field_problem(
                "query",
                &format!("the query has more than {MAX_PARAMETERS} parameters"),
            ));
        }
        match pairs.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(Parameters(pairs)),
            Some((name, _)) => {
                let (name, known) = (cut(name, 80), known.join(", "));
                let detail = format!("the parameter '{name}' is unknown; known are {known}");
                Err(field_problem(name, &detail))
            }
        }
    }

    /// Every value of a parameter.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The value of a parameter that may be given once.
    ///
    /// # Errors
    /// When it is given twice (422).
    pub fn one(&self, name: &str) -> Result<Option<&str>, ApiProblem> {
        let mut values = self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str());
        match (values.next(), values.next()) {
            (value, None) => Ok(value),
            (_, Some(_)) => Err(field_problem(name, &format!("{name} is given more than once"))),
        }
    }

    /// The value of a whole number.
    ///
    /// # Errors
    /// When it is given twice, or is not a whole number of the range (422).
    pub fn whole(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, ApiProblem> {
        let Some(text) = self.one(name)? else { return Ok(None) };
        match text.parse().ok().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let (low, high, text) = (range.start(), range.end(), cut(text, 80));
                let detail = format!("{name}: '{text}' is not a whole number from {low} to {high}");
                Err(field_problem(name, &detail))
            }
        }
    }

    /// The value of a parameter that has one of these names, by its place among them.
    ///
    /// # Errors
    /// When it is given twice, or has another value (422).
    pub fn choice(&self, name: &str, choices: &[&str]) -> Result<Option<usize>, ApiProblem> {
        self.one(name)?.map(|text| choose(name, text, choices)).transpose()
    }
}

/// The place of a value among those that a parameter may have.
///
/// # Errors
/// When it has none (422).
pub fn choose(name: &str, text: &str, choices: &[&str]) -> Result<usize, ApiProblem> {
    choices.iter().position(|choice| *choice == text).ok_or_else(|| {
        let (text, choices) = (cut(text, 80), choices.join(", "));
        field_problem(name, &format!("{name}: '{text}' is not one of {choices}"))
    })
}

/// The idempotency key of a request, from its header and its body.
///
/// # Errors
/// When the header is not a key, or is another one than that of the body (400).
pub fn idempotency_key(
    headers: &HeaderMap,
    in_body: Option<BoundedText<1>>,
) -> Result<Option<String>, ApiProblem> {
    let wrong = |why: &str| {
        let detail = format!("the header Idempotency-Key {why}");
        ApiProblem::new(StatusCode::BAD_REQUEST, detail).field("Idempotency-Key")
    };
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let in_header = match (values.next(), values.next()) {
        (None, _) => None,
        (Some(_), Some(_)) => return Err(wrong("is given more than once")),
        (Some(value), None) => {
            let text = value.to_str().map_err(|_| wrong("has other characters than visible ASCII"))?.trim();
            // A structured string stands in quotes; most clients send the bare key.
            let bare = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
            Some(BoundedText::<1>::new(bare.into()).map_err(|why| wrong(&format!("can't be used: {why}")))?)
        }
    };
    match (in_header, in_body) {
        (Some(header), Some(body)) if header != body => Err(wrong("is not the idempotency_key of the body")),
        (Some(key), _) | (None, Some(key)) => Ok(Some(key.0)),
        (None, None) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem<T: std::fmt::Debug>(read: Result<T, ApiProblem>) -> (u16, String, String) {
        let body = read.unwrap_err().body().clone();
        let field = body.errors.first().map(|e| e.field.clone()).unwrap_or_default();
        (body.status, field, body.detail)
    }

    #[test]
    fn parameters_are_read_and_errors_name_them() {
        let read = |query| Parameters::read(Some(query), &["limit", "status"]);
        let query = read("status=failed&limit=10&status=a%20b").unwrap();
        assert_eq!(query.all("status").collect::<Vec<_>>(), ["failed", "a b"]);
        assert_eq!(query.whole("limit", 1..=200).unwrap(), Some(10));
        assert_eq!(Parameters::read(None, &[]).unwrap().one("limit").unwrap(), None);
        let (status, field, detail) = problem(read("surprise=1"));
        assert_eq!((status, field.as_str()), (422, "surprise"));
        assert!(detail.contains("known are limit, status"), "{detail}");
        for text in ["limit=0", "limit=201", "limit=", "limit=-1", "limit=1.5", "limit=1&limit=2"] {
            let (status, field, _) = problem(read(text).unwrap().whole("limit", 1..=200));
            assert_eq!((status, field.as_str()), (422, "limit"), "{text}");
        }
        assert_eq!(read("limit=full").unwrap().choice("limit", &["plan", "full"]).unwrap(), Some(1));
        let (status, _, detail) = problem(read("limit=Full").unwrap().choice("limit", &["plan", "full"]));
        assert!(status == 422 && detail.contains("'Full' is not one of plan, full"), "{detail}");
        assert_eq!(problem(read(&"limit=1&".repeat(1000))).1, "query");
    }

    #[test]
    fn a_key_is_taken_from_the_header_or_the_body() {
        let key = |header: Option<&str>, body: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(IDEMPOTENCY_KEY, header.parse().unwrap());
            }
            idempotency_key(&headers, body.map(|b| BoundedText(b.into())))
        };
        assert_eq!(key(None, None).unwrap(), None);
        assert_eq!(key(Some("a"), None).unwrap().as_deref(), Some("a"));
        assert_eq!(
            key(Some("\"a\""), Some("a")).unwrap().as_deref(),
            Some("a"),
            "in quotes as a structured string"
        );
        assert_eq!(key(None, Some("b")).unwrap().as_deref(), Some("b"));
        for (header, body) in
            [("a", Some("b")), ("", None), ("\"\"", None), ("a".repeat(1025).as_str(), None)]
        {
            let (status, field, _) = problem(key(Some(header), body));
            assert_eq!((status, field.as_str()), (400, "Idempotency-Key"), "{header} {body:?}");
        }
    }
}
