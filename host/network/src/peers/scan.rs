//! Pure: whether bytes are one complete JSON document yet. Bytes come piece by piece and each is read once.
//!
//! Some peers never close their side of the stream, so the end of the document is found by its own form. Only
//! brackets and strings are followed; what is between them is the parser's business.

/// How far a document has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanProgress {
    /// More must come.
    Part,
    /// It ends before this byte, and only blanks follow.
    Whole(usize),
    /// It can't become a document of ours: an object, and nothing behind it.
    Never,
}

/// Follows one document.
#[derive(Debug, Default)]
pub struct Scanner {
    depth: usize,
    in_string: bool,
    escaped: bool,
    at: usize,
    end: Option<usize>,
    never: bool,
}

/// Deeper than any document of the contract.
const MAX_DEPTH: usize = 32;

impl Scanner {
    /// Looks at what was added to `bytes` since the last time.
    pub fn look(&mut self, bytes: &[u8]) -> ScanProgress {
        while self.at < bytes.len() && !self.never {
            let byte = bytes[self.at];
            self.at += 1;
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                _ if self.end.is_some() => self.never = true,
                b'{' | b'[' if self.depth == MAX_DEPTH => self.never = true,
                b'{' => self.depth += 1,
                _ if self.depth == 0 => self.never = true,
                b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.end = Some(self.at);
                    }
                }
                b'"' => self.in_string = true,
                _ => {}
            }
        }
        match (self.never, self.end) {
            (true, _) => ScanProgress::Never,
            (false, Some(end)) => ScanProgress::Whole(end),
            (false, None) => ScanProgress::Part,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(text: &str) -> ScanProgress {
        Scanner::default().look(text.as_bytes())
    }

    #[test]
    fn the_end_is_found_wherever_the_pieces_end() {
        let text = r#"  {"a": "}{\"\\", "b": [1, {"c": "é\\\""}], "d": {}}"#;
        for with in [text.to_string(), format!("{text}\n \t")] {
            let mut scanner = Scanner::default();
            for n in 0..=with.len() {
                let seen = scanner.look(&with.as_bytes()[..n]);
                let expected =
                    if n < text.len() { ScanProgress::Part } else { ScanProgress::Whole(text.len()) };
                assert_eq!(seen, expected, "after {n} bytes");
            }
        }
    }

    #[test]
    fn what_is_no_object_never_will_be() {
        for text in ["[]", "1", "\"a\"", "x", "}", "{} x", "{}{}"] {
            assert_eq!(scan(text), ScanProgress::Never, "{text}");
        }
        assert_eq!(scan(&"{\"a\":".repeat(100)), ScanProgress::Never, "too deep");
        assert_eq!(scan("   "), ScanProgress::Part);
        assert_eq!(scan("{\"a\": \"}"), ScanProgress::Part);
    }
}
