//! The document around the sections, its files, and the headers that keep it to itself.

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, PreEscaped, html};

/// Where the files of the page are.
pub const STYLE: &str = "/page/style.css";
pub const SCRIPT: &str = "/page/live.js";
pub const ICON: &str = "/page/icon.svg";
/// Nothing from elsewhere, nothing in the document itself, and in no other page's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// A part of the page that is put in place by itself when it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The id of its element.
    pub id: &'static str,
    pub html: String,
}

impl Section {
    /// A section with a heading, which names its landmark.
    pub fn new(id: &'static str, heading: &str, class: &str, content: Markup) -> Section {
        let html = html! {
            section id=(id) class={ "card " (class) } aria-labelledby={ (id) "-heading" } {
                h2 id={ (id) "-heading" } { (heading) }
                (content)
            }
        };
        Section { id, html: html.into_string() }
    }
}

/// A page.
pub struct PageDocument<'a> {
    pub title: &'a str,
    /// What the page is about, beside the product's name.
    pub subject: &'a str,
    /// Where its changed sections come from; without one it is asked for again.
    pub events: Option<&'a str>,
    pub sections: &'a [Section],
    pub footer: Markup,
}

impl PageDocument<'_> {
    pub fn render(&self) -> Response {
        let document = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) }
                    link rel="icon" href=(ICON) type="image/svg+xml";
                    link rel="stylesheet" href=(STYLE);
                    noscript { meta http-equiv="refresh" content="10"; }
                    script src=(SCRIPT) defer {}
                }
                body data-events=[self.events] {
                    a.skip href="#content" { "Skip to the content" }
                    header.top {
                        a.name href="/" { (mark()) "coda-host" }
                        span.subject { (self.subject) }
                        span #connection .connection role="status" aria-live="polite" {}
                    }
                    main #content tabindex="-1" {
                        @for section in self.sections { (PreEscaped(&section.html)) }
                    }
                    footer { (self.footer) }
                }
            }
        };
        html_answer(StatusCode::OK, document)
    }
}

/// A page that says in a few words that there is nothing to show.
pub fn notice(status: StatusCode, title: &str, text: &str) -> Response {
    let content = html! { p { (text) } p { a href="/" { "To the overview" } } };
    let section = Section::new("notice", title, "wide", content);
    let mut response =
        PageDocument { title, subject: "", events: None, sections: &[section], footer: html! {} }.render();
    *response.status_mut() = status;
    response
}

/// The product's mark: two coupled qubits.
fn mark() -> Markup {
    html! {
        svg.mark viewBox="0 0 32 32" aria-hidden="true" {
            line x1="9" y1="22" x2="23" y2="10" {}
            circle cx="9" cy="22" r="6" {}
            circle cx="23" cy="10" r="6" {}
        }
    }
}

fn html_answer(status: StatusCode, document: Markup) -> Response {
    const HTML: HeaderValue = HeaderValue::from_static("text/html; charset=utf-8");
    let mut response = (status, [(header::CONTENT_TYPE, HTML)], document.into_string()).into_response();
    protect(&mut response);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The headers of everything that a browser shows.
fn protect(response: &mut Response) {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
}

pub async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("assets/style.css"))
}

pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("assets/live.js"))
}

pub async fn icon() -> Response {
    file("image/svg+xml", include_str!("assets/icon.svg"))
}

fn file(content_type: &'static str, content: &'static str) -> Response {
    let mut response = ([(header::CONTENT_TYPE, content_type)], content).into_response();
    protect(&mut response);
    // A new version of the binary brings new files under the same names.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_document_names_no_other_host_and_has_no_script_in_it() {
        let section = Section::new("now", "Now", "", html! { p { "<script>alert(1)</script>" } });
        let document = PageDocument {
            title: "t",
            subject: "s",
            events: Some("/events"),
            sections: &[section],
            footer: html! {},
        };
        let response = document.render();
        assert!(
            response.headers()[header::CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap()
                .contains("default-src 'none'")
        );
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains("&lt;script&gt;"), "{text}");
        assert!(!text.contains("://") && !text.contains(" style=") && !text.contains("onclick"), "{text}");
        let files = [include_str!("assets/style.css"), include_str!("assets/live.js")];
        let size: usize = files.iter().map(|f| f.len()).sum();
        assert!(size < 60 << 10, "{size}");
        for text in files {
            assert!(!text.contains("://"), "a request to another host");
        }
    }
}
