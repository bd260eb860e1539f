//! The one place with `unsafe`: librados, found at run time, behind a small asynchronous interface.
//!
//! librados runs an operation in threads of its own and calls back when it is done; the callback wakes the future that
//! waits, and no thread of ours ever blocks for an operation. The memory that librados writes into lives in an
//! [`InFlight`], which the callback and the future own together: dropping the future neither cancels the operation nor
//! frees what librados still holds a pointer to.
//!
//! Invariants: librados writes into the slots of an operation only before its callback runs; we look at them only
//! after it ran, which the mutex around `done` orders. A pool is closed only when no operation is under way, but for those
//! of [`watch`] that no time-out ends: whoever closes a pool does not wait for them, they never call back afterwards, and what
//! they may use of librados until then stays allocated.

mod step;
mod watch;

use std::cell::{Cell, UnsafeCell};
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uchar, c_uint, c_void};
use std::future::Future;
use std::pin::Pin;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};

pub(crate) use self::step::{Answer, ReadStep, WriteStep};
use self::step::{Slot, copied};
pub(crate) use self::watch::{Acknowledger, Signal, Signals, WatchHandle};

type Raw = *mut c_void;
type Callback = extern "C" fn(Raw, Raw);
/// The callback of a watch for a notification: the watch's argument, the ids of notification, watch and notifier, the payload
/// and its length.
type NotifyCallback = extern "C" fn(Raw, u64, u64, u64, Raw, usize);
/// The callback of a watch for an error: the watch's argument, the id of the watch, the error.
type ErrorCallback = extern "C" fn(Raw, u64, c_int);

