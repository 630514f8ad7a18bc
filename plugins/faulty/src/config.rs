//! Which fault to commit, and how.
//!
//! Contract: one fault per executor, chosen by the key `fault` of `device.yaml`; everything else behaves.

use std::path::PathBuf;

use serde::Deserialize;

/// `device.yaml` of this plugin.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub fault: Fault,
    /// What a panic carries.
    pub payload: Payload,
    /// When a fault of the process happens.
    pub when: When,
    /// So many calls behave before the fault happens.
    pub after: u32,
    /// The fault happens in the runs of this job alone.
    pub only: Option<String>,
    /// Only so many first runs of each job fail with `error_retryable`; 0 stands for all.
    pub failures: u32,
    /// `error_retryable` is for want of a calibration.
    pub calibration: bool,
    /// Offers `batch_run`, whatever the fault is.
    pub batch: bool,
    /// How long every run takes, in milliseconds.
    pub run_ms: u64,
    /// 0 stands for 1.
    pub slots: u16,
    /// Runs circuits of target cz exactly instead of measuring zeros, so that faults in counts can be told apart.
    pub exact: bool,
    /// A file to which every run adds `start <job id>` and `end <job id>`, so that a test can tell what ran
    /// how often, and where a kill fell.
    pub record: Option<PathBuf>,
    /// A file with the number of qubits that the device has now, read at each description.
    pub qubits_file: Option<PathBuf>,
    /// Adds `create`, `shutdown` and `drop` with the process's number to the record, and `cancel` with a job's id.
    pub life: bool,
    /// A file that the factory tries to read; the log tells whether it may.
    pub read: Option<PathBuf>,
    /// Adds to each line of the record the time, in microseconds since 1970.
    pub clock: bool,
    /// Offers `evolve_state`, which behaves and goes into the record as well.
    pub evolve: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// In the factory.
    #[default]
    Create,
    /// At the start of each run.
    Run,
    /// When the device is described.
    Device,
    /// In the cancel hook.
    Cancel,
    Shutdown,
    /// In the executor's `drop`.
    Drop,
    /// When the library is loaded, before anyone has read a config: the fault comes from the environment
    /// variable `CODA_FAULTY_AT_LOAD`, and `fault` does nothing more.
    Load,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Payload {
    /// A `&'static str`, as of `panic!("text")`.
    Str,
    /// A `String`, as of `panic!("{text}")`.
    #[default]
    String,
    /// No text at all.
    Other,
    /// A value that panics when it is dropped.
    DropBomb,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    #[default]
    None,

    // Panics.
    PanicCreate,
    PanicRun,
    #[serde(alias = "batch_panic")]
    PanicBatch,
    /// The run takes its `run_ms` in any case.
    PanicCancel,
    PanicDevice,
    PanicShutdown,
    /// In the executor's `drop`.
    PanicDrop,

    // Errors.
    ErrorCreate,
    ErrorRun,
    ErrorRetryable,

    // Answers that break the contract.
    KeyTooLong,
    KeyTooShort,
    /// `0x2`
    KeyHex,
    /// `1 0`
    KeySpace,
    KeyEmpty,
    NegativeCount,
    /// A key that was never seen; the other counts are right.
    ZeroCount,
    /// Counts that add up to more than was asked for.
    TooManyShots,
    /// `shots_completed` says more than the counts.
    SumMismatch,
    DuplicateKey,
    NanTime,
    NegativeTime,
    InfiniteTime,

    // Answers that look odd and are legal.
    NoShotsCompleted,
    FewerShots,
    NoCounts,

    // Batches.
    BatchTooFew,
    BatchTooMany,
    /// The call as a whole fails.
    BatchError,
    /// Every second job fails.
    BatchMixed,

    // Descriptions of a device that can't be.
    DeviceZeroQubits,
    DeviceTooManyQubits,
    DeviceNoTargets,
    DeviceZeroSlots,
    DeviceBadEdge,

    // Time.
    /// The factory never returns.
    HangCreate,
    /// A run that never returns, whatever it is told.
    Hang,
    /// A cancel hook that never returns; the run takes its `run_ms` in any case.
    HangCancel,
    HangDevice,
    HangShutdown,
    /// In the executor's `drop`.
    HangDrop,
    /// With `when: load`.
    HangLoad,
    /// Waits for the cancel and then answers as though nothing had happened.
    ResultAfterCancel,
    /// No cancel hook; the run, of `run_ms`, looks at `is_cancelled`.
    NoCancelHook,
    /// A cancel hook that does nothing; the run takes its `run_ms` in any case.
    Slow,

    // Wrong physics; with `exact`.
    KeysReversed,
    /// Characters in the order of qubits, whatever `measurements` says.
    KeysSorted,
    /// At most 1000 shots are returned.
    ShotsCapped,
    RxSign,
    NoCz,
    GatesReversed,
    /// The last qubit of the device reads 0.
    LastQubitDead,

    // Calls that disturb each other; with `exact`.
    /// Only one executor per process.
    CreateOnce,
    /// The description changes each time.
    DeviceChanges,
    BatchReversed,
    /// Returns states as they came.
    EvolveNothing,
    PanicWhenCancelled,
    /// An id that was cancelled once stays so.
    CancelSticks,
    /// A cancel of any job ends the next run.
    CancelAny,
    /// Runs beside each other spoil each other.
    SlotsMix,
    /// After one error every job fails.
    ErrorSticks,

    // What it does to the process; see `process.rs`.
    SigtermIgnore,
    SigtermHandler,
    SigchldIgnore,
    BlockSignals,
    Setlocale,
    Chdir,
    Umask,
    /// A quarter of a megabyte per run.
    Leak,
    /// With `when: load`.
    SlowLoad,
    /// On one run in ten, at random.
    SegfaultSometimes,
    LeaveThreads,
    #[serde(rename = "print_10mb")]
    Print10mb,
    CloseStdio,
    /// As careless programs do it that put themselves in the background.
    CloseDescriptors,
    /// `kill(getpid(), SIGTERM)`
    SignalItself,
    /// As many gauges in one run, each with another name.
    #[serde(rename = "gauges_10k")]
    Gauges10k,
    Exit,
    /// `exit(0)`
    ExitZero,
    /// `_exit(0)`
    ExitAtOnce,
    Abort,
    Segfault,
    StackOverflow,
}

impl Fault {
    /// Whether it needs an executor with the batch hook.
    pub fn is_of_batch(self) -> bool {
        use Fault::*;
        matches!(self, PanicBatch | BatchTooFew | BatchTooMany | BatchError | BatchMixed | BatchReversed)
    }

    /// By its name in the config.
    ///
    /// # Errors
    /// When there is no such fault.
    pub fn from_name(name: &str) -> Result<Fault, serde::de::value::Error> {
        use serde::de::IntoDeserializer;
        let name: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
        Fault::deserialize(name)
    }
}
