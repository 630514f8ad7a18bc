//! Pure: the hosts that `NO_PROXY` exempts, in the forms that curl, Go and Python take.
//!
//! Entries are separated by commas or blanks: `*`, a name (which means the names below it too), `.name`, `*.name`, an
//! address with or without brackets, a network (`10.0.0.0/8`), and each but the network with a port behind it.

use core::net::IpAddr;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Exempt {
    Everything,
    Name { name: String, below_only: bool, port: Option<u16> },
    Address { address: IpAddr, port: Option<u16> },
    Network { address: IpAddr, bits: u8 },
}

/// The hosts that are reached without a proxy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NoProxy(Vec<Exempt>);

impl NoProxy {
    /// Reads the variable. What can't be read is returned too: it has no effect, which the operator is to know.
    pub(super) fn read(text: &str) -> (NoProxy, Vec<String>) {
        let mut ignored = Vec::new();
        let entries = text.split([',', ' ', '\t', '\n', '\r']).filter(|entry| !entry.is_empty());
        let read = entries.filter_map(|entry| {
            let exempt = Exempt::read(entry);
            if exempt.is_none() {
                ignored.push(shown(entry));
            }
            exempt
        });
        (NoProxy(read.collect()), ignored)
    }

    /// Whether this host is reached without a proxy.
    pub(super) fn exempts(&self, host: &str, port: Option<u16>) -> bool {
        let host = unbracketed(host).trim_end_matches('.').to_ascii_lowercase();
        let address = host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        let same_port = |own: &Option<u16>| own.is_none() || *own == port;
        self.0.iter().any(|exempt| match exempt {
            Exempt::Everything => true,
            Exempt::Name { name, below_only, port } => {
                let below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
                same_port(port) && (below || (!below_only && host == *name))
            }
            Exempt::Address { address: own, port } => same_port(port) && address == Some(*own),
            Exempt::Network { address: network, bits } => {
                address.is_some_and(|address| is_within(address, *network, *bits))
            }
        })
    }
}

impl Exempt {
    fn read(entry: &str) -> Option<Exempt> {
        if entry == "*" {
            return Some(Exempt::Everything);
        }
        if let Some((address, bits)) = entry.split_once('/') {
            let address = unbracketed(address).parse::<IpAddr>().ok()?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.parse::<u8>().ok().filter(|bits| *bits <= most)?;
            return Some(Exempt::Network { address, bits });
        }
        if let Ok(address) = unbracketed(entry).parse::<IpAddr>() {
            return Some(Exempt::Address { address: address.to_canonical(), port: None });
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse::<u16>().ok()?)),
            None => (entry, None),
        };
        if let Ok(address) = unbracketed(host).parse::<IpAddr>() {
            return Some(Exempt::Address { address: address.to_canonical(), port });
        }
        let below_only = host.starts_with("*.");
        let name = host.trim_start_matches('*').trim_matches('.').to_ascii_lowercase();
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') || !c.is_ascii();
        (!name.is_empty() && name.chars().all(is_name)).then_some(Exempt::Name { name, below_only, port })
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            (u32::from(address) ^ u32::from(network)) & mask == 0
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            (u128::from(address) ^ u128::from(network)) & mask == 0
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// An entry for the log. A URL may have got here with its password.
fn shown(entry: &str) -> String {
    match entry.contains('@') {
        true => "*** (not a host)".into(),
        false => crate::model::cut(entry, 80).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_form_is_taken() {
        for (text, exempt, others) in [
            ("*", &["a.example:1", "10.0.0.1:1"][..], &[][..]),
            (
                "coda.example",
                &["coda.example:443", "a.coda.example:1", "CODA.example.:1"],
                &["xcoda.example:1"],
            ),
            (".coda.example", &["coda.example:443", "a.coda.example:1"], &["coda.example.org:1"]),
            ("*.coda.example", &["a.coda.example:1"], &["coda.example:1"]),
            ("coda.example:8443", &["coda.example:8443", "a.coda.example:8443"], &["coda.example:443"]),
            ("10.1.2.3", &["10.1.2.3:1", "[::ffff:10.1.2.3]:1"], &["10.1.2.4:1"]),
            ("10.1.2.3:80", &["10.1.2.3:80"], &["10.1.2.3:81"]),
            ("10.0.0.0/8", &["10.255.0.1:1"], &["11.0.0.1:1", "a10.example:1"]),
            ("0.0.0.0/0", &["192.0.2.1:1"], &["[::1]:1", "name:1"]),
            ("[2001:db8::1]", &["[2001:db8::1]:443"], &["[2001:db8::2]:443"]),
            ("2001:db8::1", &["[2001:db8::1]:443"], &[]),
            ("[2001:db8::1]:443", &["[2001:db8::1]:443"], &["[2001:db8::1]:80"]),
            ("2001:db8::/32", &["[2001:db8:5::1]:1"], &["[2001:db9::1]:1"]),
            (
                "a.example b.example,\tc.example",
                &["a.example:1", "b.example:1", "c.example:1"],
                &["d.example:1"],
            ),
        ] {
            let (no_proxy, ignored) = NoProxy::read(text);
            assert_eq!(ignored, Vec::<String>::new(), "{text}");
            let is_exempt = |target: &str| {
                let (host, port) = target.rsplit_once(':').unwrap();
                no_proxy.exempts(host, port.parse().ok())
            };
            for target in exempt {
                assert!(is_exempt(target), "{text} exempts {target}");
            }
            for target in others {
                assert!(!is_exempt(target), "{text} does not exempt {target}");
            }
        }
    }

    #[test]
    fn what_can_not_be_read_is_named_without_a_secret() {
        let (no_proxy, ignored) =
            NoProxy::read("10.0.0.0/33, http://x/, a.example:http, http://u:hunter2@p, **, ok.example");
        assert_eq!(ignored, ["10.0.0.0/33", "http://x/", "a.example:http", "*** (not a host)", "**"]);
        assert!(no_proxy.exempts("ok.example", None));
        assert!(!NoProxy::default().exempts("ok.example", None));
    }
}
