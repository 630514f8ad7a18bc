//! Mutated inputs for every parser that reads what comes from outside: none may panic, take more than a second of CPU time, or use
//! more memory than the process may have ([`MEMORY`]).
//!
//! `CODA_FUZZ_INPUTS` (60,000) sets how many in all, `CODA_SEED` the sequence; the seed is printed.
//! `CODA_FUZZ_LIMIT_MS` (1000) is the time for one input, for a build without optimisation. The inputs
//! start from `tests/corpus`, a folder per parser; an input that once failed is added there. `make fuzz` runs
//! 12 million; `CODA_FUZZ_ONLY=vpn,state` shares them among these parsers alone.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coda_host::cloud::bundle::CurrentValues;
use coda_host::config::Settings;
use coda_host::config::device::DeviceConfig;
use coda_host::config::load::{self, ProcessEnv};
use coda_host::config::settings::Dirs;
use coda_host::config::source::Source;
use coda_host::executor::locate::{self, DeviceFactory, LocateRequest};
use coda_host::executor::python::device::DeviceBasics;
use coda_host::executor::python::files::Disk;
use coda_host::executor::python::interpreter::InterpreterRequest;
use coda_host::executor::python::secrets;
use coda_host::jobs::message::{Message, envelope, fits, work};
use coda_host::jobs::redis::{Names, Redis};
use coda_host::model::{MessageId, Secret, cut, masked_url};
use coda_host::peers::scan::Scanner;
use coda_host::peers::{amplitude, executing, operation, wire};
use coda_host::qasm;
use coda_host::reservation::export;
use coda_host_tests::artifacts::project_file;
use coda_plugin_abi::descriptor::Descriptor;
use coda_plugin_abi::{Device, Program, Target};
use rustix::process::{Resource, Rlimit, setrlimit};

/// SplitMix64, as published by Steele, Lea and Flood (2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

const TOKENS: &[&str] = &[
    "null",
    "true",
    "-1",
    "1e999",
    "NaN",
    "3.5",
    "99999999999999999999",
    "\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\\u0000",
    "\\ud800",
    "\u{feff}",
    "é",
    "🙏",
    "\r\n",
    "\t",
    "0",
    "1",
    "50",
    "51",
    "65535",
    "65536",
    "rx",
    "cz",
    "iswap",
    "cp",
    "cnot",
    "\"gates\"",
    "\"qubits\"",
    "\"params\"",
    "\"measurements\"",
    "://",
    "@",
    "%",
    "?",
    "#",
    "redis://",
    "unix://",
    "executor_factory",
    ".so",
    "- ",
    "&a ",
    "*a",
    "!t ",
    "|",
    "\0",
    "$0",
    "[0:1]",
    "[{0,1}]",
    "[-1]",
    "ctrl @ ",
    "pow(0.5) @ ",
    "controlled ",
    "qft ",
    "input int ",
    "let ",
    "for int i in ",
    " ++ ",
    "reset ",
    "gphase",
];

/// All the memory that the parsers may have, both threads together.
const MEMORY: u64 = 512 << 20;

/// Short texts that are long or deep when they are decoded or expanded, each repeated very often.
const AMPLIFIERS: &[&str] = &[
    "[],",
    "{},",
    "\"\",",
    "0,",
    "[",
    "{\"a\":",
    "\"0\",",
    "{\"fragment_id\":\"abc\",\"service_id\":\"qft\",\"qubits\":[0,1,2,3,4,5]},",
    "{\"fragment_id\":\"abc\",\"service_id\":\"measurement_feedforward\",\"qubits\":[0,0,0,0,0]},",
    "\"a\":1,",
    "((((",
    "1+",
    "h q[0];\n",
    "g q[0];\n",
    "inv @ ",
    "pow(64) @ ",
    "gate g a { h a; h a; }\n",
    "gphase(1);",
    "for int i in [0:9] ",
    "for int i in [0:999] { barrier q; }",
    "for int i in {0, 1} { ",
    "q[0:1]",
    "[0:-1]",
    " ++ q[0]",
    "sin(t)+",
    "barrier q;",
    "n",
];

/// Now and then one of them in great number: up to a megabyte, most often less.
fn amplify(random: &mut Random, input: &mut Vec<u8>) {
    if random.below(20) != 0 {
        return;
    }
    let largest = if random.below(200) == 0 { 1 << 20 } else { 8 << 10 };
    let piece = random.pick(AMPLIFIERS);
    let times = random.below(largest) / piece.len() + 1;
    // Behind the beginning of something, where it has a chance to be read.
    let open: Vec<usize> = input
        .iter()
        .enumerate()
        .filter(|(_, byte)| matches!(byte, b'[' | b'{' | b':' | b';' | b'(' | b'"'))
        .map(|(at, _)| at + 1)
        .collect();
    let at = if open.is_empty() { 0 } else { *random.pick(&open) };
    input.splice(at..at, piece.repeat(times).into_bytes());
}

