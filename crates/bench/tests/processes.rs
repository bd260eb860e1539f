//! Tests of the study with real processes: servers, clients and a real ZooKeeper.
//!
//! The program that a study starts as its servers is this test here, so that it needs no other package; therefore it has no
//! test harness: without the arguments of a server it runs the tests.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;

use clap::Parser;

#[derive(Parser)]
enum Program {
    Serve(Serve),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("serve") => match Program::parse() {
            Program::Serve(server) => serve(&server),
        },
        // A harness would answer this; these tests always run together.
        Some("--list") => ExitCode::SUCCESS,
        _ => {
            // Most of them wait: for windows to pass, and for peers to start.
            let all = Mutex::new(ALL.iter());
            let next = || all.lock().unwrap().next();
            std::thread::scope(|scope| {
                for _ in 0..LANES {
                    scope.spawn(|| std::iter::from_fn(next).for_each(|test| test()));
                }
            });
            ExitCode::SUCCESS
        }
    }
}

/// The number of tests that run at once.
const LANES: usize = 3;

/// The tests, those first that take longest.
static ALL: [fn(); 10] = [
    logs_are_appended_to_beside_their_peers,
    clients_and_servers_are_processes_of_their_own,
    waiters_are_served_and_memory_is_counted,
    updates_are_live_at_all_servers_by_every_way,
    an_interrupted_study_keeps_what_it_measured_and_leaves_nothing,
    methods_are_called_beside_their_peers,
    locks_are_granted_by_servers_of_their_own,
    figures_come_from_processes_too,
    overlapping_locks_are_granted_one_after_the_other,
    walks_are_processes_of_their_own,
];

/// The arguments with which the study starts its servers.
#[derive(clap::Args)]
struct Serve {
    #[arg(long)]
    listen: String,
    #[arg(long)]
    open: bool,
    #[arg(long, value_delimiter = ',')]
    members: Vec<String>,
    #[arg(long)]
    store: String,
    #[arg(long)]
    durability: Option<String>,
    #[arg(long)]
    snapshot_bytes: Option<u64>,
    #[arg(long)]
    no_pacing: bool,
    #[arg(long)]
    region_statistics: bool,
    #[arg(long)]
    lock_table: Option<String>,
    #[arg(long)]
    metrics: String,
    #[arg(long)]
    log: String,
}

/// Runs a server with the functions that the study needs, until it is killed.
fn serve(server: &Serve) -> ExitCode {
    assert_eq!((server.metrics.as_str(), server.log.as_str()), ("none", "error"));
    let options = nacre_daemon::ServerOptions {
        store: Some(server.store.parse().unwrap()),
        lock: true,
        meta: true,
        lock_table: match server.lock_table.as_deref() {
            Some("unrolled") => nacre_daemon::Indexing::Unrolled,
            _ => nacre_daemon::Indexing::Described,
        },
        listen: vec![server.listen.clone().into()],
        open: server.open,
        members: server.members.clone(),
        http: None,
        durability: server.durability.as_deref().map(|text| text.parse().unwrap()),
        snapshot_bytes: server.snapshot_bytes,
        pacing: !server.no_pacing,
        region_statistics: server.region_statistics,
        ..Default::default()
    };
    let daemon = nacre_daemon::Daemon::start(&options).unwrap();
    println!("listening on {}", daemon.addresses()[0]);
    loop {
        std::thread::park();
    }
}

/// Runs a study, and returns the results that it writes.
fn study(words: &str) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_nacre-bench"));
    command.arg("--nacre").arg(std::env::current_exe().unwrap()).args(words.split_whitespace());
    let ended = command.arg("--results").arg(&file).output().unwrap();
    assert!(ended.status.success(), "{words}: {}", String::from_utf8_lossy(&ended.stderr));
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Runs the study of updates.
fn results(words: &str) -> serde_json::Value {
    study(&format!("rmw --warm-up 50ms --window 500ms {words}"))
}

fn clients_and_servers_are_processes_of_their_own() {
    let results = results("--servers 3 --clients 2 --concurrency 8 --blocks 4 --peers all --repeat 2");
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 7);
    for one in series {
        // On a busy machine a peer may get nothing done in one of the short windows.
        assert!(one["updates_per_s"]["max"].as_f64().unwrap() > 0.0, "{one}");
        for repetition in one["repetitions"].as_array().unwrap() {
            let checked = &repetition["checked"];
            // Only the way that does not coordinate may lose anything; all others would have failed the run.
            let lost = checked["lost"].as_u64().unwrap();
            assert!(lost == 0 || one["point"]["system"] == "none", "{one}");
            assert!(checked["updates"].as_u64().unwrap() >= repetition["updates"].as_u64().unwrap());
        }
    }
    println!("clients and servers are processes of their own: ok");
}

