//! `nacre rm`: removes objects or forks.

use std::time::Duration;

use nacre::{ErrorKind, ObjectId, Store, Stream};
use serde_json::json;

use crate::arguments::ForkArgs;
use crate::failure::Failure;
use crate::session::{self, Context};
use crate::{complete, name, output, quantity};

/// Remove objects, one fork of each, or their staged forks
///
/// Versions survive: an object that is created again continues above all its earlier versions.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The objects
    #[arg(required = true, value_parser = name::object(), add = complete::objects())]
    objects: Vec<ObjectId>,
    #[command(flatten)]
    fork: ForkArgs,
    /// Ignore missing objects; also remove objects on Ceph whose headers are damaged, and records of lock servers that
    /// no longer belong to the store
    #[arg(long, short)]
    force: bool,
    /// Remove only staged forks: content of "nacre put" that was left behind, or is in progress, in which case its
    /// writer fails
    #[arg(long, conflicts_with = "fork")]
    staged: bool,
    /// Only staged forks without progress for this long: a time such as 30min, or a number of seconds
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_idle,
        requires = "staged",
        default_value = "0",
        hide_default_value = true
    )]
    idle: Duration,
}

/// Parses a time, or a number of seconds.
fn parse_idle(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).or_else(|_| quantity::parse_time(text))
}

/// Runs `nacre rm`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let (mut removed, mut failures) = (0, Vec::new());
    // An object that cannot be removed does not keep the others from being removed.
    for id in &args.objects {
        match remove(&store, id, &args).await {
            Ok(count) => removed += count,
            Err(failure) => failures.push(failure),
        }
    }
    if session.json {
        output::line(&json!({ "removed": removed }).to_string())?;
    } else if args.objects.len() > 1 && !failures.is_empty() {
        let (failed, all) = (failures.len(), args.objects.len());
        let verb = if args.staged || args.fork.fork.is_some() { "changed" } else { "removed" };
        output::line(&format!("{} of {all} objects {verb}", all - failed))?;
    }
    let last = failures.pop();
    for failure in failures {
        failure.report(false);
    }
    last.map_or(Ok(()), Err)
}

/// Removes an object, one fork of it, or its staged forks. Returns the number of objects or forks removed.
async fn remove(store: &Store, id: &ObjectId, args: &Args) -> Result<u64, Failure> {
    let object = store.object(id)?;
    if nacre_daemon::is_lock_ledger(id) && !args.force && !args.staged {
        let text = format!(
            "object \"{id}\" of {} has a lock server's records, without which two clients can come to hold \
             the same bytes; if no server grants locks there any more, pass --force",
            store.name()
        );
        return Err(Failure::Failed(text));
    }
    if args.staged {
        if !args.force {
            session::existing(&object).await?;
        }
        return Ok(object.remove_staged(args.idle).await?.len() as u64);
    }
    let stream = store.stream(id)?;
    let there = match &args.fork.fork {
        // A stream goes with the objects that it is striped over.
        None => match remove_stream(&stream).await {
            Ok(true) => true,
            Err(error) if error.kind != ErrorKind::Corrupt => return Err(error.into()),
            _ => match object.remove().await {
                Err(error) if args.force && error.kind == ErrorKind::Corrupt => {
                    store.discard_damaged(id).await?
                }
                result => result?,
            },
        },
        Some(fork) => {
            let object = object.fork(fork)?;
            let forks = object.forks().await?;
            let there = nacre::stage::is_reserved(fork) || forks.iter().any(|(name, _)| name == fork);
            if there {
                object.remove_fork().await?;
            } else if !args.force {
                session::existing_fork(&object).await?;
            }
            there
        }
    };
    if !there && !args.force {
        return Err(session::no_such_object(&object));
    }
    Ok(u64::from(there))
}

/// Removes a stream. Returns false if there is none.
async fn remove_stream(stream: &Stream) -> Result<bool, nacre::Error> {
    let copied = stream.is_copied_head().await?;
    let removed = stream.remove().await?;
    if removed && copied {
        output::complain(&format!(
            "nacre: \"{}\" was removed, and not its bytes: they belong to another stream, whose head was copied",
            stream.id()
        ));
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_time_has_a_unit_or_is_in_seconds() {
        assert_eq!(parse_idle("3600"), Ok(Duration::from_secs(3600)));
        assert_eq!(parse_idle("1h"), Ok(Duration::from_secs(3600)));
        assert!(parse_idle("-1").is_err() && parse_idle("soon").is_err());
    }
}
