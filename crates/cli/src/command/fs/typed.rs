//! `nacre fs create` and `call`: inodes of types with methods, and calls of them.

use std::ffi::{OsStr, OsString};

use bytes::Bytes;
use nacre::fs::{
    Attributes, CallError, Creation, Error, Ino, InodeKind, Listed, READ, RankOptions, SEQUENCER, WRITE,
};
use nacre::sequencer::{Policy, Sequencer};
use nacre_quantity::Escaped;
use serde_json::json;

use super::{Path, Tree, failure, masked};
use crate::command::class;
use crate::command::sequencer::{COUNT_MAX, print_next};
use crate::failure::Failure;
use crate::name;
use crate::output;
use crate::session::Context;

/// Create inodes of a type with methods: a sequencer, or a class of "nacre class"
#[derive(clap::Args, Debug)]
pub struct CreateArgs {
    /// The inodes
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
    /// The type: "sequencer", or the name of an installed class
    #[arg(long = "type", value_name = "TYPE")]
    kind: String,
    /// Permissions, in octal [default: 666 minus the umask]
    #[arg(long, value_name = "MODE", value_parser = super::change::octal)]
    mode: Option<u32>,
    /// The policy of a sequencer, as in "nacre sequencer --help" [default: best-effort]
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,
}

/// Call a method of an inode; prints its output
///
/// A sequencer has the methods next (its input is a count, 1 by default), read, and policy (shows the policy, or sets
/// it to the input). Other types have the methods of their class, which "nacre class ls" lists. A method that changes
/// the inode's state needs write permission, others need read permission.
#[derive(clap::Args, Debug)]
pub struct CallArgs {
    /// The inode
    path: OsString,
    /// The method
    method: String,
    /// The input, passed unchanged; - is standard input
    #[arg(default_value = "", hide_default_value = true, value_parser = name::value(), allow_hyphen_values = true)]
    input: Bytes,
}

/// Checks that inodes as they are wanted can be made in a store, before anything is made in it.
pub(super) async fn check(store: &nacre::Store, args: &CreateArgs) -> Result<(), Failure> {
    if args.kind == SEQUENCER {
        return check_rank(store).await;
    }
    if args.policy.is_some() {
        return Err(Failure::Usage("only a sequencer has a policy".to_owned()));
    }
    if !store.classes().catalogue().await?.classes.contains_key(&args.kind) {
        let shown = Escaped::of(&args.kind);
        let text = format!(
            "there is no inode type \"{shown}\": it is neither \"{SEQUENCER}\" nor a class that \"nacre class ls\" lists"
        );
        return Err(Failure::Failed(text));
    }
    Ok(())
}

/// Checks that a metadata rank answers, without which nobody could use a sequencer.
async fn check_rank(store: &nacre::Store) -> Result<(), Failure> {
    // The root is no sequencer, and it takes a rank to say so.
    let looked = match store.sequencer_inode(Ino::ROOT).await {
        Ok(root) => root.look().await.map(drop),
        Err(error) => Err(error),
    };
    store.end_sequencers().await;
    match looked {
        Err(error) if error.kind != nacre::ErrorKind::Invalid => {
            Err(error.context("cannot create a sequencer").into())
        }
        _ => Ok(()),
    }
}

/// Runs `nacre fs create`.
pub(super) async fn create(tree: &Tree, args: CreateArgs) -> Result<(), Failure> {
    let mode = args.mode.unwrap_or_else(|| masked(0o666));
    let creation = match args.kind == SEQUENCER {
        true => Creation::sequencer(args.policy.unwrap_or_default(), mode),
        false => Creation::new(InodeKind::Typed(args.kind), mode),
    };
    for path in args.paths.into_iter().map(Path::from) {
        make(tree, &path, creation.clone()).await?;
    }
    Ok(())
}

async fn make(tree: &Tree, path: &Path, creation: Creation) -> Result<(), Failure> {
    let (parent, name) = tree.parent_of_file(path, "create").await?;
    let created = tree.rank.create(&tree.user, parent.ino, &name, creation).await;
    created.map(drop).map_err(|error| failure(error, format_args!("cannot create {path}")))
}

