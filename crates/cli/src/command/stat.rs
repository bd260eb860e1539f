//! `nacre stat`: a summary of an object.

use nacre::{ErrorKind, ObjectId};
use serde_json::json;

use crate::failure::Failure;
use crate::output::Table;
use crate::session::{self, Context};
use crate::{complete, name, output, quantity};

/// Show an object's version, forks and fence, and its numbers of keys, attributes and fenced sessions
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
}

/// Runs `nacre stat`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let object = session.open()?.object(&args.object)?;
    let stat = session::existing(&object).await?;
    let forks = object.forks().await?;
    let sessions = match object.fences().await {
        Ok(fences) => Some(fences.sessions.len() as u64),
        // A server of an earlier version knows no fences of single sessions, so that there are none.
        Err(error) if matches!(error.kind, ErrorKind::Invalid | ErrorKind::Unsupported) => None,
        Err(error) => return Err(error.into()),
    };
    if session.json {
        let forks: Vec<_> =
            forks.iter().map(|(fork, size)| json!({ "fork": fork.to_string(), "size": size })).collect();
        let json = json!({
            "object": object.id().to_string(),
            "version": stat.version,
            "fence": stat.fence,
            "fenced_sessions": sessions,
            "bytes": stat.bytes,
            "forks": forks,
            "keys": stat.keys,
            "attributes": stat.attributes,
        });
        return Ok(output::line(&json.to_string())?);
    }
    output::line(&format!(
        "object \"{}\", version {}, {}, {}, {}{}{}",
        object.id(),
        stat.version,
        quantity::count(stat.bytes, "byte"),
        quantity::count(stat.keys, "key"),
        quantity::count(stat.attributes, "attribute"),
        if stat.fence > 0 { format!(", fence {}", stat.fence) } else { String::new() },
        match sessions {
            None | Some(0) => String::new(),
            Some(sessions) => format!(", {}", quantity::count(sessions, "fenced session")),
        },
    ))?;
    if !forks.is_empty() {
        let mut table = Table::new(&["FORK", "SIZE"]);
        for (fork, size) in &forks {
            table.row([session::fork_name(fork), size.to_string()]);
        }
        table.print()?;
    }
    Ok(())
}
