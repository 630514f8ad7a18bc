//! The check of a VPN profile: reads it as OpenVPN 2.6 does and lets only known directives through.
//!
//! Pure. [`check`] follows OpenVPN's rules for words (bare and double-quoted ones with backslash escapes,
//! single-quoted ones literal, comments only where a word could begin), for a leading `--`, for a byte order
//! mark, for inline blocks and for `<connection>` blocks. Where OpenVPN would guess, cut or read on, the
//! profile is refused: control characters, lines that do not fit into OpenVPN's buffers, words beyond its
//! limit, text behind an end tag. What may be said is in [`super::directives`]. Errors name line and
//! directive, never an argument or a line of a key.

use std::fmt;

use super::directives::{self, INLINE};
use crate::error::{Explain, exit};
use crate::model::Secret;

/// Longest line with its line feed, in bytes. OpenVPN reads lines of inline blocks into 256 bytes, a closing
/// zero included, and takes what doesn't fit for another line.
const MAX_LINE: usize = 255;
/// OpenVPN stops reading a line at its sixteenth word.
const MAX_WORDS: usize = 15;
/// Largest profile.
pub const MAX_PROFILE: usize = 1 << 18;
const BOM: &str = "\u{feff}";

/// A profile that may be given to OpenVPN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedProfile {
    text: Secret,
    /// Whether `reneg-sec 0` was appended, because the profile does not set the renegotiation of keys.
    pub reneg_appended: bool,
}

impl CheckedProfile {
    /// The whole text, with the appended line.
    pub fn text(&self) -> &Secret {
        &self.text
    }
}

/// Why a profile is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error("the VPN profile is larger than {MAX_PROFILE} bytes")]
    TooLarge,
    #[error("line {line} of the VPN profile {problem}")]
    Line { line: usize, problem: ProfileProblem },
    #[error("the VPN profile has no '{0}'")]
    Missing(&'static str),
}

/// Why a line is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileProblem {
    NotText,
    Control(u8),
    TooLong,
    TooManyWords,
    Backslash,
    Quote(char),
    /// No directive at all; may be a piece of a key.
    NoDirective,
    NotAllowed(String),
    NotInline(&'static str),
    NotInConnection(String),
    Arguments(&'static directives::Directive),
    Block(String),
    Unclosed(String),
    BehindEnd(String),
    NoRemote,
}

impl fmt::Display for ProfileProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileProblem::NotText => write!(f, "is not UTF-8 text"),
            ProfileProblem::Control(byte) => write!(f, "holds the control character 0x{byte:02x}"),
            ProfileProblem::TooLong => {
                write!(f, "is longer than the {MAX_LINE} bytes that OpenVPN reads at once")
            }
            ProfileProblem::TooManyWords => write!(f, "has more than {MAX_WORDS} words"),
            ProfileProblem::Backslash => write!(f, "has a backslash before a character that needs none"),
            ProfileProblem::Quote(quote) => write!(f, "has no closing {quote}"),
            ProfileProblem::NoDirective => write!(f, "begins with something that is not a directive"),
            ProfileProblem::NotAllowed(name) => write!(f, "has the directive '{name}', which is not allowed"),
            ProfileProblem::NotInline(name) => {
                write!(f, "has '{name}' with an argument; only the block <{name}> is allowed")
            }
            ProfileProblem::NotInConnection(name) => write!(f, "has '{name}' inside a <connection> block"),
            ProfileProblem::Arguments(directive) => {
                write!(f, "has '{}' with other arguments than '{}'", directive.name, directive.usage())
            }
            ProfileProblem::Block(name) => write!(f, "opens the block <{name}>, which is not allowed"),
            ProfileProblem::Unclosed(name) => write!(f, "opens the block <{name}>, which is never closed"),
            ProfileProblem::BehindEnd(name) => write!(f, "has something behind </{name}>"),
            ProfileProblem::NoRemote => write!(f, "opens a <connection> block that has no 'remote'"),
        }
    }
}

impl Explain for ProfileError {
    fn code(&self) -> &'static str {
        "vpn-profile"
    }

    fn hint(&self) -> Option<String> {
        Some(
            "have the VPN profile exported again in the Coda admin panel, without scripts, file names or \
             passwords; nothing of it was used"
                .into(),
        )
    }

    fn exit(&self) -> u8 {
        exit::CLOUD
    }
}

