//! Streams on the embedded engine: geometry, growth and truncation, replacement at once, removal, and what is left by
//! clients that die on the way.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use nacre::stream::{Layout, PREFIX, RECORD};
use nacre::{
    Answer, ByteRange, ErrorKind, Fork, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp, Reply, Store,
    Stream, Transaction, WriteOp,
};
use nacre_object::stripe::record::Record;
use nacre_object::testkit::{MemoryStore, block_on};
use tokio::io::AsyncReadExt;

const SMALL: Layout = Layout { unit_bytes: 4096, width: 3, object_bytes: 8192 };

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(future)
}

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| (((at + seed) * 0x9e37_79b9) >> 7) as u8).collect()
}

async fn whole(stream: &Stream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.get(ByteRange::ALL, &mut bytes).await.unwrap();
    bytes
}

/// Returns the objects of streams that exist.
async fn stripes(store: &Store) -> Vec<String> {
    let (mut objects, mut found) = (store.list(), Vec::new());
    while let Some(object) = objects.next().await.unwrap() {
        found.extend(Some(object.to_string()).filter(|object| object.starts_with(PREFIX)));
    }
    found
}

#[test]
fn a_read_of_what_is_removed_meanwhile_says_that_it_was() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let (object, stream) = (store.object("object").unwrap(), store.stream("stream").unwrap());
        let content = pattern(1, 12 << 20);
        object.put(&content[..]).await.unwrap();
        stream.put(&content[..]).await.unwrap();
        for of_stream in [false, true] {
            let (mut reader, writer) = tokio::io::duplex(4096);
            let read = async {
                match of_stream {
                    true => stream.get(ByteRange::ALL, writer).await,
                    false => object.get(ByteRange::ALL, writer).await,
                }
            };
            let remove = async {
                reader.read_u8().await.unwrap();
                let removed = if of_stream { stream.remove().await } else { object.remove().await };
                assert!(removed.unwrap());
                tokio::io::copy(&mut reader, &mut tokio::io::sink()).await.unwrap();
            };
            let (read, ()) = tokio::join!(read, remove);
            let error = read.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Busy, "{error}");
            assert!(error.message.ends_with("it was removed meanwhile"), "{error}");
        }
    });
}

#[test]
fn a_put_into_an_object_leaves_a_stream_of_its_name_alone() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let (object, stream) = (store.object("a").unwrap(), store.stream("a").unwrap());
        // In one transaction, and through a stage.
        for bytes in [10, 17 << 20] {
            stream.put(&b"stream"[..]).await.unwrap();
            let error = object.put(&pattern(1, bytes)[..]).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.contains("it is a stream, and stays as it is"), "{error}");
            assert_eq!(whole(&stream).await, b"stream");
            assert_eq!(object.read(0..1).await.unwrap().size, 0);
            assert!(object.staged().await.unwrap().is_empty());
            // The other forks of the head are the program's own.
            object.fork("notes").unwrap().put(&pattern(2, bytes)[..]).await.unwrap();
            assert!(stream.remove().await.unwrap());
            // A record of a stream whose first content is still being put does not make one.
            let record = Record { created: false, layout: SMALL, contents: Vec::new() };
            object.set_attribute(RECORD, record.encode()).await.unwrap();
            assert_eq!(object.put(&pattern(3, bytes)[..]).await.unwrap(), bytes as u64);
        }
    });
}

