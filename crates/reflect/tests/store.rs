//! Checkpoints in a store, and the text of places.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use nacre_object::testkit::{MemoryStore, block_on};
use nacre_object::{
    ErrorKind, Fork, ObjectId, ObjectStore, Outcome, Reply, StoreError, Transaction, WriteOp,
};
use nacre_reflect::location::LocationEntry;
use nacre_reflect::state::{Checkpoint, Checkpoints, Saved};
use nacre_reflect::wire::STATE_BYTES_MAX;
use proptest::collection::vec;
use proptest::prelude::*;

fn id(text: &str) -> ObjectId {
    text.parse().unwrap()
}

#[test]
fn a_state_is_kept_under_the_version_that_the_store_gave_it() {
    let checkpoints = Checkpoints::new(Arc::new(MemoryStore::new()), "state/");
    let load = || block_on(checkpoints.load("group/7400")).unwrap();
    let save = |base, state: &Bytes| block_on(checkpoints.save("group/7400", base, state)).unwrap();
    assert_eq!(load(), Checkpoint { version: 0, bytes: None });
    let mut base = 0;
    // Longer, shorter, empty, the longest: the rest of the one before must not shine through.
    for len in [10, 3, 0, STATE_BYTES_MAX, 7] {
        let state = Bytes::from(vec![len as u8 | 1; len]);
        let Saved::Stored(version) = save(base, &state) else { panic!("nobody else is there") };
        assert!(version > base);
        assert_eq!(load(), Checkpoint { version, bytes: Some(state.clone()) });
        // Based on what was there before, it does not replace what is there now.
        assert_eq!(save(base, &Bytes::from_static(b"older")), Saved::Newer(version));
        assert_eq!(load(), Checkpoint { version, bytes: Some(state) });
        base = version;
    }
    let long = Bytes::from(vec![0; STATE_BYTES_MAX + 1]);
    assert_eq!(block_on(checkpoints.save("group/7400", base, &long)).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn what_is_no_checkpoint_is_said_to_be_corrupt_and_a_removed_one_is_none() {
    let store = Arc::new(MemoryStore::new());
    let checkpoints = Checkpoints::new(store.clone(), "state/");
    for junk in [&b"x"[..], b"nrstate\x02later", &vec![0; STATE_BYTES_MAX + 100]] {
        let write = Transaction::new().change(WriteOp::Truncate { fork: Fork::DEFAULT, size: 0 }).write(
            Fork::DEFAULT,
            0,
            junk.to_vec(),
        );
        block_on(store.apply(&id("state/junk"), write)).unwrap();
        let error = block_on(checkpoints.load("junk")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        assert!(error.message.contains("state/junk"), "{error}");
    }
    block_on(store.apply(&id("state/junk"), Transaction::new().change(WriteOp::Remove))).unwrap();
    let gone = block_on(checkpoints.load("junk")).unwrap();
    assert!(gone.bytes.is_none() && gone.version > 0);
    let state = Bytes::from_static(b"again");
    assert!(matches!(block_on(checkpoints.save("junk", 0, &state)).unwrap(), Saved::Newer(_)));
    assert!(matches!(block_on(checkpoints.save("junk", gone.version, &state)).unwrap(), Saved::Stored(_)));
}

proptest! {
    /// Several reflectors, each with its own idea of the newest version: stored versions only ever grow, each version
    /// is one reflector's, and a reflector that loses learns a version that is newer than its own.
    #[test]
    fn reflectors_that_race_never_overwrite_a_newer_state(steps in vec((0..3_usize, any::<bool>(), any::<u8>()), 1..60)) {
        let checkpoints = Checkpoints::new(Arc::new(MemoryStore::new()), "");
        let mut bases = [0; 3];
        let mut newest = Checkpoint { version: 0, bytes: None };
        for (client, looks, what) in steps {
            if looks {
                let found = block_on(checkpoints.load("race")).unwrap();
                prop_assert_eq!(&found, &newest);
                bases[client] = found.version;
                continue;
            }
            let state = Bytes::from(vec![what; what.into()]);
            match block_on(checkpoints.save("race", bases[client], &state)).unwrap() {
                Saved::Stored(version) => {
                    prop_assert_eq!(bases[client], newest.version);
                    prop_assert!(version > newest.version);
                    bases[client] = version;
                    newest = Checkpoint { version, bytes: Some(state) };
                }
                Saved::Newer(version) => {
                    prop_assert_ne!(bases[client], newest.version);
                    prop_assert_eq!(version, newest.version);
                }
            }
        }
        prop_assert_eq!(block_on(checkpoints.load("race")).unwrap(), newest);
    }
}

/// An action before each read, which is counted.
type Meddle = dyn Fn(&MemoryStore, u32) + Send + Sync;

/// A store that loses its next answers to transactions that write, after or before they took effect, and that calls an
/// action in between.
struct Shaky {
    inner: MemoryStore,
    lost: AtomicU32,
    takes_effect: bool,
    before_read: Box<Meddle>,
    reads: AtomicU32,
}

impl Shaky {
    fn new(
        lost: u32,
        takes_effect: bool,
        before_read: impl Fn(&MemoryStore, u32) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Shaky {
            inner: MemoryStore::new(),
            lost: AtomicU32::new(lost),
            takes_effect,
            before_read: Box::new(before_read),
            reads: AtomicU32::new(0),
        })
    }
}

impl ObjectStore for Shaky {
    fn apply(&self, object: &ObjectId, transaction: Transaction) -> Reply<Outcome> {
        if transaction.writes.is_empty() {
            (self.before_read)(&self.inner, self.reads.fetch_add(1, Ordering::Relaxed));
            return self.inner.apply(object, transaction);
        }
        if self.lost.load(Ordering::Relaxed) == 0 {
            return self.inner.apply(object, transaction);
        }
        self.lost.fetch_sub(1, Ordering::Relaxed);
        if self.takes_effect {
            block_on(self.inner.apply(object, transaction)).unwrap();
        }
        Reply::ready(Err(StoreError::new(ErrorKind::Unknown, "the connection broke")))
    }

    fn list(&self, after: Option<&ObjectId>, limit: usize) -> Reply<Vec<ObjectId>> {
        self.inner.list(after, limit)
    }
}

#[test]
fn an_answer_of_the_store_that_was_lost_is_found_out() {
    let state = Bytes::from_static(b"state");
    let took_effect = Checkpoints::new(Shaky::new(1, true, |_, _| {}), "");
    let Saved::Stored(version) = block_on(took_effect.save("a", 0, &state)).unwrap() else { panic!() };
    assert_eq!(block_on(took_effect.load("a")).unwrap(), Checkpoint { version, bytes: Some(state.clone()) });

    let did_not = Checkpoints::new(Shaky::new(1, false, |_, _| {}), "");
    assert_eq!(block_on(did_not.save("a", 0, &state)).unwrap_err().kind, ErrorKind::Unknown);
    assert!(matches!(block_on(did_not.save("a", 0, &state)).unwrap(), Saved::Stored(_)));

    // Another one was first.
    let other = |store: &MemoryStore, _| {
        let write = Transaction::new().write(Fork::DEFAULT, 0, Bytes::from_static(b"nrstate\x01other"));
        block_on(store.apply(&id("a"), write)).unwrap();
    };
    let raced = Checkpoints::new(Shaky::new(1, false, other), "");
    assert!(matches!(block_on(raced.save("a", 0, &state)).unwrap(), Saved::Newer(_)));
}

#[test]
fn a_place_is_the_same_as_text() {
    let of_two: LocationEntry = "3 198.51.100.1:7400,[2001:db8::1]:7400".parse().unwrap();
    assert_eq!(of_two.group, 3);
    assert_eq!(of_two.reflectors.as_slice().len(), 2);
    assert_eq!(of_two.to_string().parse(), Ok(of_two));
    for wrong in
        ["", "3", "x 198.51.100.1:7400", "3 198.51.100.1", "3 198.51.100.1:7400,", "-1 198.51.100.1:7400"]
    {
        assert!(wrong.parse::<LocationEntry>().unwrap_err().contains("is not a place"), "{wrong}");
    }
    let five = format!("3 {}", ["198.51.100.1:7400"; 5].join(","));
    assert!(five.parse::<LocationEntry>().unwrap_err().contains("more than 4 reflectors"));
}
