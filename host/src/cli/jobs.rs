//! `coda-host jobs`: the consumers of this QPU's stream, and taking over the messages of a dead host.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

use super::kit;
use crate::app::{self, Prepared};
use crate::config::load::ProcessEnv;
use crate::error::{Explain, Failure};
use crate::jobs::redis::inspect::Consumer;
use crate::jobs::redis::{Names, Redis, RedisFailure};
use crate::output;

/// A consumer that was idle for less than this has a live host.
const ALIVE: Duration = Duration::from_secs(60);

#[derive(Debug, Subcommand)]
#[command(after_help = "\
Each host reads under its own consumer name (CODA_CONSUMER_NAME). Messages that it had not acknowledged when it died
wait for its next start. If the host will not start again, another host can adopt them:

  coda-host jobs consumers                      each consumer and its messages
  coda-host jobs adopt --consumer worker-1      run them here

Only adopt from a host that is gone permanently: while one runs a long job it looks idle, and the job would run twice.")]
pub enum JobsCommand {
    /// List the consumers of the stream and their pending messages
    Consumers {
        /// JSON for machines
        #[arg(long)]
        json: bool,
    },
    /// Take over the pending messages of a dead consumer
    Adopt {
        /// Name of the dead consumer (its CODA_CONSUMER_NAME)
        #[arg(long, value_name = "NAME")]
        consumer: String,
        /// Adopt even from a consumer that was active a moment ago
        #[arg(long)]
        force: bool,
    },
}

/// Why the stream's consumers can't be shown or adopted.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    #[error("there are no stored credentials, so the stream isn't known")]
    NoCredentials,
    #[error("{name} is this host's own consumer; its next start takes its messages over by itself")]
    OwnConsumer { name: String },
    #[error("the stream has no consumer {name}")]
    UnknownConsumer { name: String },
    #[error("the consumer {name} was active {:.1} s ago, so a host is running under that name", idle.as_secs_f64())]
    Active { name: String, idle: Duration },
    #[error("this Redis account may not ask when {name} was last active (XINFO CONSUMERS)")]
    IdleUnknown { name: String },
    #[error("the consumers of the stream can't be read or changed")]
    Redis(#[source] RedisFailure),
}

impl Explain for JobsError {
    fn code(&self) -> &'static str {
        "jobs"
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            JobsError::NoCredentials => "start coda-host once on this machine first".into(),
            JobsError::OwnConsumer { .. } => "give the name of the dead host's consumer".into(),
            JobsError::UnknownConsumer { .. } => {
                "run `coda-host jobs consumers` to see those that there are".into()
            }
            JobsError::Active { .. } => {
                "stop that host, or wait a minute if it has just died; add --force if you are sure".into()
            }
            JobsError::IdleUnknown { .. } => "make sure that its host is gone, then add --force".into(),
            JobsError::Redis(_) => {
                "check the network and the login to it; adopting needs XINFO (or --force), XPENDING \
                 and XCLAIM on the stream"
                    .into()
            }
        })
    }
}

pub fn run(command: JobsCommand, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let prepared = app::prepare(env, HashMap::new())?;
    let redis = connect(&prepared)?;
    let runtime = kit::runtime()?;
    let consumers = runtime.block_on(redis.consumers()).map_err(JobsError::Redis)?;
    match command {
        JobsCommand::Consumers { json: true } => kit::print(as_json(&consumers).as_bytes()),
        JobsCommand::Consumers { json: false } => {
            kit::print(table(&consumers, &redis.names.consumer).as_bytes())
        }
        JobsCommand::Adopt { consumer, force } => {
            check(&consumers, &consumer, &redis.names.consumer, force)?;
            let adopted = runtime.block_on(redis.adopt(&consumer)).map_err(JobsError::Redis)?;
            let own = &redis.names.consumer;
            kit::print(
                format!(
                    "{adopted} message(s) of {consumer} are now {own}'s: a running host takes them up within a minute, \
                     else the next start does\n"
                )
                .as_bytes(),
            )
        }
    }
}

fn connect(prepared: &Prepared) -> Result<Redis, Failure> {
    let (identity, jobs) = (&prepared.settings.identity, &prepared.settings.jobs);
    if identity.redis_url.expose().is_empty() || identity.qpu_id.is_empty() {
        return Err(JobsError::NoCredentials.into());
    }
    let names = Names::new(&identity.qpu_id, &jobs.consumer_name);
    let ca_file = prepared.settings.cloud.ca_file.as_deref();
    let (redis, _) = Redis::new(&identity.redis_url, names, ca_file, jobs.redis_timeout, jobs.block)?;
    Ok(redis)
}

/// Refuses an adoption that would take messages from a live host.
fn check(consumers: &[Consumer], name: &str, own: &str, force: bool) -> Result<(), JobsError> {
    if name == own {
        return Err(JobsError::OwnConsumer { name: name.into() });
    }
    let Some(found) = consumers.iter().find(|c| c.name == name) else {
        return Err(JobsError::UnknownConsumer { name: name.into() });
    };
    match found.idle {
        Some(idle) if idle < ALIVE && !force => Err(JobsError::Active { name: name.into(), idle }),
        None if !force => Err(JobsError::IdleUnknown { name: name.into() }),
        _ => Ok(()),
    }
}

fn table(consumers: &[Consumer], own: &str) -> String {
    if consumers.is_empty() {
        return "no consumer has read from this QPU's stream yet\n".into();
    }
    let mut text = String::new();
    for c in consumers {
        let idle = c
            .idle
            .map_or("last active unknown".into(), |i| format!("last active {:.1} s ago", i.as_secs_f64()));
        let own = if c.name == own { "  (this host's)" } else { "" };
        // Writing to a String can't fail.
        writeln!(text, "{:<20} {:>6} pending  {idle}{own}", output::inline(&c.name), c.pending).ok();
    }
    text
}

fn as_json(consumers: &[Consumer]) -> String {
    let rows = consumers.iter().map(|c| {
        serde_json::json!({ "name": c.name, "pending": c.pending, "idle_ms": c.idle.map(|i| i.as_millis() as u64) })
    });
    format!("{}\n", serde_json::Value::from_iter(rows))
}
