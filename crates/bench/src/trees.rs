//! The study of copies, removals and sweeps of file trees: Nacre compared with the tools that are there anyway.
//!
//! Each repetition copies the same tree with every program, copies it once more when there is nothing left to do, compares the
//! copies, and sweeps the tree with and without a database. The copies are removed when all repetitions have made theirs: ext4 looks
//! for a while at every inode that was just freed before it takes another one, which would be most of the time of a copy. Every copy of
//! the first repetition is checked by `rsync` with checksums. Copies are written back before the next program is measured.

use std::fmt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use nacre_quantity::Escaped;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use serde::Serialize;

use crate::kit::Spread;
use crate::kit::peer::{find_program, temporary_folder, validate_folder, version_of};
use crate::kit::quantity::grouped;
use crate::kit::report::{self, Report};
use crate::kit::study::{Steps, run_blocking};
use crate::kit::table::Table;
use crate::kit::target::{Targets, Unit};
use crate::kit::usage::{self, Usage};
use crate::walk::idle::Chain;
use crate::{BenchError, Common};

/// Copy, compare, remove and sweep a tree of small files: Nacre compared with cp, rsync, diff and rm
///
/// The tree is made from a seed, and removed at the end. A deep chain of directories is copied as well, by Nacre alone.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Files of the tree [default: 100000; with --quick: 10000]
    #[arg(long, value_name = "N")]
    files: Option<u32>,
    /// Size that all files are smaller than
    #[arg(long, default_value = "4KiB", value_parser = nacre_quantity::parse_size, value_name = "SIZE")]
    file_size: u64,
    /// Directories of the chain [default: 20000; with --quick: 5000]
    #[arg(long, value_name = "N")]
    chain_depth: Option<u32>,
    /// Seed of the tree
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder in which trees are made [default: the folder for temporary files]
    #[arg(long, value_name = "FOLDER")]
    at: Option<PathBuf>,
    /// Number of repetitions [default: 5; with --quick: 2]
    #[arg(long, value_name = "N", value_parser = nacre_quantity::count_parser::<u32>(1..=1000))]
    repeat: Option<u32>,
    /// Use a tenth of the files and fewer repetitions, for a first look
    #[arg(long)]
    quick: bool,
    /// Write all results, raw and summarised, with the machine's description, to this file as JSON
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
}

/// A task of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Task {
    /// Copies the tree to a new place.
    Copy,
    /// Copies it again, where nothing has changed.
    CopyAgain,
    /// Compares the copy with the tree, contents included.
    Compare,
    /// Removes a copy.
    Remove,
    /// Walks the tree.
    Sweep,
    /// Walks it, and stores the sweep as a database.
    SweepToDatabase,
    /// Copies the chain of directories.
    CopyChain,
}

impl Task {
    fn name(self) -> &'static str {
        match self {
            Task::Copy => "copy",
            Task::CopyAgain => "copy, nothing to do",
            Task::Compare => "compare contents",
            Task::Remove => "remove",
            Task::Sweep => "sweep",
            Task::SweepToDatabase => "sweep to a database",
            Task::CopyChain => "copy a chain",
        }
    }
}

/// The repetitions of a task by a program.
#[derive(Clone, Debug, Serialize)]
struct Series {
    task: Task,
    program: &'static str,
    wall_ms: Spread,
    cpu_ms: Spread,
    memory_bytes: Spread,
    repetitions: Vec<Usage>,
}

/// The results.
#[derive(Clone, Debug, Serialize)]
struct Results {
    files: u64,
    directories: u64,
    bytes: u64,
    chain_depth: u32,
    seed: u64,
    series: Vec<Series>,
    #[serde(skip_serializing_if = "Targets::is_empty")]
    targets: Targets,
}

impl Results {
    fn add(&mut self, task: Task, program: &'static str, usage: Usage) {
        let known = self.series.iter_mut().find(|series| series.task == task && series.program == program);
        match known {
            Some(series) => series.repetitions.push(usage),
            None => self.series.push(Series {
                task,
                program,
                wall_ms: Spread::default(),
                cpu_ms: Spread::default(),
                memory_bytes: Spread::default(),
                repetitions: vec![usage],
            }),
        }
    }

    fn of(&self, task: Task, program: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.task == task && series.program == program)
    }

    /// Returns the median of the ratios of two series, repetition by repetition: a longer disturbance of the machine affects both.
    fn ratio(one: &Series, other: &Series, value: fn(&Usage) -> f64) -> f64 {
        let pairs = one.repetitions.iter().zip(&other.repetitions);
        Spread::of(pairs.map(|(one, other)| value(one) / value(other))).median
    }
}

