//! The watchdog of this process: another process, which kills this one before its lease on locked bytes is over.
//!
//! A process that is stopped between the check of its lock and its write still writes when it continues, and a file accepts the write. So
//! it is to be killed before the servers grant its bytes to others. Both processes have a file in memory, with the time at which that is
//! due: a margin before the end of the lease while this process holds bytes, and never while it holds none. A process that does not get
//! to renew its lease does not get to put that time off either.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use nacre::Error;
use nacre::lock::BlockingLock;
use nacre_quantity::Escaped;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::time::{ClockId, clock_gettime};

use crate::table::hold;

/// The environment variable that names the program of the watchdog, which is nacre. Without it there is none.
const PROGRAM_VARIABLE: &str = "NACRE_MPIIO_WATCHDOG";

/// The divisor of a lease: this part of it is left when the process is killed.
const MARGIN: u32 = 4;

/// The divisor of the margin: the watchdog waits for this part of it between two looks.
const PERIOD: u32 = 4;

/// The time that is never due.
const NEVER_NS: u64 = u64::MAX;

static WATCHDOG: OnceLock<&'static Watchdog> = OnceLock::new();

struct Watchdog {
    /// The file in memory that the watchdog reads: nanoseconds of the clock of leases.
    page: File,
    /// The time before the end of a lease at which this process is killed.
    margin: Duration,
    locks: Mutex<Locks>,
}

/// The locks that this process holds.
struct Locks {
    numbers: u64,
    held: BTreeMap<u64, Arc<BlockingLock>>,
    /// The time that the file tells.
    due_ns: u64,
}

/// Returns the program of the watchdog, if the environment asks for one.
pub fn program() -> Option<OsString> {
    std::env::var_os(PROGRAM_VARIABLE).filter(|program| !program.is_empty())
}

/// Returns whether this process has a watchdog.
pub fn is_running() -> bool {
    WATCHDOG.get().is_some()
}

/// Starts the watchdog of this process. Its leases last so long.
pub fn start(program: &OsStr, lease: Duration) -> Result<(), String> {
    if is_running() {
        return Ok(());
    }
    let failed = |error: io::Error| format!("cannot start the watchdog {}: {error}", Escaped::of(program));
    let margin = lease / MARGIN;
    let period = margin / PERIOD;
    let page = spawn(program, period).map_err(failed)?;
    let locks = Mutex::new(Locks { numbers: 0, held: BTreeMap::new(), due_ns: NEVER_NS });
    // As long as the process.
    let watchdog: &'static Watchdog = Box::leak(Box::new(Watchdog { page, margin, locks }));
    let thread = std::thread::Builder::new().name("nacre-watchdog".to_owned());
    thread.spawn(move || watchdog.renew(period)).map_err(failed)?;
    WATCHDOG.get_or_init(|| watchdog);
    Ok(())
}

/// Starts the process, and returns the file that it reads.
fn spawn(program: &OsStr, period: Duration) -> io::Result<File> {
    let page = File::from(memfd_create("nacre-watchdog", MemfdFlags::CLOEXEC)?);
    page.write_all_at(&NEVER_NS.to_le_bytes(), 0)?;
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    let mut command = Command::new(program);
    command.arg("mpirun-watchdog").arg(std::process::id().to_string()).arg(period.as_millis().to_string());
    // Neither this library nor the program's settings are for it.
    command.env_clear().stdin(page.try_clone()?).stdout(this);
    // It starts another process and ends, so that the program has no child that it does not know of.
    match command.status() {
        Ok(status) if status.success() => Ok(page),
        Ok(status) => Err(io::Error::other(status.to_string())),
        // The program waits for all of its children, or for none.
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(page),
        Err(error) => Err(error),
    }
}

impl Watchdog {
    /// Puts the time off as leases are renewed.
    fn renew(&self, period: Duration) {
        loop {
            std::thread::sleep(period);
            // A time that stays as it was is due too early.
            let _ = self.publish(&mut hold(&self.locks));
        }
    }

    /// Tells the watchdog when this process is to be killed.
    fn publish(&self, locks: &mut Locks) -> io::Result<()> {
        // Earlier than what is left is counted from.
        let now = now();
        let left = locks.held.values().map(|lock| lock.lease_left()).min();
        let due = left.map(|left| now.saturating_add(left).saturating_sub(self.margin));
        let due_ns = due.map_or(NEVER_NS, |due| u64::try_from(due.as_nanos()).unwrap_or(NEVER_NS));
        if due_ns != locks.due_ns {
            self.page.write_all_at(&due_ns.to_le_bytes(), 0)?;
            locks.due_ns = due_ns;
        }
        Ok(())
    }

    /// Waits until more than the margin is left of a lock's lease.
    fn settle(&self, lock: &BlockingLock) -> Result<(), Error> {
        loop {
            lock.check()?;
            if lock.lease_left() > self.margin {
                return Ok(());
            }
            // It is being renewed, or is lost soon.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A lock that the watchdog knows of, until this is dropped. Nothing is written under the lock from then on.
pub struct Watched {
    watchdog: &'static Watchdog,
    number: u64,
}

/// Tells the watchdog, if there is one, of a lock that was acquired.
pub fn watch(lock: &Arc<BlockingLock>) -> Result<Option<Watched>, Error> {
    let Some(watchdog) = WATCHDOG.get().copied() else { return Ok(None) };
    watchdog.settle(lock)?;
    let mut locks = hold(&watchdog.locks);
    locks.numbers += 1;
    let number = locks.numbers;
    locks.held.insert(number, lock.clone());
    if let Err(error) = watchdog.publish(&mut locks) {
        locks.held.remove(&number);
        return Err(Error::new(nacre::ErrorKind::Io, format!("cannot reach the watchdog: {error}")));
    }
    Ok(Some(Watched { watchdog, number }))
}

impl Watched {
    /// Checks that the lock is held, and for so long that the watchdog would come before its end.
    pub fn check(&self, lock: &BlockingLock) -> Result<(), Error> {
        self.watchdog.settle(lock)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut locks = hold(&self.watchdog.locks);
        locks.held.remove(&self.number);
        let _ = self.watchdog.publish(&mut locks);
    }
}

/// Returns the time by the clock of leases, which goes on while the machine sleeps.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    // Neither is negative: the clock counts up from 0.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
