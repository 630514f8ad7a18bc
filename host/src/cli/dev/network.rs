//! `coda-host dev --peers N`: a private peer network on this machine: a coordinator and N peers, all processes of this
//! binary, on free ports of 127.0.0.1, with a common device config. They trust each other and no one else.
//!
//! The coordinator's identity is made before it starts, because the peers need its address. They start together; the
//! network is ready when the coordinator knows each of them as healthy.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{Args, DevError, LOG_LINES, LOOK_AGAIN, LogLines, READY_LIMIT};
use crate::app;
use crate::cli::coordinator_client::{CoordinatorClient, follow, show_result};
use crate::cli::job_display::JobDisplay;
use crate::cli::terminal::Terminal;
use crate::config::load::ProcessEnv;
use crate::coordinator::job_view::{CoordinatorJob, JobStatus};
use crate::dev::host::{DevHost, HostCommand};
use crate::error::{Failure, exit};
use crate::output;
use crate::peers::identity;
use crate::reservation::job_options::JobOptions;

const SHOTS: u32 = 1000;
/// Pause between two looks at who is in the network, once it is up.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How often a peer tells that it is there: for a network whose every member is on this machine.
const HEARTBEAT_SEC: &str = "2";

/// A circuit of the demo. All of its qubits are measured.
struct Circuit {
    title: &'static str,
    qasm: &'static str,
    /// The only bit strings that may be counted.
    only: Option<[&'static str; 2]>,
}

const CIRCUITS: [Circuit; 3] = [
    Circuit {
        title: "bell: two qubits, entangled",
        qasm: include_str!("../../../../tests/circuits/bell.qasm"),
        only: Some(["00", "11"]),
    },
    Circuit {
        title: "ghz8: eight qubits, all or none",
        qasm: include_str!("../../../../tests/circuits/ghz8.qasm"),
        only: Some(["00000000", "11111111"]),
    },
    Circuit {
        title: "qft10: the Fourier transform of one state of ten qubits, every outcome alike",
        qasm: include_str!("../../../../tests/circuits/qft10.qasm"),
        only: None,
    },
];

/// The processes of the network. Dropped, they are killed.
struct Network {
    members: Vec<Member>,
    client: CoordinatorClient,
    url: String,
    /// The coordinator's address for peers.
    address: String,
}

/// A process of the network.
struct Member {
    name: String,
    process: DevHost,
}

/// Runs the network: the demo first, then live until a signal comes or a process ends.
pub async fn run(count: u16, args: &Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let stop = CancellationToken::new();
    app::watch_signals(stop.clone());
    let (dir, _temporary) = super::work_directory(args, env)?;
    tokio::select! {
        () = stop.cancelled() => Ok(ExitCode::SUCCESS),
        started = Network::start(count, args, env, &dir) => {
            let mut network = started?;
            let mut out = Terminal::new(env);
            network.banner(&mut out, count, &dir)?;
            let done = network.live(args, &mut out, &stop).await;
            network.stop().await?;
            done
        }
    }
}

impl Network {
    async fn start(count: u16, args: &Args, env: &ProcessEnv, dir: &Path) -> Result<Network, Failure> {
        let mut members = Vec::new();
        let state = |name: &str| dir.join(name);
        let key = identity::load(&app::coordinator::dir_in(&state("coordinator")))?;
        let (port, http) = (super::free_port().await?, super::free_port().await?);
        let listen = format!("/ip4/127.0.0.1/tcp/{port}");
        let address = format!("{listen}/p2p/{}", key.public().to_peer_id());
        let url = format!("http://127.0.0.1:{http}");
        let client = CoordinatorClient::new(&url, None)?;
        let without: Vec<String> = env.environment.keys().filter(|name| is_replaced(name)).cloned().collect();
        let member = |name: String, arguments: Vec<String>, mut with: Vec<(&'static str, String)>| {
            with.push(("CODA_STATE_DIR", state(&name).display().to_string()));
            with.push(("CODA_PEER_HEARTBEAT_SEC", HEARTBEAT_SEC.into()));
            let command = HostCommand { arguments, without: without.clone(), with };
            let process = command.start(&dir.join(format!("{name}.log")))?;
            Ok::<_, Failure>(Member { name, process })
        };
        let coordinator = ["coordinator", "--listen", &listen, "--http", &format!("127.0.0.1:{http}")];
        members.push(member("coordinator".into(), coordinator.map(String::from).to_vec(), Vec::new())?);
        let device = args.device.iter().flat_map(|d| ["--device".to_string(), d.display().to_string()]);
        let device: Vec<String> = device.collect();
        for n in 1..=count {
            let mut arguments: Vec<String> = ["start", "--peer", "--no-cloud"].map(String::from).to_vec();
            arguments.extend(device.clone());
            let with = vec![
                ("CODA_PEER_BOOTSTRAP", address.clone()),
                ("CODA_PEER_LISTEN", "/ip4/127.0.0.1/tcp/0".into()),
                ("CODA_HOST", "127.0.0.1".into()),
                ("CODA_PORT", super::free_port().await?.to_string()),
            ];
            members.push(member(format!("peer-{n}"), arguments, with)?);
        }
        let mut network = Network { members, client, url, address };
        network.wait_until_ready(usize::from(count)).await?;
        Ok(network)
    }

