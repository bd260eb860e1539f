//! The client's side of repeated writes: the state of one link about its writes and the server's window.
//!
//! A repetition names a position of the window from before every earlier attempt was sent. The position known at the
//! time of the first attempt is one, with two exceptions, in which a later connection gives a lesser one or none at all:
//! a server that lost its latest writes in a power failure counts from where its log ends, and an address may lead to
//! another store. So the opening of every connection is remembered, and the least of the received positions counts.

use std::collections::VecDeque;
use std::task::{Poll, Waker};

use nacre_object::once::WRITER_BYTES;
use nacre_object::{StoreError, WindowPosition};
use nacre_rpc::client::{Greeting, nonsense};
use parking_lot::Mutex;
use rand::TryRngCore;

use crate::{kind, once};

/// The number of connections whose openings are remembered.
const OPENINGS_MAX: usize = 32;

/// The writer of one link.
pub(crate) struct Writer {
    /// True if writes are to be repeated.
    repeats: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The writer's random id, and the process that drew it. A process that was forked from that one draws another:
    /// numbers of the two would clash.
    id: Option<([u8; WRITER_BYTES], u32)>,
    /// The number of writes so far.
    sequence: u64,
    /// The number of the latest connection.
    epoch: u64,
    /// The number of the latest connection on which the writer was opened. It is less than `epoch` while the server has
    /// not answered yet.
    opened: u64,
    /// The latest position received on that connection, if the server recognises repetitions.
    reported: Option<WindowPosition>,
    /// The latest openings: the number of the connection, and the server's answer.
    openings: VecDeque<(u64, Option<WindowPosition>)>,
    /// The latest opening that is no longer remembered.
    forgotten: u64,
    /// The features that both sides had on the latest connection.
    features: Option<u64>,
    /// The number of failed attempts to connect.
    failures: u64,
    /// The waiters for the first opening.
    waiting: Vec<Waker>,
}

/// A write of which every attempt has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) sequence: u64,
    /// The latest connection on which the writer was opened, and what was known of the window, before the first attempt
    /// was sent. The attempt may be sent on a later connection, whose opening then counts for it too.
    epoch: u64,
    reported: WindowPosition,
}

impl Writer {
    /// Creates the writer of a link; without `repeats`, one that never repeats anything.
    pub(crate) fn new(repeats: bool) -> Writer {
        Writer { repeats, state: Mutex::default() }
    }

    /// Opens the writer on a new connection, if the server recognises repetitions.
    pub(crate) async fn open(&self, greeting: &mut Greeting) -> Result<(), StoreError> {
        let (id, epoch) = self.begin(std::process::id());
        let features = greeting.features();
        let reported = match id {
            Some(id) if features & once::REPETITION != 0 => {
                let frame = greeting.ask(|outbox, frame| once::put_open(outbox, frame, &id, epoch)).await?;
                if frame.kind != kind::WRITER_OPENED {
                    return Err(nonsense("it did not open a writer"));
                }
                Some(once::get_opened(&frame.body).map_err(nonsense)?)
            }
            _ => None,
        };
        self.state.lock().features = Some(features);
        self.opened(epoch, reported);
        Ok(())
    }

    /// Begins a connection of this process; returns the writer's id, if writes are to be repeated, and the number of the
    /// connection.
    fn begin(&self, process: u32) -> (Option<[u8; WRITER_BYTES]>, u64) {
        let mut state = self.state.lock();
        state.epoch += 1;
        if self.repeats && state.id.is_none_or(|(_, drawn_by)| drawn_by != process) {
            let mut id = [0; WRITER_BYTES];
            // Without random numbers nothing is repeated, and nothing else is lost.
            state.id = rand::rngs::OsRng.try_fill_bytes(&mut id).is_ok().then_some((id, process));
            // What was sent under another id would not be recognised under this one.
            state.forgotten = state.epoch;
        }
        (state.id.map(|(id, _)| id), state.epoch)
    }

    /// Notes the server's answer at the opening of a connection.
    fn opened(&self, epoch: u64, reported: Option<WindowPosition>) {
        let mut state = self.state.lock();
        state.opened = epoch;
        state.reported = reported;
        state.openings.push_back((epoch, reported));
        if state.openings.len() > OPENINGS_MAX
            && let Some((forgotten, _)) = state.openings.pop_front()
        {
            state.forgotten = state.forgotten.max(forgotten);
        }
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Notes that an attempt to connect failed, or that there will be none.
    pub(crate) fn failed(&self) {
        let mut state = self.state.lock();
        state.failures += 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of failed attempts to connect if no connection was opened yet.
    pub(crate) fn is_unopened(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.opened == 0).then_some(state.failures)
    }

    /// Returns whether writes are to be repeated.
    pub(crate) fn repeats(&self) -> bool {
        self.repeats
    }

    /// Returns whether both sides had a feature on the latest connection; `None` before the first.
    pub(crate) fn has(&self, feature: u64) -> Option<bool> {
        self.state.lock().features.map(|features| features & feature != 0)
    }

    /// Polls for the first opening, or for a failure after the first `failures`.
    pub(crate) fn poll_opened(&self, failures: u64, waker: &Waker) -> Poll<()> {
        let mut state = self.state.lock();
        if state.opened > 0 || state.failures > failures {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waiting| waiting.will_wake(waker)) {
            state.waiting.push(waker.clone());
        }
        Poll::Pending
    }

    /// Returns the stamp of a new write; `None` if the server would not recognise a repetition of it.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        let mut state = self.state.lock();
        let reported = state.reported?;
        let sequence = state.sequence;
        state.sequence += 1;
        Some(Stamp { sequence, epoch: state.opened, reported })
    }

