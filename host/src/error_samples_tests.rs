//! One value of each kind of each error type.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use coda_plugin_abi::descriptor::DescriptorError;
use coda_plugin_abi::version::Verdict;
use coda_plugin_abi::{Error, ErrorCode};

use crate::api::BindError;
use crate::app::AppError;
use crate::availability::calendar::CalendarError;
use crate::availability::calendar_file::CalendarFileError;
use crate::availability::pause::PauseError;
use crate::cli::circuit_file::CircuitFileError;
use crate::cli::daemonize::DaemonizeError;
use crate::cli::dev::{DevError, LogLines};
use crate::cli::jobs::JobsError;
use crate::cli::kit::CliError;
use crate::cli::logs::LogsError;
use crate::cli::plugin::PluginError;
use crate::cli::plugin::check::PluginCheckError;
use crate::cli::plugin::new::PluginNewError;
use crate::cli::record_window::WindowError;
use crate::cli::results::ResultsError;
use crate::cli::run::RunError;
use crate::cli::running_host::RunningHostError;
use crate::cli::submit::DiscoveryError;
use crate::cloud::bundle::BundleError;
use crate::cloud::connect::{ConnectError, PresentedCredential};
use crate::cloud::error::{Cause, HttpError};
use crate::cloud::fingerprint::FingerprintError;
use crate::cloud::jwt::KeyError;
use crate::cloud::provision::{ProvisionError, TokenSpent};
use crate::config::ConfigError;
use crate::config::source::SettingOrigin;
use crate::daemon::conflicts::ConflictError;
use crate::daemon::instance_lock::InstanceLockError;
use crate::daemon::unit::UnitError;
use crate::dev::client::DevClientError;
use crate::dev::cloud::DevCloudError;
use crate::dev::host::DevHostError;
use crate::dev::redis::DevRedisError;
use crate::executor::account::AccountError;
use crate::executor::elf::ElfError;
use crate::executor::loader::LoadError;
use crate::executor::locate::{FactorySource, LocateError};
use crate::executor::{ReloadError, StartError};
use crate::jobs::redis::{RedisFailure, RedisSettingsError};
use crate::peers::identity::IdentityError;
use crate::peers::swarm::NetworkError;
use crate::reservation::log::{LogError, LogFailure};
use crate::results::webhook::PolicyError;
use crate::state::credentials::CredentialsError;
use crate::state::db::StoreError;
use crate::state::files::FileError;
use crate::state::sqlite_actor::SqliteFailure;
use crate::supervise::TaskEnded;
use crate::sys::Account;
use crate::vpn::command::CommandError;
use crate::vpn::guard::PreflightError;
use crate::vpn::openvpn::{LogTail, OpenvpnError};
use crate::vpn::profile::{ProfileError, ProfileProblem};

use super::Findings;

pub(super) fn path() -> PathBuf {
    PathBuf::from("/dir/file")
}

fn io_error() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
}

fn json_error() -> serde_json::Error {
    serde_json::from_str::<u8>("x").unwrap_err()
}

fn redis_error() -> redis::RedisError {
    redis::RedisError::from((redis::ErrorKind::Io, "no answer"))
}

pub(super) async fn join_error() -> tokio::task::JoinError {
    let task = tokio::spawn(std::future::pending::<()>());
    task.abort();
    task.await.unwrap_err()
}

pub(super) fn text() -> String {
    "text".into()
}

