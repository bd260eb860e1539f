//! Directories that are read ahead: look-ups of their names and questions for attributes ask no server, until somebody changes something.

#![cfg(all(feature = "meta", feature = "file"))]

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nacre_logstore::LogStore;
use nacre_meta::inode::{Ino, InodeKind};
use nacre_meta::{Creation, Credentials, Error, Rank, RankOptions, SetAttributes};
use nacre_object::testkit::block_on;
use nacre_object::{ObjectId, ObjectStore, Once, Outcome, Reply, Transaction, WindowPosition};
use nacre_remote::{
    CacheCounts, LeaseService, LeasedStore, Leases, Membership, RemoteOptions, RemoteStore, StoreService,
};
use nacre_rpc::{Address, ServeOptions, Server, Services};

/// The time after which something counts as never happening.
const PATIENCE: Duration = Duration::from_secs(60);
/// The length of leases: longer than any pause of the machine.
const LENGTH: Duration = Duration::from_secs(60);

/// A store of a server, whose writes pass through leases.
#[derive(Clone)]
struct Leasing {
    store: LogStore,
    leases: Arc<Leases>,
}

impl ObjectStore for Leasing {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.leases.apply(&self.store, object, transaction, None)
    }

    fn apply_once(&self, object: &ObjectId, transaction: Transaction, once: Once) -> Reply<Outcome> {
        self.leases.apply(&self.store, object, transaction, Some(once))
    }

    fn window(&self) -> Option<WindowPosition> {
        self.store.window()
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.store.list(after, limit)
    }
}

fn serve() -> Server {
    let store = LogStore::memory(nacre_logstore::Options::default());
    let (leases, membership) = (Leases::new(LENGTH), Membership::alone([7; 16]));
    let objects: Arc<dyn ObjectStore> = Arc::new(Leasing { store, leases: leases.clone() });
    let services = Services::new()
        .with(StoreService::new(objects.clone(), membership.clone(), Arc::default()))
        .with(LeaseService::new(objects, membership, leases));
    let listen = vec!["127.0.0.1:0".parse().unwrap()];
    Server::start(ServeOptions { listen, open: true, threads: 2, services, ..Default::default() }).unwrap()
}

/// A client that works on the namespace as a mount does.
struct Client {
    store: LeasedStore,
    rank: Rank,
}

impl Client {
    fn new(address: &Address, split_entries: u64) -> Client {
        let options = RemoteOptions { own_thread: true, ..RemoteOptions::default() };
        let remote = RemoteStore::new(std::slice::from_ref(address), options).unwrap();
        let store = LeasedStore::new(remote);
        let options =
            RankOptions { create: true, split_entries: Some(split_entries), ..RankOptions::default() };
        let rank = block_on(Rank::open(Arc::new(store.clone()), options)).unwrap();
        Client { store, rank }
    }

    fn counts(&self) -> CacheCounts {
        self.store.counts()
    }

