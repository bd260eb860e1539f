//! `nacre bench`: hands the command line over to `nacre-bench`, a program of its own, so that the peers' clients and
//! all that draws figures are not in this one.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nacre_quantity::Escaped;

use crate::arguments::Common;
use crate::failure::Failure;

/// The program with the studies.
const PROGRAM: &str = "nacre-bench";

/// The environment variable that tells it which program to measure.
const MEASURED_VARIABLE: &str = "NACRE_PROGRAM";

/// Run a study that measures the cost of coordination on this machine
///
/// The studies are in a separate program, nacre-bench, which must be beside this one or in PATH. "nacre bench --help"
/// shows what it can do.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// The study and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "STUDY")]
    words: Vec<OsString>,
}

/// Becomes `nacre-bench`; returns only if that fails. The environment does not choose the store of a study, which would put
/// load on a store in use.
pub fn run(common: &Common, args: Args) -> Result<(), Failure> {
    let this = std::env::current_exe().map_err(Failure::io("find the program that runs"))?;
    let program = find(&this).ok_or_else(|| Failure::Command {
        code: 127,
        sentence: Some(format!(
            "the studies are a program of their own, {PROGRAM}, which is neither beside {} nor in PATH: \"make install\" \
             installs both, \"make release\" builds them",
            Escaped::of(&this)
        )),
    })?;
    let mut command = Command::new(&program);
    command.env(MEASURED_VARIABLE, &this);
    if let Some(store) = &common.store {
        command.arg("--store").arg(store);
    }
    if let Some(key) = &common.key {
        command.arg("--key").arg(key);
    }
    if common.json {
        command.arg("--json");
    }
    let error = command.args(args.words).exec();
    let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
    let sentence = format!("cannot run {}: {error}", Escaped::of(&program));
    Err(Failure::Command { code, sentence: Some(sentence) })
}

/// Finds the program beside this one, or else in `PATH`.
fn find(this: &Path) -> Option<PathBuf> {
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&in_path).map(|folder| folder.join(PROGRAM));
    std::iter::once(this.with_file_name(PROGRAM)).chain(folders).find(|file| file.is_file())
}
