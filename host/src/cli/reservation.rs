//! `coda-host reservation`: looks into an event log.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use super::kit;
use crate::app::coordinator;
use crate::config::load::{self, ProcessEnv};
use crate::error::{Explain as _, Failure, exit};
use crate::output;
use crate::peers::wire::time;
use crate::reservation::export::{self, Verifier};
use crate::reservation::ledger::ReservationState;
use crate::reservation::log::{Log, Row};
use crate::reservation::stream::StreamId;

/// Rows read at once.
const PAGE: usize = 10_000;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
A coordinator keeps its reservations and jobs in an event log, a peer the holds on its slots. Each event is a fact that
is never changed; a reservation's state is what replaying its events gives.

Examples:
  coda-host reservation show res-4f0c...             the events of one, and its state
  coda-host reservation verify                       every event: as it was written, and possible where it is
  coda-host reservation replay --lines > log.jsonl   the whole log as text
  coda-host reservation replay log.jsonl             the same states out of that text
  coda-host reservation show --peer res-4f0c...      as the peer on this machine saw it")]
pub enum ReservationSubcommand {
    /// The events of one reservation, and its state
    Show {
        /// Reservation id
        id: String,
        #[command(flatten)]
        location: LogLocation,
    },
    /// Fold the log, or an exported one, and print every reservation's state
    Replay {
        /// Lines that `replay --lines` wrote
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
        /// Print the events as lines of JSON instead
        #[arg(long, conflicts_with = "file")]
        lines: bool,
        #[command(flatten)]
        location: LogLocation,
    },
    /// Check every event of the log, or of an exported one
    Verify {
        #[arg(value_hint = clap::ValueHint::FilePath)]
        file: Option<PathBuf>,
        #[command(flatten)]
        location: LogLocation,
    },
}

/// Which log.
#[derive(Debug, clap::Args)]
pub struct LogLocation {
    /// The coordinator's log: a file or a postgres:// URL (CODA_COORDINATOR_STORE)
    #[arg(long, value_name = "PATH|URL")]
    store: Option<String>,
    /// The log of the peer on this machine
    #[arg(long, conflicts_with = "store")]
    peer: bool,
}

pub fn run(command: ReservationSubcommand, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let runtime = kit::runtime()?;
    runtime.block_on(async {
        match command {
            ReservationSubcommand::Show { id, location } => show(&id, &open(&location, env).await?).await,
            ReservationSubcommand::Replay { file: Some(file), .. } => replay_file(&env.cwd.join(file)),
            ReservationSubcommand::Replay { lines: true, location, .. } => {
                lines(&open(&location, env).await?).await
            }
            ReservationSubcommand::Replay { location, .. } => replay(&open(&location, env).await?).await,
            ReservationSubcommand::Verify { file: Some(file), .. } => verify_file(&env.cwd.join(file)),
            ReservationSubcommand::Verify { location, .. } => {
                let log = open(&location, env).await?;
                let events = log.verify().await?;
                kit::print(
                    format!("{events} events, all as they were written ({})\n", log.location()).as_bytes(),
                )
            }
        }
    })
}

async fn open(location: &LogLocation, env: &ProcessEnv) -> Result<Log, Failure> {
    let flags = location.store.clone().map(|store| ("CODA_COORDINATOR_STORE", store)).into_iter().collect();
    let (settings, _) = load::settings(env, flags, load::dirs(env)?, None)?;
    let default = match location.peer {
        true => Log::default_path(&settings.dirs.state),
        false => Log::default_path(&coordinator::dir(&settings)),
    };
    let remote =
        !location.peer && settings.coordinator.store.as_ref().is_some_and(|s| s.expose().contains("://"));
    let path = match &settings.coordinator.store {
        Some(store) if !location.peer => env.cwd.join(store.expose()),
        _ => default,
    };
    // A look must not make an empty log.
    if !remote && !path.is_file() {
        return Err(Failure {
            code: "no-log",
            message: format!("there is no event log {}", path.display()),
            causes: Vec::new(),
            hint: Some("name it with --store, take --peer for a peer's, or set CODA_STATE_DIR".into()),
            exit: exit::CONFIG,
        });
    }
    match remote {
        true => coordinator::open_log(&settings).await,
        false => Ok(Log::sqlite(&path)?),
    }
}