#[test]
fn a_stream_behaves_like_one_array_of_bytes() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let stream = store.stream("log").unwrap();
        assert_eq!(stream.stat().await.unwrap(), None);
        assert_eq!(stream.write(0, "x").await.unwrap_err().kind, ErrorKind::Invalid);
        assert!(stream.create(SMALL).await.unwrap() && !stream.create(SMALL).await.unwrap());
        let mut model: Vec<u8> = Vec::new();
        let mut state = 1_u64;
        let mut next = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for step in 0..300 {
            if next(4) == 0 {
                let size = next(90_000);
                stream.truncate(size).await.unwrap();
                model.resize(size as usize, 0);
            } else {
                let (at, data) = (next(80_000) as usize, pattern(step, 1 + next(15_000) as usize));
                stream.write(at as u64, data.clone()).await.unwrap();
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(&data);
            }
            assert_eq!(stream.stat().await.unwrap().unwrap().size, model.len() as u64, "step {step}");
            let (from, len) = (next(90_000), next(30_000));
            let (begin, end) = (from.min(model.len() as u64), (from + len).min(model.len() as u64));
            let read = stream.read(from, len as usize).await.unwrap();
            assert_eq!(read, model[begin as usize..end as usize], "step {step}");
        }
        assert!(whole(&stream).await == model);
        let mut file = Cursor::new(Vec::new());
        let bytes = stream.get_sparse(ByteRange::ALL, &mut file).await.unwrap();
        let mut fetched = file.into_inner();
        fetched.resize(bytes as usize, 0);
        assert!(fetched == model);
        // Truncated to nothing, all its objects go; removed, the head does.
        stream.truncate(0).await.unwrap();
        assert_eq!(stripes(&store).await, [""; 0]);
        stream.write(70_000, "end").await.unwrap();
        assert!(stream.remove().await.unwrap() && !stream.remove().await.unwrap());
        assert_eq!(store.list().next().await.unwrap(), None);
    });
}

#[test]
fn a_thousand_writers_of_parts_of_their_own_fill_one_stream() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let stream = store.stream("checkpoint").unwrap();
        let layout = Layout { unit_bytes: 8192, width: 16, object_bytes: 1 << 20 };
        stream.create(layout).await.unwrap();
        const PART: usize = 8192;
        let writers: Vec<_> = (0..1000_u64)
            .map(|rank| {
                let stream = stream.clone();
                // In no order, so that the stream grows by leaps and is filled behind its end.
                tokio::spawn(async move {
                    stream.write(rank * 617 % 1000 * PART as u64, pattern(rank, PART)).await
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap().unwrap();
        }
        let all = whole(&stream).await;
        assert_eq!(all.len(), 1000 * PART);
        for rank in 0..1000 {
            let at = rank * 617 % 1000 * PART;
            assert!(all[at..at + PART] == pattern(rank as u64, PART), "rank {rank}");
        }
    });
}

#[test]
fn readers_of_a_stream_that_is_put_again_get_one_content_or_are_told() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let stream = store.stream("file").unwrap();
        let contents = [(1_u8, 9 << 20), (2, 13 << 20)].map(|(byte, bytes)| vec![byte; bytes]);
        assert_eq!(stream.put(&contents[0][..]).await.unwrap(), 9 << 20);
        let writer = {
            let (stream, contents) = (stream.clone(), contents.clone());
            tokio::spawn(async move {
                for round in 0..6 {
                    stream.put(&contents[round % 2][..]).await.unwrap();
                }
            })
        };
        let mut fetched = 0;
        while !writer.is_finished() || fetched == 0 {
            let mut bytes = Vec::new();
            match stream.get(ByteRange::ALL, &mut bytes).await {
                Ok(_) => {
                    assert!(contents.contains(&bytes), "{} bytes of {:?}", bytes.len(), bytes.first());
                    fetched += 1;
                }
                Err(error) => assert_eq!(error.kind, ErrorKind::Busy, "{error}"),
            }
        }
        writer.await.unwrap();
        assert!(whole(&stream).await == contents[1]);
        // Nothing is left of the contents that were replaced: 13 MiB are four stripes.
        assert_eq!(stripes(&store).await.len(), 4);
    });
}

#[test]
fn a_put_takes_the_place_of_an_object_and_one_that_fails_leaves_it() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let (object, stream) = (store.object("name").unwrap(), store.stream("name").unwrap());
        object.write(0, "object").await.unwrap();
        assert_eq!(stream.create(SMALL).await.unwrap_err().kind, ErrorKind::Invalid);
        let failing = pattern(1, 6 << 20).chain_failure();
        assert_eq!(stream.put(failing).await.unwrap_err().kind, ErrorKind::Io);
        assert_eq!((stream.stat().await.unwrap(), stripes(&store).await), (None, vec![]));
        assert_eq!(object.read(0..9).await.unwrap().data, "object");
        assert_eq!(object.attributes().await.unwrap(), []);
        stream.put(&pattern(2, 5 << 20)[..]).await.unwrap();
        assert_eq!(object.read(0..9).await.unwrap().data, "");
        assert!(whole(&stream).await == pattern(2, 5 << 20));
        // One that fails where nothing was leaves nothing.
        let fresh = store.stream("fresh").unwrap();
        assert_eq!(fresh.put(pattern(1, 6 << 20).chain_failure()).await.unwrap_err().kind, ErrorKind::Io);
        assert!(!store.object("fresh").unwrap().stat().await.unwrap().exists);
    });
}

