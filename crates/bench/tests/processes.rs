//! Tests of the study with real processes: servers, clients and a real ZooKeeper.
//!
//! The study starts its own program again as a server and as a client. Here that program is this test, so it has no
//! test harness: without the arguments of a server or a client it runs the tests.

use std::process::ExitCode;

use clap::Parser;
use nacre_bench::{rmw, walk};

#[derive(Parser)]
#[command(args_override_self = true)]
enum Program {
    #[command(subcommand)]
    Bench(nacre_bench::Command),
    Serve(Serve),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("serve" | "bench") => match Program::parse() {
            Program::Serve(server) => serve(&server),
            Program::Bench(command) => match nacre_bench::run(command, Default::default()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("{error}");
                    ExitCode::FAILURE
                }
            },
        },
        // A harness would answer this; these tests always run together.
        Some("--list") => ExitCode::SUCCESS,
        _ => {
            clients_and_servers_are_processes_of_their_own();
            figures_come_from_processes_too();
            walks_are_processes_of_their_own();
            ExitCode::SUCCESS
        }
    }
}

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
    metrics: String,
    #[arg(long)]
    log: String,
}

/// Runs a server with the functions that the study needs, until it is killed.
fn serve(server: &Serve) -> ExitCode {
    assert_eq!((server.metrics.as_str(), server.log.as_str()), ("none", "error"));
    let options = nacre_daemon::ServerOptions {
        store: Some(server.store.parse().unwrap()),
        listen: vec![server.listen.clone()],
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

fn arguments(words: &str) -> rmw::Args {
    let line = format!("program bench rmw --warm-up 50ms --window 300ms --repeat 2 {words}");
    match Program::try_parse_from(line.split_whitespace()).unwrap() {
        Program::Bench(nacre_bench::Command::Rmw(args)) => *args,
        _ => unreachable!("the line says bench rmw"),
    }
}

/// Returns the results that a run writes.
fn results(words: &str) -> serde_json::Value {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("results.json");
    let words = format!("{words} --results {}", file.display());
    rmw::run(&arguments(&words)).unwrap();
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn clients_and_servers_are_processes_of_their_own() {
    let results = results("--servers 3 --clients 2 --concurrency 8 --blocks 4 --peers all");
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 7);
    for one in series {
        assert!(one["updates_per_s"]["min"].as_f64().unwrap() > 0.0, "{one}");
        for repetition in one["repetitions"].as_array().unwrap() {
            let checked = &repetition["checked"];
            // Only the way that does not coordinate may lose anything; all others would have failed the run.
            let lost = checked["lost"].as_u64().unwrap();
            assert!(lost == 0 || one["point"]["coordination"] == "none", "{one}");
            assert!(checked["updates"].as_u64().unwrap() >= repetition["updates"].as_u64().unwrap());
        }
    }
    println!("clients and servers are processes of their own: ok");
}

fn figures_come_from_processes_too() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let results = results(&format!("--figure 3,5 --servers 2 --clients 2 --concurrency 32 --out {out}"));
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

fn walks_are_processes_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let (file, root) = (folder.path().join("results.json"), folder.path().join("tree"));
    let shape = "--directories 100 --files 2000 --large-entries 1000 --hard-links 50 --symbolic-links 50";
    let line = format!(
        "program bench walk --only floor,find,du,bfs,fd,floor-names,fd-names --repeat 2 {shape} --at {} --results {}",
        root.display(),
        file.display()
    );
    let args: walk::Args = match Program::try_parse_from(line.split_whitespace()).unwrap() {
        Program::Bench(nacre_bench::Command::Walk(args)) => *args,
        _ => unreachable!("the line says bench walk"),
    };
    walk::run(&args).unwrap();
    assert!(!root.exists(), "the tree is removed");
    let results: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let entries = results["manifest"]["totals"]["entries"].as_u64().unwrap();
    let series = results["series"].as_array().unwrap();
    assert_eq!(series.len(), 7);
    for one in series {
        // Everybody finds everything, each in its own way to count.
        assert_eq!(one["counted"], one["expected"], "{one}");
        if one["contender"] != "du" {
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
