//! Streams on the embedded engine: geometry, growth and truncation, replacement at once, removal, and what is left by
//! clients that die on the way.

use std::io::Cursor;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use nacre::stream::{Layout, PREFIX};
use nacre::{ByteRange, ErrorKind, ObjectId, ObjectStore, Outcome, Reply, Store, Stream, Transaction};
use nacre_object::testkit::MemoryStore;
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