/// A source that fails behind some bytes.
trait ChainFailure {
    fn chain_failure(self) -> impl tokio::io::AsyncRead + Unpin;
}

impl ChainFailure for Vec<u8> {
    fn chain_failure(self) -> impl tokio::io::AsyncRead + Unpin {
        struct Failure;
        impl tokio::io::AsyncRead for Failure {
            fn poll_read(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
                _: &mut tokio::io::ReadBuf<'_>,
            ) -> std::task::Poll<std::io::Result<()>> {
                std::task::Poll::Ready(Err(std::io::Error::other("the source is gone")))
            }
        }
        Cursor::new(self).chain(Failure)
    }
}

/// A client that dies after a number of requests: those that follow are never answered, and never made.
struct Mortal {
    inner: Arc<MemoryStore>,
    left: AtomicI64,
}

impl ObjectStore for Mortal {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if self.left.fetch_sub(1, Ordering::SeqCst) <= 0 {
            return Reply::ready(Err(nacre::Error::new(ErrorKind::Closed, "the client is dead")));
        }
        self.inner.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }
}

#[test]
fn a_client_that_dies_at_any_step_loses_nothing_and_leaves_nothing_that_cannot_be_removed() {
    run(async {
        let (old, new) = (pattern(1, 5 << 20), pattern(2, 9 << 20));
        for step in 0.. {
            let engine = Arc::new(MemoryStore::new());
            let store = Store::from_engine(engine.clone(), "alive");
            let stream = store.stream("file").unwrap();
            stream.put(&old[..]).await.unwrap();
            let mortal = Arc::new(Mortal { inner: engine, left: AtomicI64::new(step) });
            let dying = Store::from_engine(mortal.clone(), "dying").stream("file").unwrap();
            let put = dying.put(&new[..]).await;
            let now = whole(&stream).await;
            assert!(now == old || now == new, "step {step}: {} bytes", now.len());
            if put.is_ok() {
                assert!(now == new, "step {step}");
            }
            let finished = put.is_ok() && mortal.left.load(Ordering::SeqCst) > 0;
            // The removal dies as well, and is taken up.
            mortal.left.store(step % 7, Ordering::SeqCst);
            drop(dying.remove().await);
            stream.remove().await.unwrap();
            assert_eq!(store.list().next().await.unwrap(), None, "step {step}");
            if finished {
                assert!(step > 10);
                break;
            }
        }
    });
}

/// A function that is called before each request: to an object, or for a page of the list after one.
type Hook = Box<dyn Fn(&ObjectId, Option<&Transaction>) + Send + Sync>;

/// A store with a hook.
struct Hooked {
    inner: Arc<MemoryStore>,
    hook: Hook,
}

impl ObjectStore for Hooked {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        (self.hook)(object, Some(&transaction));
        self.inner.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        after.inspect(|after| (self.hook)(after, None));
        self.inner.list(after, limit)
    }
}

/// Returns two handles on one store: one with a hook, and one without.
fn hooked(
    hook: impl Fn(&Arc<MemoryStore>, &ObjectId, Option<&Transaction>) + Send + Sync + 'static,
) -> (Store, Store) {
    let inner = Arc::new(MemoryStore::new());
    let engine = inner.clone();
    let hook = Box::new(move |object: &ObjectId, transaction: Option<&Transaction>| {
        hook(&engine, object, transaction);
    });
    let plain = Store::from_engine(inner.clone(), "plain");
    (Store::from_engine(Arc::new(Hooked { inner, hook }), "hooked"), plain)
}

async fn record(store: &Store, name: &str) -> bytes::Bytes {
    let read = Transaction::new().read(ReadOp::Attribute { name: Key::try_from(RECORD).unwrap() });
    let object = ObjectId::try_from(name).unwrap();
    let Outcome::Done(mut done) = store.apply(&object, read).await.unwrap() else { panic!("no record") };
    let Some(Answer::Value(Some(record))) = done.answers.pop() else { panic!("no record") };
    record
}

