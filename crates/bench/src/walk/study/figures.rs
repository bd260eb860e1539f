//! The paper's figures 1 and 3 to 6, each once for every source and tree that there are runs of.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Profile, Run, Source};
use crate::BenchError;
use crate::figure::{Axis, BarSeries, Bars, Figure, HeatMap, HeatMaps, Histogram, Histograms, Line, Scale};
use crate::quantity::grouped;

/// The algorithms in the paper's order; so they stand in figures, and so they have their colours.
const ALGORITHMS: [&str; 5] = ["cp", "drqs", "deqs", "pa-drqs", "h-drqs"];
/// Whose profile figure 3b shows.
const PROFILED: &str = "h-drqs";
/// The one of figure 1.
const CENTRALIZED: &str = "cp";

/// Draws every figure that there are runs for; gives the files.
pub(in crate::walk) fn draw(runs: &[Run], folder: &Path) -> Result<Vec<String>, BenchError> {
    let mut files = Vec::new();
    let mut write = |name: String, svg: Result<String, BenchError>| {
        let file = folder.join(format!("{name}.svg"));
        std::fs::write(&file, svg?).map_err(BenchError::io(format!("write {}", file.display())))?;
        files.push(file.display().to_string());
        Ok::<(), BenchError>(())
    };
    for source in [Source::Measured, Source::Simulated] {
        let of_source: Vec<&Run> = runs.iter().filter(|run| run.source == source).collect();
        if of_source.is_empty() {
            continue;
        }
        let source = source.name();
        let messages = traffic(&of_source, "4a", "messages", |run| run.messages as f64);
        write(format!("figure-4a-{source}"), messages.svg())?;
        let bytes = traffic(&of_source, "4b", "bytes", |run| run.bytes as f64);
        write(format!("figure-4b-{source}"), bytes.svg())?;
        let sizes: BTreeSet<u64> = of_source.iter().map(|run| run.entries).collect();
        for entries in sizes {
            let of_tree: Vec<&Run> = of_source.iter().copied().filter(|run| run.entries == entries).collect();
            let name = |figure: &str| format!("figure-{figure}-{source}-{entries}");
            if processes(&of_tree).len() > 1 {
                write(name("3a"), times(&of_tree).svg())?;
            }
            let profiled = |run: &&&Run| run.algorithm == PROFILED && run.profile.is_some();
            let profiles: Vec<&Run> = of_tree.iter().filter(profiled).copied().collect();
            if !profiles.is_empty() {
                write(name("3b"), profile(&profiles).svg())?;
            }
            let mapped: Vec<&Run> =
                of_tree.iter().filter(|run| !run.bytes_between.is_empty()).copied().collect();
            let (centralized, _): (Vec<&Run>, Vec<&Run>) =
                mapped.iter().copied().partition(|run| run.algorithm == CENTRALIZED);
            if !centralized.is_empty() {
                write(name("1"), heat("1", &centralized).svg())?;
            }
            if !mapped.is_empty() {
                write(name("5"), heat("5", &mapped).svg())?;
            }
            let worked: Vec<&Run> =
                of_tree.iter().filter(|run| !run.entries_by_rank.is_empty()).copied().collect();
            if !worked.is_empty() {
                write(name("6"), work(&worked).svg())?;
            }
        }
    }
    Ok(files)
}

/// The algorithms that there are runs of, in order: the paper's first.
fn algorithms<'a>(runs: &[&'a Run]) -> Vec<&'a str> {
    let names: BTreeSet<&str> = runs.iter().map(|run| run.algorithm.as_str()).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| colour(name));
    names
}

/// The number of an algorithm's colour.
fn colour(algorithm: &str) -> usize {
    ALGORITHMS.iter().position(|known| *known == algorithm).unwrap_or(ALGORITHMS.len())
}

/// The numbers of processes that there are runs with.
fn processes(runs: &[&Run]) -> BTreeSet<u32> {
    runs.iter().map(|run| run.processes()).collect()
}

/// What every subtitle says first: whether it was measured or simulated, and by what.
fn conditions(runs: &[&Run]) -> String {
    let by: BTreeSet<&str> = runs.iter().map(|run| run.by.as_str()).collect();
    let by: Vec<&str> = by.into_iter().collect();
    let source = match runs.first().map(|run| run.source) {
        Some(Source::Simulated) => "Simulated",
        _ => "Measured",
    };
    format!("{source}: {}", by.join(", "))
}

/// Those runs whose number of processes the most algorithms and trees share; of several such numbers, the largest.
fn comparable<'a>(runs: &[&'a Run]) -> (u32, Vec<&'a Run>) {
    let compared = |processes: u32| {
        let of = runs.iter().filter(|run| run.processes() == processes);
        of.map(|run| (run.algorithm.as_str(), run.entries)).collect::<BTreeSet<_>>().len()
    };
    let chosen = processes(runs).into_iter().max_by_key(|processes| (compared(*processes), *processes));
    let chosen = chosen.unwrap_or_default();
    (chosen, runs.iter().copied().filter(|run| run.processes() == chosen).collect())
}

