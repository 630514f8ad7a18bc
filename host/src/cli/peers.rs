//! `coda-host peers`: lists the peers of a running coordinator's network.

use std::process::ExitCode;

use super::coordinator_client::{CoordinatorClient, ListedPeer};
use super::kit;
use crate::config::load::{self, ProcessEnv};
use crate::error::Failure;
use crate::output::inline;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host peers
  coda-host peers --url http://127.0.0.1:8090 --json | jq '.peers[].peer_id'

STATE is what the peer reports about its health, `lost` when it can't be reached, or `stale` when nothing was heard of it
for a while. SLOTS IN USE are reservations and executions, as the peer reports them. Exit status 4 when no coordinator answers.")]
pub struct Args {
    /// The coordinator (CODA_COORDINATOR_URL, http://127.0.0.1:8090)
    #[arg(long, value_name = "URL", value_hint = clap::ValueHint::Url)]
    url: Option<String>,
    /// JSON for machines
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, env: &ProcessEnv) -> Result<ExitCode, Failure> {
    let flags = args.url.map(|url| ("CODA_COORDINATOR_URL", url)).into_iter().collect();
    let (settings, _) = load::settings(env, flags, load::dirs(env)?, None)?;
    let client = CoordinatorClient::new(&settings.coordinator.url, settings.coordinator.api_token.as_ref())?;
    let list = kit::runtime()?.block_on(client.peers())?;
    let text = if args.json { format!("{}\n", serde_json::json!(list)) } else { table(&list.peers) };
    kit::print(text.as_bytes())
}

fn table(peers: &[ListedPeer]) -> String {
    if peers.is_empty() {
        return "no peers are known; they join with CODA_PEER_BOOTSTRAP set to the coordinator's address\n"
            .into();
    }
    let mut text =
        format!("{:<53} {:<12} {:>8} {:>12}  SERVICES\n", "PEER", "STATE", "HEARD", "SLOTS IN USE");
    for peer in peers {
        let heard = format!("{} s ago", peer.heard_seconds_ago);
        let in_use = peer.active_reservations + peer.active_executions;
        let services = peer.services.join(" ");
        text += &format!(
            "{:<53} {:<12} {heard:>8} {in_use:>12}  {}\n",
            inline(&peer.peer_id),
            inline(peer.state()),
            inline(&services)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_in_its_line() {
        let peer = ListedPeer {
            peer_id: "12D3KooW\u{1b}[31m".into(),
            stale: false,
            lost: false,
            health: "healthy\nfake row".into(),
            services: vec!["evolve_state".into()],
            active_reservations: 1,
            active_executions: 2,
            heard_seconds_ago: 4,
            breaker: "closed".into(),
        };
        let stale = ListedPeer { stale: true, ..peer.clone() };
        let left_alone = ListedPeer { breaker: "open".into(), ..peer.clone() };
        let lost = ListedPeer { lost: true, ..peer.clone() };
        let text = table(&[peer, stale, left_alone, lost]);
        assert_eq!(text.lines().count(), 5, "{text}");
        assert!(text.contains(" breaker open ") && text.contains(" lost "), "{text}");
        assert!(!text.contains('\u{1b}') && text.contains("stale") && text.contains("4 s ago"), "{text}");
        assert!(table(&[]).contains("CODA_PEER_BOOTSTRAP"));
    }
}