pub(super) fn of_the_command_line(found: &mut Findings, ended: tokio::task::JoinError) {
    found.of_enum(vec![
        CliError::Output(io_error()),
        CliError::ManualPages { dir: path(), source: io_error() },
        CliError::Runtime(io_error()),
        CliError::Init(io_error()),
        CliError::TemporaryDirectory(io_error()),
        CliError::TaskEnded { task: "the host", source: ended },
        CliError::Interrupted { effect: "no longer waiting" },
        CliError::Worker(io_error()),
        CliError::BlockSignals(io_error()),
        CliError::WorkingDirectory(io_error()),
        CliError::Secrets(json_error()),
        CliError::NotText { name: text() },
        CliError::LogFormat { value: text() },
        CliError::Owner { dir: path(), source: io_error() },
    ]);
    found.of_struct(&CircuitFileError::new(&path(), "it is empty"));
    found.of_struct(&RunError { reason: text() });
    found.of_struct(&LogsError { path: path(), source: io_error() });
    found.of_enum(vec![RunningHostError::Signal { pid: 1, source: io_error() }]);
    found.of_enum(vec![
        DiscoveryError::NoSession { path: path() },
        DiscoveryError::Silent { path: path(), pid: 1, url: text() },
    ]);
    found.of_enum(vec![
        DaemonizeError::Log { path: path(), source: io_error() },
        DaemonizeError::Socket(io_error()),
        DaemonizeError::Start(io_error()),
    ]);
    found.of_enum(vec![
        DevError::Device(json_error()),
        DevError::NotReady { source: LogLines(text()) },
        DevError::MemberEnded { name: text(), status: ExitStatus::from_raw(256), source: LogLines(text()) },
        DevError::Redis(redis_error()),
        DevError::Directory(io_error()),
        DevError::Port(io_error()),
    ]);
    found.of_enum(vec![
        JobsError::NoCredentials,
        JobsError::OwnConsumer { name: text() },
        JobsError::UnknownConsumer { name: text() },
        JobsError::Active { name: text(), idle: Duration::ZERO },
        JobsError::IdleUnknown { name: text() },
        JobsError::Redis(RedisFailure::Down(text())),
    ]);
    found.of_enum(vec![WindowError::Reversed]);
    found.of_enum(vec![
        ResultsError::DeadLetter { id: text() },
        ResultsError::SentByHost { id: text() },
        ResultsError::NotKept { id: text() },
        ResultsError::Ambiguous { id: text() },
        ResultsError::NoKey,
        ResultsError::NotAccepted { job_id: text(), reason: text() },
    ]);
    found.of_enum(vec![
        PluginError::Path { path: path(), source: io_error() },
        PluginError::SchemaFailed { path: path(), reason: text() },
        PluginError::NoSchema { path: path() },
        PluginError::SchemaSyntax { path: path(), source: json_error() },
    ]);
    found.of_enum(vec![
        PluginCheckError::NoCase { only: text(), known: text() },
        PluginCheckError::Tolerance(2.0),
        PluginCheckError::TemporaryDirectory(io_error()),
        PluginCheckError::Spawn(io_error()),
        PluginCheckError::Report { path: path(), source: io_error() },
        PluginCheckError::Library { path: path(), source: io_error() },
        PluginCheckError::CaseProcess { reason: text() },
    ]);
    found.of_enum(vec![
        PluginNewError::Name(text()),
        PluginNewError::PythonName { name: text(), why: "is a word of the Python language" },
        PluginNewError::Exists(path()),
        PluginNewError::Write { path: path(), source: io_error() },
        PluginNewError::NoSdk,
        PluginNewError::NotSdk(path()),
    ]);
}

fn http_errors() -> Vec<HttpError> {
    let (to, source, limit) = (text, || Cause(text()), Duration::from_secs(1));
    vec![
        HttpError::Url { url: text(), why: text() },
        HttpError::Header { name: text(), why: "it isn't a header name" },
        HttpError::ProxySetting { variable: "HTTPS_PROXY", why: "is not the URL of a proxy" },
        HttpError::CaFile { path: path(), why: text() },
        HttpError::TlsSetup(source()),
        HttpError::Dns { to: to(), source: source() },
        HttpError::Connect { to: to(), source: source() },
        HttpError::Tls { to: to(), source: source() },
        HttpError::ConnectTimeout { to: to(), limit },
        HttpError::Timeout { to: to(), limit },
        HttpError::Closed { to: to(), source: source() },
        HttpError::Protocol { to: to(), source: source() },
        HttpError::TooLarge { to: to(), limit: 1 },
    ]
}