    /// Waits until the coordinator knows every peer.
    async fn wait_until_ready(&mut self, count: usize) -> Result<(), Failure> {
        let until = tokio::time::Instant::now() + READY_LIMIT;
        loop {
            self.check_members()?;
            // The coordinator answers once it is up.
            let known = self.client.peers().await.map_or_else(|_| Vec::new(), |list| list.peers);
            if known.iter().filter(|peer| peer.is_usable()).count() >= count {
                return Ok(());
            }
            if tokio::time::Instant::now() > until {
                let log = self.members.first().map(|m| m.process.last_lines(LOG_LINES)).unwrap_or_default();
                return Err(DevError::NotReady { source: LogLines(log) }.into());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }

    /// A process that has ended ends the network.
    fn check_members(&mut self) -> Result<(), Failure> {
        for Member { name, process } in &mut self.members {
            if let Some(status) = process.try_ended()? {
                let log = LogLines(process.last_lines(LOG_LINES));
                return Err(DevError::MemberEnded { name: name.clone(), status, source: log }.into());
            }
        }
        Ok(())
    }

    fn banner(&self, out: &mut Terminal, count: u16, dir: &Path) -> Result<(), Failure> {
        let text = format!(
            "{title}\n\n\
             \x20 page         {url}/\n\
             \x20 peers        {count}, each with its own process\n\
             \x20 coordinator  {url}  /api/v1/jobs /api/v1/peers /api/v1/openapi.json\n\
             \x20 for peers    {address}\n\
             \x20 logs         {logs}/*.log\n\n\
             Send a circuit from another terminal:\n\
             \x20 {program} coordinate CIRCUIT.qasm --shots 1000 --url {url}\n\
             A further peer joins with CODA_PEER_BOOTSTRAP={address}\n",
            title = out.bold("A private peer network"),
            url = self.url,
            address = self.address,
            logs = dir.display(),
            program = super::program(),
        );
        out.line(&text)
    }

    async fn live(
        &mut self,
        args: &Args,
        out: &mut Terminal,
        stop: &CancellationToken,
    ) -> Result<ExitCode, Failure> {
        let is_right = tokio::select! {
            shown = demo(&self.client, out) => shown?,
            () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
        };
        if args.once {
            return Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILURE) });
        }
        out.line("Peers that come and go (Ctrl-C ends):")?;
        let mut before: Vec<(String, String)> = Vec::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(ExitCode::SUCCESS),
                () = tokio::time::sleep(WATCH_INTERVAL) => {}
            }
            self.check_members()?;
            let now: Vec<(String, String)> = self
                .client
                .peers()
                .await?
                .peers
                .into_iter()
                .map(|peer| (peer.state().into(), peer.peer_id))
                .collect();
            for (state, peer_id) in now.iter().filter(|peer| !before.contains(peer)) {
                out.line(&format!("  {}  {}", output::inline(peer_id), output::inline(state)))?;
            }
            before = now;
        }
    }

    /// Asks every process to stop, the coordinator last, so that peers end what they run for it.
    async fn stop(&mut self) -> Result<(), Failure> {
        while let Some(mut member) = self.members.pop() {
            member.process.stop().await?;
        }
        Ok(())
    }
}

/// Runs the circuits one after the other. Returns whether every result is possible.
async fn demo(client: &CoordinatorClient, out: &mut Terminal) -> Result<bool, Failure> {
    let mut wrong = Vec::new();
    for circuit in &CIRCUITS {
        let id = client.submit(circuit.title, circuit.qasm, SHOTS, &JobOptions::default()).await?;
        out.line(&format!("{}  {id}", out.bold(circuit.title)))?;
        let job = follow(client, &id, JobDisplay::new(out)).await?;
        show_result(out, &job, SHOTS)?;
        out.line("")?;
        if let Err(why) = check(circuit, &job) {
            wrong.push(format!("{}: {why}", circuit.title));
        }
    }
    if wrong.is_empty() {
        out.line(&format!("{}\n", out.bold("all three completed on the peers: counts are possible")))?;
    }
    for what in &wrong {
        out.line(&format!("WRONG: {what}"))?;
    }
    Ok(wrong.is_empty())
}

fn check(circuit: &Circuit, job: &CoordinatorJob) -> Result<(), String> {
    let result = job.result.as_ref().filter(|_| job.status == JobStatus::Completed);
    let counts = &result.ok_or("it failed")?.counts;
    let shots: u64 = counts.values().map(|n| u64::from(*n)).sum();
    if shots != u64::from(SHOTS) {
        return Err(format!("the counts make {shots} shots, not {SHOTS}"));
    }
    match circuit.only.and_then(|only| counts.iter().find(|(key, _)| !only.contains(&key.as_str()))) {
        Some((key, n)) => Err(format!("{key} was counted {n} times, which is impossible")),
        None => Ok(()),
    }
}

/// Variables that configure another network or cloud.
fn is_replaced(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    let of_a_network = ["CODA_PEER", "CODA_COORDINATOR", "CODA_API_", "CODA_NO_CLOUD"];
    super::replaced(name) || of_a_network.iter().any(|prefix| upper.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_another_network_are_not_inherited() {
        for name in
            ["CODA_PEER_BOOTSTRAP", "coda_coordinator_store", "CODA_API_TOKEN", "CODA_PEER", "CODA_PORT"]
        {
            assert!(is_replaced(name), "{name}");
        }
        for name in ["PATH", "CODA_DEVICE_CONFIG", "CODA_PLUGIN_PATH", "CODA_LOG"] {
            assert!(!is_replaced(name), "{name}");
        }
    }
}