    /// Notes the position in the reply to a write.
    pub(crate) fn heard(&self, stamp: &Stamp, position: u64) {
        let mut state = self.state.lock();
        // A reply that was taken late may be one of an earlier connection, of before the server was started again.
        if state.opened == stamp.epoch
            && let Some(reported) = &mut state.reported
        {
            reported.position = reported.position.max(position);
        }
    }

    /// Returns a position from before every attempt at a write so far; `None` if the server cannot recognise it any
    /// more.
    pub(crate) fn since(&self, stamp: &Stamp) -> Option<WindowPosition> {
        let state = self.state.lock();
        if state.forgotten > stamp.epoch {
            return None;
        }
        let mut since = stamp.reported;
        for (_, reported) in state.openings.iter().filter(|(epoch, _)| *epoch > stamp.epoch) {
            let reported = reported.filter(|reported| reported.window == since.window)?;
            since.position = since.position.min(reported.position);
        }
        Some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROCESS: u32 = 7;

    fn at(position: u64) -> Option<WindowPosition> {
        Some(WindowPosition { window: [1; 16], position })
    }

    fn connect(writer: &Writer, reported: Option<WindowPosition>) {
        let (_, epoch) = writer.begin(PROCESS);
        writer.opened(epoch, reported);
    }

    #[test]
    fn a_repetition_names_a_position_from_before_every_attempt() {
        let writer = Writer::new(true);
        assert_eq!(writer.stamp(), None, "nothing is known of the server yet");
        connect(&writer, at(10));
        let first = writer.stamp().unwrap();
        writer.heard(&first, 15);
        let second = writer.stamp().unwrap();
        assert_eq!((first.sequence, second.sequence), (0, 1));
        assert_eq!((writer.since(&first), writer.since(&second)), (at(10), at(15)));
        connect(&writer, at(20));
        assert_eq!((writer.since(&first), writer.since(&second)), (at(10), at(15)));
        // The server lost its latest writes with the power, and counts on from where its log ends.
        connect(&writer, at(12));
        connect(&writer, at(40));
        assert_eq!((writer.since(&first), writer.since(&second)), (at(10), at(12)));
        // A reply of an earlier connection that is taken only now says nothing about this one.
        writer.heard(&second, 1000);
        assert_eq!(writer.stamp().unwrap().reported.position, 40);
    }

    #[test]
    fn a_write_stamped_while_a_connection_is_opened_counts_that_opening() {
        let writer = Writer::new(true);
        connect(&writer, at(100));
        let (_, epoch) = writer.begin(PROCESS);
        let stamp = writer.stamp().unwrap();
        writer.opened(epoch, at(80));
        connect(&writer, at(90));
        assert_eq!(writer.since(&stamp), at(80));
    }

    #[test]
    fn another_store_or_server_recognises_nothing() {
        for other in [None, Some(WindowPosition { window: [2; 16], position: 11 })] {
            let writer = Writer::new(true);
            connect(&writer, at(10));
            let stamp = writer.stamp().unwrap();
            connect(&writer, other);
            assert_eq!(writer.since(&stamp), None);
            connect(&writer, at(10));
            assert_eq!(writer.since(&stamp), None, "the attempt may have been sent there");
        }
    }

    #[test]
    fn what_was_sent_too_many_connections_ago_is_not_repeated() {
        let writer = Writer::new(true);
        connect(&writer, at(10));
        let stamp = writer.stamp().unwrap();
        (0..OPENINGS_MAX).for_each(|_| connect(&writer, at(10)));
        assert_eq!(writer.since(&stamp), at(10));
        connect(&writer, at(10));
        assert_eq!(writer.since(&stamp), None);
        assert_eq!(Writer::new(false).stamp(), None);
    }

    #[test]
    fn a_forked_process_is_another_writer() {
        let writer = Writer::new(true);
        let (first, epoch) = writer.begin(PROCESS);
        writer.opened(epoch, at(10));
        let stamp = writer.stamp().unwrap();
        let (again, epoch) = writer.begin(PROCESS);
        writer.opened(epoch, at(10));
        assert_eq!(first, again);
        assert_eq!(writer.since(&stamp), at(10));
        let (forked, epoch) = writer.begin(PROCESS + 1);
        assert_ne!(first, forked);
        let early = writer.stamp().unwrap();
        writer.opened(epoch, at(10));
        assert_eq!(writer.since(&stamp), None, "the write of the process before");
        assert_eq!(writer.since(&early), None, "it may have been sent before");
        let later = writer.stamp().unwrap();
        assert_eq!(writer.since(&later), at(10));
        assert_eq!(Writer::new(false).begin(PROCESS).0, None);
    }
}
