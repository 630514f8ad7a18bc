//! What a VPN profile may say: one table of directives, each with its reason and the arguments it takes.
//!
//! Pure. A profile comes from the network and OpenVPN runs as root, so the table holds what a client exported
//! by a cloud VPN endpoint needs, and nothing that starts a program, loads a library, names a file of this
//! machine, opens a port or asks a person. What is not in the table is refused.

/// The form of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One of these words.
    Word(&'static [&'static str]),
    /// Decimal, in this range.
    Number(u32, u32),
    /// A number in this range, or this word.
    NumberOr(u32, u32, &'static str),
    /// A host name or address.
    Host,
    /// `tun`, or `tun` and a number.
    TunDevice,
    /// Names of algorithms: letters, digits, `-_:?@.` and `+=`.
    Algorithms,
    /// Any text.
    Text,
}

/// One directive of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Directive {
    pub name: &'static str,
    /// Why a profile may say it.
    pub why: &'static str,
    /// The arguments in order; those from `required` on may be left out.
    pub arguments: &'static [Shape],
    pub required: usize,
    /// Whether it may stand in a `<connection>` block too.
    pub in_connection: bool,
}

/// Blocks whose content OpenVPN takes instead of a file.
pub const INLINE: &[&str] = &["ca", "cert", "key", "tls-auth", "tls-crypt"];

const PROTOCOL: Shape =
    Shape::Word(&["udp", "udp4", "udp6", "tcp", "tcp4", "tcp6", "tcp-client", "tcp4-client", "tcp6-client"]);
const SECONDS: Shape = Shape::Number(0, 31_536_000);
const COUNT: Shape = Shape::Number(0, 1_000_000);
const PORT: Shape = Shape::Number(1, 65_535);
const BYTES: Shape = Shape::Number(0, 1 << 30);
const RETRY: Shape = Shape::NumberOr(0, 31_536_000, "infinite");
const TLS_VERSION: Shape = Shape::Word(&["1.0", "1.1", "1.2", "1.3"]);

const fn plain(name: &'static str, arguments: &'static [Shape], why: &'static str) -> Directive {
    Directive { name, why, arguments, required: arguments.len(), in_connection: false }
}

/// Its arguments from the `required`th on may be left out.
const fn open(
    name: &'static str,
    arguments: &'static [Shape],
    required: usize,
    why: &'static str,
) -> Directive {
    Directive { name, why, arguments, required, in_connection: false }
}

/// May stand in a `<connection>` block.
const fn link(
    name: &'static str,
    arguments: &'static [Shape],
    required: usize,
    why: &'static str,
) -> Directive {
    Directive { name, why, arguments, required, in_connection: true }
}

