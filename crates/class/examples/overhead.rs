//! The cost of a call of a method over the same operation made natively, on a store in memory, on one thread.
//!
//! ```text
//! cargo run --release -p nacre-class --example overhead
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use nacre_class::{Bounds, Catalogue, Class, Request, Runtime};
use nacre_object::testkit::MemoryStore;
use nacre_object::{Answer, Guard, Key, ObjectId, ObjectStore, Outcome, ReadOp, Transaction, WriteOp};

const SMALL: &str = "
function nothing() end
objclass.register(nothing)
function get(input, output) output:append(objclass.map_get_val('count'):str()) end
objclass.register(get)
function add(input, output)
  local value = bufferlist.new()
  value:append(tostring(tonumber(objclass.map_get_val('count'):str()) + 1))
  objclass.map_set_val('count', value)
end
objclass.register(add)
";

/// Returns the median time of one operation over nine rounds.
fn measure(mut operation: impl FnMut()) -> Duration {
    const COUNT: u32 = 20_000;
    let mut rounds: Vec<Duration> = (0..9)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..COUNT {
                operation();
            }
            begun.elapsed() / COUNT
        })
        .collect();
    rounds.sort();
    rounds[4]
}

fn main() {
    let store = MemoryStore::new();
    let object = ObjectId::try_from("object").expect("a name");
    let key = || Key::try_from("count").expect("a name");
    let set = |count: u64, version: Option<u64>| {
        let write = WriteOp::SetKey { key: key(), value: count.to_string().into() };
        let guards = version.map(|version| Guard::Version { version }).into_iter().collect();
        let transaction = Transaction { guards, writes: vec![write], ..Transaction::new() };
        block_on(store.apply(&object, transaction)).expect("a store in memory")
    };
    let get = || {
        let read = Transaction::new().read(ReadOp::Key { key: key() });
        match block_on(store.apply(&object, read)).expect("a store in memory") {
            Outcome::Done(done) => match &done.answers[0] {
                Answer::Value(Some(value)) => {
                    let text = String::from_utf8_lossy(value).into_owned();
                    (text.parse::<u64>().expect("a number"), done.version)
                }
                _ => (0, done.version),
            },
            Outcome::Refused(_) => unreachable!("there is no guard"),
        }
    };
    set(0, None);
    let class = |name: &str, text: &str| {
        let class = Class::new(name.to_owned(), 1, text.to_owned().into(), Vec::new(), Bounds::default());
        Arc::new(Catalogue::of(class))
    };
    let runtime = Runtime::new(1);
    let call = |catalogue: &Arc<Catalogue>, class: &str, method: &str| {
        let request = Request::new(&object, class, method);
        block_on(runtime.call(&store, catalogue, &request)).expect("a call that succeeds");
    };
    let small = class("small", SMALL);
    let counter = class("counter", include_str!("../../../classes/counter.lua"));

    let read = measure(|| {
        get();
    });
    let update = measure(|| {
        let (count, version) = get();
        set(count + 1, Some(version));
    });
    println!("{:<34} {:>9} {:>9}", "", "time", "over");
    let row = |name: &str, time: Duration, native: Duration| {
        println!("{name:<34} {time:>9.2?} {:>9.2?}", time.saturating_sub(native));
    };
    row("native read of a key", read, read);
    row("native read and conditional write", update, update);
    row("small.nothing", measure(|| call(&small, "small", "nothing")), Duration::ZERO);
    row("small.get", measure(|| call(&small, "small", "get")), read);
    row("small.add", measure(|| call(&small, "small", "add")), update);
    row("counter.get", measure(|| call(&counter, "counter", "get")), read);
    row("counter.add", measure(|| call(&counter, "counter", "add")), update);
}