/// Runs `nacre fs call`.
pub(super) async fn call(session: &Context, tree: &Tree, args: CallArgs) -> Result<(), Failure> {
    let path = Path::from(args.path);
    let found = tree.find(&path, true, "call a method of").await?;
    let input = if args.input == "-" { class::read_input()? } else { args.input };
    let attempted = format!("cannot call \"{}\" of {path}", Escaped::of(&args.method));
    match &found.kind {
        InodeKind::Typed(name) if name == SEQUENCER => {
            let done = call_sequencer(tree, &found, &path, &args.method, &input).await;
            tree.store.end_sequencers().await;
            done
        }
        _ => match tree.store.call_inode(&tree.rank, &tree.user, found.ino, &args.method, input).await {
            Ok(called) => class::print_result(session, &called, false),
            Err(CallError::Namespace(error)) => Err(failure(error, attempted)),
            Err(CallError::Method(error)) => Err(method_failure(error, &path)),
            Err(error) => Err(Failure::Failed(format!("{attempted}: {error}"))),
        },
    }
}

/// Returns the failure of a method, which names the inode: its object is nothing that the user named.
fn method_failure(error: nacre::class::CallError, path: &Path) -> Failure {
    use nacre::class::CallError;
    let object = match &error {
        CallError::Failed { object, .. }
        | CallError::Exceeded { object, .. }
        | CallError::Fenced { object, .. }
        | CallError::Contended { object, .. } => format!("on object \"{object}\""),
        _ => String::new(),
    };
    match class::call_failure(error) {
        Failure::Failed(text) if !object.is_empty() => {
            Failure::Failed(text.replacen(&object, &format!("of {path}"), 1))
        }
        failure => failure,
    }
}

async fn call_sequencer(
    tree: &Tree,
    found: &Attributes,
    path: &Path,
    method: &str,
    input: &[u8],
) -> Result<(), Failure> {
    let text = std::str::from_utf8(input).map_or("", str::trim);
    let shown = Escaped::of(method);
    let usage =
        |expected: &str| Failure::Usage(format!("the input of \"{shown}\" of a sequencer is {expected}"));
    let wanted = match (method, text) {
        ("next", _) => WRITE,
        ("policy", text) if !text.is_empty() => WRITE,
        _ => READ,
    };
    let (sequencer, failed) = open(tree, found, path, wanted).await?;
    match method {
        "next" => {
            let count: u64 =
                if text.is_empty() { Ok(1) } else { text.parse() }.map_err(|_| usage("a count"))?;
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(usage(&format!("a count of 1 to {COUNT_MAX}")));
            }
            print_next(&sequencer, count, tree.json, failed).await
        }
        "read" => {
            let tail = sequencer.read().await.map_err(failed)?;
            let line = if tree.json { json!({ "tail": tail }).to_string() } else { tail.to_string() };
            Ok(output::line(&line)?)
        }
        "policy" if text.is_empty() => {
            let policy = sequencer.look().await.map_err(failed)?.policy.to_string();
            let line = if tree.json { json!({ "policy": policy }).to_string() } else { policy };
            Ok(output::line(&line)?)
        }
        "policy" => {
            let policy = text.parse().map_err(|error: String| Failure::Usage(error))?;
            sequencer.set_policy(policy).await.map_err(failed)
        }
        _ => {
            let text = "a sequencer has the methods next, read and policy";
            Err(Failure::Failed(format!("cannot call \"{}\" of {path}: {text}", Escaped::of(method))))
        }
    }
}

/// Returns the sequencer at a path, for a user with the `wanted` rights, and what a failure of it is told as.
async fn open<'a>(
    tree: &Tree,
    found: &Attributes,
    path: &'a Path,
    wanted: u32,
) -> Result<(Sequencer, impl Fn(nacre::Error) -> Failure + 'a), Failure> {
    let checked = tree.rank.typed(&tree.user, found.ino, wanted).await;
    let is_one = checked.map(|typed| typed.name == SEQUENCER);
    if !is_one.map_err(|error| failure(error, format_args!("cannot use {path}")))? {
        let error = Error::Unsupported("it is not a sequencer".into());
        return Err(failure(error, format_args!("cannot use {path}")));
    }
    let sequencer = tree.store.sequencer_inode(found.ino).await?;
    let failed = move |error: nacre::Error| match error.kind {
        // Room on a disk would not help.
        nacre::ErrorKind::OutOfSpace if error.message.contains("positions left") => {
            Failure::Failed(format!("cannot use {path}: {}; take fewer at once", error.message))
        }
        _ => error.context(format_args!("cannot use {path}")).into(),
    };
    Ok((sequencer, failed))
}

