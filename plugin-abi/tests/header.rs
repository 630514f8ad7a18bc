//! `include/coda_executor.h` says the same as `raw.rs` and `descriptor.rs`, as C99 and as C++17.
//!
//! A generated program prints sizes, offsets and constants as the C compiler sees them; a small executor
//! with the descriptor macro is compiled to a shared library, whose section and functions are read back.

use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use coda_plugin_abi::descriptor::{Binding, Descriptor, Isolation, Kind, RawDescriptor, SECTION};
use coda_plugin_abi::raw::*;
use coda_plugin_abi::{ErrorCode, GateKind, LogLevel, Stage, Target, version};
use object::{Object, ObjectSection, ObjectSymbol};

/// What is expected of the C side: an expression in C and its value in Rust.
struct Fact {
    c: String,
    value: u64,
}

macro_rules! layout {
    ($facts:ident: $($c:literal = $rust:ty { $($field:ident),* $(,)? })*) => { $(
        $facts.push(Fact { c: format!("sizeof({})", $c), value: size_of::<$rust>() as u64 });
        $($facts.push(Fact {
            c: format!("offsetof({}, {})", $c, stringify!($field)),
            value: offset_of!($rust, $field) as u64,
        });)*
    )* };
}

fn facts() -> Vec<Fact> {
    let mut facts = Vec::new();
    layout! { facts:
        "coda_str" = RawStr { ptr, len }
        "coda_gate" = Gate { kind, q0, q1, reserved, param }
        "coda_program" = RawProgram {
            size, target, num_qubits, optimization_level, gates, gates_len, measurements, measurements_len,
            source_hash, compiled_at, compiler_version,
        }
        "coda_job" = RawJob { size, job_id, program, shots, reserved, host }
        "coda_host" = RawHost { size, ctx, log_enabled, log, progress, is_cancelled, gauge }
        "coda_amplitude" = Amplitude { re, im }
        "coda_operation" = Operation { controls, target, reserved, matrix }
        "coda_evolution" = RawEvolution {
            size, job_id, num_qubits, reserved, amplitudes, amplitudes_len, operations, operations_len, host,
        }
        "coda_count" = RawCount { bits, count }
        "coda_outcome" = RawOutcome {
            size, counts, counts_len, execution_time_ms, shots_completed, has_execution_time, has_shots_completed,
        }
        "coda_error" = RawError { size, code, stage, retryable, reserved, text }
        "coda_edge" = RawEdge { a, b }
        "coda_device" = RawDevice {
            size, name, num_qubits, slots, max_shots, connectivity, hooks, reserved, targets, targets_len, edges,
            edges_len, evolve_qubits, reserved2,
        }
        "coda_reply" = RawReply { size, ctx, outcome, error, device, amplitudes, schema }
        "coda_create" = RawCreate {
            size, entry, config_path, config_text, native_gate_set, num_qubits, reserved, host,
        }
        "coda_executor_api" = RawApi {
            size, api_major, api_minor, reserved, create, device, run, batch_run, cancel, shutdown, destroy,
            evolve_state, config_schema,
        }
        "coda_descriptor" = RawDescriptor {
            magic, size, api_major, api_minor, binding, kind, unwinds, isolation, reserved, vendor, name, version, target,
            entries,
        }
    }
    let mut constant = |c: String, value: u64| facts.push(Fact { c, value });
    constant("CODA_API_MAJOR".into(), version::MAJOR.into());
    constant("CODA_API_MINOR".into(), version::MINOR.into());
    constant("offsetof(coda_descriptor, compiler)".into(), offset_of!(RawDescriptor, rustc) as u64);
    constant("CODA_WHOLE_CALL".into(), WHOLE_CALL as u64);
    for gate in GateKind::ALL {
        constant(format!("CODA_GATE_{}", gate.name().to_uppercase()), gate.code().into());
    }
    for target in Target::ALL {
        constant(format!("CODA_TARGET_{}", target.name().to_uppercase()), target.code().into());
    }
    for kind in [Kind::Hardware, Kind::Simulator, Kind::Test] {
        constant(format!("CODA_KIND_{}", kind.name().to_uppercase()), kind.code().into());
    }
    for isolation in [Isolation::Configured, Isolation::Required] {
        constant(format!("CODA_ISOLATION_{}", isolation.name().to_uppercase()), isolation.code().into());
    }
    use ErrorCode as E;
    for code in [
        E::Other,
        E::Config,
        E::Unsupported,
        E::Resources,
        E::Hardware,
        E::Calibration,
        E::Timeout,
        E::Cancelled,
        E::Panic,
        E::Contract,
    ] {
        constant(format!("CODA_ERROR_{}", code.name().to_uppercase()), code.code().into());
    }
    use Stage as S;
    for stage in [S::Other, S::Create, S::Describe, S::Compile, S::Run, S::Readout, S::Cancel, S::Shutdown] {
        constant(format!("CODA_STAGE_{}", stage.name().to_uppercase()), stage.code().into());
    }
    use LogLevel as L;
    for (name, level) in
        [("ERROR", L::Error), ("WARN", L::Warn), ("INFO", L::Info), ("DEBUG", L::Debug), ("TRACE", L::Trace)]
    {
        constant(format!("CODA_LOG_{name}"), level.code().into());
    }
    constant("CODA_CONNECTIVITY_UNKNOWN".into(), connectivity::UNKNOWN.into());
    constant("CODA_CONNECTIVITY_UNDIRECTED".into(), connectivity::UNDIRECTED.into());
    constant("CODA_CONNECTIVITY_DIRECTED".into(), connectivity::DIRECTED.into());
    constant("CODA_HOOK_BATCH_RUN".into(), hook::BATCH_RUN.into());
    constant("CODA_HOOK_CANCEL".into(), hook::CANCEL.into());
    constant("CODA_HOOK_EVOLVE_STATE".into(), hook::EVOLVE_STATE.into());
    facts
}

