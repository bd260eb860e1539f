//! `nacre`: everything that Nacre does, from a shell.

#![forbid(unsafe_code)]

mod arguments;
mod command;
mod failure;
mod interrupt;
mod name;
mod output;
mod progress;
mod quantity;
mod session;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Line;

fn main() -> ExitCode {
    // What is wrong with the line itself is reported, and ended with exit code 2, by the parser.
    let line = Line::parse();
    let json = line.common.json;
    let done = command::run(line).and_then(|()| Ok(output::flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}
