//! The shell of Nacre's programs: what every command shares and no library needs.
//!
//! - [`failure`]: the outcome of a command that did not succeed, its message and its exit code.
//! - [`output`]: lines, tables and JSON on standard output, and messages on standard error.
//! - [`usage`]: errors in a command line, and its help.
//! - [`quantity`]: sizes and times, read by one grammar and written in one form.
//! - [`signals`], [`interrupt`] and [`flag`]: the signals that ask a program to end, and work that they stop in good order.
//! - [`progress`]: progress bars, on terminals only.
//! - [`log`]: the log on standard error.
//! - [`partial`]: files that get their names when they are complete.
//! - [`manual`]: manual pages, made from the definition of the commands, and the style of their help.

#![forbid(unsafe_code)]

pub mod failure;
pub mod flag;
pub mod interrupt;
pub mod log;
pub mod manual;
pub mod output;
pub mod partial;
pub mod progress;
pub mod quantity;
pub mod signals;
pub mod usage;

pub use failure::Failure;
pub use signals::Signals;
