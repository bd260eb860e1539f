//! A connection that has no driver of its own: those who use the link send and receive.
//!
//! The task of the link connects, and then leaves the connection in the link's *seat*. Whoever has something to send, or
//! learns that the socket can be read, does so under the seat's lock with calls that never block, on whatever thread. Nobody
//! has to be woken for it.
//!
//! Invariants:
//! - The seat's lock is taken before the lock of the link's state, never after it, and nobody is woken under either.
//! - Requests are written in the order in which they were encoded, whoever writes them: an outbox is taken and written
//!   under the seat's lock.
//! - A connection leaves the seat once. Whoever takes it out ends the calls under way, and lets the task connect again.
//! - Calls are [posted](Link::post) over a connection that is there, and never wait for the next one.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;

use nacre_object::{ErrorKind, StoreError};
use parking_lot::Mutex;
use rustix::io::{Errno, read, writev};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::Notify;

use crate::client::drive::{Host, KEPT_BYTES_MAX};
use crate::client::link::{Link, unreachable_server};
use crate::client::silence::Silence;
use crate::client::state::{CallKind, Stage};
use crate::client::{Greeter, Greeting, LinkOptions};
use crate::control;
use crate::frame::{Frame, MessageKind};
use crate::inbox::Inbox;
use crate::limit::READ_BYTES;
use crate::outbox::Outbox;
use crate::seal::Seal;
use crate::stream::{Address, Stream};

/// The bytes that are read at once.
const PIECE_BYTES: usize = READ_BYTES / 4;
/// Slices of one vectored write.
const SLICES_MAX: usize = 64;

thread_local! {
    static PIECE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The place of a link's connection.
#[derive(Default)]
pub(super) struct Seat {
    connection: Mutex<Option<Seated>>,
    /// Told when the connection has left its place.
    free: Notify,
    /// The number of connections so far.
    connections: AtomicU64,
}

/// An established connection.
struct Seated {
    number: u64,
    socket: OwnedFd,
    seal: Option<Box<Seal>>,
    inbox: Inbox,
    sending: Outbox,
    wakers: Vec<Waker>,
    /// The position of the last byte that the socket has taken.
    written: u64,
    /// Set when the server said goodbye.
    leaving: bool,
    silence: Silence,
    /// The next time at which the server's silence is looked at.
    look_at: Instant,
}

/// The state of a connection after it was driven.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// The number of the connection among those of the link, counted from 1; 0 if there is none.
    pub connection: u64,
    /// True if the socket takes no more bytes, and some are left.
    pub blocked: bool,
}

/// A watch on the socket of a connection. It may report what others have received meanwhile.
#[derive(derive_more::Debug)]
#[debug("Watch")]
pub struct Watch {
    connection: u64,
    stream: Stream,
}

impl Watch {
    /// Returns the number of the connection.
    pub fn connection(&self) -> u64 {
        self.connection
    }

    /// Polls for something to receive, or the end of the connection. What comes after it is reported again, so that all is
    /// received if [`Link::receive`] follows.
    ///
    /// # Errors
    ///
    /// If the runtime ends.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream.poll_read_ready(context))?;
        self.stream.forget(Interest::READABLE);
        Poll::Ready(Ok(()))
    }

    /// Polls for room in the socket, as [`Watch::poll_readable`] does for something to receive.
    ///
    /// # Errors
    ///
    /// If the runtime ends.
    pub fn poll_writable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.stream.poll_write_ready(context))?;
        self.stream.forget(Interest::WRITABLE);
        Poll::Ready(Ok(()))
    }
}

impl Seat {
    /// Accepts a connection that has begun. The keeper of the link is woken.
    pub(super) fn take_in(&self, link: &Link, greeting: Greeting, written: u64) -> io::Result<()> {
        let (stream, seal) = greeting.channel.into_parts();
        let mut seated = Seated {
            number: self.connections.fetch_add(1, Ordering::Relaxed) + 1,
            socket: stream.into_socket()?,
            seal,
            inbox: greeting.inbox,
            sending: Outbox::default(),
            wakers: Vec::new(),
            written,
            leaving: false,
            silence: Silence::new(),
            look_at: Instant::now() + link.options.silence_timeout / 2,
        };
        let mut connection = self.connection.lock();
        seated.deliver(link, greeting.early)?;
        let wakers = std::mem::take(&mut seated.wakers);
        *connection = Some(seated);
        let keeper = {
            let mut state = link.state.lock();
            (state.seated, state.notified) = (true, false);
            state.keeper.clone()
        };
        drop(connection);
        wakers.into_iter().chain(keeper).for_each(Waker::wake);
        Ok(())
    }

    /// Waits until the connection has left its place.
    pub(super) async fn is_free(&self) {
        // A connection that ended when nobody waited here has left a notification behind.
        while self.connection.lock().is_some() {
            self.free.notified().await;
        }
    }
}

