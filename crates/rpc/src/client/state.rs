//! The state that the callers of a link share with its driver: the requests to be sent and the calls under way.

use std::collections::VecDeque;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use nacre_object::{ErrorKind, StoreError};
use rand::Rng;
use slab::Slab;

use crate::client::LinkOptions;
use crate::client::event::{Event, Events};
use crate::client::part::Parts;
use crate::control::{self, Beginning, SessionKey};
use crate::error::WireError;
use crate::frame::{Frame, MessageKind, flag};
use crate::limit::WINDOW_BYTES;
use crate::outbox::Outbox;

/// The state that callers share with the driver.
pub(super) struct State {
    /// Set while a connection is wanted though nothing is to be sent.
    pub(super) asking: bool,
    /// Encoded requests that the driver has not taken yet.
    pub(super) outbox: Outbox,
    /// The position of the first byte of `outbox`.
    pub(super) base: u64,
    pub(super) calls: Slab<Call>,
    pub(super) generation: u32,
    /// Callers that found no room.
    pub(super) waiting: VecDeque<Waker>,
    /// True if there is a driver.
    pub(super) driven: bool,
    pub(super) driver: Option<Waker>,
    /// True while a shared link has a connection, and the waker of whoever sees to it then.
    pub(super) seated: bool,
    pub(super) keeper: Option<Waker>,
    /// Replies to posted calls that were not taken yet, by the numbers of the calls.
    pub(super) arrivals: Vec<(u64, Frame)>,
    /// True if the driver has been told already that there is something to do.
    pub(super) notified: bool,
    /// Set when the last handle is gone: the driver ends once the last call has its reply.
    pub(super) closed: bool,
    /// The error of the last failed attempt to connect, and the time before which no new attempt is made.
    pub(super) failure: Option<(StoreError, Instant)>,
    pub(super) failures: u32,
    /// Set while the server takes no more requests on the connection, but still answers earlier ones.
    pub(super) leaving: bool,
    /// The bytes of events that were consumed but not yet reported to the server.
    pub(super) consumed: usize,
    /// The session that the next connection is to resume.
    pub(super) session: Option<SessionKey>,
    /// The time at which the session lost its connection.
    pub(super) broken: Option<Instant>,
    /// The calls to be cancelled when the session is resumed, by service and id: those whose replies may have been
    /// lost, and the latest ones that were cancelled after their replies had come.
    pub(super) cancels: VecDeque<(u8, u64)>,
}

pub(super) struct Call {
    pub(super) generation: u32,
    pub(super) start: u64,
    pub(super) stage: Stage,
    /// The kind of call, which decides what happens when its caller is gone.
    pub(super) manner: CallKind,
    /// Parts of the reply that came ahead of its end.
    pub(super) parts: Parts,
    /// The reply that confirmed a subscription, until its caller has taken it.
    pub(super) reply: Option<Frame>,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallKind {
    /// The service to be told when the caller no longer waits for the reply.
    pub(super) cancels: Option<u8>,
    /// True if events follow the reply.
    pub(super) subscribes: bool,
    /// True if only the latest part of the reply matters.
    pub(super) latest: bool,
}

impl Call {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_) | Stage::Posted(_) | Stage::Abandoned | Stage::Subscribed(_))
    }
}

pub(super) enum Stage {
    /// The reply has not come.
    Waiting(Option<Waker>),
    /// The reply has not come, and joins the arrivals under this number.
    Posted(u64),
    /// The caller no longer waits for the reply.
    Abandoned,
    /// The reply has come.
    Replied(Frame),
    /// The reply will not come.
    Lost(CallError),
    /// The call is a subscription, whose events arrive.
    Subscribed(Box<Events>),
}

/// The end of a reply, and the parts of it that had not been taken before.
pub(super) type Answer = (Frame, Parts);

/// The number of calls that may be under way on one link; further ones wait.
const CALLS_MAX: usize = 16_384;
/// The bytes of requests that may wait to be written; further requests wait.
const OUTBOX_BYTES_MAX: usize = 16 << 20;

/// The number of cancellations remembered for a session that may have to be resumed.
const CANCELS_MAX: usize = 16_384;

/// The reason why there will be no reply.
pub(super) enum CallError {
    /// The server could not be reached. The request was not sent.
    Unreachable(StoreError),
    /// The connection broke before the request was sent.
    Unsent,
    /// The connection broke at a time when the request may have been sent.
    Broken(String),
}

