//! The object-level calls, in memory and through a server: both must show the same.

use std::sync::Arc;

use bytes::Bytes;
use nacre::{
    Change, ErrorKind, Fences, Guard, KeyRange, KeyWritten, Outcome, Store, Transaction, UpdateOptions,
    WriteOp, Written,
};
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
            Written::Refused(now) => {
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

#[test]
fn errors_have_what_they_say_as_data() {
    let error = nacre::open("unix:/nowhere/at/all")
        .unwrap()
        .blocking()
        .object("o")
        .unwrap()
        .remove_fork()
        .unwrap_err();
    assert_eq!((error.operation(), error.store()), (Some("remove a fork"), Some("unix:/nowhere/at/all")));
    assert_eq!(error.object().map(ToString::to_string).as_deref(), Some("o"));
    assert!(error.is_retryable());
    assert_eq!((error.file(), error.offset()), (None, None));
}

#[test]
fn errors_of_damaged_bytes_name_file_and_offset_in_the_process_and_through_a_server() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file:{}", folder.path().join("store").display());
    let store = nacre::open(&format!("{uri}?create=yes")).unwrap().blocking();
    store.object("o").unwrap().write(0, vec![0xa7; 30_000]).unwrap();
    store.close().unwrap();
    drop(store);
    let (name, offset) = damage(&folder.path().join("store"), &[0xa7; 30_000]);

    let check = |store: nacre::BlockingStore| {
        let error = store.object("o").unwrap().read(0..30_000).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        assert!(error.file().unwrap().ends_with(&name), "{:?}", error.file());
        assert_eq!(error.offset(), Some(offset));
        assert_eq!(error.operation(), Some("read"));
    };
    check(nacre::open(&uri).unwrap().blocking());
    let address = Address::Unix(folder.path().join("socket"));
    let engine = nacre_logstore::LogStore::open(&folder.path().join("store"), Default::default()).unwrap();
    let services = Services::new().with(StoreService::alone(Arc::new(engine)).unwrap());
    let options = ServeOptions { listen: vec![address.clone()], services, ..Default::default() };
    let server = Server::start(options).unwrap();
    check(nacre::open(&address.to_string()).unwrap().blocking());
    server.stop();
}

/// Changes one byte of the file of a folder that has these bytes. Returns the file's name, and where they begin.
fn damage(folder: &std::path::Path, wanted: &[u8]) -> (String, u64) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        if let Some(at) = bytes.windows(wanted.len()).position(|window| window == wanted) {
            bytes[at + 100] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            return (path.file_name().unwrap().to_str().unwrap().into(), at as u64);
        }
    }
    panic!("no file has the bytes");
}

#[test]
fn an_update_that_always_loses_ends_at_its_limits() {
    let store = nacre::open("mem:").unwrap().blocking();
    let object = store.object("o").unwrap();
    // Whenever the closure runs, somebody else is faster.
    let faster = |call: usize| {
        let rival = store.clone();
        let write = move || {
            let object = rival.object("o").unwrap();
            object.write(0, "1").unwrap();
            object.set_key("k", format!("{call}")).unwrap();
        };
        std::thread::spawn(write).join().unwrap();
    };
    let mut calls = 0;
    let mut lose = |_: &[u8]| {
        calls += 1;
        faster(calls);
        Change::Write("2", ())
    };
    let error = object.update_with(0..1, &UpdateOptions::default().attempts(3), &mut lose).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("faster 3 times"), "{error}");
    let timeout = UpdateOptions::default().timeout(std::time::Duration::ZERO);
    let error = object.update_with(0..1, &timeout, &mut lose).unwrap_err();
    assert!(error.to_string().contains("faster once"), "{error}");
    assert_eq!(calls, 4);
    let mut calls = 0;
    let lose = |_: Option<&[u8]>| {
        calls += 1;
        faster(calls);
        Change::Write("2", ())
    };
    let error = object.update_key_with("k", &UpdateOptions::default().attempts(2), lose).unwrap_err();
    assert_eq!((error.kind, calls), (ErrorKind::Busy, 2), "{error}");
    assert_eq!(object.read(0..1).unwrap().data, "1");
}

#[test]
fn an_update_whose_closure_keeps_what_is_there_changes_nothing() {
    on_every_store(async |store| {
        let object = store.object("o").unwrap();
        let version = object.write(0, "full").await.unwrap();
        let options = UpdateOptions::default();
        let keep = |old: &[u8]| Change::<&str, _>::Keep(old.to_vec());
        let kept = object.update_with(0..4, &options, keep).await.unwrap();
        assert_eq!((kept.value.as_slice(), kept.version), (&b"full"[..], None));
        assert_eq!(object.read(0..4).await.unwrap().version, version);
        let absent = |old: Option<&[u8]>| Change::<&str, _>::Keep(old.is_none());
        assert!(object.update_key_with("k", &options, absent).await.unwrap().value);
        assert_eq!(object.key("k").await.unwrap(), None);
    });
}

