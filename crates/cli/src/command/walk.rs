//! `nacre walk`: counts and lists file trees. The implementation is in `nacre_walk::command`.

use nacre_walk::command::{self, Args, CommandError};

use crate::failure::Failure;
use crate::output;
use crate::session::Session;

/// Runs `nacre walk`.
pub fn run(session: &Session, args: &Args) -> Result<(), Failure> {
    let complain = |line: &str| output::complain(&format!("nacre: {line}"));
    command::run(args, session.json, complain).map_err(|error| match error {
        CommandError::Usage(sentence) => Failure::Usage(sentence),
        CommandError::Failed(sentence) => Failure::Failed(sentence),
        CommandError::Unread => Failure::Unread,
    })
}
