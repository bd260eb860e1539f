//! The native writes of one object, sent in the order in which they were planned, and together where they are many.
//!
//! An operation costs an OSD, its replicas and this client about the same whether it makes one small change or fifty. So while a few
//! of this client's writes of an object are under way, the next small ones wait, and those that have gathered by the end of one are
//! one operation: it compares the header that the first of them relies on, makes the changes of all, and leaves the header of the
//! last. Each keeps its version, and nobody sees the object between two of them. Where writes are fewer than that, each is sent at
//! once: to wait would only make it late.
//!
//! The next operation is sent by the callback that ends another one, in librados' thread, so that no write waits for anybody to look
//! at the reply of another one.
//!
//! Invariant: writes are sent in the order in which they were passed on, and only writes each of which relies on the header that the
//! one before it leaves are in one operation. So all of them take effect, or none does. Those of a failed operation, and those that
//! were planned on it, fail alike: the OSD compares the header.

use std::ffi::{CStr, CString};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::sys::{Operation, Pool, WeakPool, flag};
use crate::write::{NativeWrite, with_steps};

/// The number of operations under way from which on small writes wait.
const FLIGHTS_MAX: usize = 4;
/// The cost of the largest write that waits for others, as [`NativeWrite::cost`] counts it; and that of one operation of several.
const SMALL_COST_MAX: usize = 32 << 10;
const COST_MAX: usize = 256 << 10;
/// The maximum number of places in the byte stream that an operation of several writes at.
const RUNS_MAX: usize = 64;

/// The writes of one object.
#[derive(Default, derive_more::Debug)]
#[debug("Lane")]
pub(crate) struct Lane(Mutex<State>);

#[derive(Default)]
struct State {
    /// The number of operations under way.
    under_way: usize,
    waiting: Vec<Member>,
}

impl State {
    /// Takes out the writes that wait, each group of them an operation that counts as under way from now on.
    fn take(&mut self) -> Vec<Vec<Member>> {
        let groups = grouped(std::mem::take(&mut self.waiting));
        self.under_way += groups.len();
        groups
    }
}

/// A write on its way.
struct Member {
    write: NativeWrite,
    sender: oneshot::Sender<Ended>,
}

/// A write that is over.
pub(crate) struct Ended {
    pub(crate) write: NativeWrite,
    /// 0 or more, or a negative errno.
    pub(crate) code: i32,
}

impl Lane {
    /// Passes a write on, behind all those that were passed on before. It is sent now, unless it is better sent together with others.
    /// The caller holds the lock of the knowledge that the write was planned by.
    pub(crate) fn enter(self: &Arc<Self>, pool: &Pool, name: &CStr, write: NativeWrite) -> Entered {
        let (sender, receiver) = oneshot::channel();
        let groups = {
            let mut state = self.0.lock();
            let waits = state.under_way >= FLIGHTS_MAX && write.cost() <= SMALL_COST_MAX;
            state.waiting.push(Member { write, sender });
            if waits { Vec::new() } else { state.take() }
        };
        // No other write can be sent meanwhile: none waits, and the caller's lock keeps others from being passed on. So the threads of
        // librados do not have to wait until all bytes are copied.
        Entered { flights: self.send(groups, pool, name), receiver }
    }

    /// Sends the writes that wait, so that what is sent next finds what they leave.
    pub(crate) fn hurry(self: &Arc<Self>, pool: &Pool, name: &CStr) -> Flights {
        let mut state = self.0.lock();
        let groups = state.take();
        self.send(groups, pool, name)
    }

    /// Counts an operation as over, and sends the writes that wait. Without a pool nobody waits for them any more, since whoever does
    /// keeps it open: they are dropped.
    fn land(self: &Arc<Self>, pool: &WeakPool, name: &CStr) {
        let flights = {
            let mut state = self.0.lock();
            state.under_way -= 1;
            if state.waiting.is_empty() {
                return;
            }
            let Some(pool) = pool.upgrade() else { return state.waiting.clear() };
            let groups = state.take();
            self.send(groups, &pool, name)
        };
        flights.look();
    }

