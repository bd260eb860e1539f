//! The files that `make install` takes from this program: completions for shells, and manual pages.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;
use nacre_shell::Failure;
use nacre_shell::manual::Manual;

use crate::Line;

/// The parts of the manual pages of `nacre-bench` beside the definition of its commands.
const MANUAL: Manual = Manual {
    program: "nacre-bench",
    examples: &[],
    related: &[("", &["nacre"])],
    environment: &[],
    exit_status: &[
        ("0", "done"),
        ("1", "the study failed"),
        ("2", "wrong usage"),
        ("130, 143", "Ctrl-C or SIGTERM ended the study"),
    ],
};

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
pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    MANUAL.write(Line::command(), &args.folder)
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
        let checked = nacre_shell::quantity::check::flags(Line::command(), &[]);
        assert!(checked > 3, "{checked}");
    }
}
