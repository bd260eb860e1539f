//! Tests that `put` replaces content at once, and leaves nothing behind when it fails.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use nacre::{
    ByteRange, ErrorKind, Fork, Guard, Key, Limits, Object, ObjectId, ObjectStore, Outcome, ReadOp, Reply,
    Store, Transaction, WriteOp,
};
use nacre_object::stage::Stage;
use nacre_object::testkit::MemoryStore;
use tokio::io::{AsyncReadExt, repeat};

const MIB: u64 = 1 << 20;

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// A store that holds forks of at most `fork_bytes_max` bytes, and counts the writes that it is asked for.
struct Small {
    inner: MemoryStore,
    fork_bytes_max: u64,
    writes: AtomicU64,
}

impl ObjectStore for Small {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        self.writes.fetch_add(transaction.writes.len() as u64, Ordering::SeqCst);
        self.inner.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }

    fn limits(&self) -> Reply<Limits> {
        Reply::ready(Ok(Limits { fork_bytes_max: self.fork_bytes_max }))
    }
}

fn small(mib: u64) -> (Arc<Small>, Object) {
    let engine = Small { inner: MemoryStore::new(), fork_bytes_max: mib * MIB, writes: AtomicU64::new(0) };
    let engine = Arc::new(engine);
    let object = Store::from_engine(engine.clone(), "small").object("a").unwrap();
    (engine, object)
}

/// Returns all forks of an object, including those of reserved names.
async fn all_forks(object: &Object) -> Vec<(Fork, u64)> {
    let read = Transaction::new().read(ReadOp::Forks { after: None, limit: 100 });
    match object.store().apply(object.id(), read).await.unwrap() {
        Outcome::Done(mut done) => match done.answers.remove(0) {
            nacre::Answer::Forks(page) => page.entries,
            other => panic!("{other:?}"),
        },
        refused => panic!("{refused:?}"),
    }
}

#[test]
fn what_is_too_long_for_the_store_is_refused_before_anything_is_written() {
    run(async {
        let (engine, object) = small(20);
        object.write(0, "old").await.unwrap();
        let before = engine.writes.load(Ordering::SeqCst);
        let error = object.put_sized(repeat(1).take(30 * MIB), Some(30 * MIB)).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains("holds at most 20971520 in one fork"), "{error}");
        assert_eq!(engine.writes.load(Ordering::SeqCst), before, "nothing was even tried");
        // Where the length is not known, or was told wrongly: as soon as it is passed.
        for bytes in [None, Some(5)] {
            let error = object.put_sized(repeat(1).take(30 * MIB), bytes).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
            assert_eq!(all_forks(&object).await, [(Fork::DEFAULT, 3)]);
            assert_eq!(object.read(0..9).await.unwrap().data, "old");
        }
        assert_eq!(object.put(repeat(1).take(20 * MIB)).await.unwrap(), 20 * MIB);
        assert_eq!(all_forks(&object).await, [(Fork::DEFAULT, 20 * MIB)]);
    });
}

#[test]
fn content_appears_at_once_with_one_version() {
    run(async {
        let (_, object) = small(1000);
        for (mib, more) in [(16, 0), (16, 1), (33, 7), (0, 3), (50, 0)] {
            let len = mib * MIB + more;
            let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            assert_eq!(object.put(&bytes[..]).await.unwrap(), len);
            let extents = object.extents(0..len).await.unwrap();
            assert_eq!((extents.extents.len(), extents.size), (1, len), "{len}");
            let mut back = Vec::new();
            object.get(ByteRange::ALL, &mut back).await.unwrap();
            assert!(back == bytes, "{len}");
        }
        let blocking = object.store().blocking().object("b").unwrap();
        let bytes: Vec<u8> = (0..17 * MIB).map(|at| (at % 253) as u8).collect();
        let stored = std::thread::spawn(move || {
            assert_eq!(blocking.put(&bytes[..]).unwrap(), 17 * MIB);
            let mut back = Vec::new();
            blocking.get(ByteRange::ALL, &mut back).unwrap();
            back == bytes
        });
        assert!(stored.join().unwrap());
    });
}

/// A source that gives this many bytes, and then fails.
struct Failing(u64);

impl tokio::io::AsyncRead for Failing {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let len = self.0.min(buffer.remaining() as u64);
        if len == 0 {
            return Poll::Ready(Err(std::io::Error::other("the disk is gone")));
        }
        self.0 -= len;
        buffer.put_slice(&vec![2; len as usize]);
        Poll::Ready(Ok(()))
    }
}

#[test]
fn a_put_that_fails_or_is_given_up_leaves_the_old_content_alone() {
    run(async {
        let (_, object) = small(1000);
        object.write(0, "old").await.unwrap();
        for mib in [1, 15, 17, 40] {
            let error = object.put(Failing(mib * MIB)).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Io);
            assert!(error.message.contains("the disk is gone"), "{error}");
            assert_eq!(all_forks(&object).await, [(Fork::DEFAULT, 3)], "{mib} MiB");
            assert_eq!(object.read(0..9).await.unwrap().data, "old");
        }
        // A future that is dropped: of a source that never ends, while it waits for more.
        let (mut writer, source) = tokio::io::duplex(MIB as usize);
        {
            let mut put = pin!(object.put(source));
            let mut context = Context::from_waker(Waker::noop());
            for _ in 0..24 {
                let write = tokio::io::AsyncWriteExt::write_all(&mut writer, &[3; MIB as usize]);
                let mut write = pin!(write);
                while write.as_mut().poll(&mut context).is_pending() {
                    assert!(put.as_mut().poll(&mut context).is_pending());
                }
            }
            assert!(put.as_mut().poll(&mut context).is_pending());
            assert_eq!(all_forks(&object).await.len(), 2, "it is staged");
        }
        assert_eq!(all_forks(&object).await, [(Fork::DEFAULT, 3)]);
        assert_eq!(object.read(0..9).await.unwrap().data, "old");
    });
}