    /// Asks for the root until that is answered from memory.
    fn warm(&self) {
        let begun = Instant::now();
        loop {
            let hits = self.counts().hits;
            block_on(self.rank.stat(Ino::ROOT)).unwrap();
            if self.counts().hits > hits {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "it is never answered from memory: {:?}", self.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn create(&self, name: &str) -> Ino {
        let creation = Creation::new(InodeKind::File, 0o644);
        block_on(self.rank.create(&root(), Ino::ROOT, name.as_bytes(), creation)).unwrap().ino
    }

    /// Returns an inode's number, permissions and size, which are the same by its name and by its number.
    fn look(&self, name: &str) -> Option<(Ino, u32, u64)> {
        let found = match block_on(self.rank.lookup(&root(), Ino::ROOT, name.as_bytes())) {
            Err(Error::NotFound) => return None,
            found => found.unwrap(),
        };
        assert_eq!(block_on(self.rank.stat(found.ino)).unwrap(), found);
        Some((found.ino, found.mode, found.size))
    }

    fn read_ahead(&self, after: &str, limit: usize) -> (usize, Option<String>) {
        let (names, end) = block_on(self.rank.read_ahead(Ino::ROOT, after.as_bytes(), limit)).unwrap();
        (names, end.map(|name| String::from_utf8(name.to_vec()).unwrap()))
    }
}

fn root() -> Credentials {
    Credentials::root()
}

fn name(number: usize) -> String {
    format!("file {number:03}")
}

#[test]
fn names_that_were_read_ahead_are_looked_up_without_the_server_and_every_change_shows_at_once() {
    let server = serve();
    let address = &server.addresses()[0];
    let (reader, writer) = (Client::new(address, 100_000), Client::new(address, 100_000));
    let inodes: Vec<Ino> = (0..300).map(|number| writer.create(&name(number))).collect();
    // Some of them have objects of their own.
    for ino in &inodes[..100] {
        block_on(writer.rank.write_file(*ino, 0, Bytes::from_static(b"before"))).unwrap();
    }
    reader.warm();
    assert_eq!(reader.read_ahead("", 200), (200, Some(name(199))));
    assert_eq!(reader.read_ahead(&name(199), 200), (100, None));
    let before = reader.counts();
    for (number, ino) in inodes.iter().enumerate() {
        let size = if number < 100 { 6 } else { 0 };
        assert_eq!(reader.look(&name(number)), Some((*ino, 0o644, size)), "{number}");
    }
    assert_eq!(reader.look("file 0"), None, "what is not there is known too");
    assert_eq!(reader.counts().misses, before.misses);
    let is_known = |name: &str| {
        let misses = reader.counts().misses;
        reader.look(name);
        reader.counts().misses == misses
    };

    // Changes of inodes, which leave the entries as they are.
    for number in [1, 201] {
        let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        block_on(writer.rank.set_attributes(&root(), inodes[number], &set)).unwrap();
        assert_eq!(reader.look(&name(number)).unwrap().1, 0o600);
        assert!(is_known(&name(number + 1)));
    }
    for number in [2, 202] {
        let content = Bytes::from_static(b"something longer");
        block_on(writer.rank.write_file(inodes[number], 0, content)).unwrap();
        assert_eq!(reader.look(&name(number)).unwrap().2, 16);
        assert!(is_known(&name(number + 1)));
    }
    // Changes of entries.
    for number in [3, 203] {
        block_on(writer.rank.unlink(&root(), Ino::ROOT, name(number).as_bytes())).unwrap();
        assert_eq!(reader.look(&name(number)), None);
        assert_eq!(block_on(reader.rank.stat(inodes[number])).err(), Some(Error::NotFound));
    }
    for number in [4, 204] {
        let (from, to) = (name(number), format!("moved {number}"));
        let (from_entry, to_entry) = ((Ino::ROOT, from.as_bytes()), (Ino::ROOT, to.as_bytes()));
        block_on(writer.rank.rename(&root(), from_entry, to_entry, false)).unwrap();
        assert_eq!(reader.look(&from), None);
        assert_eq!(reader.look(&to).unwrap().0, inodes[number]);
    }
    assert_eq!(reader.look("file 0"), None);
    let made = writer.create("file 0");
    assert_eq!(reader.look("file 0"), Some((made, 0o644, 0)));
    assert!(reader.counts().revoked >= 5, "{:?}", reader.counts());
}

#[test]
fn a_directory_in_several_parts_is_read_ahead_part_by_part() {
    let server = serve();
    let address = &server.addresses()[0];
    let (reader, writer) = (Client::new(address, 50), Client::new(address, 50));
    let inodes: Vec<Ino> = (0..400).map(|number| writer.create(&name(number))).collect();
    reader.warm();
    // Names in front of all others, so many that every part is that of some of them.
    for number in 0..1000 {
        assert_eq!(reader.read_ahead(&format!("a{number}"), 1000).1, None);
    }
    let misses = reader.counts().misses;
    for (number, ino) in inodes.iter().enumerate() {
        assert_eq!(reader.look(&name(number)), Some((*ino, 0o644, 0)));
    }
    // The lease on a part may come a moment after what was read of it.
    let missed = reader.counts().misses - misses;
    assert!(missed < 50, "{missed} of 400 look-ups asked the server");
    // It is all the same where names have been moved to other parts since.
    for number in 400..800 {
        writer.create(&name(number));
    }
    assert!((0..800).all(|number| reader.look(&name(number)).is_some()));
}

#[test]
fn a_store_that_remembers_nothing_is_not_read_ahead() {
    let store = Arc::new(nacre_object::testkit::MemoryStore::new());
    let options = RankOptions { create: true, ..RankOptions::default() };
    let rank = block_on(Rank::open(store, options)).unwrap();
    // Not even whether there is such a directory.
    assert_eq!(block_on(rank.read_ahead(Ino(77), b"", 10)).unwrap(), (0, None));
}