fn figures_come_from_processes_too() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let results =
        results(&format!("--figure 3,5 --servers 2 --clients 2 --concurrency 32 --repeat 1 --out {out}"));
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 6 + 2);
    for name in ["figure-3", "figure-5"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
    // Without pacing, 64 updaters of 32 blocks fail so often that every server must have counted it.
    let paper = series.iter().find(|one| one["point"]["label"] == "as in the paper").unwrap();
    let regions = paper["repetitions"][0]["regions"].as_array().unwrap();
    assert!(regions.len() <= 32 && !regions.is_empty(), "{}", regions.len());
    assert!(regions.iter().any(|region| region["failures_in_a_row_max"].as_u64().unwrap() > 0));
    println!("figures come from processes too: ok");
}

/// Runs the study of locks.
fn lock_results(words: &str) -> serde_json::Value {
    let repeat = if words.contains("--repeat") { "" } else { "--repeat 2" };
    let bound = if words.contains("--bound") { "" } else { "--bound 300ms" };
    study(&format!("locks {bound} {repeat} {words}"))
}

fn locks_are_granted_by_servers_of_their_own() {
    let results = lock_results("--pairs 1,2 --regions 4096 --separations 128 --bound 200ms");
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 2 * (9 + 3));
    for one in series {
        let (point, regions) = (&one["point"], one["regions"].as_u64().unwrap());
        let (pairs, method) = (point["pairs"].as_u64().unwrap(), point["method"].as_str().unwrap());
        assert!((1..=4096).contains(&regions));
        assert_eq!(one["repetitions"].as_array().unwrap().len(), 2);
        for repetition in one["repetitions"].as_array().unwrap() {
            let of = |name: &str| repetition[name].as_u64().unwrap();
            // 4,096 regions 128 bytes apart are in 8 stripes, half of them at each of two servers.
            let cut = match method {
                "posix" => regions,
                "list" => (regions / pairs).div_ceil(64) * pairs,
                _ => pairs,
            };
            let requests = cut * of("operations") * pairs;
            assert_eq!(of("requests_held"), requests, "{one}");
            assert!(of("grants") >= requests && of("calls") >= 2 * requests, "{one}");
            // Leases that are renewed meanwhile are calls too.
            if point["protocol"] == "one-try" {
                assert_eq!(of("grants"), requests, "{one}");
            }
            assert!(repetition["acquired_per_s"].as_f64().unwrap() > 0.0);
            assert!(repetition["released_per_s"].as_f64().unwrap() > 0.0);
        }
    }
    println!("locks are granted by servers of their own: ok");
}

fn overlapping_locks_are_granted_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let results = lock_results(&format!(
        "--figure 6,simulated --contended 2 --overlaps 0,50,100 --regions 2048 --simulated-clients 20 \
         --simulated-servers 4 --methods list,datatype --protocols one-try,alt-try --repeat 1 --out {out}"
    ));
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 3 * (4 + 2));
    for one in series {
        for repetition in one["repetitions"].as_array().unwrap() {
            let of = |name: &str| repetition[name].as_u64().unwrap();
            assert!(repetition["released_per_s"].is_null(), "both are one: {one}");
            assert!(of("grants") >= 2 * of("operations"), "{one}");
        }
    }
    let simulated = results["simulated"].as_array().unwrap();
    assert!(simulated.iter().any(|run| run["clients"] == 20 && run["overlap_percent"] == 100));
    for name in ["figure-6a", "figure-6b", "simulated-0", "simulated-100"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
    println!("overlapping locks are granted one after the other: ok");
}