async fn set_record(store: &Store, name: &str, value: bytes::Bytes) {
    let change = WriteOp::SetAttribute { name: Key::try_from(RECORD).unwrap(), value };
    let object = ObjectId::try_from(name).unwrap();
    store.apply(&object, Transaction::new().change(change)).await.unwrap();
}

async fn failure_of_get(stream: &Stream, range: impl Into<ByteRange>) -> nacre::Error {
    stream.get(range, &mut Vec::new()).await.unwrap_err()
}

#[test]
fn an_object_that_was_removed_by_hand_is_an_error_and_not_zeros() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let put = store.stream("put").unwrap();
        put.put(&pattern(1, 9 << 20)[..]).await.unwrap();
        let lost = stripes(&store).await[1].clone();
        store.object(&lost).unwrap().remove().await.unwrap();
        let error = failure_of_get(&put, ByteRange::ALL).await;
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains(&lost), "{error}");
        assert_eq!(put.read(4 << 20, 1).await.unwrap_err().kind, ErrorKind::Corrupt);
        // What is in other objects is there still, and the stream can be stored again.
        assert_eq!(put.get(0..4 << 20, &mut Vec::new()).await.unwrap(), 4 << 20);
        assert_eq!(put.read(0, 9).await.unwrap(), pattern(1, 9));
        put.put(&pattern(3, 5 << 20)[..]).await.unwrap();
        assert!(whole(&put).await == pattern(3, 5 << 20));
        put.remove().await.unwrap();

        // Of one that was written in parts: what was never written is zeros, what was removed is not.
        let written = store.stream("written").unwrap();
        written.create(SMALL).await.unwrap();
        written.write(4096, "one stripe").await.unwrap();
        written.truncate(3 * 4096).await.unwrap();
        let bytes = whole(&written).await;
        assert_eq!((&bytes[4096..4106], bytes.len()), (&b"one stripe"[..], 3 * 4096));
        let [only] = &stripes(&store).await[..] else { panic!("one object") };
        store.object(only).unwrap().remove().await.unwrap();
        assert_eq!(failure_of_get(&written, ByteRange::ALL).await.kind, ErrorKind::Corrupt);
        assert_eq!(written.read(4096, 1).await.unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(written.read(0, 1).await.unwrap(), [0][..]);
    });
}

#[test]
fn a_stream_that_was_stored_at_once_and_never_had_its_objects_here_is_damaged() {
    run(async {
        let (source, copy) = (nacre::open("mem:").unwrap(), nacre::open("mem:").unwrap());
        let stream = source.stream("file").unwrap();
        stream.put(&pattern(1, 5 << 20)[..]).await.unwrap();
        set_record(&copy, "file", record(&source, "file").await).await;
        let copied = copy.stream("file").unwrap();
        assert_eq!(failure_of_get(&copied, ByteRange::ALL).await.kind, ErrorKind::Corrupt);
        assert_eq!(copied.read(0, 1).await.unwrap_err().kind, ErrorKind::Corrupt);
        // What grew behind it has holes as ever.
        stream.truncate(300 << 20).await.unwrap();
        assert_eq!(stream.read(299 << 20, 4).await.unwrap(), [0; 4][..]);
        let mut tail = Vec::new();
        stream.get(5 << 20..50 << 20, &mut tail).await.unwrap();
        assert!(tail == vec![0; 45 << 20]);
    });
}

#[test]
fn a_head_that_was_copied_from_another_stream_does_it_no_harm() {
    run(async {
        let store = nacre::open("mem:").unwrap();
        let (original, copy) = (store.stream("a").unwrap(), store.stream("e").unwrap());
        let bytes = pattern(1, 5 << 20);
        original.put(&bytes[..]).await.unwrap();
        for round in 0..2 {
            set_record(&store, "e", record(&store, "a").await).await;
            assert!(copy.is_copied_head().await.unwrap() && !original.is_copied_head().await.unwrap());
            assert!(whole(&copy).await == bytes);
            for size in [0, 1 << 20, 9 << 20] {
                assert_eq!(copy.truncate(size).await.unwrap_err().kind, ErrorKind::Invalid);
            }
            assert_eq!(copy.write(0, "other").await.unwrap_err().kind, ErrorKind::Invalid);
            if round == 0 {
                assert!(copy.remove().await.unwrap());
                assert!(!store.object("e").unwrap().stat().await.unwrap().exists);
            } else {
                copy.put(&b"of its own"[..]).await.unwrap();
                assert_eq!(whole(&copy).await, b"of its own");
                assert!(!copy.is_copied_head().await.unwrap());
                copy.write(0, "my").await.unwrap();
            }
            assert!(whole(&original).await == bytes, "round {round}");
        }
        assert!(copy.remove().await.unwrap() && original.remove().await.unwrap());
        assert_eq!(store.list().next().await.unwrap(), None);
    });
}

