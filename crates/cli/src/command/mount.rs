//! `nacre mount`: the namespace of a store as a file system for every program.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nacre::fs::{Error, Rank, RankOptions};
use nacre_fuse::{Mount, Options, SharedLocks};
use nacre_quantity::Escaped;
use nacre_shell::Signals;
use serde_json::{Map, Value};

use super::fs::{caller, failure};
use crate::failure::Failure;
use crate::session::Context;
use crate::{output, quantity};

/// The time for which calls that are under way may go on after the mount has ended.
const CALLS_END: Duration = Duration::from_secs(5);

/// Mount the namespace on a directory, for use by any program
///
/// Runs until the directory is unmounted ("umount DIR") or a signal arrives. After a signal, the directory is unmounted
/// at once, and the command ends when the last process has closed its files there, or at a second signal. Every change
/// is in the store before the call that makes it returns. A store without a namespace gets one, unless --read-only is
/// given.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The directory, which must be empty
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Refuse all changes through this mount
    #[arg(long)]
    read_only: bool,
    /// Let all users in, each with their own permissions, not only the one who mounts; users other than root need
    /// "user_allow_other" in /etc/fuse.conf
    #[arg(long)]
    allow_other: bool,
    /// Believe entries and attributes for this long without asking the store. What others change may show only then, also after a file
    /// is opened
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = quantity::parse_time)]
    cache: Duration,
    /// Ask the store each time, instead of keeping entries and attributes as long as its servers promise to tell before they change
    #[arg(long)]
    uncached: bool,
    /// Have locks by flock and fcntl hold between the processes of this mount (local), or also between mounts that have this flag
    /// (shared), by the lock service of the store's servers
    #[arg(long, value_name = "WHERE", value_parser = ["local", "shared"], default_value = "local")]
    locks: String,
}

/// Runs `nacre mount`.
pub fn run(session: &Context, args: &Args) -> Result<(), Failure> {
    // Calls are answered from threads of their own, while this one waits for the end.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(Failure::io("start the program's runtime"))?;
    let done = runtime.block_on(mount(session, args, runtime.handle().clone()));
    runtime.shutdown_background();
    done
}

async fn mount(session: &Context, args: &Args, handle: tokio::runtime::Handle) -> Result<(), Failure> {
    let folder = free_folder(&args.folder)?;
    let shares_locks = args.locks == "shared";
    if shares_locks {
        check_is_shared(session)?;
    }
    let store = session.open()?;
    let options = RankOptions { create: !args.read_only, owner: caller(), ..RankOptions::default() };
    let cached = if args.uncached { store.clone() } else { store.caching() };
    let rank = cached.rank(options).await.map_err(|error| match error {
        Error::NotFound => Failure::Failed(format!(
            "{} has no namespace yet; mount it without --read-only to create one",
            store.name()
        )),
        error => failure(error, format_args!("cannot open the namespace of {}", store.name())),
    })?;
    let rank = Arc::new(rank);
    let locks = match shares_locks {
        true => Some(Arc::new(SharedLocks::begin(store.clone(), output::complain).await?)),
        false => None,
    };
    // From here on a signal has to take the mount off its directory.
    let mut signals = Signals::catch()?;
    let options = Options {
        source: store.name().to_owned(),
        others: args.allow_other,
        read_only: args.read_only,
        cache: args.cache,
        locks: locks.clone(),
    };
    let mounted = {
        let (rank, folder) = (rank.clone(), folder.clone());
        tokio::task::spawn_blocking(move || Mount::new(rank, &folder, &options, handle)).await
    };
    let mount = mounted.expect("mounting does not panic").map_err(|error| refused(&folder, &error))?;
    let shown = Escaped::of(&args.folder);
    // A mount goes on, even if nothing reads its output.
    drop(announce(session.json, args, store.name()));

    let mut ended = tokio::task::spawn_blocking(move || mount.wait());
    let done = tokio::select! {
        done = &mut ended => done,
        () = signals.next() => {
            nacre_fuse::detach(&folder).map_err(Failure::io(format_args!("unmount {shown}")))?;
            tokio::select! {
                done = &mut ended => done,
                () = tokio::time::sleep(Duration::from_secs(1)) => {
                    let text = format!("nacre: files of {shown} are still open; a second signal closes them");
                    output::complain(&text);
                    tokio::select! {
                        done = &mut ended => done,
                        () = signals.next() => nacre_shell::signals::end(),
                    }
                }
            }
        }
    };
    done.expect("waiting does not panic")
        .map_err(Failure::io(format_args!("continue the mount on {shown}")))?;
    close(rank).await;
    // Otherwise others would wait for what this mount remembers, until its sessions lapse.
    let _ = tokio::time::timeout(CALLS_END, cached.end_caching()).await;
    if let Some(locks) = locks {
        // Otherwise they would be left to lapse.
        locks.end().await;
    }
    Ok(())
}

