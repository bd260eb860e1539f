//! `nacre fs cat`, `get` and `put`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::pin;

use nacre::Store;
use nacre::fs::{Attributes, Error, InodeKind, Put};
use nacre_quantity::Escaped;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Path, Tree, failure, masked, recursive};
use crate::command::transfer::{self, Replacement, destination, within_reason};
use crate::failure::Failure;
use crate::interrupt::Interruption;
use crate::{output, quantity};

/// The number of bytes that are read together.
const CHUNK_BYTES: usize = 4 << 20;

/// Print files
#[derive(clap::Args, Debug)]
pub struct CatArgs {
    /// The files
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<OsString>,
}

/// Fetch a file, or a directory with everything below it
///
/// An existing local file is replaced once everything is fetched; the new one has its permissions, and its owner where
/// that is allowed. A symbolic link is followed and stays; one that leads nowhere is refused.
#[derive(clap::Args, Debug)]
pub struct GetArgs {
    /// The file in the namespace
    path: OsString,
    /// The local file, or a folder; - is standard output
    #[arg(default_value = "-")]
    file: PathBuf,
    /// Fetch a directory with everything below it, with permissions, times, extended attributes, symbolic and hard links
    #[arg(long, short)]
    recursive: bool,
}

/// Store a local file, standard input, or a folder with everything in it
///
/// Concurrent readers get the old content or the new one, and a put that is interrupted or fails leaves the old one. A new
/// file is there once its content is complete. A server that is being restarted is waited for, 10 seconds or the
/// repeat_timeout in the store's URI.
#[derive(clap::Args, Debug)]
pub struct PutArgs {
    /// The local file; - is standard input
    file: PathBuf,
    /// The file in the namespace, or a directory
    path: OsString,
    /// Store a folder with everything in it, with permissions, times, extended attributes, symbolic and hard links
    #[arg(long, short)]
    recursive: bool,
}

/// Runs `nacre fs cat`.
pub async fn cat(tree: &Tree, args: CatArgs) -> Result<(), Failure> {
    for path in args.paths.into_iter().map(Path::from) {
        let found = tree.find(&path, true, "read").await?;
        copy(tree, &path, &found, tokio::io::stdout(), Failure::from).await?;
    }
    Ok(())
}

/// Runs `nacre fs get`.
pub async fn get(tree: &Tree, args: GetArgs) -> Result<(), Failure> {
    let path = Path(args.path);
    if args.recursive {
        if args.file.as_os_str() == "-" {
            return Err(Failure::Usage("name the folder that the directory is fetched to".to_owned()));
        }
        return recursive::get(tree, path, args.file).await;
    }
    let found = tree.find(&path, true, "read").await?;
    if args.file.as_os_str() == "-" {
        return copy(tree, &path, &found, tokio::io::stdout(), Failure::from).await;
    }
    // Nothing is written over before it is known that there is something to fetch.
    let readable = match found.kind {
        InodeKind::Directory => Err(Error::IsDirectory),
        InodeKind::Typed(_) => Err(Error::Unsupported("it has methods, and no content".into())),
        _ => tree.rank.access(&tree.user, found.ino, nacre::fs::READ).await,
    };
    readable.map_err(|error| failure(error, format_args!("cannot read {path}")))?;
    let target = destination(args.file, &path.name().unwrap_or_default())?;
    let shown = Escaped::of(&target).to_string();
    let unwritten = |error| Failure::io(format!("write to {shown}"))(error);
    if let Some(file) = transfer::in_place(&target).await? {
        return copy(tree, &path, &found, file, unwritten).await;
    }
    let replacement = Replacement::of(&target)?;
    let file = replacement.writer()?;
    let interruption = Interruption::catch()?;
    tokio::select! {
        copied = copy(tree, &path, &found, file, unwritten) => copied?,
        () = interruption.wait() => return Err(interrupted(format_args!("cannot read {path}"))),
    }
    replacement.complete()
}

pub(super) fn interrupted(attempted: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("{attempted}: the command was interrupted"))
}

/// Writes a file's content to somewhere else. `unwritten` makes the failure to do so.
async fn copy(
    tree: &Tree,
    path: &Path,
    found: &Attributes,
    mut target: impl AsyncWrite + Unpin,
    unwritten: impl Fn(io::Error) -> Failure,
) -> Result<(), Failure> {
    let attempted = format!("cannot read {path}");
    let opened = tree.rank.open_file(&tree.user, found.ino, nacre::fs::READ).await;
    opened.map_err(|error| failure(error, &attempted))?;
    let (mut content, mut offset) = (None, 0);
    let done = loop {
        // What is put over the file meanwhile is not to be mixed with what it replaces.
        let read = tree.rank.read_file_content(found.ino, content, offset, CHUNK_BYTES).await;
        let (number, bytes) = match read {
            Ok(read) => read,
            Err(Error::NotFound) => {
                break Err(Failure::Failed(format!("{attempted}: it was removed meanwhile")));
            }
            Err(error) => break Err(failure(error, &attempted)),
        };
        if let Err(error) = target.write_all(&bytes).await {
            break Err(unwritten(error));
        }
        // Fewer bytes come only at the file's end.
        if bytes.len() < CHUNK_BYTES {
            break target.flush().await.map_err(&unwritten);
        }
        content = Some(number);
        offset += bytes.len() as u64;
    };
    tree.rank.close_file(found.ino).await;
    done
}

