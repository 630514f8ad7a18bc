//! How results are shown: lines for people, JSON for machines, JUnit for CI.

use std::fmt::Write as _;

use super::runner::{CaseResult, ChildEnd, Lost};
use super::{CaseVerdict, CheckOptions};

/// One case as a line, and what went wrong below it.
pub fn line(result: &CaseResult) -> String {
    let seconds = result.seconds;
    let (word, note) = match &result.end {
        ChildEnd::Said(CaseVerdict::Passed { note }) => ("ok", note.clone().unwrap_or_default()),
        ChildEnd::Said(CaseVerdict::Skipped { why }) => ("skipped", why.clone()),
        ChildEnd::Said(CaseVerdict::Failed { .. }) => ("FAILED", String::new()),
        ChildEnd::Lost { verdict: Lost::Died, .. } => ("DIED", String::new()),
        ChildEnd::Lost { verdict: Lost::Exited, .. } => ("EXITED", String::new()),
        ChildEnd::Lost { verdict: Lost::TimedOut, .. } => ("HUNG", String::new()),
    };
    let mut out = format!("{word:<8}{:<22}{seconds:>7.2} s  {note}", result.case).trim_end().to_string();
    for (what, text) in details(result) {
        write!(out, "\n          {what}: {text}").ok();
    }
    if let Some(output) = &result.output {
        for line in output.lines().rev().take(5).collect::<Vec<_>>().into_iter().rev() {
            write!(out, "\n          | {line}").ok();
        }
    }
    out
}

fn details(result: &CaseResult) -> Vec<(&'static str, &str)> {
    match &result.end {
        ChildEnd::Said(CaseVerdict::Failed { expected, got, change }) => {
            vec![("expected", expected.as_str()), ("got", got), ("to change", change)]
        }
        ChildEnd::Said(_) => Vec::new(),
        ChildEnd::Lost { got, change, .. } => {
            vec![("expected", "an answer"), ("got", got), ("to change", change)]
        }
    }
}

/// The last line.
pub fn summary(results: &[CaseResult], options: &CheckOptions) -> String {
    let failed = results.iter().filter(|r| r.is_failure()).count();
    let skipped =
        results.iter().filter(|r| matches!(r.end, ChildEnd::Said(CaseVerdict::Skipped { .. }))).count();
    let passed = results.len() - failed - skipped;
    format!(
        "{passed} passed, {failed} failed, {skipped} skipped (seed {}, tolerance {})",
        options.seed, options.tolerance
    )
}

pub fn json(results: &[CaseResult], options: &CheckOptions) -> serde_json::Value {
    serde_json::json!({
        "library": options.library, "device": options.config_path, "seed": options.seed,
        "tolerance": options.tolerance, "quick": options.quick,
        "passed": results.iter().all(|r| !r.is_failure()), "cases": results,
    })
}

/// The form that CI systems read.
pub fn junit(results: &[CaseResult], options: &CheckOptions) -> String {
    let failures = results.iter().filter(|r| r.is_failure()).count();
    let skipped =
        results.iter().filter(|r| matches!(r.end, ChildEnd::Said(CaseVerdict::Skipped { .. }))).count();
    let time: f64 = results.iter().map(|r| r.seconds).sum();
    let name = escaped(&options.library.display().to_string());
    let mut out = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n  <testsuite name=\"{name}\" tests=\"{}\" \
         failures=\"{failures}\" skipped=\"{skipped}\" time=\"{time:.3}\">\n",
        results.len()
    );
    for result in results {
        let (case, seconds) = (escaped(&result.case), result.seconds);
        // Writing to a String can't fail.
        write!(
            out,
            "    <testcase classname=\"coda-host.plugin-check\" name=\"{case}\" time=\"{seconds:.3}\""
        )
        .ok();
        match &result.end {
            ChildEnd::Said(CaseVerdict::Passed { .. }) => out.push_str("/>\n"),
            ChildEnd::Said(CaseVerdict::Skipped { why }) => {
                writeln!(out, "><skipped message=\"{}\"/></testcase>", escaped(why)).ok();
            }
            _ => {
                let text: Vec<String> =
                    details(result).iter().map(|(what, text)| format!("{what}: {text}")).collect();
                let message = escaped(&text.join("; "));
                let output = escaped(result.output.as_deref().unwrap_or_default());
                writeln!(out, "><failure message=\"{message}\">{output}</failure></testcase>").ok();
            }
        }
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

/// For an attribute or a text of XML, without the control characters that XML can't hold.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_plugins_say_can_not_break_the_xml() {
        assert_eq!(escaped("a<b & \"c\"\u{1}\n"), "a&lt;b &amp; &quot;c&quot;?\n");
    }
}