/// The handle of a call: its slot on the link and the generation of that slot.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Ticket {
    pub(super) fn id(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

impl State {
    /// Returns the waker of the driver if it is to be woken because there is something to send.
    pub(super) fn notify(&mut self) -> Option<Waker> {
        if std::mem::replace(&mut self.notified, true) {
            return None;
        }
        if self.seated { self.keeper.clone() } else { self.driver.take() }
    }

    /// Returns whether there is no room for another call.
    pub(super) fn is_full(&self) -> bool {
        self.calls.len() >= CALLS_MAX || self.outbox.len() >= OUTBOX_BYTES_MAX
    }

    /// Encodes a request as a call that is under way from now on.
    pub(super) fn enter(
        &mut self,
        stage: Stage,
        manner: CallKind,
        encode: impl FnOnce(&mut Outbox, u64) -> Result<(), StoreError>,
    ) -> Result<Ticket, StoreError> {
        // Id 0 stands for messages that belong to no request.
        let generation = self.generation.wrapping_add(1).max(1);
        self.generation = generation;
        let start = self.base + self.outbox.len() as u64;
        let index = self.calls.vacant_key();
        encode(&mut self.outbox, u64::from(generation) << 32 | index as u64)?;
        self.calls.insert(Call { generation, start, stage, manner, parts: Parts::default(), reply: None });
        Ok(Ticket { index: index as u32, generation })
    }

    /// Polls for the reply to a call, which is over once its reply is returned.
    pub(super) fn poll_call(&mut self, ticket: Ticket, waker: &Waker) -> Poll<Result<Answer, CallError>> {
        // A call stays in its place until this function or `Link::abandon` takes it out.
        let call = &mut self.calls[ticket.index as usize];
        debug_assert_eq!(call.generation, ticket.generation);
        if let Stage::Waiting(waiting) = &mut call.stage {
            match waiting {
                Some(waiting) if waiting.will_wake(waker) => {}
                waiting => *waiting = Some(waker.clone()),
            }
            return Poll::Pending;
        }
        let call = self.calls.remove(ticket.index as usize);
        match call.stage {
            Stage::Replied(frame) => Poll::Ready(Ok((frame, call.parts))),
            Stage::Lost(loss) => Poll::Ready(Err(loss)),
            // Excluded above, and by abandoned calls having no ticket any more.
            Stage::Waiting(_) | Stage::Posted(_) | Stage::Abandoned | Stage::Subscribed(_) => {
                unreachable!("a call without a caller was polled")
            }
        }
    }

    /// Notes that bytes of events were consumed, and reports them to the server once they reach a quarter of the
    /// window. Returns the waker of the driver if it is to be woken for that.
    pub(super) fn consume(&mut self, bytes: usize) -> Option<Waker> {
        self.consumed += bytes;
        if self.consumed < WINDOW_BYTES / 4 {
            return None;
        }
        // A window is far below 4 GiB.
        control::put_window(&mut self.outbox, 0, std::mem::take(&mut self.consumed) as u32);
        self.notify()
    }

    /// Reports the parts of a reply that were consumed to the server, if they are many. Returns the waker of the driver
    /// if it is to be woken for that.
    pub(super) fn report_parts(&mut self, ticket: Ticket) -> Option<Waker> {
        let bytes = self.calls.get_mut(ticket.index as usize)?.parts.report()?;
        control::put_window(&mut self.outbox, ticket.id(), bytes);
        self.notify()
    }

    pub(super) fn note_cancel(&mut self, service: u8, id: u64) {
        if self.cancels.len() >= CANCELS_MAX {
            self.cancels.pop_front();
        }
        self.cancels.push_back((service, id));
    }

    /// Returns when to connect again for a session that has subscriptions but no connection; `None` if there is no such
    /// session.
    pub(super) fn resuming(&self) -> Option<Instant> {
        let subscribed = |call: &Call| match &call.stage {
            Stage::Subscribed(events) => events.ended.is_none(),
            _ => false,
        };
        self.broken.filter(|_| self.session.is_some())?;
        let any = self.calls.iter().any(|(_, call)| subscribed(call));
        any.then(|| self.failure.as_ref().map_or_else(Instant::now, |(_, until)| *until))
    }

    /// Notes that a session has begun, or goes on.
    pub(super) fn begun(&mut self, begun: &Beginning, wakers: &mut Vec<Waker>) {
        if begun.kept {
            for (service, id) in &self.cancels {
                control::put_cancel(&mut self.outbox, *service, *id);
            }
        } else {
            let text =
                "the session has ended: its client came back too late, or the server was started again";
            self.end_subscriptions(&StoreError::new(ErrorKind::Unavailable, text), wakers);
            self.cancels.clear();
        }
        self.session = Some(begun.session).filter(|session| !session.is_none());
        self.broken = None;
    }

    pub(super) fn end_subscriptions(&mut self, error: &StoreError, wakers: &mut Vec<Waker>) {
        for (_, call) in &mut self.calls {
            if let Stage::Subscribed(events) = &mut call.stage {
                // Events that came before the end are still delivered.
                events.ended.get_or_insert_with(|| Some(error.clone()));
                wakers.extend(events.waker.take());
            }
        }
    }

    /// Returns whether no call waits for its reply.
    pub(super) fn is_quiet(&self) -> bool {
        !self.calls.iter().any(|(_, call)| call.is_open())
    }

    /// Returns whether a reply is waited for.
    pub(super) fn awaits(&self) -> bool {
        let awaits = |call: &Call| matches!(call.stage, Stage::Waiting(_) | Stage::Posted(_));
        !self.calls.is_empty() && self.calls.iter().any(|(_, call)| awaits(call))
    }

    /// Registers the driver's waker for the next request.
    pub(super) fn listen(&mut self, waker: &Waker) {
        self.notified = false;
        match &self.driver {
            Some(driver) if driver.will_wake(waker) => {}
            _ => self.driver = Some(waker.clone()),
        }
    }

    /// Hands the encoded requests to the driver, in exchange for an empty outbox.
    pub(super) fn take_outbox(&mut self, sending: &mut Outbox, wakers: &mut Vec<Waker>) {
        debug_assert!(sending.is_empty());
        self.base += self.outbox.len() as u64;
        std::mem::swap(&mut self.outbox, sending);
        wakers.extend(self.waiting.drain(..));
    }

    /// Delivers a reply or an event to its caller. Returns false for a reply that belongs to no call.
    pub(super) fn deliver(&mut self, frame: Frame, wakers: &mut Vec<Waker>) -> Result<bool, WireError> {
        let (index, generation) = (frame.id as u32 as usize, (frame.id >> 32) as u32);
        let event = matches!(frame.kind, MessageKind::EVENT | MessageKind::END);
        let call = self.calls.get_mut(index).filter(|call| call.generation == generation);
        let Some(call) = call else {
            // Events may still arrive after the caller has unsubscribed.
            if frame.kind == MessageKind::EVENT {
                let (_, payload) = control::get_event(&frame)?;
                let _ = self.consume(Event::Pushed(payload).cost());
            }
            return Ok(event);
        };
        if event {
            self.deliver_event(index, &frame, wakers)?;
            return Ok(true);
        }
        if frame.flags & flag::MORE != 0 {
            match &mut call.stage {
                Stage::Waiting(waker) => {
                    wakers.extend(waker.take());
                    call.parts.push(frame.body, call.manner.latest)?;
                }
                _ => call.parts.skip(&frame.body),
            }
            // The driver is running, and looks for something to send after it has read.
            let _ = self.report_parts(Ticket { index: index as u32, generation });
            return Ok(true);
        }
        let subscribed = call.manner.subscribes && frame.kind != MessageKind::ERROR;
        match &mut call.stage {
            Stage::Waiting(waker) => {
                wakers.extend(waker.take());
                if subscribed {
                    call.reply = Some(frame);
                    call.stage = Stage::Subscribed(Box::default());
                } else {
                    call.stage = Stage::Replied(frame);
                }
            }
            Stage::Posted(number) => {
                let number = *number;
                self.calls.remove(index);
                self.arrivals.push((number, frame));
            }
            // The end of the events is still to come.
            Stage::Abandoned if subscribed => {}
            Stage::Abandoned => {
                self.calls.remove(index);
            }
            // Two replies to one request.
            Stage::Replied(_) | Stage::Lost(_) | Stage::Subscribed(_) => return Ok(false),
        }
        if !self.waiting.is_empty() {
            wakers.extend(self.waiting.drain(..));
        }
        Ok(true)
    }

    pub(super) fn deliver_event(
        &mut self,
        index: usize,
        frame: &Frame,
        wakers: &mut Vec<Waker>,
    ) -> Result<(), WireError> {
        let call = &mut self.calls[index];
        match &mut call.stage {
            Stage::Subscribed(events) if frame.kind == MessageKind::END => {
                events.ended = Some(control::get_end(&frame.body)?);
                wakers.extend(events.waker.take());
            }
            Stage::Subscribed(events) => {
                let (sequence, payload) = control::get_event(frame)?;
                let skipped = events.push(frame, sequence, payload);
                wakers.extend(events.waker.take());
                let _ = self.consume(skipped);
            }
            Stage::Abandoned if frame.kind == MessageKind::END => {
                self.calls.remove(index);
                wakers.extend(self.waiting.drain(..));
            }
            Stage::Abandoned => {
                let (_, payload) = control::get_event(frame)?;
                // The driver is running, and looks for something to send after it has read.
                let _ = self.consume(Event::Pushed(payload).cost());
            }
            Stage::Waiting(_) | Stage::Posted(_) | Stage::Replied(_) | Stage::Lost(_) => {}
        }
        Ok(())
    }

    /// Ends all calls that wait after the connection broke. `written` is the position of the last byte that the socket
    /// had taken; `None` if there was no connection.
    pub(super) fn lose(
        &mut self,
        written: Option<u64>,
        error: &StoreError,
        session_timeout: Duration,
        wakers: &mut Vec<Waker>,
    ) {
        if self.session.is_some() {
            let lost = |call: &Call| match call.stage {
                Stage::Waiting(_) if written.is_some_and(|written| call.start < written) => {
                    call.manner.cancels
                }
                Stage::Abandoned => call.manner.cancels,
                _ => None,
            };
            let cancels: Vec<(u8, u64)> = self
                .calls
                .iter()
                .filter_map(|(index, call)| {
                    let ticket = Ticket { index: index as u32, generation: call.generation };
                    lost(call).map(|service| (service, ticket.id()))
                })
                .collect();
            cancels.into_iter().for_each(|(service, id)| self.note_cancel(service, id));
        }
        self.calls.retain(|_, call| match &mut call.stage {
            Stage::Waiting(waker) => {
                wakers.extend(waker.take());
                call.stage = Stage::Lost(match written {
                    None => CallError::Unreachable(error.clone()),
                    Some(written) if call.start >= written => CallError::Unsent,
                    Some(_) => CallError::Broken(error.message.clone()),
                });
                true
            }
            // Whoever posts calls learns of a broken connection by other means.
            Stage::Abandoned | Stage::Posted(_) => false,
            Stage::Replied(_) | Stage::Lost(_) | Stage::Subscribed(_) => true,
        });
        let now = Instant::now();
        let broken = *self.broken.get_or_insert(now);
        if self.session.is_none() || now.duration_since(broken) >= session_timeout {
            self.session = None;
            self.cancels.clear();
            self.end_subscriptions(error, wakers);
        }
        self.leaving = false;
        self.consumed = 0;
        self.base += self.outbox.len() as u64;
        self.outbox = Outbox::default();
        wakers.extend(self.waiting.drain(..));
    }

    /// Notes that an attempt to connect failed.
    pub(super) fn failed(&mut self, error: &StoreError, options: &LinkOptions) {
        let pause = options.backoff_min.saturating_mul(1 << self.failures.min(16)).min(options.backoff_max);
        // Clients that lost the same server must not all come back at the same moment.
        let jittered = pause.mul_f64(rand::rng().random_range(0.5..1.0));
        self.failures += 1;
        self.asking = false;
        self.failure = Some((error.clone(), Instant::now() + jittered.max(Duration::from_millis(1))));
    }

    /// Notes that an attempt to connect succeeded.
    pub(super) fn connected(&mut self) {
        self.asking = false;
        self.failures = 0;
        self.failure = None;
    }

    /// Notes that the driver is gone.
    pub(super) fn undriven(&mut self) {
        self.asking = false;
        self.driven = false;
        self.driver = None;
        self.notified = false;
    }
}
