//! A client process of the study: its clients do one phase after the other, each to its end before the next begins anywhere.

mod folder;
mod library;

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use nacre::fs::{Creation, Credentials, Error, Ino, InodeKind, Rank, RankOptions};
use serde::{Deserialize, Serialize};

use self::folder::Folder;
use self::library::Library;
use super::point::Layout;
use crate::BenchError;
use crate::kit::latency::{Latencies, LatencyCounts};
use crate::kit::process::{self, together};
use crate::kit::server;

/// The number of files of which a check reads one back.
const CHECKED: u32 = 16;

/// The way to the files.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Place {
    /// By the library: the URI of the store, and the number of connections of this process.
    Store { uri: String, connections: u32 },
    /// By system calls in a folder; durable ones end with a sync, where a call by itself is not durable.
    Folder { path: String, syncs: bool },
}

/// The parameters of a client process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    pub(super) place: Place,
    /// The numbers of its clients: the first one, and how many they are.
    pub(super) first: u32,
    pub(super) clients: u32,
    pub(super) layout: Layout,
    pub(super) file_bytes: u32,
}

/// The operations of all clients in one round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Work {
    /// Make this number of files each, or those that are made before the bound is over.
    Create {
        files: u32,
        bound_ms: u64,
    },
    /// Read some of them, with their contents.
    Check {
        renamed: bool,
    },
    Stat,
    Rename,
    /// List the directory this number of times, and expect this number of entries in it; `None` for those that the client has made.
    List {
        times: u32,
        entries: Option<u64>,
    },
    Unlink,
}

/// The record of a round of a client process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ClientRecord {
    pub(super) operations: u64,
    /// The entries that were listed.
    pub(super) entries: u64,
    /// The time from the beginning until its last client was done.
    pub(super) elapsed_ns: u64,
    pub(super) latency_ns_counts: LatencyCounts,
}

/// The progress of one client in a round.
struct Progress {
    operations: u32,
    entries: u64,
    latencies: Latencies,
}

impl Progress {
    fn new() -> Result<Self, BenchError> {
        Ok(Self { operations: 0, entries: 0, latencies: Latencies::new()? })
    }

    fn add(&mut self, took: Duration, entries: u64) {
        self.operations += 1;
        self.entries += entries;
        self.latencies.record(took);
    }
}

impl Work {
    /// Returns the numbers of its operations, given the number of files that a client has made.
    fn numbers(self, made: u32) -> impl Iterator<Item = u32> {
        let (end, step) = match self {
            Work::Create { files, .. } => (files, 1),
            Work::Check { .. } => (made, CHECKED),
            Work::List { times, .. } => (times, 1),
            Work::Stat | Work::Rename | Work::Unlink => (made, 1),
        };
        (0..end).step_by(step as usize)
    }

    /// Returns whether nothing further is to be begun.
    fn is_over(self, begin: Instant) -> bool {
        match self {
            Work::Create { bound_ms, .. } => begin.elapsed() >= Duration::from_millis(bound_ms),
            _ => false,
        }
    }
}

/// Returns the name of a client's directory.
pub(super) fn directory(layout: Layout, client: u32) -> String {
    match layout {
        Layout::Shared => "shared".to_owned(),
        Layout::Own => format!("own-{client}"),
    }
}

fn name(client: u32, number: u32, renamed: bool) -> String {
    let kind = if renamed { "moved" } else { "file" };
    format!("{kind}.{client}.{number}")
}

/// Returns the content of a file, which is that of no other one.
fn content(bytes: u32, client: u32, number: u32) -> Vec<u8> {
    let mut content = vec![b'n'; bytes as usize];
    let head = (u64::from(client) << 32 | u64::from(number)).to_le_bytes();
    let length = head.len().min(content.len());
    content[..length].copy_from_slice(&head[..length]);
    content
}

fn lost(name: &str, what: &str) -> BenchError {
    BenchError::Lost(format!("{name} {what}"))
}

fn failed(error: Error) -> BenchError {
    match error {
        Error::Store(error) => error.into(),
        error => BenchError::Process(format!("a call on the namespace failed: {error}")),
    }
}

/// A client process that is ready.
struct Clients {
    orders: Orders,
    way: Way,
    /// The files that each client has made.
    made: Vec<u32>,
}

enum Way {
    Store(Library),
    Folder(Folder),
}

/// Runs the hidden command of a client process.
pub(crate) fn main() -> Result<(), BenchError> {
    process::serve_rounds(prepare, work, async |clients: Clients| {
        if let Way::Store(library) = clients.way {
            for rank in &library.ranks {
                // Its log would be left to a check.
                let _ = rank.close().await;
            }
        }
    })
}

async fn prepare(orders: Orders) -> Result<Clients, BenchError> {
    let directories =
        (orders.first..orders.first + orders.clients).map(|client| directory(orders.layout, client));
    let way = match &orders.place {
        Place::Store { uri, connections } => {
            let user = caller();
            let mut ranks = Vec::new();
            for _ in 0..(*connections).clamp(1, orders.clients.max(1)) {
                ranks.push(rank(&server::open(uri).await?).await?);
            }
            let mut inodes = Vec::new();
            for directory in directories {
                let found = ranks[0].lookup(&user, Ino::ROOT, directory.as_bytes()).await.map_err(failed)?;
                inodes.push(found.ino);
            }
            Way::Store(Library { ranks, user, directories: inodes })
        }
        Place::Folder { path, syncs } => {
            let open = |directory: String| File::open(Path::new(path).join(directory));
            let opened = directories.map(open).collect::<Result<Vec<File>, _>>();
            let directories = opened.map_err(BenchError::io("open a directory of the study"))?;
            Way::Folder(Folder { directories, syncs: *syncs })
        }
    };
    let made = vec![0; orders.clients as usize];
    Ok(Clients { way, made, orders })
}

