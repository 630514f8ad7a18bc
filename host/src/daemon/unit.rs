//! Reads the settings that systemd gives to a unit, for commands that an operator runs by hand with `--unit NAME`.
//!
//! `systemctl show` prints the settings of the unit and its drop-ins; the environment files are read here, by the rules of
//! systemd.exec(5): assignments by line, comments after `#` and `;`, quotes, a backslash joins lines, no expansion.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Explain, exit};
use crate::sys;

const SYSTEMCTL: &str = "systemctl";
const PROPERTIES: &str = "--property=LoadState,Environment,EnvironmentFiles,StateDirectory,WorkingDirectory";
/// Parent directory of `StateDirectory=` for the system's manager.
const STATE: &str = "/var/lib";

#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    #[error("systemctl can't be run")]
    Systemctl(#[source] std::io::Error),
    #[error("systemctl failed: {0}")]
    Refused(String),
    #[error("there is no unit {0}")]
    Unknown(String),
    #[error("{} of unit {unit} can't be read", path.display())]
    File { unit: String, path: PathBuf, source: std::io::Error },
}

impl Explain for UnitError {
    fn code(&self) -> &'static str {
        match self {
            UnitError::Systemctl(_) | UnitError::Refused(_) => "systemctl",
            UnitError::Unknown(_) => "unknown-unit",
            UnitError::File { .. } => "unit-environment",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            UnitError::Systemctl(_) | UnitError::Refused(_) => {
                "use --unit where systemd runs; elsewhere set the CODA_ variables, or CODA_STATE_DIR, by hand"
                    .into()
            }
            UnitError::Unknown(_) => {
                "run `systemctl list-units 'coda-host*'` to see those that there are".into()
            }
            UnitError::File { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                "run this as root, because the file may hold a token".into()
            }
            UnitError::File { .. } => "create it, or put a '-' before it in EnvironmentFile=".into(),
        })
    }

    fn exit(&self) -> u8 {
        exit::CONFIG
    }
}

/// The settings that a unit gives to its host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnitSettings {
    /// The variables in the order in which they are read; the last value of a name applies.
    pub environment: Vec<(String, String)>,
    pub cwd: Option<PathBuf>,
}

/// Asks systemd about a unit; `.service` may be left out.
///
/// # Errors
/// systemd can't be asked or doesn't know the unit, or one of its environment files can't be read.
pub fn unit_settings(unit: &str) -> Result<UnitSettings, UnitError> {
    // It gives up by itself when the manager doesn't answer (sd-bus: 25 s).
    let mut command = Command::new(SYSTEMCTL);
    command
        .args(["show", PROPERTIES, "--", unit])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let output = sys::spawn(&mut command).and_then(std::process::Child::wait_with_output);
    let output = output.map_err(UnitError::Systemctl)?;
    if !output.status.success() {
        return Err(UnitError::Refused(String::from_utf8_lossy(&output.stderr).trim().into()));
    }
    read(unit, &String::from_utf8_lossy(&output.stdout))
}

fn read(unit: &str, shown: &str) -> Result<UnitSettings, UnitError> {
    let properties = |name: &'static str| {
        shown.lines().filter_map(move |line| line.split_once('=')).filter(move |(k, _)| *k == name)
    };
    let property = |name| properties(name).map(|(_, value)| value).find(|value| !value.is_empty());
    if property("LoadState") != Some("loaded") {
        return Err(UnitError::Unknown(unit.into()));
    }
    let mut settings = UnitSettings::default();
    if let Some(name) = property("StateDirectory").and_then(|list| list.split(' ').next()) {
        settings.environment.push(("STATE_DIRECTORY".into(), format!("{STATE}/{name}")));
    }
    // Files win over the unit's own lines.
    settings
        .environment
        .extend(split_words(property("Environment").unwrap_or("")).filter_map(|word| assignment(&word)));
    for (_, file) in properties("EnvironmentFiles").filter(|(_, file)| !file.is_empty()) {
        let (path, flags) = file.rsplit_once(" (").unwrap_or((file, ""));
        let path = Path::new(path);
        match std::fs::read_to_string(path) {
            Ok(text) => settings.environment.extend(assignments(&text)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && flags.contains("ignore_errors=yes") => {}
            Err(source) => return Err(UnitError::File { unit: unit.into(), path: path.into(), source }),
        }
    }
    settings.cwd = property("WorkingDirectory").map(|dir| dir.trim_start_matches('!').into());
    Ok(settings)
}

