//! `nacre-bench`: Nacre's studies, each of which repeats one paper's experiments on the machine at hand.
//!
//! `nacre bench …` runs this program. Every study prints a table, and writes raw results as JSON and the paper's figures; it
//! starts the servers, the client processes and the peers that it needs, and ends them by their process ids. Ratios between
//! values measured in one run are comparable across machines; absolute values only together with the machine.

#![deny(unsafe_code)]

mod append;
mod balance;
mod class;
mod error;
mod failover;
mod kit;
mod locks;
mod mpiio;
mod namespace;
mod propagate;
mod reflect;
mod rmw;
mod sequencer;
mod shell;
mod trees;
mod walk;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use nacre_quantity::Escaped;
use nacre_shell::manual::STYLES;
use nacre_shell::{Failure, output, usage};

use crate::error::BenchError;

/// Run a study that measures the cost of coordination on this machine
#[derive(Debug, Parser)]
#[command(name = "nacre-bench", bin_name = "nacre bench", version, styles = STYLES, max_term_width = 110)]
struct Line {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// The options of every study.
#[derive(clap::Args, Clone, Debug, Default)]
struct Common {
    /// The store of a study, if it uses one, instead of servers that it starts
    #[arg(long, global = true, value_name = "URI", help_heading = "Global options")]
    store: Option<String>,
    /// File with the cluster key, for servers that require it
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    key: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    /// The nacre program to measure [default: the one that runs this, else the one beside this program or in PATH]
    #[arg(
        long,
        global = true,
        value_name = "PROGRAM",
        env = "NACRE_PROGRAM",
        hide_env = true,
        help_heading = "Global options"
    )]
    nacre: Option<PathBuf>,
}

