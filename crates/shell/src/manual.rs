//! Manual pages, made from the definition of the commands, and the style of their help.

use std::path::Path;

use clap::builder::styling::{AnsiColor, Styles};

use crate::failure::Failure;

/// The colours of help, on terminals that have them.
pub const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold());

/// Returns the manual page of a command.
///
/// # Errors
/// If it cannot be made.
pub fn page(mut command: clap::Command) -> Result<Vec<u8>, Failure> {
    command.build();
    render(without_help(command))
}

/// Writes the manual pages of a program and of each of its commands into a folder: `nacre.1`, `nacre-put.1` and so on.
///
/// # Errors
/// If a file cannot be written.
pub fn write(mut command: clap::Command, folder: &Path, name: &str) -> Result<(), Failure> {
    command.build();
    write_all(&without_help(command), folder, name)
}

/// Hides the commands `help`: what they print is in the other pages.
fn without_help(command: clap::Command) -> clap::Command {
    command.mut_subcommands(|inner| match inner.get_name() {
        "help" => inner.hide(true),
        _ => without_help(inner),
    })
}

fn render(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command).render(&mut text).map_err(Failure::io("make the manual page"))?;
    Ok(text)
}

fn write_all(command: &clap::Command, folder: &Path, name: &str) -> Result<(), Failure> {
    let file = folder.join(format!("{name}.1"));
    let text = render(command.clone())?;
    std::fs::write(&file, text).map_err(Failure::io(format!("write {}", file.display())))?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        write_all(inner, folder, &format!("{name}-{}", inner.get_name()))?;
    }
    Ok(())
}