/// Runs `nacre fs put`. `servers` is a handle that does not wait for servers that are away, if the store has servers.
pub async fn put(tree: &Tree, servers: Option<&Store>, args: PutArgs) -> Result<(), Failure> {
    let is_stream = args.file.as_os_str() == "-";
    let shown = Escaped::of(&args.file).to_string();
    let mut path = Path(args.path);
    if args.recursive {
        return match is_stream {
            true => Err(Failure::Usage("standard input is no folder".to_owned())),
            false => recursive::put(tree, args.file, path).await,
        };
    }
    let existing = match tree.rank.resolve(&tree.user, path.bytes(), true).await {
        Ok(found) if found.kind == InodeKind::Directory => {
            let name = args.file.file_name().filter(|_| !is_stream).ok_or_else(|| {
                Failure::Usage(format!("{path} is a directory; name the file that standard input goes to"))
            })?;
            path = path.join(name.as_bytes());
            tree.rank.resolve(&tree.user, path.bytes(), true).await
        }
        found => found,
    };
    // The file is opened before anything is made in the namespace.
    let source: Box<dyn AsyncRead + Unpin> = if is_stream {
        Box::new(tokio::io::stdin())
    } else {
        let file = tokio::fs::File::open(&args.file).await.map_err(Failure::io(format!("open {shown}")))?;
        if file.metadata().await.is_ok_and(|metadata| metadata.is_dir()) {
            return Err(Failure::Failed(format!("cannot read {shown}: it is a directory")));
        }
        Box::new(file)
    };
    let attempted = format!("cannot write {path}");
    let mut interruption = pin!(Interruption::catch()?.wait());
    let mut put = tokio::select! {
        put = begin(tree, existing, &path) => put?,
        () = &mut interruption => return Err(interrupted(&attempted)),
    };
    let filled = tokio::select! {
        filled = fill(&mut put, source, &shown, &attempted) => filled,
        () = &mut interruption => Err(interrupted(&attempted)),
    };
    let stored = match filled {
        Ok(()) => {
            let mut commit = pin!(put.commit());
            let committed = tokio::select! {
                committed = commit.as_mut() => Some(committed),
                () = &mut interruption => within_reason(servers, commit.as_mut()).await,
            };
            match committed {
                Some(Ok(bytes)) => Ok(bytes),
                Some(Err(error @ Error::Store(_))) => Err(with_remains(failure(error, &attempted))),
                Some(Err(error)) => Err(failure(error, &attempted)),
                None => Err(with_remains(Failure::Failed(format!(
                    "{attempted}: the command was interrupted in its last step, which may have taken effect"
                )))),
            }
        }
        Err(failure) => match within_reason(servers, put.abort()).await {
            Some(Ok(())) => Err(failure),
            _ => Err(with_remains(failure)),
        },
    };
    let bytes = stored?;
    match tree.json {
        true => {
            let mut map = serde_json::Map::new();
            output::put_bytes(&mut map, "path", path.bytes());
            // That of another file, if somebody else has made one of the name meanwhile.
            map.insert("inode".into(), tree.find(&path, true, "look at").await?.ino.0.into());
            map.insert("bytes".into(), bytes.into());
            output::line(&serde_json::Value::Object(map).to_string())?
        }
        false => output::line(&format!("{} stored in {path}", quantity::count(bytes, "byte")))?,
    }
    Ok(())
}

/// Begins to put content into a file, or into a new one where there is none.
async fn begin<'a>(
    tree: &'a Tree,
    existing: Result<Attributes, Error>,
    path: &Path,
) -> Result<Put<'a>, Failure> {
    let put = match existing {
        Ok(found) => tree.rank.put(&tree.user, found.ino).await,
        Err(Error::NotFound) => {
            let (parent, name) = tree.parent_of_file(path, "create").await?;
            let put = match tree.rank.put_new(&tree.user, parent.ino, &name, masked(0o666)).await {
                // Somebody else was faster.
                Err(Error::Exists) => match tree.rank.resolve(&tree.user, path.bytes(), true).await {
                    Ok(found) => tree.rank.put(&tree.user, found.ino).await,
                    Err(Error::NotFound) => Err(Error::Exists),
                    Err(error) => Err(error),
                },
                put => put,
            };
            return put.map_err(|error| failure(error, format_args!("cannot create {path}")));
        }
        Err(error) => Err(error),
    };
    put.map_err(|error| failure(error, format_args!("cannot write {path}")))
}

/// Puts all bytes of a source.
async fn fill(
    put: &mut Put<'_>,
    mut source: Box<dyn AsyncRead + Unpin>,
    shown: &str,
    attempted: &str,
) -> Result<(), Failure> {
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = source.read(&mut buffer).await.map_err(Failure::io(format!("read {shown}")))?;
        if count == 0 {
            return Ok(());
        }
        put.write(&buffer[..count]).await.map_err(|error| failure(error, attempted))?;
    }
}

/// Returns the failure of a put of which parts may be left in the store, which nobody sees.
pub(super) fn with_remains(failure: Failure) -> Failure {
    match failure {
        Failure::Failed(text) => Failure::Failed(format!(
            "{text}; parts that it has stored may take space until \"nacre fs check --mend\" removes them"
        )),
        failure => failure,
    }
}
