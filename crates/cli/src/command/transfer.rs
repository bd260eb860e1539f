//! `nacre put` and `nacre get`: byte streams of any length.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nacre::{ByteRange, Engine, Fork, Object, ObjectId, ObjectStore, Store, Stream, StreamStat};
use nacre_quantity::Escaped;
use rustix::fs::{Gid, Uid};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite};

use crate::arguments::{ForkArgs, RangeArgs};
use crate::failure::Failure;
use crate::interrupt::{Interruptible, Interruption};
use crate::partial::Partial;
use crate::progress::Metered;
use crate::session::{self, Context};
use crate::{complete, name, output, quantity};

/// The time that a put which failed, or was interrupted, has for removing what it has stored, or for its last step.
const CLEANUP_MAX: Duration = Duration::from_secs(5);
/// The time after which servers that do not answer an interrupted put are taken for gone.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Store a file, or standard input, as an object
///
/// The previous content of the fork is replaced atomically: concurrent readers get the old content or the new one, and
/// a put that is interrupted or fails leaves the old one. Streams may have any length. Content longer than 16 MiB is
/// staged in a fork that "nacre ls --staged" shows until it is complete.
///
/// A file longer than an object of the store may be becomes a stream: it is striped over many objects, whose names
/// begin with "nacre/stream/", and is still replaced atomically. "nacre get" and "nacre rm" find it by its name.
#[derive(clap::Args, Debug)]
pub struct PutArgs {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// The file; - is standard input
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    fork: ForkArgs,
    /// Store it as a stream, whatever its length: for standard input that may be longer than an object
    #[arg(long, conflicts_with = "fork")]
    striped: bool,
}

/// Fetch an object to a file, or to standard output
///
/// All bytes belong to one moment: if the object changes meanwhile, the command fails and says so. Holes of the object
/// become holes of the file. An existing file is replaced once everything is fetched; the new one has its permissions,
/// and its owner where that is allowed. A symbolic link is followed and stays; one that leads nowhere is refused.
#[derive(clap::Args, Debug)]
pub struct GetArgs {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// The file, or a folder in which it gets the object's name; - is standard output
    #[arg(default_value = "-")]
    file: PathBuf,
    #[command(flatten)]
    range: RangeArgs,
    #[command(flatten)]
    fork: ForkArgs,
}

/// Runs `nacre put`.
pub async fn put(session: &Context, args: PutArgs) -> Result<(), Failure> {
    let object = session.object_to_fill(&args.object, &args.fork.own()?)?;
    let stream = object.store().stream(object.id())?;
    let whole = *object.fork_name() == Fork::DEFAULT;
    // What is a stream stays one: its content is replaced with all its objects.
    let mut striped = args.striped || whole && stream.stat().await?.is_some();
    let mut total = None;
    let source: Box<dyn AsyncRead + Unpin> = if args.file == Path::new("-") {
        Box::new(tokio::io::stdin())
    } else {
        let shown = Escaped::of(&args.file);
        let file = tokio::fs::File::open(&args.file).await.map_err(Failure::io(format!("open {shown}")))?;
        let metadata = file.metadata().await.map_err(Failure::io(format!("look at {shown}")))?;
        if metadata.is_dir() {
            return Err(Failure::Failed(format!(
                "{shown} is a folder; name a file, or - for standard input"
            )));
        }
        total = metadata.is_file().then_some(metadata.len());
        Box::new(file)
    };
    if whole && let Some(total) = total {
        striped |= total > object.store().limits().await?.fork_bytes_max;
    }
    let source = Interruptible::new(Metered::new(source, total))?;
    let interruption = Interruption::catch()?;
    let mut storing = pin!(async {
        if striped { stream.put(source).await } else { object.put_sized(source, total).await }
    });
    let stored = tokio::select! {
        stored = storing.as_mut() => Some(stored),
        // The source ends with a failure, unless the end is near already.
        () = interruption.wait() => {
            let has_servers = matches!(session.parsed_uri()?.engine, Engine::Servers(_));
            within_reason(has_servers.then_some(object.store()), storing.as_mut()).await
        }
    };
    let Some(stored) = stored else {
        let left =
            if striped { "" } else { "; \"nacre rm --staged\" removes what was stored of the new one" };
        return Err(Failure::Failed(format!(
            "cannot store all of object \"{}\" of {}: the command was interrupted, and the server does not answer; the content is the \
             old one, unless this was the last step{left}",
            object.id(),
            object.store().name()
        )));
    };
    let bytes = stored?;
    match session.json {
        true => output::line(&json!({ "object": object.id().to_string(), "bytes": bytes }).to_string())?,
        false => output::line(&format!("{} stored in \"{}\"", quantity::count(bytes, "byte"), object.id()))?,
    }
    Ok(())
}