fn waiters_are_served_and_memory_is_counted() {
    let results = lock_results("--targets --quick --regions 8192 --contended 2 --repeat 1");
    let reach = &results["targets"];
    let targets = reach["targets"].as_array().unwrap();
    for measure in
        ["hand-over", "normalised description", "interleaved", "irregular", "conflict test", "restriction"]
    {
        let of_goal = |target: &&serde_json::Value| target["measure"].as_str().unwrap().contains(measure);
        let target = targets.iter().find(of_goal).unwrap_or_else(|| panic!("no target on {measure}"));
        assert!(target["measured"].as_f64().unwrap().is_finite(), "{target}");
    }
    for service in ["nacre", "zookeeper", "etcd", "kernel (OFD)"] {
        let of_service = |one: &&serde_json::Value| one["service"] == service;
        let loops: Vec<_> = reach["loops"].as_array().unwrap().iter().filter(of_service).collect();
        assert_eq!(loops.len(), 2, "{service}: {:?}", reach["missing"]);
        // On a busy machine the others may not be done with anything in so short a time.
        let done = |one: &&serde_json::Value| one["per_s"]["min"].as_f64().unwrap() > 0.0;
        assert!(loops.iter().all(done) || service == "zookeeper" || service == "etcd", "{service}");
    }
    println!("waiters are served and memory is counted: ok");
}

fn walks_are_processes_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("tree");
    let shape = "--directories 100 --files 2000 --large-entries 1000 --hard-links 50 --symbolic-links 50";
    let only = "--only floor,find,du,bfs,fd,floor-names,fd-names";
    let results = study(&format!("walk {only} --repeat 2 {shape} --at {}", root.display()));
    assert!(!root.exists(), "the tree is removed");
    // Where it was is nobody's business.
    assert_eq!(results["root"], "tree");
    let entries = results["manifest"]["totals"]["entries"].as_u64().unwrap();
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 7);
    for one in series {
        // Everybody finds everything, each in its own way to count.
        assert_eq!(one["counted"], one["expected"], "{one}");
        if one["system"] != "du" {
            assert_eq!(one["counted"]["entries"], entries, "{one}");
        }
        let repetitions = one["repetitions"].as_array().unwrap();
        assert_eq!(repetitions.len(), 2);
        for repetition in repetitions {
            let of = |name: &str| repetition[name].as_f64().unwrap();
            assert!(of("wall_ms") > 0.0 && of("user_ms") + of("system_ms") > 0.0, "{one}");
        }
        assert!(one["cpu_to_floor"]["median"].as_f64().unwrap() > 0.0, "{one}");
    }
    println!("walks are processes of their own: ok");
}

