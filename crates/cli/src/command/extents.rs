//! `nacre extents`: lists the extents of an object with their versions.

use nacre::ObjectId;
use serde_json::json;

use crate::arguments::{ForkArgs, RangeArgs};
use crate::failure::Failure;
use crate::output::Table;
use crate::session::{self, Context};
use crate::{complete, name, output, quantity};

/// List the extents of an object with their versions
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

/// Runs `nacre extents`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let object = session.object(&args.object, &args.fork.fork())?;
    session::existing_fork(&object).await?;
    let found = object.extents(args.range.range()).await?;
    if session.json {
        let json = json!({
            "object": object.id().to_string(),
            "fork": object.fork_name().to_string(),
            "version": found.version,
            "size": found.size,
            "extents": found.extents.iter().map(output::extent).collect::<Vec<_>>(),
        });
        return Ok(output::line(&json.to_string())?);
    }
    let mut table = Table::new(&["OFFSET", "LENGTH", "VERSION", "KIND"]);
    for extent in &found.extents {
        let to_the_end = extent.range.end() == nacre::ByteRange::ALL.end();
        table.row([
            extent.range.offset.to_string(),
            // The length of the hole behind the last byte would mean nothing to a person.
            if to_the_end { "-".to_owned() } else { extent.range.len.to_string() },
            extent.version.to_string(),
            output::kind(extent.kind).to_owned(),
        ]);
    }
    table.print()?;
    Ok(output::line(&format!(
        "version {} in this range, {} in the fork",
        found.version,
        quantity::count(found.size, "byte")
    ))?)
}