impl report::Results for Results {
    fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    fn conclude(&mut self) {
        for series in &mut self.series {
            let spread = |value: fn(&Usage) -> f64| Spread::of(series.repetitions.iter().map(value));
            let wall = spread(|usage| usage.wall_ms);
            let (cpu, memory) = (spread(Usage::cpu_ms), spread(|usage| usage.memory_bytes as f64));
            (series.wall_ms, series.cpu_ms, series.memory_bytes) = (wall, cpu, memory);
        }
        let mut targets = Targets::default();
        let wall = |usage: &Usage| usage.wall_ms;
        let mut compare = |name: &str, one: Option<&Series>, other: Option<&Series>, value, bound| {
            if let (Some(one), Some(other)) = (one, other) {
                targets.at_most(name, Results::ratio(one, other, value), Unit::Times, bound);
            }
        };
        let of = |task, program| self.of(task, program);
        compare("copy ÷ cp -a, wall", of(Task::Copy, NACRE), of(Task::Copy, CP), wall, 0.5);
        compare("remove ÷ rm -rf, wall", of(Task::Remove, NACRE), of(Task::Remove, RM), wall, 0.45);
        let again = (of(Task::CopyAgain, NACRE), of(Task::CopyAgain, RSYNC));
        compare("nothing to copy ÷ rsync -a, CPU", again.0, again.1, Usage::cpu_ms, 1.0);
        let with_attributes = of(Task::CopyAgain, RSYNC_ATTRIBUTES);
        compare("nothing to copy ÷ rsync -aX, CPU", again.0, with_attributes, Usage::cpu_ms, 1.0);
        let sweeps = (of(Task::SweepToDatabase, NACRE), of(Task::Sweep, NACRE));
        compare("sweep to a database ÷ sweep, wall", sweeps.0, sweeps.1, wall, 2.0);
        if let Some(chain) = of(Task::CopyChain, NACRE) {
            let name = format!("copy of a chain of {} directories", grouped(f64::from(self.chain_depth)));
            targets.at_most(name, chain.wall_ms.median / 1e3, Unit::Seconds, 3.0);
        }
        self.targets = targets;
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Results { files, directories, bytes, seed, .. } = self;
        writeln!(
            f,
            "{} files of {} in {} directories, seed {seed}",
            grouped(*files as f64),
            nacre_quantity::size(*bytes),
            grouped(*directories as f64)
        )?;
        let mut table = Table::new("task | program | wall | least | most | cpu | least | most | memory");
        for series in &self.series {
            let three =
                |spread: Spread| [spread.median, spread.min, spread.max].map(|ms| format!("{ms:.0} ms"));
            let mut row = vec![series.task.name().to_string(), series.program.to_string()];
            row.extend(three(series.wall_ms));
            row.extend(three(series.cpu_ms));
            row.push(format!("{:.1} MiB", series.memory_bytes.max / f64::from(1 << 20)));
            table.row(row);
        }
        write!(f, "{table}")?;
        if !self.targets.is_empty() {
            write!(f, "\n{}", self.targets)?;
        }
        Ok(())
    }
}

const NACRE: &str = "nacre";
const CP: &str = "cp -a";
const RSYNC: &str = "rsync -a";
const RSYNC_ATTRIBUTES: &str = "rsync -aX";
const DIFF: &str = "diff -r";
const RM: &str = "rm -rf";

/// The number of files of a directory.
const DIRECTORY_FILES: u32 = 16;
/// The number of directories in a directory of the upper levels.
const FAN_OUT: u32 = 64;

/// Runs the study.
///
/// # Errors
/// [`BenchError`] if it cannot run, or a program fails or copies wrongly.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    let files = args.files.unwrap_or(if args.quick { 10_000 } else { 100_000 });
    let chain_depth = args.chain_depth.unwrap_or(if args.quick { 5000 } else { 20_000 });
    let repetitions = args.repeat.unwrap_or(if args.quick { 2 } else { 5 });
    let nacre = common.nacre()?;
    validate_folder(args.at.as_deref())?;
    let peers = ["cp", "rm", "diff", "rsync"].map(|peer| find_program(peer, package(peer)));
    let [cp, rm, diff, rsync] = peers;
    let programs = Programs { nacre, cp: cp?, rm: rm?, diff: diff?, rsync: rsync? };
    let folder = temporary_folder(args.at.as_deref())?;
    let tree = folder.path().join("tree");
    let (directories, bytes) = make(&tree, files, args.file_size, args.seed)?;
    let results = Results {
        files: files.into(),
        directories,
        bytes,
        chain_depth,
        seed: args.seed,
        series: Vec::new(),
        targets: Targets::default(),
    };
    let versions = [&programs.cp, &programs.rsync].map(|program| version_of(program, &["--version"]));
    let report = Report::new("trees", versions, results, args.results.as_deref());
    run_blocking(report, common, |report| {
        let study = Study { programs: &programs, folder: folder.path(), tree: &tree };
        let steps = Steps::new(u64::from(repetitions) * 6);
        for repetition in 0..repetitions {
            study.repeat(repetition, &steps, report)?;
            report.keep()?;
        }
        let chain = Chain::make(chain_depth)?;
        for repetition in 0..repetitions {
            steps.step("chain", repetition)?;
            study.copy_chain(&chain, report)?;
        }
        for repetition in 0..repetitions {
            steps.step(Task::Remove.name(), repetition)?;
            study.remove(repetition, report)?;
            report.keep()?;
        }
        Ok(())
    })
}