fn connect_errors() -> Vec<ConnectError> {
    let shown = [
        PresentedCredential::Token { stored: true },
        PresentedCredential::Token { stored: false },
        PresentedCredential::Key,
    ];
    let mut errors = vec![ConnectError::Request(http_errors().remove(0))];
    for (shown, maybe_used) in shown.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        errors.push(ConnectError::Failed { attempts: 3, last: text(), hint: None, shown, maybe_used });
        for status in [301, 400, 401, 403, 404, 405, 409, 413, 422, 429, 500] {
            errors.push(ConnectError::Refused {
                status: http::StatusCode::from_u16(status).unwrap(),
                excerpt: text(),
                location: (status == 301).then(text),
                shown,
                maybe_used,
            });
        }
    }
    errors
}

pub(super) fn of_cloud_and_config(found: &mut Findings) {
    found.of_enum(http_errors());
    found.of_enum(connect_errors());
    let bundle = || BundleError::Missing("qpu_id");
    found.of_enum(vec![
        BundleError::NotAnObject,
        bundle(),
        BundleError::Wrong { field: "qpu_id", why: "it is empty" },
        BundleError::NoProfile,
    ]);
    let machine = || FingerprintError::Damaged(path());
    found.of_enum(vec![
        FingerprintError::HostName(io_error()),
        FingerprintError::File(FileError::NoName { path: path() }),
        machine(),
    ]);
    found.of_enum(vec![
        KeyError::NotPem,
        KeyError::Kind("a public key"),
        KeyError::Rejected(text()),
        KeyError::Signing(jsonwebtoken::errors::ErrorKind::InvalidRsaKey(text()).into()),
        KeyError::Header,
        KeyError::Clock,
    ]);
    found.of_enum(vec![
        ProvisionError::NoCredentials("a key"),
        ProvisionError::Fingerprint(machine()),
        ProvisionError::Key(KeyError::NotPem),
        ProvisionError::Token(http_errors().remove(1)),
        ProvisionError::Connect(connect_errors().remove(1)),
        ProvisionError::Bundle(bundle()),
        ProvisionError::NewKey(KeyError::NotPem),
        ProvisionError::Store(CredentialsError::NotText { path: path() }),
        ProvisionError::TokenSpent(Box::new(ProvisionError::Bundle(bundle()))),
    ]);
    found.of_struct(&TokenSpent(KeyError::NotPem));
    found.of_struct(&TokenSpent(KeyError::Header));
    let value =
        |origin| ConfigError::Value { name: "CODA_PORT", value: text(), origin, allowed: "a number".into() };
    found.of_enum(vec![
        value(SettingOrigin::Environment),
        value(SettingOrigin::Stored),
        ConfigError::NoStateDir,
        ConfigError::DeviceRead { path: path(), source: io_error() },
        ConfigError::Device { path: path(), what: text() },
    ]);
}

pub(super) fn of_vpn(found: &mut Findings, ended: tokio::task::JoinError) {
    let command = || CommandError::NotFound("ip".into());
    found.of_enum(vec![
        command(),
        CommandError::NotFound(text()),
        CommandError::Run { path: path(), source: io_error() },
        CommandError::TimedOut { path: path(), limit: Duration::from_secs(1) },
    ]);
    let tail = || LogTail { path: path(), lines: text() };
    found.of_enum(vec![
        OpenvpnError::NoBinary,
        OpenvpnError::NotStarted(text()),
        OpenvpnError::NoTunnel { limit: Duration::from_secs(1), source: tail() },
        OpenvpnError::Ended { source: tail() },
        OpenvpnError::NoStoredProfile { path: path() },
        OpenvpnError::StoredProfile { path: path(), source: ProfileError::TooLarge },
        OpenvpnError::File(FileError::NoName { path: path() }),
        OpenvpnError::Command(command()),
        OpenvpnError::Process { action: "signalled", source: io_error() },
        OpenvpnError::Unstoppable,
        OpenvpnError::Interrupted,
        OpenvpnError::Task(ended),
    ]);
    found.of_enum(vec![
        ProfileError::TooLarge,
        ProfileError::Line { line: 3, problem: ProfileProblem::NotText },
        ProfileError::Missing("remote"),
    ]);
    found.of_struct(&PreflightError { reason: text() });
}

