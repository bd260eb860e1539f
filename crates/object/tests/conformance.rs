//! The store made of the model passes the suite that engines have to pass.

use std::sync::Arc;

use nacre_object::testkit::conformance::{self, Effort};
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{MemoryStore, Model, block_on};
use nacre_object::*;

#[test]
fn memory_store() {
    let store = MemoryStore::new();
    conformance::run(&store, "suite");
    // A store that others use passes too.
    conformance::run_with(&store, "again", Effort { seed: 1000, ..Effort::default() });
}

#[test]
fn memory_store_by_several_connections() {
    let store = MemoryStore::new();
    conformance::run_connections(&[&store, &store, &store], "several", Effort::default());
}

#[test]
fn from_an_async_runtime() {
    let effort = Effort { histories: 1, increments: 5, ..Effort::default() };
    block_on(conformance::run_async(Arc::new(MemoryStore::new()), "async", effort));
}

#[test]
#[should_panic(expected = "versions/absent object: ")]
fn a_namespace_that_was_used() {
    let store = MemoryStore::new();
    let object = ObjectId::try_from("used/versions/absent object/a").unwrap();
    block_on(store.apply(&object, Transaction::new().change(WriteOp::Create))).unwrap();
    conformance::run_with(&store, "used", Effort { histories: 1, increments: 5, ..Effort::default() });
}

/// Tests that a comparison of whole objects finds whatever a store changes behind the model's back.
#[test]
fn comparison_of_objects() {
    let f = Fork::try_from("f").unwrap();
    let key = Key::try_from("k").unwrap();
    for seed in 0..50 {
        let mut generator = Generator::new(seed, Shape { remove_percent: 0, ..Shape::default() });
        generator.by_ref().take(60).for_each(drop);
        let model = generator.model();
        let objects = generator.objects();
        conformance::compare(&MemoryStore::from(model.clone()), model, objects).unwrap();
        let writes = [
            WriteOp::Create,
            WriteOp::Extents { fork: f.clone(), extents: vec![(3, "x".into())] },
            WriteOp::Zero { fork: Fork::DEFAULT, range: ByteRange::new(1 << 50, 1) },
            WriteOp::SetKey { key: key.clone(), value: "other".into() },
            WriteOp::SetKey { key: Key::try_from("zzz").unwrap(), value: "new".into() },
            WriteOp::SetAttribute { name: key.clone(), value: "other".into() },
            WriteOp::Truncate { fork: f.clone(), size: 1 << 40 },
            WriteOp::RaiseFence { token: u64::MAX },
            WriteOp::FenceSession { session: u64::MAX },
            WriteOp::Remove,
        ];
        for write in writes {
            let store = MemoryStore::from(model.clone());
            block_on(store.apply(&objects[1], Transaction::new().change(write.clone()))).unwrap();
            assert!(conformance::compare(&store, model, objects).is_err(), "seed {seed}: {write:?} shows");
        }
        assert!(conformance::compare(&MemoryStore::from(Model::new()), model, objects).is_err());
    }
}
