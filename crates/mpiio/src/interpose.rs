//! The functions of MPI in front of which this library stands.
//!
//! Each has two names, `MPI_x` and `PMPI_x`. Programs in C call the first. The second is called by Open MPI's bindings for Fortran, and by
//! other tools that stand in front of the first and use the profiling interface.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::atomic::Begun;
use crate::failure::Failure;
use crate::mpi::{
    self, KeptStatus, MPI_Comm, MPI_Count, MPI_Datatype, MPI_File, MPI_Info, MPI_Offset, MPI_Request,
    MPI_Status, Mode, Whence,
};
use crate::table::{self, Atomic, hold};
use crate::transfer::{Memory, Operation, StartPosition};
use crate::{atomic, hint, mode, next, request, session, start};

/// Defines a function under both of its names. In its body, `next` is the function of the MPI library. That is called at once, without the
/// body, where the condition behind `if` does not hold. So most calls cost no more than to look at the condition.
macro_rules! function {
    ($public:ident $profiling:ident ($($name:ident: $type:ty),*) $next:ident => $body:block) => {
        function! { $public $profiling ($($name: $type),*) $next if true => $body }
    };
    ($public:ident $profiling:ident ($($name:ident: $type:ty),*) $next:ident if $wanted:expr => $body:block) => {
        const _: () = {
            type Function = unsafe extern "C" fn($($type),*) -> c_int;

            const NAME: &CStr = next::name(concat!(stringify!($profiling), "\0"));

            /// The address of the MPI library's function, or of one that stands in for it.
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(unresolved as *mut c_void);

            // SAFETY: the section has functions of this type, which the loader calls once all libraries are there.
            #[used]
            #[unsafe(link_section = ".init_array")]
            static AT_LOAD: extern "C" fn() = resolve;

            extern "C" fn resolve() {
                let found = next::look_up(NAME);
                let address = if found.is_null() { missing as *mut c_void } else { found };
                NEXT.store(address, Ordering::Relaxed);
            }

            /// Stands in for a function that was not looked up yet: libraries that are initialized before this one may call it.
            unsafe extern "C" fn unresolved($($name: $type),*) -> c_int {
                resolve();
                // SAFETY: the arguments are those of the caller.
                unsafe { following()($($name),*) }
            }

            /// Stands in for a function that the MPI library does not have, as older ones lack some.
            unsafe extern "C" fn missing($(_: $type),*) -> c_int {
                mpi::error_class_io()
            }

            #[inline]
            fn following() -> Function {
                // SAFETY: the address is that of a function of this type: MPI declares its own so, and so are those that stand in for it.
                unsafe { transmute::<*mut c_void, Function>(NEXT.load(Ordering::Relaxed)) }
            }

            /// # Safety
            ///
            /// The arguments are what MPI says.
            #[cold]
            #[inline(never)]
            unsafe fn body($($name: $type),*) -> c_int {
                let $next = || -> c_int {
                    // SAFETY: the arguments are those of the caller.
                    unsafe { following()($($name),*) }
                };
                $body
            }

            // SAFETY: this library is there to stand in front of the function of this name, and is of its type.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $public($($name: $type),*) -> c_int {
                if $wanted {
                    // SAFETY: the arguments are those of the caller.
                    unsafe { body($($name),*) }
                } else {
                    // SAFETY: as above.
                    unsafe { following()($($name),*) }
                }
            }

            // SAFETY: as above.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $profiling($($name: $type),*) -> c_int {
                if $wanted {
                    // SAFETY: the arguments are those of the caller.
                    unsafe { body($($name),*) }
                } else {
                    // SAFETY: as above.
                    unsafe { following()($($name),*) }
                }
            }
        };
    };
}

/// Makes an access to a file in atomic mode, hands its status over, and returns the call's code.
///
/// # Safety
///
/// The arguments are those of a call of MPI.
unsafe fn blocking(
    call: &str,
    file: MPI_File,
    known: &Atomic,
    operation: Operation,
    memory: Memory,
    status: *mut MPI_Status,
) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { atomic::access(file, known, operation, memory) } {
        Ok(done) => {
            // SAFETY: as the caller says.
            unsafe { mpi::give(done, status) };
            mpi::success()
        }
        Err(failure) => failure.report(file, call),
    }
}