/// Does what is left to be done after a failure or an interruption. Returns `None` if that takes too long, or if a server is away,
/// for which it would wait.
pub async fn within_reason<T>(servers: Option<&Store>, work: impl Future<Output = T>) -> Option<T> {
    let away = async {
        let Some(servers) = servers else { return std::future::pending().await };
        while let Ok(Ok(_)) = tokio::time::timeout(ANSWER_MAX, ObjectStore::list(servers, None, 1)).await {
            tokio::time::sleep(ANSWER_MAX).await;
        }
    };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = away => None,
        () = tokio::time::sleep(CLEANUP_MAX) => None,
    }
}

/// Runs `nacre get`.
pub async fn get(session: &Context, args: GetArgs) -> Result<(), Failure> {
    let is_output = args.file == Path::new("-");
    let file = match is_output {
        true => args.file,
        false => destination(args.file, args.object.as_bytes())?,
    };
    let object = session.object(&args.object, &args.fork.fork())?;
    // A server that goes away once there is something to fetch is waited for.
    let patient = object.store().patient();
    let source = Source::find(object).await?.at(&patient)?;
    let range = args.range.range();
    if is_output || descriptor(&file) == Some(1) {
        return source.copy(range, tokio::io::stdout()).await;
    }
    if let Some(file) = in_place(&file).await? {
        return source.copy(range, file).await;
    }
    let shown = Escaped::of(&file).to_string();
    let replacement = Replacement::of(&file)?;
    let file = replacement.writer()?;
    let total = source.size().await?.saturating_sub(range.offset).min(range.len);
    // A file system says at once what is too long for it.
    replacement.partial.file().set_len(total).map_err(|error| {
        let total = quantity::count(total, "byte");
        Failure::Failed(format!("cannot extend {shown} to {total}: {error}; --length fetches a part"))
    })?;
    let mut signals = nacre_shell::Signals::catch()?;
    let mut writer = Metered::new(file, Some(total));
    let bytes = tokio::select! {
        copied = source.get_sparse(range, &mut writer) => copied?,
        () = signals.next() => return Err(Failure::Failed("interrupted".to_owned())),
    };
    drop(writer);
    // The end may be a hole.
    replacement.partial.file().set_len(bytes).map_err(Failure::io(format!("write all of {shown}")))?;
    replacement.complete()
}

/// Opens a file that can only be written in place: behind a file descriptor of this process, a device or a pipe. `None` for a regular
/// file, and where there is none.
pub async fn in_place(path: &Path) -> Result<Option<tokio::fs::File>, Failure> {
    let mut options = tokio::fs::OpenOptions::new();
    if descriptor(path).is_some() {
        // The file behind it is somebody's who goes on with it: it is added to, and not replaced.
        options.append(true);
    } else if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        options.write(true);
    } else {
        return Ok(None);
    }
    let file = options.open(path).await;
    file.map(Some).map_err(Failure::io(format!("write to {}", Escaped::of(path))))
}

/// A regular file that gets its name when it is complete, so that the one that has the name survives a failure. Its permissions are
/// kept, and its owner where that is allowed.
pub struct Replacement {
    partial: Partial,
    /// The file that has the name, if there is one.
    before: Option<std::fs::Metadata>,
    shown: String,
}

impl Replacement {
    /// Begins to replace, or to make, the file at a path.
    pub fn of(path: &Path) -> Result<Replacement, Failure> {
        let shown = Escaped::of(path).to_string();
        let before = std::fs::metadata(path).ok();
        let target = match std::fs::canonicalize(path) {
            Ok(target) => target,
            // The file would take the place of the link, and nobody would have what the link was made for.
            Err(error) if path.is_symlink() => {
                return Err(Failure::Failed(format!(
                    "{shown} is a symbolic link that cannot be followed: {error}; remove it, or name the file that it is to lead to"
                )));
            }
            Err(_) => path.to_owned(),
        };
        let partial = Partial::beside(&target).map_err(Failure::io(format!("create the file {shown}")))?;
        Ok(Replacement { partial, before, shown })
    }

    /// Returns what its content is written with.
    pub fn writer(&self) -> Result<tokio::fs::File, Failure> {
        let file = self.partial.file().try_clone();
        file.map(tokio::fs::File::from_std).map_err(Failure::io(format!("create the file {}", self.shown)))
    }

    /// Gives the file its name.
    pub fn complete(self) -> Result<(), Failure> {
        let Replacement { partial, before, shown } = self;
        if let Some(before) = before {
            // Whoever may not give files away keeps it.
            let (user, group) = (Uid::from_raw(before.uid()), Gid::from_raw(before.gid()));
            let _ = rustix::fs::fchown(partial.file(), Some(user), Some(group));
            // A program that others run with its owner's rights is not to become one of other content, or of another owner.
            let permissions = std::fs::Permissions::from_mode(before.mode() & 0o777);
            let kept = partial.file().set_permissions(permissions);
            kept.map_err(Failure::io(format!("keep the permissions of {shown}")))?;
        }
        partial.complete().map_err(Failure::io(format!("replace {shown}")))
    }
}

