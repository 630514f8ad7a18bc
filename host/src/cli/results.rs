//! `coda-host results`: undelivered and refused results, and dead letters.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::Subcommand;

use super::kit;
use crate::app::{self, Prepared};
use crate::cloud::http::HttpClient;
use crate::cloud::jwt::{PrivateKey, Signer};
use crate::config::load::ProcessEnv;
use crate::daemon::instance_lock;
use crate::error::{Explain, Failure};
use crate::output;
use crate::results::webhook::{AttemptOutcome, WebhookSender};
use crate::state::db::{Database, Delivery, KeptEntry, KeptKind};

#[derive(Debug, Subcommand)]
#[command(after_help = "\
A running host sends undelivered results by itself. Refused results and dead letters wait for you.

Examples:
  coda-host results list
  coda-host results show 1700000000000-0
  coda-host results retry job-42        one attempt now, with its answer
  coda-host results drop job-42")]
pub enum ResultsCommand {
    /// List what is kept
    List {
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Show an entry with its body
    Show {
        /// Job id or message id
        id: String,
    },
    /// Send a refused result once more, now
    Retry {
        /// Job id or message id
        id: String,
    },
    /// Remove an entry for good
    Drop {
        /// Job id or message id
        id: String,
    },
}

/// Why a kept result can't be shown, sent or dropped.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    #[error("'{id}' is a dead letter, so it can't be sent")]
    DeadLetter { id: String },
    #[error("the running host is sending '{id}' by itself")]
    SentByHost { id: String },
    #[error("nothing is kept for '{id}'")]
    NotKept { id: String },
    #[error("several entries are kept for '{id}'")]
    Ambiguous { id: String },
    #[error("there is no stored key to sign with")]
    NoKey,
    #[error("the result of job {job_id} was not accepted: {reason}")]
    NotAccepted { job_id: String, reason: String },
}

impl Explain for ResultsError {
    fn code(&self) -> &'static str {
        "results"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            ResultsError::DeadLetter { id } => {
                format!("read it with `coda-host results show {id}`, then drop it")
            }
            ResultsError::SentByHost { .. } => "see its attempts with `coda-host logs`".into(),
            ResultsError::NotKept { .. } | ResultsError::NotAccepted { .. } => {
                "run `coda-host results list` to see what is kept".into()
            }
            ResultsError::Ambiguous { .. } => {
                "give the message id, which `coda-host results list` shows".into()
            }
            ResultsError::NoKey => "start coda-host once on this machine first".into(),
        })
    }
}

pub fn run(command: ResultsCommand, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let mut database = Database::open(&prepared.settings.dirs.state)?;
    let kept = database.list()?;
    match command {
        ResultsCommand::List { json } => {
            let text = if json { as_json(&database, &kept)? } else { table(&kept) };
            kit::print(text.as_bytes())
        }
        ResultsCommand::Show { id } => {
            let found = find(&kept, &id)?;
            let mut text = table(std::slice::from_ref(found));
            // Writing to a String can't fail.
            let content = database.content(found)?.unwrap_or_default();
            writeln!(text, "to    {}\nbody  {content}", output::inline(&found.callback_url)).ok();
            kit::print(text.as_bytes())
        }
        ResultsCommand::Retry { id } => {
            let found = find(&kept, &id)?;
            let running = instance_lock::holder(&prepared.settings.dirs.state)?.is_some();
            match found.kind {
                KeptKind::DeadLetter => {
                    return Err(ResultsError::DeadLetter { id }.into());
                }
                KeptKind::Undelivered if running => {
                    return Err(ResultsError::SentByHost { id }.into());
                }
                KeptKind::Undelivered | KeptKind::Refused => {}
            }
            retry(&prepared, &mut database, found)
        }
        ResultsCommand::Drop { id } => {
            let found = find(&kept, &id)?;
            database.end(found, Delivery::Dropped)?;
            kit::print(
                format!("dropped the {} of message {}\n", found.kind.name(), found.message_id).as_bytes(),
            )
        }
    }
}

fn find<'a>(kept: &'a [KeptEntry], id: &str) -> Result<&'a KeptEntry, ResultsError> {
    let mut found = kept.iter().filter(|l| l.message_id == id || l.job_id == id);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(ResultsError::NotKept { id: id.into() }),
        (Some(_), Some(_)) => Err(ResultsError::Ambiguous { id: id.into() }),
    }
}

/// Makes one attempt, with the sender that the host uses.
fn retry(prepared: &Prepared, database: &mut Database, found: &KeptEntry) -> Result<ExitCode, Failure> {
    let settings = &prepared.settings;
    let (Some(key), Some(row)) = (&settings.credentials.jwt_private_key, database.result(found)?) else {
        return Err(ResultsError::NoKey.into());
    };
    let key_id = settings.credentials.jwt_key_id.as_deref();
    let signer = Signer::new(PrivateKey::parse(key)?, &found.qpu_id, key_id, settings.cloud.jwt_reuse);
    let sender =
        WebhookSender::new(HttpClient::new(&settings.cloud)?, signer, &settings.cloud, &settings.webhook)?;
    let delivery = kit::runtime()?.block_on(sender.attempt(&row.callback_url, row.body));
    let reason = match delivery {
        AttemptOutcome::Accepted => {
            database.end(found, Delivery::Delivered)?;
            return kit::print(format!("accepted: the result of job {}\n", found.job_id).as_bytes());
        }
        AttemptOutcome::Retry { why, .. } | AttemptOutcome::Unauthorized { why } => why,
        AttemptOutcome::Refused { status, excerpt } => format!("HTTP {status}: {excerpt}"),
        AttemptOutcome::Forbidden(error) => error.to_string(),
    };
    Err(ResultsError::NotAccepted { job_id: found.job_id.clone(), reason }.into())
}

fn table(kept: &[KeptEntry]) -> String {
    if kept.is_empty() {
        return "nothing is kept: every result was delivered\n".into();
    }
    let mut text = String::new();
    for l in kept {
        let job = if l.job_id.is_empty() { "-" } else { &l.job_id };
        writeln!(
            text,
            "{:<20} {:<12} {:<24} {:>3} attempt(s)  {}",
            l.message_id,
            l.kind.name(),
            output::inline(job),
            l.attempts,
            output::inline(&l.why)
        )
        .ok();
    }
    text
}

fn as_json(database: &Database, kept: &[KeptEntry]) -> Result<String, Failure> {
    let mut rows = Vec::with_capacity(kept.len());
    for l in kept {
        rows.push(serde_json::json!({
            "message_id": l.message_id, "job_id": l.job_id, "kind": l.kind.name(), "attempts": l.attempts,
            "why": l.why, "qpu_id": l.qpu_id, "callback_url": l.callback_url, "bytes": l.bytes,
            "content": database.content(l)?,
        }));
    }
    Ok(format!("{}\n", serde_json::Value::from(rows)))
}
