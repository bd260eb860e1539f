//! `nacre fs cat`, `get` and `put`.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nacre::fs::{Attributes, Creation, Credentials, Error, InodeKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{Path, Tree, failure, masked};
use crate::command::transfer::{Target, destination, or_interrupted};
use crate::failure::Failure;
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

/// Fetch a file
///
/// An existing local file is replaced once everything is fetched; the new one has its permissions, and its owner where
/// that is allowed.
#[derive(clap::Args, Debug)]
pub struct GetArgs {
    /// The file in the namespace
    path: OsString,
    /// The local file, or a folder; - is standard output
    #[arg(default_value = "-")]
    file: PathBuf,
}

/// Store a local file, or standard input
///
/// Concurrent readers get the old content or the new one, and a put that fails leaves the old one. A new file is empty
/// until its content is complete.
#[derive(clap::Args, Debug)]
pub struct PutArgs {
    /// The local file; - is standard input
    file: PathBuf,
    /// The file in the namespace, or a directory
    path: OsString,
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
    let shown = output::text(target.as_os_str().as_bytes());
    let failed = |error| Failure::io(format!("write to {shown}"))(error);
    match Target::open(&target).await? {
        Target::Output => copy(tree, &path, &found, tokio::io::stdout(), Failure::from).await,
        Target::InPlace(file) => copy(tree, &path, &found, file, failed).await,
        Target::Replacement(target) => {
            or_interrupted(copy(tree, &path, &found, target.writer()?, failed)).await?;
            target.complete()
        }
    }
}

/// Writes a file's content to somewhere else. `failed` makes the failure to do so.
async fn copy(
    tree: &Tree,
    path: &Path,
    found: &Attributes,
    mut target: impl AsyncWrite + Unpin,
    failed: impl Fn(io::Error) -> Failure,
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
            Err(error) => break Err(failure(error, &attempted)),
        };
        if let Err(error) = target.write_all(&bytes).await {
            break Err(failed(error));
        }
        // Fewer bytes come only at the file's end.
        if bytes.len() < CHUNK_BYTES {
            break target.flush().await.map_err(&failed);
        }
        content = Some(number);
        offset += bytes.len() as u64;
    };
    tree.rank.close_file(found.ino).await;
    done
}

/// Runs `nacre fs put`.
pub async fn put(tree: &Tree, args: PutArgs) -> Result<(), Failure> {
    let is_stream = args.file.as_os_str() == "-";
    let shown = output::text(args.file.as_os_str().as_bytes());
    let mut path = Path(args.path);
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
    let (ino, user) = match existing {
        Ok(found) => (found.ino, tree.user.clone()),
        Err(Error::NotFound) => {
            let (parent, name) = tree.parent_of_file(&path, "create").await?;
            let creation = Creation::new(InodeKind::File, masked(0o666));
            let created = match tree.rank.create(&tree.user, parent.ino, &name, creation).await {
                // Who makes a file may write it whatever its permissions are.
                Ok(created) => Ok((created.ino, Credentials::root())),
                // Somebody else was faster.
                Err(Error::Exists) => match tree.rank.resolve(&tree.user, path.bytes(), true).await {
                    Ok(found) => Ok((found.ino, tree.user.clone())),
                    Err(Error::NotFound) => Err(Error::Exists),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            created.map_err(|error| failure(error, format_args!("cannot create {path}")))?
        }
        Err(error) => return Err(failure(error, &attempted)),
    };
    let bytes = stream(tree, &user, ino, source, &shown).await?;
    let bytes = bytes.map_err(|error| failure(error, &attempted))?;
    match tree.json {
        true => {
            let mut map = serde_json::Map::new();
            output::put_bytes(&mut map, "path", path.bytes());
            map.insert("inode".into(), ino.0.into());
            map.insert("bytes".into(), bytes.into());
            output::line(&serde_json::Value::Object(map).to_string())?
        }
        false => output::line(&format!("{} stored in {path}", quantity::count(bytes, "byte")))?,
    }
    Ok(())
}

/// Puts all bytes of a source into a file.
async fn stream(
    tree: &Tree,
    user: &Credentials,
    ino: nacre::fs::Ino,
    mut source: Box<dyn AsyncRead + Unpin>,
    shown: &str,
) -> Result<Result<u64, Error>, Failure> {
    let mut put = match tree.rank.put(user, ino).await {
        Ok(put) => put,
        Err(error) => return Ok(Err(error)),
    };
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = match source.read(&mut buffer).await {
            Ok(0) => return Ok(put.commit().await),
            Ok(count) => count,
            Err(error) => {
                // The first failure is the one to report.
                let _ = put.abort().await;
                return Err(Failure::io(format!("read {shown}"))(error));
            }
        };
        if let Err(error) = put.write(&buffer[..count]).await {
            let _ = put.abort().await;
            return Ok(Err(error));
        }
    }
}
