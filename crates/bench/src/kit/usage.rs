//! The resources that a process used: elapsed time, processor time, and memory.

use std::io::{Read, Seek};
use std::process::{Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use wait4::Wait4;

use crate::BenchError;

/// The resources that one run of a program used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// The elapsed time from its start to its end.
    pub(crate) wall_ms: f64,
    /// The processor time of all its threads and of the processes that it started and waited for, as the system reports
    /// it at its end.
    pub(crate) user_ms: f64,
    pub(crate) system_ms: f64,
    /// The maximum resident size in bytes. The system includes that of the study when it started the program, so the
    /// value is never less than that.
    pub(crate) memory_bytes: u64,
}

impl Usage {
    /// Returns the processor time in milliseconds.
    pub(crate) fn cpu_ms(&self) -> f64 {
        self.user_ms + self.system_ms
    }
}

/// The result of running a program.
pub(crate) struct Outcome {
    pub(crate) usage: Usage,
    /// The number that `listen` returned for its output.
    pub(crate) heard: Option<u64>,
    /// The exit code.
    pub(crate) code: i32,
    /// The standard error, shortened.
    pub(crate) complaint: String,
}

/// A function that extracts a number from a program's output.
pub(crate) type Listen<'a> = &'a dyn Fn(&mut dyn Read) -> Option<u64>;

/// Runs a program to its end. Its output is discarded, unless there is a function to read it.
pub(crate) fn run(program: &mut Command, listen: Option<Listen>) -> Result<Outcome, BenchError> {
    let name = program.get_program().to_string_lossy().into_owned();
    let mut complaints = tempfile::tempfile().map_err(BenchError::io("make a temporary file"))?;
    let for_child = complaints.try_clone().map_err(BenchError::io("share a temporary file"))?;
    program.stdin(Stdio::null()).stderr(for_child);
    program.stdout(if listen.is_some() { Stdio::piped() } else { Stdio::null() });
    let started = Instant::now();
    let mut child = program.spawn().map_err(BenchError::io(format!("start {name}")))?;
    let heard = match (listen, child.stdout.take()) {
        (Some(listen), Some(mut output)) => {
            let heard = listen(&mut output);
            // Who stops writing when nobody reads any more has not been counted to the end.
            std::io::copy(&mut output, &mut std::io::sink())
                .map_err(BenchError::io(format!("read what {name} prints")))?;
            heard
        }
        _ => None,
    };
    let ended = child.wait4().map_err(BenchError::io(format!("wait for {name}")))?;
    let wall_ms = started.elapsed().as_secs_f64() * 1e3;
    let Some(code) = ended.status.code() else {
        return Err(BenchError::Process(format!("{name} was ended ({})", ended.status)));
    };
    let mut complaint = String::new();
    // What cannot be read is not worth another complaint.
    let _ = complaints.rewind().and_then(|()| complaints.take(2000).read_to_string(&mut complaint));
    let usage = Usage {
        wall_ms,
        user_ms: ended.rusage.utime.as_secs_f64() * 1e3,
        system_ms: ended.rusage.stime.as_secs_f64() * 1e3,
        memory_bytes: ended.rusage.maxrss,
    };
    Ok(Outcome { usage, heard, code, complaint: complaint.trim().into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn processor_time_of_a_process_and_of_its_own_processes_counts() {
        let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let alone = run(&mut shell(busy), None).unwrap();
        assert!(alone.usage.cpu_ms() > 1.0, "{:?}", alone.usage);
        assert!(alone.usage.memory_bytes > 1 << 19);
        let nested = run(&mut shell(&format!("sh -c '{busy}'; true")), None).unwrap();
        assert!(nested.usage.cpu_ms() > 1.0, "{:?}", nested.usage);
        let idle = run(&mut shell("sleep 0.2"), None).unwrap();
        assert!(idle.usage.wall_ms >= 200.0 && idle.usage.cpu_ms() < 100.0, "{:?}", idle.usage);
    }

    #[test]
    fn what_a_process_prints_is_heard_to_the_end() {
        let first = |output: &mut dyn Read| {
            let mut byte = [0];
            output.read_exact(&mut byte).ok().map(|()| byte[0].into())
        };
        let outcome = run(&mut shell("seq 100000; echo oh >&2; exit 3"), Some(&first)).unwrap();
        assert_eq!((outcome.heard, outcome.code), (Some(u64::from(b'1')), 3));
        assert_eq!(outcome.complaint, "oh");
        assert!(run(&mut Command::new("/nonexistent"), None).is_err());
        assert!(run(&mut shell("kill -9 $$"), None).is_err());
    }
}