#[test]
fn a_fenced_session_changes_nothing_by_any_call() {
    on_every_store(async |store| {
        let (old, new) = (store.for_session(7), store.for_session(8));
        let (fenced, object) = (old.object("o").unwrap(), new.object("o").unwrap());
        fenced.write(0, "by 7").await.unwrap();
        object.fence_session(7).await.unwrap();
        let before = store.object("o").unwrap().stat().await.unwrap();
        let denied = |kind: Result<(), nacre::Error>| {
            let error = kind.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Denied, "{error}");
            assert!(error.message.contains("session 7 is fenced"), "{error}");
        };
        denied(fenced.write(0, "late").await.map(drop));
        denied(fenced.write_if(0, "late", 0).await.map(drop));
        denied(fenced.update(0..4, |_| "late").await.map(drop));
        denied(fenced.truncate(0).await.map(drop));
        denied(fenced.create().await.map(drop));
        denied(fenced.remove().await.map(drop));
        denied(fenced.set_key("k", "late").await.map(drop));
        denied(fenced.set_key_if("k", "late", 5).await.map(drop));
        denied(fenced.set_attribute("k", "late").await.map(drop));
        denied(fenced.fence_session(8).await.map(drop));
        denied(fenced.put(&b"late"[..]).await.map(drop));
        denied(fenced.put(&vec![1; 40 << 20][..]).await.map(drop));
        assert_eq!(store.object("o").unwrap().stat().await.unwrap(), before, "nothing was changed");
        assert_eq!(fenced.read(0..10).await.unwrap().data, "by 7", "reads are not fenced");
        assert_eq!(fenced.fences().await.unwrap(), Fences { fence: 0, sessions: vec![7] });
        // The new session, older ones, and whoever acts for none are not affected.
        object.write(0, "by 8").await.unwrap();
        store.for_session(6).object("o").unwrap().write(0, "by 6").await.unwrap();
        store.object("o").unwrap().write(0, "by any").await.unwrap();
        object.raise_fence(8).await.unwrap();
        assert!(store.for_session(6).object("o").unwrap().write(0, "late").await.is_err());
        // Guards of the caller's own have the places that the caller gave them.
        let guarded = Transaction::new().guard(Guard::Exists).guard(Guard::Absent).change(WriteOp::Create);
        let Outcome::Refused(refusal) = new.apply(object.id(), guarded).await.unwrap() else { panic!() };
        assert_eq!(refusal.guard, 1);
        object.put(&vec![1; 40 << 20][..]).await.unwrap();
    });
}

#[test]
fn a_key_is_changed_only_at_the_version_that_was_read() {
    on_every_store(async |store| {
        let object = store.object("o").unwrap();
        assert_eq!(object.versioned_key("k").await.unwrap(), None);
        let KeyWritten::Done { version } = object.set_key_if("k", "a", 0).await.unwrap() else { panic!() };
        assert_eq!(object.set_key_if("k", "b", 0).await.unwrap(), KeyWritten::Refused { version });
        object.set_key("other", "x").await.unwrap();
        let found = object.versioned_key("k").await.unwrap().unwrap();
        assert_eq!(
            (&found.value[..], found.version),
            (&b"a"[..], version),
            "others do not change its version"
        );
        object.set_key("k", "b").await.unwrap();
        let now = object.set_key("k", "a").await.unwrap();
        let conflict = KeyWritten::Refused { version: now };
        assert_eq!(
            object.remove_key_if("k", version).await.unwrap(),
            conflict,
            "the value is the old one again"
        );
        assert!(matches!(object.remove_key_if("k", now).await.unwrap(), KeyWritten::Done { .. }));
        assert_eq!(object.set_key_if("k", "c", now).await.unwrap(), KeyWritten::Refused { version: 0 });
        let mut keys = object.versioned_keys(KeyRange::all());
        let (key, found) = keys.next().await.unwrap().unwrap();
        assert_eq!((key.as_bytes(), &found.value[..], found.version), (&b"other"[..], &b"x"[..], 2));
        assert_eq!(keys.next().await.unwrap(), None);
    });
}

