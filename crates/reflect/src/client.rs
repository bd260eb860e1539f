//! A member with a real socket, around the state machine of [`member`](crate::member).
//!
//! A [`Client`] has one socket and is a member of one group at a time; a program that wants to be in several has
//! several. It works only while it is polled, so poll it continuously: heartbeats are sent, and silent
//! reflectors are noticed, in [`Client::poll`].

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::member::{Member, MemberEvent, MemberOptions, SendError, Target, Wanted};

/// The length of the longest datagram, in bytes.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// The greatest number of datagrams taken before the caller has its turn.
const BATCH: usize = 64;
/// The longest wait for room in a full socket.
const FULL_WAIT: Duration = Duration::from_secs(5);

/// An event of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// A datagram of another member of the group.
    Datagram {
        /// The payload.
        payload: Vec<u8>,
        /// The number of the datagram, in groups whose datagrams are numbered.
        sequence: Option<u64>,
    },
    /// An event of the membership.
    Member(MemberEvent),
}

/// An error of a client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No reflector was named.
    #[error("no reflector was named")]
    NoReflector,
    /// A system call failed.
    #[error("cannot {action}: {why}")]
    System {
        /// The attempted operation.
        action: &'static str,
        /// The cause.
        why: io::Error,
    },
    /// The payload cannot be sent now, or ever.
    #[error(transparent)]
    Send(#[from] SendError),
}

fn system(action: &'static str) -> impl Fn(io::Error) -> ClientError {
    move |why| ClientError::System { action, why }
}

/// Ends the waiting of a [`Client`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// Ends the present wait, or the next one.
    pub fn wake(&self) {
        // It cannot fail but by being full, and then it is awake.
        let _ = rustix::io::write(&*self.0, &1_u64.to_ne_bytes());
    }
}

/// The size of the receive buffer for datagrams that were not taken yet, in bytes.
const RECEIVE_BYTES: usize = 4 << 20;

/// A member with a socket.
#[derive(Debug)]
pub struct Client {
    member: Member,
    socket: UdpSocket,
    wake: Waker,
    begun: Instant,
    buffer: Box<[u8]>,
    events: VecDeque<ClientEvent>,
}

