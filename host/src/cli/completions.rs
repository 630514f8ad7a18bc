//! `coda-host completions` and the manual page, both made from the command line's own description.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap_complete::Shell;

use crate::error::Failure;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell, for instance: coda-host completions bash > /etc/bash_completion.d/coda-host
    shell: Shell,
}

pub fn run(args: Args, mut command: clap::Command) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "coda-host", &mut text);
    put(&text)
}

pub fn man(command: &clap::Command) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text).map_err(failed)?;
    put(&text)
}

fn put(text: &[u8]) -> Result<ExitCode, Failure> {
    match io::stdout().write_all(text) {
        // `| head` has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        other => other.map(|()| ExitCode::SUCCESS).map_err(failed),
    }
}

fn failed(e: io::Error) -> Failure {
    Failure {
        code: "output",
        message: "the output could not be written".into(),
        causes: vec![e.to_string()],
        hint: None,
        exit: crate::error::exit::FAILURE,
    }
}
