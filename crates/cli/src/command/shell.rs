//! `nacre completions` and `nacre man`: completions for shells, and manual pages.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use clap_complete::env::Shells;

use crate::arguments::Line;
use crate::complete;
use crate::failure::Failure;
use crate::manual::MANUAL;
use crate::output;

/// Print shell completions
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write one per command
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Write nacre.1, nacre-put.1 and so on to this folder instead
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Runs `nacre completions`.
pub fn completions(args: CompletionsArgs) -> Result<(), Failure> {
    let name = args.shell.to_string();
    let shells = Shells::builtins();
    let Some(shell) = shells.completer(&name) else {
        return Err(Failure::Usage(format!("completions for {name} are not supported")));
    };
    let mut text = Vec::new();
    shell.write_registration(complete::VARIABLE, "nacre", "nacre", "nacre", &mut text)?;
    Ok(output::raw(&text)?)
}

/// Runs `nacre man`.
pub fn man(args: ManArgs) -> Result<(), Failure> {
    match args.folder {
        None => Ok(output::raw(&MANUAL.page(Line::command())?)?),
        Some(folder) => MANUAL.write(Line::command(), &folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Line::command().debug_assert();
    }
    #[test]
    fn every_flag_reads_sizes_and_times_by_one_grammar() {
        // "none" is a value of this one too, so it is read by the command.
        let checked = nacre_shell::quantity::check::flags(Line::command(), &["nacre serve --beacons"]);
        assert!(checked > 30, "{checked}");
    }
}
