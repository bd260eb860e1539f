//! A check of the processor time's measurement: loops of known length, compared with the probe and with the system's
//! own figures.
//!
//! The system accounts whole ticks here. Work in many small pieces is then right only in the long run, and work in step
//! with the timer not even then.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::arguments::Args;
use super::load::{Load, send_all};
use super::measure::Bench;
use super::system;
use super::testbed::{self, Device};
use crate::BenchError;
use crate::kit::table::Table;

/// A loop with a known amount of work.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Loop {
    what: String,
    /// The measured time, in seconds.
    seconds: f64,
    /// The known work of all processors together.
    known_ms: f64,
    probe_ms: f64,
    /// The work by /proc/stat.
    stat_ms: f64,
}

/// Measures all loops.
pub(super) fn measure(args: &Args) -> Result<Vec<Loop>, BenchError> {
    let bench = Bench::build(None, &[Device::Unlimited], args.window())?;
    let mut loops = Vec::new();
    let us = Duration::from_micros;
    for (what, work, pause) in [
        ("nothing", us(0), us(10_000)),
        ("20 µs of work, 180 µs of sleep", us(20), us(180)),
        ("100 µs of work, 100 µs of sleep", us(100), us(100)),
        ("2 ms of work, 2 ms of sleep, in step with the timer", us(2000), us(2000)),
        ("9 ms of work, 1 ms of sleep", us(9000), us(1000)),
    ] {
        loops.push(watch(&bench, what.into(), |window| work_and_sleep(&bench, work, pause, window))?);
    }
    // Work that follows an interrupt belongs to no process. What a datagram takes when there is nothing else to do is
    // known; with pauses between datagrams it should be the same.
    let receivers = 30;
    let load = |interval_ns| Load {
        sender: 0,
        from: testbed::reflector_address(Some(0), testbed::PORT),
        to: (0..receivers).map(|receiver| testbed::receiver_address(0, receiver)).collect(),
        bytes: 100,
        datagrams: u64::MAX,
        copies_max: u64::MAX,
        window_ns: args.window().as_nanos() as u64,
        interval_ns,
        outstanding: None,
        wait_for: 0,
        batch: 1,
    };
    let send = |interval_ns| -> Result<(f64, u64), BenchError> {
        let loads = [(bench.sender_cpu, load(interval_ns))];
        let sent = send_all(&bench.testbed.reflector, &loads, &bench.testbed.counting, &bench.probe)?[0];
        Ok((sent.ns, sent.datagrams))
    };
    let (ns, datagrams) = send(0.0)?;
    let each_ns = ns / datagrams as f64;
    for share in [0.5, 0.1] {
        let what = format!("datagrams to receivers, {:.0} % of what can be sent", 100.0 * share);
        loops.push(watch(&bench, what, |_| Ok(send(each_ns / share)?.1 as f64 * each_ns))?);
    }
    Ok(loops)
}

/// Measures `work` during a window; it returns its own length in nanoseconds.
fn watch(
    bench: &Bench,
    what: String,
    work: impl FnOnce(Duration) -> Result<f64, BenchError>,
) -> Result<Loop, BenchError> {
    let (from, stat) = (bench.probe.now(), stat_busy());
    let known_ns = work(bench.window)?;
    let (to, stat_after) = (bench.probe.now(), stat_busy());
    Ok(Loop {
        what,
        seconds: from.until_ns(to) / 1e9,
        known_ms: known_ns / 1e6,
        probe_ms: bench.probe.busy_ns(from, to) / 1e6,
        stat_ms: stat_after.saturating_sub(stat).as_secs_f64() * 1e3,
    })
}

fn work_and_sleep(
    bench: &Bench,
    work: Duration,
    pause: Duration,
    window: Duration,
) -> Result<f64, BenchError> {
    let cpu = bench.reflector_cpu;
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            system::pin(cpu)?;
            let start = Instant::now();
            let mut worked = Duration::ZERO;
            let mut next = start;
            while start.elapsed() < window {
                let began = Instant::now();
                while began.elapsed() < work {
                    std::hint::spin_loop();
                }
                worked += if work.is_zero() { work } else { began.elapsed() };
                next += work + pause;
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            Ok(worked.as_nanos() as f64)
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Returns the busy time of all processors by the system's own figures. The threads that measure idle time are the only
/// nice ones on a quiet machine, so that nice time is idle time.
fn stat_busy() -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
    let ticks: Vec<u64> = fields.filter_map(|ticks| ticks.parse().ok()).collect();
    // User, (nice,) system, (idle, iowait,) irq, softirq: in hundredths of a second.
    let busy = [0, 2, 5, 6].iter().filter_map(|field| ticks.get(*field)).sum::<u64>();
    Duration::from_millis(10 * busy)
}

/// Returns the results as a table.
pub(super) fn table(loops: &[Loop]) -> Table {
    let mut table = Table::new("what | watched | known | probe | off by | /proc/stat | off by");
    for Loop { what, seconds, known_ms, probe_ms, stat_ms } in loops {
        let all = 1e3 * seconds;
        table.row(vec![
            what.clone(),
            format!("{all:.0} ms"),
            format!("{known_ms:.1} ms"),
            format!("{probe_ms:.1} ms"),
            format!("{:+.1} % of a processor", 100.0 * (probe_ms - known_ms) / all),
            format!("{stat_ms:.0} ms"),
            format!("{:+.1} %", 100.0 * (stat_ms - known_ms) / all),
        ]);
    }
    table
}
