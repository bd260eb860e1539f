//! The results of the study, as text and as JSON.

use std::fmt;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::arguments::Args;
use super::study::compare::Condition;
use super::system::{self, Counted, System};
use super::targets::{self, MpiTargets};
use super::tree::{Manifest, Tree};
use crate::kit::Spread;
use crate::kit::machine::peak_memory_bytes;
use crate::kit::quantity::grouped;
use crate::kit::report::{self, Report};
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};
use crate::kit::usage::Usage;

/// The results of one tree.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    /// The name of the tree: the last one of its path.
    root: String,
    /// The type of its file system.
    file_system: String,
    /// The parameters of the tree and the expected results, if known.
    manifest: Option<Manifest>,
    threads: usize,
    /// The peak memory of the study itself in bytes: the value reported for a program is never less.
    study_memory_bytes: u64,
    pub(crate) series: Vec<Series>,
    /// The results of nacre-mpi jobs, if they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mpi: Option<MpiTargets>,
    /// The simulation with the model's own parameters, if it was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) simulated: Option<Condition>,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    targets: Targets,
}

/// A program with its repetitions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Series {
    pub(crate) system: System,
    /// The command and its arguments, with the last names of paths.
    pub(crate) command: Vec<String>,
    pub(crate) counted: Counted,
    /// The expected count, if known.
    pub(crate) expected: Option<Counted>,
    /// The exit code: 1 if something could not be read.
    pub(crate) exit_code: i32,
    pub(crate) wall_ms: Spread,
    pub(crate) cpu_ms: Spread,
    pub(crate) memory_bytes: Spread,
    /// The ratio to the floor of the same round, if the floor was measured.
    pub(crate) wall_to_floor: Option<Spread>,
    pub(crate) cpu_to_floor: Option<Spread>,
    pub(crate) repetitions: Vec<Usage>,
}

impl Series {
    /// Summarises the repetitions, in relation to the floor's repetitions of the same rounds.
    pub(super) fn sum_up(&mut self, floor: Option<&[Usage]>) {
        let spread = |value: fn(&Usage) -> f64| Spread::of(self.repetitions.iter().map(value));
        (self.wall_ms, self.cpu_ms) = (spread(|usage| usage.wall_ms), spread(Usage::cpu_ms));
        self.memory_bytes = spread(|usage| usage.memory_bytes as f64);
        self.wall_to_floor = floor.map(|floor| ratio(&self.repetitions, floor, |usage| usage.wall_ms));
        self.cpu_to_floor = floor.map(|floor| ratio(&self.repetitions, floor, Usage::cpu_ms));
    }

    /// Returns whether the count was as expected, if that is known.
    pub(crate) fn agrees(&self) -> Option<bool> {
        self.expected.map(|expected| expected == self.counted)
    }
}

/// Returns the ratios of two programs, round by round: a longer disturbance of the machine affects both.
fn ratio(one: &[Usage], other: &[Usage], value: fn(&Usage) -> f64) -> Spread {
    Spread::of(one.iter().zip(other).map(|(one, other)| value(one) / value(other)))
}

/// Returns a command and its arguments with the last names of absolute paths: where programs and trees are on this machine
/// says nothing about the results.
pub(super) fn words(command: &Command) -> Vec<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let shown = |word: &Path| match word.is_absolute() {
        true => last_name(word),
        false => word.to_string_lossy().into_owned(),
    };
    words.map(|word| shown(Path::new(word))).collect()
}

/// Returns the last name of a path; that of a root is `tree`.
fn last_name(path: &Path) -> String {
    path.file_name().map_or("tree".into(), |name| name.to_string_lossy().into_owned())
}

/// Creates an empty report.
pub(super) fn new_report(args: &Args, tree: &Tree) -> Report<Results> {
    let results = Results {
        root: last_name(&tree.root),
        file_system: file_system(&tree.root),
        manifest: tree.manifest.clone(),
        threads: args.threads,
        study_memory_bytes: 0,
        series: Vec::new(),
        mpi: None,
        simulated: None,
        targets: Targets::default(),
    };
    let peers = [System::Find, System::Du, System::Bfs, System::Fd].map(system::version);
    Report::new("walk", peers, results, args.results.as_deref())
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.iter().all(|series| series.repetitions.is_empty())
    }

    fn conclude(&mut self) {
        self.series.retain(|series| !series.repetitions.is_empty());
        let floor = self.series.iter().find(|series| series.system == System::Floor);
        let floor = floor.map(|series| series.repetitions.clone());
        self.series.iter_mut().for_each(|series| series.sum_up(floor.as_deref()));
        self.evaluate();
        self.study_memory_bytes = peak_memory_bytes();
    }
}

