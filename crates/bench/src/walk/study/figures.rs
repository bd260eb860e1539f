//! The paper's figures 1 and 3 to 6, each once for every source and tree with runs.

use std::collections::BTreeSet;
use std::path::Path;

use super::{CENTRALIZED, FigureName, KEEPS_ONE, ONE_READER, Profile, Run, Source};
use crate::BenchError;
use crate::kit::figure::{
    self, BarSeries, Bars, Drawing, Figure, HeatMap, HeatMaps, Histogram, Histograms, Scale,
};
use crate::kit::quantity::grouped;

/// The algorithms in the paper's order, which determines their place in figures and their colours.
const ALGORITHMS: [&str; 7] = [CENTRALIZED, "drqs", "deqs", "pa-drqs", "h-drqs", ONE_READER, KEEPS_ONE];
/// The algorithm whose profile figure 3b shows.
const PROFILED: &str = "h-drqs";

/// Draws each of these figures for which there are runs, and returns the files.
pub(in crate::walk) fn draw(
    runs: &[Run],
    figures: &[FigureName],
    folder: &Path,
) -> Result<Vec<String>, BenchError> {
    let wants = |figure| figures.contains(&figure) || figures.contains(&FigureName::All);
    let mut files = Vec::new();
    let mut write = |name: String, svg: Result<String, BenchError>| {
        files.push(figure::write(folder, &name, svg)?);
        Ok::<(), BenchError>(())
    };
    for source in [Source::Measured, Source::Simulated] {
        let of_source: Vec<&Run> = runs.iter().filter(|run| run.source == source).collect();
        if of_source.is_empty() {
            continue;
        }
        let source = source.name();
        if wants(FigureName::Four) {
            let messages = traffic(&of_source, "4a", "messages", |run| run.messages as f64);
            write(format!("figure-4a-{source}"), messages.svg())?;
            let bytes = traffic(&of_source, "4b", "bytes", |run| run.bytes as f64);
            write(format!("figure-4b-{source}"), bytes.svg())?;
        }
        let sizes: BTreeSet<u64> = of_source.iter().map(|run| run.entries).collect();
        for entries in sizes {
            let of_tree: Vec<&Run> = of_source.iter().copied().filter(|run| run.entries == entries).collect();
            let chosen = |chosen: &dyn Fn(&Run) -> bool| -> Vec<&Run> {
                of_tree.iter().copied().filter(|run| chosen(run)).collect()
            };
            let name = |figure: &str| format!("figure-{figure}-{source}-{entries}");
            // A figure by processes is one of a tree that was walked by several numbers of them.
            let several = processes(&of_tree).len() > 2;
            if wants(FigureName::Three) && several {
                write(name("3a"), times(&of_tree, "processes", |run| run.ranks).svg())?;
                if of_tree.iter().any(|run| run.threads > 1) {
                    write(name("3a-cores"), times(&of_tree, "threads that walk", Run::walkers).svg())?;
                }
            }
            let profiles = chosen(&|run| run.algorithm == PROFILED && run.profile.is_some());
            if wants(FigureName::Profile) && several && !profiles.is_empty() {
                write(name("3b"), profile(&profiles).svg())?;
            }
            let centralized = chosen(&|run| run.is_centralized() && !run.bytes_between.is_empty());
            if wants(FigureName::One) && !centralized.is_empty() {
                write(name("1"), heat("1", &centralized).svg())?;
            }
            let mapped = chosen(&|run| !run.bytes_between.is_empty());
            if wants(FigureName::Five) && mapped.len() > centralized.len() {
                write(name("5"), heat("5", &mapped).svg())?;
            }
            // The master of CP visits nothing, and the paper leaves it out.
            let worked = chosen(&|run| !run.is_centralized() && !run.entries_by_rank.is_empty());
            if wants(FigureName::Six) && !worked.is_empty() {
                write(name("6"), work(&worked).svg())?;
            }
        }
    }
    Ok(files)
}

/// Returns a note on the number of threads of each process, where it has several.
fn threads(runs: &[&Run], algorithm: &str) -> Option<String> {
    let threads: BTreeSet<u32> =
        runs.iter().filter(|run| run.algorithm == algorithm).map(|run| run.threads).collect();
    let most = threads.last().copied().filter(|most| *most > 1)?;
    Some(if threads.len() == 1 {
        format!("{most} threads each")
    } else {
        format!("up to {most} threads each")
    })
}

/// Returns the name in legends without a second line.
fn label(runs: &[&Run], algorithm: &str) -> String {
    match threads(runs, algorithm) {
        Some(threads) => format!("{algorithm}, {threads}"),
        None => algorithm.into(),
    }
}