fn elf_errors() -> Vec<ElfError> {
    vec![
        ElfError::Read { path: path(), source: io_error() },
        ElfError::NotALibrary { path: path(), what: "a program" },
        ElfError::Truncated { path: path(), need: 2, have: 1 },
        ElfError::OtherMachine { path: path(), found: text(), ours: "x86-64" },
        ElfError::Damaged { path: path(), what: text() },
        ElfError::NoDescriptor { path: path() },
        ElfError::Descriptor { path: path(), source: DescriptorError::Magic },
        ElfError::Interface { path: path(), major: 1, minor: 9, verdict: Verdict::NewerMinor },
        ElfError::Interface { path: path(), major: 9, minor: 0, verdict: Verdict::OtherMajor },
    ]
}

pub(super) fn of_the_executor(found: &mut Findings) {
    found.of_enum(elf_errors());
    found.of_enum(vec![
        LoadError::Elf(elf_errors().remove(0)),
        LoadError::Pinned { path: path(), pinned: text(), found: text() },
        LoadError::CompanionPinned { path: path(), companion: path(), found: text(), pins: text() },
        LoadError::Changed { path: path() },
        LoadError::Companions { path: path() },
        LoadError::PanicAborts { path: path() },
        LoadError::NeedsProcess { path: path() },
        LoadError::Table { path: path(), text: text() },
        LoadError::Writable { path: path(), why: text() },
        LoadError::Copy { path: path(), source: io_error() },
        LoadError::Loader { path: path(), text: text() },
        LoadError::Loader { path: path(), text: "libacme.so.1: cannot open shared object file".into() },
        LoadError::Loader { path: path(), text: "undefined symbol: acme".into() },
        LoadError::Loader { path: path(), text: "version `GLIBC_2.99' not found".into() },
        LoadError::NoModule { path: path(), text: text() },
        LoadError::Layout { path: path(), text: text() },
        LoadError::NoEntry { path: path(), entry: text(), known: vec![text()] },
    ]);
    let origin = || FactorySource::Environment;
    let device = || FactorySource::DeviceConfig(path());
    found.of_enum(vec![
        LocateError::NoInterpreter { value: text(), origin: origin(), looked: vec![text()] },
        LocateError::BadInterpreter { value: text() },
        LocateError::Unpinnable { origin: origin() },
        LocateError::BadValue { value: text(), origin: origin(), why: "it is empty" },
        LocateError::NoFile { value: text(), origin: origin(), path: path() },
        LocateError::NoFile { value: text(), origin: device(), path: path() },
        LocateError::NotFound { name: text(), origin: origin(), files: vec![text()], dirs: vec![path()] },
        LocateError::Nothing { dirs: vec![path()], simulators: vec![path()] },
        LocateError::Nothing { dirs: vec![path()], simulators: vec![] },
        LocateError::Several { found: vec![path(), path()] },
    ]);
    let account = Account { name: text(), uid: 1, gid: 2, groups: vec![2], home: "/".into() };
    let error = |code| Error::new(code, "text");
    found.of_enum(vec![
        StartError::Load(LoadError::PanicAborts { path: path() }),
        StartError::Create { path: path(), error: error(ErrorCode::Config) },
        StartError::Create { path: path(), error: error(ErrorCode::Hardware) },
        StartError::Config { config: path(), what: text() },
        StartError::Python { what: text(), hint: "install it".into() },
        StartError::Process { path: path(), what: text() },
        StartError::Unreadable { account: Box::new(account), file: path(), why: text() },
        StartError::Rights { path: path(), what: text() },
        StartError::Describe { path: path(), error: error(ErrorCode::Other) },
        StartError::BadDevice { path: path(), what: text() },
        StartError::Thread(io_error()),
        StartError::NoReturn { path: path(), call: "create".into(), limit: Duration::from_secs(1) },
        StartError::Died { path: path() },
    ]);
    found.of_enum(vec![
        ReloadError::NotIsolated,
        ReloadError::New(StartError::Died { path: path() }),
        ReloadError::Slots { old: 1, new: 2 },
        ReloadError::Busy(Duration::from_secs(1)),
    ]);
    found.of_enum(vec![
        AccountError::Unknown { name: text() },
        AccountError::NotRoot { name: text() },
        AccountError::NotIsolated,
        AccountError::UnknownCapability { name: text() },
        AccountError::CapabilitiesWithoutRoot,
        AccountError::LookUp { name: text(), source: io_error() },
    ]);
}

