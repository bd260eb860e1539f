//! A reflector with a plane, in a namespace of its own, and members behind one or several devices.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nacre_planes::forward::{Counters, ForwardOptions, Forwarder, Listeners, Waker};
use nacre_planes::plane::{self, PlaneKind, PlaneOptions};
use nacre_planes::testbed::{Namespace, Testbed, socket};
use nacre_reflect::host::{Host, Incoming, Now, Outgoing};
use nacre_reflect::table::{GroupId, GroupIndex, GroupOptions, Path, Table, Terms};
use nacre_reflect::wire;

/// The port of every group here.
pub const PORT: u16 = 7400;
/// The longest wait for something that has to happen. It is reached only if it does not happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A table, with the datagrams that came for the reflector itself.
#[derive(Default)]
pub struct Desk {
    pub table: Table,
    pub control: Vec<(SocketAddr, Path, Vec<u8>)>,
}

impl Host for Desk {
    fn table(&mut self) -> &mut Table {
        &mut self.table
    }

    fn control(&mut self, _: Now, incoming: Incoming<'_>) {
        self.control.push((incoming.from, incoming.path, incoming.bytes.to_vec()));
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        None
    }
}

/// Returns the default options, but for the age of datagrams: a machine may let the reflector stand still for longer than games
/// wait.
pub fn patient() -> GroupOptions {
    GroupOptions { max_age_ms: 600_000, ..GroupOptions::default() }
}

type Work = Box<dyn FnOnce(&mut Desk, &mut Forwarder) + Send>;

/// A reflector in its namespace, with its members' namespaces.
pub struct World {
    work: Option<Sender<Work>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    pub reflector: Namespace,
    pub sides: Vec<Side>,
    _lab: Testbed,
}

/// The namespace of members behind one device of the reflector.
pub struct Side {
    pub namespace: Namespace,
    /// The index of the reflector's device.
    pub device: u32,
    number: u8,
}

/// A member's socket and addresses.
pub struct Member {
    pub socket: UdpSocket,
    pub address: SocketAddr,
    pub path: Path,
}

impl World {
    pub fn new(kind: PlaneKind, sides: u8) -> World {
        Self::with_options(kind, sides, ForwardOptions::default())
    }

    pub fn with_options(kind: PlaneKind, sides: u8, options: ForwardOptions) -> World {
        let mut testbed = Testbed::new().unwrap();
        let reflector = testbed.namespace("r").unwrap();
        let sides = (0..sides).map(|number| Side::new(&mut testbed, &reflector, number)).collect();
        let (work, todo) = channel();
        let (sender, receiver) = channel();
        let thread = reflector.spawn(move || {
            let any = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
            let listeners = Listeners::open(&any.map(|ip| SocketAddr::new(ip, PORT))).unwrap();
            let plane = plane::open(kind, &listeners, &PlaneOptions::default()).unwrap();
            assert_eq!(plane.kind(), kind);
            let forwarder = Forwarder::new(listeners, plane, options).unwrap();
            sender.send(forwarder.waker()).unwrap();
            serve(forwarder, &todo);
        });
        let waker = receiver.recv().expect("the reflector's thread says why it could not begin");
        World { work: Some(work), waker, thread: Some(thread), reflector, sides, _lab: testbed }
    }

