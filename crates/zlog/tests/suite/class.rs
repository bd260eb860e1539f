//! `classes/zlog.lua` and the library keep to the same format and the same rules.

use std::sync::Arc;
use std::time::Duration;

use nacre_class::{Bounds, Classes, Request, errno, packed};
use nacre_object::testkit::MemoryStore;
use nacre_object::{ObjectId, ObjectStore as _};
use nacre_zlog::{Directory, Entry, Log, Options, Shape, Slot, layout};
use serde_json::{Value, json};

struct Both {
    log: Log,
    classes: Classes,
    object: ObjectId,
}

impl Both {
    async fn new() -> Both {
        let store = Arc::new(MemoryStore::new());
        Directory::new(store.clone()).unwrap().create("log", Shape { width: 1, unit: 1 }).await.unwrap();
        let log = Log::open(store.clone(), "log", Options::default()).await.unwrap();
        let view = log.info().await.unwrap().views.remove(0);
        let object = layout::object(log.id(), &view, 0).unwrap();
        assert!(store.list(None, 100).await.unwrap().contains(&object));
        let classes = Classes::new(store);
        // A call may stand still for long on a busy machine.
        let bounds = Bounds { wall: Duration::from_secs(60), ..Bounds::default() };
        classes.put("zlog", include_str!("../../../../classes/zlog.lua").into(), bounds).await.unwrap();
        Both { log, classes, object }
    }

    /// Calls a method with packed arguments, and returns its packed output or its error number.
    async fn call(&self, method: &str, arguments: Value) -> Result<Vec<Value>, i32> {
        let input = packed::pack(arguments.as_array().unwrap()).unwrap();
        match self.classes.call(&Request::new(&self.object, "zlog", method).input(input)).await {
            Ok(called) => Ok(packed::unpack(&called.output).unwrap()),
            Err(error) => Err(error.errno()),
        }
    }

    /// Calls a method that puts out a number.
    async fn number(&self, method: &str, arguments: Value) -> u64 {
        let input = packed::pack(arguments.as_array().unwrap()).unwrap();
        let called =
            self.classes.call(&Request::new(&self.object, "zlog", method).input(input)).await.unwrap();
        String::from_utf8_lossy(&called.output).parse().unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn the_class_reads_what_the_library_writes() {
    let both = Both::new().await;
    let entries: Vec<Entry> = (0..40)
        .map(|number| {
            let entry = Entry::new(format!("entry {number} {}", "x".repeat(number * 97)));
            (0..number % 4).fold(entry, |entry, tag| entry.tag(format!("tag {tag}")))
        })
        .collect();
    for entry in &entries {
        drop(both.log.appender().submit(entry.clone()).await.unwrap());
    }
    both.log.append(Entry::new("last")).await.unwrap();
    for (place, entry) in entries.iter().enumerate() {
        let text = |bytes: &[u8]| Value::from(std::str::from_utf8(bytes).unwrap());
        let tags: Vec<_> = entry.tags.iter().map(|tag| text(tag)).collect();
        let found = both.call("read", json!([1, place])).await.unwrap();
        assert_eq!(found, ["entry".into(), text(&entry.data), tags.into()]);
        assert_eq!(both.call("write", json!([1, place, "again"])).await, Err(errno::EEXIST));
    }
    assert_eq!(both.number("max", json!([1])).await, 41);
    both.log.trim(3).await.unwrap();
    both.log.trim_prefix(2).await.unwrap();
    for place in [0, 1, 3] {
        assert_eq!(both.call("read", json!([1, place])).await, Ok(vec!["trimmed".into()]));
        assert_eq!(both.call("write", json!([1, place, "again"])).await, Err(errno::EEXIST));
    }
    both.log.seal().await.unwrap();
    assert_eq!(both.call("read", json!([1, 2])).await, Err(errno::ESTALE));
    assert_eq!(both.call("read", json!([2, 2])).await.unwrap()[0], "entry");
}

#[tokio::test(start_paused = true)]
async fn the_library_reads_what_the_class_writes() {
    let both = Both::new().await;
    both.call("write", json!([1, 0, "one", ["red", "blue"], 7])).await.unwrap();
    both.call("write", json!([1, 2, "three"])).await.unwrap();
    both.call("fill", json!([1, 1])).await.unwrap();
    assert_eq!(both.log.read(0).await, Ok(Slot::Entry(Entry::new("one").tag("red").tag("blue"))));
    assert_eq!(both.log.read(1).await, Ok(Slot::Filled));
    assert_eq!(both.log.read(2).await, Ok(Slot::Entry(Entry::new("three"))));
    // What it wrote stays, although the sequencer did not know of it: the append takes later positions.
    assert_eq!(both.log.append(Entry::new("four")).await, Ok(3));
    // The signature of tags is the same.
    for tag in ["red", "blue"] {
        let options = nacre_zlog::FollowOptions { tag: Some(tag.into()), ..Default::default() };
        assert_eq!(both.log.follow(0, options).next().await.unwrap().position(), 0);
    }
    assert_eq!(both.number("seal", json!([5])).await, 4);
    // Nobody publishes the epoch, so the library recovers the log with a greater one.
    assert_eq!(both.log.append(Entry::new("five")).await, Ok(4));
    assert_eq!(both.log.info().await.unwrap().epoch, 6);
    both.call("trim_prefix", json!([6, 3])).await.unwrap();
    both.call("trim", json!([6, 4])).await.unwrap();
    for (position, wanted) in
        [(0, Slot::Trimmed), (2, Slot::Trimmed), (3, Slot::Entry(Entry::new("four"))), (4, Slot::Trimmed)]
    {
        assert_eq!(both.log.read(position).await, Ok(wanted), "{position}");
    }
}
