//! Load beyond the capacity of a plane or a device: all admitted datagrams arrive nevertheless, in order.
//!
//! - *Overload*: ten times the datagrams that the plane can copy, for millions of copies. Another processor than the
//!   sender's handles the input, as a network card's interrupts would be; otherwise the work of the kernel planes would
//!   slow the sender down, and it could not overload them. Datagrams that are not fetched in time are lost before they
//!   are admitted, as in a card.
//! - *Devices*: receivers behind three devices, one of them slow, and a burst that it needs seconds to send. Members
//!   behind the others receive theirs while the slow device's members wait.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::arguments::Args;
use super::load::{Load, Sent, send_all};
use super::measure::Bench;
use super::point::{System, is_own_work};
use super::report::{Results, not_its_own};
use super::serve::{Counted, Orders, Reflector};
use super::testbed::{self, Device};
use crate::BenchError;
use crate::kit::quantity::grouped;
use crate::kit::report::Report;
use crate::kit::study::Steps;
use crate::kit::table::Table;

/// The factor of the offered rate over the capacity of a plane.
const TIMES: f64 = 10.0;
/// The number of receivers under overload, and behind each device.
const RECEIVERS: u32 = 90;
const BEHIND: u32 = 30;
const BYTES: usize = 100;
/// One: it is alone on its device, so that all copies go by another.
const SENDERS: u32 = 1;

/// The results of a plane under overload.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Overload {
    pub(super) who: System,
    receivers: u32,
    senders: u32,
    /// The rates of datagrams that it can copy, and that were offered, per second.
    capacity_per_s: f64,
    offered_per_s: f64,
    sent: u64,
    counted: Counted,
    /// The number of datagrams that the system dropped before they reached the reflector, as a network card drops those
    /// not fetched.
    before: u64,
    pub(super) copies_due: u64,
    pub(super) copies: u64,
    /// The number of copies that were due and did not arrive, less those that arrived and were not due.
    pub(super) lost: i64,
    pub(super) disorder: u64,
    /// The largest difference in copies between two receivers: datagrams are refused as a whole, for all receivers.
    pub(super) uneven: u64,
    seconds: f64,
    /// The rate of copies that arrived over that without overload.
    pub(super) goodput: f64,
}

/// The results of a burst to receivers behind three devices.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Burst {
    pub(super) who: System,
    datagrams: u64,
    /// The times until it was sent, and until the last copy arrived, by device, in seconds.
    sent_s: f64,
    arrived_s: Vec<f64>,
    devices: Vec<Device>,
    counted: Counted,
    pub(super) lost: i64,
    pub(super) disorder: u64,
}

/// The results of both tests with all planes.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Overloads {
    pub(super) overload: Vec<Overload>,
    pub(super) bursts: Vec<Burst>,
}

/// Runs both tests.
pub(super) fn measure(args: &Args, report: &mut Report<Results>) -> Result<(), BenchError> {
    let planes = args.planes();
    let steps = Steps::new(2 * planes.len() as u64);
    let window = Duration::from_millis(200);
    let slow = Device::Limited(20);
    let one = Bench::build(None, &[Device::Unlimited], window)?;
    one.testbed.fetch_on(one.reflector_cpu)?;
    let three = Bench::build(None, &[Device::Unlimited, Device::Unlimited, slow], window)?;
    for who in planes.into_iter().map(System::Plane) {
        steps.step(&format!("{}, overload", who.name()), 0)?;
        match overload(&one, who, args.copies)? {
            Ok(result) => report.overloads.get_or_insert_default().overload.push(result),
            Err(why) => {
                report.add_absent(who, why);
                continue;
            }
        }
        steps.step(&format!("{}, three devices", who.name()), 0)?;
        if let Ok(result) = burst(&three, who)? {
            report.overloads.get_or_insert_default().bursts.push(result);
        }
    }
    // Even without any plane that works, the result is that none did.
    report.overloads.get_or_insert_default();
    Ok(())
}