/// Definitions that double with each level, with modifiers and loops, and calls in loops.
fn doubling(random: &mut Random) -> Vec<u8> {
    const INNER: &[&str] = &[
        "h a;",
        "barrier a;",
        "rx(t+t+t+t+t+t) a;",
        "inv @ x a;",
        "pow(3) @ h a;",
        "pow(0.3) @ y a;",
        "gphase(t);",
        "for int i in [0:9] { rz(i*sin(t)) a; }",
    ];
    const MODIFIERS: &[&str] = &["", "", "inv @ ", "pow(2) @ ", "pow(-1) @ ", "pow(1.5) @ "];
    const LOOPS: &[&str] = &["", "", "for int i in [0:3] ", "for int i in {7, 5} for int j in [i:-1:0] "];
    let levels = 1 + random.below(34);
    let inner = random.pick(INNER).repeat(1 + random.below(20));
    let mut source = format!("qubit q; gate g0(t) a {{ {inner} }}\n");
    for level in 1..levels {
        let call = format!("{}{}g{}(t/2) a; ", random.pick(LOOPS), random.pick(MODIFIERS), level - 1);
        source += &format!("gate g{level}(t) a {{ {} }}\n", call.repeat(1 + random.below(4)));
    }
    let call = format!("{}{}g{}(0.1) q;\n", random.pick(LOOPS), random.pick(MODIFIERS), levels - 1);
    source += &call.repeat(1 + random.below(50));
    source.into_bytes()
}

/// One to four changes of a seed.
fn mutate(random: &mut Random, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = random.pick(seeds).clone();
    for _ in 0..=random.below(4) {
        let at = random.below(input.len() + 1);
        match random.below(8) {
            0 if at < input.len() => input[at] ^= 1 << random.below(8),
            1 if at < input.len() => input[at] = random.below(256) as u8,
            2 => drop(input.splice(at..at, random.pick(TOKENS).bytes())),
            3 => input.truncate(at),
            4 => {
                let end = (at + random.below(12)).min(input.len());
                drop(input.drain(at..end));
            }
            5 => {
                let end = (at + random.below(40)).min(input.len());
                let piece = input[at..end].to_vec();
                let to = random.below(input.len() + 1);
                drop(input.splice(to..to, piece));
            }
            6 => {
                let other = random.pick(seeds);
                let from = random.below(other.len() + 1);
                let piece = other[from..].iter().take(60).copied().collect::<Vec<_>>();
                drop(input.splice(at..at, piece));
            }
            _ => {
                let end = (at + 1 + random.below(6)).min(input.len());
                drop(input.splice(at..end, random.pick(TOKENS).bytes()));
            }
        }
    }
    input
}

/// Shows the input when the parser panics.
struct Shown<'a>(&'static str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let file = std::env::temp_dir().join(format!("coda-fuzz-{}", self.0));
            if std::fs::write(&file, self.1).is_ok() {
                eprintln!("the input is in {}", file.display());
            }
            let shown = &self.1[..self.1.len().min(4096)];
            eprintln!("the parser of '{}' panicked on: {:?}", self.0, String::from_utf8_lossy(shown));
            eprintln!("as bytes: {shown:?}");
        }
    }
}

fn lines(input: &[u8]) -> Vec<&[u8]> {
    input.splitn(8, |b| *b == b'\n').collect()
}

fn ir(input: &[u8]) {
    if let Ok(program) = Program::parse(input) {
        // What is accepted must hold what the type promises.
        let n = program.num_qubits();
        assert!((1..=50).contains(&n));
        assert!(
            program.gates().iter().all(|g| g.q0 < n && g.q1 < n && g.param.is_finite() && g.op().is_some())
        );
        assert!(program.measurements().iter().all(|q| *q < n));
    }
}

fn message(input: &[u8]) {
    let names = ["job_id", "callback_url", "shots", "ir_json", "note"];
    let fields = names.iter().zip(lines(input)).map(|(n, v)| (n.as_bytes().to_vec(), v.to_vec())).collect();
    let message = Message { id: MessageId::ZERO, fields };
    let allowed = |url: &str| {
        let target = coda_host::cloud::http::Target::parse(url).map_err(|e| e.to_string())?;
        Ok(target.origin().to_string().into())
    };
    if let Ok(envelope) = envelope(&message, allowed) {
        assert!(!envelope.job_id.is_empty() && !envelope.job_id.chars().any(char::is_control));
    }
    if let Ok(work) = work(&message) {
        assert!(work.shots >= 1);
        let device = Device::new("d", 5, [Target::Cz]);
        let taken = fits(&work.program, work.shots, &device).is_ok();
        assert!(!taken || work.program.num_qubits() <= 5, "the device takes what fits it");
    }
    assert!(serde_json::from_str::<serde_json::Value>(&message.to_json()).is_ok());
}