#[test]
fn a_copy_of_a_store_has_one_content_of_a_stream_whenever_that_is_replaced() {
    let (old, new) = (pattern(1, 5 << 20), pattern(2, 6 << 20));
    // The head comes before its objects in the list, or after them.
    for name in ["A", "z"] {
        for step in 0.. {
            let left = AtomicI64::new(i64::MAX);
            let (left, bytes) = (Arc::new(left), new.clone());
            let count = left.clone();
            let (source, plain) = hooked(move |engine, _, _| {
                if count.fetch_sub(1, Ordering::SeqCst) == 0 {
                    let other = Store::from_engine(engine.clone(), "other");
                    run_nested(|| block_on(other.stream(name).unwrap().put(&bytes[..])).unwrap());
                }
            });
            let unchanged = run(async {
                plain.stream(name).unwrap().put(&old[..]).await.unwrap();
                plain.object("B").unwrap().write(0, "small").await.unwrap();
                let destination = nacre::open("mem:").unwrap();
                left.store(step, Ordering::SeqCst);
                let copied = source.copy_objects(&destination, |_, _| {}).await.unwrap();
                assert_eq!(copied.failed, [], "{name}, step {step}");
                let found = whole(&destination.stream(name).unwrap()).await;
                assert!(found == old || found == new, "{name}, step {step}: {} bytes", found.len());
                copied.unchanged
            });
            if left.load(Ordering::SeqCst) >= 0 {
                // Nothing happened meanwhile, and what went with the head was not there before.
                assert!(step > 10 && unchanged == 0);
                break;
            }
        }
    }
}

/// Runs what blocks on a store in memory, from inside of a request.
fn run_nested<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

#[test]
fn a_stream_that_is_replaced_all_the_time_is_among_those_that_were_not_copied() {
    let (source, plain) = hooked(|engine, object, transaction| {
        if transaction.is_none() && object.as_bytes().starts_with(PREFIX.as_bytes()) {
            let other = Store::from_engine(engine.clone(), "other");
            run_nested(|| block_on(other.stream("A").unwrap().put(&b"another content"[..])).unwrap());
        }
    });
    run(async {
        plain.stream("A").unwrap().put(&b"a content"[..]).await.unwrap();
        plain.object("B").unwrap().write(0, "small").await.unwrap();
        let destination = nacre::open("mem:").unwrap();
        let copied = source.copy_objects(&destination, |_, _| {}).await.unwrap();
        let failed: Vec<_> = copied.failed.iter().map(|(id, error)| (id.to_string(), error.kind)).collect();
        assert_eq!(failed, [("A".to_owned(), ErrorKind::Busy)]);
        assert!(destination.object("B").unwrap().stat().await.unwrap().exists);
        assert_eq!(destination.stream("A").unwrap().stat().await.unwrap(), None);
    });
}

#[test]
fn an_object_that_is_made_for_a_removed_stream_of_many_objects_is_removed_again() {
    let (store, plain) = hooked(|engine, object, transaction| {
        let creates = |guard: &Guard| *guard == Guard::Version { version: 0 };
        if object.as_bytes().starts_with(PREFIX.as_bytes())
            && transaction.is_some_and(|transaction| transaction.guards.iter().any(creates))
        {
            let other = Store::from_engine(engine.clone(), "other");
            run_nested(|| block_on(other.stream("big").unwrap().remove())).unwrap();
        }
    });
    run(async {
        let stream = store.stream("big").unwrap();
        stream.create(SMALL).await.unwrap();
        stream.truncate(6000 * 8192).await.unwrap();
        for at in [5990 * 8192, 0] {
            drop(stream.create(SMALL).await);
            stream.truncate(6000 * 8192).await.unwrap();
            assert_eq!(stream.write(at, "late").await.unwrap_err().kind, ErrorKind::Invalid);
            assert_eq!(plain.list().next().await.unwrap(), None, "written at {at}");
        }
    });
}