fn overload(bench: &Bench, who: System, copies: u64) -> Result<Result<Overload, String>, BenchError> {
    let network = &bench.testbed.reflector;
    // The reflector's thread runs where the system lets it.
    let members = bench.members(SENDERS, &[RECEIVERS])?;
    let orders = Orders { cpu: None, keeps_all: false, ..bench.orders(who.name(), members) };
    let mut reflector = match Reflector::start(network, &orders)? {
        Ok(reflector) => reflector,
        Err(why) => return Ok(Err(why)),
    };
    let counting = &bench.testbed.counting;
    // How much it can copy, and a warm start.
    let mut capacity_per_s = 0.0;
    for _ in 0..2 {
        // As many at once as the queues of a pair of devices hold copies of: none is refused.
        let load = Load { outstanding: Some((2, u64::from(RECEIVERS))), ..bench.load(BYTES, RECEIVERS) };
        let sent = bench.send(load)?;
        capacity_per_s = sent.datagrams as f64 * 1e9 / sent.ns;
    }
    let before = settled(&mut reflector)?;
    counting.clear();
    let load = |sender| {
        let load = Load {
            sender,
            from: testbed::sender_address(sender),
            copies_max: copies,
            window_ns: 100_000_000_000,
            interval_ns: 1e9 * f64::from(SENDERS) / (TIMES * capacity_per_s),
            outstanding: None,
            wait_for: 0,
            ..bench.load(BYTES, RECEIVERS)
        };
        (bench.sender_cpu, load)
    };
    let loads: Vec<_> = (0..SENDERS).map(load).collect();
    let sent = send_all(&bench.testbed.senders, &loads, counting, &bench.probe)?;
    // What arrives afterwards has waited.
    let arrived = counting.total().copies;
    let counted = settled(&mut reflector)?.since(&before);
    let datagrams: u64 = sent.iter().map(|sent| sent.datagrams).sum();
    let ns = sent.iter().map(|sent| sent.ns).fold(0.0, f64::max);
    let copies_due = counted.admitted * u64::from(RECEIVERS) - counted.undeliverable - counted.too_old;
    let total = counting.total();
    let got: Vec<u64> = (0..RECEIVERS).map(|receiver| seats(bench, receiver).0).collect();
    Ok(Ok(Overload {
        who,
        receivers: RECEIVERS,
        senders: SENDERS,
        capacity_per_s,
        offered_per_s: datagrams as f64 * 1e9 / ns,
        sent: datagrams,
        counted,
        before: datagrams.saturating_sub(counted.admitted + counted.refused()),
        copies_due,
        copies: total.copies,
        lost: copies_due as i64 - total.copies as i64,
        disorder: (0..RECEIVERS).map(|receiver| seats(bench, receiver).1).sum(),
        uneven: got.iter().max().unwrap_or(&0) - got.iter().min().unwrap_or(&0),
        seconds: ns / 1e9,
        goodput: arrived as f64 * 1e9 / ns / (capacity_per_s * f64::from(RECEIVERS)),
    }))
}

/// Returns the copies and the disorder of a receiver, over all senders.
fn seats(bench: &Bench, receiver: u32) -> (u64, u64) {
    let seats = (0..testbed::SENDERS_MAX).map(|sender| bench.testbed.counting.seat(receiver, sender));
    seats.fold((0, 0), |(copies, disorder), seat| (copies + seat.copies, disorder + seat.disorder))
}

/// Waits until neither the arrivals nor the reflector's counters have changed for a while, and returns the counters.
fn settled(reflector: &mut Reflector) -> Result<Counted, BenchError> {
    let mut last = reflector.counters()?;
    let mut still = Instant::now();
    // A slow device may take seconds for what waits, but some of it goes out all the time.
    while still.elapsed() < Duration::from_millis(500) {
        std::thread::sleep(Duration::from_millis(50));
        let counted = reflector.counters()?;
        if counted != last {
            (last, still) = (counted, Instant::now());
        }
    }
    Ok(last)
}

