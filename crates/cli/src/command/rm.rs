//! `nacre rm`: away with objects or forks.

use nacre::ObjectId;
use serde_json::json;

use crate::arguments::ForkArgs;
use crate::failure::Failure;
use crate::session::{self, Session};
use crate::{name, output};

/// Remove objects, or one fork of each
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
}

/// Runs `nacre rm`.
pub async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let mut removed = 0;
    for id in &args.objects {
        let object = store.object(id)?;
        let there = match &args.fork.fork {
            None => object.remove().await?,
            Some(fork) => {
                let object = object.fork(fork)?;
                let forks = object.forks().await?;
                let there = forks.iter().any(|(name, _)| name == fork);
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
