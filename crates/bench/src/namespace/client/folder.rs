//! The operations of clients that make system calls.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, fsync, openat, renameat, statat, unlinkat};

use super::{Orders, Progress, Work, content, listed, lost, name};
use crate::BenchError;

/// The clients that make system calls, each in a thread of its own, relative to its open directory.
pub(super) struct Folder {
    pub(super) directories: Vec<File>,
    pub(super) syncs: bool,
}

impl Folder {
    /// Does the work of one client.
    pub(super) fn go(
        &self,
        orders: &Orders,
        place: usize,
        made: u32,
        work: Work,
        begin: Instant,
    ) -> Result<Progress, BenchError> {
        let mut progress = Progress::new()?;
        for number in work.numbers(made) {
            if work.is_over(begin) {
                break;
            }
            let started = Instant::now();
            let entries = self.step(orders, place, made, work, number)?;
            progress.add(started.elapsed(), entries);
        }
        Ok(progress)
    }

    /// Does one operation, and returns the number of entries that were listed.
    fn step(
        &self,
        orders: &Orders,
        place: usize,
        made: u32,
        work: Work,
        number: u32,
    ) -> Result<u64, BenchError> {
        let directory = &self.directories[place];
        let (client, bytes) = (orders.first + place as u32, orders.file_bytes);
        match work {
            Work::Create { .. } => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                let name = name(client, number, false);
                let file =
                    openat(directory, &name, flags, Mode::from_raw_mode(0o644)).map_err(call("create"))?;
                if bytes > 0 {
                    let mut file = File::from(file);
                    file.write_all(&content(bytes, client, number))
                        .map_err(BenchError::io("write a file"))?;
                    if self.syncs {
                        fsync(&file).map_err(call("sync"))?;
                    }
                }
                self.sync(directory)?;
            }
            Work::Check { renamed } => {
                let name = name(client, number, renamed);
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                let file = openat(directory, &name, flags, Mode::empty()).map_err(call("open"))?;
                let mut read = Vec::new();
                File::from(file).read_to_end(&mut read).map_err(BenchError::io("read a file"))?;
                if read != content(bytes, client, number) {
                    return Err(lost(&name, "holds something else than was written"));
                }
            }
            Work::Stat => {
                let name = name(client, number, false);
                let found = statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW).map_err(call("stat"))?;
                if found.st_size as u64 != u64::from(bytes) {
                    return Err(lost(&name, "has another size"));
                }
            }
            Work::Rename => {
                let (old, new) = (name(client, number, false), name(client, number, true));
                renameat(directory, &old, directory, &new).map_err(call("rename"))?;
                self.sync(directory)?;
            }
            Work::List { entries, .. } => {
                let mut found = 0;
                for entry in Dir::read_from(directory).map_err(call("list"))? {
                    let entry = entry.map_err(call("list"))?;
                    let is_own = matches!(entry.file_name().to_bytes(), b"." | b"..");
                    found += u64::from(!is_own);
                }
                return listed(found, entries, made);
            }
            Work::Unlink => {
                let name = name(client, number, true);
                unlinkat(directory, &name, AtFlags::empty()).map_err(call("unlink"))?;
                self.sync(directory)?;
            }
        }
        Ok(0)
    }

    /// Makes the change of a directory durable, if it is to be.
    fn sync(&self, directory: &File) -> Result<(), BenchError> {
        match self.syncs {
            true => fsync(directory).map_err(call("sync")),
            false => Ok(()),
        }
    }
}

/// Wraps an error of a system call.
fn call(what: &str) -> impl FnOnce(rustix::io::Errno) -> BenchError {
    let failed = BenchError::io(format!("{what} a file of the study"));
    move |error| failed(error.into())
}