fn settings(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.splitn(5, '\n');
    let names = ["CODA_A", "CODA_B", "CODA_C", "CODA_D", "CODA_E"];
    let environment = names.map(|n| (n.to_string(), lines.next().unwrap_or_default().to_string()));
    let mut source = Source::new(environment, HashMap::new());
    let errors = [
        source.boolean("CODA_A", None, true).err(),
        source.integer("CODA_B", None, 1, 1..=65_535).err(),
        source.seconds("CODA_C", None, 1.0).err(),
        source.json_list("CODA_D", None).err(),
        source.json_object("CODA_E").err(),
    ];
    for (error, name) in errors.iter().zip(names) {
        assert!(error.as_ref().is_none_or(|e| e.to_string().contains(name)));
    }
    let (names, second) = (Names::new("q", "w"), std::time::Duration::from_secs(1));
    drop(Redis::new(&Secret::new(text.as_ref()), names, None, second, second));
    assert!(masked_url(&text).len() <= text.len() * 9 + 32);
    assert!(cut(&text, 7).chars().count() <= 7);
    drop(text.parse::<MessageId>());
}

/// Settings as a host without any variable has them.
static DEFAULTS: LazyLock<Settings> = LazyLock::new(|| {
    let env = ProcessEnv { environment: HashMap::new(), cwd: "/".into() };
    let dirs = Dirs { credentials: "/nowhere".into(), state: "/nowhere".into() };
    load::settings(&env, HashMap::new(), dirs, None).expect("the defaults are valid").0
});

fn bundle(input: &[u8]) {
    let d = &*DEFAULTS;
    let held = CurrentValues {
        identity: &d.identity,
        cloud: &d.cloud,
        vpn: &d.vpn,
        private_key: None,
        key_id: None,
    };
    if let Ok(applied) = coda_host::cloud::bundle::apply(input, held) {
        assert!(!applied.identity.qpu_id.is_empty() && !applied.key_id.is_empty());
    }
}

fn vpn(input: &[u8]) {
    drop(coda_host::vpn::profile::check(input));
}

/// What the files of a state directory may hold, without the file system.
fn state(input: &[u8]) {
    let path = Path::new("/nowhere/coda.config");
    drop(coda_host::state::credentials::parse(path, input));
    assert!(coda_host::state::answer_journal::parse(input).count() <= input.len());
    drop(coda_host::state::run_journal::parse(input));
    drop(serde_json::from_slice::<coda_host::daemon::instance_lock::LockHolder>(input));
}

/// What a state directory may hold in place of credentials.
fn stored(input: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let write = |name: &str| {
        coda_host::state::files::write(&dir.path().join(name), input).expect("a file can be written");
    };
    write("coda.config");
    drop(coda_host::state::credentials::load(dir.path()));
    write("coda-private-key");
    drop(coda_host::state::credentials::load(dir.path()));
    let text = String::from_utf8_lossy(input);
    drop(coda_host::cloud::jwt::PrivateKey::parse(&Secret::new(text.as_ref())));
}

fn device(input: &[u8]) {
    let file = tempfile_with(input);
    let config = DeviceConfig::load(Some(file.path()));
    let text = String::from_utf8_lossy(input);
    let value = config.as_ref().ok().and_then(|c| c.executor_factory.clone()).unwrap_or(text.to_string());
    let config = config.as_ref().ok().map(|c| DeviceFactory {
        path: file.path(),
        line: c.factory_line.as_deref(),
        yaml: c.executor_factory.as_deref(),
    });
    let nowhere = Path::new("/nowhere");
    let request = |environment| LocateRequest {
        environment,
        device_config: config,
        dirs: &[],
        cwd: nowhere,
        interpreter: InterpreterRequest {
            setting: None,
            program: None,
            virtual_env: None,
            conda_prefix: None,
            device_config: None,
            search_path: "",
            cwd: nowhere,
        },
        files: &Disk,
    };
    for environment in [Some(value.as_str()), None] {
        assert!(locate::locate(&request(environment)).is_err(), "nothing can be found there");
    }
    drop(secrets::secrets(&text));
    let basics = DeviceBasics::read(&text);
    assert!(basics.registered_qubits.is_none());
    drop(Descriptor::parse(input));
}

