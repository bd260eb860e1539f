//! Figures from runs of a toy: ranks that draw lots for every piece of work. It models nothing; it gives consistent
//! numbers.

use super::*;

/// Hands out entries to ranks, one at a time through rank 0 or in random shares of the rest.
fn toy(algorithm: &str, entries: u64, ranks: u32, repetition: u64) -> Run {
    let mut lot = repetition.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(ranks) ^ entries;
    let mut draw = |bound: u64| {
        lot = lot.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (lot >> 33) % bound
    };
    let side = ranks as usize;
    let mut between = vec![vec![0u64; side]; side];
    let mut work = vec![0u64; side];
    let mut messages = 0;
    let mut send = |from: usize, to: usize, units: u64| {
        between[from][to] += 16 + 40 * units;
        messages += 1;
    };
    if algorithm == "cp" {
        for _ in 0..entries {
            let worker = 1 + draw(u64::from(ranks) - 1) as usize;
            send(0, worker, 1);
            send(worker, 0, 1);
            work[worker] += 1;
        }
    } else {
        let mut left = vec![0u64; side];
        left[0] = entries;
        while left.iter().sum::<u64>() > 0 {
            for rank in 0..side {
                let done = left[rank].min(10);
                left[rank] -= done;
                work[rank] += done;
                let other = draw(side as u64) as usize;
                if left[rank] == 0 && other != rank {
                    let given = if left[other] > 1 { draw(left[other]) } else { 0 };
                    send(rank, other, 0);
                    send(other, rank, given.min(9));
                    left[other] -= given;
                    left[rank] += given;
                }
            }
        }
    }
    let most = *work.iter().max().unwrap() as f64;
    Run {
        source: Source::Simulated,
        by: "lots".into(),
        algorithm: algorithm.into(),
        entries,
        ranks,
        threads: 1,
        seconds: most / 1e4,
        messages,
        bytes: between.iter().flatten().sum(),
        profile: Some(Profile {
            callback_s: entries as f64 / 1e6,
            stat_s: entries as f64 / 1e5,
            readdir_s: entries as f64 / 3e5,
            communication_s: messages as f64 / 1e4,
        }),
        bytes_between: between,
        entries_by_rank: work,
    }
}

fn runs() -> Vec<Run> {
    let mut runs = Vec::new();
    for entries in [20_000, 65_000] {
        for ranks in [2, 4, 8, 16, 32] {
            for algorithm in ["h-drqs", "cp", "drqs"] {
                runs.extend((0..3).map(|repetition| toy(algorithm, entries, ranks, repetition)));
            }
        }
    }
    runs
}

#[test]
fn every_figure_that_there_are_runs_for_is_drawn_and_says_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.jsonl");
    let lines: Vec<String> = runs().iter().map(|run| serde_json::to_string(run).unwrap()).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let read = read(&file).unwrap();
    assert_eq!(read.len(), 2 * 5 * 3 * 3);
    let files = draw(&read, &[FigureName::All], folder.path()).unwrap();
    let names: Vec<&str> = files.iter().map(|file| file.rsplit_once('/').unwrap().1).collect();
    assert_eq!(
        names,
        [
            "figure-4a-simulated.svg",
            "figure-4b-simulated.svg",
            "figure-3a-simulated-20000.svg",
            "figure-3b-simulated-20000.svg",
            "figure-1-simulated-20000.svg",
            "figure-5-simulated-20000.svg",
            "figure-6-simulated-20000.svg",
            "figure-3a-simulated-65000.svg",
            "figure-3b-simulated-65000.svg",
            "figure-1-simulated-65000.svg",
            "figure-5-simulated-65000.svg",
            "figure-6-simulated-65000.svg",
        ]
    );
    for file in &files {
        let svg = std::fs::read_to_string(file).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        assert!(texts.iter().any(|text| text.starts_with("Simulated: lots")), "{file}: {texts:?}");
    }
}

#[test]
fn only_what_there_is_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    assert!(draw(&[], &[FigureName::All], folder.path()).unwrap().is_empty());
    let mut run = toy("drqs", 1000, 4, 0);
    run.source = Source::Measured;
    (run.profile, run.bytes_between, run.entries_by_rank) = (None, Vec::new(), Vec::new());
    assert_eq!(draw(&[run], &[FigureName::All], folder.path()).unwrap().len(), 2);
}

#[test]
fn runs_that_cannot_be_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runs.jsonl");
    let refused = |text: &str| {
        std::fs::write(&file, text).unwrap();
        read(&file).unwrap_err().to_string()
    };
    assert!(refused("\n{}\n").contains("line 2"));
    let mut run = toy("drqs", 1000, 4, 0);
    run.bytes_between[1].pop();
    assert!(refused(&serde_json::to_string(&run).unwrap()).contains("cannot be"));
}

#[test]
fn a_master_does_not_walk() {
    assert_eq!(toy("cp", 100, 4, 0).walkers(), 3);
    assert_eq!(Run { threads: 8, ..toy("h-drqs", 100, 4, 0) }.walkers(), 32);
}
