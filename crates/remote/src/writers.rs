//! The server's side of repeated writes: the writers that have a connection, so that a new one ends the rights of
//! earlier ones.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use nacre_object::once::WRITER_BYTES;
use nacre_object::{ErrorKind, Lease, StoreError};
use parking_lot::Mutex;

/// The number of writers above which departed ones are searched.
const SWEPT_MIN: usize = 64;

/// The writers of a server: for each, the number of its latest connection. A writer is forgotten when neither a
/// connection nor a transaction of it is left.
#[derive(Default)]
pub(crate) struct Writers(Mutex<Table>);

#[derive(Default)]
struct Table {
    newest: HashMap<[u8; WRITER_BYTES], Weak<AtomicU64>>,
    /// The number of entries at which those of writers that are gone are removed.
    swept_at: usize,
}

impl Writers {
    /// Opens a writer's connection with the number `epoch`. The rights of its earlier connections end.
    ///
    /// # Errors
    ///
    /// `Invalid` if a connection with that number or a greater one was opened before.
    pub(crate) fn open(&self, writer: [u8; WRITER_BYTES], epoch: u64) -> Result<Lease, StoreError> {
        let mut table = self.0.lock();
        let known = table.newest.get(&writer).and_then(Weak::upgrade);
        let newest = known.unwrap_or_else(|| {
            if table.newest.len() >= table.swept_at {
                table.newest.retain(|_, newest| newest.strong_count() > 0);
                table.swept_at = SWEPT_MIN.max(2 * table.newest.len());
            }
            let newest = Arc::new(AtomicU64::new(0));
            table.newest.insert(writer, Arc::downgrade(&newest));
            newest
        });
        Lease::open(&newest, epoch).ok_or_else(|| {
            let text = "the writer continues on a later connection";
            StoreError::new(ErrorKind::Invalid, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_that_are_gone_are_forgotten() {
        let writers = Writers::default();
        let kept = writers.open([0xff; 16], 7).unwrap();
        for number in 0..100_000u64 {
            let mut writer = [0; 16];
            writer[..8].copy_from_slice(&number.to_le_bytes());
            assert!(writers.open(writer, 1).unwrap().is_valid());
        }
        assert!(writers.0.lock().newest.len() <= SWEPT_MIN);
        assert!(writers.open([0xff; 16], 7).is_err(), "an old number");
        assert!(kept.is_valid());
        assert!(writers.open([0xff; 16], 8).unwrap().is_valid());
        assert!(!kept.is_valid());
    }
}
