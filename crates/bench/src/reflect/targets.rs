//! The targets of the reflector on a machine of two processors, beside the measured values.

use std::collections::BTreeSet;

use nacre_planes::plane::PlaneKind;

use super::point::{Run, Series, System};
use super::report::Results;
use super::testbed::Device;
use crate::kit::Spread;
use crate::kit::target::{Targets, Unit};

/// The size of the datagrams to which the targets apply, in bytes.
const BYTES: usize = 100;

/// Compares the results with the targets, as far as they were measured.
pub(super) fn evaluate(report: &Results) -> Targets {
    let mut targets = Targets::default();
    let sendto = |receivers| find(report, System::Plane(PlaneKind::Sendto), receivers);
    let many: BTreeSet<u32> = report.series.iter().map(|series| series.cell.receivers).collect();
    for &receivers in &many {
        let Some(base) = sendto(receivers) else { continue };
        let ratio = |kind| {
            let other = find(report, System::Plane(kind), receivers)?;
            Some((kind, ratio(base, other, Run::copy_ns), ratio(base, other, Run::copy_received_ns)))
        };
        // A driver's copies are to be compared with others that are received in the driver, too.
        let driver = |kind| {
            Some(self::ratio(base, find(report, System::Plane(kind), receivers)?, Run::copy_dropped_ns))
        };
        let best = |kinds: &[PlaneKind]| {
            // Where the machine was so busy that nothing is left of a cost, nothing can be said of it.
            let found = kinds.iter().filter_map(|kind| ratio(*kind)).filter(|(_, alone, _)| *alone > 0.0);
            found.max_by(|one, other| one.1.total_cmp(&other.1))
        };
        let mut state = |measure: &str, found: Option<(PlaneKind, f64, f64)>, bound: Option<f64>| {
            let Some((kind, alone, received)) = found else { return };
            let measure = format!("sendto ÷ {measure}, {receivers} receivers ({kind})");
            match bound {
                Some(bound) => targets.at_least(measure, alone, Unit::Times, bound),
                None => targets.open(measure, alone, Unit::Times),
            }
            targets.open("  with what receivers take", received, Unit::Times);
        };
        let large = receivers >= 30;
        state("kernel, CPU of a copy", ratio(PlaneKind::Kernel), large.then_some(6.5));
        state("best plane", best(&PlaneKind::ALL[1..]), None);
        let bound = if large { 2.0 } else { 1.2 };
        state("best in user space", best(&[PlaneKind::Batch, PlaneKind::Ring]), Some(bound));
        for kind in [PlaneKind::Kernel, PlaneKind::Xdp] {
            let Some(found) = driver(kind) else { continue };
            let measure = format!("sendto ÷ {kind}, {receivers} receivers, all in the driver");
            match large && kind == PlaneKind::Xdp {
                true => targets.at_least(measure, found, Unit::Times, 11.0),
                false => targets.open(measure, found, Unit::Times),
            }
        }
        if let (90, Some((_, _, received))) = (receivers, ratio(PlaneKind::Ring)) {
            let measure = "sendto ÷ ring, 90 receivers, with what they take".to_string();
            targets.at_least(measure, received, Unit::Times, 2.5);
        }
        if let Some(peer) = find(report, System::Samplicate, receivers) {
            let measure = format!("sendto ÷ samplicate, {receivers} receivers");
            targets.open(measure, self::ratio(base, peer, Run::copy_ns), Unit::Times);
        }
    }
    if let Some(overloads) = &report.overloads {
        for overload in &overloads.overload {
            let name = overload.who.name();
            let copies = overload.copies as f64;
            targets.at_least(format!("overload, {name}: copies"), copies, Unit::Count, 1e7);
            targets.at_least("  over those without overload".to_string(), overload.goodput, Unit::Times, 0.8);
            let lost = overload.lost.abs() as f64 + overload.uneven as f64;
            targets.at_most("  lost after admission", lost, Unit::Count, 0.0);
            targets.at_most("  out of order", overload.disorder as f64, Unit::Count, 0.0);
        }
        for burst in &overloads.bursts {
            let name = burst.who.name();
            let wrong = burst.lost.abs() as f64 + burst.disorder as f64;
            let measure = format!("three devices, {name}: lost or out of order");
            targets.at_most(measure, wrong, Unit::Count, 0.0);
        }
    }
    for joins in &report.joins {
        let name = joins.who.name();
        targets.at_least(format!("joins, {name}"), joins.joins_per_s, Unit::PerSecond, 20_000.0);
        targets.at_most("  memory of a member", joins.bytes_per_member, Unit::Bytes, 512.0);
    }
    targets
}

fn find(report: &Results, who: System, receivers: u32) -> Option<&Series> {
    report.series.iter().find(|series| {
        let cell = &series.cell;
        cell.who == who
            && cell.receivers == receivers
            && cell.bytes == BYTES
            && cell.device == Device::Unlimited
    })
}

/// Returns the ratio of two series, repetition by repetition: a longer disturbance of the machine affects both.
fn ratio(one: &Series, other: &Series, value: fn(&Run) -> f64) -> f64 {
    let pairs = one.repetitions.iter().zip(&other.repetitions);
    Spread::of(pairs.map(|(one, other)| value(one) / value(other))).median
}
