//! `nacre ls`: the objects of a store.

use bytes::Bytes;
use futures::future::{join_all, try_join_all};
use nacre::{Error, ErrorKind, ObjectId, Stat, Store, limit};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::output::{Array, Table};
use crate::session::Context;
use crate::{complete, name, output, quantity};

/// List objects in the order of their names
#[derive(clap::Args, Debug)]
pub struct Args {
    /// List only objects whose names begin with this
    #[arg(default_value = "", hide_default_value = true, value_parser = name::prefix())]
    prefix: Bytes,
    /// List only objects after this one
    #[arg(long, value_name = "OBJECT", value_parser = name::object(), add = complete::objects())]
    after: Option<ObjectId>,
    /// List at most this many objects
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Also show version, size, forks, keys and attributes
    #[arg(long, short)]
    long: bool,
    /// List staged forks instead: content of "nacre put" that is in progress, or whose writer died
    #[arg(long, conflicts_with_all = ["long", "limit"])]
    staged: bool,
}

/// The number of objects that are queried together, and printed as one table.
const PAGE: usize = 1000;
/// The number of objects that are queried for their staged forks together.
const STAGED_PAGE: usize = 64;

/// Runs `nacre ls`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?;
    let after = args.after.clone().max(before(&args.prefix));
    let mut objects = match after {
        Some(after) => store.list_after(after),
        None => store.list(),
    };
    if args.staged {
        return staged(session, &store, objects, &args.prefix).await;
    }
    let mut array = if session.json { Some(Array::begin()?) } else { None };
    let mut left = args.limit.unwrap_or(u64::MAX);
    let mut last = None;
    let mut more = false;
    let mut unreadable = 0;
    loop {
        let mut page = Vec::new();
        while page.len() < PAGE {
            let next = objects
                .next()
                .await
                .map_err(Failure::store(format!("list the objects of {}", store.name())))?;
            let Some(id) = next.filter(|id| id.as_bytes().starts_with(&args.prefix)) else { break };
            if left == 0 {
                more = true;
                break;
            }
            left -= 1;
            page.push(id);
        }
        let whole = page.len() < PAGE;
        last = page.last().cloned().or(last);
        let stats = if args.long { Some(stats(&store, &page).await?) } else { None };
        for error in stats.iter().flatten().filter_map(|stat| stat.as_ref().err()) {
            unreadable += 1;
            output::complain(&format!("nacre: {error}"));
        }
        match &mut array {
            Some(array) => {
                for (index, id) in page.iter().enumerate() {
                    array.entry(&entry(id, stats.as_ref().map(|stats| &stats[index])))?;
                }
            }
            None => print(&page, stats.as_deref())?,
        }
        if whole {
            break;
        }
    }
    match array {
        Some(array) => array.end()?,
        None => {
            if let Some(last) = last.filter(|_| more) {
                output::complain(&format!("there are more: continue with --after '{last}'"));
            }
        }
    }
    if unreadable > 0 {
        let text = format!("{} of {} cannot be read", quantity::count(unreadable, "object"), store.name());
        return Err(Failure::Failed(text));
    }
    Ok(())
}

/// Lists the staged forks of objects whose names begin with `prefix`.
async fn staged(
    session: &Context,
    store: &Store,
    mut objects: nacre::Objects,
    prefix: &[u8],
) -> Result<(), Failure> {
    let mut array = if session.json { Some(Array::begin()?) } else { None };
    let mut table = Table::new(&["BYTES", "IDLE", "FORK", "OBJECT"]);
    let mut rows = 0;
    loop {
        let mut page = Vec::new();
        while page.len() < STAGED_PAGE {
            let next = objects.next().await;
            let next = next.map_err(Failure::store(format!("list the objects of {}", store.name())))?;
            let Some(id) = next.filter(|id| id.as_bytes().starts_with(prefix)) else { break };
            page.push(id);
        }
        let stages = page.iter().map(async |id| store.object(id)?.staged().await);
        for (id, stages) in page.iter().zip(try_join_all(stages).await?) {
            for stage in stages {
                rows += 1;
                let idle_s = stage.idle.map(|idle| idle.as_secs());
                let (object, fork) = (id.to_string(), stage.fork.to_string());
                match &mut array {
                    Some(array) => array.entry(
                        &json!({ "object": object, "fork": fork, "bytes": stage.bytes, "idle_s": idle_s }),
                    )?,
                    None => {
                        let idle = idle_s.map_or("unknown".to_owned(), |seconds| format!("{seconds} s"));
                        table.row([stage.bytes.to_string(), idle, fork, object]);
                    }
                }
            }
        }
        if page.len() < STAGED_PAGE {
            break;
        }
    }
    match array {
        Some(array) => array.end()?,
        None if rows > 0 => table.print()?,
        None => {}
    }
    Ok(())
}

/// Returns the greatest name that is less than all that begin with `prefix`.
fn before(prefix: &[u8]) -> Option<ObjectId> {
    let (last, head) = prefix.split_last()?;
    let mut name = head.to_vec();
    if let Some(less) = last.checked_sub(1) {
        name.push(less);
        name.resize(limit::OBJECT_ID_BYTES_MAX.max(name.len()), 0xff);
    }
    // A prefix that is too long for a name has no name before it, and none that begins with it either.
    ObjectId::new(Bytes::from(name)).ok()
}

/// Queries objects. A damaged one does not prevent the others from being shown.
async fn stats(store: &Store, page: &[ObjectId]) -> Result<Vec<Result<Stat, Error>>, Failure> {
    let mut stats = Vec::with_capacity(page.len());
    for ids in page.chunks(64) {
        let group = ids.iter().map(async |id| store.object(id)?.stat().await);
        for result in join_all(group).await {
            match result {
                Err(error) if !matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                    return Err(error.into());
                }
                result => stats.push(result),
            }
        }
    }
    Ok(stats)
}

fn entry(id: &ObjectId, stat: Option<&Result<Stat, Error>>) -> Value {
    match stat {
        None => json!({ "object": id.to_string() }),
        Some(Err(error)) => json!({ "object": id.to_string(), "error": error.message }),
        Some(Ok(stat)) => json!({
            "object": id.to_string(),
            "version": stat.version,
            "bytes": stat.bytes,
            "forks": stat.forks,
            "keys": stat.keys,
            "attributes": stat.attributes,
        }),
    }
}

fn print(page: &[ObjectId], stats: Option<&[Result<Stat, Error>]>) -> Result<(), Failure> {
    let Some(stats) = stats else {
        for id in page {
            output::line(&id.to_string())?;
        }
        return Ok(());
    };
    if page.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["VERSION", "BYTES", "FORKS", "KEYS", "ATTRIBUTES", "OBJECT"]);
    for (id, stat) in page.iter().zip(stats) {
        let cells = match stat {
            Ok(stat) => [stat.version, stat.bytes, stat.forks, stat.keys, stat.attributes]
                .map(|number| number.to_string()),
            Err(_) => [(); 5].map(|()| "?".to_owned()),
        };
        table.row(cells.into_iter().chain([id.to_string()]));
    }
    Ok(table.print()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_begins_right_after_what_is_before_it() {
        assert_eq!(before(b""), None);
        assert_eq!(before(b"\0"), None);
        assert_eq!(before(b"a\0").unwrap().as_bytes(), b"a");
        let b = before(b"b").unwrap();
        assert_eq!((b.as_bytes().len(), &b.as_bytes()[..3]), (255, &b"a\xff\xff"[..]));
        assert!(b.as_bytes() < &b"b"[..]);
        assert_eq!(before(&[b'x'; 300]), None);
    }
}