impl Client {
    /// Creates a client that begins to join when it is polled. All reflectors must be of the address family of the
    /// first: those of the other one are not tried.
    ///
    /// # Errors
    /// [`ClientError::NoReflector`] if none is named; [`ClientError::System`] if the socket cannot be set up.
    pub fn new(wanted: Wanted, options: MemberOptions) -> Result<Client, ClientError> {
        let wanted = of_one_family(wanted).ok_or(ClientError::NoReflector)?;
        let any: SocketAddr = match is_ipv4(&wanted) {
            true => (Ipv4Addr::UNSPECIFIED, 0).into(),
            false => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any).map_err(system("open a socket"))?;
        // Many members may send at once, and what finds no room is lost. The system cuts it to its own limit.
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BYTES)
            .map_err(|errno| system("give a socket room")(errno.into()))?;
        socket.set_nonblocking(true).map_err(system("set up a socket"))?;
        let mut seed = [0; 32];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| system("get random numbers")(error.into()))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("set up a socket")(error.into()))?;
        Ok(Client {
            member: Member::new(wanted, options, seed),
            socket,
            wake: Waker(Arc::new(wake)),
            begun: Instant::now(),
            buffer: vec![0; DATAGRAM_BYTES_MAX].into_boxed_slice(),
            events: VecDeque::new(),
        })
    }

    /// Returns a handle that ends the waiting in [`Client::poll`].
    pub fn waker(&self) -> Waker {
        self.wake.clone()
    }

    /// Returns the membership.
    pub fn member(&self) -> &Member {
        &self.member
    }

    /// Returns the group that the client is in, if any.
    pub fn target(&self) -> Option<Target> {
        self.member.target()
    }

    /// Returns the next event. Waits for one, `timeout` at most, or until it is woken; `None` if there was none.
    ///
    /// # Errors
    /// [`ClientError::System`] if the socket cannot be waited for or read.
    pub fn poll(&mut self, timeout: Duration) -> Result<Option<ClientEvent>, ClientError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let until = Instant::now() + timeout;
        let mut woken = false;
        loop {
            let over = woken || Instant::now() >= until;
            // What came while nobody looked comes before what did not come in that time.
            self.receive()?;
            let now_us = self.now_us();
            self.member.tick(now_us);
            self.flush()?;
            if let Some(event) = self.take_event() {
                return Ok(Some(event));
            }
            if over {
                return Ok(None);
            }
            let left = until.saturating_duration_since(Instant::now());
            let due = self
                .member
                .timeout_us()
                .map_or(left, |due_us| Duration::from_micros(due_us.saturating_sub(self.now_us())));
            woken = self.wait(left.min(due))?;
        }
    }

    /// Sends a datagram to the group.
    ///
    /// # Errors
    /// [`ClientError::Send`] if the member is in no group or the payload looks like a control message;
    /// [`ClientError::System`] if the system refuses it.
    pub fn send(&mut self, payload: &[u8]) -> Result<(), ClientError> {
        let now_us = self.now_us();
        let to = self.member.send(now_us, payload)?;
        self.transmit(payload, to).map_err(system("send a datagram"))
    }

    /// Answers [`MemberEvent::StateAsked`]; `None` if there is no state to give.
    pub fn give_state(&mut self, ask: u32, state: Option<Bytes>) -> Result<(), ClientError> {
        let now_us = self.now_us();
        self.member.give_state(now_us, ask, state);
        self.flush()
    }

    /// Fetches the group's state, whatever version of it was fetched before.
    pub fn fetch_state(&mut self) -> Result<(), ClientError> {
        let now_us = self.now_us();
        self.member.fetch_state(now_us);
        self.flush()
    }

    /// Moves the client: it joins the wanted group, and then leaves the present one.
    ///
    /// # Errors
    /// [`ClientError::NoReflector`] if none is named.
    pub fn move_to(&mut self, wanted: Wanted) -> Result<(), ClientError> {
        let wanted = of_one_family(wanted).ok_or(ClientError::NoReflector)?;
        let now_us = self.now_us();
        self.member.move_to(now_us, wanted);
        self.flush()
    }

    /// Leaves, and waits until the reflector has confirmed that, `timeout` at most. Returns the events until then.
    pub fn leave(mut self, timeout: Duration) -> Result<Vec<ClientEvent>, ClientError> {
        let now_us = self.now_us();
        self.member.leave(now_us);
        let until = Instant::now() + timeout;
        let mut last = Vec::new();
        while !self.member.is_out() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            last.extend(self.poll(left)?);
        }
        last.extend(self.events);
        Ok(last)
    }

    fn now_us(&self) -> u64 {
        // Zero is "never" to some.
        self.begun.elapsed().as_micros() as u64 + 1
    }

    fn take_event(&mut self) -> Option<ClientEvent> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        self.member.event().map(ClientEvent::Member)
    }

    /// Sends the datagrams that the member has queued. One that cannot be sent is repeated later.
    fn flush(&mut self) -> Result<(), ClientError> {
        while let Some(transmit) = self.member.poll() {
            if let Err(error) = self.transmit(&transmit.bytes, transmit.to) {
                tracing::debug!(to = %transmit.to, %error, "a datagram was not sent");
            }
        }
        Ok(())
    }

    fn transmit(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        let until = Instant::now() + FULL_WAIT;
        loop {
            match self.socket.send_to(bytes, to) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until => {
                    let mut sockets = [PollFd::new(&self.socket, PollFlags::OUT)];
                    wait_for(&mut sockets, until.saturating_duration_since(Instant::now()))?;
                }
                sent => return sent.map(drop),
            }
        }
    }

    /// Waits for datagrams, or to be woken. Returns true if it was woken.
    fn wait(&self, timeout: Duration) -> Result<bool, ClientError> {
        let mut files = [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&*self.wake.0, PollFlags::IN)];
        wait_for(&mut files, timeout).map_err(system("wait for datagrams"))?;
        let woken = !files[1].revents().is_empty();
        if woken {
            // Whoever wakes it now wakes it for what is looked at next.
            let _ = rustix::io::read(&*self.wake.0, &mut [0; 8]);
        }
        Ok(woken)
    }

    fn receive(&mut self) -> Result<(), ClientError> {
        for _ in 0..BATCH {
            let (length, from) = match self.socket.recv_from(&mut self.buffer) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // What the network reports of datagrams that were sent shows in heartbeats too.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(system("receive datagrams")(error)),
            };
            let now_us = self.begun.elapsed().as_micros() as u64 + 1;
            if let Some(received) = self.member.handle(now_us, from, &self.buffer[..length]) {
                let event =
                    ClientEvent::Datagram { payload: received.payload.to_vec(), sequence: received.sequence };
                // What happened before it comes before it.
                while let Some(event) = self.member.event() {
                    self.events.push_back(ClientEvent::Member(event));
                }
                self.events.push_back(event);
            }
        }
        Ok(())
    }
}

fn wait_for(files: &mut [PollFd<'_>], timeout: Duration) -> io::Result<()> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    match poll(files, Some(&timeout)) {
        Ok(_) => Ok(()),
        Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_ipv4(wanted: &Wanted) -> bool {
    match wanted {
        Wanted::Group(targets) => targets.first().is_some_and(|target| target.reflector.is_ipv4()),
        Wanted::Location { reflectors, .. } => reflectors.first().is_some_and(SocketAddr::is_ipv4),
    }
}

/// Drops the reflectors that are not of the first one's address family; `None` if none is left.
fn of_one_family(mut wanted: Wanted) -> Option<Wanted> {
    let ipv4 = is_ipv4(&wanted);
    let left = match &mut wanted {
        Wanted::Group(targets) => {
            targets.retain(|target| target.reflector.is_ipv4() == ipv4);
            targets.len()
        }
        Wanted::Location { reflectors, .. } => {
            reflectors.retain(|reflector| reflector.is_ipv4() == ipv4);
            reflectors.len()
        }
    };
    (left > 0).then_some(wanted)
}
