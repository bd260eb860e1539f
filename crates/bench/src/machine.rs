//! What the machine is: absolute figures mean nothing without it.

use std::process::{Command, Stdio};

use serde::Serialize;

/// The machine and the program that gave a result.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// Processors that this program may use.
    pub cpus: usize,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// The kernel's name and release.
    pub kernel: String,
    /// Nacre's version.
    pub nacre: String,
    /// What `git describe` says of the working folder, if it is a repository.
    pub git: Option<String>,
    /// The peers that are installed, as they name themselves.
    pub peers: Vec<String>,
}

impl Machine {
    /// Looks at this machine.
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
            git: git_describe(),
            peers: Vec::new(),
        }
    }

    /// One line for a person.
    pub fn line(&self) -> String {
        let Self { cpu, cpus, memory_bytes, kernel, nacre, .. } = self;
        let git = self.git.as_ref().map(|git| format!(" ({git})")).unwrap_or_default();
        format!("{cpus} × {cpu}, {} GiB, {kernel}, nacre {nacre}{git}", memory_bytes >> 30)
    }
}

fn git_describe() -> Option<String> {
    let mut command = Command::new("git");
    command.args(["describe", "--always", "--dirty", "--tags"]).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}
