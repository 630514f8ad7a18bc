//! The settings of the peer network, of what is lent to it, and of the coordinator.

use libp2p::multiaddr::Protocol;
use libp2p::{Multiaddr, PeerId};

use crate::config::ConfigError;
use crate::config::settings::{AllowSetting, CoordinatorSettings, NetworkBasics, PeerSettings};
use crate::config::source::Source;
use crate::model::{SERVICES, Secret};

pub fn peer(s: &mut Source) -> Result<PeerSettings, ConfigError> {
    let service = |w: &str| SERVICES.contains(&w).then(|| w.to_string());
    let names = format!("a list of services: {}", SERVICES.join(" "));
    let allowed = "'bootstrap', 'any', or a list of peer ids";
    let who = s.list("CODA_PEER_ALLOW", "bootstrap", allowed, |w| match w {
        "bootstrap" | "any" => Some(w.to_string()),
        id => id.parse::<PeerId>().ok().map(|id| id.to_string()),
    })?;
    let allow = match who.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["any"] => AllowSetting::Any,
        ["bootstrap"] => AllowSetting::Bootstrap,
        _ => AllowSetting::Listed(who),
    };
    Ok(PeerSettings {
        enabled: s.boolean("CODA_PEER", None, false)?,
        no_cloud: s.boolean("CODA_NO_CLOUD", None, false)?,
        listen: addresses(s, "CODA_PEER_LISTEN", "/ip4/0.0.0.0/tcp/4001", AddressForm::Local)?,
        network: basics(s)?,
        services: s.list("CODA_PEER_SERVICES", &SERVICES.join(","), &names, service)?,
        allow,
        max_ttl_seconds: s.integer("CODA_PEER_MAX_TTL_SEC", None, 300, 5..=86_400)? as i64,
        max_connections: s.integer("CODA_PEER_MAX_CONNECTIONS", None, 256, 8..=10_000)? as usize,
        max_slots: s.integer("CODA_PEER_MAX_SLOTS", None, 64, 1..=64)? as usize,
        max_per_peer: s.integer("CODA_PEER_MAX_SLOTS_PER_PEER", None, 64, 1..=64)? as usize,
        max_execution: s.seconds("CODA_PEER_MAX_EXECUTION_SEC", None, 12.0)?,
    })
}

fn basics(s: &mut Source) -> Result<NetworkBasics, ConfigError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let namespace = s.list(
        "CODA_PEER_NAMESPACE",
        "quantum-backend",
        "one name of letters, digits, '-', '_' and '.'",
        |w| (w.len() <= 64 && w.chars().all(plain)).then(|| w.to_string()),
    )?;
    Ok(NetworkBasics {
        namespace: namespace.into_iter().next().unwrap_or_default(),
        bootstrap: addresses(s, "CODA_PEER_BOOTSTRAP", "", AddressForm::OfPeer)?,
        advertise: addresses(s, "CODA_PEER_ADVERTISE", "", AddressForm::Public)?,
        read_limit: s.seconds("CODA_PEER_READ_TIMEOUT_SEC", None, 5.0)?,
        exchange_limit: s.seconds("CODA_PEER_EXCHANGE_TIMEOUT_SEC", None, 120.0)?,
        idle: s.seconds("CODA_PEER_IDLE_SEC", None, 600.0)?,
        redial: s.seconds("CODA_PEER_REDIAL_SEC", None, 5.0)?,
        heartbeat: s.seconds("CODA_PEER_HEARTBEAT_SEC", None, 30.0)?,
        max_document_bytes: (s.integer("CODA_PEER_MAX_DOCUMENT_MIB", None, 64, 1..=1024)? << 20) as usize,
        max_memory_bytes: (s.integer("CODA_PEER_MAX_MEMORY_MIB", None, 256, 1..=1 << 20)? << 20) as usize,
    })
}

