//! Arbitrary frames, sent to a server with a service that has everything a service may have: replies now, later and
//! never, parts, subscriptions, reservations, and sessions. Nothing panics, what comes back are frames, and a connection
//! that is over holds nothing.

#![no_main]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use nacre_object::StoreError;
use nacre_rpc::handshake::{HELLO_BYTES, hello};
use nacre_rpc::server::Publisher;
use nacre_rpc::{
    Address, Handled, Incoming, MessageKind, Outbox, Peer, ServeOptions, Server, ServerLimits, Service,
    Services, check, control,
};

const TOY: u8 = 1;
/// The bytes that all connections together may hold.
const ACCOUNT_BYTES: usize = 1 << 20;

struct Toy {
    watchers: Mutex<Vec<Publisher>>,
}

type Pending = Pin<Box<dyn Future<Output = Result<Bytes, StoreError>> + Send>>;

impl Service for Toy {
    /// The version that the peer speaks.
    type Connection = u16;
    type Pending = Pending;

    fn number(&self) -> u8 {
        TOY
    }

    fn requests_max(&self) -> usize {
        8
    }

    fn open(&self, peer: &Peer) -> u16 {
        peer.version
    }

    fn handle(&self, version: &mut u16, request: Incoming<'_>, outbox: &mut Outbox) -> Handled<Pending> {
        let answer = match request.kind.code {
            0 => Ok(request.body),
            // Older peers cannot say that they wait no longer.
            1 if *version >= 3 => return Handled::Later(Box::pin(std::future::pending())),
            2 => {
                let parts = request.parts(MessageKind::new(TOY, 9));
                let body = request.body;
                return Handled::Later(Box::pin(async move {
                    for _ in 0..body.len() {
                        parts.send(body.clone()).await?;
                    }
                    parts.replace(body.clone());
                    Ok(body)
                }));
            }
            3 => request.subscribe().map(|publisher| {
                self.watchers.lock().unwrap().push(publisher);
                Bytes::new()
            }),
            4 => {
                let mut watchers = self.watchers.lock().unwrap();
                watchers.retain(|watcher| watcher.push(request.body.clone()));
                Ok(Bytes::new())
            }
            5 => {
                self.watchers.lock().unwrap().clear();
                Ok(Bytes::new())
            }
            6 => {
                let bytes = request.body.first().map_or(0, |exponent| 1usize << (exponent % 24));
                match request.reserve(bytes) {
                    Ok(true) => Ok(Bytes::new()),
                    Ok(false) => return Handled::NoCapacity(request.body),
                    Err(error) => Err(error),
                }
            }
            _ => Err(request.unsupported()),
        };
        self.finish(version, request.id, answer, outbox);
        Handled::Answered
    }

    fn finish(&self, _: &mut u16, id: u64, answer: Result<Bytes, StoreError>, outbox: &mut Outbox) {
        match answer {
            Ok(body) => assert!(control::put_body(outbox, MessageKind::new(TOY, 8), id, &body).is_ok()),
            Err(error) => control::put_error(outbox, id, &error),
        }
    }
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("nacre-fuzz-{}", std::process::id()));
        let limits = ServerLimits {
            held_bytes_max: ACCOUNT_BYTES,
            session_timeout: Duration::from_millis(1),
            ..ServerLimits::default()
        };
        let services = Services::new().with(Toy { watchers: Mutex::default() });
        let listen = vec![Address::Unix(path)];
        Server::start(ServeOptions { listen, threads: 1, limits, services, ..ServeOptions::default() })
            .expect("the server starts")
    })
}

fuzz_target!(|bytes: &[u8]| {
    let server = server();
    let Address::Unix(path) = &server.addresses()[0] else { unreachable!("it listens on a Unix socket") };
    let mut stream = UnixStream::connect(path).expect("the server is there");
    // The first byte chooses the version.
    let (version, frames) =
        bytes.split_first().map_or((3, bytes), |(byte, rest)| (u16::from(byte % 3) + 1, rest));
    stream.write_all(&hello(version, 0)).expect("a hello fits into the socket");
    stream.read_exact(&mut [0; HELLO_BYTES]).expect("the server answers");
    let mut sending = stream.try_clone().expect("a second handle");
    let frames = frames.to_vec();
    let sender = std::thread::spawn(move || {
        // The server may have closed the connection already.
        let _ = sending.write_all(&frames);
        let _ = sending.shutdown(Shutdown::Write);
    });
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time");
    let mut received = Vec::new();
    let ended = stream.read_to_end(&mut received);
    assert!(!matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock), "it stays open");
    check::decode_all(&received, |_| {});
    sender.join().expect("the sender does not panic");
    drop(stream);
    let begin = Instant::now();
    while server.stats().held_bytes.get() > 0 || server.stats().in_flight.get() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "something is left of a connection that is over");
        std::thread::yield_now();
    }
});
