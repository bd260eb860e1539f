//! The classes that ship do what the transcripts in their texts say, and what they promise when many use them at once.

use std::sync::Arc;
use std::time::Duration;

use futures::executor::block_on;
use nacre_class::{Bounds, Classes, Request, transcript};
use nacre_object::ObjectId;
use nacre_object::testkit::MemoryStore;

const SHIPPED: [(&str, &str); 7] = [
    ("counter", include_str!("../../../classes/counter.lua")),
    ("queue", include_str!("../../../classes/queue.lua")),
    ("refcount", include_str!("../../../classes/refcount.lua")),
    ("version", include_str!("../../../classes/version.lua")),
    ("log", include_str!("../../../classes/log.lua")),
    ("index", include_str!("../../../classes/index.lua")),
    ("zlog", include_str!("../../../classes/zlog.lua")),
];

fn classes() -> Classes {
    let classes = Classes::new(Arc::new(MemoryStore::new()));
    // A call may stand still for long on a busy machine.
    let bounds = Bounds { wall: Duration::from_secs(60), ..Bounds::default() };
    for (name, text) in SHIPPED {
        block_on(classes.put(name, text.into(), bounds)).unwrap();
    }
    classes
}

#[test]
fn transcripts_come_true() {
    let classes = classes();
    for (name, text) in SHIPPED {
        let steps = transcript::parse(text).unwrap();
        assert!(steps.len() > 9, "{name} has {} calls", steps.len());
        let object = ObjectId::try_from(name).unwrap();
        let differences = block_on(transcript::run(&classes, name, &steps, &object)).unwrap();
        assert!(differences.is_empty(), "{name}: {differences:#?}");
    }
}

#[test]
fn every_method_is_described() {
    let catalogue = block_on(classes().catalogue()).unwrap();
    for class in catalogue.classes.values() {
        assert!(class.methods.iter().all(|method| !method.about.is_empty()), "{}", class.name);
        assert!(class.methods.iter().any(|method| method.writes), "{}", class.name);
        assert!(class.methods.iter().any(|method| !method.writes), "{}", class.name);
    }
}

#[test]
fn classes_share_an_object_without_touching_each_other() {
    let classes = classes();
    let object = ObjectId::try_from("shared").unwrap();
    let call = |class, method, input: &'static str| {
        let request = Request::new(&object, class, method).input(input);
        String::from_utf8(block_on(classes.call(&request)).unwrap().output.to_vec()).unwrap()
    };
    call("counter", "add", "7");
    call("queue", "push", "entry");
    call("refcount", "get", "tag");
    call("version", "inc", "");
    assert_eq!(call("counter", "get", ""), "7");
    assert_eq!(call("queue", "peek", ""), "entry");
    assert_eq!(call("refcount", "list", ""), "tag");
    assert_eq!(call("version", "read", ""), "1");
}

#[test]
fn no_addition_is_lost_and_no_entry_is_given_twice() {
    const THREADS: usize = 4;
    const CALLS: usize = 200;
    let classes = Arc::new(classes());
    let object = ObjectId::try_from("contended").unwrap();
    let popped: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (classes, object) = (classes.clone(), &object);
                scope.spawn(move || {
                    let call = |class, method, input: String| {
                        let called =
                            block_on(classes.call(&Request::new(object, class, method).input(input)))
                                .unwrap();
                        String::from_utf8(called.output.to_vec()).unwrap()
                    };
                    let mut popped = Vec::new();
                    for number in 0..CALLS {
                        call("counter", "add", "1".to_owned());
                        call("queue", "push", format!("{thread}-{number}"));
                        popped.push(call("queue", "pop", String::new()));
                    }
                    popped
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let called = block_on(classes.call(&Request::new(&object, "counter", "get"))).unwrap();
    assert_eq!(called.output, (THREADS * CALLS).to_string());
    let mut unique = popped.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), THREADS * CALLS);
}
