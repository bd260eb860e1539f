//! The study of the walk (*On Distributed File Tree Walk of Parallel File Systems*, section V).
//!
//! On one machine: the elapsed time and the processor time of a walk of a large tree with Nacre, with common tools, and
//! with the system calls alone; and by the ranks of an MPI job. On larger machines: in a simulation that runs the same
//! algorithms. Measured and simulated results are never shown in one figure.

mod arguments;
mod floor;
pub(crate) mod idle;
mod mpi;
mod pool;
mod report;
mod study;
mod system;
mod targets;
mod tree;

use nacre_quantity::Escaped;

pub use arguments::{Args, MakeArgs, TreeArgs};
pub use floor::FloorArgs;
pub(crate) use floor::main as floor_main;
pub use system::System;

use self::mpi::Mpi;
use self::report::{Results, Series, new_report};
use self::study::{FigureName, Runs, Source};
use self::system::{Counted, Programs};
use self::tree::{Manifest, Tree};
use crate::kit::Spread;
use crate::kit::process::this_program;
use crate::kit::report::Report;
use crate::kit::study::{Order, Steps, run_blocking, turns, watch_signals};
use crate::kit::usage;
use crate::{BenchError, Common};

/// Runs the study, prints the table, and writes the requested files.
///
/// # Errors
/// [`BenchError`] if the study cannot run.
pub fn run(args: &Args, common: &Common) -> Result<(), BenchError> {
    if !args.runs.is_empty() {
        return draw(args, common);
    }
    if !args.figure.is_empty() || args.compare {
        return figures(args, common);
    }
    let systems = args.systems()?;
    // Before anything takes time.
    let mpi = if args.no_mpi || !args.only.is_empty() { None } else { Some(Mpi::find(&args.mpi)?) };
    if systems.iter().any(|system| system.is_nacre()) {
        common.nacre()?;
    }
    let tree = tree(args, &args.make)?;
    run_blocking(new_report(args, &tree), common, |report| {
        measure(args, common, &systems, &tree, report)?;
        report.keep()?;
        if let Some(mpi) = mpi {
            let repetitions = args.repetitions().min(5);
            targets::measure(&mpi, &tree.root, repetitions, args.make.quick, &mut report.mpi)?;
            report.simulated = Some(study::compare::base(args.make.quick)?);
        }
        Ok(())
    })
}

/// Makes the runs of some figures and draws them; compares in the simulation, if requested.
fn figures(args: &Args, common: &Common) -> Result<(), BenchError> {
    let figures = args.figures();
    let (measured, simulated) = (args.wants(Source::Measured), args.wants(Source::Simulated));
    let measured = measured && !figures.is_empty();
    let mpi = if measured { Some(Mpi::find(&args.mpi)?) } else { None };
    let report = Report::new("walk-figures", [], Runs::default(), args.results.as_deref());
    run_blocking(report, common, |report| {
        if let Some(mpi) = &mpi {
            let mut trees = vec![args.make.clone()];
            // Figure 4 has several trees, if they are made here.
            if figures.contains(&FigureName::Four) && args.tree.is_none() && !args.make.quick {
                let at = args.make.at.as_ref().map(|at| {
                    let mut beside = at.as_os_str().to_owned();
                    beside.push("-small");
                    beside.into()
                });
                trees.insert(0, MakeArgs { quick: true, at, ..args.make.clone() });
            }
            for make in trees {
                let (tree, repetitions) = (tree(args, &make)?, args.figure_repetitions());
                study::measure::measure(mpi, &figures, &tree.root, repetitions, &mut report.runs)?;
                report.keep()?;
            }
        }
        if simulated {
            study::simulate::simulate(&figures, args.make.quick, &mut report.runs)?;
        }
        report.figures = study::draw(&report.runs, &figures, &args.out)?;
        if args.compare {
            let comparison = report.comparison.insert(study::compare::compare(args.make.quick)?);
            let drawn = study::compare::draw(comparison, &args.out)?;
            report.figures.extend(drawn);
        }
        Ok(())
    })
}

/// Returns the given tree, or makes one.
fn tree(args: &Args, make_args: &MakeArgs) -> Result<Tree, BenchError> {
    match &args.tree {
        Some(root) => Tree::existing(root),
        None => make(make_args, args.threads.max(2), args.keep),
    }
}