#[test]
fn a_record_that_promises_more_objects_than_memory_holds_takes_none() {
    /// A target that is full after some bytes.
    struct Full(usize);
    impl tokio::io::AsyncWrite for Full {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            data: &[u8],
        ) -> std::task::Poll<std::io::Result<usize>> {
            let room = self.0.min(data.len());
            self.0 -= room;
            std::task::Poll::Ready(if room == 0 { Err(std::io::Error::other("full")) } else { Ok(room) })
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<std::io::Result<()>> {
            self.poll_flush(context)
        }
    }
    run(async {
        let store = nacre::open("mem:").unwrap();
        let stream = store.stream("sparse").unwrap();
        stream.create(Layout { unit_bytes: 4096, width: 1, object_bytes: 4096 }).await.unwrap();
        stream.truncate(1 << 62).await.unwrap();
        assert_eq!(stream.get(ByteRange::ALL, Full(1 << 20)).await.unwrap_err().kind, ErrorKind::Io);
        // What is there is found among what is not.
        stream.write(20 << 20, "data").await.unwrap();
        let mut bytes = Vec::new();
        stream.get(0..24 << 20, &mut bytes).await.unwrap();
        let mut expected = vec![0; 24 << 20];
        expected[20 << 20..][..4].copy_from_slice(b"data");
        assert!(bytes == expected);
        let [stripe] = &stripes(&store).await[..] else { panic!("one object") };
        store.object(stripe).unwrap().remove().await.unwrap();
        assert_eq!(failure_of_get(&stream, 0..24 << 20).await.kind, ErrorKind::Corrupt);
    });
}

#[test]
fn a_put_whose_last_step_took_effect_unseen_keeps_its_content() {
    let (store, _) = hooked(|engine, object, transaction| {
        let whole = WriteOp::RemoveFork { fork: Fork::DEFAULT };
        // Made twice, the second time in vain: that is the outcome that is seen.
        if let Some(commit) = transaction.filter(|transaction| transaction.writes.contains(&whole)) {
            block_on(engine.apply(object, commit.clone())).unwrap();
        }
    });
    run(async {
        let stream = store.stream("file").unwrap();
        for seed in 0..2 {
            let bytes = pattern(seed, 5 << 20);
            stream.put(&bytes[..]).await.unwrap();
            assert!(whole(&stream).await == bytes);
            assert_eq!(stripes(&store).await.len(), 2);
        }
    });
}

#[test]
fn a_put_whose_content_was_replaced_before_it_saw_it_does_not_say_that_nothing_was_changed() {
    let (store, plain) = hooked(|engine, object, transaction| {
        let whole = WriteOp::RemoveFork { fork: Fork::DEFAULT };
        // It takes effect unseen, and another one takes its place before it is made again in vain.
        if let Some(commit) = transaction.filter(|transaction| transaction.writes.contains(&whole)) {
            block_on(engine.apply(object, commit.clone())).unwrap();
            let other = Store::from_engine(engine.clone(), "other");
            run_nested(|| block_on(other.stream("file").unwrap().put(&b"another content"[..]))).unwrap();
        }
    });
    run(async {
        let error = store.stream("file").unwrap().put(&pattern(1, 5 << 20)[..]).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
        assert_eq!(whole(&plain.stream("file").unwrap()).await, b"another content");
    });
}

#[test]
fn a_stream_that_is_being_removed_is_none_and_not_an_empty_one() {
    let seen = Arc::new(AtomicI64::new(0));
    let counter = seen.clone();
    let (store, plain) = hooked(move |engine, object, transaction| {
        let removes = transaction.is_some_and(|transaction| transaction.writes.contains(&WriteOp::Remove));
        if removes {
            counter.fetch_add(1, Ordering::SeqCst);
            let stream = Store::from_engine(engine.clone(), "reader").stream("file").unwrap();
            assert_eq!(block_on(stream.stat()).unwrap(), None, "while {object} is removed");
            assert!(block_on(stream.is_incomplete()).unwrap());
            let error = block_on(stream.read(0, 10)).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        }
    });
    run(async {
        let bytes = pattern(1, 5 << 20);
        plain.stream("file").unwrap().put(&bytes[..]).await.unwrap();
        let removed = store.stream("file").unwrap().remove().await.unwrap();
        assert!(removed && seen.load(Ordering::SeqCst) > 1);
        let stream = plain.stream("file").unwrap();
        assert!(!stream.is_incomplete().await.unwrap());
        assert_eq!(stripes(&plain).await, [""; 0]);
        // What a removal left behind can be put again.
        stream.put(&bytes[..]).await.unwrap();
        assert!(whole(&stream).await == bytes);
    });
}