macro_rules! library {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of librados that are used here.
        pub(crate) struct Library {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The library, kept so that the functions stay in place.
            _library: libloading::Library,
        }

        impl Library {
            fn bind(library: libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of librados.h, the same since Ceph 14 for all of these functions, and
                // the functions are used only while `_library` is alive.
                unsafe {
                    Ok(Self {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

library! {
    rados_version: fn(*mut c_int, *mut c_int, *mut c_int);
    rados_create2: fn(*mut Raw, *const c_char, *const c_char, u64) -> c_int;
    rados_conf_read_file: fn(Raw, *const c_char) -> c_int;
    rados_conf_set: fn(Raw, *const c_char, *const c_char) -> c_int;
    rados_conf_get: fn(Raw, *const c_char, *mut c_char, usize) -> c_int;
    rados_connect: fn(Raw) -> c_int;
    rados_shutdown: fn(Raw);
    rados_cluster_fsid: fn(Raw, *mut c_char, usize) -> c_int;
    rados_getaddrs: fn(Raw, *mut *mut c_char) -> c_int;
    rados_ioctx_create: fn(Raw, *const c_char, *mut Raw) -> c_int;
    rados_ioctx_set_namespace: fn(Raw, *const c_char);
    rados_ioctx_get_pool_name: fn(Raw, *mut c_char, c_uint) -> c_int;
    rados_ioctx_destroy: fn(Raw);
    rados_nobjects_list_open: fn(Raw, *mut Raw) -> c_int;
    rados_nobjects_list_next: fn(Raw, *mut *const c_char, *mut *const c_char, *mut *const c_char) -> c_int;
    rados_nobjects_list_close: fn(Raw);
    rados_aio_create_completion2: fn(Raw, Callback, *mut Raw) -> c_int;
    rados_aio_release: fn(Raw);
    rados_aio_get_return_value: fn(Raw) -> c_int;
    rados_aio_get_version: fn(Raw) -> u64;
    rados_create_write_op: fn() -> Raw;
    rados_release_write_op: fn(Raw);
    rados_write_op_create: fn(Raw, c_int, *const c_char);
    rados_write_op_assert_version: fn(Raw, u64);
    rados_write_op_cmpxattr: fn(Raw, *const c_char, u8, *const c_char, usize);
    rados_write_op_setxattr: fn(Raw, *const c_char, *const c_char, usize);
    rados_write_op_write: fn(Raw, *const c_char, usize, u64);
    rados_write_op_write_full: fn(Raw, *const c_char, usize);
    rados_write_op_append: fn(Raw, *const c_char, usize);
    rados_write_op_zero: fn(Raw, u64, u64);
    rados_write_op_remove: fn(Raw);
    rados_write_op_omap_clear: fn(Raw);
    rados_write_op_omap_cmp2: fn(Raw, *const c_char, u8, *const c_char, usize, usize, *mut c_int);
    rados_write_op_omap_rm_keys2: fn(Raw, *const *const c_char, *const usize, usize);
    rados_write_op_omap_set2: fn(Raw, *const *const c_char, *const *const c_char, *const usize, *const usize, usize);
    rados_aio_write_op_operate: fn(Raw, Raw, Raw, *const c_char, Raw, c_int) -> c_int;
    rados_create_read_op: fn() -> Raw;
    rados_release_read_op: fn(Raw);
    rados_read_op_assert_version: fn(Raw, u64);
    rados_read_op_cmpxattr: fn(Raw, *const c_char, u8, *const c_char, usize);
    rados_read_op_stat: fn(Raw, *mut u64, *mut c_long, *mut c_int);
    rados_read_op_getxattrs: fn(Raw, *mut Raw, *mut c_int);
    rados_getxattrs_next: fn(Raw, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    rados_getxattrs_end: fn(Raw);
    rados_read_op_read: fn(Raw, u64, usize, *mut c_char, *mut usize, *mut c_int);
    rados_read_op_exec: fn(Raw, *const c_char, *const c_char, *const c_char, usize, *mut *mut c_char, *mut usize, *mut c_int);
    rados_read_op_omap_get_vals2: fn(Raw, *const c_char, *const c_char, u64, *mut Raw, *mut c_uchar, *mut c_int);
    rados_read_op_omap_get_vals_by_keys2: fn(Raw, *const *const c_char, usize, *const usize, *mut Raw, *mut c_int);
    rados_omap_get_next2: fn(Raw, *mut *mut c_char, *mut *mut c_char, *mut usize, *mut usize) -> c_int;
    rados_omap_get_end: fn(Raw);
    rados_aio_read_op_operate: fn(Raw, Raw, Raw, *const c_char, c_int) -> c_int;
    rados_buffer_free: fn(*mut c_char);
    rados_aio_watch2: fn(Raw, *const c_char, Raw, *mut u64, NotifyCallback, ErrorCallback, u32, Raw) -> c_int;
    rados_aio_unwatch: fn(Raw, u64, Raw) -> c_int;
    rados_watch_check: fn(Raw, u64) -> c_int;
    rados_aio_notify: fn(Raw, *const c_char, Raw, *const c_char, c_int, u64, *mut *mut c_char, *mut usize) -> c_int;
    rados_notify_ack: fn(Raw, *const c_char, u64, u64, *const c_char, c_int) -> c_int;
}

/// Flags of an operation, as in librados.h.
pub(crate) mod flag {
    use std::ffi::c_int;
    /// Fails instead of waiting where the pool or the cluster is full.
    pub(crate) const FULL_TRY: c_int = 64;
    /// Goes on all the same where the pool or the cluster is full.
    pub(crate) const FULL_FORCE: c_int = 128;
    /// Returns the output of a call that changed the object.
    pub(crate) const RETURNVEC: c_int = 1024;
}

impl Library {
    /// Returns librados, loaded when it is first needed. The error is the loader's sentence.
    pub(crate) fn get() -> Result<&'static Library, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let loaded = LIBRARY.get_or_init(|| {
            // SAFETY: librados' initialisers are those of an ordinary shared library; nothing else is run.
            let library = unsafe { libloading::Library::new("librados.so.2") };
            library.and_then(Library::bind).map_err(|error| error.to_string())
        });
        loaded.as_ref().map_err(Clone::clone)
    }
}

impl Library {
    /// Returns the version of the interface: it changes when what a program relies on does.
    fn interface(&self) -> c_int {
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: librados writes three numbers.
        unsafe { (self.rados_version)(&mut major, &mut minor, &mut extra) };
        major
    }
}

thread_local! {
    /// True if this thread is one of librados', in the midst of a callback.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether this is one of librados' threads, in the midst of a callback: it must not wait for anything.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

/// The parameters of a connection.
pub(crate) struct Connection<'a> {
    /// The user, without `client.`.
    pub(crate) id: &'a CStr,
    /// The configuration file; Ceph's own search path where there is none.
    pub(crate) conf: Option<&'a CStr>,
    /// Settings that override the file's.
    pub(crate) settings: &'a [(CString, CString)],
    pub(crate) pool: &'a CStr,
    pub(crate) namespace: &'a CStr,
}

/// The step of connecting that failed; the code beside it is a negative errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Create,
    Conf,
    Setting,
    Connect,
    Pool,
}

/// A pool of a cluster, connected. Closed when the last copy is gone, once its operations are over.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Connected>);

/// A pool that whoever has this does not keep open.
pub(crate) struct WeakPool(Weak<Connected>);

impl WeakPool {
    /// Returns the pool, unless it is closed or is being closed.
    pub(crate) fn upgrade(&self) -> Option<Pool> {
        self.0.upgrade().map(Pool)
    }
}

struct Connected {
    library: &'static Library,
    cluster: Raw,
    io: Raw,
    under_way: Arc<UnderWay>,
}

/// A count of the operations whose callbacks have not run to their end.
#[derive(Default)]
struct UnderWay {
    count: Mutex<usize>,
    none: Condvar,
    /// The number of those that have no time-out, beside the others.
    endless: AtomicUsize,
}

/// The kind of an operation: whether closing the pool waits for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Timed,
    Endless,
}

impl UnderWay {
    fn begin(&self, kind: Kind) {
        match kind {
            Kind::Timed => *self.count.lock() += 1,
            Kind::Endless => {
                self.endless.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    fn end(&self, kind: Kind) {
        if kind == Kind::Endless {
            self.endless.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    fn wait_for_none(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

// SAFETY: librados' handles may be used by any number of threads at once, as librados.h says.
unsafe impl Send for Connected {}
// SAFETY: as above.
unsafe impl Sync for Connected {}

impl Drop for Connected {
    fn drop(&mut self) {
        let (library, cluster, io) = (self.library, self.cluster as usize, self.io as usize);
        let under_way = Arc::clone(&self.under_way);
        let close = move || {
            // Operations that nobody waits for any more are over when they are answered or time out.
            under_way.wait_for_none();
            // An operation without a time-out may be answered until the connection is shut down, and librados uses the
            // handle of the pool for that. It is then left as it is.
            let idle = under_way.endless.load(Ordering::Acquire) == 0;
            // SAFETY: this was the last owner and no operation is under way, so nobody uses the handles again.
            unsafe {
                if io != 0 && idle {
                    (library.rados_ioctx_destroy)(io as Raw);
                }
                (library.rados_shutdown)(cluster as Raw);
            }
        };
        if IN_CALLBACK.get() {
            // Shutting down waits for librados' threads, of which this is one. Where no thread is to be had, the connection
            // stays open until the process ends.
            if let Err(error) = std::thread::Builder::new().spawn(close) {
                tracing::warn!("cannot start a thread to close a connection to Ceph: {error}");
            }
        } else {
            close();
        }
    }
}

impl Pool {
    /// Connects to a pool. Blocks until the monitors answered or `client_mount_timeout` passed.
    pub(crate) fn connect(connection: &Connection<'_>) -> Result<Pool, (Step, c_int)> {
        let library = Library::get().map_err(|_| (Step::Create, 0))?;
        let mut cluster = ptr::null_mut();
        let name = [b"client.", connection.id.to_bytes_with_nul()].concat();
        // SAFETY: all strings end in a zero byte and outlive the calls; the handle is used only if the call made one.
        unsafe {
            let code = (library.rados_create2)(&mut cluster, c"ceph".as_ptr(), name.as_ptr().cast(), 0);
            if code < 0 {
                return Err((Step::Create, code));
            }
            // From here on, dropping it closes it.
            let mut connected =
                Connected { library, cluster, io: ptr::null_mut(), under_way: Arc::default() };
            let conf = connection.conf.map_or(ptr::null(), CStr::as_ptr);
            let code = (library.rados_conf_read_file)(cluster, conf);
            if code < 0 {
                return Err((Step::Conf, code));
            }
            for (name, value) in connection.settings {
                let code = (library.rados_conf_set)(cluster, name.as_ptr(), value.as_ptr());
                if code < 0 {
                    return Err((Step::Setting, code));
                }
            }
            let code = (library.rados_connect)(cluster);
            if code < 0 {
                return Err((Step::Connect, code));
            }
            let code = (library.rados_ioctx_create)(cluster, connection.pool.as_ptr(), &mut connected.io);
            if code < 0 {
                connected.io = ptr::null_mut();
                return Err((Step::Pool, code));
            }
            (library.rados_ioctx_set_namespace)(connected.io, connection.namespace.as_ptr());
            Ok(Pool(Arc::new(connected)))
        }
    }

    /// Returns the pool as one that is not kept open.
    pub(crate) fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.0))
    }

    /// Returns the cluster's identity.
    pub(crate) fn fsid(&self) -> String {
        let mut buffer = [0_u8; 64];
        // SAFETY: the buffer is as long as we say.
        let length = unsafe {
            (self.0.library.rados_cluster_fsid)(self.0.cluster, buffer.as_mut_ptr().cast(), buffer.len())
        };
        String::from_utf8_lossy(&buffer[..usize::try_from(length).unwrap_or(0).min(64)]).into_owned()
    }

    /// Returns the address by which the cluster knows this client, as in a blocklist.
    pub(crate) fn address(&self) -> String {
        let mut text = ptr::null_mut();
        // SAFETY: librados makes the text, and it is ours to free.
        unsafe {
            if (self.0.library.rados_getaddrs)(self.0.cluster, &mut text) < 0 || text.is_null() {
                return String::new();
            }
            let address = CStr::from_ptr(text).to_string_lossy().into_owned();
            (self.0.library.rados_buffer_free)(text);
            address
        }
    }

    /// Returns a numeric setting of this client; `None` if it is not set to a number.
    pub(crate) fn setting(&self, name: &CStr) -> Option<u64> {
        let mut value = [0_u8; 64];
        // SAFETY: the buffer is as long as we say.
        let code = unsafe {
            let (buffer, length) = (value.as_mut_ptr().cast(), value.len());
            (self.0.library.rados_conf_get)(self.0.cluster, name.as_ptr(), buffer, length)
        };
        if code < 0 {
            return None;
        }
        CStr::from_bytes_until_nul(&value).ok()?.to_str().ok()?.parse().ok()
    }

    /// Returns whether the pool exists, as far as this client knows. It knows better once an operation came back with
    /// ENOENT, because librados asks the monitors before it says that of a pool.
    pub(crate) fn exists(&self) -> bool {
        const NO_ENTRY: c_int = -2;
        let mut name = [0_u8; 1024];
        // SAFETY: the buffer is as long as we say.
        let code = unsafe {
            let (buffer, length) = (name.as_mut_ptr().cast(), name.len() as c_uint);
            (self.0.library.rados_ioctx_get_pool_name)(self.0.io, buffer, length)
        };
        code != NO_ENTRY
    }

    /// Calls `visit` with the name of every object of the pool's namespace, in no order. Blocks.
    pub(crate) fn each_name(&self, mut visit: impl FnMut(&[u8])) -> Result<(), c_int> {
        const NO_MORE: c_int = -2;
        let library = self.0.library;
        let mut list = ptr::null_mut();
        // SAFETY: the names that librados hands out live until the next call for the list, which is closed once.
        unsafe {
            let code = (library.rados_nobjects_list_open)(self.0.io, &mut list);
            if code < 0 {
                return Err(code);
            }
            let result = loop {
                let (mut name, mut locator, mut namespace) = (ptr::null(), ptr::null(), ptr::null());
                match (library.rados_nobjects_list_next)(list, &mut name, &mut locator, &mut namespace) {
                    NO_MORE => break Ok(()),
                    code if code < 0 => break Err(code),
                    _ => visit(CStr::from_ptr(name).to_bytes()),
                }
            };
            (library.rados_nobjects_list_close)(list);
            result
        }
    }

    /// Starts a read, or a call of a class.
    pub(crate) fn read(&self, object: &CStr, steps: &[ReadStep<'_>], flags: c_int) -> Operation {
        let library = self.0.library;
        let slots = steps.iter().map(Slot::of).collect();
        self.start(slots, |slots, completion| {
            // SAFETY: librados copies all input before each call returns. The slots stay where they are until the
            // callback ran, because the completion's argument owns them.
            unsafe {
                let op = (library.rados_create_read_op)();
                for (step, slot) in steps.iter().zip(slots) {
                    step.add(library, op, slot);
                }
                let code =
                    (library.rados_aio_read_op_operate)(op, self.0.io, completion, object.as_ptr(), flags);
                (library.rados_release_read_op)(op);
                code
            }
        })
    }

    /// Starts a call of a class's method that may change the object; its output is that of a read operation's call.
    ///
    /// A call that is sent as a read operation would leave the object with the time of 1970, because librados sends no
    /// time with it. A write operation has the time, but librados.h has no function that adds a call *with output* to
    /// one. Those for read operations do it, because librados makes both kinds of operation of the same class, or of
    /// one that begins with it; that is relied on only for version 3 of librados' interface, of which it is known.
    pub(crate) fn call(&self, object: &CStr, step: &ReadStep<'_>, flags: c_int) -> Operation {
        let library = self.0.library;
        if library.interface() != 3 {
            return self.read(object, std::slice::from_ref(step), flags);
        }
        self.start(vec![Slot::of(step)], |slots, completion| {
            // SAFETY: as for a read operation; and in version 3 of the interface, a write operation is one too.
            unsafe {
                let op = (library.rados_create_write_op)();
                for slot in slots {
                    step.add(library, op, slot);
                }
                let (io, time) = (self.0.io, ptr::null_mut());
                let code =
                    (library.rados_aio_write_op_operate)(op, io, completion, object.as_ptr(), time, flags);
                (library.rados_release_write_op)(op);
                code
            }
        })
    }

    /// Starts a write.
    pub(crate) fn write(&self, object: &CStr, steps: &[WriteStep<'_>], flags: c_int) -> Operation {
        let library = self.0.library;
        self.start(Vec::new(), |_, completion| {
            // SAFETY: librados copies all input before each call returns.
            unsafe {
                let op = (library.rados_create_write_op)();
                for step in steps {
                    step.add(library, op);
                }
                let (io, time) = (self.0.io, ptr::null_mut());
                let code =
                    (library.rados_aio_write_op_operate)(op, io, completion, object.as_ptr(), time, flags);
                (library.rados_release_write_op)(op);
                code
            }
        })
    }

    fn start(&self, slots: Vec<Slot>, submit: impl FnOnce(&mut [Slot], Raw) -> c_int) -> Operation {
        self.submit(Kind::Timed, slots, submit)
    }

    fn submit(
        &self,
        kind: Kind,
        slots: Vec<Slot>,
        submit: impl FnOnce(&mut [Slot], Raw) -> c_int,
    ) -> Operation {
        let library = self.0.library;
        let in_flight = Arc::new(InFlight {
            library,
            under_way: Arc::clone(&self.0.under_way),
            kind,
            slots: UnsafeCell::new(slots.into_boxed_slice()),
            state: Mutex::new(State { done: None, waker: None }),
        });
        in_flight.under_way.begin(kind);
        let argument = Arc::into_raw(Arc::clone(&in_flight)).cast_mut();
        let mut completion = ptr::null_mut();
        // SAFETY: the callback takes over the count that `argument` stands for. The slots are not looked at by
        // anybody else before it ran. Releasing the completion only drops our interest in it.
        let code = unsafe {
            let code = (library.rados_aio_create_completion2)(argument.cast(), completed, &mut completion);
            if code < 0 {
                code
            } else {
                let slots = &mut *in_flight.slots.get();
                let code = submit(slots, completion);
                (library.rados_aio_release)(completion);
                code
            }
        };
        if code < 0 {
            // SAFETY: an operation that was not started never calls back.
            drop(unsafe { Arc::from_raw(argument.cast_const()) });
            in_flight.state.lock().done = Some((code, 0));
            in_flight.under_way.end(kind);
        }
        Operation { in_flight, _pool: Some(self.clone()) }
    }
}

/// An operation that is over.
pub(crate) struct Completed {
    /// 0 or more, or a negative errno.
    pub(crate) code: c_int,
    /// RADOS' own version of the object.
    pub(crate) version: u64,
    /// The answers, one for each step of a read operation.
    pub(crate) answers: Vec<Answer>,
}

/// An operation under way; a future.
pub(crate) struct Operation {
    in_flight: Arc<InFlight>,
    /// The pool. The waiter for an operation keeps it; the callback must not, or it could be the last to release it. `None` where the
    /// waiter is run by the callback: the pool is closed no earlier than that has ended, whoever keeps it.
    _pool: Option<Pool>,
}

impl Operation {
    /// Lets go of the pool, for a waiter that is run by the callback.
    pub(crate) fn without_pool(self) -> Self {
        Self { _pool: None, ..self }
    }
}

struct InFlight {
    library: &'static Library,
    under_way: Arc<UnderWay>,
    kind: Kind,
    slots: UnsafeCell<Box<[Slot]>>,
    state: Mutex<State>,
}

struct State {
    /// The operation's result and RADOS' version, once it is over.
    done: Option<(c_int, u64)>,
    waker: Option<Waker>,
}

// SAFETY: the slots, the only part that is not so by itself, are handed from librados' thread to ours by the mutex.
unsafe impl Send for InFlight {}
// SAFETY: as above.
unsafe impl Sync for InFlight {}

impl Drop for InFlight {
    fn drop(&mut self) {
        for slot in self.slots.get_mut() {
            // SAFETY: the callback, the last to hold librados' share, is over, or the operation was never started.
            unsafe { slot.take(self.library) };
        }
    }
}

impl Future for Operation {
    type Output = Completed;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completed> {
        let mut state = self.in_flight.state.lock();
        let Some((code, version)) = state.done else {
            if !state.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                state.waker = Some(context.waker().clone());
            }
            return Poll::Pending;
        };
        // SAFETY: the operation is over, so librados has no use for the slots any more; the lock is held, so no other
        // caller has one.
        let answers = unsafe {
            let slots = &mut *self.in_flight.slots.get();
            slots.iter_mut().map(|slot| slot.take(self.in_flight.library)).collect()
        };
        Poll::Ready(Completed { code, version, answers })
    }
}

extern "C" fn completed(completion: Raw, argument: Raw) {
    // SAFETY: the argument is the count of the `InFlight` that `Pool::start` gave away, and this is called once.
    let in_flight = unsafe { Arc::from_raw(argument.cast_const().cast::<InFlight>()) };
    let library = in_flight.library;
    // SAFETY: librados keeps the completion alive while it calls back.
    let done = unsafe {
        ((library.rados_aio_get_return_value)(completion), (library.rados_aio_get_version)(completion))
    };
    IN_CALLBACK.set(true);
    let waker = {
        let mut state = in_flight.state.lock();
        state.done = Some(done);
        state.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
    let (under_way, kind) = (Arc::clone(&in_flight.under_way), in_flight.kind);
    drop(in_flight);
    IN_CALLBACK.set(false);
    // The last thing done: from here on, the pool may be closed.
    under_way.end(kind);
}