pub fn coordinator(s: &mut Source) -> Result<CoordinatorSettings, ConfigError> {
    Ok(CoordinatorSettings {
        listen: addresses(s, "CODA_COORDINATOR_LISTEN", "/ip4/0.0.0.0/tcp/4002", AddressForm::Local)?,
        http: s.text("CODA_COORDINATOR_HTTP", None, "127.0.0.1:8090"),
        store: s.optional("CODA_COORDINATOR_STORE", None).map(Secret::new),
        api_token: s.optional("CODA_API_TOKEN", None).map(Secret::new),
        url: s.text("CODA_COORDINATOR_URL", None, "http://127.0.0.1:8090"),
        call_limit: s.seconds("CODA_COORDINATOR_CALL_TIMEOUT_SEC", None, 15.0)?,
        dispatch_limit: s.seconds("CODA_COORDINATOR_DISPATCH_TIMEOUT_SEC", None, 60.0)?,
        ttl_seconds: s.integer("CODA_COORDINATOR_TTL_SEC", None, 60, 5..=86_400)?,
        stale: s.seconds("CODA_COORDINATOR_STALE_SEC", None, 300.0)?,
        sweep: s.seconds("CODA_COORDINATOR_SWEEP_SEC", None, 30.0)?,
        peer_wait: s.seconds("CODA_COORDINATOR_PEER_WAIT_SEC", None, 10.0)?,
        slot_wait: s.seconds("CODA_COORDINATOR_SLOT_WAIT_SEC", None, 300.0)?,
        hedge: s.boolean("CODA_COORDINATOR_HEDGE", None, true)?,
        expiry_interval: s.seconds("CODA_COORDINATOR_EXPIRY_SEC", None, 1.0)?,
        job_deadline: s.seconds("CODA_COORDINATOR_JOB_DEADLINE_SEC", None, 3600.0)?,
        checkpoint_interval: s.seconds("CODA_COORDINATOR_CHECKPOINT_SEC", None, 1.0)?,
        max_connections: s.integer("CODA_COORDINATOR_MAX_CONNECTIONS", None, 1024, 8..=10_000)? as usize,
        lease: s.seconds("CODA_COORDINATOR_LEASE_SEC", None, 15.0)?,
        queue_interval: s.seconds("CODA_COORDINATOR_QUEUE_SEC", None, 1.0)?,
        max_running: s.integer("CODA_COORDINATOR_MAX_RUNNING", None, 8, 1..=1000)? as usize,
        max_waiting: s.integer("CODA_COORDINATOR_MAX_WAITING", None, 256, 0..=100_000)? as usize,
        max_shots: s.integer("CODA_COORDINATOR_MAX_SHOTS", None, 1_000_000, 1..=100_000_000)? as u32,
        // Fewer than the service has connections, so that some are left for other requests.
        max_watchers: s.integer("CODA_COORDINATOR_MAX_WATCHERS", None, 128, 0..=200)? as usize,
        keep_alive: s.seconds("CODA_COORDINATOR_KEEP_ALIVE_SEC", None, 15.0)?,
        open_reads: s.boolean("CODA_API_OPEN_READS", None, false)?,
    })
}

/// What an address is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressForm {
    /// To listen on: an IP address of this machine.
    Local,
    /// Where others reach this host, by number or name.
    Public,
    /// Where a peer is reached, with its id at the end.
    OfPeer,
}

/// Multiaddresses of TCP.
fn addresses(
    s: &mut Source,
    name: &'static str,
    default: &str,
    form: AddressForm,
) -> Result<Vec<Multiaddr>, ConfigError> {
    let allowed = match form {
        AddressForm::Local => "a list of addresses such as /ip4/0.0.0.0/tcp/4001",
        AddressForm::Public => {
            "a list of addresses such as /ip4/192.0.2.1/tcp/4001 or /dns4/lab.example/tcp/4001"
        }
        AddressForm::OfPeer => {
            "a list of addresses such as /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW... (the peer id is needed)"
        }
    };
    s.list(name, default, allowed, |word| {
        let address: Multiaddr = word.parse().ok()?;
        let mut parts = address.iter();
        let host = match parts.next()? {
            Protocol::Ip4(_) | Protocol::Ip6(_) => true,
            Protocol::Dns(_) | Protocol::Dns4(_) | Protocol::Dns6(_) => form != AddressForm::Local,
            _ => false,
        };
        let port = matches!(parts.next()?, Protocol::Tcp(_));
        let id = match parts.next() {
            Some(Protocol::P2p(_)) => true,
            None => false,
            Some(_) => return None,
        };
        (host && port && (id || form != AddressForm::OfPeer) && parts.next().is_none()).then_some(address)
    })
}
