//! Handles: numbers in the guise of pointers, which are never followed.
//!
//! A number is given once in the life of the process. So a handle that was closed, or is of another kind, is found out, and one that a thread
//! closes while another one is in a call with it lasts until that call is over.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::code::Failure;

/// Something that a program has a handle on.
pub trait Handle: Any + Send + Sync {
    /// Its kind with an article, as sentences name it.
    const WHAT: &'static str;
}

type Table = RwLock<HashMap<usize, Arc<dyn Any + Send + Sync>>>;

static TABLE: LazyLock<Table> = LazyLock::new(Table::default);

static NEXT: AtomicUsize = AtomicUsize::new(1);

/// Returns a new handle.
pub fn put<T: Handle>(value: T) -> *mut T {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Nothing panics while it is locked.
    TABLE.write().unwrap_or_else(PoisonError::into_inner).insert(number, Arc::new(value));
    std::ptr::without_provenance_mut(number)
}

/// Returns what a handle is on.
pub fn get<T: Handle>(handle: *const T) -> Result<Arc<T>, Failure> {
    let found = TABLE.read().unwrap_or_else(PoisonError::into_inner).get(&handle.addr()).cloned();
    found.and_then(|found| found.downcast().ok()).ok_or_else(|| none::<T>(handle))
}

/// Ends a handle, and returns what it was on. Calls with it that are under way still use that.
pub fn take<T: Handle>(handle: *const T) -> Result<Arc<T>, Failure> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let found = table.get(&handle.addr()).cloned().and_then(|found| found.downcast().ok());
    let found = found.ok_or_else(|| none::<T>(handle))?;
    let taken = table.remove(&handle.addr());
    // What it drops may take its time, and handles of its own.
    drop(table);
    drop(taken);
    Ok(found)
}

fn none<T: Handle>(handle: *const T) -> Failure {
    let why = if handle.is_null() { "is NULL" } else { "is none, or was closed" };
    Failure::invalid(format!("the handle on {} {why}", T::WHAT))
}