fn assignment(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((name.into(), value.into()))
}

/// Words between blanks, without their quotes.
fn split_words(text: &str) -> impl Iterator<Item = String> {
    let (mut found, mut rest) = (Vec::new(), text.trim_start());
    while !rest.is_empty() {
        let (word, behind) = unquoted(rest, char::is_whitespace);
        found.push(word);
        rest = behind.trim_start();
    }
    found.into_iter()
}

/// The assignments of an environment file.
fn assignments(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.is_empty() {
            return found;
        }
        let line_end = rest.find('\n').unwrap_or(rest.len());
        match rest[..line_end].split_once('=') {
            Some((name, _)) if !rest.starts_with(['#', ';']) => {
                let behind = rest[name.len() + 1..].trim_start_matches([' ', '\t']);
                let (value, behind) = unquoted(behind, |c| c == '\n');
                found.push((name.trim().into(), value.trim_end_matches([' ', '\t', '\r']).into()));
                rest = behind;
            }
            _ => rest = &rest[line_end..],
        }
    }
}

/// Text up to an end outside of quotes, without them, and what is left. A backslash takes the next character as it
/// is and joins lines; within single quotes it is one like any other.
fn unquoted(text: &str, end: impl Fn(char) -> bool) -> (String, &str) {
    let (mut word, mut quote, mut escaped) = (String::new(), None, false);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => {
                escaped = false;
                // A backslash that means nothing within double quotes stays there.
                if quote.is_some() && !matches!(c, '"' | '\\' | '`' | '$' | '\n') {
                    word.push('\\');
                }
                if c != '\n' {
                    word.push(c);
                }
            }
            (None | Some('"'), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, c) if end(c) => return (word, &text[at..]),
            _ => word.push(c),
        }
    }
    (word, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        assignments(text)
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.into(), value.into())
    }

    #[test]
    fn a_file_is_read_as_systemd_reads_it() {
        for (text, value) in [
            ("A=b", "b"),
            ("A=b c", "b c"),
            ("A= b \t\nX", "b"),
            ("A='b $c \\d'", "b $c \\d"),
            ("A=\"b \\\"c\\\" \\d\"", "b \"c\" \\d"),
            ("A=b\\\nc", "bc"),
            ("A='two\nlines'", "two\nlines"),
            ("A=$HOME#x", "$HOME#x"),
            ("A=b\r\n", "b"),
            ("A=", ""),
            ("A=x=y", "x=y"),
            ("A=b'c d'e", "bc de"),
        ] {
            assert_eq!(pairs(text), [pair("A", value)], "{text:?}");
        }
        let text = "# A=1\n; B=2\n\n  C=3\nnothing\n D = 4 \n#\nE='unclosed";
        assert_eq!(pairs(text), [pair("C", "3"), pair("D", "4"), pair("E", "unclosed")]);
    }

    #[test]
    fn what_systemctl_shows_becomes_settings() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("one.env");
        std::fs::write(&file, "CODA_PORT=8081\n").unwrap();
        let shown = format!(
            "Environment=CODA_PORT=1 \"CODA_LOG=a b\"\nEnvironmentFiles={} (ignore_errors=no)\n\
             EnvironmentFiles=/no/such.env (ignore_errors=yes)\nStateDirectory=coda-host/b\n\
             WorkingDirectory=/etc/coda-host\nLoadState=loaded\n",
            file.display()
        );
        let settings = read("b", &shown).unwrap();
        assert_eq!(
            settings.environment,
            [
                pair("STATE_DIRECTORY", "/var/lib/coda-host/b"),
                pair("CODA_PORT", "1"),
                pair("CODA_LOG", "a b"),
                pair("CODA_PORT", "8081")
            ]
        );
        assert_eq!(settings.cwd.as_deref(), Some(Path::new("/etc/coda-host")));
        assert!(matches!(read("b", "LoadState=not-found\n"), Err(UnitError::Unknown(_))));
        let missing = "LoadState=loaded\nEnvironmentFiles=/no/such.env (ignore_errors=no)\n";
        assert!(matches!(read("b", missing), Err(UnitError::File { .. })));
    }
}