fn package(program: &str) -> &'static str {
    match program {
        "diff" => "diffutils",
        "rsync" => "rsync",
        _ => "coreutils",
    }
}

/// The programs that are measured.
struct Programs {
    nacre: PathBuf,
    cp: PathBuf,
    rm: PathBuf,
    diff: PathBuf,
    rsync: PathBuf,
}

/// The study, with its trees.
struct Study<'a> {
    programs: &'a Programs,
    folder: &'a Path,
    tree: &'a Path,
}

impl Study<'_> {
    fn repeat(&self, repetition: u32, steps: &Steps, report: &mut Report<Results>) -> Result<(), BenchError> {
        let Programs { nacre, cp, diff, rsync, .. } = self.programs;
        let copies = [NACRE, CP, RSYNC].map(|program| (program, self.copy(program, repetition)));
        let command = |program: &Path, words: &[&str], paths: &[&Path]| {
            let mut command = Command::new(program);
            command.args(words).args(paths);
            command
        };
        // With a slash behind it, rsync copies what is in the directory.
        let inside = |path: &Path| path.join("");
        let copy = |program: &str, to: &Path| match program {
            NACRE => command(nacre, &["copy"], &[self.tree, to]),
            CP => command(cp, &["-a"], &[self.tree, to]),
            _ => command(rsync, &["-a"], &[&inside(self.tree), to]),
        };
        let mut turn = copies.clone();
        turn.rotate_left(repetition as usize % copies.len());
        steps.step(Task::Copy.name(), repetition)?;
        for (program, to) in &turn {
            measure(report, Task::Copy, program, &mut copy(program, to))?;
            if repetition == 0 {
                self.check(program, to)?;
            }
        }
        steps.step(Task::CopyAgain.name(), repetition)?;
        for (program, to) in turn.iter().filter(|(program, _)| *program != CP) {
            measure(report, Task::CopyAgain, program, &mut copy(program, to))?;
        }
        // Nacre compares extended attributes, which rsync does on request.
        let mut with_attributes = command(rsync, &["-aX"], &[&inside(self.tree), &copies[2].1]);
        measure(report, Task::CopyAgain, RSYNC_ATTRIBUTES, &mut with_attributes)?;
        steps.step(Task::Compare.name(), repetition)?;
        let to = &copies[0].1;
        measure(report, Task::Compare, NACRE, &mut command(nacre, &["compare"], &[self.tree, to]))?;
        let words = ["-r", "--no-dereference"];
        measure(report, Task::Compare, DIFF, &mut command(diff, &words, &[self.tree, to]))?;
        steps.step(Task::Sweep.name(), repetition)?;
        let index = self.folder.join("index.sqlite");
        measure(report, Task::Sweep, NACRE, &mut command(nacre, &["walk"], &[self.tree]))?;
        let mut sweep = command(nacre, &["walk"], &[self.tree]);
        sweep.arg("--index").arg(&index);
        measure(report, Task::SweepToDatabase, NACRE, &mut sweep)?;
        std::fs::remove_file(&index).map_err(BenchError::io(format!("remove {}", Escaped::of(&index))))
    }

    /// Removes the copies of a repetition: those by Nacre and by cp are removed by the two programs that are measured, in turns, since how
    /// a tree lies on the disk is to be no one's advantage.
    fn remove(&self, repetition: u32, report: &mut Report<Results>) -> Result<(), BenchError> {
        let Programs { nacre, rm, .. } = self.programs;
        let (mut by_nacre, mut by_rm) = (self.copy(NACRE, repetition), self.copy(CP, repetition));
        if repetition % 2 == 1 {
            std::mem::swap(&mut by_nacre, &mut by_rm);
        }
        let mut command = Command::new(nacre);
        measure(report, Task::Remove, NACRE, command.args(["remove", "--yes"]).arg(&by_nacre))?;
        measure(report, Task::Remove, RM, Command::new(rm).arg("-rf").arg(&by_rm))?;
        for copy in [by_nacre, by_rm] {
            if copy.symlink_metadata().is_ok() {
                let text = format!("{} is still there after its removal", Escaped::of(&copy));
                return Err(BenchError::Process(text));
            }
        }
        Ok(())
    }

    /// Returns the place of a program's copy.
    fn copy(&self, program: &str, repetition: u32) -> PathBuf {
        self.folder.join(format!("{}-{repetition}", first_word(program)))
    }

    /// Has rsync compare a copy with the tree, by checksums.
    fn check(&self, program: &'static str, copy: &Path) -> Result<(), BenchError> {
        let mut command = Command::new(&self.programs.rsync);
        command.args(["-an", "--checksum", "--delete", "--itemize-changes"]);
        let output = command.arg(self.tree.join("")).arg(copy.join("")).output();
        let output = output.map_err(BenchError::io("run rsync"))?;
        match output.status.success() && output.stdout.is_empty() {
            true => Ok(()),
            false => {
                let text = String::from_utf8_lossy(&output.stdout);
                let first = text.lines().next().unwrap_or("it failed");
                Err(BenchError::Process(format!("the copy by {program} is not the tree: {first}")))
            }
        }
    }

    fn copy_chain(&self, chain: &Chain, report: &mut Report<Results>) -> Result<(), BenchError> {
        let to = self.folder.join("chain");
        let mut copy = Command::new(&self.programs.nacre);
        copy.arg("copy").arg(chain.path()).arg(&to);
        measure(report, Task::CopyChain, NACRE, &mut copy)?;
        let mut remove = Command::new(&self.programs.nacre);
        remove.args(["remove", "--yes"]).arg(&to);
        finish(NACRE, &mut remove).map(drop)
    }
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