async fn show(id: &str, log: &Log) -> Result<ExitCode, Failure> {
    let mut rows = log.rows(StreamId::reservation(id)).await?;
    if rows.is_empty() {
        // A peer's hold has a number behind the id.
        let mut from = 0;
        loop {
            let page = log.page(from, PAGE).await?;
            let Some(last) = page.last() else { break };
            from = last.position + 1;
            let prefix = StreamId::hold(format!("{id}/")).to_string();
            rows.extend(page.into_iter().filter(|r| r.stream.starts_with(&prefix)));
        }
    }
    if rows.is_empty() {
        return Err(Failure {
            code: "no-reservation",
            message: format!("the log {} has no reservation {id}", log.location()),
            causes: Vec::new(),
            hint: Some(
                "`coda-host reservation replay` lists those it has; --peer looks into the peer's log".into(),
            ),
            exit: exit::FAILURE,
        });
    }
    let mut verifier = Verifier::default();
    let mut text = String::new();
    for row in &rows {
        verifier
            .take(row)
            .map_err(|what| damaged(log.location(), &format!("event {}", row.position), &what))?;
        // Writing to a String can't fail.
        writeln!(text, "{}  {}", time(row.at), output::inline(&row.body)).ok();
    }
    for (stream, progress) in &verifier.reservations {
        text += &state_line(stream, progress.state.as_ref());
    }
    kit::print(text.as_bytes())
}

fn state_line(stream: &str, state: Option<&ReservationState>) -> String {
    let Some(s) = state else { return format!("{stream}  (its beginning was removed)\n") };
    let mut line = format!("{stream}  {}", s.transition.name());
    if let Some(peer) = &s.accepting_peer_id {
        line += &format!("  by {peer}");
    }
    if let Some(reason) = &s.reason {
        line += &format!("  ({reason})");
    }
    if s.held {
        line += "  holds a slot";
    }
    if let Some(execution) = &s.execution {
        line += &match &execution.outcome {
            None => format!("  {} has no end", execution.execution_id),
            Some(Ok(())) => format!("  {} completed", execution.execution_id),
            Some(Err(error)) => format!("  {} failed: {error}", execution.execution_id),
        };
    }
    format!("{}\n", output::inline(&line))
}

async fn replay(log: &Log) -> Result<ExitCode, Failure> {
    let mut verifier = Verifier::default();
    let mut from = 0;
    loop {
        let rows = log.page(from, PAGE).await?;
        let Some(last) = rows.last() else { break };
        from = last.position + 1;
        for row in &rows {
            verifier
                .take(row)
                .map_err(|what| damaged(log.location(), &format!("event {}", row.position), &what))?;
        }
    }
    kit::print(states(&verifier).as_bytes())
}

fn states(verifier: &Verifier) -> String {
    let mut streams: Vec<_> = verifier.reservations.iter().collect();
    streams.sort_by_key(|(stream, progress)| {
        (progress.state.as_ref().map(|s| s.requested_at), (*stream).clone())
    });
    let mut text: String =
        streams.iter().map(|(stream, progress)| state_line(stream, progress.state.as_ref())).collect();
    text += &format!("{} events, {} reservations\n", verifier.rows, streams.len());
    text
}

async fn lines(log: &Log) -> Result<ExitCode, Failure> {
    let mut from = 0;
    loop {
        let rows: Vec<Row> = log.page(from, PAGE).await?;
        let Some(last) = rows.last() else { return Ok(ExitCode::SUCCESS) };
        from = last.position + 1;
        let text: String = rows.iter().map(|r| export::line(r) + "\n").collect();
        kit::print(text.as_bytes())?;
    }
}

fn read_lines(file: &Path) -> Result<export::ExportedLog, Failure> {
    let bytes = std::fs::read(file).map_err(|e| Failure {
        code: "log-read",
        message: format!("{} can't be read", file.display()),
        causes: vec![e.to_string()],
        hint: None,
        exit: exit::CONFIG,
    })?;
    let lines = export::read(&bytes)
        .map_err(|e| damaged(&file.display().to_string(), &format!("line {}", e.line), &e.what))?;
    if let Some(export::TornLine { line, length }) = lines.torn {
        output::notice(format!(
            "note: line {line} is incomplete ({length} bytes, cut by a crash or a full disk) and is left out"
        ));
    }
    Ok(lines)
}

fn folded(file: &Path) -> Result<Verifier, Failure> {
    let mut verifier = Verifier::default();
    for row in &read_lines(file)?.rows {
        let location = file.display().to_string();
        verifier.take(row).map_err(|what| damaged(&location, &format!("event {}", row.position), &what))?;
    }
    Ok(verifier)
}

fn replay_file(file: &Path) -> Result<ExitCode, Failure> {
    kit::print(states(&folded(file)?).as_bytes())
}

fn verify_file(file: &Path) -> Result<ExitCode, Failure> {
    let events = folded(file)?.rows;
    kit::print(format!("{events} events, all as they were written ({})\n", file.display()).as_bytes())
}

fn damaged(location: &str, at: &str, what: &str) -> Failure {
    let error = crate::reservation::log::LogError::Damaged {
        location: location.into(),
        position: 0,
        stream: String::new(),
        what: String::new(),
    };
    Failure {
        code: error.code(),
        message: format!("the event log {location} is damaged at {at}: {what}"),
        causes: Vec::new(),
        hint: error.hint(),
        exit: error.exit(),
    }
}