#[derive(Clone, Copy)]
enum Language {
    C,
    Cpp,
}

impl Language {
    const ALL: [Language; 2] = [Language::C, Language::Cpp];

    fn compiler(self) -> String {
        let (variable, usual) = match self {
            Language::C => ("CC", "cc"),
            Language::Cpp => ("CXX", "c++"),
        };
        std::env::var(variable).unwrap_or_else(|_| usual.into())
    }

    /// Linking Rust takes a C compiler, so that one must be there; a C++ compiler need not.
    fn is_there(self) -> bool {
        match self {
            Language::C => true,
            Language::Cpp => Command::new(self.compiler()).arg("--version").output().is_ok(),
        }
    }

    /// Compiles `source` and returns the compiler's complaints, if any.
    fn compile(self, folder: &Path, source: &str, output: &Path, more: &[&str]) -> Result<(), String> {
        let (file, standard) = match self {
            Language::C => (folder.join("source.c"), "-std=c99"),
            Language::Cpp => (folder.join("source.cpp"), "-std=c++17"),
        };
        std::fs::write(&file, source).unwrap();
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let done = Command::new(self.compiler())
            .args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-pedantic-errors", "-I"])
            .arg(include)
            .args(more)
            .arg("-o")
            .arg(output)
            .arg(&file)
            .output()
            .expect("the C compiler that also links Rust (set CC to another)");
        if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
    }
}

#[test]
fn sizes_offsets_and_constants_agree() {
    let facts = facts();
    let mut source = String::from("#include \"coda_executor.h\"\n#include <stdio.h>\nint main(void) {\n");
    for fact in &facts {
        source.push_str(&format!("    printf(\"%llu\\n\", (unsigned long long)({}));\n", fact.c));
    }
    source.push_str("    return 0;\n}\n");
    for language in Language::ALL.into_iter().filter(|l| l.is_there()) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("facts");
        language.compile(folder.path(), &source, &program, &[]).unwrap();
        let printed = Command::new(&program).output().unwrap();
        let printed = String::from_utf8(printed.stdout).unwrap();
        let values: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(values.len(), facts.len());
        for (fact, value) in facts.iter().zip(values) {
            assert_eq!(value, fact.value, "{} in the header is {value}, in Rust {}", fact.c, fact.value);
        }
    }
}

/// A complete executor: one that measures zeros.
const EXECUTOR: &str = r#"
#include "coda_executor.h"

CODA_EXECUTOR_DESCRIPTOR(CODA_KIND_TEST, "Acme", "acme-zeros", "1.2.3", "create_executor,other")

static int only_one;

static void *create(const coda_create *request, const coda_reply *reply) {
    if (request->num_qubits == 0) {
        coda_error error = {sizeof(coda_error), CODA_ERROR_CONFIG, CODA_STAGE_CREATE, 0, 0, {0, 0}};
        error.text = coda_str_of("no qubits");
        reply->error(reply->ctx, CODA_WHOLE_CALL, &error);
        return NULL;
    }
    return &only_one;
}

