//! The command line: one file per command, each an `Args` and a `run`.

pub(crate) mod circuit_file;
mod completions;
mod config;
mod coordinate;
mod coordinator;
mod coordinator_client;
pub mod daemonize;
pub(crate) mod dev;
mod dev_session;
mod device_view;
mod doctor;
mod event_text;
mod follow_job;
mod histogram;
mod history;
mod job_display;
pub(crate) mod jobs;
pub mod kit;
pub(crate) mod logs;
mod maintenance;
mod measures;
mod pause;
mod peers;
pub(crate) mod plugin;
pub(crate) mod record_window;
mod reload;
mod reservation;
mod reset;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod running_host;
mod start;
mod status;
mod stop;
mod stop_vpn;
pub(crate) mod submit;
mod terminal;
pub(crate) mod usage;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand, ValueEnum as _};

use crate::config::load::{self, ProcessEnv};
use crate::daemon::unit;
use crate::error::Failure;
use crate::executor::worker;
use crate::sys::{self, KeptCapabilities};
use crate::telemetry::{self, LogFormat};

use kit::CliError;

const ABOUT: &str =
    "Connects a QPU to the Coda cloud: takes jobs, runs them in the vendor's plugin, delivers signed results";

const EXAMPLES: &str = "\
Examples:
  coda-host run circuit.json --device site/device.yaml --shots 1000   try a device, no cloud
  coda-host dev --device site/device.yaml --demo                     a local Coda sandbox
  coda-host --device site/device.yaml --token TOKEN                  the first start
  coda-host --device site/device.yaml                                every later one

Exit status:
  0 success   1 failure   2 wrong flag, variable or file   3 plugin   4 cloud   5 stopped with an unfinished job";

/// The arguments of the command line.
#[derive(Debug, Parser)]
#[command(name = "coda-host", version, about = ABOUT, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    start: start::Args,
    /// Same as the subcommand `reset`; the flag of the Python node
    #[arg(long, hide = true, exclusive = true)]
    reset: bool,
    /// Format of the log lines on stderr (CODA_LOG_FORMAT)
    #[arg(long, global = true, value_enum)]
    log_format: Option<LogFormat>,
    /// Use the settings that systemd gives to this unit (such as coda-host or coda-host@NAME)
    #[arg(long, global = true, value_name = "NAME")]
    unit: Option<String>,
}

impl Cli {
    /// The format that a flag or the variable names. An empty variable is unset.
    ///
    /// # Errors
    /// The variable names none.
    pub fn log_format(&self, env: &ProcessEnv) -> Result<LogFormat, CliError> {
        if let Some(format) = self.log_format {
            return Ok(format);
        }
        match env.ours("CODA_LOG_FORMAT").map(str::trim) {
            None | Some("") => Ok(LogFormat::Text),
            Some(text) => {
                LogFormat::from_str(text, true).map_err(|_| CliError::LogFormat { value: text.into() })
            }
        }
    }

    /// Whether this process exists for a plugin alone.
    pub fn is_plugin_process(&self) -> bool {
        let case = |plugin: &plugin::PluginCommand| matches!(plugin, plugin::PluginCommand::CheckCase(_));
        match &self.command {
            Some(Command::ExecutorWorker { .. }) => true,
            Some(Command::Plugin(command)) => case(command),
            _ => false,
        }
    }