/// Begins an access to a file in atomic mode, and makes a request that is complete when it is done.
///
/// # Safety
///
/// The arguments are those of a call of MPI.
unsafe fn nonblocking(
    call: &'static str,
    file: MPI_File,
    known: &Arc<Atomic>,
    operation: Operation,
    memory: Memory,
    request: *mut MPI_Request,
) -> c_int {
    // SAFETY: as the caller says.
    let begun = unsafe { atomic::begin(file, known, operation, memory) };
    let created = begun.and_then(|begun| {
        let bytes = match begun {
            Begun::Done(status) => mpi::bytes_of(&status)?,
            Begun::Rest(rest) => {
                // SAFETY: as the caller says.
                return Ok(unsafe { request::in_background(call, rest, request) }?);
            }
        };
        // SAFETY: as the caller says.
        Ok(unsafe { request::completed(call, bytes, request) }?)
    });
    match created {
        Ok(()) => mpi::success(),
        Err(failure) => failure.report(file, call),
    }
}

/// Makes an access to a file in atomic mode, and keeps its status for the call that ends it.
///
/// # Safety
///
/// The arguments are those of a call of MPI.
unsafe fn begin(call: &str, file: MPI_File, known: &Atomic, operation: Operation, memory: Memory) -> c_int {
    // SAFETY: as the caller says.
    match unsafe { atomic::access(file, known, operation, memory) } {
        Ok(status) => {
            *hold(&known.split) = Some(KeptStatus(status));
            mpi::success()
        }
        Err(failure) => failure.report(file, call),
    }
}

macro_rules! blocking {
    ($($public:ident $profiling:ident $count:ty, at $offset:ident, $writes:literal, $collective:literal;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, $offset: MPI_Offset, buffer: *mut c_void, count: $count, datatype: MPI_Datatype,
            status: *mut MPI_Status
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            let operation = Operation { writes: $writes, position: StartPosition::At($offset), collective: $collective };
            let memory = Memory { buffer, count: MPI_Count::from(count), datatype };
            // SAFETY: the arguments are those of the caller.
            unsafe { blocking(stringify!($public), file, &known, operation, memory, status) }
        } }
    )*};
    ($($public:ident $profiling:ident $count:ty, $position:ident, $writes:literal, $collective:literal;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, buffer: *mut c_void, count: $count, datatype: MPI_Datatype, status: *mut MPI_Status
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            let operation = Operation { writes: $writes, position: StartPosition::$position, collective: $collective };
            let memory = Memory { buffer, count: MPI_Count::from(count), datatype };
            // SAFETY: the arguments are those of the caller.
            unsafe { blocking(stringify!($public), file, &known, operation, memory, status) }
        } }
    )*};
}

blocking! {
    MPI_File_read_at PMPI_File_read_at c_int, at offset, false, false;
    MPI_File_read_at_c PMPI_File_read_at_c MPI_Count, at offset, false, false;
    MPI_File_read_at_all PMPI_File_read_at_all c_int, at offset, false, true;
    MPI_File_read_at_all_c PMPI_File_read_at_all_c MPI_Count, at offset, false, true;
    MPI_File_write_at PMPI_File_write_at c_int, at offset, true, false;
    MPI_File_write_at_c PMPI_File_write_at_c MPI_Count, at offset, true, false;
    MPI_File_write_at_all PMPI_File_write_at_all c_int, at offset, true, true;
    MPI_File_write_at_all_c PMPI_File_write_at_all_c MPI_Count, at offset, true, true;
}

blocking! {
    MPI_File_read PMPI_File_read c_int, Individual, false, false;
    MPI_File_read_c PMPI_File_read_c MPI_Count, Individual, false, false;
    MPI_File_read_all PMPI_File_read_all c_int, Individual, false, true;
    MPI_File_read_all_c PMPI_File_read_all_c MPI_Count, Individual, false, true;
    MPI_File_read_shared PMPI_File_read_shared c_int, Shared, false, false;
    MPI_File_read_shared_c PMPI_File_read_shared_c MPI_Count, Shared, false, false;
    MPI_File_read_ordered PMPI_File_read_ordered c_int, Shared, false, true;
    MPI_File_read_ordered_c PMPI_File_read_ordered_c MPI_Count, Shared, false, true;
    MPI_File_write PMPI_File_write c_int, Individual, true, false;
    MPI_File_write_c PMPI_File_write_c MPI_Count, Individual, true, false;
    MPI_File_write_all PMPI_File_write_all c_int, Individual, true, true;
    MPI_File_write_all_c PMPI_File_write_all_c MPI_Count, Individual, true, true;
    MPI_File_write_shared PMPI_File_write_shared c_int, Shared, true, false;
    MPI_File_write_shared_c PMPI_File_write_shared_c MPI_Count, Shared, true, false;
    MPI_File_write_ordered PMPI_File_write_ordered c_int, Shared, true, true;
    MPI_File_write_ordered_c PMPI_File_write_ordered_c MPI_Count, Shared, true, true;
}

