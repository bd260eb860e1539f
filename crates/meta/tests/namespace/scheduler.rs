//! A store whose requests take effect in the order that a test chooses, and the calls that wait for them.
//!
//! A request takes effect when the test says so, and not when it is sent. The call that sent it can be dropped before or
//! after that, or be told that the reply was lost; a request of a dropped call may take effect at any later time.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use nacre_object::testkit::Model;
use nacre_object::{ErrorKind, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction};

/// A fault: it changes what is sent.
pub type Sabotage = fn(&ObjectId, &mut Transaction);

#[derive(Default)]
struct State {
    model: Model,
    /// True if requests take effect at once.
    direct: bool,
    /// The call that is being polled.
    caller: usize,
    next: u64,
    waiting: BTreeMap<u64, Request>,
    done: BTreeMap<u64, Result<Outcome, StoreError>>,
    /// The wakers of finished requests: sets of futures poll those that were woken only.
    wakers: BTreeMap<u64, Waker>,
    /// Changes transactions, to see that a test notices.
    sabotage: Option<Sabotage>,
}

struct Request {
    caller: Option<usize>,
    object: ObjectId,
    transaction: Transaction,
}

impl State {
    fn answer(&mut self, id: u64, result: Result<Outcome, StoreError>) {
        self.done.insert(id, result);
        if let Some(waker) = self.wakers.remove(&id) {
            waker.wake();
        }
    }

    fn perform(&mut self, object: &ObjectId, transaction: &Transaction) -> Result<Outcome, StoreError> {
        transaction.validate()?;
        if let Some(sabotage) = self.sabotage {
            let mut transaction = transaction.clone();
            sabotage(object, &mut transaction);
            return self.model.apply(object, &transaction);
        }
        self.model.apply(object, transaction)
    }
}

/// The store.
#[derive(Clone, Default)]
pub struct SlowStore(Arc<Mutex<State>>);

impl SlowStore {
    /// Lets requests take effect at once, or not any more.
    pub fn set_direct(&self, direct: bool) {
        self.0.lock().unwrap().direct = direct;
    }

    /// Changes transactions from now on.
    pub fn sabotage(&self, sabotage: Sabotage) {
        self.0.lock().unwrap().sabotage = Some(sabotage);
    }

    /// Returns the requests that wait, with the calls that sent them unless they are gone.
    pub fn waiting(&self) -> Vec<(u64, Option<usize>)> {
        self.0.lock().unwrap().waiting.iter().map(|(id, request)| (*id, request.caller)).collect()
    }

    /// Lets a request take effect; its reply is lost if `lost`.
    pub fn perform(&self, id: u64, lost: bool) {
        let mut state = self.0.lock().unwrap();
        let Some(request) = state.waiting.remove(&id) else { return };
        let result = state.perform(&request.object, &request.transaction);
        let lost = lost && !request.transaction.writes.is_empty();
        let result = if lost { Err(unknown()) } else { result };
        if request.caller.is_some() {
            state.answer(id, result);
        }
    }

    /// Tells the call that its reply was lost; the request waits on.
    pub fn lose(&self, id: u64) {
        let mut state = self.0.lock().unwrap();
        let Some(request) = state.waiting.get_mut(&id) else { return };
        if request.caller.take().is_some() {
            state.answer(id, Err(unknown()));
        }
    }

    /// Answers a read. A change fails: as one that has taken effect, and whose reply is lost, if `late`; otherwise as one
    /// that did not come through.
    pub fn fail(&self, id: u64, late: bool) {
        let mut state = self.0.lock().unwrap();
        let Some(request) = state.waiting.remove(&id) else { return };
        let result = match request.transaction.writes.is_empty() {
            true => state.perform(&request.object, &request.transaction),
            false if late => {
                let _ = state.perform(&request.object, &request.transaction);
                Err(unknown())
            }
            false => Err(StoreError::new(ErrorKind::Unavailable, "the server does not answer")),
        };
        state.answer(id, result);
    }

    /// Drops a request.
    pub fn drop_request(&self, id: u64) {
        self.0.lock().unwrap().waiting.remove(&id);
    }

    /// Makes the requests of a call nobody's.
    pub fn orphan(&self, caller: usize) {
        for request in self.0.lock().unwrap().waiting.values_mut() {
            if request.caller == Some(caller) {
                request.caller = None;
            }
        }
    }

    /// Returns the names of all objects.
    pub fn objects(&self) -> Vec<String> {
        let state = self.0.lock().unwrap();
        state.model.objects().filter(|(_, object)| object.exists()).map(|(id, _)| id.to_string()).collect()
    }
}

fn unknown() -> StoreError {
    StoreError::new(ErrorKind::Unknown, "the reply was lost")
}

impl ObjectStore for SlowStore {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        let mut state = self.0.lock().unwrap();
        if state.direct {
            return Reply::ready(state.perform(object, &transaction));
        }
        let id = state.next;
        state.next += 1;
        let caller = Some(state.caller);
        state.waiting.insert(id, Request { caller, object: object.clone(), transaction });
        Reply::pending(Answered { store: self.clone(), id })
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        Reply::ready(Ok(self.0.lock().unwrap().model.list(after, limit)))
    }
}

struct Answered {
    store: SlowStore,
    id: u64,
}

impl Future for Answered {
    type Output = Result<Outcome, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.store.0.lock().unwrap();
        match state.done.remove(&self.id) {
            Some(result) => Poll::Ready(result),
            None => {
                state.wakers.insert(self.id, context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Runs a future whose requests take effect at once.
pub fn at_once<T>(store: &SlowStore, future: impl Future<Output = T>) -> T {
    store.set_direct(true);
    let mut future = Box::pin(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..1_000 {
        if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
            store.set_direct(false);
            return result;
        }
    }
    panic!("a call waits for something other than the store");
}

/// Polls a call whose requests wait.
pub fn poll<T>(store: &SlowStore, caller: usize, future: &mut Pin<Box<dyn Future<Output = T>>>) -> Option<T> {
    store.0.lock().unwrap().caller = caller;
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}
