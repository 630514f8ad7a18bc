//! Pure: one line of `raw_text`: `[controlled ]name[(params)] operands`, in any case.
//!
//! Operands aren't read; that there are some is what makes a text a statement.

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

/// Longest text that is looked at; longer ones are no statement of ours.
const MAX_TEXT: usize = 4096;
/// Deepest nesting of an expression.
const MAX_DEPTH: usize = 64;

/// Reads a text; none when it is no statement. What is wrong with its parameters shows as an unknown name, so that
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
    let values = params.map(|p| split(p).into_iter().map(evaluate).collect::<Option<Vec<f64>>>());
    match values {
        None => Some(Statement { text: shown, controlled, name, params: Vec::new() }),
        Some(Some(params)) => Some(Statement { text: shown, controlled, name, params }),
        Some(None) => {
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

/// Parameters, at the commas outside brackets.
fn split(text: &str) -> Vec<&str> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    let (mut depth, mut start, mut parts) = (0_usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// The value of an expression of numbers, `e pi tau`, `+ - * / % ** ^` and brackets; none when it has no finite one.
/// A power binds more than a sign in front of it and takes its right side first.
pub fn evaluate(text: &str) -> Option<f64> {
    let mut parser = Parser { rest: text.trim_start(), depth: 0 };
    let value = parser.sum()?;
    (parser.rest.is_empty() && value.is_finite()).then_some(value)
}

struct Parser<'a> {
    rest: &'a str,
    depth: usize,
}

impl Parser<'_> {
    fn eat(&mut self, token: &str) -> bool {
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        self.rest = rest.trim_start();
        true
    }

    fn sum(&mut self) -> Option<f64> {
        let mut value = self.product()?;
        loop {
            if self.eat("+") {
                value += self.product()?;
            } else if self.eat("-") {
                value -= self.product()?;
            } else {
                return Some(value);
            }
        }
    }

    fn product(&mut self) -> Option<f64> {
        let mut value = self.signed()?;
        loop {
            if self.rest.starts_with("**") {
                return None;
            } else if self.eat("*") {
                value *= self.signed()?;
            } else if self.eat("/") {
                value /= self.signed()?;
            } else if self.eat("%") {
                // Python's: the result has the sign of the right side.
                let by = self.signed()?;
                value -= by * (value / by).floor();
            } else {
                return Some(value);
            }
            if !value.is_finite() {
                return None;
            }
        }
    }

    fn signed(&mut self) -> Option<f64> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let value = if self.eat("+") {
            self.signed()
        } else if self.eat("-") {
            self.signed().map(|v| -v)
        } else {
            self.power()
        };
        self.depth -= 1;
        value
    }

    fn power(&mut self) -> Option<f64> {
        let base = self.atom()?;
        match self.eat("**") || self.eat("^") {
            true => {
                let exponent = self.signed()?;
                Some(base.powf(exponent)).filter(|v| v.is_finite())
            }
            false => Some(base),
        }
    }

    fn atom(&mut self) -> Option<f64> {
        if self.eat("(") {
            let value = self.sum()?;
            return self.eat(")").then_some(value);
        }
        if self.rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == 'π') {
            let end = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(self.rest.len());
            let value = match self.rest[..end].to_ascii_lowercase().as_str() {
                "pi" | "π" => std::f64::consts::PI,
                "tau" => std::f64::consts::TAU,
                "e" => std::f64::consts::E,
                _ => return None,
            };
            self.rest = self.rest[end..].trim_start();
            return Some(value);
        }
        let bytes = self.rest.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(u8::is_ascii_digit) {
                at += 1;
            }
            at
        };
        let mut end = digits(0);
        if bytes.get(end) == Some(&b'.') {
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let after = digits(end + 1 + sign);
            if after > end + 1 + sign {
                end = after;
            }
        }
        let value: f64 = self.rest[..end].parse().ok()?;
        self.rest = self.rest[end..].trim_start();
        Some(value)
    }
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

    #[test]
    fn expressions() {
        let pi = std::f64::consts::PI;
        let cases = [
            ("pi/4", pi / 4.0),
            ("-pi", -pi),
            ("2*pi/3 - 1", 2.0 * pi / 3.0 - 1.0),
            ("2**3/10", 0.8),
            ("-2**2/5", -0.8),
            ("2**-1", 0.5),
            ("2**1**2", 2.0),
            ("2^3^0", 2.0),
            ("7%4", 3.0),
            ("-7%4", 1.0),
            ("+tau/5", 2.0 * pi / 5.0),
            ("1.5e-1", 0.15),
            ("e/3", std::f64::consts::E / 3.0),
            ("2*(1+.5)", 3.0),
            ("1e2", 100.0),
            ("--1", 1.0),
        ];
        for (text, value) in cases {
            let found = evaluate(text).unwrap_or_else(|| panic!("{text}"));
            assert!((found - value).abs() < 1e-15, "{text}: {found}");
        }
        for text in
            ["", "1/0", "sin", "sin(1)", "1 2", "1+", "(1", "1)", "1e", "nan", "10**400", "0%0", "(-1)**0.5"]
        {
            assert_eq!(evaluate(text), None, "{text}");
        }
        assert_eq!(evaluate(&"(".repeat(10_000)), None);
        assert_eq!(evaluate(&"-".repeat(10_000)), None);
    }
}
