//! Mounts of the study: each is a process of its own, which takes its mount away when it ends.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::mount::{MntFlags, umount2};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use crate::BenchError;
use crate::kit::process::this_program;

/// The command that makes this program a file system that passes everything on.
const FLOOR: &str = "namespace-floor";
/// The time that a mount has to end.
const END_MAX: Duration = Duration::from_secs(10);

/// A mounted file system. Dropping it unmounts it.
pub(super) struct Mounted {
    folder: PathBuf,
    child: Child,
    /// The standard input, whose end is that of a pass-through.
    input: Option<ChildStdin>,
    /// The signal that ends it, if it does not end with its input.
    signal: Option<Signal>,
}

impl Mounted {
    /// Mounts the namespace of a store.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub(super) async fn namespace(program: &Path, store: &str, folder: &Path) -> Result<Self, BenchError> {
        let mut command = Command::new(program);
        command.args(["--store", store, "mount"]).arg(folder).stdin(Stdio::null());
        Self::start(command, folder, Some(Signal::TERM)).await
    }

    /// Mounts a pass-through to another folder.
    ///
    /// # Errors
    /// If it cannot be mounted.
    pub(super) async fn floor(source: &Path, folder: &Path) -> Result<Self, BenchError> {
        let mut command = Command::new(this_program()?);
        command.arg(FLOOR).arg(source).arg(folder).stdin(Stdio::piped());
        Self::start(command, folder, None).await
    }

    async fn start(mut command: Command, folder: &Path, signal: Option<Signal>) -> Result<Self, BenchError> {
        let child = command
            // Settings in the folder that the user happens to be in are not for it.
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(BenchError::io("start a program that mounts"))?;
        let mut mounted = Self { folder: folder.to_owned(), child, input: None, signal };
        mounted.input = mounted.child.stdin.take();
        let output = mounted.child.stdout.take();
        let output = output.ok_or_else(|| BenchError::Process("a mount has no standard output".into()))?;
        let mut lines = BufReader::new(output).lines();
        while let Some(line) = lines.next_line().await.map_err(BenchError::io("listen to a mount"))? {
            if line == "ready" {
                // What else it says is read, so that it never waits for that.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                return Ok(mounted);
            }
        }
        let text = "nothing could be mounted, for the reason above; --system leaves mounts out";
        Err(BenchError::Process(text.into()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.input.take());
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid as i32));
        if let (Some(pid), Some(signal)) = (pid, self.signal) {
            // One that has ended needs no signal.
            let _ = kill_process(pid, signal);
        }
        let begun = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return,
                Ok(None) if begun.elapsed() < END_MAX => std::thread::sleep(Duration::from_millis(2)),
                _ => break,
            }
        }
        // Its folder is to be usable again, whatever kept it from ending well; its process is killed.
        let _ = umount2(self.folder.as_path(), MntFlags::MNT_DETACH);
    }
}
