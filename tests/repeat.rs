//! Clients that go on through `kill -9` of their server: no write is of unknown fate, and every acknowledged one took
//! effect exactly once.

mod harness;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use harness::{PATIENCE, Server, file};
use nacre::{ErrorKind, Fork, Outcome, ReadOp, Transaction};

const KILLS: u64 = 6;
const CLIENTS: usize = 4;
/// The writes that a client has under way.
const UNDER_WAY: usize = 8;

#[test]
fn writes_under_way_are_settled_by_the_server_that_comes_back() {
    let folder = harness::folder();
    let store = file(folder.path());
    let sockets = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", sockets.path().join("socket").display());
    let flags = ["--segment-bytes", "4MiB", "--snapshot-bytes", "16MiB"];
    let mut server = Server::listen(&address, &store, &flags);
    let uri = format!("{address}?repeat_timeout=60s");
    let (over, total) = (AtomicBool::new(false), AtomicU64::new(0));
    let (_server, counts): (Server, Vec<(u64, u64)>) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|index| {
                let (uri, over, total) = (&uri, &over, &total);
                scope.spawn(move || {
                    let store = nacre::open(uri).unwrap();
                    let object = store.object(format!("client-{index}")).unwrap();
                    let (mut acknowledged, mut unknown, mut number) = (0, 0, 0u64);
                    while !over.load(Ordering::SeqCst) {
                        let replies: Vec<_> = (0..UNDER_WAY)
                            .map(|_| {
                                number += 1;
                                let bytes = number.to_le_bytes().to_vec();
                                store.apply(object.id(), Transaction::new().write(Fork::DEFAULT, 0, bytes))
                            })
                            .collect();
                        for reply in replies {
                            match futures::executor::block_on(reply) {
                                Ok(_) => {
                                    acknowledged += 1;
                                    total.fetch_add(1, Ordering::SeqCst);
                                }
                                Err(error) if error.kind == ErrorKind::Unknown => {
                                    println!("client {index}: {error}");
                                    unknown += 1;
                                }
                                // Nothing was changed.
                                Err(error) if error.kind == ErrorKind::Unavailable => {}
                                Err(error) => panic!("{error:?}"),
                            }
                        }
                    }
                    (acknowledged, unknown)
                })
            })
            .collect();
        for _ in 0..KILLS {
            let (begun, before) = (Instant::now(), total.load(Ordering::SeqCst));
            while total.load(Ordering::SeqCst) < before + 500 {
                assert!(begun.elapsed() < PATIENCE, "the clients get nowhere: {}", server.log());
                std::thread::yield_now();
            }
            server.kill();
            server = Server::listen(&address, &store, &flags);
        }
        over.store(true, Ordering::SeqCst);
        (server, clients.into_iter().map(|client| client.join().unwrap()).collect())
    });
    let check = nacre::open(&address).unwrap();
    for (index, (acknowledged, unknown)) in counts.into_iter().enumerate() {
        let object = check.object(format!("client-{index}")).unwrap();
        let look = check.apply(object.id(), Transaction::new().read(ReadOp::Stat));
        let Outcome::Done(done) = futures::executor::block_on(look).unwrap() else {
            panic!("a read is refused")
        };
        // Every write takes the object's next version.
        let possible = acknowledged..=acknowledged + unknown;
        assert!(
            possible.contains(&done.version),
            "client {index}: {} writes took effect, {acknowledged} were acknowledged, {unknown} are of unknown fate",
            done.version
        );
        assert_eq!(unknown, 0, "client {index} was not told what became of its writes");
    }
}