/// Figure 3a.
fn times(runs: &[&Run]) -> Figure {
    let line = |name: &str| {
        let of: Vec<&Run> = runs.iter().copied().filter(|run| run.algorithm == name).collect();
        let points = processes(&of).into_iter().map(|processes| {
            let at = of.iter().filter(|run| run.processes() == processes);
            (f64::from(processes), at.map(|run| run.seconds).collect())
        });
        Line {
            name: name.into(),
            points: points.collect(),
            connected: true,
            note: None,
            colour: colour(name),
        }
    };
    let entries = runs.first().map_or(0, |run| run.entries);
    Figure {
        title: format!("Figure 3a: time for {} entries", grouped(entries as f64)),
        subtitle: format!("{}; line through the medians", conditions(runs)),
        x: Axis::holding("processes", Scale::Octaves, runs.iter().map(|run| f64::from(run.processes()))),
        y: Axis::holding("seconds", Scale::Decades, runs.iter().map(|run| run.seconds)),
        lines: algorithms(runs).into_iter().map(line).collect(),
    }
}

/// Figure 3b.
fn profile(runs: &[&Run]) -> Bars {
    type Part = (&'static str, usize, fn(&Profile) -> f64);
    const PARTS: [Part; 4] = [
        ("stat", 0, |profile| profile.stat_s),
        ("readdir", 5, |profile| profile.readdir_s),
        ("callback", 2, |profile| profile.callback_s),
        ("communication", 1, |profile| profile.communication_s),
    ];
    let groups = processes(runs);
    let series = PARTS.into_iter().map(|(name, colour, part)| {
        let of_group = |processes: &u32| {
            let at = runs.iter().filter(|run| run.processes() == *processes);
            at.filter_map(|run| run.profile.as_ref()).map(part).collect()
        };
        BarSeries { name: name.into(), values: groups.iter().map(of_group).collect(), colour }
    });
    let entries = runs.first().map_or(0, |run| run.entries);
    Bars {
        title: format!("Figure 3b: what {PROFILED} spends its time on, {} entries", grouped(entries as f64)),
        subtitle: format!("{}; medians", conditions(runs)),
        x_label: "processes".into(),
        groups: groups.iter().map(u32::to_string).collect(),
        y_label: "seconds, all processes together".into(),
        scale: Scale::Linear,
        series: series.collect(),
        stacked: true,
    }
}

/// Figure 4.
fn traffic(runs: &[&Run], figure: &str, what: &str, value: fn(&Run) -> f64) -> Bars {
    let (processes, runs) = comparable(runs);
    let sizes: BTreeSet<u64> = runs.iter().map(|run| run.entries).collect();
    let series = algorithms(&runs).into_iter().map(|name| {
        let of_size = |entries: &u64| {
            let at = runs.iter().filter(|run| run.entries == *entries && run.algorithm == name);
            at.map(|run| value(run)).collect()
        };
        BarSeries { name: name.into(), values: sizes.iter().map(of_size).collect(), colour: colour(name) }
    });
    Bars {
        title: format!("Figure {figure}: {what} that {processes} processes exchange"),
        subtitle: format!("{}; medians", conditions(&runs)),
        x_label: "entries".into(),
        groups: sizes.iter().map(|entries| grouped(*entries as f64)).collect(),
        y_label: what.into(),
        scale: Scale::Decades,
        series: series.collect(),
        stacked: false,
    }
}

/// Figures 1 and 5: the last run of each algorithm.
fn heat(figure: &str, runs: &[&Run]) -> HeatMaps {
    let (_, runs) = comparable(runs);
    let maps = algorithms(&runs).into_iter().filter_map(|name| {
        let run = runs.iter().rev().find(|run| run.algorithm == name)?;
        let cells = run.bytes_between.iter().map(|row| row.iter().map(|bytes| *bytes as f64).collect());
        Some(HeatMap { name: format!("{name}, {} MB", grouped_megabytes(run.bytes)), cells: cells.collect() })
    });
    let entries = runs.first().map_or(0, |run| run.entries);
    HeatMaps {
        title: format!("Figure {figure}: bytes between ranks, {} entries", grouped(entries as f64)),
        subtitle: format!("{}; one run of each", conditions(&runs)),
        row_label: "from rank".into(),
        column_label: "to rank".into(),
        value_label: "bytes".into(),
        maps: maps.collect(),
    }
}

/// Figure 6: all runs of each algorithm.
fn work(runs: &[&Run]) -> Histograms {
    let (processes, runs) = comparable(runs);
    let histogram = |name: &str| {
        let of = runs.iter().filter(|run| run.algorithm == name);
        let shares = of.flat_map(|run| {
            let all = run.entries_by_rank.iter().sum::<u64>().max(1) as f64;
            run.entries_by_rank.iter().map(move |entries| 100.0 * *entries as f64 / all)
        });
        Histogram { name: name.into(), values: shares.collect(), colour: colour(name) }
    };
    let entries = runs.first().map_or(0, |run| run.entries);
    Histograms {
        title: format!("Figure 6: how {} entries are shared out", grouped(entries as f64)),
        subtitle: format!("{}; {processes} processes", conditions(&runs)),
        x_label: "share of all entries that a rank visited (%)".into(),
        y_label: "ranks".into(),
        histograms: algorithms(&runs).into_iter().map(histogram).collect(),
    }
}

fn grouped_megabytes(bytes: u64) -> String {
    let megabytes = bytes as f64 / 1e6;
    if megabytes < 100.0 { format!("{megabytes:.2}") } else { grouped(megabytes) }
}