/// Checks a profile as it came or as it lies on the disk.
///
/// # Errors
/// A line of the profile is not allowed, or a required directive is missing. The error names the first such line.
pub fn check(profile: &[u8]) -> Result<CheckedProfile, ProfileError> {
    if profile.len() > MAX_PROFILE {
        return Err(ProfileError::TooLarge);
    }
    let text = std::str::from_utf8(profile).map_err(|e| {
        let before = profile.get(..e.valid_up_to()).unwrap_or_default();
        at(1 + before.iter().filter(|b| **b == b'\n').count(), ProfileProblem::NotText)
    })?;
    let mut reader = Reader { lines: text.split_inclusive('\n').enumerate(), said: Said::default() };
    reader.profile()?;
    let said = reader.said;
    if !(said.client || said.tls_client) {
        return Err(ProfileError::Missing("client"));
    }
    if !said.remote {
        return Err(ProfileError::Missing("remote"));
    }
    let mut text = text.to_owned();
    if !said.reneg {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str("reneg-sec 0\n");
    }
    Ok(CheckedProfile { text: Secret::new(text), reneg_appended: !said.reneg })
}

fn at(line: usize, problem: ProfileProblem) -> ProfileError {
    ProfileError::Line { line, problem }
}

#[derive(Default)]
struct Said {
    client: bool,
    tls_client: bool,
    remote: bool,
    reneg: bool,
}

struct Reader<'a, L: Iterator<Item = (usize, &'a str)>> {
    lines: L,
    said: Said,
}

impl<'a, L: Iterator<Item = (usize, &'a str)>> Reader<'a, L> {
    /// The next line as OpenVPN reads it, and its number.
    fn next(&mut self) -> Result<Option<(usize, &'a str)>, ProfileError> {
        let Some((index, raw)) = self.lines.next() else { return Ok(None) };
        let line = index + 1;
        if raw.len() > MAX_LINE {
            return Err(at(line, ProfileProblem::TooLong));
        }
        let text = raw.strip_suffix('\n').unwrap_or(raw);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if let Some(control) = text.bytes().find(|b| b.is_ascii_control() && *b != b'\t') {
            return Err(at(line, ProfileProblem::Control(control)));
        }
        Ok(Some((line, text)))
    }

    fn profile(&mut self) -> Result<(), ProfileError> {
        while let Some((line, text)) = self.next()? {
            let text = if line == 1 { text.strip_prefix(BOM).unwrap_or(text) } else { text };
            let Some((name, arguments)) = split_words(text).map_err(|p| at(line, p))? else { continue };
            match block(&name, &arguments) {
                Some("connection") => self.connection(line)?,
                Some(inline) if INLINE.contains(&inline) => {
                    self.block(line, inline, |_, _, _| Ok(()))?;
                }
                Some(other) => return Err(at(line, unknown(other, ProfileProblem::Block))),
                None => self.directive(line, &name, &arguments, false)?,
            }
        }
        Ok(())
    }

    /// Reads to the end tag: the first line that begins with it, blanks aside.
    fn block(
        &mut self,
        opened: usize,
        name: &str,
        mut each: impl FnMut(&mut Self, usize, &str) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        let end = format!("</{name}>");
        while let Some((line, text)) = self.next()? {
            match text.trim_start_matches([' ', '\t']).strip_prefix(&end) {
                // OpenVPN ignores it, but the author may have meant something by it.
                Some(rest) if !rest.trim_matches([' ', '\t']).is_empty() => {
                    return Err(at(line, ProfileProblem::BehindEnd(name.to_owned())));
                }
                Some(_) => return Ok(()),
                None => each(self, line, text)?,
            }
        }
        Err(at(opened, ProfileProblem::Unclosed(name.to_owned())))
    }

    fn connection(&mut self, opened: usize) -> Result<(), ProfileError> {
        let mut remotes = 0;
        self.block(opened, "connection", |reader, line, text| {
            let Some((name, arguments)) = split_words(text).map_err(|p| at(line, p))? else { return Ok(()) };
            if let Some(inner) = block(&name, &arguments) {
                return Err(at(line, unknown(inner, ProfileProblem::NotInConnection)));
            }
            remotes += usize::from(name == "remote");
            reader.directive(line, &name, &arguments, true)
        })?;
        if remotes == 0 { Err(at(opened, ProfileProblem::NoRemote)) } else { Ok(()) }
    }

    fn directive(
        &mut self,
        line: usize,
        name: &str,
        arguments: &[String],
        in_connection: bool,
    ) -> Result<(), ProfileError> {
        if let Some(inline) = INLINE.iter().find(|i| **i == name) {
            return Err(at(line, ProfileProblem::NotInline(inline)));
        }
        let Some(directive) = directives::find(name) else {
            return Err(at(line, unknown(name, ProfileProblem::NotAllowed)));
        };
        if in_connection && !directive.in_connection {
            return Err(at(line, ProfileProblem::NotInConnection(name.to_owned())));
        }
        if !directive.takes(arguments) {
            return Err(at(line, ProfileProblem::Arguments(directive)));
        }
        match name {
            "client" => self.said.client = true,
            "tls-client" => self.said.tls_client = true,
            "remote" => self.said.remote = true,
            "reneg-sec" => self.said.reneg = true,
            _ => (),
        }
        Ok(())
    }
}

