//! `nacre rm`: away with objects or forks.

use std::time::Duration;

use nacre::ObjectId;
use serde_json::json;

use crate::arguments::ForkArgs;
use crate::failure::Failure;
use crate::session::{self, Session};
use crate::{name, output};

/// Remove objects, or one fork of each, or their staged forks
///
/// Versions stay: an object that is made again goes on above every version that it ever had.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The objects
    #[arg(required = true, value_parser = name::object())]
    objects: Vec<ObjectId>,
    #[command(flatten)]
    fork: ForkArgs,
    /// Do not mind objects that do not exist
    #[arg(long, short)]
    force: bool,
    /// Remove staged forks only: content of "nacre put" that is under way, whose writers then fail, or that was left
    /// behind
    #[arg(long, conflicts_with = "fork")]
    staged: bool,
    /// Only those whose writers have not got on for so many seconds
    #[arg(long, value_name = "SECONDS", requires = "staged", default_value = "0", hide_default_value = true)]
    idle: u64,
}

/// Runs `nacre rm`.
pub async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let mut removed = 0;
    for id in &args.objects {
        let object = store.object(id)?;
        if args.staged {
            if !args.force {
                session::existing(&object).await?;
            }
            removed += object.remove_staged(Duration::from_secs(args.idle)).await?.len() as u64;
            continue;
        }
        let there = match &args.fork.fork {
            None => object.remove().await?,
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
        removed += u64::from(there);
    }
    if session.json {
        output::line(&json!({ "removed": removed }).to_string())?;
    }
    Ok(())
}