/// Draws the figures of earlier runs.
fn draw(args: &Args, common: &Common) -> Result<(), BenchError> {
    let mut runs = Vec::new();
    for file in &args.runs {
        runs.extend(study::read(file)?);
    }
    let files = study::draw(&runs, &[FigureName::All], &args.out)?;
    match common.json {
        true => println!("{}", serde_json::json!({ "figures": files })),
        false => files.iter().for_each(|file| println!("Drawn: {file}")),
    }
    Ok(())
}

/// Makes only the tree, and prints its path.
///
/// # Errors
/// [`BenchError`] if the tree cannot be made.
pub fn make_tree(args: &TreeArgs, common: &Common) -> Result<(), BenchError> {
    let tree = make(&args.make, args.threads, true)?;
    match (&tree.manifest, common.json) {
        (Some(manifest), true) => {
            let value = serde_json::json!({ "root": tree.root, "manifest": manifest });
            println!("{value}");
        }
        _ => {
            let verb = if tree.reused { "Found" } else { "Made" };
            println!("{verb}: {}", Escaped::of(&tree.root));
        }
    }
    Ok(())
}

fn make(args: &MakeArgs, threads: usize, keep: bool) -> Result<Tree, BenchError> {
    let shape = args.shape()?;
    let root = args.at.clone().unwrap_or_else(|| Tree::default_root(args.seed, &shape));
    watch_signals()?;
    Tree::open_or_create(&root, args.seed, &shape, threads, keep)
}

/// Makes every program count the tree, and then walk it in turn.
fn measure(
    args: &Args,
    common: &Common,
    systems: &[System],
    tree: &Tree,
    report: &mut Report<Results>,
) -> Result<(), BenchError> {
    let programs = Programs {
        this: this_program()?,
        common: common.clone(),
        threads: args.threads,
        dwalk: args.dwalk.clone(),
        pdu: args.pdu.clone(),
    };
    let steps = Steps::new(systems.len() as u64 * u64::from(args.repetitions() + 1));
    // Of a tree without a manifest, the floor says what there is.
    let known = floor::walk(&tree.root, args.threads, true)?;
    for system in systems {
        steps.step(system.name(), 0)?;
        let (counted, exit_code) = system.count(&programs, &tree.root)?;
        let command = system.command(&programs, &tree.root, false)?;
        report.series.push(Series {
            system: *system,
            command: report::words(&command),
            counted,
            expected: expected(counted, tree.manifest.as_ref(), &known),
            exit_code,
            wall_ms: Spread::default(),
            cpu_ms: Spread::default(),
            memory_bytes: Spread::default(),
            wall_to_floor: None,
            cpu_to_floor: None,
            repetitions: Vec::new(),
        });
    }
    // Every round begins with another one, so that nobody always follows upon the same one.
    for (repetition, place) in turns(args.repetitions(), systems.len(), Order::Rotated) {
        let (system, series) = (systems[place], &mut report.series[place]);
        steps.step(system.name(), repetition)?;
        let mut command = system.command(&programs, &tree.root, false)?;
        let outcome = usage::run(&mut command, None)?;
        if outcome.code != series.exit_code {
            let message = format!("it ended with exit code {}: {}", outcome.code, outcome.complaint);
            return Err(BenchError::peer(system.name(), message));
        }
        series.repetitions.push(outcome.usage);
    }
    Ok(())
}

/// Returns the count that a program should have reported.
fn expected(counted: Counted, manifest: Option<&Manifest>, known: &floor::Count) -> Option<Counted> {
    match (counted, manifest) {
        (Counted::Entries(_), Some(Manifest { totals, .. })) => Some(Counted::Entries(totals.entries)),
        (Counted::Entries(_), None) => Some(Counted::Entries(known.entries)),
        (Counted::Inodes(_), Some(Manifest { totals, .. })) => {
            Some(Counted::Inodes(totals.directories + 1 + totals.files + totals.symbolic_links))
        }
        (Counted::Inodes(_), None) => None,
        // What a directory's size is, only the file system knows.
        (Counted::Bytes(_), _) => Some(Counted::Bytes(known.bytes_of_all)),
    }
}

#[cfg(test)]
mod tests;
