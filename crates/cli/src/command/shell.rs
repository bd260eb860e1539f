//! `nacre completions` and `nacre man`: completions for shells, and manual pages.

use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Line;
use crate::failure::Failure;
use crate::{manual, output};

/// Print completions for a shell
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Print the manual page, or write one for each command
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Write nacre.1, nacre-put.1 and so on into this folder instead
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

/// Runs `nacre completions`.
pub fn completions(args: CompletionsArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Line::command(), "nacre", &mut text);
    Ok(output::raw(&text)?)
}

/// Runs `nacre man`.
pub fn man(args: ManArgs) -> Result<(), Failure> {
    let mut command = Line::command();
    command.build();
    let command = without_help(command);
    match args.folder {
        None => Ok(output::raw(&page(&command, "")?)?),
        Some(folder) => write(&command, &folder, ""),
    }
}

/// Hides the commands `help`: what they print is in the other pages.
fn without_help(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|inner| match inner.get_name() {
        "help" => inner.hide(true),
        _ => without_help(inner),
    })
}

fn page(command: &clap::Command, path: &str) -> Result<Vec<u8>, Failure> {
    manual::page(command, path).map_err(Failure::io("make the manual page"))
}

/// Writes the page of a command, and those of the commands in it.
fn write(command: &clap::Command, folder: &Path, path: &str) -> Result<(), Failure> {
    let full = format!("nacre {path}");
    let file = folder.join(format!("{}.1", full.trim_end().replace(' ', "-")));
    let text = page(command, path)?;
    std::fs::write(&file, text).map_err(Failure::io(format!("write {}", file.display())))?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write(inner, folder, format!("{path} {}", inner.get_name()).trim_start())?;
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
