//! Pure: one line of `raw_text`: `[controlled ]name[(params)] operands`, in any case.
//!
//! Operands aren't read; that there are some is what makes a text a statement. Parameters are evaluated by `qasm`.

use crate::qasm;

/// A statement, as it was written and as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// For messages: trimmed and cut.
    pub text: String,
    pub controlled: bool,
    /// Lower case.
    pub name: String,
    pub params: Vec<f64>,
}

/// Longest text that is parsed. A longer one is taken as an unknown gate.
const MAX_TEXT: usize = 4096;

/// Reads a text; none when it is not a statement. What is wrong with its parameters shows as an unknown name, so that
/// the failure names the statement.
pub fn read(raw_text: &str) -> Option<Statement> {
    let text = raw_text.split("//").next().unwrap_or_default().trim();
    let text = text.strip_suffix(';').unwrap_or(text).trim_end();
    if text.is_empty() {
        return None;
    }
    let shown = crate::model::cut(text, 200).to_string();
    if text.len() > MAX_TEXT {
        let name = crate::model::cut(text, 40).to_string();
        return Some(Statement { text: shown, controlled: false, name, params: Vec::new() });
    }
    let (first, after) = word(text)?;
    let (controlled, (name, rest)) = match first.eq_ignore_ascii_case("controlled") {
        true if after.starts_with(char::is_whitespace) => (true, word(after.trim_start())?),
        _ => (false, (first, after)),
    };
    let name = name.to_ascii_lowercase();
    let (params, operands) = match rest.trim_start().strip_prefix('(') {
        Some(inner) => {
            let end = closing(inner)?;
            (Some(&inner[..end]), &inner[end + 1..])
        }
        None => (None, rest),
    };
    // Between a name and its operands there is a blank; behind a closing bracket there may be none.
    let separate = params.is_some() || operands.starts_with(char::is_whitespace);
    if operands.trim().is_empty() || !separate {
        return None;
    }
    let values = params.map(qasm::statement_parameters);
    match values {
        None => Some(Statement { text: shown, controlled, name, params: Vec::new() }),
        Some(Ok(params)) => Some(Statement { text: shown, controlled, name, params }),
        Some(Err(_)) => {
            let name = format!("{name}({})", params.unwrap_or_default());
            Some(Statement { text: shown, controlled, name, params: Vec::new() })
        }
    }
}

fn word(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0 && !text.starts_with(|c: char| c.is_ascii_digit())).then(|| text.split_at(end))
}

/// Where the bracket that was opened before `text` closes.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 1_usize;
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_and_what_is_none() {
        let s = |text| read(text).unwrap();
        assert_eq!((s("H   q[5] ; // a comment").name.as_str(), s("h q").controlled), ("h", false));
        assert_eq!(s("u(0.1, 0.2,0.3) q[0]").params, [0.1, 0.2, 0.3]);
        assert_eq!(s("rx(0.3)q[0]").params, [0.3]);
        assert!(s("Controlled Z a,b").controlled && s("Controlled Z a,b").name == "z");
        assert_eq!(s("controlled(1) q").name, "controlled");
        assert_eq!(s("rx(1/0) q[0];").name, "rx(1/0)");
        assert_eq!(s("rx(sin) q[0];").name, "rx(sin)");
        for text in ["", "h", "rx(0.3)", "// h q", ";", "  ", "12 q", "h[0]", "rx(0.3 q"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