/// The studies, as commands.
#[derive(Clone, Debug, clap::Subcommand)]
enum Command {
    /// Update shared blocks from many clients: conditional writes compared with locks
    Rmw(Box<rmw::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    RmwClient,
    /// Write S3D's checkpoint by MPI-IO: atomic mode compared with none, and with locks of blocks
    #[command(name = "s3d")]
    S3d(Box<mpiio::s3d::Args>),
    /// Search sequences with workers that write by MPI-IO: atomic mode compared with none, and with locks of blocks
    #[command(name = "s3asim")]
    S3asim(Box<mpiio::s3asim::Args>),
    /// Write and read small pieces by MPI-IO: atomic mode compared with none, by collective and by independent calls
    Pieces(Box<mpiio::pieces::Args>),
    /// Copy datagrams to groups: the reflector's planes compared
    Reflect(Box<reflect::Args>),
    /// The reflector of that study, started by it
    #[command(hide = true)]
    ReflectServe,
    /// Lock patterns of many regions from many clients: descriptions compared with single regions
    Locks(Box<locks::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    LocksClient,
    /// Take positions from a shared sequencer: cached, passed on by each policy, and by round trips
    Sequencer(Box<sequencer::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    SequencerClient,
    /// Take positions while the rank that hands them out is killed, stopped, cut off or handed over
    Failover(Box<failover::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    FailoverClient,
    /// Take positions from sequencers that overload a rank, and move them: by policies, by hand, and simulated
    Balance(Box<balance::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    BalanceClient,
    /// Create, stat, rename, list and unlink files: the namespace compared with a file system and with FUSE's floor
    Namespace(Box<namespace::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    NamespaceClient,
    /// The file system of that study that passes everything on, started by it
    #[command(hide = true)]
    NamespaceFloor(namespace::FloorArgs),
    /// Append to a shared log, read and follow it: compared with streams of Redis and NATS, and with the disk
    Append(Box<append::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    AppendClient,
    /// Call methods of object classes: compared with transactions, with scripts of Redis and with cls_lua in an OSD
    Class(Box<class::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    ClassClient,
    /// One process of watchers of that study, started by it
    #[command(hide = true)]
    ClassWatchers,
    /// Tell many servers of a new version of a class: by watches, by notifications, and from server to server
    Propagate(Box<propagate::Args>),
    /// One process of servers of that study, started by it
    #[command(hide = true)]
    PropagateServer,
    /// Walk a large tree: Nacre compared with find, du, bfs, fd and bare system calls
    Walk(Box<walk::Args>),
    /// Create the tree of that study, and keep it
    WalkTree(Box<walk::TreeArgs>),
    /// Walk by bare system calls
    #[command(hide = true)]
    WalkFloor(walk::FloorArgs),
    /// Copy, compare, remove and sweep a tree: compared with cp, rsync, diff and rm
    Trees(Box<trees::Args>),
    /// Print shell completions
    #[command(hide = true)]
    Completions(shell::CompletionsArgs),
    /// Write the manual pages of this program and of each study to a folder
    #[command(hide = true)]
    Man(shell::ManArgs),
}

impl Common {
    /// Returns the path of the program that is measured.
    ///
    /// # Errors
    /// [`BenchError::Usage`] if there is none.
    fn nacre(&self) -> Result<PathBuf, BenchError> {
        let absent = |place: String| {
            let advice = "\"make release\" builds it; name it with --nacre";
            BenchError::Usage(format!("the program nacre, which is measured, is not {place}: {advice}"))
        };
        if let Some(program) = &self.nacre {
            return match program.is_file() {
                true => std::path::absolute(program).map_err(BenchError::io("find the working folder")),
                false => Err(absent(format!("at {}", Escaped::of(&program)))),
            };
        }
        let beside = kit::process::this_program()?.with_file_name("nacre");
        match beside.is_file() {
            true => Ok(beside),
            false => kit::peer::in_path("nacre")
                .ok_or_else(|| absent(format!("{}, nor in PATH", Escaped::of(&beside)))),
        }
    }

    /// Returns the uri of the store, with the key, if both are given and it is one of servers.
    ///
    /// # Errors
    /// If it is no uri.
    fn store(&self) -> Result<Option<String>, BenchError> {
        let (Some(store), Some(key)) = (&self.store, &self.key) else { return Ok(self.store.clone()) };
        let mut uri: nacre::Uri = store.parse()?;
        if let nacre::Engine::Servers(_) = &uri.engine {
            uri.options.key.get_or_insert_with(|| key.clone());
        }
        let text = "the uri of a study's store and the path of its key have to be UTF-8: its clients are told them as text";
        uri.to_os_string().into_string().map(Some).map_err(|_| BenchError::Usage(text.to_owned()))
    }
}

fn main() -> ExitCode {
    let Line { common, command } = match Line::try_parse() {
        Ok(line) => line,
        Err(error) => return usage::refuse(&error, &usage::message(&error)).report(false),
    };
    let json = common.json;
    let done = run(command, &common).and_then(|()| Ok(output::flush()?));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.of_work().report(json),
    }
}

/// Runs a study, or the part of one that it starts as a process of its own.
fn run(command: Command, common: &Common) -> Result<(), Failure> {
    match command {
        Command::Rmw(args) => rmw::run(&rmw::Args { store: common.store()?, ..*args }, common)?,
        Command::RmwClient => rmw::client_main()?,
        Command::Reflect(args) => reflect::run(&args, common)?,
        Command::ReflectServe => reflect::serve_main()?,
        Command::Locks(args) => locks::run(&args, common)?,
        Command::LocksClient => locks::client_main()?,
        Command::S3d(args) => mpiio::s3d::run(&args, common)?,
        Command::S3asim(args) => mpiio::s3asim::run(&args, common)?,
        Command::Pieces(args) => mpiio::pieces::run(&args, common)?,
        Command::Sequencer(args) => sequencer::run(&args, common)?,
        Command::SequencerClient => sequencer::client_main()?,
        Command::Failover(args) => failover::run(&args, common)?,
        Command::FailoverClient => failover::client_main()?,
        Command::Balance(args) => balance::run(&args, common)?,
        Command::BalanceClient => balance::client_main()?,
        Command::Namespace(args) => namespace::run(&args, common)?,
        Command::NamespaceClient => namespace::client_main()?,
        Command::NamespaceFloor(args) => namespace::floor_main(&args)?,
        Command::Append(args) => append::run(&args, common)?,
        Command::AppendClient => append::client_main()?,
        Command::Class(args) => class::run(&args, common)?,
        Command::ClassClient => class::client_main()?,
        Command::ClassWatchers => class::watchers_main()?,
        Command::Propagate(args) => propagate::run(&args, common)?,
        Command::PropagateServer => propagate::server_main()?,
        Command::Walk(args) => walk::run(&args, common)?,
        Command::WalkTree(args) => walk::make_tree(&args, common)?,
        Command::WalkFloor(args) => walk::floor_main(&args)?,
        Command::Trees(args) => trees::run(&args, common)?,
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(&args)?,
    }
    Ok(())
}
