//! The object-level calls, in memory and through a server: both must show the same.

use std::sync::Arc;

use bytes::Bytes;
use nacre::{ErrorKind, KeyRange, Store, Written};
use nacre_object::testkit::MemoryStore;

use nacre_remote::StoreService;
use nacre_rpc::{Address, ServeOptions, Server, Services};

/// Runs a test on a store in memory, and on one behind a Unix socket.
fn on_every_store(test: impl AsyncFn(Store)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test(nacre::open("mem:").unwrap()));
    let folder = tempfile::tempdir().unwrap();
    let address = Address::Unix(folder.path().join("socket"));
    let services = Services::new().with(StoreService::alone(Arc::new(MemoryStore::new())).unwrap());
    let options = ServeOptions { listen: vec![address.clone()], services, ..Default::default() };
    let server = Server::start(options).unwrap();
    runtime.block_on(test(nacre::open(&address.to_string()).unwrap()));
    server.stop();
}

#[test]
fn a_lost_race_hands_back_what_stands_there() {
    on_every_store(async |store| {
        let object = store.object("o").unwrap();
        let first = object.write(0, "aaaa").await.unwrap();
        object.write(2, "bb").await.unwrap();
        match object.write_if(0, "cccc", first).await.unwrap() {
            Written::Conflict(now) => {
                assert_eq!(now.data, "aabb");
                assert!(now.version > first);
                let again = object.write_if(0, "cccc", now.version).await.unwrap();
                assert!(matches!(again, Written::Done { .. }));
            }
            Written::Done { .. } => panic!("the range had changed"),
        }
        assert_eq!(object.read(0..10).await.unwrap().data, "cccc");
    });
}

#[test]
fn concurrent_updates_lose_nothing() {
    on_every_store(async |store| {
        let workers = (0..8).map(|_| {
            let object = store.object("counter").unwrap();
            tokio::spawn(async move {
                for _ in 0..50 {
                    let increment = |old: &[u8]| {
                        let count = u64::from_le_bytes(old.try_into().unwrap());
                        Bytes::copy_from_slice(&(count + 1).to_le_bytes())
                    };
                    object.update(16..24, increment).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        let read = store.object("counter").unwrap().read(16..24).await.unwrap();
        assert_eq!(read.data[..], 400u64.to_le_bytes());
    });
}

#[test]
fn long_streams_come_back_as_they_went() {
    on_every_store(async |store| {
        let object = store.object("stream").unwrap();
        for len in [0, 1, 4 << 20, (9 << 20) + 5] {
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            assert_eq!(object.put(&bytes[..]).await.unwrap(), len as u64);
            let mut back = Vec::new();
            assert_eq!(object.get(nacre::ByteRange::ALL, &mut back).await.unwrap(), len as u64);
            assert!(back == bytes, "{len}");
            let (from, to) = (len as u64 / 3, len as u64 / 2);
            back.clear();
            object.get(from..to, &mut back).await.unwrap();
            assert!(back == bytes[from as usize..to as usize], "{len}");
        }
    });
}

#[test]
fn keys_attributes_and_forks_are_listed_in_order() {
    on_every_store(async |store| {
        let object = store.object("o").unwrap();
        assert!(object.create().await.unwrap());
        assert!(!object.create().await.unwrap());
        for n in 0..1500 {
            object.set_key(format!("k{n:04}"), format!("v{n}")).await.unwrap();
        }
        object.remove_key("k0007").await.unwrap();
        assert_eq!(object.key("k0007").await.unwrap(), None);
        let mut keys = object.keys(KeyRange::prefix("k"));
        let mut found = 0;
        let mut last = None;
        while let Some((key, value)) = keys.next().await.unwrap() {
            assert!(last.is_none_or(|last| last < key));
            assert_eq!(value, format!("v{}", key.to_string()[1..].parse::<u32>().unwrap()));
            last = Some(key);
            found += 1;
        }
        assert_eq!(found, 1499);
        object.set_attribute("colour", "red").await.unwrap();
        assert_eq!(object.attribute("colour").await.unwrap().unwrap(), "red");
        assert_eq!(object.attributes().await.unwrap().len(), 1);
        object.fork("side").unwrap().write(10, "x").await.unwrap();
        let forks = object.forks().await.unwrap();
        assert!(forks.iter().any(|(fork, size)| fork.to_string() == "side" && *size == 11));
        let stat = object.stat().await.unwrap();
        assert_eq!((stat.exists, stat.keys, stat.attributes), (true, 1499, 1));
        assert!(object.remove().await.unwrap());
        assert!(!object.remove().await.unwrap());
    });
}

#[test]
fn extents_are_read_however_many_there_are() {
    on_every_store(async |store| {
        let object = store.object("o").unwrap();
        let many: Vec<(u64, Bytes)> = (0..9000).map(|n| (n * 10, Bytes::from_static(b"x"))).collect();
        let version = object.write_vectored(many).await.unwrap();
        let extents = object.extents(nacre::ByteRange::ALL).await.unwrap();
        assert_eq!(extents.extents.len(), 9000);
        assert_eq!((extents.version, extents.size), (version, 89_991));
        assert!(extents.extents.iter().enumerate().all(|(n, extent)| extent.range.offset == n as u64 * 10));
    });
}

#[test]
fn errors_say_what_was_attempted_on_what() {
    let store = nacre::open("unix:/nowhere/at/all").unwrap().blocking();
    let error = store.object("o").unwrap().read(0..1).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.starts_with("cannot read object \"o\" of unix:/nowhere/at/all: cannot reach"), "{text}");
    let store = nacre::open("mem:").unwrap().blocking();
    let object = store.object("o").unwrap();
    let error = object.update(0..4, |_| "12345").unwrap_err();
    assert!(error.to_string().contains("5 new bytes for a range of 4"), "{error}");
}
