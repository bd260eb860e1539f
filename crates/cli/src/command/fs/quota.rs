//! `nacre fs quota`.

use std::ffi::OsString;

use nacre::fs::{Error, Limits};
use serde_json::json;

use super::{Path, Tree, failure};
use crate::failure::Failure;
use crate::output;
use crate::quantity::{grouped, parse_size};

/// Limit what a directory and everything below it may hold
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    Set(SetArgs),
    Show(ShowArgs),
    Rm(RmArgs),
}

/// Give an empty directory a quota, or change the limits of a directory that has one
///
/// Only root and the owner of the root directory may do so. What is in a directory with a quota cannot be moved or linked to a
/// directory outside of it, or the other way round; it is copied.
#[derive(clap::Args, Debug)]
pub struct SetArgs {
    /// The directory
    #[arg(value_name = "PATH")]
    path: OsString,
    /// Maximum of bytes in files, by their sizes, or "none" [default: the present limit, or none]
    #[arg(long, value_name = "SIZE", value_parser = bytes_limit)]
    bytes: Option<Limit>,
    /// Maximum number of files, directories and others, or "none" [default: the present limit, or none]
    #[arg(long, value_name = "COUNT", value_parser = entries_limit)]
    entries: Option<Limit>,
}

/// Show limits and usage of the quota that applies to a path
///
/// The usage includes what commands and mounts that are at work have reserved.
#[derive(clap::Args, Debug)]
pub struct ShowArgs {
    /// The path
    #[arg(value_name = "PATH", default_value = "/")]
    path: OsString,
}

/// Remove the quota of an empty directory
#[derive(clap::Args, Debug)]
pub struct RmArgs {
    /// The directory
    #[arg(value_name = "PATH")]
    path: OsString,
}

/// A limit as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limit(Option<u64>);

fn bytes_limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => parse_size(text).map(|bytes| Limit(Some(bytes))),
    }
}

fn entries_limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit(None)),
        text => nacre_quantity::count_parser::<u64>(0..=u64::MAX)(text).map(|count| Limit(Some(count))),
    }
}

/// Runs `nacre fs quota`.
pub async fn run(tree: &Tree, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Set(args) => set(tree, args).await,
        Action::Show(args) => show(tree, args).await,
        Action::Rm(args) => {
            let path = Path::from(args.path);
            let found = tree.find(&path, true, "remove the quota of").await?;
            let removed = tree.rank.remove_quota(&tree.user, found.ino).await;
            removed.map_err(|error| failure(error, format_args!("cannot remove the quota of {path}")))
        }
    }
}

async fn set(tree: &Tree, args: SetArgs) -> Result<(), Failure> {
    let path = Path::from(args.path);
    if args.bytes.is_none() && args.entries.is_none() {
        return Err(Failure::Usage("give --bytes, --entries, or both".to_owned()));
    }
    let failed = |error: Error| failure(error, format_args!("cannot set the quota of {path}"));
    let found = tree.find(&path, true, "set the quota of").await?;
    let quota = tree.rank.quota(found.ino).await.map_err(failed)?;
    let present =
        quota.filter(|quota| quota.root == found.ino).map_or(Limits::default(), |quota| quota.limits);
    let limits = Limits {
        bytes: args.bytes.map_or(present.bytes, |limit| limit.0),
        entries: args.entries.map_or(present.entries, |limit| limit.0),
    };
    tree.rank.set_quota(&tree.user, found.ino, limits).await.map_err(failed)
}

async fn show(tree: &Tree, args: ShowArgs) -> Result<(), Failure> {
    let path = Path::from(args.path);
    let found = tree.find(&path, true, "show the quota of").await?;
    let quota = tree.rank.quota(found.ino).await;
    let quota = quota.map_err(|error| failure(error, format_args!("cannot show the quota of {path}")))?;
    let Some(quota) = quota else {
        if tree.json {
            return Ok(output::line("null")?);
        }
        return Ok(output::line(&format!("no quota applies to {path}"))?);
    };
    if tree.json {
        let value = json!({
            "directory": quota.root.0,
            "own": quota.root == found.ino,
            "bytes": { "used": quota.used.bytes, "limit": quota.limits.bytes },
            "entries": { "used": quota.used.entries, "limit": quota.limits.entries },
        });
        return Ok(output::line(&value.to_string())?);
    }
    let line = |used: u64, limit: Option<u64>, one: &str, many: &str| match limit {
        Some(limit) => format!("{} of {}", grouped(used), nacre_quantity::count(limit, one, many)),
        None => format!("{}, no limit", nacre_quantity::count(used, one, many)),
    };
    if quota.root != found.ino {
        output::line(&format!("the quota of a directory above {path}, inode {}:", quota.root))?;
    }
    let (used, limits) = (quota.used, quota.limits);
    output::line(&line(used.bytes, limits.bytes, "byte", "bytes"))?;
    output::line(&line(used.entries, limits.entries, "entry", "entries"))?;
    Ok(())
}
