//! The files that `make install` takes from this program: completions for shells, and manual pages.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{BenchError, Line};

/// The arguments of `nacre-bench completions`.
#[derive(clap::Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// The arguments of `nacre-bench man`.
#[derive(clap::Args, Clone, Debug)]
pub struct ManArgs {
    /// Write nacre-bench.1, nacre-bench-rmw.1 and so on into this folder
    #[arg(long, value_name = "FOLDER")]
    folder: PathBuf,
}

/// Prints completions of `nacre-bench`.
pub(crate) fn completions(args: CompletionsArgs) {
    let mut command = Line::command().bin_name("nacre-bench");
    clap_complete::generate(args.shell, &mut command, "nacre-bench", &mut std::io::stdout());
}

/// Writes the manual pages.
///
/// # Errors
/// If a file cannot be written.
pub(crate) fn man(args: &ManArgs) -> Result<(), BenchError> {
    let mut command = Line::command();
    command.build();
    write(&command, &args.folder, "nacre-bench")
}

fn write(command: &clap::Command, folder: &Path, name: &str) -> Result<(), BenchError> {
    let file = folder.join(format!("{name}.1"));
    let attempted = || format!("write {}", file.display());
    let mut text = Vec::new();
    // The page of help says what the other pages do.
    let shown = command.clone().mut_subcommands(|inner| {
        let is_help = inner.get_name() == "help";
        if is_help { inner.hide(true) } else { inner }
    });
    clap_mangen::Man::new(shown).render(&mut text).map_err(BenchError::io(attempted()))?;
    std::fs::write(&file, text).map_err(BenchError::io(attempted()))?;
    let shown = |inner: &&clap::Command| !inner.is_hide_set() && inner.get_name() != "help";
    for inner in command.get_subcommands().filter(shown) {
        write(inner, folder, &format!("{name}-{}", inner.get_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Line::command().debug_assert();
    }
}
