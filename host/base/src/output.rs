//! Standard output and standard error: the only writer to either.
//!
//! What can't be written costs nothing else. A line for standard error (log lines and notices) is lost when its reader is
//! gone, the disk is full or the terminal is closed; lost ones are counted. A reader that stopped reading is waited for
//! once, for [`STALL_LIMIT`], because a log line must not hold up a job. Standard output is what a command is run for:
//! its first error is kept, so that the command can end with it after its work is done. A reader that has seen enough
//! (`| head`) is not an error.
//!
//! Texts from outside (plugins, receivers, peers) may contain control characters. They are made visible here, so that
//! none reaches the log or a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};

/// How long a line waits for a reader that does not read. The lines after it don't wait, until it reads again.
const STALL_LIMIT: Duration = Duration::from_millis(200);
/// What a pipe that can be written takes without blocking.
const PIECE_BYTES: usize = 4096;

static LOST_LINES: AtomicU64 = AtomicU64::new(0);
static STANDARD_ERROR: Mutex<LineWriter> = Mutex::new(LineWriter { stalled: false, torn: false });
static STANDARD_OUTPUT: Mutex<OutputState> = Mutex::new(OutputState { closed: false, error: None });

struct OutputState {
    /// The reader has gone, or an error came before: nothing more is written.
    closed: bool,
    error: Option<io::Error>,
}

/// Whether standard error is a terminal.
pub fn notices_to_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard output is a terminal.
pub fn prints_to_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Writes to standard output at once. After an error, or when the reader is gone, nothing is written.
///
/// The error is kept for [`take_print_error`]: a command with effects ignores it here and does its work first.
pub fn print(bytes: &[u8]) {
    let bytes = match prints_to_terminal() {
        true => visible(bytes, Keep::LinesAndColour),
        false => Cow::Borrowed(bytes),
    };
    let mut state = STANDARD_OUTPUT.lock();
    if state.closed {
        return;
    }
    let mut out = io::stdout().lock();
    if let Err(error) = out.write_all(&bytes).and_then(|()| out.flush()) {
        state.closed = true;
        if error.kind() != io::ErrorKind::BrokenPipe {
            state.error = Some(error);
        }
    }
}

/// Whether what is printed still reaches someone.
pub fn is_open() -> bool {
    !STANDARD_OUTPUT.lock().closed
}

/// Why standard output could not be written, once.
pub fn take_print_error() -> Option<io::Error> {
    STANDARD_OUTPUT.lock().error.take()
}

/// Writes lines for a person to standard error, and a line feed after them.
pub fn notice(text: impl AsRef<str>) {
    let line = format!("{}\n", text.as_ref());
    STANDARD_ERROR.lock().write_line(&mut io::stderr(), &visible(line.as_bytes(), Keep::Lines));
}

/// Lines that could not be written to standard error.
pub fn lost_lines() -> u64 {
    LOST_LINES.load(Ordering::Relaxed)
}

/// Standard error as the log writes to it: each write is one record, and none fails.
#[derive(Debug)]
pub struct LogStream {
    colour: bool,
}

impl LogStream {
    /// `colour` when the log colours its lines; its escape sequences are then kept. Those of values are escaped by
    /// the log itself.
    pub fn new(colour: bool) -> LogStream {
        LogStream { colour }
    }
}

impl io::Write for LogStream {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        let keep = if self.colour { Keep::Colour } else { Keep::Nothing };
        // The line feed at the end is the log's own; one before it would begin a line that the host did not write.
        let body = record.strip_suffix(b"\n").unwrap_or(record);
        let mut line = visible(body, keep).into_owned();
        line.push(b'\n');
        STANDARD_ERROR.lock().write_line(&mut io::stderr(), &line);
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Standard error has no buffer.
        Ok(())
    }
}

/// Writes whole lines, and never fails.
struct LineWriter {
    /// The reader did not read in time.
    stalled: bool,
    /// The last line was cut; the next one begins with a line feed.
    torn: bool,
}