impl Results {
    /// Compares the results with the targets, as far as they were measured.
    fn evaluate(&mut self) {
        let of = |system| self.series.iter().find(|series| series.system == system);
        let mut targets = Targets::default();
        if let Some(nacre) = of(System::Nacre) {
            if let (Some(cpu), Some(wall)) = (nacre.cpu_to_floor, nacre.wall_to_floor) {
                let threads = self.threads;
                let cpu_name = format!("CPU, summary with metadata ÷ floor, {threads} threads");
                targets.at_most(cpu_name, cpu.median, Unit::Times, 1.15);
                let wall_name = format!("wall ÷ floor, {threads} threads");
                targets.at_most(wall_name, wall.median, Unit::Times, 1.2);
            }
            let memory = nacre.memory_bytes.max / f64::from(1 << 20);
            targets.at_most("resident memory", memory, Unit::Mebibytes, 64.0);
        }
        if let (Some(nacre), Some(fd)) = (of(System::NacreNames), of(System::FdNames)) {
            let names = ratio(&nacre.repetitions, &fd.repetitions, Usage::cpu_ms);
            targets.at_most("CPU, names only ÷ fd", names.median, Unit::Times, 0.9);
        }
        self.mpi.iter().for_each(|mpi| mpi.evaluate(&mut targets));
        self.simulated.iter().for_each(|simulated| targets::evaluate_simulated(simulated, &mut targets));
        self.targets = targets;
    }
}

/// Returns the type of a file system from the table of mounts: that of the nearest mount point above.
fn file_system(root: &Path) -> String {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, place, kind) = (words.next()?, words.next()?, words.next()?);
        root.starts_with(place).then_some((place.len(), kind))
    });
    // Of two that are mounted on one place, the last one is seen.
    mounts.max_by_key(|(length, _)| *length).map_or("unknown".into(), |(_, kind)| kind.into())
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.root, self.file_system)?;
        if let Some(Manifest { totals, .. }) = &self.manifest {
            let [entries, directories, links, largest] =
                [totals.entries, totals.directories, totals.hard_links, totals.largest_directory]
                    .map(|number| grouped(number as f64));
            write!(
                f,
                ": {entries} entries, {directories} of them directories, the largest of {largest}, {links} hard \
                 links, {} deep",
                totals.deepest
            )?;
        }
        writeln!(f)?;
        let mut table = Table::new(
            "who | reads | cpu/entry | ÷ floor | least | most | wall | ÷ floor | least | most | \
             memory | found",
        );
        let dash = || "–".to_string();
        let entries = self.series.iter().find_map(|series| match series.counted {
            Counted::Entries(entries) if entries > 0 => Some(entries as f64),
            _ => None,
        });
        for series in &self.series {
            let ratios = |spread: Option<Spread>| match spread {
                Some(Spread { median, min, max }) => [median, min, max].map(|ratio| format!("{ratio:.2}")),
                None => [dash(), dash(), dash()],
            };
            let found = match series.agrees() {
                Some(true) => "all".into(),
                Some(false) => "differs".into(),
                None => dash(),
            };
            let mut row = vec![
                series.system.name().to_string(),
                if series.system.reads_names_only() { "names" } else { "metadata" }.into(),
                entries.map_or(dash(), |entries| format!("{:.2} µs", 1e3 * series.cpu_ms.median / entries)),
            ];
            row.extend(ratios(series.cpu_to_floor));
            row.push(format!("{:.0} ms", series.wall_ms.median));
            row.extend(ratios(series.wall_to_floor));
            let sign = if series.memory_bytes.max <= self.study_memory_bytes as f64 { "≤ " } else { "" };
            row.push(format!("{sign}{:.1} MiB", series.memory_bytes.max / f64::from(1 << 20)));
            row.push(found);
            table.row(row);
        }
        write!(f, "{table}")?;
        for series in self.series.iter().filter(|series| series.agrees() == Some(false)) {
            if let Some(expected) = series.expected {
                let (name, counted) = (series.system.name(), series.counted);
                writeln!(f, "{name} counts {counted}, and there are {expected}.")?;
            }
        }
        for series in self.series.iter().filter(|series| series.exit_code != 0) {
            writeln!(f, "{} could not read everything.", series.system.name())?;
        }
        if let Some(mpi) = &self.mpi {
            write!(f, "\n{mpi}")?;
        }
        if !self.targets.is_empty() {
            write!(f, "\n{}", self.targets)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_name_no_folders_of_this_machine() {
        let mut command = Command::new("/usr/local/bin/find");
        command.args(["/data/study/tree", "-printf", "%y %s"]);
        assert_eq!(words(&command), ["find", "tree", "-printf", "%y %s"]);
        let mut relative = Command::new("du");
        relative.args(["--summarize", "/"]);
        assert_eq!(words(&relative), ["du", "--summarize", "tree"]);
    }
}