    /// The same command line, when no flag of a command stands before its name. Clap's own rule would also forbid
    /// --log-format there.
    ///
    /// # Errors
    /// What is wrong with the flags, as clap says it.
    pub fn with_flags_in_place(self) -> Result<Cli, clap::Error> {
        if self.command.is_none() || self.start == start::Args::default() {
            return Ok(self);
        }
        let wrong = "put the flags of a command after its name: coda-host start --device FILE";
        Err(Cli::command().error(clap::error::ErrorKind::ArgumentConflict, wrong))
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Connect to the cloud and run its jobs (also without a subcommand)
    Start(start::Args),
    /// Run one circuit straight through the plugin, without a cloud
    Run(run::Args),
    /// Start a local Coda sandbox and connect the host to it
    Dev(dev::Args),
    /// Send a circuit to a running sandbox
    Submit(submit::Args),
    /// Stop the running host
    Stop(stop::Args),
    /// Stop the VPN that a host left running
    StopVpn(stop_vpn::Args),
    /// Show the status of the running host
    Status(status::Args),
    /// Show the daemon's log
    Logs(logs::Args),
    /// Check what a host needs, and print how to fix it
    Doctor(doctor::Args),
    /// List, send or drop kept results and unanswerable messages
    #[command(subcommand)]
    Results(results::ResultsCommand),
    /// List the jobs that ended
    History(history::Args),
    /// Sum up jobs, hardware time and utilisation
    Usage(usage::Args),
    /// List the consumers of the stream, or take over the messages of a dead host
    #[command(subcommand)]
    Jobs(jobs::JobsCommand),
    /// Stop the host and forget its credentials
    Reset(reset::Args),
    /// Show every setting and its origin
    Config(config::Args),
    /// Plan circuits onto the peers of a network
    Coordinator(coordinator::Args),
    /// Run a circuit on a network of peers, through a running coordinator
    Coordinate(coordinate::Args),
    /// List the peers of a running coordinator's network
    Peers(peers::Args),
    /// Look into an event log of reservations
    #[command(subcommand)]
    Reservation(reservation::ReservationSubcommand),
    /// Inspect, check and create plugins
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// Finish what runs and begin nothing more, for a limited time
    Pause(pause::Args),
    /// List the times of maintenance that come
    Maintenance(maintenance::Args),
    /// End a pause
    Resume(pause::ResumeArgs),
    /// Load a new plugin or device config into the running host without a stop
    Reload(reload::Args),
    /// Run as the worker process of an isolated plugin
    #[command(hide = true)]
    ExecutorWorker {
        plugin: String,
        #[arg(long)]
        account: Option<String>,
        /// The capabilities that are kept, as a number
        #[arg(long, default_value_t = 0)]
        capabilities: u64,
        /// The interpreter of a Python executor
        #[arg(long)]
        python: Option<std::path::PathBuf>,
        /// Numbers of the descriptors that the host hands over
        #[arg(long, value_delimiter = ',')]
        descriptors: Vec<i32>,
    },
    /// Print tab completions for a shell
    Completions(completions::Args),
    /// Print the manual page, or write the pages of all commands
    Man(completions::ManArgs),
}

impl Command {
    /// Whether it has something to do when a signal asks it to end. The others end at once.
    fn takes_signals(&self) -> bool {
        match self {
            Command::Start(_)
            | Command::Run(_)
            | Command::Dev(_)
            | Command::Submit(_)
            | Command::Logs(_)
            | Command::Coordinator(_)
            | Command::Coordinate(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Reload(_)
            | Command::ExecutorWorker { .. } => true,
            Command::Plugin(command) => command.takes_signals(),
            Command::Stop(_)
            | Command::StopVpn(_)
            | Command::Status(_)
            | Command::Maintenance(_)
            | Command::Doctor(_)
            | Command::Results(_)
            | Command::History(_)
            | Command::Usage(_)
            | Command::Jobs(_)
            | Command::Reset(_)
            | Command::Config(_)
            | Command::Peers(_)
            | Command::Reservation(_)
            | Command::Completions(_)
            | Command::Man(_) => false,
        }
    }

    /// Whether it looks after the host of a state directory, with that host's files and nothing that needs more rights.
    fn looks_after_a_host(&self) -> bool {
        match self {
            Command::Stop(_)
            | Command::Status(_)
            | Command::Logs(_)
            | Command::Doctor(_)
            | Command::Results(_)
            | Command::History(_)
            | Command::Usage(_)
            | Command::Jobs(_)
            | Command::Reset(_)
            | Command::Config(_)
            | Command::Reservation(_)
            | Command::Maintenance(_)
            | Command::Pause(_)
            | Command::Resume(_)
            | Command::Reload(_) => true,
            Command::Start(_)
            | Command::Run(_)
            | Command::Dev(_)
            | Command::Submit(_)
            | Command::StopVpn(_)
            | Command::Coordinator(_)
            | Command::Coordinate(_)
            | Command::Peers(_)
            | Command::Plugin(_)
            | Command::ExecutorWorker { .. }
            | Command::Completions(_)
            | Command::Man(_) => false,
        }
    }
}

/// Runs the command of the command line.
///
/// # Errors
/// The command failed.
pub fn run(cli: Cli, mut env: ProcessEnv) -> Result<ExitCode, Failure> {
    if let Some(unit) = &cli.unit {
        let settings = unit::unit_settings(unit)?;
        env.extend(settings.environment);
        env.cwd = settings.cwd.unwrap_or(env.cwd);
    }
    if cli.command.as_ref().is_some_and(Command::looks_after_a_host) {
        // For root beside a host that has its own account: what a command writes must be that account's too.
        let dir = load::dirs(&env)?.state;
        sys::act_as_owner(&dir).map_err(|source| CliError::Owner { dir, source })?;
    }
    // Nothing else takes the signals of such a command, which may wait long.
    if cli.command.as_ref().map_or(cli.reset, |command| !command.takes_signals()) {
        sys::unblock_stop_signals().map_err(CliError::BlockSignals)?;
    }
    let format = cli.log_format(&env)?;
    let level = match &cli.command {
        // libp2p logs its peer id at each start, as the host does itself.
        None | Some(Command::Start(_) | Command::Coordinator(_)) => "info,libp2p_swarm=warn",
        // The other commands print their own output, so only warnings are logged.
        _ => "warn",
    };
    telemetry::start_log(env.environment.get("CODA_LOG").map(String::as_str), level, format);
    match cli.command {
        None if cli.reset => reset::run(reset::Args::default(), &env),
        None => start::run(cli.start, env),
        Some(Command::Start(args)) => start::run(args, env),
        Some(Command::Run(args)) => run::run(args, env),
        Some(Command::Dev(args)) => dev::run(args, env),
        Some(Command::Submit(args)) => submit::run(args, env),
        Some(Command::Stop(args)) => stop::run(args, &env),
        Some(Command::StopVpn(args)) => stop_vpn::run(args, &env),
        Some(Command::Status(args)) => status::run(args, &env),
        Some(Command::Logs(args)) => logs::run(args, &env),
        Some(Command::Doctor(args)) => doctor::run(args, &env),
        Some(Command::Results(command)) => results::run(command, &env),
        Some(Command::History(args)) => history::run(args, &env),
        Some(Command::Usage(args)) => usage::run(args, &env),
        Some(Command::Jobs(command)) => jobs::run(command, &env),
        Some(Command::Reset(args)) => reset::run(args, &env),
        Some(Command::Config(args)) => config::run(args, &env),
        Some(Command::Pause(args)) => pause::run(args, &env),
        Some(Command::Maintenance(args)) => maintenance::run(args, &env),
        Some(Command::Resume(args)) => pause::resume(args, &env),
        Some(Command::Reload(args)) => reload::run(args, &env),
        Some(Command::Coordinator(args)) => coordinator::run(args, env),
        Some(Command::Coordinate(args)) => coordinate::run(args, env),
        Some(Command::Peers(args)) => peers::run(args, &env),
        Some(Command::Reservation(command)) => reservation::run(command, &env),
        Some(Command::Plugin(command)) => plugin::run(command, env),
        Some(Command::ExecutorWorker { account, capabilities, python, descriptors, .. }) => {
            let kept = KeptCapabilities::from_bits(capabilities);
            let ran = worker::child::run(account.as_deref(), kept, python.as_deref(), &descriptors);
            Ok(ran.map_err(CliError::Worker)?)
        }
        Some(Command::Completions(args)) => completions::run(args, Cli::command()),
        Some(Command::Man(args)) => completions::man(args, Cli::command()),
    }
}
