//! Pure: a source as tokens with their places.

use super::{CircuitError, MAX_SOURCE};

/// Longest name, in bytes.
const MAX_WORD: usize = 256;

/// Where something stands, counted from 1, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcePos {
    pub line: u32,
    pub column: u32,
}

impl SourcePos {
    pub fn error(self, message: impl Into<String>) -> CircuitError {
        CircuitError { line: self.line, column: self.column, message: message.into(), is_input: false }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'s> {
    Word(&'s str),
    Int(u64),
    Real(f64),
    Text(&'s str),
    /// `$3`: a qubit of the hardware.
    Physical(u32),
    /// `;`, `->`, `**` and the like.
    Mark(&'static str),
    End,
}

impl Token<'_> {
    /// For messages.
    pub fn shown(&self) -> String {
        match self {
            Token::Word(w) => format!("'{}'", crate::model::cut(w, 40)),
            Token::Int(n) => format!("'{n}'"),
            Token::Real(n) => format!("'{n}'"),
            Token::Text(_) => "a text".into(),
            Token::Physical(n) => format!("'${n}'"),
            Token::Mark(m) => format!("'{m}'"),
            Token::End => "the end of the source".into(),
        }
    }
}

/// The mark that a text begins with; those of two characters go before those of one.
fn mark(text: &[u8]) -> Option<&'static str> {
    Some(match text {
        [b'-', b'>', ..] => "->",
        [b'*', b'*', ..] => "**",
        [b'=', b'=', ..] => "==",
        [b'!', b'=', ..] => "!=",
        [b'<', b'=', ..] => "<=",
        [b'>', b'=', ..] => ">=",
        [b'+', b'+', ..] => "++",
        [b'+', b'=', ..] => "+=",
        [b'-', b'=', ..] => "-=",
        [b'&', b'&', ..] => "&&",
        [b'|', b'|', ..] => "||",
        [b'(', ..] => "(",
        [b')', ..] => ")",
        [b'[', ..] => "[",
        [b']', ..] => "]",
        [b'{', ..] => "{",
        [b'}', ..] => "}",
        [b';', ..] => ";",
        [b',', ..] => ",",
        [b':', ..] => ":",
        [b'=', ..] => "=",
        [b'+', ..] => "+",
        [b'-', ..] => "-",
        [b'*', ..] => "*",
        [b'/', ..] => "/",
        [b'%', ..] => "%",
        [b'^', ..] => "^",
        [b'@', ..] => "@",
        [b'<', ..] => "<",
        [b'>', ..] => ">",
        _ => return None,
    })
}

/// Cuts a source into tokens; the last is [`Token::End`].
///
/// # Errors
/// When the source is too long, or a character begins no token.
pub fn tokens(source: &str) -> Result<Vec<(Token<'_>, SourcePos)>, CircuitError> {
    let mut lexer = Lexer { rest: source, pos: SourcePos { line: 1, column: 1 } };
    if source.len() > MAX_SOURCE {
        return Err(lexer.pos.error(format!("the source has more than {MAX_SOURCE} bytes")));
    }
    let mut found = Vec::new();
    loop {
        lexer.skip()?;
        let pos = lexer.pos;
        let token = lexer.token()?;
        let end = token == Token::End;
        found.push((token, pos));
        if end {
            return Ok(found);
        }
    }
}

/// A byte that continues a character of UTF-8.
fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

struct Lexer<'a> {
    rest: &'a str,
    pos: SourcePos,
}

impl<'a> Lexer<'a> {
    fn advance(&mut self, bytes: usize) -> &'a str {
        let (text, rest) = self.rest.split_at(bytes);
        for byte in text.bytes() {
            if byte == b'\n' {
                self.pos = SourcePos { line: self.pos.line + 1, column: 1 };
            } else if !is_continuation(byte) {
                self.pos.column += 1;
            }
        }
        self.rest = rest;
        text
    }