fn burst(bench: &Bench, who: System) -> Result<Result<Burst, String>, BenchError> {
    const DATAGRAMS: u64 = 1000;
    let devices = bench.testbed.devices.clone();
    let behind = vec![BEHIND; devices.len()];
    let members = bench.members(1, &behind)?;
    let orders = Orders { keeps_all: false, ..bench.orders(who.name(), members) };
    let mut reflector = match Reflector::start(&bench.testbed.reflector, &orders)? {
        Ok(reflector) => reflector,
        Err(why) => return Ok(Err(why)),
    };
    let counting = &bench.testbed.counting;
    let all = BEHIND * devices.len() as u32;
    let copies_of = |device: usize| -> u64 {
        let first = device as u32 * BEHIND;
        (first..first + BEHIND).map(|receiver| counting.seat(receiver, 0).copies).sum()
    };
    // Neighbours are found first.
    let load = Load { interval_ns: 0.0, wait_for: u64::from(all), ..bench.load(BYTES, all) };
    bench.send(Load { datagrams: 20, outstanding: Some((1, u64::from(all))), ..load.clone() })?;
    let before = settled(&mut reflector)?;
    counting.clear();
    let start = Instant::now();
    let mut arrived_s = vec![0.0; devices.len()];
    let sent = std::thread::scope(|scope| -> Result<Sent, BenchError> {
        // A thousand datagrams in a fifth of a second: what the fast devices can do by any plane.
        let load = Load {
            datagrams: DATAGRAMS,
            window_ns: 10_000_000_000,
            interval_ns: 2e5,
            outstanding: None,
            wait_for: 0,
            ..load
        };
        let sender = scope.spawn(move || bench.send(load));
        let mut last = vec![0; devices.len()];
        let mut still = Instant::now();
        while still.elapsed() < Duration::from_secs(1) {
            for device in 0..devices.len() {
                let copies = copies_of(device);
                if copies > last[device] {
                    (last[device], arrived_s[device], still) =
                        (copies, start.elapsed().as_secs_f64(), Instant::now());
                }
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let counted = settled(&mut reflector)?.since(&before);
    let due = counted.admitted * u64::from(all) - counted.undeliverable - counted.too_old;
    Ok(Ok(Burst {
        who,
        datagrams: sent.datagrams,
        sent_s: sent.ns / 1e9,
        arrived_s,
        devices,
        counted,
        lost: due as i64 - counting.total().copies as i64,
        disorder: (0..all).map(|receiver| counting.seat(receiver, 0).disorder).sum(),
    }))
}

/// Returns the results as tables.
pub(super) fn tables(results: &Overloads) -> String {
    let mut overload = Table::new(
        "plane | offered | ÷ capacity | goodput | sent | admitted | refused | before | handed | copies | \
             too old | lost | disorder | uneven | time",
    );
    let lost = |lost: i64| if lost == 0 { "0".to_string() } else { format!("LOST {}", grouped(lost as f64)) };
    let count = |number: u64| grouped(number as f64);
    for result in &results.overload {
        let counted = &result.counted;
        overload.row(vec![
            result.who.name().into(),
            format!("{}/s", grouped(result.offered_per_s)),
            format!("{:.1}", result.offered_per_s / result.capacity_per_s),
            format!("{:.2}", result.goodput),
            count(result.sent),
            count(counted.admitted),
            count(counted.refused()),
            count(result.before),
            count(counted.handed),
            count(result.copies),
            count(counted.too_old),
            lost(result.lost),
            count(result.disorder),
            count(result.uneven),
            format!("{:.1} s", result.seconds),
        ]);
    }
    let devices: Vec<Device> = results.bursts.first().map(|burst| burst.devices.clone()).unwrap_or_default();
    let heads: Vec<String> = devices.iter().map(|device| format!("all arrived, {device}")).collect();
    let heads = heads.join(" | ");
    let mut bursts = Table::new(&format!(
        "plane | datagrams | sent in | {heads} | refused | handed | too old | lost | disorder"
    ));
    for burst in &results.bursts {
        let mut row =
            vec![burst.who.name().to_string(), count(burst.datagrams), format!("{:.3} s", burst.sent_s)];
        row.extend(burst.arrived_s.iter().map(|seconds| format!("{seconds:.3} s")));
        let counted = &burst.counted;
        row.extend([
            count(counted.refused()),
            count(counted.handed),
            count(counted.too_old),
            lost(burst.lost),
            count(burst.disorder),
        ]);
        bursts.row(row);
    }
    let mut text = format!("{overload}\n{bursts}");
    let overloads = results.overload.iter().map(|result| (result.who, "overload", &result.counted));
    let bursts = results.bursts.iter().map(|burst| (burst.who, "three devices", &burst.counted));
    for (who, what, counted) in overloads.chain(bursts) {
        let by_others = who.copies_by_others(counted);
        if !is_own_work(by_others, counted.copy_counts.iter().sum()) {
            text += &not_its_own(&format!("{}, {what}", who.name()), by_others);
            text += "\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use nacre_planes::plane::PlaneKind;

    use super::*;

    #[test]
    fn copies_by_another_plane_are_reported() {
        let text = |copy_counts: [u64; 4]| {
            let burst = Burst {
                who: System::Plane(PlaneKind::Kernel),
                datagrams: 10,
                sent_s: 1.0,
                arrived_s: vec![1.0],
                devices: vec![Device::Unlimited],
                counted: Counted { copy_counts, ..Counted::default() },
                lost: 0,
                disorder: 0,
            };
            tables(&Overloads { bursts: vec![burst], ..Overloads::default() })
        };
        assert!(text([0, 5, 0, 1000]).contains("NOT ITS OWN: kernel, three devices: 1,000 copies"));
        assert!(!text([0, 1000, 0, 5]).contains("NOT ITS OWN"));
    }
}