impl LineWriter {
    fn write_line(&mut self, out: &mut (impl io::Write + AsFd), line: &[u8]) {
        let limit = if self.stalled { Duration::ZERO } else { STALL_LIMIT };
        let deadline = Instant::now() + limit;
        let torn_before = self.torn;
        let begin: &[u8] = if torn_before { b"\n" } else { b"" };
        let mut written = 0;
        for piece in [begin, line].into_iter().flat_map(|part| part.chunks(PIECE_BYTES)) {
            match write_piece(out, piece, deadline, &mut written) {
                Ok(()) => self.stalled = false,
                Err(error) => {
                    self.stalled = matches!(error.kind(), io::ErrorKind::TimedOut);
                    self.torn = torn_before || written > 0;
                    LOST_LINES.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
        self.torn = false;
    }
}

/// Writes all of a piece, which a descriptor that is ready takes without blocking.
fn write_piece(
    out: &mut (impl io::Write + AsFd),
    mut piece: &[u8],
    deadline: Instant,
    written: &mut usize,
) -> io::Result<()> {
    while !piece.is_empty() {
        wait_writable(out, deadline)?;
        match out.write(piece) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                *written += n;
                piece = &piece[n..];
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Waits until a write does not block. Errors of the descriptor are left to the write, which names them.
fn wait_writable(out: &impl AsFd, deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut ready = [PollFd::new(out, PollFlags::OUT)];
        match rustix::event::poll(&mut ready, Some(&timeout)) {
            Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// A text from outside as a part of a line: its line breaks, colours and everything else that acts on a terminal made
/// visible. For every value that plugins, receivers, peers or the cloud chose, whatever the line is written to.
pub fn inline(text: &str) -> Cow<'_, str> {
    match visible(text.as_bytes(), Keep::Nothing) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(shown) => Cow::Owned(String::from_utf8_lossy(&shown).into_owned()),
    }
}

/// Which control characters stay as they are; tabulators always do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nothing,
    Lines,
    /// Sequences that change the colour and nothing else.
    Colour,
    LinesAndColour,
}

/// The text with its control characters made visible: `\u{1b}` for an escape. Bytes that are not UTF-8 are replaced.
fn visible(bytes: &[u8], keep: Keep) -> Cow<'_, [u8]> {
    let kept = |c: char| c == '\t' || (c == '\n' && matches!(keep, Keep::Lines | Keep::LinesAndColour));
    let text = String::from_utf8_lossy(bytes);
    if let Cow::Borrowed(text) = text
        && text.chars().all(|c| !acts_on_terminal(c) || kept(c))
    {
        return Cow::Borrowed(bytes);
    }
    let colour = matches!(keep, Keep::Colour | Keep::LinesAndColour);
    let mut shown = String::with_capacity(text.len() + 16);
    let mut rest = &*text;
    while let Some(c) = rest.chars().next() {
        let length = match colour_sequence(rest) {
            Some(length) if colour => {
                shown.push_str(&rest[..length]);
                length
            }
            _ => {
                match c {
                    '\n' if !kept(c) => shown.push_str("\\n"),
                    '\r' => shown.push_str("\\r"),
                    c if acts_on_terminal(c) && !kept(c) => {
                        // Writing to a String can't fail.
                        write!(shown, "\\u{{{:x}}}", u32::from(c)).ok();
                    }
                    c => shown.push(c),
                }
                c.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Cow::Owned(shown.into_bytes())
}

/// Control characters, and those that change the direction of the text around them.
fn acts_on_terminal(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

/// The length of the colour sequence (`ESC [ digits ; m`) that the text begins with.
fn colour_sequence(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    parameters[end..].starts_with('m').then_some("\x1b[".len() + end + 1)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;

    use super::*;

    fn fresh() -> LineWriter {
        LineWriter { stalled: false, torn: false }
    }

    #[test]
    fn a_line_that_can_not_be_written_is_counted_and_nothing_else() {
        let (reader, mut closed) = io::pipe().unwrap();
        drop(reader);
        let before = lost_lines();
        fresh().write_line(&mut closed, b"a line\n");
        fresh().write_line(&mut File::options().write(true).open("/dev/full").unwrap(), b"a line\n");
        assert!(lost_lines() >= before + 2);
    }

    #[test]
    fn a_reader_that_does_not_read_is_waited_for_once_and_gets_whole_lines_when_it_does() {
        let (mut reader, mut pipe) = io::pipe().unwrap();
        let mut writer = fresh();
        let line = [&[b'x'; 1500][..], b"\n"].concat();
        let start = Instant::now();
        for _ in 0..1000 {
            writer.write_line(&mut pipe, &line);
        }
        assert!(writer.stalled && start.elapsed() < STALL_LIMIT * 10, "{:?}", start.elapsed());
        let mut read = vec![0; 1 << 16];
        let n = reader.read(&mut read).unwrap();
        read.truncate(n);
        writer.write_line(&mut pipe, b"again\n");
        drop(pipe);
        reader.read_to_end(&mut read).unwrap();
        let text = String::from_utf8(read).unwrap();
        assert_eq!(text.lines().last(), Some("again"), "the line after a lost one is whole");
    }

    #[test]
    fn control_characters_are_made_visible() {
        let shown =
            |text: &str, keep| String::from_utf8(visible(text.as_bytes(), keep).into_owned()).unwrap();
        assert_eq!(shown("plain\tµ", Keep::Nothing), "plain\tµ");
        assert_eq!(shown("a\nb\r\x07", Keep::Nothing), "a\\nb\\r\\u{7}");
        assert_eq!(inline("red\n\x1b[31mforged"), "red\\n\\u{1b}[31mforged");
        assert_eq!(shown("a\n\x1b[31mred\x1b[2J", Keep::Lines), "a\n\\u{1b}[31mred\\u{1b}[2J");
        assert_eq!(
            shown("\x1b[1;31mred\x1b[0m\x1b]0;title\x07", Keep::Colour),
            "\x1b[1;31mred\x1b[0m\\u{1b}]0;title\\u{7}"
        );
        assert_eq!(shown("\u{9b}2J\u{202e}", Keep::LinesAndColour), "\\u{9b}2J\\u{202e}");
        assert_eq!(visible(b"\xff\x1b", Keep::Lines).as_ref(), "\u{fffd}\\u{1b}".as_bytes());
    }
}
