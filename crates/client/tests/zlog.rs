//! Logs with calls that block: threads append and follow, in memory and through a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nacre::Store;
use nacre::zlog::{Entry, Followed, LogError, Options, Shape, Slot};
use nacre_object::testkit::MemoryStore;
use nacre_remote::StoreService;
use nacre_rpc::{Address, ServeOptions, Server, Services};

const WRITERS: u64 = 4;
const EACH: u64 = 50;

/// Runs a test on a store in memory, and on one behind a Unix socket.
fn on_every_store(test: impl Fn(&Store)) {
    test(&nacre::open("mem:").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("socket"));
    let services = Services::new().with(StoreService::alone(Arc::new(MemoryStore::new())).unwrap());
    let options = ServeOptions { listen: vec![address.clone()], services, ..Default::default() };
    let server = Server::start(options).unwrap();
    test(&nacre::open(&address.to_string()).unwrap());
    server.stop();
}

#[test]
fn threads_append_and_one_follows() {
    on_every_store(|store| {
        let store = store.blocking();
        store.logs().unwrap().create("l", Shape { width: 2, unit: 8 }).unwrap();
        let follower = {
            let log = store.log_with("l", Options { read_only: true, ..Options::default() }).unwrap();
            std::thread::spawn(move || {
                let steps = log.follow(0, Default::default()).take((WRITERS * EACH) as usize);
                let entries = steps.map(|step| match step.unwrap() {
                    Followed::Entry { position, entry } => (position, entry.data),
                    Followed::Trimmed { .. } => panic!("nothing was trimmed"),
                });
                entries.collect::<BTreeMap<_, _>>()
            })
        };
        let writers = (0..WRITERS).map(|writer| {
            let log = store.log("l").unwrap();
            std::thread::spawn(move || {
                let entry = |number| Entry::new(format!("{writer} {number}")).tag(format!("writer {writer}"));
                // Half of them one by one, the others under way together.
                let mut appended: Vec<(u64, u64)> =
                    (0..EACH / 2).map(|number| (log.append(entry(number)).unwrap(), number)).collect();
                let appending: Vec<_> =
                    (EACH / 2..EACH).map(|number| (log.submit(entry(number)).unwrap(), number)).collect();
                appended.extend(appending.into_iter().map(|(one, number)| (one.wait().unwrap(), number)));
                assert!(appended.is_sorted_by(|one, next| one.0 < next.0), "in the handle's order");
                appended
            })
        });
        let writers: Vec<_> = writers.collect();
        let appended: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        let followed = follower.join().unwrap();
        assert_eq!(followed.len() as u64, WRITERS * EACH);
        for (writer, appended) in appended.iter().enumerate() {
            for (position, number) in appended {
                assert_eq!(followed[position], format!("{writer} {number}"));
            }
        }
        let log = store.log("l").unwrap();
        let (mut next, tail, mut found) = (0, log.tail().unwrap(), Vec::new());
        while next < tail {
            let tagged = log.read_tagged("writer 3", next, tail).unwrap();
            next = tagged.next;
            found.extend(tagged.slots.into_iter().filter(|(_, slot)| matches!(slot, Slot::Entry(_))));
        }
        let positions: Vec<u64> = found.iter().map(|(position, _)| *position).collect();
        assert_eq!(positions, appended[3].iter().map(|(position, _)| *position).collect::<Vec<_>>());
    });
}

#[test]
fn a_thread_that_blocks_waits_no_longer_than_it_says() {
    on_every_store(|store| {
        let store = store.blocking();
        store.logs().unwrap().create("l", Shape::default()).unwrap();
        let log = store.log("l").unwrap();
        let mut follower = log.follow(0, Default::default());
        assert_eq!(follower.next_within(Duration::from_millis(20)), Ok(None));
        let position = log.append(Entry::new("x")).unwrap();
        let entry = Followed::Entry { position, entry: Entry::new("x") };
        assert_eq!(follower.next_within(Duration::from_secs(60)), Ok(Some(entry)));
        assert_eq!(follower.next_before(log.tail().unwrap()), Ok(None));
        assert_eq!(follower.position(), position + 1);
    });
}

#[test]
fn what_reads_only_changes_nothing_and_a_deleted_log_ends_its_followers() {
    on_every_store(|store| {
        let store = store.blocking();
        let logs = store.logs().unwrap();
        logs.create("l", Shape::default()).unwrap();
        let log = store.log("l").unwrap();
        log.append(Entry::new("x")).unwrap();
        let reader = store.log_with("l", Options { read_only: true, ..Options::default() }).unwrap();
        assert_eq!(reader.append(Entry::new("y")), Err(LogError::ReadOnly));
        assert_eq!(reader.trim(0), Err(LogError::ReadOnly));
        assert_eq!(reader.seal(), Err(LogError::ReadOnly));
        assert_eq!(reader.read(0), Ok(Slot::Entry(Entry::new("x"))));
        logs.rename("l", "m").unwrap();
        assert_eq!(logs.list().unwrap().len(), 1);
        assert_eq!(store.log("l").err(), Some(LogError::Missing("l".into())));
        log.append(Entry::new("y")).unwrap();
        assert_eq!(log.tail(), Ok(2));
        let mut follower = reader.follow(2, Default::default());
        let follower = std::thread::spawn(move || {
            let last = follower.find(Result::is_err);
            (last, follower.next())
        });
        logs.delete("m").unwrap();
        let (last, after) = follower.join().unwrap();
        assert!(matches!(last, Some(Err(LogError::Missing(_)))), "{last:?}");
        assert_eq!(after, None);
    });
}

#[tokio::test]
async fn a_thread_of_a_runtime_may_block_too() {
    let store = nacre::open("mem:").unwrap();
    let appended = tokio::task::spawn_blocking(move || {
        let store = store.blocking();
        store.logs().unwrap().create("l", Shape::default()).unwrap();
        store.log("l").unwrap().append(Entry::new("x"))
    });
    assert_eq!(appended.await.unwrap(), Ok(0));
}