/// Returns the file that something of a name is fetched to: within a folder it has that name, as with cp.
pub fn destination(file: PathBuf, name: &[u8]) -> Result<PathBuf, Failure> {
    let shown = Escaped::of(&file).to_string();
    if !file.is_dir() {
        return match file.as_os_str().as_bytes().ends_with(b"/") {
            true => Err(Failure::Failed(format!("there is no folder {shown}"))),
            false => Ok(file),
        };
    }
    // A name that leads elsewhere is not followed: others may have chosen it.
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|byte| matches!(byte, b'/' | 0)) {
        return Err(Failure::Failed(format!(
            "{shown} is a folder, in which no file can be called \"{}\"; name the file",
            Escaped(name)
        )));
    }
    let target = file.join(OsStr::from_bytes(name));
    match target.is_dir() {
        true => {
            let shown = Escaped::of(&target).to_string();
            Err(Failure::Failed(format!("{shown} is a folder; name the file")))
        }
        false => Ok(target),
    }
}

/// Returns the number of this process's file descriptor that a path leads to, as `/dev/stdout` does.
fn descriptor(path: &Path) -> Option<u32> {
    let mut path = path.to_owned();
    // As many links as the system follows.
    for _ in 0..40 {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => std::fs::canonicalize(folder).ok()?,
            _ => std::env::current_dir().ok()?,
        };
        let name = path.file_name()?;
        if folder == Path::new(&format!("/proc/{}/fd", std::process::id())) {
            return name.to_str()?.parse().ok();
        }
        path = folder.join(std::fs::read_link(folder.join(name)).ok()?);
    }
    None
}

/// Writes the bytes of a range of an object to a file or to standard output.
pub async fn copy(object: &Object, range: ByteRange, target: impl AsyncWrite + Unpin) -> Result<(), Failure> {
    Source::Object(object.clone()).copy(range, target).await
}

/// The source of bytes that are fetched.
enum Source {
    Object(Object),
    Stream(Stream, StreamStat),
}

impl Source {
    /// Returns the stream of an object's name, or the object with its fork, which must exist.
    async fn find(object: Object) -> Result<Source, Failure> {
        if *object.fork_name() == Fork::DEFAULT {
            let stream = object.store().stream(object.id())?;
            if let Some(stat) = stream.stat().await? {
                return Ok(Source::Stream(stream, stat));
            }
            // An object may have been replaced by a stream whose first content is under way; it has its fork until then.
            if stream.is_incomplete().await? && object.stat().await?.forks == 0 {
                return Err(Failure::Failed(format!(
                    "\"{}\" in {} is no whole stream: its first content is still being stored, or it is being removed, or one of \
                     these was interrupted; \"nacre rm\" removes what is left of it",
                    object.id(),
                    object.store().name()
                )));
            }
        }
        session::existing_fork(&object).await?;
        Ok(Source::Object(object))
    }

    /// Returns the same source through another handle on its store.
    fn at(self, store: &Store) -> Result<Source, Failure> {
        Ok(match self {
            Source::Object(object) => Source::Object(store.object(object.id())?.fork(object.fork_name())?),
            Source::Stream(stream, stat) => Source::Stream(store.stream(stream.id())?, stat),
        })
    }

    async fn size(&self) -> Result<u64, Failure> {
        match self {
            Source::Object(object) => session::size(object).await,
            Source::Stream(_, stat) => Ok(stat.size),
        }
    }

    async fn get_sparse(
        &self,
        range: ByteRange,
        target: impl AsyncWrite + AsyncSeek + Unpin,
    ) -> Result<u64, nacre::Error> {
        match self {
            Source::Object(object) => object.get_sparse(range, target).await,
            Source::Stream(stream, _) => stream.get_sparse(range, target).await,
        }
    }

    async fn copy(&self, range: ByteRange, target: impl AsyncWrite + Unpin) -> Result<(), Failure> {
        let total = self.size().await?.saturating_sub(range.offset).min(range.len);
        let mut target = Metered::new(target, Some(total));
        let unread = target.unread();
        let fetched = match self {
            Source::Object(object) => object.get(range, &mut target).await,
            Source::Stream(stream, _) => stream.get(range, &mut target).await,
        };
        match fetched {
            Ok(_) => Ok(()),
            Err(_) if unread.load(Ordering::Relaxed) => Err(Failure::Unread),
            Err(error) => Err(error.into()),
        }
    }
}