static void device(void *self, const coda_reply *reply) {
    const uint16_t targets[] = {CODA_TARGET_CZ};
    coda_device device = {sizeof(coda_device), {0, 0}, 3, 1, 0, CODA_CONNECTIVITY_UNKNOWN, 0, 0, targets, 1, NULL, 0, 0, 0};
    (void)self;
    device.name = coda_str_of("acme-zeros");
    reply->device(reply->ctx, &device);
}

static void run(void *self, const coda_job *job, const coda_reply *reply) {
    char zeros[64];
    coda_count count = {{0, 0}, 0};
    coda_outcome outcome = {sizeof(coda_outcome), 0, 1, 0.0, 0, 0, 0};
    (void)self;
    memset(zeros, '0', sizeof zeros);
    count.bits.ptr = zeros;
    count.bits.len = job->program->measurements_len < sizeof zeros ? job->program->measurements_len : sizeof zeros;
    count.count = job->shots;
    outcome.counts = &count;
    reply->outcome(reply->ctx, 0, &outcome);
}

static void destroy(void *self, const coda_reply *reply) {
    (void)self;
    (void)reply;
}

static const coda_executor_api api = {
    sizeof(coda_executor_api), CODA_API_MAJOR, CODA_API_MINOR, 0, create, device, run, NULL, NULL, NULL, destroy, NULL, NULL};

const coda_executor_api *coda_executor_entry(void) {
    return &api;
}
"#;

fn library(language: Language, folder: &Path, source: &str) -> PathBuf {
    let path = folder.join("acme.so");
    let options =
        ["-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-ffunction-sections", "-Wl,--gc-sections"];
    language.compile(folder, source, &path, &options).unwrap();
    path
}

fn descriptor(file: &object::File<'_>) -> Descriptor {
    let section = file.section_by_name(SECTION).expect("the section in the file");
    Descriptor::parse(section.data().unwrap()).unwrap()
}

#[test]
fn the_descriptor_macro_writes_what_is_read() {
    for language in Language::ALL.into_iter().filter(|l| l.is_there()) {
        let folder = tempfile::tempdir().unwrap();
        let bytes = std::fs::read(library(language, folder.path(), EXECUTOR)).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let d = descriptor(&file);
        assert_eq!((d.api_major, d.api_minor), (version::MAJOR, version::MINOR));
        assert_eq!((d.binding, d.kind, d.unwinds), (Binding::C, Kind::Test, true));
        assert_eq!((d.vendor.as_str(), d.name.as_str(), d.version.as_str()), ("Acme", "acme-zeros", "1.2.3"));
        assert_eq!(d.isolation, Isolation::Configured);
        assert_eq!(d.entries, ["create_executor", "other"]);
        assert!(!d.rustc.is_empty(), "the compiler");
        let exported: Vec<&str> =
            file.dynamic_symbols().filter(|s| s.is_definition()).filter_map(|s| s.name().ok()).collect();
        assert!(exported.contains(&C_ENTRY_SYMBOL), "{exported:?}");
    }
}

#[test]
fn a_plugin_states_that_it_needs_a_process_of_its_own() {
    for language in Language::ALL.into_iter().filter(|l| l.is_there()) {
        let folder = tempfile::tempdir().unwrap();
        let source = EXECUTOR.replace("CODA_EXECUTOR_DESCRIPTOR(", "CODA_EXECUTOR_DESCRIPTOR_ISOLATED(");
        let bytes = std::fs::read(library(language, folder.path(), &source)).unwrap();
        let d = descriptor(&object::File::parse(&*bytes).unwrap());
        assert_eq!((d.isolation, d.kind, d.name.as_str()), (Isolation::Required, Kind::Test, "acme-zeros"));
    }
}

#[test]
fn a_text_that_is_too_long_does_not_compile() {
    let long = "x".repeat(65);
    let source = format!(
        "#include \"coda_executor.h\"\nCODA_EXECUTOR_DESCRIPTOR(CODA_KIND_TEST, \"{long}\", \"n\", \"1\", \"e\")\n"
    );
    for language in Language::ALL.into_iter().filter(|l| l.is_there()) {
        let folder = tempfile::tempdir().unwrap();
        let answer = language.compile(folder.path(), &source, &folder.path().join("out.o"), &["-c"]);
        assert!(answer.is_err_and(|complaint| complaint.contains("too long")));
    }
}
