//! Clients that count while OSDs and the monitor are killed and brought back, for `SOAK_SECONDS` seconds, or once each: no
//! acknowledged increment is lost, and no version of a block has two contents.

mod cluster;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::{Cluster, open, wait_until};
use nacre_object::testkit::race::Race;
use nacre_object::{ErrorKind, ObjectId};

/// The number of connections; that of the operations that each has under way follows.
const CLIENTS: u64 = 4;
const WINDOW: usize = 16;
/// The errors that a client may get while its object is moved from one OSD to another.
const TOLERATED: &[ErrorKind] = &[ErrorKind::Unknown, ErrorKind::Unavailable];

#[test]
fn counting_goes_on_while_osds_and_the_monitor_are_killed() {
    let seconds =
        std::env::var("SOAK_SECONDS").map_or(0, |text| text.parse().expect("SOAK_SECONDS is a number"));
    let cluster = Cluster::start("soak", &["--bluestore"]);
    let uri = cluster.uri("soak");
    let names = ["left", "right"];
    let race = Race::new(names.map(|name| ObjectId::try_from(name).unwrap()).into(), 4);
    let stop = AtomicBool::new(false);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut kills = 0;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                // One client makes calls of everything: both ways must keep out of each other's way.
                let way = if number == 0 { "off" } else { "on" };
                let (race, stop, store) =
                    (&race, &stop, open(&format!("{uri}&native={way}&timeout_ms=60000")));
                let over = move |_| stop.load(Ordering::Relaxed);
                scope.spawn(move || race.run_client(&store, 1 + number, WINDOW, TOLERATED, over))
            })
            .collect();
        // The clients stop also where this panics, or else the scope would wait for them for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let continues = |what: &str| {
                let before = race.totals().acknowledged;
                wait_until(what, || race.totals().acknowledged >= before + 300);
            };
            continues("the clients are at work");
            for round in 0.. {
                let is_over = round > 0 && Instant::now() >= end;
                if is_over || clients.iter().any(|client| client.is_finished()) {
                    break;
                }
                let victim = cluster.primary(&uri, names[round % 2]);
                cluster.stop_osd(&victim);
                continues("the clients go on without an OSD");
                cluster.start_osd(&victim);
                continues("the clients go on with the OSD back");
                kills += 1;
                if round % 2 == 0 {
                    wait_until("the placement groups have settled", || {
                        names.iter().all(|name| cluster.is_settled(&uri, name))
                    });
                    cluster.script("mon-stop", &[]);
                    continues("the clients go on without the monitor");
                    cluster.script("mon-start", &[]);
                    kills += 1;
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        let results: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        for result in results {
            result.unwrap();
        }
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let totals = race.check(&open(&uri)).unwrap();
    println!("{kills} kills, {totals:?}");
    assert!(kills > 1, "an OSD and the monitor were to be killed");
}
