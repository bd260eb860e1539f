//! `nacre`: the command line program.

#![forbid(unsafe_code)]

mod arguments;
mod command;
mod complete;
mod configuration;
mod manual;
mod name;
mod presence;
mod session;

use std::process::ExitCode;

use nacre_shell::{failure, interrupt, output, partial, progress, quantity};

use clap::CommandFactory;

use crate::arguments::Line;

fn main() -> ExitCode {
    // A shell that asks for completions sets a variable, and gets nothing else.
    clap_complete::CompleteEnv::with_factory(Line::command).var(complete::VARIABLE).complete();
    let line = match Line::read(std::env::args_os().collect()) {
        Ok(line) => line,
        Err(failure) => return failure.report(false),
    };
    let json = line.common.json;
    let done = command::run(line).and_then(|()| Ok(output::flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
