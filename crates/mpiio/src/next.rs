//! Functions that this library stands in front of, as the next library in line has them.
//!
//! This library defines both names of a function, `MPI_File_x` and `PMPI_File_x`: bindings for Fortran call the second, and so do other
//! tools that use the profiling interface. So it cannot call either by its name.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Returns the name of a function, given with a zero behind it.
pub const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has one zero, at its end"),
    }
}

/// Returns the address of a function; null if no library has it.
pub fn look_up(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends with a zero.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if address.is_null() {
        // It is no error that the program is to find when it asks for its own.
        // SAFETY: the text is not used.
        unsafe { libc::dlerror() };
    }
    address
}

/// A function of the next library, looked up when it is first wanted.
pub struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    /// Names a function.
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function, if there is a library that has it.
    ///
    /// # Safety
    ///
    /// `F` is the type of the function, as a pointer.
    pub unsafe fn find<F: Copy>(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            address = look_up(self.name);
            self.address.store(address, Ordering::Relaxed);
        }
        if address.is_null() || size_of::<F>() != size_of::<*mut c_void>() {
            return None;
        }
        // SAFETY: the address is that of a function of type `F`, of the size of a pointer, says the caller.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}