/// Measures a program, once everything that others wrote is on the disk.
fn measure(
    report: &mut Report<Results>,
    task: Task,
    program: &'static str,
    command: &mut Command,
) -> Result<(), BenchError> {
    rustix::fs::sync();
    let usage = finish(program, command)?;
    report.add(task, program, usage);
    Ok(())
}

/// Runs a program, which has to succeed.
fn finish(program: &'static str, command: &mut Command) -> Result<Usage, BenchError> {
    let outcome = usage::run(command, None)?;
    match outcome.code {
        0 => Ok(outcome.usage),
        code => {
            Err(BenchError::peer(program, format!("it ended with exit code {code}: {}", outcome.complaint)))
        }
    }
}

/// Makes the tree: files of random sizes and contents, 16 in a directory, with modes and times that differ, and a symbolic link
/// in each directory. Returns the number of directories below its root, and the bytes of the files.
fn make(tree: &Path, files: u32, file_bytes_max: u64, seed: u64) -> Result<(u64, u64), BenchError> {
    let attempted = || BenchError::io(format!("make {}", Escaped::of(tree)));
    let mut random = StdRng::seed_from_u64(seed);
    let mut content = vec![0; file_bytes_max.max(1) as usize];
    random.fill_bytes(&mut content);
    let (mut directories, mut bytes) = (0, 0);
    let mut made = 0;
    std::fs::create_dir(tree).map_err(attempted())?;
    for number in 0..files.div_ceil(DIRECTORY_FILES) {
        let above = tree.join(format!("group-{}", number / FAN_OUT));
        if number % FAN_OUT == 0 {
            std::fs::create_dir(&above).map_err(attempted())?;
            directories += 1;
        }
        let directory = above.join(format!("directory-{number}"));
        std::fs::create_dir(&directory).map_err(attempted())?;
        directories += 1;
        for _ in 0..DIRECTORY_FILES.min(files - made) {
            let size = random.random_range(0..file_bytes_max.max(1)) as usize;
            let file = directory.join(format!("file-{made}"));
            std::fs::write(&file, &content[..size]).map_err(attempted())?;
            let mode = if random.random_ratio(1, 8) { 0o755 } else { 0o640 };
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).map_err(attempted())?;
            (made, bytes) = (made + 1, bytes + size as u64);
        }
        symlink(format!("file-{}", made - 1), directory.join("last")).map_err(attempted())?;
    }
    Ok((directories, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_tree() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| make(&folder.path().join(name), 40, 4096, 7).unwrap();
        let (one, other) = (make("one"), make("other"));
        assert_eq!(one, other);
        // Three directories of up to 16 files in one group.
        assert_eq!(one.0, 4);
        let same = Command::new("diff").args(["-r", "one", "other"]).current_dir(&folder).status().unwrap();
        assert!(same.success());
        let files = std::fs::read_dir(folder.path().join("one/group-0/directory-2")).unwrap().count();
        assert_eq!(files, 8 + 1);
    }
}
