//! A log as lines of JSON, one event each, and the check of a whole log.
//!
//! A last line without its end is what a cut leaves: it is dropped, and said. Anything else that can't be read
//! is damage, named by its line.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::event::Fact;
use super::journal::{self, JobFact};
use super::ledger::{self, ReservationState};
use super::log::Row;
use super::stream::{StreamId, StreamKind, UnknownStream};

/// One event as a line, without its end.
pub fn line(row: &Row) -> String {
    let head = json!({
        "position": row.position, "stream": row.stream, "seq": row.seq, "at": row.at, "version": row.version,
        "sum": row.sum,
    })
    .to_string();
    // The fact as it lies in the log, letter by letter: its checksum is made of that.
    format!("{}{FACT}{}}}", head.trim_end_matches('}'), row.body)
}

const FACT: &str = ",\"fact\":";

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Damage {
    pub line: usize,
    pub what: String,
}

/// A record that a crash or a full disk has cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornLine {
    /// Number of the line, from 1.
    pub line: usize,
    /// Bytes of what is left.
    pub length: usize,
}

/// The events of a text.
#[derive(Debug, Default, PartialEq)]
pub struct ExportedLog {
    pub rows: Vec<Row>,
    /// The incomplete record at the end that was dropped.
    pub torn: Option<TornLine>,
}

/// Reads lines back.
///
/// # Errors
/// When a line is damaged; the first one is named.
pub fn read(bytes: &[u8]) -> Result<ExportedLog, Damage> {
    let mut lines = ExportedLog::default();
    let mut verifier = Verifier::default();
    let mut rest = bytes;
    let mut number = 0;
    while !rest.is_empty() {
        number += 1;
        let end = rest.iter().position(|b| *b == b'\n');
        let (text, after) = match end {
            Some(end) => (&rest[..end], &rest[end + 1..]),
            None => (rest, &rest[..0]),
        };
        rest = after;
        let damage = |what| Damage { line: number, what };
        match parse(text) {
            Err(_) if end.is_none() => lines.torn = Some(TornLine { line: number, length: text.len() }),
            // Its checksum says that it is whole, so only the newline may be missing.
            Ok(row) => {
                verifier.take(&row).map_err(damage)?;
                lines.rows.push(row);
            }
            Err(what) => return Err(damage(what)),
        }
    }
    Ok(lines)
}

fn parse(text: &[u8]) -> Result<Row, String> {
    let text = std::str::from_utf8(text).map_err(|e| format!("it is not UTF-8 text: {e}"))?;
    let parts = text.split_once(FACT).and_then(|(head, fact)| Some((head, fact.strip_suffix('}')?)));
    let (head, body) = parts.ok_or("it is not an event")?;
    let value: Value =
        serde_json::from_str(&format!("{head}}}")).map_err(|e| format!("it is not an event: {e}"))?;
    let number = |key: &str| value[key].as_i64().ok_or_else(|| format!("it has no number '{key}'"));
    let words =
        |key: &str| value[key].as_str().map(String::from).ok_or_else(|| format!("it has no text '{key}'"));
    let row = Row {
        position: number("position")?,
        stream: words("stream")?,
        seq: number("seq")?,
        at: number("at")?,
        version: number("version")?,
        body: body.into(),
        sum: words("sum")?,
    };
    row.check()?;
    Ok(row)
}

/// A reservation as far as its events were taken.
#[derive(Debug, Default)]
pub struct ReservationProgress {
    /// Number of the last event in its stream.
    pub last_seq: i64,
    /// `None` when the beginning of a hold was pruned away.
    pub state: Option<ReservationState>,
}

/// A job as far as its events were taken.
#[derive(Debug, Default)]
struct JobStream {
    last_seq: i64,
    facts: Vec<JobFact>,
}

/// Folds the events of a whole log, in their order.
#[derive(Default)]
pub struct Verifier {
    pub rows: u64,
    pub reservations: HashMap<String, ReservationProgress>,
    jobs: HashMap<String, JobStream>,
    last: i64,
}

impl Verifier {
    /// Takes the next event.
    ///
    /// # Errors
    /// When the event can't be read, or can't be where it is. The text says what is wrong.
    pub fn take(&mut self, row: &Row) -> Result<(), String> {
        if row.position <= self.last {
            return Err(format!("its position {} comes after {}", row.position, self.last));
        }
        self.last = row.position;
        let follows = |before: i64| match before + 1 == row.seq {
            true => Ok(()),
            false => Err(format!("it is number {} of its stream, number {} was before it", row.seq, before)),
        };
        let stream: StreamId = row.stream.parse().map_err(|e: UnknownStream| e.to_string())?;
        if stream.kind == StreamKind::Job {
            let JobStream { last_seq: seq, facts } = self.jobs.entry(row.stream.clone()).or_default();
            follows(*seq)?;
            let fact: JobFact = row.fact()?;
            journal::may_follow(facts.iter(), &fact).map_err(|e| e.to_string())?;
            *seq = row.seq;
            facts.push(fact);
        } else {
            let ReservationProgress { last_seq: seq, state } =
                self.reservations.entry(row.stream.clone()).or_default();
            // The beginning of an old hold may have been pruned away.
            let is_hold = stream.kind == StreamKind::Hold;
            let pruned = *seq == 0 && row.seq > 1 && is_hold;
            let fact: Fact = row.fact()?;
            if pruned || (is_hold && state.is_none() && *seq > 0) {
                *seq = row.seq;
            } else {
                follows(*seq)?;
                *state = Some(ledger::fold(state.take(), row.at, &fact).map_err(|e| e.to_string())?);
                *seq = row.seq;
            }
        }
        self.rows += 1;
        Ok(())
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