    /// Returns whether writes of the object are under way, or wait.
    pub(crate) fn is_busy(&self) -> bool {
        let state = self.0.lock();
        state.under_way > 0 || !state.waiting.is_empty()
    }

    /// Sends groups of writes that were taken. Until that is done, no write may be sent that was passed on later.
    fn send(self: &Arc<Self>, groups: Vec<Vec<Member>>, pool: &Pool, name: &CStr) -> Flights {
        let send = |members: Vec<Member>| {
            let operation = {
                let writes: Vec<&NativeWrite> = members.iter().map(|member| &member.write).collect();
                with_steps(&writes, |steps| pool.write(name, steps, flag::FULL_TRY))
            };
            let (operation, pool, name) = (operation.without_pool(), pool.downgrade(), name.to_owned());
            let sent = Sent { operation, members, pool, name };
            Arc::new(Flight { lane: Arc::clone(self), sent: Mutex::new(Some(sent)) })
        };
        Flights(groups.into_iter().map(send).collect())
    }
}

/// Divides writes, in their order, into those that go together.
fn grouped(waiting: Vec<Member>) -> Vec<Vec<Member>> {
    let mut groups: Vec<Vec<Member>> = Vec::new();
    let (mut cost, mut runs) = (0, 0);
    for member in waiting {
        let (more, places) = (member.write.cost(), member.write.run_count());
        let last = groups.last_mut().filter(|group| {
            let follows = group.last().is_some_and(|last| member.write.follows(&last.write));
            follows && cost + more <= COST_MAX && runs + places <= RUNS_MAX
        });
        match last {
            Some(group) => {
                group.push(member);
                (cost, runs) = (cost + more, runs + places);
            }
            None => {
                groups.push(vec![member]);
                (cost, runs) = (more, places);
            }
        }
    }
    for group in &mut groups {
        let left = group.last().map(|last| last.write.after.author);
        group.iter_mut().for_each(|member| member.write.left = left.unwrap_or(member.write.left));
    }
    groups
}

/// Operations that were sent. They have to be looked at once, without any lock: whoever waits for one that is over already is
/// woken by that.
#[must_use]
pub(crate) struct Flights(Vec<Arc<Flight>>);

impl Flights {
    /// Looks at the operations, so that from here on they get on by themselves.
    pub(crate) fn look(self) {
        self.0.into_iter().for_each(Flight::look);
    }
}

/// A write that was passed on, with the operations that were sent on that occasion.
pub(crate) struct Entered {
    flights: Flights,
    receiver: oneshot::Receiver<Ended>,
}

impl Entered {
    /// Waits until the write is over. Returns `None` if nobody tells, which takes a panic. Must be called without any lock, and first
    /// of all.
    pub(crate) async fn ended(self) -> Option<Ended> {
        self.flights.look();
        self.receiver.await.ok()
    }
}

/// An operation under way, which is its own waker.
struct Flight {
    lane: Arc<Lane>,
    /// `None` once it is over.
    sent: Mutex<Option<Sent>>,
}

struct Sent {
    operation: Operation,
    members: Vec<Member>,
    pool: WeakPool,
    name: CString,
}

impl Flight {
    /// Looks whether the operation is over. If so, sends what waits, and tells those who wait for it; if not, is woken when it is.
    fn look(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        let sent = {
            let mut sent = self.sent.lock();
            let Some(under_way) = sent.as_mut() else { return };
            let polled = Pin::new(&mut under_way.operation).poll(&mut Context::from_waker(&waker));
            match polled {
                Poll::Pending => return,
                Poll::Ready(completed) => sent.take().map(|sent| (sent, completed.code)),
            }
        };
        let Some((Sent { operation, members, pool, name }, code)) = sent else { return };
        drop(operation);
        self.lane.land(&pool, &name);
        for Member { write, sender } in members {
            // Nobody may wait for it any more.
            sender.send(Ended { write, code }).ok();
        }
    }
}

impl Wake for Flight {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

#[cfg(test)]
mod tests {
    use nacre_object::{Key, Transaction, WriteOp};