/// A non-blocking collective call must not wait for the others to call it, so each process goes on alone.
macro_rules! nonblocking {
    ($($public:ident $profiling:ident $count:ty, at $offset:ident, $writes:literal;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, $offset: MPI_Offset, buffer: *mut c_void, count: $count, datatype: MPI_Datatype,
            request: *mut MPI_Request
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            let operation = Operation { writes: $writes, position: StartPosition::At($offset), collective: false };
            let memory = Memory { buffer, count: MPI_Count::from(count), datatype };
            // SAFETY: the arguments are those of the caller.
            unsafe { nonblocking(stringify!($public), file, &known, operation, memory, request) }
        } }
    )*};
    ($($public:ident $profiling:ident $count:ty, $position:ident, $writes:literal;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, buffer: *mut c_void, count: $count, datatype: MPI_Datatype, request: *mut MPI_Request
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            let operation = Operation { writes: $writes, position: StartPosition::$position, collective: false };
            let memory = Memory { buffer, count: MPI_Count::from(count), datatype };
            // SAFETY: the arguments are those of the caller.
            unsafe { nonblocking(stringify!($public), file, &known, operation, memory, request) }
        } }
    )*};
}

nonblocking! {
    MPI_File_iread_at PMPI_File_iread_at c_int, at offset, false;
    MPI_File_iread_at_c PMPI_File_iread_at_c MPI_Count, at offset, false;
    MPI_File_iread_at_all PMPI_File_iread_at_all c_int, at offset, false;
    MPI_File_iread_at_all_c PMPI_File_iread_at_all_c MPI_Count, at offset, false;
    MPI_File_iwrite_at PMPI_File_iwrite_at c_int, at offset, true;
    MPI_File_iwrite_at_c PMPI_File_iwrite_at_c MPI_Count, at offset, true;
    MPI_File_iwrite_at_all PMPI_File_iwrite_at_all c_int, at offset, true;
    MPI_File_iwrite_at_all_c PMPI_File_iwrite_at_all_c MPI_Count, at offset, true;
}

nonblocking! {
    MPI_File_iread PMPI_File_iread c_int, Individual, false;
    MPI_File_iread_c PMPI_File_iread_c MPI_Count, Individual, false;
    MPI_File_iread_all PMPI_File_iread_all c_int, Individual, false;
    MPI_File_iread_all_c PMPI_File_iread_all_c MPI_Count, Individual, false;
    MPI_File_iread_shared PMPI_File_iread_shared c_int, Shared, false;
    MPI_File_iread_shared_c PMPI_File_iread_shared_c MPI_Count, Shared, false;
    MPI_File_iwrite PMPI_File_iwrite c_int, Individual, true;
    MPI_File_iwrite_c PMPI_File_iwrite_c MPI_Count, Individual, true;
    MPI_File_iwrite_all PMPI_File_iwrite_all c_int, Individual, true;
    MPI_File_iwrite_all_c PMPI_File_iwrite_all_c MPI_Count, Individual, true;
    MPI_File_iwrite_shared PMPI_File_iwrite_shared c_int, Shared, true;
    MPI_File_iwrite_shared_c PMPI_File_iwrite_shared_c MPI_Count, Shared, true;
}

/// All of a split collective access is done by the call that begins it, as MPI allows.
macro_rules! begin {
    ($($public:ident $profiling:ident $count:ty, at $offset:ident, $writes:literal;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, $offset: MPI_Offset, buffer: *mut c_void, count: $count, datatype: MPI_Datatype
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            let operation = Operation { writes: $writes, position: StartPosition::At($offset), collective: true };
            let memory = Memory { buffer, count: MPI_Count::from(count), datatype };
            // SAFETY: the arguments are those of the caller.
            unsafe { begin(stringify!($public), file, &known, operation, memory) }
        } }
    )*};
    ($($public:ident $profiling:ident $count:ty, $position:ident, $writes:literal;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, buffer: *mut c_void, count: $count, datatype: MPI_Datatype
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            let operation = Operation { writes: $writes, position: StartPosition::$position, collective: true };
            let memory = Memory { buffer, count: MPI_Count::from(count), datatype };
            // SAFETY: the arguments are those of the caller.
            unsafe { begin(stringify!($public), file, &known, operation, memory) }
        } }
    )*};
}

