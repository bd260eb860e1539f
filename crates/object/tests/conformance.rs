//! The store made of the model passes the suite that engines have to pass.

use nacre_object::testkit::{MemoryStore, conformance};

#[test]
fn memory_store() {
    conformance::run(&MemoryStore::new(), "suite");
}