/// Returns the sequencer at a path of the namespace, for the user of this process with the `wanted` rights.
pub async fn sequencer(store: &nacre::Store, path: &OsStr, wanted: u32) -> Result<Sequencer, Failure> {
    let tree = Tree::open(store, false, false).await?;
    let path = Path(path.into());
    let found = tree.find(&path, true, "use").await?;
    Ok(open(&tree, &found, &path, wanted).await?.0)
}

/// Returns the sequencers at and below a path of the namespace, with their paths as they are printed. The user of this process
/// must have the right to write to each.
pub async fn sequencers_below(
    store: &nacre::Store,
    path: &OsStr,
    attempted: &str,
) -> Result<Vec<(String, Sequencer)>, Failure> {
    let tree = Tree::open(store, false, false).await?;
    let path = Path(path.into());
    let found = tree.find(&path, true, attempted).await?;
    let (mut waiting, mut sequencers) = (vec![(path, found)], Vec::new());
    while let Some((path, found)) = waiting.pop() {
        match &found.kind {
            InodeKind::Directory => {
                let each = async |listed: Listed| {
                    if let Some(attributes) = listed.attributes {
                        waiting.push((path.join(&listed.name), attributes));
                    }
                    Ok(())
                };
                tree.list(&found, &path, true, each).await?;
            }
            InodeKind::Typed(name) if name == SEQUENCER => {
                let (sequencer, _) = open(&tree, &found, &path, WRITE).await?;
                sequencers.push((path.to_string(), sequencer));
            }
            _ => {}
        }
    }
    tree.close().await;
    Ok(sequencers)
}

/// Returns the directory at a path of the namespace, in which the user of this process must have the right to write.
pub async fn pinned_directory(store: &nacre::Store, path: &OsStr, attempted: &str) -> Result<Ino, Failure> {
    let tree = Tree::open(store, false, false).await?;
    let path = Path(path.into());
    let found = tree.find(&path, true, attempted).await?;
    let failed = |error| failure(error, format_args!("cannot {attempted} {path}"));
    if found.kind != InodeKind::Directory {
        return Err(failed(Error::NotDirectory));
    }
    tree.rank.access(&tree.user, found.ino, WRITE).await.map_err(failed)?;
    tree.close().await;
    Ok(found.ino)
}

/// Returns what is at a path of the namespace, as the user of this process sees it; `None` if nothing is.
pub async fn look(store: &nacre::Store, path: &[u8]) -> Result<Option<Attributes>, Error> {
    let user = super::caller();
    let rank = match store.rank(RankOptions { owner: user.clone(), ..RankOptions::default() }).await {
        Ok(rank) => rank,
        // There is no namespace.
        Err(Error::NotFound) => return Ok(None),
        Err(error) => return Err(error),
    };
    match rank.resolve(&user, path, true).await {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound | Error::NotDirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a sequencer at a path of the namespace.
pub async fn create_sequencer(store: &nacre::Store, path: &OsStr, policy: Policy) -> Result<(), Failure> {
    check_rank(store).await?;
    let tree = Tree::open(store, true, false).await?;
    let done = make(&tree, &Path(path.into()), Creation::sequencer(policy, masked(0o666))).await;
    tree.close().await;
    done
}

/// Removes a sequencer at a path of the namespace.
pub async fn remove_sequencer(store: &nacre::Store, path: &OsStr) -> Result<(), Failure> {
    let tree = Tree::open(store, false, false).await?;
    let path = Path(path.into());
    let found = tree.find(&path, false, "remove").await?;
    let done = match found.kind {
        InodeKind::Typed(name) if name == SEQUENCER => {
            let (parent, name) = tree.parent_of_file(&path, "remove").await?;
            let removed = tree.rank.unlink(&tree.user, parent.ino, &name).await;
            removed.map_err(|error| failure(error, format_args!("cannot remove {path}")))
        }
        _ => {
            let error = Error::Unsupported("it is not a sequencer".into());
            Err(failure(error, format_args!("cannot remove {path}")))
        }
    };
    tree.close().await;
    done
}