    use super::*;
    use crate::cache::ObjectCache;
    use crate::record::{Author, Header};
    use crate::sys::WriteStep;
    use crate::write::plan;

    fn key(number: u8) -> Key {
        Key::new(vec![b'k', number]).unwrap()
    }

    /// Plans writes of keys, each on what the one before it leaves; `lens` are the lengths of their values.
    fn chain(token: u8, lens: &[usize]) -> Vec<Member> {
        let author = Author::Token([token; 16]);
        let header = Header { exists: true, version: 9, author, ..Header::default() };
        let mut known = ObjectCache::default();
        known.saw_header(&header);
        let mut members = Vec::new();
        for (number, len) in (1..).zip(lens) {
            known.saw_key(&known.header().copied().unwrap(), &key(number), None);
            let set = WriteOp::SetKey { key: key(number), value: vec![0; *len].into() };
            let write =
                plan(&Transaction::new().change(set), &known, [token + number; 16]).expect("all is known");
            write.foretell(&mut known);
            members.push(Member { write, sender: oneshot::channel().0 });
        }
        members
    }

    fn lens(groups: &[Vec<Member>]) -> Vec<usize> {
        groups.iter().map(Vec::len).collect()
    }

    #[test]
    fn writes_that_follow_each_other_go_together_and_are_known_by_the_last() {
        assert!(grouped(Vec::new()).is_empty());
        let groups = grouped(chain(1, &[5; 40]));
        assert_eq!(lens(&groups), [40]);
        let left = groups[0][39].write.after;
        assert!(groups[0].iter().all(|member| member.write.has_left(&left)));
        assert!(!groups[0][0].write.has_left(&groups[0][0].write.after), "nobody ever sees that");
        // What relies on another state is another operation.
        let mut members = chain(1, &[5; 3]);
        members.extend(chain(101, &[5; 2]));
        assert_eq!(lens(&grouped(members)), [3, 2]);
    }

    #[test]
    fn an_operation_of_several_writes_is_not_long() {
        let each = COST_MAX / 2 - 1024;
        assert_eq!(lens(&grouped(chain(1, &[each; 5]))), [2, 2, 1]);
        assert_eq!(lens(&grouped(chain(1, &[2 * COST_MAX, 5, 5]))), [1, 2]);
    }

    #[test]
    fn of_an_entry_that_several_writes_change_the_last_change_counts() {
        let author = Author::Token([1; 16]);
        let header = Header { exists: true, version: 9, author, ..Header::default() };
        let mut known = ObjectCache::default();
        known.saw_header(&header);
        (0..2).for_each(|number| known.saw_key(&header, &key(number), None));
        let set = |number, value: &'static str| WriteOp::SetKey { key: key(number), value: value.into() };
        let remove = |number| WriteOp::RemoveKey { key: key(number) };
        let changes = [set(0, "first"), set(1, "only"), set(0, "last"), remove(1)];
        let mut writes = Vec::new();
        for (token, change) in (2..).zip(changes) {
            let write = plan(&Transaction::new().change(change), &known, [token; 16]).expect("all is known");
            write.foretell(&mut known);
            writes.push(write);
        }
        let writes: Vec<&NativeWrite> = writes.iter().collect();
        with_steps(&writes, |steps| {
            let [compare, sets, removals, header] = steps else { panic!("{} steps", steps.len()) };
            let (before, after) = (writes[0].before.unwrap().encode(), writes[3].after.encode());
            assert!(matches!(compare, WriteStep::IfXattr(_, value) if **value == before[..]));
            let WriteStep::SetOmaps([(name, value)]) = sets else { panic!("not one entry") };
            assert_eq!(name[..], *b"kk\x01\x02");
            assert!(value.ends_with(b"last"));
            let WriteStep::RemoveOmaps([name]) = removals else { panic!("not one removal") };
            assert_eq!(name[..], *b"kk\x01\x03");
            assert!(matches!(header, WriteStep::SetXattr(_, value) if **value == after[..]));
        });
    }
}
