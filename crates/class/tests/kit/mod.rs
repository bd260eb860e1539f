//! Shared parts of the tests: a store in memory, and calls of a text as a class.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;
use nacre_class::{Bounds, CallError, Called, Catalogue, Class, Request, Runtime};
use nacre_object::testkit::MemoryStore;
use nacre_object::{Answer, ObjectId, ObjectStore, Outcome, ReadOp, Transaction};

/// A store with one class, named `c`.
pub struct Bench {
    pub store: Arc<MemoryStore>,
    pub runtime: Runtime,
    pub catalogue: Arc<Catalogue>,
    pub object: ObjectId,
}

/// Returns the default bounds, except that a call may stand still for long, as on a busy machine.
pub fn unhurried() -> Bounds {
    Bounds { wall: Duration::from_secs(60), ..Bounds::default() }
}

impl Bench {
    pub fn new(text: &str) -> Self {
        Self::bounded(text, unhurried())
    }

    pub fn bounded(text: &str, bounds: Bounds) -> Self {
        let class =
            Class::new("c".to_owned(), 1, Bytes::copy_from_slice(text.as_bytes()), Vec::new(), bounds);
        Self {
            store: Arc::new(MemoryStore::new()),
            runtime: Runtime::new(1),
            catalogue: Arc::new(Catalogue::of(class)),
            object: ObjectId::try_from("o").unwrap(),
        }
    }

    pub fn call(&self, method: &str, input: impl Into<Bytes>) -> Result<Called, CallError> {
        let request = Request::new(&self.object, "c", method).input(input);
        block_on(self.runtime.call(&*self.store, &self.catalogue, &request))
    }

    /// Calls a method that must succeed, and returns its output as text.
    pub fn output(&self, method: &str, input: &str) -> String {
        match self.call(method, input.to_owned()) {
            Ok(called) => String::from_utf8_lossy(&called.output).into_owned(),
            Err(error) => panic!("{method}: {error}"),
        }
    }

    /// Calls a method, and returns its result as a caller of cls_lua sees it.
    pub fn result(&self, method: &str) -> i32 {
        match self.call(method, "") {
            Ok(called) => called.result,
            Err(error) => -error.errno(),
        }
    }

    pub fn apply(&self, transaction: Transaction) -> Outcome {
        block_on(self.store.apply(&self.object, transaction)).unwrap()
    }

    pub fn ask(&self, read: ReadOp) -> Answer {
        match self.apply(Transaction::new().read(read)) {
            Outcome::Done(done) => done.answers.into_iter().next().unwrap(),
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }
}

/// Runs a text as the body of a method, and returns the output or the error.
pub fn eval(body: &str) -> Result<String, CallError> {
    let bench = Bench::new(&format!("function m(input, output)\n{body}\nend objclass.register(m)"));
    bench.call("m", "").map(|called| String::from_utf8_lossy(&called.output).into_owned())
}

/// Runs an expression, and returns what `tostring` makes of it.
pub fn value(expression: &str) -> String {
    eval(&format!("output:append(tostring({expression}))"))
        .unwrap_or_else(|error| panic!("{expression}: {error}"))
}
