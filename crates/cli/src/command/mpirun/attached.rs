//! `nacre mpirun-launcher`: a launcher that gets SIGTERM when the `nacre mpirun` that has started it ends, in whatever way.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::cannot_run;
use crate::failure::Failure;

/// Run a launcher that ends with the "nacre mpirun" around it
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The number of the process around it
    parent: i32,
    /// The launcher and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true, value_name = "ARGUMENT")]
    words: Vec<OsString>,
}

/// Runs `nacre mpirun-launcher`, which becomes the launcher.
pub fn run(args: &Args) -> Result<(), Failure> {
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(io::Error::from)
        .map_err(Failure::io("stay with nacre mpirun"))?;
    if getppid().map(Pid::as_raw_pid) != Some(args.parent) {
        return Err(Failure::Failed("nacre mpirun has ended before its launcher began".to_owned()));
    }
    let Some((launcher, words)) = args.words.split_first() else {
        return Err(Failure::Usage("a launcher is missing".to_owned()));
    };
    let error = Command::new(launcher).args(words).exec();
    Err(cannot_run(Path::new(launcher), &error))
}

/// Returns the command by which this process runs a launcher so.
pub fn command(launcher: &Path, words: &[OsString]) -> Result<tokio::process::Command, Failure> {
    let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
    let mut command = tokio::process::Command::new(this);
    command.args(["mpirun-launcher", &std::process::id().to_string()]).arg(launcher).args(words);
    Ok(command)
}
