//! The measurement of all cells, repetition by repetition, with the systems in a different order each time.

use std::time::Duration;

use serde::Serialize;

use super::arguments::Args;
use super::measure::Bench;
use super::point::{Cell, Cost, Series, System};
use super::report::Results;
use super::system;
use super::testbed::Device;
use crate::BenchError;
use crate::kit::report::Report;
use crate::kit::study::{Order, Series as _, Steps, add, turns};

/// The time for which a device of limited rate is measured.
const LIMITED_WINDOW: Duration = Duration::from_millis(300);

/// The cost of a copy that comes from the network stack to a receiver, without a reflector.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct ReceiverAlone {
    bytes: usize,
    receivers: u32,
    pub(super) cost: Cost,
}

/// Measures all cells of all devices.
pub(super) fn measure(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let systems = args.systems();
    let cells = (systems.len() * args.receivers.len() * args.bytes.len()) as u64;
    let steps = args.device.iter().map(|device| match device {
        Device::Unlimited => cells * u64::from(args.repetitions()),
        Device::Limited(_) => cells,
    });
    let steps = Steps::new(steps.sum());
    for &device in &args.device {
        of_device(args, device, &systems, &steps, report)?;
    }
    Ok(())
}

fn of_device(
    args: &Args,
    device: Device,
    systems: &[System],
    steps: &Steps,
    report: &mut Report<Results>,
) -> Result<(), BenchError> {
    // What a device of limited speed sends is steady, and nothing else is wanted of it.
    let limited = device != Device::Unlimited;
    let window = if limited { args.window().min(LIMITED_WINDOW) } else { args.window() };
    let repetitions = if limited { 1 } else { args.repetitions() };
    let mut bench = Bench::build(args.samplicate(), &[device], window)?;
    // The order of a device's series: by system, by size, and by number of receivers.
    let place = |cell: &Cell| {
        let of = |who: &System| *who == cell.who;
        let bytes = args.bytes.iter().position(|bytes| *bytes == cell.bytes);
        let receivers = args.receivers.iter().position(|receivers| *receivers == cell.receivers);
        (systems.iter().position(of), bytes, receivers)
    };
    let first = report.series.len();
    let rounds = repetitions * args.receivers.len() as u32;
    let turns = turns(rounds, systems.len(), Order::Shuffled(args.seed));
    for round in turns.chunk_by(|one, other| one.0 == other.0) {
        let repetition = round[0].0 / args.receivers.len() as u32;
        let receivers = args.receivers[round[0].0 as usize % args.receivers.len()];
        let mut fresh = Vec::new();
        for who in round.iter().map(|(_, place)| systems[*place]) {
            let cells: Vec<Cell> =
                args.bytes.iter().map(|&bytes| Cell { who, device, bytes, receivers }).collect();
            if report.is_absent(who) {
                cells.iter().try_for_each(|_| steps.step(who.name(), repetition))?;
                continue;
            }
            let mut copier = match bench.start(who, receivers)? {
                Ok(copier) => copier,
                Err(why) => {
                    report.add_absent(who, why);
                    continue;
                }
            };
            let own = fresh.len();
            for cell in &cells {
                let what = format!("{}, {} bytes to {receivers}", who.name(), cell.bytes);
                steps.step(&what, repetition)?;
                fresh.push((*cell, bench.run(cell, &mut copier)?));
            }
            if !limited {
                let to_device = bench.run_to_device(&cells, &mut copier)?;
                let to_driver = bench.run_to_driver(&cells, &mut copier)?;
                for ((_, run), (busy, dropped)) in
                    fresh[own..].iter_mut().zip(to_device.into_iter().zip(to_driver))
                {
                    run.receiver = run.busy.beyond(busy);
                    run.dropped = dropped;
                }
            }
        }
        // The shares of others are measured right after, with nobody there to copy.
        for &bytes in args.bytes.iter().filter(|_| !limited) {
            let cost = bench.receiver_cost(bytes, receivers)?;
            report.receivers_alone.push(ReceiverAlone { bytes, receivers, cost });
        }
        for (cell, mut run) in fresh {
            if run.copies > 0 && !limited {
                let per_s = run.datagrams as f64 / run.seconds;
                let per_copy = run.datagrams as f64 / run.copies as f64;
                run.sender = bench.sender_cost(cell.bytes, per_s)?.each(1.0 / per_copy);
            }
            let mut of_device = report.series.split_off(first);
            let at = of_device.partition_point(|series| place(&series.cell) < place(&cell));
            let subject = (cell, system::ticks_per_ns());
            match of_device.get(at) {
                Some(series) if series.cell == cell => add(&mut of_device, at, &subject, run),
                _ => of_device.insert(at, Series::of(&subject, vec![run])),
            }
            report.series.extend(of_device);
        }
    }
    Ok(())
}