/// Opens the namespace of a store, or creates it.
pub(super) async fn rank(store: &nacre::Store) -> Result<Rank, BenchError> {
    let options = RankOptions { create: true, owner: caller(), ..RankOptions::default() };
    store.rank(options).await.map_err(failed)
}

/// Creates a directory below the root.
pub(super) async fn make_directory(rank: &Rank, name: &str) -> Result<(), BenchError> {
    let creation = Creation::new(InodeKind::Directory, 0o755);
    rank.create(&caller(), Ino::ROOT, name.as_bytes(), creation).await.map(drop).map_err(failed)
}

/// Returns the user who runs the study.
fn caller() -> Credentials {
    Credentials::new(rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

async fn work(clients: &mut Clients, work: Work, begin: Instant) -> Result<ClientRecord, BenchError> {
    let Clients { orders, way, made } = clients;
    let orders: &Orders = orders;
    let progress: Vec<Progress> = match way {
        Way::Store(library) => {
            let library: &Library = library;
            let all =
                made.iter().enumerate().map(|(place, made)| library.go(orders, place, *made, work, begin));
            together(all).await?
        }
        Way::Folder(folder) => {
            let folder: &Folder = folder;
            std::thread::scope(|scope| {
                let mut threads = Vec::with_capacity(made.len());
                for (place, made) in made.iter().copied().enumerate() {
                    threads.push(scope.spawn(move || folder.go(orders, place, made, work, begin)));
                }
                let mut all = Vec::with_capacity(threads.len());
                for thread in threads {
                    let ended = |_| BenchError::Process("a thread of a client ended early".into());
                    all.push(thread.join().map_err(ended)??);
                }
                Ok::<_, BenchError>(all)
            })?
        }
    };
    let elapsed_ns = begin.elapsed().as_nanos() as u64;
    if let Work::Create { .. } = work {
        *made = progress.iter().map(|client| client.operations).collect();
    }
    let mut latencies = Latencies::new()?;
    progress.iter().for_each(|client| latencies.add(&client.latencies.counts()));
    Ok(ClientRecord {
        operations: progress.iter().map(|client| u64::from(client.operations)).sum(),
        entries: progress.iter().map(|client| client.entries).sum(),
        elapsed_ns,
        latency_ns_counts: latencies.counts(),
    })
}

/// Checks the number of entries of a directory, and returns it.
fn listed(found: u64, expected: Option<u64>, made: u32) -> Result<u64, BenchError> {
    let expected = expected.unwrap_or(made.into());
    if found != expected {
        let text = format!("a directory of {expected} files is listed as one of {found}");
        return Err(BenchError::Lost(text));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_differ_and_have_their_length() {
        assert_eq!(content(0, 1, 2), [0u8; 0]);
        assert_eq!(content(3, 1, 2), [2, 0, 0]);
        let all: std::collections::HashSet<Vec<u8>> =
            (0..4).flat_map(|client| (0..4).map(move |number| content(64, client, number))).collect();
        assert!(all.len() == 16 && all.iter().all(|content| content.len() == 64));
    }

    #[test]
    fn a_folder_is_worked_through_and_what_is_missing_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap().to_owned();
        for client in [3, 4] {
            std::fs::create_dir(folder.path().join(directory(Layout::Own, client))).unwrap();
        }
        let place = Place::Folder { path, syncs: true };
        let orders = Orders { place, first: 3, clients: 2, layout: Layout::Own, file_bytes: 100 };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut clients = prepare(orders).await.unwrap();
            let mut go = async |round| work(&mut clients, round, Instant::now()).await;
            let made = go(Work::Create { files: 20, bound_ms: u64::MAX }).await.unwrap();
            assert_eq!(made.operations, 40);
            let list = Work::List { times: 3, entries: None };
            assert_eq!(go(Work::Check { renamed: false }).await.unwrap().operations, 4);
            assert_eq!(go(Work::Stat).await.unwrap().operations, 40);
            assert_eq!(go(Work::Rename).await.unwrap().operations, 40);
            let moved = folder.path().join("own-4/moved.4.16");
            std::fs::write(&moved, content(100, 4, 17)).unwrap();
            let error = go(Work::Check { renamed: true }).await.unwrap_err();
            assert!(error.to_string().contains("moved.4.16 holds something else"), "{error}");
            assert_eq!(go(list).await.unwrap().entries, 2 * 3 * 20);
            std::fs::remove_file(&moved).unwrap();
            let error = go(list).await.unwrap_err();
            assert!(error.to_string().contains("20 files is listed as one of 19"), "{error}");
            std::fs::write(&moved, []).unwrap();
            assert_eq!(go(Work::Unlink).await.unwrap().operations, 40);
            assert_eq!(go(Work::List { times: 1, entries: Some(0) }).await.unwrap().entries, 0);
        });
    }
}
