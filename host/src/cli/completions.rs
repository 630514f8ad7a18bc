//! `coda-host completions` and `coda-host man`: generated from the definition of the command line.

use std::path::PathBuf;
use std::process::ExitCode;

use clap_complete::Shell;

use super::kit::{CliError, print};
use crate::error::Failure;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host completions bash > /etc/bash_completion.d/coda-host
  coda-host completions zsh > /usr/local/share/zsh/site-functions/_coda-host
  coda-host completions fish > ~/.config/fish/completions/coda-host.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

pub fn run(args: Args, mut command: clap::Command) -> Result<ExitCode, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, "coda-host", &mut text);
    print(&text)
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  coda-host man | man -l -                       read the page of coda-host
  coda-host man --dir /usr/local/share/man/man1  write the pages of all commands")]
pub struct ManArgs {
    /// Write the pages of all commands into this directory
    #[arg(long, value_name = "DIR", value_hint = clap::ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

pub fn man(args: ManArgs, command: clap::Command) -> Result<ExitCode, Failure> {
    if let Some(dir) = args.dir {
        let written = std::fs::create_dir_all(&dir).and_then(|()| clap_mangen::generate_to(command, &dir));
        return written
            .map(|()| ExitCode::SUCCESS)
            .map_err(|source| CliError::ManualPages { dir, source }.into());
    }
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(CliError::Output)?;
    print(&text)
}
