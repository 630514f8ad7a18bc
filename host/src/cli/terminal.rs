//! Standard output for lines about jobs, in colour where it is a terminal.

use super::kit;
use crate::config::load::ProcessEnv;
use crate::error::Failure;
use crate::model::cut;
use crate::output;

/// How many characters of an error are shown in a line.
const ERROR_CHARACTERS: usize = 300;

/// Standard output as a person reads it.
pub struct Terminal {
    colour: bool,
}

impl Terminal {
    pub fn new(env: &ProcessEnv) -> Terminal {
        // See no-color.org.
        let plain = env.environment.get("NO_COLOR").is_some_and(|v| !v.is_empty());
        Terminal { colour: !plain && output::prints_to_terminal() }
    }

    /// Writes a text as it is and flushes it. A reader that has seen enough (`| head`) is not an error.
    ///
    /// # Errors
    /// Standard output can't be written.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        kit::print(text).map(drop)
    }

    pub fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.text(&format!("{text}\n"))
    }

    pub fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    /// The name of a state, padded to the longest name, and the time since the job was queued.
    pub fn step(&self, state: &str, after: Option<time::Duration>) -> String {
        let colour = match state {
            "queued" => "2",
            "executing" => "36",
            "completed" => "32",
            "delivered" => "1;32",
            "cancelled" => "33",
            _ => "31",
        };
        format!("{} {}", self.paint(colour, &format!("{state:<9}")), ms(after))
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// An error in one line, cut to [`ERROR_CHARACTERS`]. Others may have written it.
pub fn one_line(error: &str) -> String {
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = output::inline(&line).into_owned();
    match cut(&line, ERROR_CHARACTERS) {
        whole if whole.len() == line.len() => line,
        part => format!("{part} ..."),
    }
}

fn ms(after: Option<time::Duration>) -> String {
    match after {
        Some(after) => format!("{:>9.1} ms", after.as_seconds_f64() * 1e3),
        None => format!("{:>9} ms", "?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_line_up_and_are_coloured_on_a_terminal_only() {
        let plain = Terminal { colour: false };
        assert_eq!(plain.step("queued", Some(time::Duration::ZERO)), "queued          0.0 ms");
        assert_eq!(
            plain.step("completed", Some(time::Duration::microseconds(1250))),
            "completed       1.2 ms"
        );
        assert_eq!(plain.step("failed", None), "failed            ? ms");
        let colour = Terminal { colour: true };
        assert!(colour.step("failed", None).starts_with("\x1b[31mfailed   \x1b[0m"));
        assert_eq!(one_line("a\n  b"), "a b");
        assert_eq!(one_line("bad\0 \u{1b}[31mred"), "bad\\u{0} \\u{1b}[31mred");
        assert_eq!(one_line(&"x".repeat(1000)).len(), ERROR_CHARACTERS + 4);
    }
}
