//! The description of the machine, without which absolute values mean nothing.

use std::sync::OnceLock;
use std::time::Duration;

use serde::Serialize;

/// The machine and the program that produced a result.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The number of processors that this program may use.
    pub cpus: usize,
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's name and release.
    pub kernel: String,
    /// Nacre's version.
    pub nacre: String,
    /// The output of `git describe` for the sources that this program was built from, if they were in a repository.
    pub git: Option<String>,
    /// The day of the study, by UTC.
    pub date: String,
    /// The versions of the installed peers, as they report them.
    pub peers: Vec<String>,
}

/// Returns the time since the machine was started, in nanoseconds, by a clock that all of its processes have in common.
pub(crate) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the load of the machine over the last 1, 5 and 15 minutes.
pub(crate) fn load_average() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

impl Machine {
    /// Describes this machine.
    pub fn describe() -> Self {
        let file = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_string())
        };
        let memory = field(&file("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let memory_kib: u64 =
            memory.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or_default();
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        Self {
            cpu: field(&file("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_kib << 10,
            kernel: format!("{} {}", text(uname.sysname()), text(uname.release())),
            nacre: env!("CARGO_PKG_VERSION").into(),
            git: option_env!("NACRE_COMMIT").map(str::to_owned),
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            peers: Vec::new(),
        }
    }

    /// Returns a one-line summary.
    pub fn line(&self) -> String {
        let Self { cpu, cpus, memory_bytes, kernel, nacre, .. } = self;
        let git = self.git.as_ref().map(|git| format!(" ({git})")).unwrap_or_default();
        format!("{cpus} × {cpu}, {} GiB, {kernel}, nacre {nacre}{git}", memory_bytes >> 30)
    }
}

/// Returns the machine, the program and the day, in one line for the foot of a figure.
pub(crate) fn origin() -> &'static str {
    static ORIGIN: OnceLock<String> = OnceLock::new();
    ORIGIN.get_or_init(|| {
        let machine = Machine::describe();
        format!("{}; {}", machine.date, machine.line())
    })
}

/// Returns the processor time that this process has used.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the processor time that another process has used, to a hundredth of a second; zero if it is gone.
pub(crate) fn cpu_time_of(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in parentheses, may hold anything; the numbers begin behind it. User and system time
    // are the 14th and 15th field of the line, in hundredths of a second on every Linux.
    let numbers = stat.rsplit_once(')').map_or("", |(_, numbers)| numbers);
    let ticks = numbers.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    Duration::from_millis(10 * ticks.sum::<u64>())
}

/// Returns the memory that another process holds, apart from pages of files, in bytes; zero if it is gone.
pub(crate) fn memory_bytes_of(process: u32) -> u64 {
    status_bytes(&format!("/proc/{process}/status"), "RssAnon:")
}

/// Returns the peak memory of this process in bytes.
pub(crate) fn peak_memory_bytes() -> u64 {
    status_bytes("/proc/self/status", "VmHWM:")
}

/// Returns a size in bytes from a process's status; zero if it is not there.
fn status_bytes(file: &str, field: &str) -> u64 {
    let status = std::fs::read_to_string(file).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix(field)?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok()).unwrap_or_default() << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_counted_here_and_elsewhere() {
        let before = (cpu_time(), cpu_time_of(std::process::id()));
        let mut sum = 0u64;
        while cpu_time() < before.0 + Duration::from_millis(50) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_time_of(std::process::id()) >= before.1 + Duration::from_millis(30));
        assert_eq!(cpu_time_of(u32::MAX), Duration::ZERO);
    }

    #[test]
    fn memory_is_counted() {
        // Other tests of this process may give memory back meanwhile.
        let grown = (0..20).find_map(|_| {
            let before = memory_bytes_of(std::process::id());
            let held = std::hint::black_box(vec![1u8; 64 << 20]);
            let after = memory_bytes_of(std::process::id());
            drop(held);
            (before > 0 && after >= before + (48 << 20)).then_some(before)
        });
        let before = grown.expect("64 MiB that are taken are counted");
        assert_eq!(memory_bytes_of(u32::MAX), 0);
        // The most is not forgotten.
        assert!(peak_memory_bytes() >= before + (48 << 20));
    }
}
