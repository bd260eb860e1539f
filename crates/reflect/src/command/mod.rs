//! The command `reflect`: a reflector, its members, and their administration.
//!
//! Every program with this command passes on its user's arguments, and reports the outcome. The reflector itself is a
//! role of a daemon; its settings are [`Settings`].

mod admin_client;
mod expel;
mod groups;
mod http_client;
mod interrupt;
mod join;
mod locate;
mod member;
mod print;
mod send;
mod settings;
mod store;
mod target;
mod token;

use std::io;
use std::path::PathBuf;

pub use admin_client::own_socket_for_server;
pub use settings::{ACCUMULATED, HTTP_DEFAULT, Settings, Time};
pub use target::PORT_DEFAULT;

/// Commands of members of groups and of operators
#[derive(clap::Subcommand, Clone, Debug)]
#[allow(missing_docs, reason = "each command is described where its flags are")]
pub enum Command {
    Join(join::Args),
    Send(send::Args),
    Groups(groups::Args),
    Token(token::Args),
    TokenKey(token::KeyArgs),
    Kick(expel::KickArgs),
    Ban(expel::BanArgs),
    Move(locate::Args),
}

/// Options that all commands share.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// The store that was named on the command line.
    pub store: Option<String>,
    /// The file with the operator's key.
    pub key: Option<PathBuf>,
    /// True to print JSON.
    pub json: bool,
}

/// The outcome of a command that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Wrong arguments: exit code 2.
    #[error("{0}")]
    Usage(String),
    /// A failure: exit code 1.
    #[error("{0}")]
    Failed(String),
    /// The reader of the output has gone: exit code 0, and no message.
    #[error("nobody reads the output any more")]
    Unread,
}

impl CommandError {
    /// Converts a failure to write to standard output.
    pub fn output(error: io::Error) -> CommandError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => CommandError::Unread,
            _ => CommandError::Failed(format!("cannot write to standard output: {error}")),
        }
    }

    /// Returns a function that converts an error of the system in doing what was `attempted`.
    fn io(attempted: impl std::fmt::Display) -> impl FnOnce(io::Error) -> CommandError {
        move |error| CommandError::Failed(format!("cannot {attempted}: {error}"))
    }
}

/// Runs a command. `complain` is called with each line for standard error.
pub fn run(command: Command, common: Common, complain: &mut dyn FnMut(&str)) -> Result<(), CommandError> {
    match command {
        Command::Join(args) => join::run(args, common, complain),
        Command::Send(args) => send::run(args),
        Command::Groups(args) => groups::run(args, common),
        Command::Token(args) => token::run(args, common),
        Command::TokenKey(args) => token::run_key(args, common),
        Command::Kick(args) => expel::kick(args, common),
        Command::Ban(args) => expel::ban(args, common),
        Command::Move(args) => locate::run(args, common),
    }
}