fn qasm(input: &[u8]) {
    let inputs = [("theta".to_string(), 0.7), ("n".to_string(), 2.0)].into();
    if let Ok(text) = std::str::from_utf8(input)
        && let Ok(circuit) = qasm::parse_with_inputs(text, &inputs)
    {
        assert!(circuit.qubits <= qasm::MAX_QUBITS && circuit.operations.len() <= qasm::MAX_OPERATIONS);
        let known = |qubit: &u32| *qubit < circuit.qubits;
        assert!(circuit.operations.iter().flat_map(|o| &o.qubits).all(known));
        assert!(circuit.bits.iter().all(|bit| known(&bit.qubit)));
        // What is written is what every peer reads.
        for operation in &circuit.operations {
            let qubits: Vec<i64> = operation.qubits.iter().map(|q| i64::from(*q)).collect();
            let effect = operation::effect(operation.service, &operation.raw_text, &qubits);
            assert!(effect.is_ok(), "{operation:?}: {effect:?}");
        }
    }
}

/// Documents of other peers, whatever they are meant to be.
fn peer(input: &[u8]) {
    let whole = Scanner::default().look(input);
    let mut pieces = Scanner::default();
    let last = (0..=input.len()).map(|n| pieces.look(&input[..n])).last();
    assert_eq!(last, Some(whole), "the end of a document doesn't depend on the pieces");
    drop(wire::read::<wire::PrepareRequest>(input));
    drop(wire::read::<wire::PeerHeartbeat>(input));
    drop(wire::read::<wire::Advertisement>(input));
    if let Ok(answer) = wire::read::<wire::DispatchAnswer<wire::RawPart<'_>>>(input)
        && let Ok(output) = answer.output_payload.read::<wire::ReceivedOutput<'_>>()
        && let Some(list) = output.state.amplitudes()
    {
        drop(amplitude::read_list(list, 6));
    }
    if let Ok(request) = wire::ReceivedDispatch::read(input) {
        std::hint::black_box(executing::claimed_qubits(&request));
        drop(executing::read(&request, 6));
    }
    let text = String::from_utf8_lossy(input);
    for part in text.split(['"', ',']) {
        std::hint::black_box(amplitude::read(part));
        drop(operation::effect("programmable_gate", part, &[0, 1, 2]));
    }
    drop(export::read(input));
}

fn tempfile_with(content: &[u8]) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), content).expect("a file can be written");
    file
}

type Parser = fn(&[u8]);

/// Parser, its folder, and its share of the inputs in percent.
const PARSERS: &[(Parser, &str, u64)] = &[
    (vpn, "vpn", 15),
    (state, "state", 10),
    (stored, "bundle", 1),
    (ir, "ir", 30),
    (message, "message", 19),
    (settings, "settings", 12),
    (bundle, "bundle", 12),
    (device, "device", 1),
    (qasm, "qasm", 10),
    (peer, "peer", 15),
];

/// CPU time of this thread: what an input costs, however busy the machine is.
fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the kernel counts CPU time");
    let nanoseconds = stat.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    Duration::from_nanos(nanoseconds)
}

#[test]
fn no_parser_panics() {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let inputs = number("CODA_FUZZ_INPUTS").unwrap_or(60_000);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64);
    let seed = number("CODA_SEED").unwrap_or(clock);
    println!("CODA_SEED={seed} CODA_FUZZ_INPUTS={inputs}");
    let time = Duration::from_millis(number("CODA_FUZZ_LIMIT_MS").unwrap_or(1000));
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::Data, limit).expect("the memory can be limited");
    let only = std::env::var("CODA_FUZZ_ONLY").ok();
    let chosen: Vec<_> = PARSERS
        .iter()
        .filter(|(_, name, _)| only.as_deref().is_none_or(|only| only.split(',').any(|o| o == *name)))
        .collect();
    let all: u64 = chosen.iter().map(|(.., share)| share).sum();
    assert!(all > 0, "CODA_FUZZ_ONLY names no parser");
    let chosen = &chosen;
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            scope.spawn(move || {
                let mut random = Random(seed.wrapping_add(thread));
                for (parse, name, share) in chosen {
                    let folder = project_file("tests/corpus").join(name);
                    let seeds: Vec<Vec<u8>> = std::fs::read_dir(&folder)
                        .expect("the corpus")
                        .map(|e| std::fs::read(e.expect("an entry").path()).expect("a file"))
                        .collect();
                    for seed in &seeds {
                        let _shown = Shown(name, seed);
                        parse(seed);
                    }
                    let (count, mut slowest) = (inputs * share / all / 2, Duration::ZERO);
                    for _ in 0..count {
                        let mut input = mutate(&mut random, &seeds);
                        amplify(&mut random, &mut input);
                        if *name == "qasm" && random.below(50) == 0 {
                            input = doubling(&mut random);
                        }
                        let _shown = Shown(name, &input);
                        let start = cpu_time();
                        parse(&input);
                        slowest = slowest.max(cpu_time().saturating_sub(start));
                        assert!(slowest < time, "{name}: {slowest:?} for one input");
                    }
                    println!("{name}: {count} inputs of one of two threads, slowest {slowest:?}");
                }
            });
        }
    });
}
