//! Stores: opened, listed, closed.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use nacre::limit::PAGE_ENTRIES_MAX;
use nacre::{BlockingStore, ObjectId, ObjectStore, Store, Uri};

use crate::argument::{handle_slot, name, text_with_paths};
use crate::code::{Failure, NACRE_CLOSED, call};
use crate::handle::{self, Handle, get};
use crate::result::nacre_result;

/// A store, or the store as a session or the holder of a lock uses it.
pub struct nacre_store {
    store: BlockingStore,
    closed: Closed,
    /// False if another handle is the one that closes the store.
    is_first: bool,
}

impl Handle for nacre_store {
    const WHAT: &'static str = "a store";
}

/// True once a store was closed, as all handles that came from it know.
#[derive(Clone, Default)]
pub struct Closed(Arc<AtomicBool>);

impl Closed {
    /// Checks that the store is open.
    pub fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Acquire) {
            true => Err(Failure::new(NACRE_CLOSED, "the store was closed")),
            false => Ok(()),
        }
    }
}

impl nacre_store {
    /// Returns a further handle on the store.
    pub fn further(&self, store: BlockingStore) -> nacre_store {
        nacre_store { store, closed: self.closed.clone(), is_first: false }
    }

    /// Returns the store, if it is open.
    pub fn open(&self) -> Result<&BlockingStore, Failure> {
        self.closed.check()?;
        Ok(&self.store)
    }

    /// Returns what tells whether the store was closed.
    pub fn closed(&self) -> Closed {
        self.closed.clone()
    }
}

/// Opens a store: "file:PATH", "file:PATH?create=yes", "mem:", "nacre://HOST:PORT,...", "unix:PATH" or "rados://POOL". Servers are
/// connected when they are first needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_open(uri: *const c_char, store: *mut *mut nacre_store) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(store)?;
        let uri = Uri::from_os_str(text_with_paths(uri, 1 << 16, "the uri")?)?;
        // The library's own threads drive the connections, whatever the program is.
        let store = Store::open_apart(&uri)?.blocking();
        slot.put(nacre_store { store, closed: Closed::default(), is_first: true });
        Ok(())
    })
}

/// Connects to the servers now, if the store has any. NACRE_UNAVAILABLE if none of them can be reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_store_connect(store: *mut nacre_store) -> c_int {
    call(|| Ok(get(store)?.open()?.connect()?))
}

/// Closes a store, and ends the handle in any case. The first handle, that of nacre_open, closes the store itself: its locks are
/// released, and calls with other handles that came from it return NACRE_CLOSED. They are to be closed all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_store_close(store: *mut nacre_store) -> c_int {
    call(|| {
        let store = handle::take(store)?;
        if store.is_first {
            store.closed.0.store(true, Ordering::Release);
            store.store.end_locks();
            store.store.close()?;
        }
        Ok(())
    })
}

/// Returns a handle on the store that acts for one session: its changes fail as NACRE_DENIED where the session is fenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_store_for_session(
    store: *mut nacre_store,
    session: u64,
    handle: *mut *mut nacre_store,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(handle)?;
        let store = get(store)?;
        slot.put(store.further(store.open()?.for_session(session)));
        Ok(())
    })
}

/// Lists the objects that exist, in ascending order of their names: at most `limit` and 1,024, from the first one after `after`. With NULL for
/// `after`, from the first of all. The names are the entries of answer 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_store_list(
    store: *mut nacre_store,
    after: *const c_void,
    after_length: usize,
    limit: usize,
    result: *mut *mut nacre_result,
) -> c_int {
    // SAFETY: the caller keeps the rules of the header.
    call(|| unsafe {
        let slot = handle_slot(result)?;
        let after = match after.is_null() {
            true => None,
            false => Some(ObjectId::new(Bytes::copy_from_slice(name(
                after,
                after_length,
                "the name of the object",
            )?))?),
        };
        let store = get(store)?;
        let (store, limit) = (store.open()?.nonblocking(), limit.min(PAGE_ENTRIES_MAX));
        let names = futures::executor::block_on(ObjectStore::list(store, after.as_ref(), limit))?;
        slot.put(nacre_result::of_objects(names, limit));
        Ok(())
    })
}

/// Ends the lock session of the store: all its locks are released, and those that wait are not granted. The next lock begins another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nacre_store_end_locks(store: *mut nacre_store) -> c_int {
    call(|| {
        get(store)?.open()?.end_locks();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::{CString, OsStr};
    use std::os::unix::ffi::OsStrExt;
    use std::ptr;

    use super::*;
    use crate::code::NACRE_OK;

    #[test]
    fn the_path_of_a_store_has_any_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(OsStr::from_bytes(b"store\xff"));
        let uri = [&b"file:"[..], path.as_os_str().as_bytes(), b"?create=yes"].concat();
        let uri = CString::new(uri).unwrap();
        let mut store = ptr::null_mut();
        // SAFETY: the uri ends with a zero, and there is a place for the handle.
        assert_eq!(unsafe { nacre_open(uri.as_ptr(), &mut store) }, NACRE_OK);
        assert!(path.is_dir());
        // SAFETY: the handle is that of the call above.
        assert_eq!(unsafe { nacre_store_close(store) }, NACRE_OK);
    }
}
