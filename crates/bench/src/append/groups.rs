//! The points to measure, in groups that are compared with each other.

use super::point::{Point, Sequencing, Subject, Work};
use super::{Args, CLIENTS, Part};
use crate::kit::server::Durability;

/// Returns the points, in groups that are compared with each other. `has_pool` tells whether there is a pool of Ceph.
pub(super) fn groups(args: &Args, has_pool: bool) -> Vec<Vec<Point>> {
    use Durability::{Always, Volatile};
    use Subject::{Disk, Log, Nats, Object, Redis};
    let mut groups = Vec::new();
    if args.has(Part::Writers) {
        let counts: &[u32] = if args.quick { &[16] } else { &[1, 4, 16, 64] };
        for writers in counts {
            groups.push([Log, Redis, Nats].map(|subject| of(subject, Volatile, *writers, 100)).to_vec());
            let durable = [Log, Disk, Redis, Nats];
            groups.push(durable.map(|subject| of(subject, Always, *writers, 4096)).to_vec());
        }
    }
    if args.has(Part::Sizes) && !args.quick {
        for (durability, sizes) in [(Volatile, [4096, 65_536]), (Always, [100, 65_536])] {
            for bytes in sizes {
                groups.push([Log, Redis, Nats].map(|subject| of(subject, durability, 16, bytes)).to_vec());
            }
        }
    }
    if args.has(Part::Widths) && !args.quick {
        let point = |width: u32| {
            let point = of(Log, Always, 16, 4096);
            Point { label: format!("{}, width {width}", point.label), width, ..point }
        };
        groups.push([1, 2, 8, 32].map(point).to_vec());
    }
    if args.has(Part::Sequencers) {
        let mut points = Vec::new();
        let all = [Sequencing::Store, Sequencing::RoundTrip, Sequencing::Quota];
        for apart in [false, true] {
            for sequencing in all {
                let point = of(Log, Volatile, 16, 100);
                let handles = if apart { "16 handles" } else { "2 handles" };
                let label = format!("{}, {handles}, {}", point.label, sequencer(sequencing));
                points.push(Point { label, sequencing, apart, ..point });
            }
        }
        if args.quick {
            points.truncate(all.len());
        }
        groups.push(points);
        if !args.quick {
            // The counter in the store is synced for each batch, and the rank's is not.
            let durable = |sequencing| {
                let point = of(Log, Always, 16, 4096);
                let label = format!("{}, 2 handles, {}", point.label, sequencer(sequencing));
                Point { label, sequencing, ..point }
            };
            groups.push(all.map(durable).to_vec());
        }
    }
    if args.has(Part::Latency) {
        let alone = |subject, durability, bytes| {
            let point = of(subject, durability, 1, bytes);
            Point { label: format!("{}, one at a time", point.label), depth: 1, ..point }
        };
        groups.push([Log, Redis, Nats].map(|subject| alone(subject, Volatile, 100)).to_vec());
        groups.push([Log, Disk, Redis].map(|subject| alone(subject, Always, 4096)).to_vec());
        let one = |work, durability, bytes, clients, what: &str| {
            let label = format!("{}, {what}", name(Log, durability));
            Point {
                work,
                clients,
                writers: clients,
                depth: 1,
                entry_bytes: bytes,
                ..base(label, Log, durability)
            }
        };
        let visible = "append to visible at a follower";
        let durable = one(Work::Follow, Always, 4096, 2, visible);
        let by_rank = Sequencing::RoundTrip;
        groups.push(vec![
            one(Work::Tail, Volatile, 100, 1, "tail"),
            one(Work::Follow, Volatile, 100, 2, visible),
            durable.clone(),
            Point {
                label: format!("{}, {}", durable.label, sequencer(by_rank)),
                sequencing: by_rank,
                ..durable
            },
        ]);
    }
    if args.has(Part::Reads) {
        let read = |subject| {
            let label = format!("random reads of 4 KiB, {}", name(subject, Volatile));
            Point { work: Work::Read, ..base(label, subject, Volatile) }
        };
        groups.push(vec![read(Log), read(Object)]);
    }
    if args.has(Part::Views) {
        let views = |durability| {
            let point = of(Log, durability, 16, 4096);
            let label = format!("{}, another view every 100 ms", point.label);
            Point { label, depth: 1, reshape_ms: Some(100), ..point }
        };
        let calm = |durability| {
            let point = of(Log, durability, 16, 4096);
            Point { label: format!("{}, one view", point.label), depth: 1, ..point }
        };
        groups.push(vec![calm(Volatile), views(Volatile), calm(Always), views(Always)]);
    }
    if args.has(Part::Ceph) && has_pool {
        groups.extend(on_ceph(args.quick));
    }
    groups
}

