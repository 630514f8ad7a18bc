//! Pure: the two text formats that Prometheus reads, and which of them a scraper prefers.
//!
//! Metrics are encoded as OpenMetrics. The classic format is made from that text: it differs in how families are named
//! and typed, and has no units and no end mark. What is converted has neither exemplars nor times of creation.

use std::fmt::Write as _;

/// A text format of `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exposition {
    OpenMetrics,
    /// The format 0.0.4 of Prometheus, which older scrapers read.
    Classic,
}

impl Exposition {
    /// The format that the Accept headers of a request prefer; OpenMetrics when they prefer neither.
    pub fn preferred<'a>(accept: impl IntoIterator<Item = &'a str>) -> Exposition {
        let ranges: Vec<&str> = accept.into_iter().flat_map(|header| header.split(',')).collect();
        let open_metrics = quality(&ranges, "application/openmetrics-text");
        match quality(&ranges, "text/plain") > open_metrics {
            true => Exposition::Classic,
            false => Exposition::OpenMetrics,
        }
    }

    pub fn content_type(self) -> &'static str {
        match self {
            Exposition::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Exposition::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// An OpenMetrics text in this format.
    pub fn convert(self, open_metrics: String) -> String {
        match self {
            Exposition::OpenMetrics => open_metrics,
            Exposition::Classic => classic(&open_metrics),
        }
    }
}

/// How much these media ranges want a type: the weight of the most specific one that it is in.
fn quality(ranges: &[&str], media_type: &str) -> f64 {
    let group = media_type.split('/').next().unwrap_or_default();
    let specificity = |range: &str| match range.to_ascii_lowercase() {
        range if range == media_type => Some(2),
        range if range.strip_suffix("/*") == Some(group) => Some(1),
        range if range == "*/*" => Some(0),
        _ => None,
    };
    let mut best: Option<(u8, f64)> = None;
    for entry in ranges {
        let mut parts = entry.split(';').map(str::trim);
        let Some(specific) = specificity(parts.next().unwrap_or_default()) else { continue };
        let weight = parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
        let weight: f64 = weight.map_or(1.0, |weight| weight.parse().unwrap_or(0.0));
        // Several versions of one type: the most wanted one.
        let more = |(other, found): (u8, f64)| specific > other || (specific == other && weight > found);
        if best.is_none_or(more) {
            best = Some((specific, weight));
        }
    }
    best.map_or(0.0, |(_, weight)| weight)
}

fn classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    // A family's help comes before its type, which decides the name.
    let mut help = None;
    for line in open_metrics.lines() {
        let comment = line.strip_prefix("# ").map(|rest| rest.splitn(3, ' ').collect::<Vec<_>>());
        let written = match comment.as_deref() {
            Some(["HELP", name, words]) => {
                help = Some((*name, *words));
                Ok(())
            }
            Some(["TYPE", name, kind]) => {
                let (suffix, kind) = match *kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    kind => ("", kind),
                };
                let described = help.take().filter(|(of, _)| of == name);
                let help =
                    described.map_or(Ok(()), |(_, words)| writeln!(text, "# HELP {name}{suffix} {words}"));
                help.and_then(|()| writeln!(text, "# TYPE {name}{suffix} {kind}"))
            }
            Some(_) => Ok(()),
            None => writeln!(text, "{line}"),
        };
        debug_assert!(written.is_ok(), "a String can be written to");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classic_format_comes_to_those_who_prefer_it_alone() {
        use Exposition::{Classic, OpenMetrics};
        for (accept, format) in [
            (&[][..], OpenMetrics),
            (&["*/*"], OpenMetrics),
            (&["text/plain"], Classic),
            (&["text/plain;version=0.0.4"], Classic),
            (&["TEXT/PLAIN; q=0.9"], Classic),
            (&["text/*;q=0.5, */*;q=0.1"], Classic),
            (&["application/json"], OpenMetrics),
            // Prometheus, with and without OpenMetrics.
            (
                &[
                    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                ],
                OpenMetrics,
            ),
            (&["text/plain;version=0.0.4;q=1,*/*;q=0.1"], Classic),
            (&["text/plain", "application/openmetrics-text"], OpenMetrics),
            (&["application/openmetrics-text;q=0, text/plain"], Classic),
            (&["text/plain;q=0"], OpenMetrics),
            (&["text/plain;q=much"], OpenMetrics),
            (&["", ";", "/"], OpenMetrics),
        ] {
            assert_eq!(Exposition::preferred(accept.iter().copied()), format, "{accept:?}");
        }
    }

    #[test]
    fn families_are_named_and_typed_as_the_classic_format_has_them() {
        let open_metrics = "# HELP a_jobs Jobs by how they ended.\n# TYPE a_jobs counter\na_jobs_total{outcome=\"# TYPE x\"} 0\n\
             # HELP a_run_seconds In the plugin.\n# TYPE a_run_seconds histogram\n# UNIT a_run_seconds seconds\n\
             a_run_seconds_sum 0.0\na_run_seconds_count 0\na_run_seconds_bucket{le=\"+Inf\"} 0\n\
             # HELP a_build This.\n# TYPE a_build info\na_build_info{version=\"1\"} 1\n\
             # TYPE a_level gauge\na_level 3\n# TYPE a_other unknown\na_other 1\n# EOF\n";
        let classic = "# HELP a_jobs_total Jobs by how they ended.\n# TYPE a_jobs_total counter\na_jobs_total{outcome=\"# TYPE x\"} 0\n\
             # HELP a_run_seconds In the plugin.\n# TYPE a_run_seconds histogram\n\
             a_run_seconds_sum 0.0\na_run_seconds_count 0\na_run_seconds_bucket{le=\"+Inf\"} 0\n\
             # HELP a_build_info This.\n# TYPE a_build_info gauge\na_build_info{version=\"1\"} 1\n\
             # TYPE a_level gauge\na_level 3\n# TYPE a_other untyped\na_other 1\n";
        assert_eq!(Exposition::Classic.convert(open_metrics.into()), classic);
        assert_eq!(Exposition::OpenMetrics.convert(open_metrics.into()), open_metrics);
    }
}