impl Link {
    /// Creates a link whose connections are driven by those who use it: by [`Link::flush`], [`Link::receive`] and
    /// [`Link::watch_silence`]. `keeper` is woken when there is a connection, and when something is to be sent that was not
    /// [posted](Link::post).
    pub fn shared(
        address: Address,
        greeter: impl Greeter,
        options: Arc<LinkOptions>,
        host: Arc<Host>,
        keeper: Waker,
    ) -> Arc<Link> {
        let link = Link::with_seat(address, greeter, options, host, Some(Seat::default()));
        link.state.lock().keeper = Some(keeper);
        link
    }

    /// Encodes a request whose reply joins the arrivals under a number, which is the caller's. It is sent with the next
    /// [`Link::flush`]. Returns false, and does nothing, if there is no room at present.
    ///
    /// If the connection breaks the reply does not come.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no connection, and the errors of `encode`.
    pub fn post(
        &self,
        number: u64,
        encode: impl FnOnce(&mut Outbox, u64) -> Result<(), StoreError>,
    ) -> Result<bool, StoreError> {
        let mut state = self.state.lock();
        if !state.seated || state.leaving || state.closed {
            return Err(unreachable_server(&self.address, "there is no connection"));
        }
        if state.is_full() {
            return Ok(false);
        }
        state.enter(Stage::Posted(number), CallKind::default(), encode)?;
        Ok(true)
    }

    /// Takes the replies to posted calls, in the order in which they came, in exchange for an empty list.
    pub fn take_arrivals(&self, arrivals: &mut Vec<(u64, Frame)>) {
        debug_assert!(arrivals.is_empty());
        std::mem::swap(&mut self.state.lock().arrivals, arrivals);
    }

    /// Returns the number of the connection, if there is one.
    pub fn connection(&self) -> Option<u64> {
        self.seat.as_ref()?.connection.lock().as_ref().map(|seated| seated.number)
    }

    /// Returns a watch on the connection's socket in the runtime of the caller, if there is a connection.
    ///
    /// # Errors
    ///
    /// Those of the system, which has no room for it.
    ///
    /// # Panics
    ///
    /// If the caller has no runtime, or one that watches no sockets.
    pub fn watch(&self) -> io::Result<Option<Watch>> {
        let Some(seat) = &self.seat else { return Ok(None) };
        let connection = seat.connection.lock();
        let Some(seated) = connection.as_ref() else { return Ok(None) };
        // A socket of its own for each runtime that watches it.
        let socket = seated.socket.try_clone()?;
        let stream = match &self.address {
            Address::Tcp(_) => Stream::Tcp(TcpStream::from_std(socket.into())?),
            Address::Unix(_) => Stream::Unix(UnixStream::from_std(socket.into())?),
        };
        Ok(Some(Watch { connection: seated.number, stream }))
    }

    /// Sends what is to be sent, as far as the socket takes it.
    pub fn flush(&self) -> Flow {
        self.act(|seated, link| seated.flush(link))
    }

    /// Receives what is there, until the socket has no more.
    pub fn receive(&self) -> Flow {
        self.act(|seated, link| {
            seated.receive(link)?;
            Ok(seated.is_blocked())
        })
    }

    /// Fails the connection if the server stays silent for too long while it owes replies. Returns when to look again.
    pub fn watch_silence(&self) -> Option<Instant> {
        self.act(|seated, link| seated.watch_silence(link));
        self.seat.as_ref()?.connection.lock().as_ref().map(|seated| seated.look_at)
    }

    fn act(&self, act: impl FnOnce(&mut Seated, &Link) -> io::Result<bool>) -> Flow {
        let Some(seat) = &self.seat else { return Flow::default() };
        let mut place = seat.connection.lock();
        let Some(seated) = place.as_mut() else { return Flow::default() };
        let number = seated.number;
        let acted = act(seated, self);
        let mut wakers = std::mem::take(&mut seated.wakers);
        let mut state = self.state.lock();
        let ends = match &acted {
            Err(error) => Some(unreachable_server(&self.address, error)),
            Ok(_) if seated.leaving && state.is_quiet() => {
                Some(unreachable_server(&self.address, "the server is shutting down"))
            }
            Ok(_) if state.closed && state.is_quiet() => {
                Some(StoreError::new(ErrorKind::Closed, "the connection is closed"))
            }
            Ok(_) => None,
        };
        if let Some(error) = &ends {
            state.seated = false;
            state.lose(Some(seated.written), error, self.options.session_timeout, &mut wakers);
            seated.end();
            *place = None;
            seat.free.notify_one();
        }
        drop((state, place));
        wakers.into_iter().for_each(Waker::wake);
        match ends {
            Some(_) => Flow::default(),
            None => Flow { connection: number, blocked: acted.unwrap_or(false) },
        }
    }

