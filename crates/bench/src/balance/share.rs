//! The share of a processor that a rank may use, so that a rank is overloaded before the machine is: a quota of a control group, or
//! else one processor for each rank.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::BenchError;
use crate::kit::server::Daemon;

/// The least quota that the system takes.
const QUOTA_US_MIN: u64 = 1_000;
/// The shortest period of a quota. A rank that has used its quota stops until the next period, which must not look like a move.
const PERIOD_US_MIN: u64 = 10_000;
/// The attempts to remove a control group, and the pause between two: a process that was just killed may still be in it.
const REMOVALS_MAX: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

/// The version of the system's interface to control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The means by which ranks are kept to their shares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// A control group with a quota for each rank, in this folder.
    Quota(PathBuf, Version),
    /// One of these processors for each rank.
    Affinity(Vec<usize>),
}

/// A rank within its share.
pub(super) struct Limited {
    // Dropped before its group, which can be removed only without a process.
    pub(super) daemon: Daemon,
    _group: Option<Group>,
}

impl Means {
    /// Returns the means that this machine has: quotas where a control group can be made beside or above that of this process.
    pub(super) fn find(percent: u32) -> Means {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mounts"), read("/proc/self/cgroup"));
        for version in [Version::Two, Version::One] {
            let Some((mount, inside)) = hierarchy(&mounts, &own, version) else { continue };
            for parent in inside.ancestors().take_while(|parent| parent.starts_with(&mount)) {
                if Group::make(parent, version, percent).is_ok() {
                    return Means::Quota(parent.to_owned(), version);
                }
            }
        }
        let cpus = sched_getaffinity(Pid::from_raw(0)).map(|set| {
            let is_there = |cpu: &usize| set.is_set(*cpu).unwrap_or(false);
            (0..CpuSet::count()).filter(is_there).collect()
        });
        Means::Affinity(cpus.unwrap_or_default())
    }

    /// Returns a few words about them.
    pub(super) fn describe(&self, percent: u32) -> String {
        match self {
            Means::Quota(..) => format!("each rank has {percent} % of a processor, by a control group"),
            Means::Affinity(cpus) => {
                let count = cpus.len().max(1);
                format!(
                    "each rank is kept to one of {count} processors, as no control group with a quota can be made"
                )
            }
        }
    }

    /// Starts a rank within its share, and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started or limited.
    pub(super) async fn start(
        &self,
        program: &Path,
        words: &[&str],
        rank: u32,
        percent: u32,
    ) -> Result<Limited, BenchError> {
        match self {
            Means::Quota(parent, version) => {
                let made = Group::make(parent, *version, percent);
                let group = made.map_err(BenchError::io("make a control group"))?;
                let daemon = Daemon::start(program, words).await?;
                let Some(process) = daemon.id() else {
                    return Err(BenchError::Process("a rank has ended early".into()));
                };
                let added = group.write("cgroup.procs", &process.to_string());
                added.map_err(BenchError::io("put a rank into its control group"))?;
                Ok(Limited { daemon, _group: Some(group) })
            }
            Means::Affinity(cpus) => {
                let cpu = cpus.get(rank as usize % cpus.len().max(1)).copied().unwrap_or(0);
                // A process is kept to the processors of the thread that starts it.
                let _pinned = Pinned::to(cpu)?;
                Ok(Limited { daemon: Daemon::start(program, words).await?, _group: None })
            }
        }
    }
}

/// Returns where the hierarchy of control groups with processors is mounted, and the group of this process in it.
fn hierarchy(mounts: &str, own: &str, version: Version) -> Option<(PathBuf, PathBuf)> {
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (folder, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::Two => kind == "cgroup2",
            Version::One => kind == "cgroup" && options.split(',').any(|option| option == "cpu"),
        };
        is_it.then(|| PathBuf::from(folder))
    })?;
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::Two => number == "0" && controllers.is_empty(),
            Version::One => controllers.split(',').any(|controller| controller == "cpu"),
        };
        is_it.then_some(path)
    })?;
    let inside = mount.join(path.trim_start_matches('/'));
    Some((mount, inside))
}