    /// Runs a function on the reflector's thread, and returns its result.
    pub fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Desk, &mut Forwarder) -> T + Send + 'static,
    ) -> T {
        let (reply_sender, reply_receiver) = channel();
        let work: Work = Box::new(move |desk, forwarder| {
            // Whoever asked may have given up.
            let _ = reply_sender.send(work(desk, forwarder));
        });
        self.work.as_ref().unwrap().send(work).expect("the reflector runs");
        self.waker.wake();
        reply_receiver.recv().expect("the reflector runs")
    }

    /// Keeps the reflector's thread from its work until `meanwhile` has returned.
    pub fn stall(&self, meanwhile: impl FnOnce()) {
        let (go_on, wait) = channel::<()>();
        let (stalls, stalled) = channel();
        let work: Work = Box::new(move |_, _| {
            let _ = stalls.send(());
            let _ = wait.recv();
        });
        self.work.as_ref().unwrap().send(work).expect("the reflector runs");
        self.waker.wake();
        stalled.recv().expect("the reflector runs");
        meanwhile();
        drop(go_on);
    }

    /// Changes the table, and returns when the plane has followed.
    pub fn change<T: Send + 'static>(&self, work: impl FnOnce(&mut Table) -> T + Send + 'static) -> T {
        let result = self.with(|desk, _| work(&mut desk.table));
        self.with(|_, _| {});
        result
    }

    pub fn group(&self, id: u32, options: GroupOptions) -> GroupIndex {
        self.change(move |table| table.set_group(GroupId { port: PORT, id }, options))
    }

    pub fn join(&self, group: GroupIndex, member: &Member, echo: bool) {
        let (path, address) = (member.path, member.address);
        self.change(move |table| table.join(group, path, address, echo, 0));
    }

    pub fn join_on(&self, group: GroupIndex, member: &Member, terms: Terms) {
        let (path, address) = (member.path, member.address);
        self.change(move |table| table.join_on(group, path, address, terms, 0));
    }

    pub fn leave(&self, id: u32, member: &Member) {
        let address = member.address;
        self.change(move |table| {
            let member = table.member_of(GroupId { port: PORT, id }, address).expect("it is a member");
            table.leave(member);
        });
    }

    /// Adds members to a group, in turn behind each of the sides.
    pub fn members(&self, group: GroupIndex, count: usize, version: u8) -> Vec<Member> {
        let members: Vec<_> =
            (0..count).map(|at| self.sides[at % self.sides.len()].member(version)).collect();
        for member in &members {
            self.join(group, member, false);
        }
        members
    }

    /// Replaces the plane.
    pub fn set_plane(&self, kind: PlaneKind) {
        self.with(move |desk, forwarder| {
            let plane = plane::open(kind, forwarder.listeners(), &PlaneOptions::default()).unwrap();
            forwarder.set_plane(desk, plane).unwrap();
        });
    }

    pub fn counters(&self) -> Counters {
        self.with(|_, forwarder| {
            forwarder.refresh();
            forwarder.counters()
        })
    }

    /// Waits until the counters are as expected, and returns them.
    pub fn until(&self, what: &str, as_expected: impl Fn(&Counters) -> bool) -> Counters {
        let from = Instant::now();
        loop {
            let counters = self.counters();
            if as_expected(&counters) {
                return counters;
            }
            assert!(from.elapsed() < PATIENCE, "waiting in vain for: {what}; {counters:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.work = None;
        self.waker.wake();
        let ended = self.thread.take().map(JoinHandle::join);
        if let Some(Err(panicked)) = ended
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panicked);
        }
    }
}

fn serve(mut forwarder: Forwarder, todo: &Receiver<Work>) {
    use std::sync::mpsc::TryRecvError;
    let mut desk = Desk::default();
    loop {
        match todo.try_recv() {
            Ok(work) => {
                work(&mut desk, &mut forwarder);
                // Whoever has changed the table waits for the next work to be done, and that is after this.
                forwarder.poll(&mut desk, Duration::ZERO).unwrap();
            }
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => forwarder.poll(&mut desk, Duration::from_secs(1)).unwrap(),
        }
    }
}

impl Side {
    fn new(testbed: &mut Testbed, reflector: &Namespace, number: u8) -> Side {
        let namespace = testbed.namespace(&format!("m{number}")).unwrap();
        let name = format!("d{number}");
        testbed.link((reflector, &name), (&namespace, "e0")).unwrap();
        for (of, device, host) in [(reflector, &*name, 1), (&namespace, "e0", 2)] {
            of.address(device, &format!("10.77.{number}.{host}/24")).unwrap();
            of.address(device, &format!("fd77:{number}::{host}/64")).unwrap();
            of.ring(device).unwrap();
        }
        Side { device: reflector.device(&name).unwrap(), namespace, number }
    }