begin! {
    MPI_File_read_at_all_begin PMPI_File_read_at_all_begin c_int, at offset, false;
    MPI_File_read_at_all_begin_c PMPI_File_read_at_all_begin_c MPI_Count, at offset, false;
    MPI_File_write_at_all_begin PMPI_File_write_at_all_begin c_int, at offset, true;
    MPI_File_write_at_all_begin_c PMPI_File_write_at_all_begin_c MPI_Count, at offset, true;
}

begin! {
    MPI_File_read_all_begin PMPI_File_read_all_begin c_int, Individual, false;
    MPI_File_read_all_begin_c PMPI_File_read_all_begin_c MPI_Count, Individual, false;
    MPI_File_read_ordered_begin PMPI_File_read_ordered_begin c_int, Shared, false;
    MPI_File_read_ordered_begin_c PMPI_File_read_ordered_begin_c MPI_Count, Shared, false;
    MPI_File_write_all_begin PMPI_File_write_all_begin c_int, Individual, true;
    MPI_File_write_all_begin_c PMPI_File_write_all_begin_c MPI_Count, Individual, true;
    MPI_File_write_ordered_begin PMPI_File_write_ordered_begin c_int, Shared, true;
    MPI_File_write_ordered_begin_c PMPI_File_write_ordered_begin_c MPI_Count, Shared, true;
}

macro_rules! end {
    ($($public:ident $profiling:ident;)*) => {$(
        function! { $public $profiling (
            file: MPI_File, buffer: *mut c_void, status: *mut MPI_Status
        ) next if table::may_be_atomic(file) => {
            let Some(known) = table::atomic(file) else { return next() };
            // Not held while the program's error handler runs.
            let kept = hold(&known.split).take();
            match kept {
                Some(KeptStatus(done)) => {
                    // SAFETY: the status is the caller's.
                    unsafe { mpi::give(done, status) };
                    mpi::success()
                }
                None => {
                    let sentence = "no split collective operation of this file has begun".to_owned();
                    Failure::Own(sentence).report(file, stringify!($public))
                }
            }
        } }
    )*};
}

end! {
    MPI_File_read_all_end PMPI_File_read_all_end;
    MPI_File_read_at_all_end PMPI_File_read_at_all_end;
    MPI_File_read_ordered_end PMPI_File_read_ordered_end;
    MPI_File_write_all_end PMPI_File_write_all_end;
    MPI_File_write_at_all_end PMPI_File_write_at_all_end;
    MPI_File_write_ordered_end PMPI_File_write_ordered_end;
}

function! { MPI_File_open PMPI_File_open (
    communicator: MPI_Comm, name: *const c_char, amode: c_int, info: MPI_Info, file: *mut MPI_File
) next => {
    // Programs that initialize MPI by its sessions come here first.
    start::begin();
    let is_atomic = mode::is_initial().unwrap_or(true);
    // If the mode cannot be set, the file is closed again, and has to stay.
    let code = if is_atomic && Mode::of(amode).is_deleted_on_close {
        // SAFETY: the arguments are those of the caller.
        unsafe { mpi::open(communicator, name, mpi::deleted_on_close(amode, false), info, file) }
    } else {
        next()
    };
    if code != mpi::success() {
        return code;
    }
    // SAFETY: the name ends with a zero, and the file was opened, says MPI.
    let (name, file) = unsafe { (CStr::from_ptr(name), &mut *file) };
    let open = table::opened(*file, name, Mode::of(amode), communicator, info);
    if !is_atomic {
        return code;
    }
    mode::set("MPI_File_open", *file, &open, true).unwrap_or_else(|failure| {
        let code = failure.code();
        failure.said("MPI_File_open");
        // A program that is told of an error has no file.
        if let Some(party) = table::closed(*file) {
            if party.rank == 0 {
                open.unmake();
            }
            party.leave();
        }
        mpi::close(file);
        code
    })
} }