pub(super) fn of_daemon_and_dev(found: &mut Findings) {
    found.of_enum(vec![
        ConflictError::PythonNode { pid: 1, dir: path() },
        ConflictError::Host { qpu_id: text(), consumer: text() },
    ]);
    found.of_enum(vec![
        PauseError::File(FileError::NoName { path: path() }),
        PauseError::Malformed { path: path(), source: json_error() },
    ]);
    found.of_enum(vec![
        CalendarError::NoCalendar(text()),
        CalendarError::Event { event: text(), what: text() },
    ]);
    found.of_enum(vec![
        CalendarFileError::Read { path: path(), source: io_error() },
        CalendarFileError::TooLarge { path: path() },
        CalendarFileError::Content { path: path(), source: CalendarError::NoCalendar(text()) },
    ]);
    found.of_enum(vec![
        InstanceLockError::Taken { dir: path(), holder: None },
        InstanceLockError::Dir { dir: path(), source: io_error() },
        InstanceLockError::Unclear { dir: path(), pid: Some(1) },
        InstanceLockError::Unclear { dir: path(), pid: None },
    ]);
    let missing = io::Error::from(io::ErrorKind::NotFound);
    found.of_enum(vec![
        UnitError::Systemctl(io_error()),
        UnitError::Refused(text()),
        UnitError::Unknown(text()),
        UnitError::File { unit: text(), path: path(), source: io_error() },
        UnitError::File { unit: text(), path: path(), source: missing },
    ]);
    found.of_enum(vec![
        DevClientError::Http(http_errors().remove(0)),
        DevClientError::Http(http_errors().remove(6)),
        DevClientError::Refused { status: 400, why: text() },
        DevClientError::Answer(json_error()),
    ]);
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let in_use = io::Error::from(io::ErrorKind::AddrInUse);
    found.of_enum(vec![
        DevCloudError::Keys,
        DevCloudError::Listen { address, source: io_error() },
        DevCloudError::Listen { address, source: in_use },
        DevCloudError::NotLoopback(address),
        DevCloudError::RedisUrl(redis_error()),
    ]);
    found.of_enum(vec![
        DevHostError::Binary(io_error()),
        DevHostError::Log { path: path(), source: io_error() },
        DevHostError::Spawn { path: path(), source: io_error() },
        DevHostError::Wait(io_error()),
        DevHostError::Stop(io_error()),
    ]);
    found.of_enum(vec![
        DevRedisError::NotInstalled,
        DevRedisError::Spawn(io_error()),
        DevRedisError::Directory(io_error()),
        DevRedisError::Port(io_error()),
        DevRedisError::Ended { status: text(), log: text() },
        DevRedisError::Silent { port: 1, limit: Duration::from_secs(1), log: text() },
    ]);
}