/// Names what was found only when it looks like a name: it might be a piece of a key.
fn unknown(name: &str, problem: impl Fn(String) -> ProfileProblem) -> ProfileProblem {
    let looks = (1..=32).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && name.bytes().any(|b| b.is_ascii_lowercase());
    if looks { problem(name.to_owned()) } else { ProfileProblem::NoDirective }
}

/// The name of the block that this line opens.
fn block<'a>(name: &'a str, arguments: &[String]) -> Option<&'a str> {
    if !arguments.is_empty() {
        return None;
    }
    name.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'))
}

/// The directive of a line, without a leading `--`, and its arguments; `None` for an empty line or a comment.
fn split_words(line: &str) -> Result<Option<(String, Vec<String>)>, ProfileProblem> {
    let mut words = split(line)?;
    if words.is_empty() {
        return Ok(None);
    }
    let first = words.remove(0);
    let name = match first.strip_prefix("--") {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => first,
    };
    Ok(Some((name, words)))
}

enum Inside {
    Nothing,
    Bare,
    Quotes(char),
}

/// Splits a line into words as OpenVPN does. Other blanks than space and tab don't get here.
fn split(line: &str) -> Result<Vec<String>, ProfileProblem> {
    let blank = |c: char| matches!(c, ' ' | '\t');
    let mut words = Vec::new();
    let mut word = String::new();
    let mut inside = Inside::Nothing;
    let mut escaped = false;
    for c in line.chars() {
        if c == '\\' && !escaped && !matches!(inside, Inside::Quotes('\'')) {
            escaped = true;
            continue;
        }
        let taken = match inside {
            Inside::Nothing if blank(c) => false,
            // After a backslash too.
            Inside::Nothing if matches!(c, '#' | ';') => return Ok(words),
            Inside::Nothing if matches!(c, '"' | '\'') && !escaped => {
                inside = Inside::Quotes(c);
                false
            }
            Inside::Nothing => {
                inside = Inside::Bare;
                true
            }
            Inside::Bare if blank(c) && !escaped => {
                words.push(std::mem::take(&mut word));
                inside = Inside::Nothing;
                false
            }
            Inside::Quotes(quote) if c == quote && !escaped => {
                words.push(std::mem::take(&mut word));
                inside = Inside::Nothing;
                false
            }
            Inside::Bare | Inside::Quotes(_) => true,
        };
        if taken {
            if escaped && !(matches!(c, '\\' | '"') || blank(c)) {
                return Err(ProfileProblem::Backslash);
            }
            word.push(c);
        }
        escaped = false;
        if words.len() > MAX_WORDS {
            return Err(ProfileProblem::TooManyWords);
        }
    }
    match inside {
        Inside::Quotes(quote) => return Err(ProfileProblem::Quote(quote)),
        Inside::Bare => words.push(word),
        Inside::Nothing => (),
    }
    // A backslash at the end of a line escapes the line feed, which ends a bare word all the same.
    if escaped {
        return Err(ProfileProblem::Backslash);
    }
    if words.len() > MAX_WORDS {
        return Err(ProfileProblem::TooManyWords);
    }
    Ok(words)
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
