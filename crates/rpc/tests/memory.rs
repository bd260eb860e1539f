//! The memory of sessions and of requests that wait, measured from outside: a server in a process of its own, whose
//! resident size may grow by twice its account at most.
//!
//! Run with the argument `serve`, this program is the server; otherwise it starts itself as one for each case.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use nacre_rpc::control::{Beginning, SessionKey};
use nacre_rpc::frame::{self, Frame};
use nacre_rpc::handshake::hello;
use nacre_rpc::{MessageKind, Outbox, ServerLimits, Services, control};
use support::*;

const SESSIONS: usize = 10_000;
/// The small requests that are never answered.
const WAITING: u64 = 1000;
/// The bytes that the allocator and the threads of a process take besides.
const SLACK_BYTES: usize = 8 << 20;

fn main() {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("serve") {
        return serve(words.next().unwrap().parse().unwrap());
    }
    // With the larger account all sessions are kept, with the smaller one those that there is room for.
    for (account, kept_min, kept_max) in [(64 << 20, SESSIONS, SESSIONS), (8 << 20, 1000, 4 << 10)] {
        let mut served = Served::start(account);
        let before = served.size("VmRSS");
        let kept = served.leave_sessions(before + 2 * account);
        assert!((kept_min..=kept_max).contains(&kept), "{kept} sessions are kept");
        served.send_to_all();
        let growth = served.size("VmHWM").saturating_sub(before);
        println!(
            "memory: account of {} MiB: {kept} of {SESSIONS} sessions kept, the server grew by {} MiB",
            account >> 20,
            growth >> 20
        );
        assert!(growth <= 2 * account + SLACK_BYTES, "the server grew by {growth} bytes");
        let event = served.resume_one();
        assert_eq!(event.kind, MessageKind::EVENT, "what is kept can be resumed");
    }
    let account = 8 << 20;
    let served = Served::start(account);
    let before = served.size("VmRSS");
    let _waiting = served.leave_waiting();
    let growth = served.size("VmHWM").saturating_sub(before);
    println!("memory: {WAITING} small requests that wait: the server grew by {} MiB", growth >> 20);
    assert!(growth <= 2 * account + SLACK_BYTES, "the server grew by {growth} bytes");
}

/// Serves the toy until standard input ends.
fn serve(account: usize) {
    let limits = ServerLimits {
        held_bytes_max: account,
        // So many sessions wait at once that none may expire for being slow.
        session_timeout: Duration::from_secs(600),
        ..Default::default()
    };
    let toy = Arc::new(Toy::default());
    let server = serve_with(Services::new().with(ToyService(toy)), limits, None);
    println!("{}", server.addresses()[0]);
    let _ = std::io::stdin().read(&mut [0]);
    std::process::exit(0);
}

struct Served {
    child: Child,
    address: String,
    session: SessionKey,
}

impl Served {
    fn start(account: usize) -> Served {
        let program = std::env::current_exe().unwrap();
        let words = ["serve".to_owned(), account.to_string()];
        let mut command = Command::new(program);
        let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Served { child, address: line.trim().to_owned(), session: SessionKey::NONE }
    }

    /// Opens a raw connection that has begun a session, or resumed one.
    fn begun(&self, session: SessionKey) -> (TcpStream, Beginning) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        // The body of a request goes out without waiting until its header is acknowledged, which takes 40 ms each time.
        stream.set_nodelay(true).unwrap();
        stream.write_all(&hello(3, 0)).unwrap();
        stream.read_exact(&mut [0; 16]).unwrap();
        let mut outbox = Outbox::default();
        let beginning = Beginning { features: 0, kept: true, session };
        control::put_beginning(&mut outbox, MessageKind::BEGIN, 1, &beginning);
        let mut bytes = BytesMut::new();
        outbox.copy_to(&mut bytes);
        stream.write_all(&bytes).unwrap();
        let begun = control::get_beginning(&receive(&mut stream).body).unwrap();
        (stream, begun)
    }

    /// Makes sessions that have a subscription each, and leaves them. Returns how many the server keeps.
    fn leave_sessions(&mut self, size_max: usize) -> usize {
        let mut kept = 0;
        for number in 0..SESSIONS {
            let (mut stream, beginning) = self.begun(SessionKey::NONE);
            stream.write_all(&frame::header(WATCH, 5, 0)).unwrap();
            let watching = receive(&mut stream).kind == OK;
            if !beginning.session.is_none() && watching {
                kept += 1;
                self.session = beginning.session;
            }
            if number % 1000 == 0 {
                assert!(self.size("VmHWM") <= size_max + SLACK_BYTES, "after {number} sessions");
            }
        }
        kept
    }

    /// Sends events to all subscribers, who are away: more than there is memory for.
    fn send_to_all(&self) {
        let (mut teller, _) = self.begun(SessionKey::NONE);
        let body = vec![7; 16 << 10];
        for id in 1..=600 {
            teller.write_all(&frame::header(TELL, id, body.len() as u32)).unwrap();
            teller.write_all(&body).unwrap();
            assert_eq!(receive(&mut teller).kind, OK);
        }
    }

    /// Sends small requests that wait, and between them large ones that are answered at once, so that few of the small
    /// ones lie in the same buffer of the server.
    fn leave_waiting(&self) -> TcpStream {
        let (mut stream, _) = self.begun(SessionKey::NONE);
        let body = vec![7; 60 << 10];
        for number in 0..WAITING {
            stream.write_all(&frame::header(NEVER, 1 << 32 | number, 100)).unwrap();
            stream.write_all(&body[..100]).unwrap();
            for id in 1..=3 {
                stream.write_all(&frame::header(TELL, id, body.len() as u32)).unwrap();
                stream.write_all(&body).unwrap();
                assert_eq!(receive(&mut stream).kind, OK);
            }
        }
        stream
    }

    /// Resumes a session, and returns the first thing that its subscription is told.
    fn resume_one(&self) -> Frame {
        let (mut stream, beginning) = self.begun(self.session);
        assert!(beginning.kept);
        receive(&mut stream)
    }

    /// Returns a line of the process's status, in bytes.
    fn size(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It ends when its standard input does; it is waited for, so that it is not left over.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn receive(stream: &mut TcpStream) -> Frame {
    let mut bytes = BytesMut::zeroed(16);
    stream.read_exact(&mut bytes).unwrap();
    bytes.resize(frame::frame_bytes(&bytes).unwrap().unwrap(), 0);
    stream.read_exact(&mut bytes[16..]).unwrap();
    frame::take(&mut bytes).unwrap().unwrap()
}