/// Checks that a store can have several mounts, whose locks exclude each other.
fn check_is_shared(session: &Context) -> Result<(), Failure> {
    if session.folder()?.is_none() {
        return Ok(());
    }
    let uri = session.shown_uri();
    Err(Failure::Failed(format!(
        "only one process at a time can open a folder, so {uri} has no other mount to share locks with; start \"nacre serve\" \
         on it, or leave out --locks"
    )))
}

/// Announces that the directory is mounted, and how far locks reach.
fn announce(json: bool, args: &Args, store: &str) -> io::Result<()> {
    let folder = &args.folder;
    match json {
        true => {
            let mut said = Map::new();
            said.insert("ready".to_owned(), true.into());
            output::put_bytes(&mut said, "mounted", folder.as_os_str().as_bytes());
            said.insert("store".to_owned(), store.into());
            said.insert("locks".to_owned(), args.locks.as_str().into());
            output::line(&Value::Object(said).to_string())?
        }
        false => {
            let locks = match args.locks == "shared" {
                true => "; locks hold between mounts",
                false => "; locks hold within this mount",
            };
            output::line(&format!("mounted {store} on {}{locks}", Escaped::of(folder)))?;
            output::line("ready")?;
        }
    }
    output::flush()
}

/// Closes a rank when its last calls have ended.
async fn close(rank: Arc<Rank>) {
    let last = async {
        while Arc::strong_count(&rank) > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        rank.close().await
    };
    match tokio::time::timeout(CALLS_END, last).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            output::complain(&format!("nacre: the log of this mount stays in the store: {error}"));
        }
        Err(_) => {
            output::complain("nacre: calls are still under way, so the log of this mount stays in the store")
        }
    }
}

/// Returns the whole path of a directory that nothing is mounted on and nothing is in.
fn free_folder(folder: &Path) -> Result<PathBuf, Failure> {
    let shown = Escaped::of(folder);
    let cannot = || Failure::io(format!("mount on {shown}"));
    let whole = fs::canonicalize(folder).map_err(cannot())?;
    let found = fs::metadata(&whole).map_err(cannot())?;
    if !found.is_dir() {
        return Err(Failure::Failed(format!("cannot mount on {shown}: it is not a directory")));
    }
    let above = fs::metadata(whole.join("..")).map_err(cannot())?;
    if found.dev() != above.dev() || found.ino() == above.ino() {
        return Err(Failure::Failed(format!("cannot mount on {shown}: something is mounted there already")));
    }
    match fs::read_dir(&whole).map_err(cannot())?.next() {
        None => Ok(whole),
        Some(_) => Err(Failure::Failed(format!(
            "cannot mount on {shown}: it is not empty, and would hide what is in it"
        ))),
    }
}

/// Returns the failure to mount.
fn refused(folder: &Path, error: &io::Error) -> Failure {
    let advice = match Path::new("/dev/fuse").exists() {
        false => "; there is no /dev/fuse: load the kernel's module fuse, or give the container the device",
        true if error.kind() == io::ErrorKind::NotFound => {
            "; users other than root need the program fusermount3"
        }
        true if error.kind() == io::ErrorKind::PermissionDenied => {
            "; root may, and others where the program fusermount3 is, /dev/fuse is open to them, and the directory is their own"
        }
        true => "",
    };
    Failure::Failed(format!("cannot mount on {}: {error}{advice}", Escaped::of(folder)))
}