pub(super) fn of_state_and_peers(found: &mut Findings, ended: tokio::task::JoinError) {
    let io = |kind: io::ErrorKind| FileError::Io { path: path(), action: "read", source: kind.into() };
    found.of_enum(vec![
        io(io::ErrorKind::PermissionDenied),
        io(io::ErrorKind::NotFound),
        io(io::ErrorKind::StorageFull),
        io(io::ErrorKind::IsADirectory),
        io(io::ErrorKind::Other),
        FileError::NotAFile { path: path(), found: "a directory" },
        FileError::Mode { path: path(), mode: 0o644 },
        FileError::Owner { path: path(), owner: 1, user: 2 },
        FileError::TooLarge { path: path(), limit: 1 },
        FileError::NoName { path: path() },
        FileError::User(io_error()),
    ]);
    found.of_enum(vec![
        CredentialsError::File(FileError::NoName { path: path() }),
        CredentialsError::NotJson { path: path(), why: text() },
        CredentialsError::Value { path: path(), key: "qpu_id", expected: "text" },
        CredentialsError::NotText { path: path() },
    ]);
    let failures = || {
        [
            rusqlite::ffi::SQLITE_FULL,
            rusqlite::ffi::SQLITE_CORRUPT,
            rusqlite::ffi::SQLITE_IOERR,
            rusqlite::ffi::SQLITE_BUSY,
        ]
        .map(|code| {
            SqliteFailure::from(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None))
        })
    };
    let mut store = vec![
        StoreError::Newer { path: path(), found: 9 },
        StoreError::Removed { path: path() },
        StoreError::Stopped,
    ];
    store.extend(failures().map(|failure| StoreError::Open { path: path(), failure }));
    store.extend(failures().map(StoreError::Write));
    store.extend(failures().map(StoreError::Read));
    found.of_enum(store);
    let mut log = vec![
        LogError::Open { location: text(), failure: LogFailure::Other(text()) },
        LogError::Newer { location: text(), found: 9 },
        LogError::Damaged { location: text(), position: 1, stream: text(), what: text() },
        LogError::Write(LogFailure::Other(text())),
        LogError::Read(LogFailure::Other(text())),
        LogError::Stopped,
        LogError::Unanswered,
        LogError::InUse { location: text() },
        LogError::Leased { location: text(), peer_id: text() },
    ];
    log.extend(failures().map(|failure| LogError::Write(LogFailure::File(failure))));
    log.extend(failures().map(|failure| LogError::Read(LogFailure::File(failure))));
    found.of_enum(log);
    found.of_enum(vec![NetworkError::Listen { address: text(), text: text() }, NetworkError::Setup(text())]);
    found.of_enum(vec![
        IdentityError::File(FileError::NoName { path: path() }),
        IdentityError::Key { path: path(), text: text() },
    ]);
    let origin = crate::cloud::http::Target::parse("https://coda.example/").unwrap().origin().clone();
    found.of_enum(vec![
        PolicyError::Url(http_errors().remove(0)),
        PolicyError::Host { origin: origin.clone() },
        PolicyError::Clear { origin },
        PolicyError::Entry { entry: text() },
    ]);
    found.of_enum(vec![
        RedisSettingsError::Url { url: text(), text: text() },
        RedisSettingsError::CaFile { path: path(), source: io_error() },
    ]);
    found.of_struct(&TaskEnded { part: "the task 'heartbeat'".into(), how: "panicked".into() });
    found.of_struct(&BindError { host: text(), port: 1, source: io_error() });
    found.of_enum(vec![
        AppError::StateDir { path: path(), source: io_error() },
        AppError::Http(http_errors().remove(3)),
        AppError::Setup(ended),
        AppError::NothingToDo,
        AppError::StoppedByPlugin,
    ]);
}