function! { MPI_File_close PMPI_File_close (file: *mut MPI_File) next => {
    // SAFETY: the pointer is one to a file, says MPI.
    let handle = unsafe { *file };
    let deleted = table::find(handle).filter(|open| open.is_deleted_here());
    let party = table::closed(handle);
    let code = next();
    let Some(party) = party else { return code };
    // It is gone for all when they return.
    let result = deleted.map_or(Ok(()), |open| {
        let result = if party.rank == 0 { open.delete() } else { Ok(()) };
        result.and(party.meet())
    });
    party.leave();
    match result {
        Err(failure) if code == mpi::success() => {
            let code = failure.code();
            failure.said("MPI_File_close");
            code
        }
        _ => code,
    }
} }

function! { MPI_File_get_amode PMPI_File_get_amode (file: MPI_File, amode: *mut c_int) next => {
    let code = next();
    if code == mpi::success() && table::find(file).is_some_and(|open| open.is_deleted_here()) {
        // SAFETY: the pointer is one to a mode, says MPI, which has just been written.
        unsafe { *amode = mpi::deleted_on_close(*amode, true) };
    }
    code
} }

function! { MPI_File_set_view PMPI_File_set_view (
    file: MPI_File, displacement: MPI_Offset, etype: MPI_Datatype, filetype: MPI_Datatype,
    representation: *const c_char, info: MPI_Info
) next => {
    let Some(open) = table::find(file) else { return next() };
    let code = next();
    if let Some(atomic) = open.atomic() {
        *hold(&atomic.view) = None;
        if code == mpi::success() {
            *hold(&atomic.pointer) = 0;
        }
    }
    if code != mpi::success() {
        return code;
    }
    let taken = hint::take_in("MPI_File_set_view", &open, info);
    taken.map_or_else(|failure| failure.report(file, "MPI_File_set_view"), |()| code)
} }

function! { MPI_File_set_info PMPI_File_set_info (file: MPI_File, info: MPI_Info) next => {
    let Some(open) = table::find(file) else { return next() };
    let code = next();
    if code != mpi::success() {
        return code;
    }
    let taken = hint::take_in("MPI_File_set_info", &open, info);
    taken.map_or_else(|failure| failure.report(file, "MPI_File_set_info"), |()| code)
} }

function! { MPI_File_get_info PMPI_File_get_info (file: MPI_File, info: *mut MPI_Info) next => {
    let Some(open) = table::find(file) else { return next() };
    let code = next();
    if code != mpi::success() {
        return code;
    }
    // SAFETY: the pointer is one to an info object, says MPI, which has just been written.
    match hint::report(&open, unsafe { &mut *info }) {
        Ok(()) => code,
        Err(error) => Failure::NotReported(error).report(file, "MPI_File_get_info"),
    }
} }

function! { MPI_File_seek PMPI_File_seek (
    file: MPI_File, offset: MPI_Offset, whence: c_int
) next if table::may_be_atomic(file) => {
    let Some(known) = table::atomic(file) else { return next() };
    atomic::seek(file, &known, offset, Whence::of(whence), next)
        .unwrap_or_else(|failure| failure.report(file, "MPI_File_seek"))
} }

function! { MPI_File_get_position PMPI_File_get_position (
    file: MPI_File, offset: *mut MPI_Offset
) next if table::may_be_atomic(file) => {
    let Some(known) = table::atomic(file) else { return next() };
    if known.mode.is_sequential {
        return next();
    }
    // SAFETY: the pointer is one to an offset, says MPI.
    unsafe { *offset = *hold(&known.pointer) };
    mpi::success()
} }

function! { MPI_File_set_atomicity PMPI_File_set_atomicity (file: MPI_File, flag: c_int) next => {
    // The MPI library's own atomic mode stays off: it would lock everything from the first to the last byte, or do nothing.
    let Some(open) = table::find(file) else { return next() };
    match mode::set("MPI_File_set_atomicity", file, &open, flag != 0) {
        Ok(code) => code,
        Err(failure) => failure.report(file, "MPI_File_set_atomicity"),
    }
} }

function! { MPI_File_get_atomicity PMPI_File_get_atomicity (
    file: MPI_File, flag: *mut c_int
) next if table::may_be_atomic(file) => {
    if table::atomic(file).is_none() {
        return next();
    }
    // SAFETY: the pointer is one to a flag, says MPI.
    unsafe { *flag = 1 };
    mpi::success()
} }

/// Makes a change of a whole file, such as one of its size.
fn whole_file(call: &str, file: MPI_File, next: impl FnOnce() -> c_int) -> c_int {
    match table::atomic(file) {
        None => next(),
        Some(known) => atomic::whole_file(&known, next).unwrap_or_else(|failure| failure.report(file, call)),
    }
}

