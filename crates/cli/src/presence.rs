//! Notices of commands that follow a store, about its servers: a follower waits for those that are away, however long that takes.

use std::time::Duration;

use nacre::{Error, ErrorKind};

use crate::output;

/// The time between two looks.
const LOOK: Duration = Duration::from_secs(1);
/// The time in which the store answers one.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Says on standard error when the store does not answer, and when it answers again, once each. It never ends.
pub async fn report(look: impl AsyncFn() -> Result<(), Error>) {
    let mut is_away = false;
    loop {
        let why = match tokio::time::timeout(ANSWER_MAX, look()).await {
            Ok(Err(error)) if waits(&error) => Some(error.message),
            // Whatever else is wrong is the follower's to say.
            Ok(_) => None,
            Err(_) => Some(format!("no answer has come for {} s", ANSWER_MAX.as_secs())),
        };
        match &why {
            Some(why) if !is_away => {
                output::complain(&format!("nacre: the store is away, waiting for it: {why}"))
            }
            None if is_away => output::complain("nacre: the store is back"),
            _ => {}
        }
        is_away = why.is_some();
        tokio::time::sleep(LOOK).await;
    }
}

/// Returns whether a failure is one that followers wait for the end of.
fn waits(error: &Error) -> bool {
    error.is_retryable() || error.kind == ErrorKind::Unknown
}