/// A store whose first commit of a put takes effect and is refused when it comes again, as if its first answer had been lost;
/// the request after that does not reach it.
struct LostAnswer {
    inner: Arc<MemoryStore>,
    /// 0 before that commit, 1 until the request after it, 2 from then on.
    step: AtomicI64,
}

impl ObjectStore for LostAnswer {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let whole = WriteOp::RemoveFork { fork: Fork::DEFAULT };
        if self.step.compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            return Reply::ready(Err(nacre::Error::new(ErrorKind::Unavailable, "it is away for a moment")));
        }
        if transaction.writes.contains(&whole)
            && self.step.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            block_on(self.inner.apply(object, transaction.clone())).unwrap();
        }
        self.inner.apply(object, transaction)
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }
}

#[test]
fn a_put_that_cannot_look_whether_it_took_effect_takes_nothing_away() {
    run(async {
        let inner = Arc::new(MemoryStore::new());
        let stream = Store::from_engine(inner.clone(), "plain").stream("file").unwrap();
        stream.put(&pattern(1, 5 << 20)[..]).await.unwrap();
        let losing = Arc::new(LostAnswer { inner, step: AtomicI64::new(0) });
        let put = Store::from_engine(losing.clone(), "losing").stream("file").unwrap();
        let error = put.put(&pattern(2, 5 << 20)[..]).await.unwrap_err();
        assert_eq!(losing.step.load(Ordering::SeqCst), 2);
        // It is the new content; that it could be the old one as well is what the failure says.
        assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
        assert!(whole(&stream).await == pattern(2, 5 << 20));
    });
}

/// A store that gives no answer to one request, though that takes effect.
struct NoAnswer {
    inner: Arc<MemoryStore>,
    /// The number of requests before it.
    left: AtomicI64,
}

impl ObjectStore for NoAnswer {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let unanswered = self.left.fetch_sub(1, Ordering::SeqCst) == 0 && !transaction.writes.is_empty();
        let reply = self.inner.apply(object, transaction);
        if unanswered {
            drop(block_on(reply));
            return Reply::ready(Err(nacre::Error::new(ErrorKind::Unknown, "no answer came")));
        }
        reply
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }
}

#[test]
fn a_put_to_which_an_answer_is_missing_says_which_content_it_is_and_leaves_nothing_behind() {
    run(async {
        let (old, new) = (pattern(1, 5 << 20), pattern(2, 9 << 20));
        let mut failed = 0;
        for step in 0.. {
            let inner = Arc::new(MemoryStore::new());
            let stream = Store::from_engine(inner.clone(), "plain").stream("file").unwrap();
            stream.put(&old[..]).await.unwrap();
            let engine = Arc::new(NoAnswer { inner: inner.clone(), left: AtomicI64::new(step) });
            let cut_off = Store::from_engine(engine.clone(), "cut off").stream("file").unwrap();
            let put = cut_off.put(&new[..]).await;
            let now = whole(&stream).await;
            match put {
                Ok(_) => assert!(now == new, "step {step}"),
                // The content that was being put would be in the way of later ones for a day.
                Err(error) if error.kind != ErrorKind::Unknown => {
                    failed += 1;
                    assert_eq!(error.kind, ErrorKind::Unavailable, "step {step}: {error}");
                    assert!(now == old, "step {step}");
                    assert_eq!(stripes(&Store::from_engine(inner, "plain")).await.len(), 2, "step {step}");
                }
                Err(_) => assert!(now == new, "step {step}: the last step took effect"),
            }
            if engine.left.load(Ordering::SeqCst) >= 0 {
                break;
            }
        }
        // The beginning, and the three pieces of 4 MiB at the least.
        assert!(failed >= 4, "{failed}");
    });
}
