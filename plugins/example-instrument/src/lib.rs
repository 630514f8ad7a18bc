//! Example of a plugin that talks to an instrument server over TCP, as most control stacks do.
//!
//! One request and one answer, each a line of JSON (`wire`), on one connection that is kept open and opened again after
//! a failure. Every wait has a limit: to connect, to write, and for a run from `run_timeout_ms` on. While it waits, a
//! run looks for its cancel and has the server abort the job over a separate connection. Try it with the server
//! that comes with it: `coda-example-instrument 127.0.0.1:5555`.

pub mod wire;

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use coda_plugin_abi::{
    Connectivity, Context, Device, Error, ErrorCode, Executor, Job, LogLevel, Outcome, Stage, Target,
    export_executor,
};
use schemars::JsonSchema;
use serde::Deserialize;

use wire::{Answer, Request};

export_executor! { kind: Test, vendor: "Acme", entries: { create_executor => connect }, config_schema: schema }

/// How often a waiting run looks whether it was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Config {
    /// Where the instrument server listens.
    host: String,
    port: u16,
    /// Limit for connecting, and for the short requests.
    #[serde(default = "two_seconds")]
    #[schemars(range(min = 1))]
    timeout_ms: u64,
    /// Limit for one run.
    #[serde(default = "one_minute")]
    #[schemars(range(min = 1))]
    run_timeout_ms: u64,
}

fn two_seconds() -> u64 {
    2_000
}

fn one_minute() -> u64 {
    60_000
}

fn schema(_entry: &str) -> Option<String> {
    Some(schemars::schema_for!(Config).as_value().to_string())
}

pub struct Instrument {
    addresses: Vec<SocketAddr>,
    config: Config,
    num_qubits: u16,
    /// One session: most servers allow no more. `None` until it is needed.
    session: Mutex<Option<Session>>,
}

/// # Errors
/// When the config is wrong or the server doesn't answer.
pub fn connect(ctx: &Context<'_>) -> Result<Instrument, Error> {
    let config: Config = ctx.config()?;
    let at = format!("{}:{}", config.host, config.port);
    let addresses = at.to_socket_addrs().map_err(|e| unreachable(&at, &e))?.collect();
    let instrument = Instrument { addresses, config, num_qubits: 0, session: Mutex::default() };
    let Answer::Hello { num_qubits, fridge_kelvin } = instrument.short(&Request::Hello)? else {
        return Err(protocol("hello"));
    };
    ctx.host().log(LogLevel::Info, format_args!("{at} serves {num_qubits} qubits"));
    ctx.host().gauge("fridge_kelvin", fridge_kelvin);
    Ok(Instrument { num_qubits: num_qubits.min(ctx.num_qubits()), ..instrument })
}

impl Executor for Instrument {
    fn device(&self) -> Device {
        let neighbours = (1..self.num_qubits).map(|q| (q - 1, q)).collect();
        Device::new("acme-instrument", self.num_qubits, [Target::Cz])
            .with_connectivity(Connectivity::Undirected(neighbours))
    }

