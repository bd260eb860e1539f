//! Tests of the conclusions from results, with made-up numbers.

use nacre_planes::plane::PlaneKind;

use super::point::{Cell, Cost, Run, Series, System};
use super::report::Results;
use super::serve::Counted;
use super::testbed::Device;
use super::{capacity, figures, targets};
use crate::kit::study::Series as _;

/// Returns a series whose copies have the given costs in the repetitions, and the same again for the sender and the
/// receivers.
fn series(who: System, receivers: u32, copy_ns: &[f64]) -> Series {
    let run = |ns: &f64| Run {
        datagrams: 1000,
        copies_due: 1000 * u64::from(receivers),
        copies: 1000 * u64::from(receivers),
        disorder: 0,
        seconds: 1.0,
        busy: Cost { probe_ns: ns + 300.0, task_ns: ns + 30.0 },
        sender: Cost { probe_ns: 100.0, task_ns: 10.0 },
        dropped: Cost { probe_ns: ns + 150.0, task_ns: *ns },
        receiver: Cost { probe_ns: 200.0, task_ns: 20.0 },
        counted: None,
    };
    let cell = Cell { who, device: Device::Unlimited, bytes: 100, receivers };
    Series::of(&(cell, 2.0), copy_ns.iter().map(run).collect())
}

fn report() -> Results {
    let mut report = Results::new(true);
    report.series = vec![
        series(System::Plane(PlaneKind::Sendto), 90, &[2000.0, 4000.0, 3000.0]),
        series(System::Plane(PlaneKind::Ring), 90, &[1000.0, 1000.0, 1000.0]),
        series(System::Plane(PlaneKind::Kernel), 90, &[250.0, 500.0, 1000.0]),
        // Nothing is left of this one: the machine was busy.
        series(System::Plane(PlaneKind::Xdp), 90, &[-10.0, -10.0, -10.0]),
    ];
    report
}

#[test]
fn the_cost_of_a_copy_is_without_the_shares_of_others() {
    let series = series(System::Samplicate, 3, &[700.0, 500.0, 600.0]);
    assert_eq!(series.copy_ns.median, 600.0);
    assert_eq!(series.copy_cycles.median, 1200.0);
    assert_eq!(series.copy_task_ns.median, 600.0);
    assert_eq!(series.copy_received_ns.median, 800.0);
    assert_eq!(series.copy_dropped_ns.median, 650.0);
    assert_eq!((series.copies_per_s.median, series.megabits_per_s.median), (3000.0, 2.4));
    assert_eq!(series.lost, 0);
}

#[test]
fn ratios_are_of_repetitions_side_by_side() {
    let targets = serde_json::to_value(targets::evaluate(&report())).unwrap();
    let reached = |measure: &str| {
        let targets = targets.as_array().unwrap();
        let target = targets.iter().find(|target| target["measure"].as_str().unwrap().starts_with(measure));
        target.unwrap_or_else(|| panic!("{measure} is not in {targets:?}"))["measured"].as_f64().unwrap()
    };
    // 8, 8 and 3.
    assert_eq!(reached("sendto ÷ kernel, CPU of a copy, 90 receivers"), 8.0);
    assert_eq!(reached("sendto ÷ best in user space, 90 receivers (ring)"), 3.0);
    assert_eq!(reached("sendto ÷ best plane, 90 receivers (kernel)"), 8.0);
}

#[test]
fn a_core_serves_as_many_clients_as_it_has_time_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = capacity::write(&report().series, "a machine", folder.path()).unwrap().unwrap();
    let page = std::fs::read_to_string(file).unwrap();
    // 2,000,000 copies in a second at 500 ns, ten for each client; and each of those to 90 others.
    assert!(page.contains("| `kernel` | 200,000 |"), "{page}");
    assert!(page.contains("| `kernel` | 2,222 |"), "{page}");
    assert!(page.contains("| `xdp` | – |"), "{page}");
    assert!(!page.contains("past the queue") && !page.contains("by another plane"), "{page}");
    assert_eq!(capacity::write(&[], "a machine", folder.path()).unwrap(), None);
}

/// Returns a series whose copies were made through sockets, on a device with a limit.
fn limited_by_sockets(who: System) -> Series {
    let mut series = series(who, 90, &[1000.0]);
    for run in &mut series.repetitions {
        run.counted = Some(Counted { copy_counts: [0, 0, 0, run.copies], ..Counted::default() });
    }
    let cell = Cell { device: Device::Limited(100), ..series.cell };
    Series::of(&(cell, 2.0), series.repetitions)
}

#[test]
fn what_is_not_a_planes_own_work_or_limit_is_marked() {
    let ring = limited_by_sockets(System::Plane(PlaneKind::Ring));
    let mut xdp = series(System::Plane(PlaneKind::Xdp), 90, &[1000.0]);
    xdp.cell.device = Device::Limited(100);
    let mut report = report();
    report.series.extend([ring, xdp]);
    assert!(report.to_string().contains("NOT ITS OWN: ring, 100 bytes to 90 by 100 Mbit/s: 90,000 copies"));
    let folder = tempfile::tempdir().unwrap();
    let file = capacity::write(&report.series, "a machine", folder.path()).unwrap().unwrap();
    let page = std::fs::read_to_string(file).unwrap();
    assert!(page.contains("| `ring` | 9,000 \\* |") && page.contains("by another plane"), "{page}");
    assert!(page.contains("Copies by `xdp` go past the queue of the device"), "{page}");
    figures::draw(&report.series, "a machine", folder.path()).unwrap();
    let figure = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(figure("cpu-veth-100.svg").contains("with receivers"));
    let limited = figure("throughput-100mbit-100.svg");
    assert!(limited.contains("not its own work") && limited.contains("past the device"), "{limited}");
}

#[test]
fn figures_are_drawn_of_whatever_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let files = figures::draw(&report().series, "a machine", folder.path()).unwrap();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        let svg = std::fs::read_to_string(file).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
        assert!(["sendto", "ring", "kernel", "xdp"].iter().all(|name| svg.contains(name)), "{svg}");
    }
}

#[test]
fn losses_are_said_in_capitals() {
    let mut report = report();
    assert!(!report.to_string().contains("LOSS"));
    report.series[0].lost = 5;
    let text = report.to_string();
    assert!(
        text.contains("LOST 5") && text.contains("LOSS: sendto, 100 bytes to 90 by veth: 5 copies"),
        "{text}"
    );
}