#[test]
fn an_object_that_came_to_be_with_a_put_that_failed_goes_with_it() {
    run(async {
        let (engine, _) = small(1000);
        let store = Store::from_engine(engine.clone(), "small");
        let object = store.object("new").unwrap();
        for mib in [1, 17, 40] {
            object.put(Failing(mib * MIB)).await.unwrap_err();
            assert!(!object.stat().await.unwrap().exists, "{mib} MiB");
        }
        // Also where the store refuses it half-way.
        let (narrow, long) = small(30);
        long.put(repeat(1).take(40 * MIB)).await.unwrap_err();
        assert!(!long.stat().await.unwrap().exists);
        drop(narrow);
        // A writer that was killed: whoever removes the stage later removes the object too.
        let stage = Stage::claim(&engine, object.id()).await.unwrap();
        let more = Transaction::new().write(stage.fork().clone(), 64, "more");
        engine.apply(object.id(), more).await.unwrap();
        std::mem::forget(stage);
        object.remove_staged(Duration::ZERO).await.unwrap();
        assert!(!object.stat().await.unwrap().exists);
        // What somebody else has made of the object meanwhile stays, even if it is still empty.
        for change in
            [WriteOp::Create, WriteOp::SetKey { key: Key::try_from("k").unwrap(), value: "v".into() }]
        {
            let stage = Stage::claim(&engine, object.id()).await.unwrap();
            engine.apply(object.id(), Transaction::new().change(change.clone())).await.unwrap();
            stage.abandon().await;
            assert!(object.stat().await.unwrap().exists, "{change:?}");
            assert_eq!(all_forks(&object).await, []);
            let stage = Stage::claim(&engine, object.id()).await.unwrap();
            stage.abandon().await;
            assert!(object.stat().await.unwrap().exists, "it was there before");
            // Whatever came of a write into a stage, the object is as it was.
            let mut stage = Stage::claim(&engine, object.id()).await.unwrap();
            for kind in [ErrorKind::Unknown, ErrorKind::Unrecognized] {
                let failed = stage.wrote(Err(nacre::Error::new(kind, "no answer, or a strange one")));
                assert_eq!(failed.unwrap_err().kind, ErrorKind::Unavailable);
            }
            stage.abandon().await;
            let version = object.stat().await.unwrap().version;
            let remove = Transaction::new().guard(Guard::Version { version }).change(WriteOp::Remove);
            engine.apply(object.id(), remove).await.unwrap();
            // Also where the stage was written to afterwards, and whether its writer gives up, is dropped or dies.
            for end in 0..3 {
                let mut stage = Stage::claim(&engine, object.id()).await.unwrap();
                engine.apply(object.id(), Transaction::new().change(change.clone())).await.unwrap();
                let wrote = stage.write(64, "more".into()).await;
                stage.wrote(wrote).unwrap();
                match end {
                    0 => stage.abandon().await,
                    1 => drop(stage),
                    _ => std::mem::forget(stage),
                }
                object.remove_staged(Duration::ZERO).await.unwrap();
                // Of whoever dies nobody knows which changes were its own, so an empty object may go.
                let stays = end < 2 || change != WriteOp::Create;
                assert_eq!(object.stat().await.unwrap().exists, stays, "{change:?}, {end}");
                assert_eq!(all_forks(&object).await, []);
                engine.apply(object.id(), Transaction::new().change(WriteOp::Remove)).await.unwrap();
            }
        }
    });
}

#[test]
fn stages_of_the_dead_are_removed_by_the_next_put_and_those_of_the_living_are_not() {
    run(async {
        let (_, object) = small(1000);
        let stamp = |age: Duration| {
            let written = (SystemTime::UNIX_EPOCH.elapsed().unwrap() - age).as_millis() as u64;
            [&b"NACRSTAG"[..], &written.to_le_bytes(), &[0; 48]].concat()
        };
        let hour = Duration::from_secs(3600);
        for (number, age) in [(0, 30 * hour), (1, 20 * hour), (2, 400 * hour), (70, 25 * hour)] {
            object.fork(format!(".nacre.staged.{number}")).unwrap().write(0, stamp(age)).await.unwrap();
        }
        // One that says nothing of its age is nobody's business but a person's.
        object.fork(".nacre.staged.3").unwrap().write(0, "strange").await.unwrap();
        assert_eq!(object.forks().await.unwrap(), []);
        assert_eq!((object.stat().await.unwrap().forks, object.stat().await.unwrap().bytes), (0, 0));
        let idle: Vec<_> = object.staged().await.unwrap().into_iter().map(|stage| stage.idle).collect();
        assert!(idle[0].unwrap() >= 30 * hour && idle[0].unwrap() < 31 * hour, "{idle:?}");
        object.put(repeat(1).take(17 * MIB)).await.unwrap();
        let names: Vec<_> =
            object.staged().await.unwrap().into_iter().map(|stage| stage.fork.to_string()).collect();
        assert_eq!(names, [".nacre.staged.1", ".nacre.staged.3"]);
        object.remove_staged(hour).await.unwrap();
        assert_eq!(object.staged().await.unwrap().len(), 1);
        object.remove_staged(Duration::ZERO).await.unwrap();
        assert_eq!(all_forks(&object).await, [(Fork::DEFAULT, 17 * MIB)]);
    });
}
