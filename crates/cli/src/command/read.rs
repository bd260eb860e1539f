//! `nacre read`: reads a range, with its version and extents if asked.

use nacre::{Answer, Intent, ObjectId, ReadOp};
use serde_json::Map;

use crate::arguments::{ForkArgs, RangeArgs};
use crate::command::transfer;
use crate::failure::Failure;
use crate::session::{self, Context};
use crate::{complete, name, output};

/// Read a range of an object to standard output
///
/// With --json, also prints the version of the range and its extents, as a conditional write needs them. A long range
/// is then cut at the end of a reply, and "next" says where to continue.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    fork: ForkArgs,
}

/// Runs `nacre read`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let object = session.object(&args.object, &args.fork.fork())?;
    session::existing_fork(&object).await?;
    let range = args.range.range();
    if !session.json {
        return transfer::copy(&object, range, tokio::io::stdout()).await;
    }
    let read = ReadOp::Range { fork: object.fork_name().clone(), range, intent: Intent::Look };
    let Answer::Range(found) = session::ask(&object, read, "read").await? else {
        return Err(session::nonsense(&object));
    };
    let mut json = Map::new();
    json.insert("object".into(), object.id().to_string().into());
    json.insert("fork".into(), object.fork_name().to_string().into());
    json.insert("offset".into(), range.offset.into());
    json.insert("length".into(), found.data.len().into());
    output::put_range(&mut json, &found);
    Ok(output::line(&serde_json::Value::from(json).to_string())?)
}
