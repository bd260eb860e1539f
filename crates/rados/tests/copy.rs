//! Copies from memory to Ceph, on to a folder's engine, and back to memory: versions, bytes, keys, attributes and fences
//! stay.

mod cluster;

use cluster::Cluster;
use nacre_logstore::{LogStore, Options};
use nacre_object::copy::copy_objects;
use nacre_object::testkit::conformance::compare_copies;
use nacre_object::testkit::history::{Generator, Shape};
use nacre_object::testkit::{MemoryStore, Model, block_on};
use nacre_object::{ObjectId, ObjectStore};

/// Returns a shape without removals: objects and forks that are gone are not seen by a copy, and nothing may depend on
/// them here.
fn shape() -> Shape {
    Shape { objects: 5, forks: 1, keys: 40, remove_percent: 0, replace_percent: 0, ..Shape::default() }
}

#[test]
fn there_and_back_again() {
    let cluster = Cluster::shared();
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut generator = Generator::new(seed, shape());
    let (memory, ceph, back) = (MemoryStore::new(), cluster.open("copy"), MemoryStore::new());
    let log = LogStore::memory(Options::default());
    for round in 0..3 {
        for _ in 0..40 {
            let step = generator.step();
            assert_eq!(block_on(memory.apply(&step.object, step.transaction)), step.expected, "seed {seed}");
        }
        let stores: [&dyn ObjectStore; 4] = [&memory, &ceph, &log, &back];
        for pair in stores.windows(2) {
            let result = block_on(copy_objects(pair[0], pair[1], |_, _| {}));
            let copied = result.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            let existing = existing(generator.model());
            assert_eq!(copied.objects, existing.len() as u64, "seed {seed}, round {round}");
            compare_copies(pair[1], generator.model(), &existing)
                .unwrap_or_else(|failure| panic!("seed {seed}, round {round}: {failure}"));
        }
        let again = block_on(copy_objects(&ceph, &back, |_, _| {})).unwrap();
        assert_eq!(again.unchanged, again.objects, "seed {seed}");
    }
}

fn existing(model: &Model) -> Vec<ObjectId> {
    model.objects().filter(|(_, state)| state.exists()).map(|(id, _)| id.clone()).collect()
}