#[test]
fn concurrent_updates_of_a_key_lose_nothing() {
    on_every_store(async |store| {
        let workers = (0..8).map(|_| {
            let object = store.object("counter").unwrap();
            tokio::spawn(async move {
                for _ in 0..25 {
                    let increment = |old: Option<&[u8]>| {
                        let old = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
                        Bytes::copy_from_slice(&(old + 1).to_le_bytes())
                    };
                    object.update_key("count", increment).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        let found = store.object("counter").unwrap().versioned_key("count").await.unwrap().unwrap();
        assert_eq!(found.value[..], 200u64.to_le_bytes());
        assert_eq!(found.version, 200, "every update took a version, and no other change");
    });
}

#[test]
fn an_update_of_a_range_of_many_extents_sees_and_keeps_all_of_it() {
    on_every_store(async |store| {
        let object = store.object("o").unwrap();
        // Every other byte, so that no two of them make one extent: more than one reply tells of.
        let bytes: Vec<(u64, Bytes)> =
            (0..5000_u64).map(|at| (at * 2, Bytes::from(vec![at as u8 | 1]))).collect();
        object.write_vectored(bytes).await.unwrap();
        let before = object.read(0..4000).await.unwrap().data;
        let len = 9_999;
        let mut seen = Vec::new();
        let change = |old: &[u8]| {
            seen = old.to_vec();
            let mut new = old.to_vec();
            new[0] = 99;
            new
        };
        object.update(0..len, change).await.unwrap();
        let now = object.read(0..len).await.unwrap();
        assert_eq!(seen[..4000], before[..]);
        assert_eq!(seen[9_998], 4_999_u64 as u8 | 1, "the closure sees the end of the range");
        assert_eq!((now.data[0], &now.data[1..]), (99, &seen[1..]), "nothing but what it changed is changed");
        assert_eq!(now.data[9_998], 4_999_u64 as u8 | 1);
    });
}

#[test]
fn appends_follow_each_other() {
    on_every_store(async |store| {
        let workers = (0..4u8).map(|worker| {
            let object = store.object("log").unwrap().fork("entries").unwrap();
            tokio::spawn(async move {
                let mut places = Vec::new();
                for _ in 0..20 {
                    places.push((object.append(vec![worker; 3]).await.unwrap(), worker));
                    tokio::task::yield_now().await;
                }
                places
            })
        });
        let mut places = Vec::new();
        for worker in workers.collect::<Vec<_>>() {
            places.extend(worker.await.unwrap());
        }
        places.sort_by_key(|(place, _)| place.offset);
        let object = store.object("log").unwrap().fork("entries").unwrap();
        let data = object.read(0..1000).await.unwrap().data;
        assert_eq!(data.len(), 240);
        for (index, (place, worker)) in places.into_iter().enumerate() {
            assert_eq!((place.offset, place.version), (3 * index as u64, index as u64 + 1));
            assert_eq!(data[3 * index..][..3], [worker; 3]);
        }
        let full =
            Transaction::new().if_size(object.fork_name().clone(), 241).write(Default::default(), 0, "x");
        let outcome = store.apply(object.id(), full).await.unwrap();
        let Outcome::Refused(refusal) = outcome else { panic!("the fork is 240 bytes long") };
        assert_eq!(refusal.found, nacre::Found::Size(240));
    });
}

#[test]
fn names_of_keys_come_without_values_and_in_pages() {
    on_every_store(async |store| {
        let object = store.object("keys").unwrap();
        let expected: Vec<String> = (0..5).map(|number| format!("k{number}")).collect();
        for key in &expected {
            object.set_key(key, vec![7; 100_000]).await.unwrap();
        }
        let (mut range, mut found, mut pages) = (KeyRange::all(), Vec::new(), 0);
        loop {
            let page = object.key_page(range.clone(), 2, false).await.unwrap();
            assert!(page.entries.len() <= 2 && page.entries.iter().all(|(_, value)| value.is_empty()));
            pages += 1;
            range.after = page.entries.last().map(|(key, _)| key.to_bytes());
            found.extend(page.entries.into_iter().map(|(key, _)| key.to_string()));
            if !page.more {
                break;
            }
        }
        assert_eq!((&found, pages), (&expected, 3));
        let mut names = object.key_names(KeyRange { after: Some("k2".into()), ..KeyRange::all() });
        assert_eq!(names.next().await.unwrap().unwrap().as_bytes(), b"k3");
        assert_eq!(names.next().await.unwrap().unwrap().as_bytes(), b"k4");
        assert_eq!(names.next().await.unwrap(), None);
        let page = object.key_page(KeyRange::prefix("k4"), 9, true).await.unwrap();
        assert_eq!((page.entries[0].1.len(), page.more), (100_000, false));
    });
}

#[test]
fn a_folder_is_opened_on_another_thread_with_the_same_result() {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("file:{}?create=yes", folder.path().join("store").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = nacre::open_async(&uri).await.unwrap();
        store.object("a").unwrap().write(0, "kept").await.unwrap();
        // The folder is in use: the failure is that of `open`.
        let again = nacre::open_async(&uri).await.unwrap_err();
        assert_eq!(again.kind, ErrorKind::Busy);
        assert_eq!(again.to_string(), nacre::open(&uri).unwrap_err().to_string());
        store.close().unwrap();
    });
}

#[test]
fn updates_of_one_key_by_many_lose_nothing() {
    on_every_store(async |store| {
        let workers = (0..8).map(|_| {
            let object = store.object("counters").unwrap();
            tokio::spawn(async move {
                for _ in 0..30 {
                    let next = |old: Option<&[u8]>| {
                        let count = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
                        Bytes::copy_from_slice(&(count + 1).to_le_bytes())
                    };
                    object.update_key("hits", next).await.unwrap();
                    tokio::task::yield_now().await;
                }
            })
        });
        for worker in workers.collect::<Vec<_>>() {
            worker.await.unwrap();
        }
        let found = store.object("counters").unwrap().key("hits").await.unwrap().unwrap();
        assert_eq!(found[..], 240u64.to_le_bytes());
    });
}
