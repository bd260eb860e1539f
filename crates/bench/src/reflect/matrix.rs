//! The measurement of all cells, repetition by repetition, with the contenders in a different order each time.

use std::collections::HashMap;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use serde::Serialize;

use super::arguments::Args;
use super::measure::Bench;
use super::point::{Absent, Cell, Contender, Cost, Run, Series};
use super::stage::Device;
use super::system;
use crate::BenchError;
use crate::kit::progress::Progress;

/// The time for which a device of limited rate is measured.
const LIMITED_WINDOW: Duration = Duration::from_millis(300);

/// The measured series, and the contenders that could not be measured.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) series: Vec<Series>,
    pub(super) absent: Vec<Absent>,
    pub(super) receivers: Vec<ReceiverAlone>,
}

/// The cost of a copy that comes from the network stack to a receiver, without a reflector.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ReceiverAlone {
    bytes: usize,
    receivers: u32,
    pub(super) cost: Cost,
}

/// Measures all cells of all devices.
pub(super) fn measure(args: &Args) -> Result<Measured, BenchError> {
    let contenders = args.contenders();
    let cells = (contenders.len() * args.receivers.len() * args.bytes.len()) as u64;
    let steps = args.device.iter().map(|device| match device {
        Device::Unlimited => cells * u64::from(args.repetitions()),
        Device::Limited(_) => cells,
    });
    let progress = Progress::new(steps.sum());
    let mut measured = Measured::default();
    for &device in &args.device {
        of_device(args, device, &contenders, &progress, &mut measured)?;
    }
    progress.finish();
    Ok(measured)
}

fn of_device(
    args: &Args,
    device: Device,
    contenders: &[Contender],
    progress: &Progress,
    measured: &mut Measured,
) -> Result<(), BenchError> {
    // What a device of limited speed sends is steady, and nothing else is wanted of it.
    let limited = device != Device::Unlimited;
    let window = if limited { args.window().min(LIMITED_WINDOW) } else { args.window() };
    let repetitions = if limited { 1 } else { args.repetitions() };
    let mut bench = Bench::build(crate::kit::process::this_program()?, args.samplicate(), &[device], window)?;
    let mut random = StdRng::seed_from_u64(args.seed);
    let mut runs: HashMap<Cell, Vec<Run>> = HashMap::new();
    for repetition in 0..repetitions {
        for &receivers in &args.receivers {
            let mut order = contenders.to_vec();
            order.shuffle(&mut random);
            let mut fresh = Vec::new();
            for who in order {
                let cell = |bytes| Cell { who, device, bytes, receivers };
                if measured.absent.iter().any(|absent| absent.who == who) {
                    args.bytes.iter().for_each(|_| progress.step(who.name(), repetition));
                    continue;
                }
                let mut copier = match bench.start(who, receivers)? {
                    Ok(copier) => copier,
                    Err(why) => {
                        measured.absent.push(Absent { who, why });
                        continue;
                    }
                };
                let cells: Vec<Cell> = args.bytes.iter().map(|bytes| cell(*bytes)).collect();
                let first = fresh.len();
                for cell in &cells {
                    let Cell { bytes, .. } = cell;
                    progress.step(&format!("{}, {bytes} bytes to {receivers}", who.name()), repetition);
                    fresh.push((*cell, bench.run(cell, &mut copier)?));
                }
                if !limited {
                    let to_device = bench.run_to_device(&cells, &mut copier)?;
                    for ((_, run), busy) in fresh[first..].iter_mut().zip(to_device) {
                        run.receiver = run.busy.beyond(busy);
                    }
                }
            }
            // The shares of others are measured right after, with nobody there to copy.
            for &bytes in args.bytes.iter().filter(|_| !limited) {
                let cost = bench.receiver_cost(bytes, receivers)?;
                measured.receivers.push(ReceiverAlone { bytes, receivers, cost });
            }
            for (cell, mut run) in fresh {
                if run.copies > 0 && !limited {
                    let per_s = run.datagrams as f64 / run.seconds;
                    let per_copy = run.datagrams as f64 / run.copies as f64;
                    run.sender = bench.sender_cost(cell.bytes, per_s)?.each(1.0 / per_copy);
                }
                runs.entry(cell).or_default().push(run);
            }
        }
    }
    for &who in contenders {
        for &bytes in &args.bytes {
            for &receivers in &args.receivers {
                let cell = Cell { who, device, bytes, receivers };
                if let Some(runs) = runs.remove(&cell) {
                    measured.series.push(Series::of(cell, runs, system::ticks_per_ns()));
                }
            }
        }
    }
    Ok(())
}