/// Returns the algorithms of some runs, in order: the paper's first.
fn algorithms<'a>(runs: &[&'a Run]) -> Vec<&'a str> {
    let names: BTreeSet<&str> = runs.iter().map(|run| run.algorithm.as_str()).collect();
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by_key(|name| colour(name));
    names
}

/// Returns the index of an algorithm's colour.
fn colour(algorithm: &str) -> usize {
    ALGORITHMS.iter().position(|known| *known == algorithm).unwrap_or(ALGORITHMS.len())
}

/// Returns the numbers of processes of some runs.
fn processes(runs: &[&Run]) -> BTreeSet<u32> {
    runs.iter().map(|run| run.ranks).collect()
}

/// Returns the beginning of every subtitle: whether it was measured or simulated, and with what.
fn conditions(runs: &[&Run]) -> String {
    let by: BTreeSet<&str> = runs.iter().map(|run| run.by.as_str()).collect();
    let by: Vec<&str> = by.into_iter().collect();
    let source = match runs.first().map(|run| run.source) {
        Some(Source::Simulated) => "Simulated",
        _ => "Measured",
    };
    format!("{source}: {}", by.join(", "))
}

/// Returns the runs with the number of processes that the most algorithms and trees share; of several such numbers, the
/// largest.
fn comparable<'a>(runs: &[&'a Run]) -> (u32, Vec<&'a Run>) {
    let compared = |processes: u32| {
        let of = runs.iter().filter(|run| run.ranks == processes);
        of.map(|run| (run.algorithm.as_str(), run.entries)).collect::<BTreeSet<_>>().len()
    };
    let chosen = processes(runs).into_iter().max_by_key(|processes| (compared(*processes), *processes));
    let chosen = chosen.unwrap_or_default();
    (chosen, runs.iter().copied().filter(|run| run.ranks == chosen).collect())
}

/// Draws figure 3a, by processes as in the paper, or by another property of the runs.
fn times(runs: &[&Run], by: &str, place: fn(&Run) -> u32) -> Figure {
    let point = |run: &&Run| (f64::from(place(run)), vec![run.seconds]);
    let colour = |run: &&Run| colour(&run.algorithm);
    let mut lines = figure::lines(runs.iter().copied(), |run| run.algorithm.clone(), point, colour);
    lines.sort_by_key(|line| line.colour);
    lines.iter_mut().for_each(|line| line.note = threads(runs, &line.name));
    let entries = runs.first().map_or(0, |run| run.entries);
    Figure::of(
        format!("Figure 3a: time for {} entries, by {by}", grouped(entries as f64)),
        format!("{}; line through the medians", conditions(runs)),
        (by, Scale::Octaves),
        ("seconds", Scale::Decades),
        lines,
    )
}

/// Draws figure 3b.
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
            let at = runs.iter().filter(|run| run.ranks == *processes);
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

/// Draws figure 4.
fn traffic(runs: &[&Run], figure: &str, what: &str, value: fn(&Run) -> f64) -> Bars {
    let (processes, runs) = comparable(runs);
    let sizes: BTreeSet<u64> = runs.iter().map(|run| run.entries).collect();
    let series = algorithms(&runs).into_iter().map(|name| {
        let of_size = |entries: &u64| {
            let at = runs.iter().filter(|run| run.entries == *entries && run.algorithm == name);
            at.map(|run| value(run)).collect()
        };
        BarSeries {
            name: label(&runs, name),
            values: sizes.iter().map(of_size).collect(),
            colour: colour(name),
        }
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

/// Draws figures 1 and 5 from the last run of each algorithm.
fn heat(figure: &str, runs: &[&Run]) -> HeatMaps {
    let (_, runs) = comparable(runs);
    let maps = algorithms(&runs).into_iter().filter_map(|name| {
        let run = runs.iter().rev().find(|run| run.algorithm == name)?;
        let cells = run.bytes_between.iter().map(|row| row.iter().map(|bytes| *bytes as f64).collect());
        Some(HeatMap { name: format!("{name}: {} MB", grouped_megabytes(run.bytes)), cells: cells.collect() })
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

/// Draws figure 6 from all runs of each algorithm.
fn work(runs: &[&Run]) -> Histograms {
    let (processes, runs) = comparable(runs);
    let histogram = |name: &str| {
        let of = runs.iter().filter(|run| run.algorithm == name);
        let shares = of.flat_map(|run| {
            let all = run.entries_by_rank.iter().sum::<u64>().max(1) as f64;
            run.entries_by_rank.iter().map(move |entries| 100.0 * *entries as f64 / all)
        });
        Histogram { name: label(&runs, name), values: shares.collect(), colour: colour(name) }
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