    /// Opens a socket of a side, with IPv4 or IPv6, without a membership yet.
    pub fn member(&self, version: u8) -> Member {
        let n = self.number;
        let ip = |host: u8| match version {
            4 => IpAddr::from([10, 77, n, host]),
            _ => IpAddr::from([0xfd77, u16::from(n), 0, 0, 0, 0, 0, u16::from(host)]),
        };
        let socket = self.namespace.run(|| socket(SocketAddr::new(ip(2), 0))).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let local = SocketAddr::new(ip(1), PORT);
        socket.connect(local).unwrap();
        // Whoever joins has spoken with the reflector before, and the machines know each other.
        socket.send(&wire::MAGIC).unwrap();
        Member { address: socket.local_addr().unwrap(), socket, path: Path { device: self.device, local } }
    }

    /// Sets the reflector's end down, or up again.
    pub fn set(&self, world: &World, state: &str) {
        world.reflector.ip(&["link", "set", &format!("d{}", self.number), state]).unwrap();
    }

    /// Gives the reflector's end a queue.
    pub fn queue(&self, world: &World, queue: &str) {
        world.reflector.queue(&format!("d{}", self.number), queue).unwrap();
    }

    /// Sets the MTU of the reflector's end.
    pub fn mtu(&self, world: &World, mtu: &str) {
        world.reflector.ip(&["link", "set", &format!("d{}", self.number), "mtu", mtu]).unwrap();
    }
}

/// A socket that sees all frames that come to a side.
pub struct Capture(std::os::fd::OwnedFd);

impl Side {
    pub fn capture(&self) -> Capture {
        use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};
        // Any protocol, in network order.
        let any = Protocol::from_raw(std::num::NonZero::new(0x0300).unwrap());
        let open = || socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::NONBLOCK, Some(any));
        Capture(self.namespace.run(open).unwrap())
    }
}

impl Capture {
    /// Returns the type of service of the next frame with this payload to an address, and true if it is not to be
    /// fragmented.
    pub fn copy_to(&self, to: SocketAddr, payload: &[u8]) -> (u8, bool) {
        let from = Instant::now();
        let mut frame = [0; 2048];
        while from.elapsed() < PATIENCE {
            let Ok(len) = rustix::io::read(&self.0, &mut frame) else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            let frame = &frame[..len];
            let udp = if to.is_ipv4() { 34 } else { 54 };
            let port = |at: usize| frame.get(at..at + 2).map(|port| u16::from_be_bytes([port[0], port[1]]));
            if port(udp) != Some(PORT)
                || port(udp + 2) != Some(to.port())
                || frame.get(udp + 8..) != Some(payload)
            {
                continue;
            }
            return match to {
                SocketAddr::V4(_) => (frame[15], frame[20] & 0x40 != 0),
                SocketAddr::V6(_) => (frame[14] << 4 | frame[15] >> 4, true),
            };
        }
        panic!("no copy to {to} was seen");
    }
}

impl Member {
    /// Sets the type of service of what is sent, and lets it be fragmented on the way.
    pub fn set_tos(&self, tos: u8) {
        use rustix::net::sockopt::{set_ip_tos, set_ipv6_tclass};
        match self.address {
            SocketAddr::V4(_) => {
                set_ip_tos(&self.socket, tos).unwrap();
                nacre_planes::testbed::let_fragment(&self.socket).unwrap();
            }
            SocketAddr::V6(_) => set_ipv6_tclass(&self.socket, tos.into()).unwrap(),
        }
    }

    pub fn send(&self, bytes: &[u8]) {
        assert_eq!(self.socket.send(bytes).unwrap(), bytes.len());
    }

    /// Returns the next datagram, which has to come.
    pub fn receive(&self) -> Vec<u8> {
        let mut bytes = vec![0; 70_000];
        let len = loop {
            match self.socket.recv(&mut bytes) {
                Ok(len) => break len,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) => panic!("{}: {why}", self.address),
            }
        };
        bytes.truncate(len);
        bytes
    }

    /// Returns all datagrams that have come and were not taken yet.
    pub fn rest(&self) -> Vec<Vec<u8>> {
        let mut bytes = vec![0; 70_000];
        let mut all = Vec::new();
        self.socket.set_nonblocking(true).unwrap();
        loop {
            match self.socket.recv(&mut bytes) {
                Ok(len) => all.push(bytes[..len].to_vec()),
                Err(why) if why.kind() == ErrorKind::WouldBlock => break,
                Err(why) => panic!("{}: {why}", self.address),
            }
        }
        self.socket.set_nonblocking(false).unwrap();
        all
    }
}
