//! The trait that every stage's error implements, and the form in which an error is shown.
//!
//! A stage's error says what happened and to which file, job or peer (`Display`, never repeating its
//! `source`); [`Explain`] adds a stable code, what to do next and the exit status. [`Failure`] is the form
//! at the edge: the command line prints it, nothing else converts errors to text early.

use std::fmt::Write as _;

use rustix::io::Errno;

/// Exit statuses, stable for scripts. 2 is clap's, for wrong usage.
pub mod exit {
    /// Something failed while running.
    pub const FAILURE: u8 = 1;
    /// A flag, variable, state file or device config is wrong.
    pub const CONFIG: u8 = 2;
    /// The plugin can't be found, loaded or started.
    pub const PLUGIN: u8 = 3;
    /// The cloud refused the host or can't be reached.
    pub const CLOUD: u8 = 4;
    /// Stopped with a job unfinished or its result not stored; the job runs again after the next start.
    pub const JOB_LEFT: u8 = 5;
}

/// Facts about an error that its text doesn't contain.
pub trait Explain: std::error::Error + Send + Sync + 'static {
    /// A stable code in kebab-case, for logs and scripts.
    fn code(&self) -> &'static str;

    /// What the operator should do next, in the imperative.
    fn hint(&self) -> Option<String> {
        None
    }

    /// Exit status of the process when this error ends it.
    fn exit(&self) -> u8 {
        exit::FAILURE
    }
}

/// An error ready to be shown.
#[derive(Debug, Clone)]
pub struct Failure {
    pub code: &'static str,
    pub message: String,
    pub causes: Vec<String>,
    pub hint: Option<String>,
    pub exit: u8,
}

impl<E: Explain> From<E> for Failure {
    fn from(error: E) -> Failure {
        let mut causes = Vec::new();
        let mut next = error.source();
        let mut shortage = None;
        while let Some(cause) = next {
            let text = cause.to_string();
            shortage = shortage.or_else(|| Shortage::in_cause(&text));
            if causes.last() != Some(&text) {
                causes.push(text);
            }
            next = cause.source();
        }
        let (hint, exit) = match shortage {
            // Whatever was to be opened or written is not to blame, and another start may have better luck.
            Some(shortage) => (Some(shortage.hint().into()), exit::FAILURE),
            None => (error.hint(), error.exit()),
        };
        Failure { code: error.code(), message: error.to_string(), causes, hint, exit }
    }
}

/// What the machine has too little of, or can't do at the moment, whatever was asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    Descriptors,
    Space,
    Disk,
}

impl Shortage {
    /// By the number that the system's texts end with: libraries that name the file in their errors keep no other, and
    /// some of these kinds have no name of their own.
    fn in_cause(cause: &str) -> Option<Shortage> {
        let of = |shortage, numbers: &[Errno]| {
            let ends = |e: &Errno| cause.contains(&format!("(os error {})", e.raw_os_error()));
            numbers.iter().any(ends).then_some(shortage)
        };
        of(Shortage::Descriptors, &[Errno::MFILE, Errno::NFILE])
            .or_else(|| of(Shortage::Space, &[Errno::NOSPC, Errno::DQUOT, Errno::FBIG]))
            .or_else(|| of(Shortage::Disk, &[Errno::IO]))
    }

    fn hint(self) -> &'static str {
        match self {
            Shortage::Descriptors => {
                "raise the limit on open files (ulimit -n, LimitNOFILE= of the unit), and look for what keeps so many open"
            }
            Shortage::Space => {
                "free space on that disk, or raise the quota or the limit on the size of files (ulimit -f)"
            }
            Shortage::Disk => "check the disk (dmesg, smartctl)",
        }
    }
}

impl Failure {
    /// Renders several lines for a terminal: message, causes, hint.
    pub fn render(&self) -> String {
        let mut out = format!("error: {}", self.message);
        for cause in &self.causes {
            // Writing to a String can't fail.
            write!(out, "\n  because: {cause}").ok();
        }
        if let Some(hint) = &self.hint {
            write!(out, "\n  to do: {hint}").ok();
        }
        out
    }

    /// Renders one line for a log.
    pub fn line(&self) -> String {
        let mut out = self.message.clone();
        for cause in &self.causes {
            write!(out, ": {cause}").ok();
        }
        out
    }
}
