//! `nacre rank`: several metadata ranks, and sequencers that move between them while programs use them.

mod harness;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use harness::reflect::until;
use harness::{PATIENCE, Server, file, folder, program, run_with, signal_process};
use rustix::process::Signal;
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

/// Ends those who take positions, also if the test fails, which then waits for them.
struct OverAtEnd<'a>(&'a AtomicBool);

impl Drop for OverAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
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
        let over_at_end = OverAtEnd(&over);
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
        drop(over_at_end);
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
    // The rank that is away is named, and not a server that was asked instead of it. A store that stands still names none.
    let begun = Instant::now();
    loop {
        let mut command = program();
        command.args(["--store", &format!("{store}?repeat_timeout=500ms"), "fail", "0"]);
        let ended = run_with(command, b"");
        assert_eq!(ended.code, 1, "{ended:?}");
        if ended.stderr.contains("metadata rank 0 does not answer") {
            assert!(ended.stderr.contains("/first") && ended.stderr.contains("--meta-rank"), "{ended:?}");
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{ended:?}");
    }
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

/// Returns the number of the inode at a path.
#[track_caller]
fn inode(keeper: &Server, path: &str) -> u64 {
    keeper.run(["fs", "stat", path, "--json"]).json()[0]["inode"].as_u64().unwrap()
}

/// Returns the objects of the sequencers at paths.
#[track_caller]
fn objects_at(keeper: &Server, paths: &[String]) -> BTreeSet<String> {
    paths.iter().map(|path| format!("nacre/fs/s/{:016x}", inode(keeper, path))).collect()
}

/// Sends half of the load of rank 0's subtrees to rank 1, as long as that one's have none.
const HALF_OF_SUBTREES: &[u8] = b"
local targets = {}
for rank in pairs(mds) do targets[rank] = 0 end
if whoami == 0 and mds[1] and mds[1]['load.subtree'] < 0.01 then
  targets[1] = mds[0]['load.subtree'] / 2
end
return targets";

#[test]
fn a_busy_subtree_goes_to_another_rank_as_a_whole_while_it_is_used() {
    let folder = folder();
    let (keeper, store) = keeper(folder.path());
    keeper.run(["balance", "set", "--tick", "2s"]).ok();
    let _ranks = [("zero", "0"), ("one", "1"), ("two", "2")]
        .map(|(name, number)| rank(folder.path(), name, &store, number));
    wait_for_ranks(&keeper, 3);
    let paths = ["/red", "/blue"].map(|directory| {
        keeper.run(["fs", "mkdir", directory]).ok();
        keeper.run(["rank", "pin", directory, "0"]).ok();
        let paths = ["a", "b", "c"].map(|name| format!("{directory}/{name}"));
        paths.iter().for_each(|path| drop(keeper.run(["sequencer", "create", path]).ok()));
        paths
    });
    let over = AtomicBool::new(false);
    let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let more = |rounds: usize| {
        for count in &counts {
            let before = count.load(Ordering::Relaxed);
            until("positions are taken", || (count.load(Ordering::Relaxed) >= before + rounds).then_some(()));
        }
    };
    let take = |paths: &[String; 3], count: &AtomicUsize| {
        let mut taken = <[Vec<u64>; 3]>::default();
        while !over.load(Ordering::Relaxed) {
            for (path, taken) in paths.iter().zip(&mut taken) {
                let text = keeper.run(["sequencer", "next", path, "-n", "5"]).text();
                taken.extend(text.lines().map(|line| line.parse::<u64>().unwrap()));
            }
            count.fetch_add(1, Ordering::Relaxed);
        }
        taken
    };
    let (moved, taken) = std::thread::scope(|scope| {
        let over_at_end = OverAtEnd(&over);
        let begin = |(paths, count)| scope.spawn(move || take(paths, count));
        let takers: Vec<_> = paths.iter().zip(&counts).map(begin).collect();
        more(2);
        keeper.run_with(["balance", "set", "-", "--name", "half"], HALF_OF_SUBTREES).ok();
        let moved = until("a subtree has moved", || {
            let moves = keeper.run(["balance", "history", "--moves", "--json"]).json();
            Some(moves.as_array().unwrap().clone()).filter(|moves| !moves.is_empty())
        });
        more(2);
        drop(over_at_end);
        let taken: Vec<[Vec<u64>; 3]> = takers.into_iter().map(|taker| taker.join().unwrap()).collect();
        (moved, taken)
    });
    for positions in taken.iter().flatten() {
        assert!(!positions.is_empty());
        assert!(positions.windows(2).all(|two| two[0] < two[1]), "taken twice, or going back: {positions:?}");
    }
    let [made] = &moved[..] else { panic!("more than one has moved: {moved:?}") };
    assert_eq!((&made["from"], &made["to"], &made["pinned"]), (&json!(0), &json!(1), &json!(false)));
    let (goes, stays) = match made["resource"].as_str().unwrap() {
        "subtree:/red" => (0, 1),
        "subtree:/blue" => (1, 0),
        other => panic!("{other} has moved"),
    };
    let listed = wait_for_ranks(&keeper, 3);
    assert_eq!(objects(&listed[0]), objects_at(&keeper, &paths[stays]));
    assert_eq!(objects(&listed[1]), objects_at(&keeper, &paths[goes]));
    assert!(objects(&listed[2]).is_empty(), "{listed:?}");
    let directories = [stays, goes].map(|at| inode(&keeper, ["/red", "/blue"][at]));
    let pinned = [0, 1].map(|rank: usize| listed[rank]["pinned_inodes"].clone());
    assert_eq!(pinned, directories.map(|directory| json!([directory])));
    // What is created there is the new rank's as well.
    let late = format!("{}/late", ["/red", "/blue"][goes]);
    keeper.run(["sequencer", "create", &late]).ok();
    assert_eq!(keeper.run(["sequencer", "next", &late]).text(), "0");
    let listed = wait_for_ranks(&keeper, 3);
    assert!(objects(&listed[1]).is_superset(&objects_at(&keeper, &[late])), "{listed:?}");
}

/// The variable with the store of a holder, the inode of its sequencer, the file that it makes once it caches that, and, if it is
/// to take positions from then on, the file into which it writes them.
const HOLDER: &str = "NACRE_TEST_HOLDER";

/// Caches a sequencer, in a process that another test starts; otherwise does nothing.
#[test]
fn a_holder_of_a_sequencer() {
    let Ok(plan) = std::env::var(HOLDER) else { return };
    let words: Vec<&str> = plan.split(' ').collect();
    let ino = nacre::fs::Ino(words[1].parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = nacre::open(words[0]).unwrap();
        let sequencer = store.sequencer_inode(ino).await.unwrap();
        while sequencer.try_next().is_none() {
            // A rank may not answer in time on a busy machine.
            let _ = sequencer.next().await;
        }
        let mut positions = words.get(3).map(|path| std::fs::File::create(path).unwrap());
        std::fs::write(words[2], "").unwrap();
        while let Some(positions) = &mut positions {
            // Its lease may be over, and its rank may be another one by now.
            if let Ok(position) = sequencer.next().await {
                writeln!(positions, "{position}").unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::future::pending::<()>().await;
    });
}

/// A process that caches a sequencer, and is stopped, so that it gives nothing back. It is killed when this is dropped.
struct Holder(Child);

impl Holder {
    #[track_caller]
    fn start(store: &str, inode: u64, ready: &Path, positions: Option<&Path>) -> Holder {
        let files = [Some(ready), positions].into_iter().flatten();
        let files: Vec<String> = files.map(|path| path.display().to_string()).collect();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_holder_of_a_sequencer", "--nocapture"])
            .env(HOLDER, format!("{store} {inode} {}", files.join(" ")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let holder = Holder(child);
        until("the sequencer is cached", || ready.exists().then_some(()));
        signal_process(&holder.0, Signal::STOP);
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Takes a position of each sequencer, and checks that it is a later one than before.
#[track_caller]
fn take_each(keeper: &Server, paths: &[String], last: &mut [Option<u64>]) {
    for (path, last) in paths.iter().zip(last) {
        let position: u64 = keeper.run(["sequencer", "next", path]).text().parse().unwrap();
        assert!(*last < Some(position), "{path}: {position} after {last:?}");
        *last = Some(position);
    }
}

#[test]
fn a_subtree_gets_to_a_rank_that_is_killed_and_started_again_meanwhile() {
    let folder = folder();
    let (keeper, store) = keeper(folder.path());
    keeper.run(["balance", "set", "--tick", "1s"]).ok();
    // What a holder that stands still has is not lost to it.
    const LONG: &str = "600s";
    let start = |name: &str, number: &str, lease: &str| {
        let address = format!("unix:{}", folder.path().join(name).display());
        let flags = ["--roles", "store,meta", "--meta-rank", number, "--meta-lease", lease];
        Server::listen(&address, &store, &flags)
    };
    let (_zero, one) = (start("zero", "0", LONG), start("one", "1", LONG));
    wait_for_ranks(&keeper, 2);
    keeper.run(["fs", "mkdir", "/jobs"]).ok();
    let paths = ["a", "b", "c"].map(|name| format!("/jobs/{name}"));
    paths.iter().for_each(|path| drop(keeper.run(["sequencer", "create", path]).ok()));
    let (all, held, mut last) = (objects_at(&keeper, &paths), inode(&keeper, &paths[0]), [None; 3]);
    take_each(&keeper, &paths, &mut last);
    keeper.run(["rank", "pin", "/jobs", "0"]).ok();
    keeper.run_with(["balance", "set", "-", "--name", "idle"], b"return {}").ok();
    // All but what is held has moved.
    let until_one_is_left = |from: &str, to: &str| {
        until("one sequencer is left", || {
            let shown = keeper.run(["balance", "show", "--json"]).json();
            let migrations = shown["migrations"].as_array()?.clone();
            let shown = migrations.into_iter().find(|one| one["resource"] == "subtree:/jobs")?;
            (shown["from"] == from
                && shown["to"] == to
                && shown["phase"] == "moving"
                && shown["members"] == 1)
                .then_some(())
        });
        until("it is said", || {
            keeper.run(["balance", "show"]).text().contains("1 sequencer left").then_some(())
        });
    };
    let mut until_all_are_at = |rank: usize| {
        until("all are at one rank", || {
            // A rank shows what was used there.
            take_each(&keeper, &paths, &mut last);
            let listed = wait_for_ranks(&keeper, 2);
            (objects(&listed[rank]) == all && objects(&listed[1 - rank]).is_empty()).then_some(())
        });
        let listed = wait_for_ranks(&keeper, 2);
        assert_eq!(listed[rank]["pinned_inodes"], json!([inode(&keeper, "/jobs")]));
    };

    // The rank that gets it is killed, while the one that it leaves waits for the holder.
    let holder = Holder::start(&store, held, &folder.path().join("ready"), None);
    keeper.run(["balance", "pin", "subtree:/jobs", "1"]).ok();
    until_one_is_left("rank 0", "rank 1");
    one.kill();
    signal_process(&holder.0, Signal::CONT);
    let _one = start("one-again", "1", "1s");
    wait_for_ranks(&keeper, 2);
    until_all_are_at(1);

    // What somebody has moved out of it by hand belongs to it all the same.
    keeper.run(["rank", "move", "/jobs/b", "0"]).ok();
    until_all_are_at(1);
}

#[test]
fn a_subtree_leaves_a_rank_that_is_killed_meanwhile_once_a_holder_s_lease_is_over() {
    // On a machine that stands still for as long as the lease, it is over before the rank is killed.
    assert!(
        (0..3).any(|_| leaves_a_rank_that_is_killed()),
        "the holder has lost its lease too early each time"
    );
}

/// Kills the rank that a subtree leaves while it waits for a holder that stands still, and checks that the subtree gets to the other
/// one without a position that is taken twice. Returns false if the rank had waited long enough before.
fn leaves_a_rank_that_is_killed() -> bool {
    let folder = folder();
    let (keeper, store) = keeper(folder.path());
    keeper.run(["balance", "set", "--tick", "1s"]).ok();
    let start = |name: &str, number: &str| {
        let address = format!("unix:{}", folder.path().join(name).display());
        // Long enough for the rank to be killed before, and short enough for the next one to be waited for.
        let flags = ["--roles", "store,meta", "--meta-rank", number, "--meta-lease", "20s"];
        Server::listen(&address, &store, &flags)
    };
    let (zero, _one) = (start("zero", "0"), start("one", "1"));
    wait_for_ranks(&keeper, 2);
    keeper.run(["fs", "mkdir", "/jobs"]).ok();
    let paths = ["a", "b", "c"].map(|name| format!("/jobs/{name}"));
    paths.iter().for_each(|path| drop(keeper.run(["sequencer", "create", path]).ok()));
    let (all, held, mut last) = (objects_at(&keeper, &paths), inode(&keeper, &paths[0]), [None; 3]);
    take_each(&keeper, &paths, &mut last);
    let mut taken: BTreeSet<u64> = last[0].into_iter().collect();
    keeper.run(["rank", "pin", "/jobs", "0"]).ok();
    keeper.run_with(["balance", "set", "-", "--name", "idle"], b"return {}").ok();
    let positions = folder.path().join("positions");
    let holder = Holder::start(&store, held, &folder.path().join("ready"), Some(&positions));
    keeper.run(["balance", "pin", "subtree:/jobs", "1"]).ok();
    let waits = until("one sequencer is left, or none", || {
        let shown = keeper.run(["balance", "show", "--json"]).json();
        let waits = shown["migrations"]
            .as_array()?
            .iter()
            .any(|one| one["resource"] == "subtree:/jobs" && one["phase"] == "moving" && one["members"] == 1);
        let moves = keeper.run(["balance", "history", "--moves", "--json"]).json();
        let is_over = !moves.as_array()?.is_empty();
        (waits || is_over).then_some(waits && !is_over)
    });
    if !waits {
        return false;
    }
    zero.kill();
    let _zero = start("zero-again", "0");
    wait_for_ranks(&keeper, 2);
    // The holder says nothing still. It may use what it was lent until its lease is over.
    until("all are at one rank", || {
        take_each(&keeper, &paths, &mut last);
        taken.extend(last[0]);
        let listed = wait_for_ranks(&keeper, 2);
        (objects(&listed[1]) == all && objects(&listed[0]).is_empty()).then_some(())
    });
    let listed = wait_for_ranks(&keeper, 2);
    assert_eq!(listed[1]["pinned_inodes"], json!([inode(&keeper, "/jobs")]));
    signal_process(&holder.0, Signal::CONT);
    let by_holder = until("the holder takes positions again", || {
        let text = std::fs::read_to_string(&positions).unwrap();
        // The last line may be the beginning of one.
        let (lines, _) = text.rsplit_once('\n')?;
        let by_holder: Vec<u64> = lines.lines().map(|line| line.parse().unwrap()).collect();
        (by_holder.last().copied() > last[0]).then_some(by_holder)
    });
    assert!(
        by_holder.windows(2).all(|two| two[0] < two[1]),
        "the holder's positions went back: {by_holder:?}"
    );
    let twice: Vec<&u64> = by_holder.iter().filter(|position| taken.contains(*position)).collect();
    assert!(twice.is_empty(), "positions that were taken twice: {twice:?}");
    true
}