fn logs_are_appended_to_beside_their_peers() {
    let folder = tempfile::tempdir().unwrap();
    let results = study(&format!("append --quick --out {}", folder.path().display()));
    let series = results["series"].as_array().unwrap();
    let subjects: BTreeSet<&str> =
        series.iter().map(|one| one["point"]["subject"].as_str().unwrap()).collect();
    assert_eq!(subjects, BTreeSet::from(["disk", "log", "nats", "object", "redis"]));
    for one in series {
        let measured = &one["repetitions"][0];
        assert!(measured["per_second"].as_f64().unwrap() > 0.0, "{one}");
        assert!(measured["latency"]["p99_us"].as_f64().unwrap() > 0.0, "{one}");
        let changes = measured["reshaped_ms"].as_array().map_or(0, Vec::len);
        assert_eq!(changes > 0, one["point"]["reshape_ms"].is_u64(), "{one}");
    }
    assert_eq!(results["recoveries"][0]["entries"], 10_000);
    let service = &results["services"][0];
    assert!(service["measured"] == true && service["entry_ns"].as_u64().unwrap() > 0, "{service}");
    let simulated = results["simulated"].as_array().unwrap();
    assert!(simulated.iter().any(|run| run["servers"] == 1000), "{simulated:?}");
    assert!(simulated.iter().all(|run| run["per_second"].as_f64().unwrap() > 0.0), "{simulated:?}");
    let targets = results["targets"].as_array().unwrap();
    assert!(targets.len() > 8, "{targets:?}");
    for name in ["sequencers", "latency", "simulated-volatile"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
    println!("logs are appended to beside their peers: ok");
}

fn updates_are_live_at_all_servers_by_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let brief = "--updates 8 --pace 5ms --window 50ms --subscribers 12";
    let results = study(&format!("propagate --quick {brief} --out {}", folder.path().display()));
    let series = results["series"].as_array().unwrap();
    let ways: BTreeSet<&str> = series.iter().map(|one| one["point"]["way"].as_str().unwrap()).collect();
    assert_eq!(ways, BTreeSet::from(["ask", "watch", "map", "push", "tree", "gossip", "reflect"]));
    // Three servers by each way, and twelve subscribers by three of them.
    assert_eq!(series.len(), 7 + 3);
    for one in series {
        let measured = &one["repetitions"][0];
        let of = |name: &str| measured["live"][name].as_f64().unwrap();
        assert!(of("p50_us") > 0.0 && of("p50_us") <= of("p90_us") && of("p90_us") <= of("max_us"), "{one}");
        assert_eq!(measured["hundredths_us"].as_array().unwrap().len(), 101);
        // Each process called the new version before and after; servers that ask were called for each update.
        assert!(measured["verified"].as_u64().unwrap() >= 6, "{one}");
        assert!(measured["store_memory_bytes"].as_u64().unwrap() > 0, "{one}");
    }
    let commits = results["commits"].as_array().unwrap();
    assert_eq!(commits.len(), 2 * (2 + 2));
    let rate = |one: &serde_json::Value| one["repetitions"][0]["per_second"].as_f64().unwrap();
    assert!(commits.iter().map(rate).sum::<f64>() > 0.0, "{commits:?}");
    let simulated = results["simulated"].as_array().unwrap();
    assert_eq!(simulated.len(), 5);
    assert!(
        simulated.iter().all(|run| run["servers"] == 1000 && run["live"]["max_us"].as_f64().unwrap() > 0.0)
    );
    for name in ["live-3-volatile", "live-12-volatile", "commits"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
    println!("updates are live at all servers by every way: ok");
}

fn methods_are_called_beside_their_peers() {
    let folder = tempfile::tempdir().unwrap();
    let brief = "--concurrency 16 --window 100ms --watchers 40";
    let results = study(&format!("class --quick {brief} --out {}", folder.path().display()));
    let series = results["series"].as_array().unwrap();
    // A call that counted wrong would have failed the run.
    assert_eq!(series.len(), 6 + 7);
    assert!(series.iter().any(|one| one["point"]["operation"] == "redis-add"), "{series:?}");
    for one in series.iter().filter(|one| one["point"]["local"] == true) {
        assert!(one["repetitions"][0]["per_second"].as_f64().unwrap() > 0.0, "{one}");
    }
    let disturbed = &results["disturbed"][0];
    // No call is stopped before its time is over.
    assert!(disturbed["stopped"].as_u64().unwrap() > 0, "{disturbed}");
    assert!(
        disturbed["median_ms"].as_f64().unwrap() >= disturbed["budget_ms"].as_f64().unwrap(),
        "{disturbed}"
    );
    let notified = &results["notified"][0];
    assert_eq!((notified["watchers"].as_u64(), notified["connections"].as_u64()), (Some(40), Some(4)));
    let last = |name: &str| notified[name]["max"].as_f64().unwrap();
    assert!(last("received_ms") > 0.0 && last("received_ms") <= last("acknowledged_ms"), "{notified}");
    for name in ["rates", "in-process"] {
        let svg = std::fs::read_to_string(folder.path().join(format!("{name}.svg"))).unwrap();
        assert!(roxmltree::Document::parse(&svg).is_ok());
    }
    println!("methods are called beside their peers: ok");
}

fn an_interrupted_study_keeps_what_it_measured_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (files, results) = (folder.path().join("files"), folder.path().join("results.json"));
    std::fs::create_dir(&files).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nacre-bench"));
    command.arg("--nacre").arg(std::env::current_exe().unwrap());
    // The points that are left take longer than this process stands still on a busy machine.
    command.args("rmw --figure 2 --quick --repeat 1 --warm-up 10ms --window 1500ms".split_whitespace());
    command.arg("--folder").arg(&files).arg("--out").arg(folder.path()).arg("--results").arg(&results);
    let mut study = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The results of the first number of blocks are written before the next is measured.
    while !results.exists() {
        assert!(study.try_wait().unwrap().is_none(), "the study ended before anything was measured");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let pid = rustix::process::Pid::from_child(&study);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ended = study.wait_with_output().unwrap();
    assert_eq!(ended.status.signal(), Some(2), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "nacre: interrupted\n");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("Not complete"), "{ended:?}");
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(results).unwrap()).unwrap();
    assert_eq!(results["ended_early"], "interrupted");
    let series = results["series"].as_array().unwrap();
    // Of seven numbers of blocks, each by two protocols.
    assert!((2..14).contains(&series.len()), "{}", series.len());
    assert!(series[0]["updates_per_s"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(std::fs::read_dir(files).unwrap().count(), 0, "the servers' folders are removed");
    println!("an interrupted study keeps what it measured and leaves nothing: ok");
}