    fn run(&self, job: &Job<'_>) -> Result<Outcome, Error> {
        let program = job.program();
        if program.num_qubits() > self.num_qubits {
            let text =
                format!("{} qubits are asked for, the device has {}", program.num_qubits(), self.num_qubits);
            return Err(Error::new(ErrorCode::Unsupported, text).at(Stage::Compile));
        }
        let request = Request::Run {
            job: job.id().into(),
            num_qubits: program.num_qubits(),
            gates: program.gates().iter().map(|g| (g.kind, g.q0, g.q1, g.param)).collect(),
            measurements: program.measurements().to_vec(),
            shots: job.shots(),
        };
        let mut aborted = false;
        let mut look = || {
            if job.is_cancelled() && !aborted {
                aborted = true;
                // The answer to the run says what came of it.
                let abort = Request::Abort { job: job.id().into() };
                if let Err(e) = self.open().and_then(|mut s| s.ask(&abort, self.short_limit(), &mut || {})) {
                    job.host().log(LogLevel::Warn, format_args!("the abort failed: {e}"));
                }
            }
        };
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        // A session that the server has closed meanwhile fails before it has the job: once more then.
        let mut kept = session.take();
        if kept.as_mut().is_some_and(|s| s.ask(&Request::Hello, self.short_limit(), &mut || {}).is_err()) {
            kept = None;
        }
        let mut live = kept.map_or_else(|| self.open(), Ok)?;
        let limit = Duration::from_millis(self.config.run_timeout_ms);
        let answer = live.ask(&request, limit, &mut look);
        // After a failure no one knows what the next line answers, so the session goes.
        let answer = answer?;
        *session = Some(live);
        match answer {
            Answer::Counts { counts, ms } => Ok(Outcome::from_counts(counts).with_time_ms(ms)),
            Answer::Aborted => {
                Err(Error::new(ErrorCode::Cancelled, "the server ended the job").at(Stage::Run))
            }
            Answer::Refused { text } => Err(Error::new(ErrorCode::Unsupported, text).at(Stage::Compile)),
            Answer::Hello { .. } => Err(protocol("run")),
        }
    }
}

impl Instrument {
    fn short_limit(&self) -> Duration {
        Duration::from_millis(self.config.timeout_ms)
    }

    fn open(&self) -> Result<Session, Error> {
        let at = format!("{}:{}", self.config.host, self.config.port);
        let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
        for address in &self.addresses {
            match TcpStream::connect_timeout(address, self.short_limit()) {
                Ok(stream) => {
                    return Session::new(stream, at).map_err(|e| unreachable(&self.config.host, &e));
                }
                Err(e) => last = e,
            }
        }
        Err(unreachable(&at, &last))
    }

    fn short(&self, request: &Request) -> Result<Answer, Error> {
        self.open()?.ask(request, self.short_limit(), &mut || {})
    }
}

/// An open connection.
struct Session {
    stream: BufReader<TcpStream>,
    at: String,
}

impl Session {
    fn new(stream: TcpStream, at: String) -> std::io::Result<Session> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_EVERY))?;
        Ok(Session { stream: BufReader::new(stream), at })
    }

    /// Sends a request and waits for its answer, calling `look` now and then.
    fn ask(&mut self, request: &Request, limit: Duration, look: &mut dyn FnMut()) -> Result<Answer, Error> {
        let line =
            serde_json::to_string(request).map_err(|e| Error::new(ErrorCode::Other, e.to_string()))? + "\n";
        let stream = self.stream.get_mut();
        let sent = stream.set_write_timeout(Some(limit)).and_then(|()| stream.write_all(line.as_bytes()));
        sent.map_err(|e| unreachable(&self.at, &e))?;
        let (started, mut line) = (Instant::now(), String::new());
        loop {
            match self.stream.read_line(&mut line) {
                Ok(_) if line.ends_with('\n') => break,
                Ok(_) => return Err(unreachable(&self.at, &ErrorKind::UnexpectedEof.into())),
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(unreachable(&self.at, &e)),
            }
            if started.elapsed() > limit {
                let text = format!("the instrument server {} did not answer within {limit:?}", self.at);
                return Err(Error::new(ErrorCode::Timeout, text).at(Stage::Run).retryable());
            }
            look();
        }
        serde_json::from_str(&line).map_err(|e| {
            Error::new(ErrorCode::Hardware, format!("{} answered something else: {e}", self.at))
                .at(Stage::Readout)
        })
    }
}

fn unreachable(at: &str, e: &std::io::Error) -> Error {
    Error::new(ErrorCode::Hardware, format!("the instrument server {at} can't be reached: {e}")).retryable()
}

fn protocol(request: &str) -> Error {
    Error::new(ErrorCode::Hardware, format!("the instrument server gave no answer that fits '{request}'"))
}
