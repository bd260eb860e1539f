//! `nacre-mpi`: Nacre on the ranks of an MPI job.
//!
//! A separate program, because it links MPI. It is started with `mpirun`.

mod engine;
mod job;
mod measure;
mod network;
mod output;
mod processor;
mod progress;
mod spill;
mod tree;
mod walk;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::Parser;
use mpi::Threading;
use mpi::traits::*;
use nacre_ranks::transport::testkit;
use nacre_walk::Unit;

/// Nacre in the ranks of an MPI job: mpirun -n 16 nacre-mpi walk …
#[derive(Parser)]
#[command(name = "nacre-mpi", version)]
struct Line {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    Walk(Box<walk::Args>),
    Copy(Box<tree::copy::Args>),
    Compare(Box<tree::compare::Args>),
    Remove(Box<tree::remove::Args>),
    /// Check that the network does what the walk relies on
    #[command(hide = true)]
    Contract {
        /// The seed of the messages
        #[arg(default_value_t = 1)]
        seed: u64,
    },
}

fn main() -> ExitCode {
    let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Funneled) else {
        eprintln!("nacre-mpi: MPI is initialised already");
        return ExitCode::FAILURE;
    };
    let world = universe.world();
    let code = if threading < Threading::Funneled {
        eprintln!("nacre-mpi: this MPI library allows no threads beside the one that talks");
        1
    } else {
        match Line::try_parse() {
            // A rank that panics has said why; the others would wait for it for ever.
            Ok(line) => {
                catch_unwind(AssertUnwindSafe(|| run(line, &world))).unwrap_or_else(|_| world.abort(101))
            }
            Err(error) => {
                if world.rank() == 0 {
                    // There is nothing to do about an output that is closed.
                    let _ = error.print();
                }
                error.exit_code()
            }
        }
    };
    // MPI ends before the process does, or mpirun takes it for a crash.
    drop(universe);
    ExitCode::from(code as u8)
}

fn run(line: Line, world: &impl Communicator) -> i32 {
    let mut network = network::Network::<Unit>::new(world.duplicate());
    let interrupted = Arc::new(AtomicBool::new(false));
    if !matches!(line.command, Command::Contract { .. }) {
        for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
            if let Err(error) = signal_hook::flag::register(signal, interrupted.clone()) {
                eprintln!("nacre-mpi: cannot wait for signals: {error}");
            }
        }
    }
    match line.command {
        Command::Walk(args) => walk::run(&args, line.json, network, &interrupted),
        Command::Copy(args) => {
            tree::run(network, line.json, &interrupted, |rank| tree::copy::run(rank, &args))
        }
        Command::Compare(args) => {
            tree::run(network, line.json, &interrupted, |rank| tree::compare::run(rank, &args))
        }
        Command::Remove(args) => {
            tree::run(network, line.json, &interrupted, |rank| tree::remove::run(rank, &args))
        }
        Command::Contract { seed } => {
            let unit = |number: u64, bytes: usize| Unit {
                root: 0,
                path: vec![number as u8; bytes],
                position: Some(number),
                until: Some(number / 2),
                inodes: vec![number],
                ..Unit::default()
            };
            let number = |unit: &Unit| {
                let number = unit.position.unwrap_or(u64::MAX);
                if unit.path.iter().all(|byte| *byte == number as u8) { number } else { u64::MAX }
            };
            testkit::contract(&mut network, seed, unit, number);
            if network.is_root() {
                println!("{} ranks kept the contract", network.size());
            }
            0
        }
    }
}
