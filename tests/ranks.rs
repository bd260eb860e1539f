//! `nacre rank`: several metadata ranks, and sequencers that move between them while programs use them.

mod harness;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::reflect::until;
use harness::{PATIENCE, Server, file, folder};
use serde_json::{Value, json};

/// Starts a daemon that acts for a rank of a store that another daemon keeps, or stands by for it.
#[track_caller]
fn rank(folder: &Path, name: &str, store: &str, number: &str) -> Server {
    let address = format!("unix:{}", folder.join(name).display());
    Server::listen(&address, store, &["--roles", "store,meta", "--meta-rank", number])
}

/// Starts the server of the store. Returns it with its uri: commands on it wait for longer than a rank stands still on a busy machine.
#[track_caller]
fn keeper(folder: &Path) -> (Server, String) {
    let mut keeper = Server::start(&file(&folder.join("store")), &["--roles", "store"]);
    let store = keeper.uri.clone();
    keeper.uri.push_str("?repeat_timeout=60s");
    (keeper, store)
}

/// Waits until a daemon of each of the ranks has the authority, and returns what is listed of them.
#[track_caller]
fn wait_for_ranks(keeper: &Server, count: usize) -> Vec<Value> {
    let begun = Instant::now();
    loop {
        let listed = keeper.run(["rank", "ls", "--sequencers", "100", "--json"]).json();
        let listed = listed.as_array().unwrap();
        if listed.len() == count && listed.iter().all(|rank| rank.get("queue").is_some()) {
            return listed.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "{listed:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the objects of the sequencers that a listed rank has.
fn objects(rank: &Value) -> BTreeSet<String> {
    let busiest = rank["busiest"].as_array().unwrap();
    busiest.iter().map(|sequencer| sequencer["object"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_sequencer_moves_by_command_while_it_is_used() {
    let folder = folder();
    let (keeper, store) = keeper(folder.path());
    let first = rank(folder.path(), "first", &store, "0");
    let _second = rank(folder.path(), "second", &store, "1");
    keeper.run(["sequencer", "create", "log"]).ok();
    wait_for_ranks(&keeper, 2);
    let none = keeper.run(["rank", "move", "none", "1"]);
    none.failed(1, &["cannot move sequencer \"none\" to rank 1", "nacre sequencer ls"]);
    keeper.run(["rank", "move", "log", "7"]).failed(1, &["there is no metadata rank 7", "nacre rank ls"]);
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let more = |many: usize| {
        let (begun, before) = (Instant::now(), count.load(Ordering::Relaxed));
        while count.load(Ordering::Relaxed) < before + many {
            assert!(begun.elapsed() < PATIENCE, "few positions are taken");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let taken = std::thread::scope(|scope| {
        let takers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let mut taken = Vec::new();
                    while !over.load(Ordering::Relaxed) {
                        let text = keeper.run(["sequencer", "next", "log", "-n", "5"]).text();
                        taken.extend(text.lines().map(|line| line.parse::<u64>().unwrap()));
                        count.fetch_add(5, Ordering::Relaxed);
                    }
                    taken
                })
            })
            .collect();
        for (to, mode) in
            [("1", "client"), ("0", "client"), ("1", "proxy"), ("1", "client"), ("0", "proxy-half")]
        {
            more(30);
            assert_eq!(keeper.run(["rank", "move", "log", to, "--mode", mode]).text(), "");
            more(30);
            let listed = wait_for_ranks(&keeper, 2);
            let has = |rank: usize| objects(&listed[rank]).contains("nacre/sequencers/log");
            assert!(has(to.parse().unwrap()) && !has(1 - to.parse::<usize>().unwrap()), "{listed:?}");
        }
        over.store(true, Ordering::Relaxed);
        takers.into_iter().map(|taker| taker.join().unwrap()).collect::<Vec<Vec<u64>>>()
    });
    for positions in &taken {
        assert!(positions.is_sorted(), "a taker's positions went back: {positions:?}");
    }
    let count: usize = taken.iter().map(Vec::len).sum();
    let all: BTreeSet<u64> = taken.into_iter().flatten().collect();
    assert_eq!(all.len(), count, "a position was taken twice");

    // What is at another rank needs rank 0 no more, and what is not there is said to be away.
    keeper.run(["rank", "move", "log", "1"]).ok();
    keeper.run(["fail", "1"]).failed(1, &["cannot hand metadata rank 1 over", "no standby"]);
    first.kill();
    let next: u64 = keeper.run(["sequencer", "next", "log"]).text().parse().unwrap();
    assert!(!all.contains(&next));
    let listed = keeper.run(["rank", "ls"]).text();
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let third = rank(folder.path(), "third", &store, "1");
    let begun = Instant::now();
    while keeper.run(["fail", "1"]).code != 0 {
        assert!(begun.elapsed() < PATIENCE);
    }
    let after: u64 = keeper.run(["sequencer", "next", "log"]).text().parse().unwrap();
    assert!(after > next, "{after}");
    drop(third);
}

#[test]
fn sequencers_below_a_pinned_directory_are_its_ranks() {
    let folder = folder();
    let (keeper, store) = keeper(folder.path());
    let _ranks =
        [("zero", "0"), ("one", "1")].map(|(name, number)| rank(folder.path(), name, &store, number));
    wait_for_ranks(&keeper, 2);
    keeper.run(["fs", "mkdir", "/jobs"]).ok();
    keeper.run(["fs", "mkdir", "/jobs/deep"]).ok();
    let use_it = |path: &str, position: &str| {
        assert_eq!(keeper.run(["sequencer", "next", path]).text(), position);
    };
    for path in ["/jobs/before", "/jobs/deep/before", "/outside"] {
        keeper.run(["sequencer", "create", path]).ok();
        use_it(path, "0");
    }
    assert_eq!(keeper.run(["rank", "pin", "/jobs", "1"]).text(), "");
    keeper.run(["sequencer", "create", "/jobs/deep/after"]).ok();
    for (path, position) in
        [("/jobs/before", "1"), ("/jobs/deep/before", "1"), ("/outside", "1"), ("/jobs/deep/after", "0")]
    {
        use_it(path, position);
    }
    let listed = wait_for_ranks(&keeper, 2);
    assert_eq!([0, 1].map(|rank| objects(&listed[rank]).len()), [1, 3], "{listed:?}");
    assert_eq!(listed[1]["pinned_inodes"].as_array().unwrap().len(), 1);
    // A file is nothing that can be pinned.
    keeper.run_with(["fs", "put", "-", "/jobs/file"], b"x").ok();
    keeper.run(["rank", "pin", "/jobs/file", "1"]).failed(1, &["cannot pin /jobs/file", "not a directory"]);
    keeper.run(["rank", "pin", "/jobs", "7"]).failed(1, &["cannot pin /jobs", "there is no metadata rank 7"]);
    // Freed, it keeps what it has, which may be moved with all that is below a path.
    keeper.run(["rank", "unpin", "/jobs"]).ok();
    keeper.run(["sequencer", "create", "/jobs/late"]).ok();
    use_it("/jobs/late", "0");
    keeper.run(["rank", "move", "/jobs/deep", "0"]).ok();
    use_it("/jobs/deep/before", "2");
    use_it("/jobs/deep/after", "1");
    let listed = wait_for_ranks(&keeper, 2);
    assert_eq!([0, 1].map(|rank| objects(&listed[rank]).len()), [4, 1], "{listed:?}");
    assert_eq!(listed[1]["pinned_inodes"], json!([]));
}

#[test]
fn a_sequencer_stays_if_the_rank_that_the_balancer_moves_it_to_is_killed() {
    let folder = folder();
    let keeper = Server::start(&file(&folder.path().join("store")), &["--roles", "store"]);
    // Before the ranks begin, which then know it from their first pause on.
    keeper.run(["balance", "set", "--tick", "3s"]).ok();
    let _first = rank(folder.path(), "first", &keeper.uri, "0");
    let second = rank(folder.path(), "second", &keeper.uri, "1");
    keeper.run(["sequencer", "create", "log"]).ok();
    wait_for_ranks(&keeper, 2);
    let before: u64 = keeper.run(["sequencer", "next", "log"]).text().parse().unwrap();
    let published_at = || {
        let ended = keeper.run(["balance", "explain", "--policy", "hash", "--json"]);
        (ended.code == 0).then(|| ended.json()["ranks"][1]["at_ms"].as_u64())?
    };
    let published = until("both ranks have published", published_at);
    // Without a policy, it is not kept yet.
    keeper.run(["balance", "pin", "sequencer:log", "1"]).ok();
    // It still counts as one that is there when the other one decides, and from its next tick on for the longest time.
    until("the other one publishes again", || published_at().filter(|at| *at != published));
    second.kill();
    keeper.run_with(["balance", "set", "-", "--name", "idle"], b"return {}").ok();
    let failures = || {
        let log = keeper.run(["log", "-n", "1000"]).text();
        log.matches("cannot move sequencer:log to rank 1").count()
    };
    until("the failure is reported", || (failures() > 0).then_some(()));
    let after: u64 = keeper.run(["sequencer", "next", "log"]).text().parse().unwrap();
    assert!(after > before, "{after} after {before}");
    let moved = keeper.run(["balance", "history", "--moves", "--json"]).json();
    assert_eq!(moved, json!([]));
    assert_eq!(failures(), 1);
}