/// Returns the quota of a share of a processor, and its period, in microseconds.
fn quota_us(percent: u32) -> (u64, u64) {
    let percent = u64::from(percent.max(1));
    let period = (QUOTA_US_MIN * 100 / percent).max(PERIOD_US_MIN);
    ((period * percent / 100).max(QUOTA_US_MIN), period)
}

/// A control group with a quota, which is removed when this is dropped.
struct Group {
    folder: PathBuf,
}

impl Group {
    fn make(parent: &Path, version: Version, percent: u32) -> io::Result<Group> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("nacre-bench-{}-{number}", std::process::id()));
        fs::create_dir(&folder)?;
        let group = Group { folder };
        let (quota, period) = quota_us(percent);
        match version {
            Version::Two => group.write("cpu.max", &format!("{quota} {period}"))?,
            Version::One => {
                group.write("cpu.cfs_period_us", &period.to_string())?;
                group.write("cpu.cfs_quota_us", &quota.to_string())?;
            }
        }
        Ok(group)
    }

    fn write(&self, file: &str, text: &str) -> io::Result<()> {
        fs::OpenOptions::new().write(true).open(self.folder.join(file))?.write_all(text.as_bytes())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir(&self.folder) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(REMOVAL_PAUSE)
                }
                _ => return,
            }
        }
    }
}

/// The calling thread, kept to one processor until this is dropped.
struct Pinned {
    before: CpuSet,
}

impl Pinned {
    fn to(cpu: usize) -> Result<Pinned, BenchError> {
        let failed = |error: nix::Error| BenchError::io("keep a rank to one processor")(error.into());
        let itself = Pid::from_raw(0);
        let before = sched_getaffinity(itself).map_err(failed)?;
        let mut one = CpuSet::new();
        one.set(cpu).and_then(|()| sched_setaffinity(itself, &one)).map_err(failed)?;
        Ok(Pinned { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It could be kept to fewer, so it can have all of them back.
        let _ = sched_setaffinity(Pid::from_raw(0), &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_with_processors_is_found() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw,mode=755 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let own = "5:cpuset:/x\n4:cpu,cpuacct:/a/b\n0::/c:d\n";
        let found = |version| {
            hierarchy(mounts, own, version).map(|(mount, inside)| {
                (mount.to_string_lossy().into_owned(), inside.to_string_lossy().into_owned())
            })
        };
        let of = |mount: &str, inside: &str| Some((mount.to_owned(), inside.to_owned()));
        assert_eq!(found(Version::One), of("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/a/b"));
        assert_eq!(found(Version::Two), of("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/c:d"));
        assert_eq!(hierarchy("", own, Version::One), None);
        assert_eq!(hierarchy(mounts, "", Version::Two), None);
    }

    #[test]
    fn a_quota_is_one_that_the_system_takes_and_its_period_is_short() {
        assert_eq!(quota_us(20), (2_000, 10_000));
        assert_eq!(quota_us(100), (10_000, 10_000));
        assert_eq!(quota_us(10), (1_000, 10_000));
        assert_eq!(quota_us(2), (1_000, 50_000));
        assert_eq!(quota_us(3), (1_000, 33_333));
    }

    #[test]
    fn a_thread_is_kept_to_a_processor_and_released() {
        let before = sched_getaffinity(Pid::from_raw(0)).unwrap();
        let cpu = (0..CpuSet::count()).find(|cpu| before.is_set(*cpu).unwrap()).unwrap();
        let pinned = Pinned::to(cpu).unwrap();
        let now = sched_getaffinity(Pid::from_raw(0)).unwrap();
        assert_eq!((0..CpuSet::count()).filter(|cpu| now.is_set(*cpu).unwrap()).count(), 1);
        drop(pinned);
        assert_eq!(sched_getaffinity(Pid::from_raw(0)).unwrap(), before);
    }
}
