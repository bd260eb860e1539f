//! A group of Nacre's reflector: the real forwarder and its table, with the servers as members that are put into it directly, on a thread
//! of the study's process. The maker of updates sends one datagram, and each server gets a copy.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use nacre_planes::forward::{ForwardOptions, Forwarder, Listeners, Waker, be_prompt};
use nacre_planes::plane::{self, PlaneKind, PlaneOptions};
use nacre_reflect::host::{Host, Incoming, Now, Outgoing};
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupId, GroupOptions, Path, Table};

use crate::BenchError;

/// The plane: copies by the system calls that send many datagrams at once, which need no rights.
const PLANE: &str = "batch";
/// The device of all addresses.
const DEVICE: &str = "lo";

/// A running reflector, which ends when this is dropped.
pub(super) struct Reflector {
    /// The address of the group.
    pub(super) address: SocketAddr,
    waker: Waker,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The owner of a table without a control plane: there are no other parties.
struct Owner(Table);

impl Host for Owner {
    fn table(&mut self) -> &mut Table {
        &mut self.0
    }

    fn control(&mut self, _now: Now, _incoming: Incoming<'_>) {}

    fn outgoing(&mut self) -> Option<Outgoing> {
        None
    }
}

impl Reflector {
    /// Starts a reflector with one group of these members.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start(members: Vec<SocketAddr>) -> Result<Self, BenchError> {
        let ends = Arc::new(AtomicBool::new(false));
        let (sender, ready) = mpsc::channel();
        let ended = ends.clone();
        let run = move || {
            let (address, mut forwarder, mut owner) = match prepare(&members) {
                Ok(prepared) => prepared,
                Err(why) => return drop(sender.send(Err(why))),
            };
            if sender.send(Ok((address, forwarder.waker()))).is_err() {
                return;
            }
            be_prompt();
            while !ended.load(Ordering::Acquire) {
                if let Err(error) = forwarder.poll(&mut owner, Duration::from_millis(200)) {
                    eprintln!("nacre: the reflector of the study has ended: {error}");
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("reflector".into()).spawn(run);
        let thread = thread.map_err(BenchError::io("start a thread"))?;
        let failed = |why: String| BenchError::Process(format!("the reflector: {why}"));
        let (address, waker) =
            ready.recv().map_err(|_| failed("it ended by itself".into()))?.map_err(failed)?;
        Ok(Self { address, waker, ends, thread: Some(thread) })
    }
}

fn prepare(members: &[SocketAddr]) -> Result<(SocketAddr, Forwarder, Owner), String> {
    let kind: PlaneKind = PLANE.parse()?;
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let listeners =
        Listeners::open(&[SocketAddr::from((Ipv4Addr::LOCALHOST, 0))]).map_err(|error| text(&error))?;
    let address = listeners.addresses().next().ok_or("it does not listen")?;
    let options = PlaneOptions { devices: vec![DEVICE.to_owned()], ..PlaneOptions::default() };
    let plane = plane::open(kind, &listeners, &options).map_err(|error| text(&error))?;
    let mut forwarder =
        Forwarder::new(listeners, plane, ForwardOptions::default()).map_err(|error| text(&error))?;
    let device = nix::net::if_::if_nametoindex(DEVICE).map_err(|error| text(&error))?;
    let mut table = Table::new();
    let group = GroupOptions {
        group_rate: Rate::UNLIMITED,
        member_rate: Rate::UNLIMITED,
        members_max: u32::MAX,
        // Every datagram is wanted, however late.
        max_age_ms: 0,
        ..GroupOptions::default()
    };
    let group = table.set_group(GroupId { port: address.port(), id: 0 }, group);
    for member in members {
        table.join(group, Path { device, local: address }, *member, false, 0);
    }
    let mut owner = Owner(table);
    forwarder.poll(&mut owner, Duration::ZERO).map_err(|error| text(&error))?;
    Ok((address, forwarder, owner))
}

impl Drop for Reflector {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Release);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn every_member_but_the_sender_gets_a_copy() {
        let sockets: Vec<UdpSocket> = (0..4).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let members = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        let reflector = Reflector::start(members).unwrap();
        sockets[0].send_to(b"a record", reflector.address).unwrap();
        for socket in &sockets[1..] {
            socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut buffer = [0; 64];
            let length = socket.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"a record");
        }
    }
}