function! { MPI_File_set_size PMPI_File_set_size (
    file: MPI_File, size: MPI_Offset
) next if table::may_be_atomic(file) => {
    whole_file("MPI_File_set_size", file, next)
} }

// MPI libraries pass over files to which they have written nothing themselves.
function! { MPI_File_sync PMPI_File_sync (file: MPI_File) next => {
    let flushed = table::find(file).map_or(Ok(()), |open| open.flush());
    // Also after an error, because the others wait for this process.
    let code = next();
    match flushed {
        Ok(()) => code,
        Err(failure) => failure.report(file, "MPI_File_sync"),
    }
} }

function! { MPI_File_preallocate PMPI_File_preallocate (
    file: MPI_File, size: MPI_Offset
) next if table::may_be_atomic(file) => {
    whole_file("MPI_File_preallocate", file, next)
} }

/// Returns the requests of an array.
///
/// # Safety
///
/// The array has this many requests.
unsafe fn requests<'a>(count: c_int, first: *const MPI_Request) -> &'a [MPI_Request] {
    match usize::try_from(count) {
        Ok(count) if !first.is_null() => {
            // SAFETY: as the caller says.
            unsafe { std::slice::from_raw_parts(first, count) }
        }
        _ => &[],
    }
}

function! { MPI_Wait PMPI_Wait (
    request: *mut MPI_Request, status: *mut MPI_Status
) next if request::is_any_pending() => {
    // SAFETY: it is one request, says MPI.
    request::wait_for_all(unsafe { requests(1, request) });
    next()
} }

function! { MPI_Waitall PMPI_Waitall (
    count: c_int, first: *mut MPI_Request, statuses: *mut MPI_Status
) next if request::is_any_pending() => {
    // SAFETY: MPI says that there are this many requests.
    request::wait_for_all(unsafe { requests(count, first) });
    next()
} }

function! { MPI_Waitany PMPI_Waitany (
    count: c_int, first: *mut MPI_Request, index: *mut c_int, status: *mut MPI_Status
) next if request::is_any_pending() => {
    // SAFETY: as above.
    request::wait_for_any(unsafe { requests(count, first) });
    next()
} }

function! { MPI_Waitsome PMPI_Waitsome (
    count: c_int, first: *mut MPI_Request, completed: *mut c_int, indices: *mut c_int, statuses: *mut MPI_Status
) next if request::is_any_pending() => {
    // SAFETY: as above.
    request::wait_for_any(unsafe { requests(count, first) });
    next()
} }

/// Has requests whose accesses are done found complete by a test.
fn testing(next: impl FnOnce() -> c_int) -> c_int {
    request::complete_done();
    next()
}

function! { MPI_Test PMPI_Test (
    request: *mut MPI_Request, flag: *mut c_int, status: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Testall PMPI_Testall (
    count: c_int, first: *mut MPI_Request, flag: *mut c_int, statuses: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Testany PMPI_Testany (
    count: c_int, first: *mut MPI_Request, index: *mut c_int, flag: *mut c_int, status: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Testsome PMPI_Testsome (
    count: c_int, first: *mut MPI_Request, completed: *mut c_int, indices: *mut c_int, statuses: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Request_get_status PMPI_Request_get_status (
    request: MPI_Request, flag: *mut c_int, status: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

// Of MPI 4.1; older libraries do not have them.
function! { MPI_Request_get_status_all PMPI_Request_get_status_all (
    count: c_int, first: *const MPI_Request, flag: *mut c_int, statuses: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Request_get_status_any PMPI_Request_get_status_any (
    count: c_int, first: *const MPI_Request, index: *mut c_int, flag: *mut c_int, status: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Request_get_status_some PMPI_Request_get_status_some (
    count: c_int, first: *const MPI_Request, completed: *mut c_int, indices: *mut c_int, statuses: *mut MPI_Status
) next if request::is_any_pending() => {
    testing(next)
} }

function! { MPI_Init PMPI_Init (count: *mut c_int, arguments: *mut *mut *mut c_char) next => {
    start::begin();
    next()
} }

function! { MPI_Init_thread PMPI_Init_thread (
    count: *mut c_int, arguments: *mut *mut *mut c_char, required: c_int, provided: *mut c_int
) next => {
    start::begin();
    next()
} }

function! { MPI_Finalize PMPI_Finalize () next => {
    // Of programs that have freed requests and not waited.
    request::finish_all();
    session::end();
    next()
} }
