//! `nacre reflect`: groups of datagrams. What it does is in `nacre_reflect::command`.

use nacre_reflect::command::{self, Command, CommandError};

use crate::arguments;
use crate::failure::Failure;
use crate::output;

/// Runs `nacre reflect`. The environment does not choose its store: a reflector keeps states only where it is told to.
pub fn run(common: &arguments::Common, command: Command) -> Result<(), Failure> {
    let common = command::Common { store: common.store.clone(), key: common.key.clone(), json: common.json };
    let mut complain = |line: &str| output::complain(&format!("nacre: {line}"));
    command::run(command, common, &mut complain).map_err(|error| match error {
        CommandError::Usage(sentence) => Failure::Usage(sentence),
        CommandError::Failed(sentence) => Failure::Failed(sentence),
        CommandError::Unread => Failure::Unread,
    })
}