/// Returns the points in a pool of Ceph: loads under which a log may write many entries by one operation, and such that leave it one for each,
/// as the peers have.
fn on_ceph(quick: bool) -> Vec<Vec<Point>> {
    use Subject::{ClassCall, LogOnCeph, LuaCall, RadosAppend};
    let loads: &[(u32, u32)] =
        if quick { &[(16, 4096)] } else { &[(1, 100), (16, 100), (1, 4096), (16, 4096)] };
    let mut groups = Vec::new();
    for (writers, bytes) in loads {
        let shared = |subject| of(subject, Durability::Always, *writers, *bytes);
        // A handle has one write under way. Where each has one entry, and the next position is in another object, no two share anything.
        let single = |subject| {
            let point = shared(subject);
            let label = format!("{}, one operation each", point.label);
            Point { label, depth: 1, apart: subject == LogOnCeph, unit: 1, ..point }
        };
        let subjects = [LogOnCeph, ClassCall, LuaCall, RadosAppend];
        groups.push(subjects.map(shared).to_vec());
        groups.push(subjects.map(single).to_vec());
    }
    groups
}

/// Returns a point with as many writers, and entries of as many bytes.
fn of(subject: Subject, durability: Durability, writers: u32, bytes: u32) -> Point {
    let label = format!("{}, {writers} W, {}", name(subject, durability), size(bytes));
    let clients = CLIENTS.min(writers);
    Point { writers, entry_bytes: bytes, clients, ..base(label, subject, durability) }
}

fn base(label: String, subject: Subject, durability: Durability) -> Point {
    Point {
        label,
        subject,
        work: Work::Append,
        durability,
        clients: CLIENTS,
        writers: 16,
        depth: 16,
        apart: false,
        entry_bytes: 4096,
        width: 4,
        unit: 1024,
        sequencing: Sequencing::Store,
        reshape_ms: None,
    }
}

fn name(subject: Subject, durability: Durability) -> &'static str {
    match (subject, durability) {
        (Subject::Log, Durability::Volatile) => "log, volatile",
        (Subject::Log, _) => "log, durable",
        (Subject::Object, _) => "objects",
        (Subject::Redis, Durability::Volatile) => "Redis stream, volatile",
        (Subject::Redis, _) => "Redis stream, appendfsync always",
        (Subject::Nats, Durability::Volatile) => "NATS stream, in memory",
        (Subject::Nats, _) => "NATS stream, in files, not synced",
        (Subject::Disk, _) => "disk, group commit",
        (Subject::LogOnCeph, _) => "log on Ceph",
        (Subject::ClassCall, _) => "class call on Ceph",
        (Subject::LuaCall, _) => "cls_lua on Ceph",
        (Subject::RadosAppend, _) => "RADOS append",
    }
}

fn sequencer(sequencing: Sequencing) -> &'static str {
    match sequencing {
        Sequencing::Store => "sequencer in the store",
        Sequencing::RoundTrip => "sequencer by round trips",
        Sequencing::Quota => "sequencer by quota",
    }
}

fn size(bytes: u32) -> String {
    match bytes {
        1024.. => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::parse;

    #[test]
    fn points_have_names_of_their_own_and_a_short_look_has_few() {
        let labels_with = |has_pool: bool, words: &[&str]| {
            let args: Args = parse(words).unwrap();
            let points = groups(&args, has_pool).into_iter().flatten();
            let mut labels: Vec<String> = points.map(|point| point.label).collect();
            let count = labels.len();
            labels.sort_unstable();
            labels.dedup();
            assert_eq!(labels.len(), count, "{labels:?}");
            count
        };
        let labels = |words: &[&str]| labels_with(false, words);
        assert!(labels(&["--quick"]) < 30);
        assert!(labels(&[]) > 50);
        assert_eq!(labels(&["--only", "recovery"]), 0);
        assert_eq!(labels(&["--only", "reads,widths"]), 6);
        assert_eq!(labels(&["--only", "ceph"]), 0);
        assert_eq!(labels_with(true, &["--only", "ceph"]), 4 * 2 * 4);
        assert_eq!(labels_with(true, &["--only", "ceph", "--quick"]), 2 * 4);
        assert_eq!(labels_with(true, &["--quick"]), labels(&["--quick"]) + 2 * 4);
    }

    #[test]
    fn the_peers_on_ceph_have_as_much_under_way_as_the_log() {
        let args: Args = parse(&["--only", "ceph"]).unwrap();
        for points in groups(&args, true) {
            let load =
                |point: &Point| (point.clients, point.writers, point.depth, point.entry_bytes, point.width);
            assert!(points.iter().all(|point| load(point) == load(&points[0])), "{points:?}");
            let log = &points[0];
            assert_eq!((log.subject, log.apart), (Subject::LogOnCeph, log.depth == 1));
        }
    }
}