    /// Ends the connection, if there is one that those who use the link drive.
    pub(super) fn unseat(&self, error: &StoreError) {
        self.act(|_, _| Err(io::Error::other(error.clone())));
    }
}

impl Seated {
    /// Sends. Returns whether the socket takes no more.
    fn flush(&mut self, link: &Link) -> io::Result<bool> {
        loop {
            if self.sending.is_empty() {
                self.sending.release(KEPT_BYTES_MAX);
                let mut state = link.state.lock();
                state.notified = false;
                if !state.outbox.is_empty() {
                    state.take_outbox(&mut self.sending, &mut self.wakers);
                }
            }
            let (before, done) = (self.written, self.write()?);
            if !done {
                return Ok(true);
            }
            if self.written == before {
                return Ok(false);
            }
        }
    }

    /// Writes what is being sent. Returns false if the socket takes no more.
    fn write(&mut self) -> io::Result<bool> {
        loop {
            let written = match &mut self.seal {
                None if self.sending.is_empty() => return Ok(true),
                None => {
                    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                    let filled = self.sending.slices(&mut slices);
                    let written = writev(&self.socket, &slices[..filled]);
                    if let Ok(count) = written {
                        self.sending.advance(count);
                        self.written += count as u64;
                    }
                    written
                }
                Some(seal) => {
                    if seal.unwritten().is_empty() {
                        if self.sending.is_empty() {
                            return Ok(true);
                        }
                        self.written += seal.seal(&mut self.sending)? as u64;
                    }
                    let written = writev(&self.socket, &[IoSlice::new(seal.unwritten())]);
                    if let Ok(count) = written {
                        seal.advance(count);
                    }
                    written
                }
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_blocked(&self) -> bool {
        !self.sending.is_empty() || self.seal.as_ref().is_some_and(|seal| !seal.unwritten().is_empty())
    }

    /// Reads until the socket has no more, and delivers what came.
    fn receive(&mut self, link: &Link) -> io::Result<()> {
        let read = PIECE.with_borrow_mut(|piece| {
            if piece.is_empty() {
                piece.resize(PIECE_BYTES, 0);
            }
            loop {
                let count = match read(&self.socket, &mut piece[..]) {
                    Ok(0) => return Err(io::Error::other("the server closed the connection")),
                    Ok(count) => count,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(error) => return Err(error.into()),
                };
                let came = &piece[..count];
                match &mut self.seal {
                    None => self.inbox.fill(|buffer| {
                        buffer.extend_from_slice(came);
                        Ok(())
                    })?,
                    Some(seal) => {
                        seal.receive().extend_from_slice(came);
                        self.inbox.fill(|buffer| seal.open(buffer))?;
                    }
                }
                self.silence.hear();
                self.deliver(link, Vec::new())?;
                // Less than was asked for is all that there is: what comes later is announced separately.
                if count < PIECE_BYTES {
                    return Ok(());
                }
            }
        });
        self.inbox.settle();
        read
    }

    /// Delivers all complete replies that were received.
    fn deliver(&mut self, link: &Link, early: Vec<Frame>) -> io::Result<()> {
        let mut leaves = false;
        let mut state = link.state.lock();
        for frame in early {
            // Events do not end a call, so the return value does not matter here.
            state.deliver(frame, &mut self.wakers).map_err(io::Error::other)?;
        }
        while let Some(frame) = self.inbox.next().map_err(io::Error::other)? {
            match frame.kind {
                MessageKind::PONG if Silence::is_pong(&frame) => {}
                MessageKind::GOODBYE => leaves |= !std::mem::replace(&mut self.leaving, true),
                MessageKind::ERROR if frame.id == 0 => {
                    let error = control::get_failure(&frame).map_err(io::Error::other)?;
                    return Err(io::Error::other(error));
                }
                _ => {
                    if !state.deliver(frame, &mut self.wakers).map_err(io::Error::other)? {
                        return Err(io::Error::other("the server sent a reply that belongs to no request"));
                    }
                }
            }
        }
        drop(state);
        if leaves {
            link.leave(&mut self.wakers);
        }
        Ok(())
    }

    fn watch_silence(&mut self, link: &Link) -> io::Result<bool> {
        let now = Instant::now();
        if now < self.look_at {
            return Ok(self.is_blocked());
        }
        self.look_at = now + link.options.silence_timeout / 2;
        let quiet = link.state.lock().is_quiet();
        self.silence.look(quiet, &mut self.sending)?;
        self.flush(link)
    }

    /// Ends the connection for whoever still waits for its socket, too.
    fn end(&mut self) {
        // It may have ended by itself.
        let _ = SockRef::from(&self.socket).shutdown(std::net::Shutdown::Both);
    }
}
