//! The answer to a job: counts and times, or an error with a code, a stage and "retryable".

use std::fmt;

use crate::raw::{RawCount, RawError, RawOutcome, RawStr};

/// A finished run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outcome {
    /// How often each bit string was observed. Character `i` of a key is the outcome of qubit
    /// `measurements[i]`; a key that occurs twice is an error, as is a negative count.
    pub counts: Vec<(String, i64)>,
    /// Milliseconds on the hardware, finite and not negative.
    pub execution_time_ms: Option<f64>,
    /// Shots that were executed; must equal the sum of the counts. May be fewer than asked for.
    pub shots_completed: Option<i64>,
}

impl Outcome {
    /// An outcome whose `shots_completed` is the sum of the counts.
    pub fn from_counts(counts: impl IntoIterator<Item = (String, i64)>) -> Outcome {
        let counts: Vec<(String, i64)> = counts.into_iter().collect();
        let shots = counts.iter().fold(0i64, |sum, (_, n)| sum.saturating_add(*n));
        Outcome { counts, execution_time_ms: None, shots_completed: Some(shots) }
    }

    pub fn with_time_ms(mut self, ms: f64) -> Outcome {
        self.execution_time_ms = Some(ms);
        self
    }

    pub(crate) fn lend<R>(&self, f: impl FnOnce(&RawOutcome) -> R) -> R {
        let counts: Vec<RawCount> = self
            .counts
            .iter()
            .map(|(bits, count)| RawCount { bits: RawStr::new(bits), count: *count })
            .collect();
        f(&RawOutcome {
            size: size_of::<RawOutcome>(),
            counts: counts.as_ptr(),
            counts_len: counts.len(),
            execution_time_ms: self.execution_time_ms.unwrap_or(0.0),
            shots_completed: self.shots_completed.unwrap_or(0),
            has_execution_time: u32::from(self.execution_time_ms.is_some()),
            has_shots_completed: u32::from(self.shots_completed.is_some()),
        })
    }
}

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// The number that crosses the boundary.
            pub const fn code(self) -> u32 {
                match self { $($name::$variant => $code,)* }
            }

            /// The variant of a number; unknown ones are `Other`.
            pub const fn from_code(code: u32) -> $name {
                match code { $($code => $name::$variant,)* _ => $name::Other }
            }

            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

codes! {
    /// What kind of failure it is.
    ErrorCode {
        /// None of the others.
        Other = 0 "other",
        /// The device config is missing something or holds a bad value.
        Config = 1 "config",
        /// The circuit is legal but this device can't run it.
        Unsupported = 2 "unsupported",
        /// Too large for this device's memory, time or buffers.
        Resources = 3 "resources",
        /// The hardware or its control stack failed.
        Hardware = 4 "hardware",
        /// The device needs calibration.
        Calibration = 5 "calibration",
        /// Something did not answer in time.
        Timeout = 6 "timeout",
        /// The run ended because it was cancelled.
        Cancelled = 7 "cancelled",
        /// The plugin panicked; the text is the panic's.
        Panic = 8 "panic",
        /// The plugin broke the interface's contract.
        Contract = 9 "contract",
    }
}

codes! {
    /// During which step it happened.
    Stage {
        Other = 0 "other",
        Create = 1 "create",
        Describe = 2 "describe",
        Compile = 3 "compile",
        Run = 4 "run",
        Readout = 5 "readout",
        Cancel = 6 "cancel",
        Shutdown = 7 "shutdown",
    }
}

/// A failure of an executor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("{text}")]
pub struct Error {
    pub code: ErrorCode,
    pub stage: Stage,
    /// Whether the same job may succeed when it is sent again.
    pub retryable: bool,
    /// What happened, for the person who reads the job's result.
    pub text: String,
}

impl Error {
    pub fn new(code: ErrorCode, text: impl Into<String>) -> Error {
        Error { code, stage: Stage::Other, retryable: false, text: text.into() }
    }

    pub fn at(mut self, stage: Stage) -> Error {
        self.stage = stage;
        self
    }

    pub fn retryable(mut self) -> Error {
        self.retryable = true;
        self
    }

    pub(crate) fn lend<R>(&self, f: impl FnOnce(&RawError) -> R) -> R {
        f(&RawError {
            size: size_of::<RawError>(),
            code: self.code.code(),
            stage: self.stage.code(),
            retryable: u32::from(self.retryable),
            reserved: 0,
            text: RawStr::new(&self.text),
        })
    }
}