    /// Blanks and comments.
    fn skip(&mut self) -> Result<(), CircuitError> {
        loop {
            if self.rest.starts_with([' ', '\t', '\r', '\n', '\u{feff}']) {
                let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{feff}']);
                self.advance(self.rest.len() - text.len());
            }
            if !self.rest.starts_with('/') {
                return Ok(());
            } else if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.advance(end);
            } else if self.rest.starts_with("/*") {
                let open = self.pos;
                let end = self.rest.find("*/").ok_or_else(|| open.error("this comment has no end"))?;
                self.advance(end + 2);
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<Token<'a>, CircuitError> {
        let pos = self.pos;
        let Some(first) = self.rest.chars().next() else { return Ok(Token::End) };
        if first.is_ascii_alphabetic() || matches!(first, '_' | 'π' | 'τ') {
            let word = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | 'π' | 'τ'));
            let end = self.rest.find(word).unwrap_or(self.rest.len());
            if end > MAX_WORD {
                return Err(pos.error(format!("a name of more than {MAX_WORD} bytes")));
            }
            return Ok(Token::Word(self.advance(end)));
        }
        if first.is_ascii_digit() || first == '.' && self.rest[1..].starts_with(|c: char| c.is_ascii_digit())
        {
            return match self.radix() {
                Some(radix) => self.integer(radix),
                None => self.number(),
            };
        }
        if first == '"' || first == '\'' {
            let end = self.rest[1..].find([first, '\n']).map(|e| e + 1);
            let end = end.filter(|e| !self.rest[*e..].starts_with('\n'));
            let end = end.ok_or_else(|| pos.error("this text has no end"))?;
            let text = self.advance(end + 1);
            return Ok(Token::Text(&text[1..text.len() - 1]));
        }
        if first == '$' {
            return self.physical();
        }
        match mark(self.rest.as_bytes()) {
            Some(mark) => {
                self.advance(mark.len());
                Ok(Token::Mark(mark))
            }
            None => Err(pos.error(format!("'{}' can't stand here", first.escape_default()))),
        }
    }

    fn physical(&mut self) -> Result<Token<'a>, CircuitError> {
        let pos = self.pos;
        let digits = self.rest[1..].find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len() - 1);
        if digits == 0 {
            return Err(pos.error("'$' can't stand here without the number of a qubit"));
        }
        let number = self.advance(digits + 1)[1..].parse();
        number.map(Token::Physical).map_err(|_| pos.error("the number of this qubit is too large"))
    }

    /// The base that an integer's prefix names: `0x`, `0o` or `0b`.
    fn radix(&self) -> Option<u32> {
        match self.rest.as_bytes() {
            [b'0', b'x' | b'X', ..] => Some(16),
            [b'0', b'o', ..] => Some(8),
            [b'0', b'b' | b'B', ..] => Some(2),
            _ => None,
        }
    }

    /// An integer behind the prefix of its base.
    fn integer(&mut self, radix: u32) -> Result<Token<'a>, CircuitError> {
        let pos = self.pos;
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = self.rest.find(|c: char| !is_part(c)).unwrap_or(self.rest.len());
        let text = self.advance(end);
        let value = u64::from_str_radix(&text[2..].replace('_', ""), radix);
        value.map(Token::Int).map_err(|_| {
            let shown = crate::model::cut(text, 40);
            pos.error(format!("'{shown}' is not an integer of base {radix} below 2^64"))
        })
    }

    fn number(&mut self) -> Result<Token<'a>, CircuitError> {
        let pos = self.pos;
        let bytes = self.rest.as_bytes();
        let digits = |mut at: usize| {
            while bytes.get(at).is_some_and(|b| b.is_ascii_digit() || *b == b'_') {
                at += 1;
            }
            at
        };
        let mut end = digits(0);
        let mut real = false;
        if bytes.get(end) == Some(&b'.') {
            real = true;
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let after = digits(end + 1 + sign);
            if after > end + 1 + sign {
                real = true;
                end = after;
            }
        }
        let text = self.advance(end).replace('_', "");
        if self.rest.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(
                pos.error(format!("'{text}' runs into a word: a unit or a name can't follow a number"))
            );
        }
        let wrong =
            || pos.error(format!("'{}' is not a number that can be used", crate::model::cut(&text, 40)));
        match real {
            true => text.parse().ok().filter(|n: &f64| n.is_finite()).map(Token::Real).ok_or_else(wrong),
            // A longer integer is still a number, only not an exact one.
            false => match text.parse() {
                Ok(number) => Ok(Token::Int(number)),
                Err(_) => {
                    text.parse().ok().filter(|n: &f64| n.is_finite()).map(Token::Real).ok_or_else(wrong)
                }
            },
        }
    }
}