/// The table.
pub const ALLOWED: &[Directive] = &[
    // Whom to call, and how.
    plain("client", &[], "makes it a client that takes addresses and routes from the server"),
    plain("tls-client", &[], "half of what client means"),
    plain("pull", &[], "the other half of what client means"),
    plain("dev", &[Shape::TunDevice], "the tunnel's interface"),
    plain("dev-type", &[Shape::Word(&["tun"])], "the kind of the tunnel's interface"),
    plain("topology", &[Shape::Word(&["net30", "p2p", "subnet"])], "how addresses are given out"),
    link("proto", &[PROTOCOL], 1, "UDP or TCP"),
    link("remote", &[Shape::Host, PORT, PROTOCOL], 1, "the server"),
    link("port", &[PORT], 1, "the server's port, when remote has none"),
    link("rport", &[PORT], 1, "the server's port, when remote has none"),
    plain("remote-random", &[], "tries several servers in any order"),
    plain("remote-random-hostname", &[], "cloud endpoints answer to any first label"),
    plain("resolv-retry", &[RETRY], "how long a name that doesn't resolve is tried"),
    link("nobind", &[], 0, "takes any local port"),
    link("float", &[], 0, "the server's address may change"),
    // Who the server is.
    plain("remote-cert-tls", &[Shape::Word(&["server"])], "the server's certificate must be a server's"),
    open(
        "verify-x509-name",
        &[Shape::Text, Shape::Word(&["subject", "name", "name-prefix"])],
        1,
        "the server's certificate must carry this name",
    ),
    // How it is encrypted.
    plain("cipher", &[Shape::Algorithms], "data channel"),
    plain("data-ciphers", &[Shape::Algorithms], "data channel"),
    plain("ncp-ciphers", &[Shape::Algorithms], "the old name of data-ciphers"),
    plain("data-ciphers-fallback", &[Shape::Algorithms], "data channel"),
    plain("auth", &[Shape::Algorithms], "data channel"),
    plain("tls-cipher", &[Shape::Algorithms], "control channel"),
    plain("tls-ciphersuites", &[Shape::Algorithms], "control channel"),
    plain("tls-groups", &[Shape::Algorithms], "control channel"),
    plain(
        "tls-cert-profile",
        &[Shape::Word(&["legacy", "preferred", "suiteb"])],
        "which certificates are strong enough",
    ),
    open("tls-version-min", &[TLS_VERSION, Shape::Word(&["or-highest"])], 1, "control channel"),
    plain("tls-version-max", &[TLS_VERSION], "control channel"),
    plain("key-direction", &[Shape::Number(0, 1)], "which half of the tls-auth key is whose"),
    plain("auth-nocache", &[], "forgets passwords, of which there are none"),
    plain(
        "auth-retry",
        &[Shape::Word(&["none", "nointeract"])],
        "what follows a refusal; no interactive question",
    ),
    // When keys are renegotiated and connections given up.
    open("reneg-sec", &[SECONDS, SECONDS], 1, "how often keys are renegotiated"),
    plain("reneg-bytes", &[BYTES], "how often keys are renegotiated"),
    plain("reneg-pkts", &[BYTES], "how often keys are renegotiated"),
    plain("hand-window", &[SECONDS], "how long a handshake may take"),
    plain("tls-timeout", &[SECONDS], "how long a control packet is waited for"),
    plain("keepalive", &[SECONDS, SECONDS], "notices a dead connection"),
    plain("ping", &[SECONDS], "notices a dead connection"),
    plain("ping-restart", &[SECONDS], "notices a dead connection"),
    plain("ping-exit", &[SECONDS], "notices a dead connection"),
    plain("ping-timer-rem", &[], "notices a dead connection"),
    link("connect-timeout", &[SECONDS], 1, "when a server is given up"),
    link("server-poll-timeout", &[SECONDS], 1, "the old name of connect-timeout"),
    link("connect-retry", &[SECONDS, SECONDS], 1, "pauses between tries"),
    link("connect-retry-max", &[COUNT], 1, "how often a server is tried"),
    link("explicit-exit-notify", &[Shape::Number(0, 10)], 0, "notifies the server of the end"),
    open("replay-window", &[COUNT, SECONDS], 1, "how late packets may come"),
    // What survives a restart of the connection.
    plain("persist-key", &[], "keeps keys over a reconnect"),
    plain("persist-tun", &[], "keeps the interface over a reconnect"),
    // Sizes of packets and buffers.
    link("tun-mtu", &[Shape::Number(68, 65_535)], 1, "size of packets"),
    link("mssfix", &[Shape::Number(0, 65_535), Shape::Word(&["mtu", "fixed"])], 0, "size of packets"),
    link("fragment", &[Shape::Number(68, 65_535), Shape::Word(&["mtu"])], 1, "size of packets"),
    plain("sndbuf", &[BYTES], "size of buffers"),
    plain("rcvbuf", &[BYTES], "size of buffers"),
    plain("fast-io", &[], "fewer system calls"),
    plain("disable-dco", &[], "does without the kernel module"),
    // Compression, which only may be switched off.
    plain("comp-lzo", &[Shape::Word(&["no"])], "switches compression off"),
    plain("compress", &[Shape::Word(&["stub", "stub-v2"])], "framing without compression"),
    plain("allow-compression", &[Shape::Word(&["no"])], "switches compression off"),
    // What the server may say.
    plain("route-nopull", &[], "takes no routes from the server"),
    plain(
        "pull-filter",
        &[Shape::Word(&["accept", "ignore", "reject"]), Shape::Text],
        "takes less from the server",
    ),
    // What is logged. From 7 on keys would be.
    plain("verb", &[Shape::Number(0, 6)], "how much is logged"),
    plain("mute", &[COUNT], "how much is logged"),
    plain("mute-replay-warnings", &[], "how much is logged"),
];

/// The directive of this name.
pub fn find(name: &str) -> Option<&'static Directive> {
    ALLOWED.iter().find(|d| d.name == name)
}

impl Directive {
    /// Whether these arguments are allowed.
    pub fn takes(&self, arguments: &[String]) -> bool {
        (self.required..=self.arguments.len()).contains(&arguments.len())
            && self.arguments.iter().zip(arguments).all(|(shape, text)| shape.fits(text))
    }

    /// Returns the usage of the directive, for an error.
    pub fn usage(&self) -> String {
        let mut usage = self.name.to_owned();
        for (i, shape) in self.arguments.iter().enumerate() {
            let shown = shape.shown();
            usage.push(' ');
            usage.push_str(&if i < self.required { shown } else { format!("[{shown}]") });
        }
        usage
    }
}

impl Shape {
    fn fits(self, text: &str) -> bool {
        match self {
            Shape::Word(words) => words.contains(&text),
            Shape::NumberOr(low, high, word) => text == word || Shape::Number(low, high).fits(text),
            Shape::Number(low, high) => {
                (1..=10).contains(&text.len())
                    && text.bytes().all(|b| b.is_ascii_digit())
                    && text.parse().is_ok_and(|n: u32| (low..=high).contains(&n))
            }
            Shape::Host => {
                (1..=253).contains(&text.len())
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:-%".contains(&b))
                    && !text.starts_with('-')
            }
            Shape::TunDevice => text
                .strip_prefix("tun")
                .is_some_and(|n| n.len() <= 4 && n.bytes().all(|b| b.is_ascii_digit())),
            Shape::Algorithms => {
                !text.is_empty()
                    && !text.starts_with('-')
                    && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_:?@.+=".contains(&b))
            }
            Shape::Text => !text.is_empty(),
        }
    }

    fn shown(self) -> String {
        match self {
            Shape::Word(words) => words.join("|"),
            Shape::Number(low, high) => format!("<{low} to {high}>"),
            Shape::NumberOr(low, high, word) => format!("{word}|<{low} to {high}>"),
            Shape::Host => "<host>".into(),
            Shape::TunDevice => "tun|tun<number>".into(),
            Shape::Algorithms => "<algorithms>".into(),
            Shape::Text => "<text>".into(),
        }
    }
}
