//! Nacre's studies, each of which repeats one paper's experiments on the machine at hand.
//!
//! `nacre bench …` mounts [`Command`]. Every study prints a table, and writes raw results as JSON and the paper's
//! figures; it starts the servers, the client processes and the peers that it needs, and ends them by their process
//! ids. Ratios between values measured in one run are comparable across machines; absolute values only together with
//! the machine.

#![deny(unsafe_code)]

mod error;
mod figure;
mod goal;
mod latency;
pub mod locks;
mod machine;
mod peer;
mod process;
mod progress;
mod quantity;
pub mod reflect;
pub mod rmw;
mod server;
mod statistic;
mod table;
pub mod walk;

pub use error::BenchError;
pub use latency::LatencySummary;
pub use machine::Machine;
pub use quantity::Limit;
pub use server::Keep;
pub use statistic::Spread;

/// The studies, as commands.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Update shared blocks from many clients: conditional writes against locks
    Rmw(Box<rmw::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    RmwClient,
    /// Copy datagrams to groups: the reflector's planes beside each other
    Reflect(Box<reflect::Args>),
    /// The reflector of that study, started by it
    #[command(hide = true)]
    ReflectServe,
    /// Lock patterns of many regions from many clients: by description against by region
    Locks(Box<locks::Args>),
    /// One client process of that study, started by it
    #[command(hide = true)]
    LocksClient,
    /// Walk a large tree: Nacre against find, du, bfs, fd and the system's calls alone
    Walk(Box<walk::Args>),
    /// Make the tree of that study, and leave it there
    WalkTree(Box<walk::TreeArgs>),
    /// The system's calls alone
    #[command(hide = true)]
    WalkFloor(walk::FloorArgs),
}

/// The values of flags that all commands of the mounting program share.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// The store to use instead of starting servers, if one is given on the command line.
    pub store: Option<String>,
    /// Prints JSON instead of tables.
    pub json: bool,
}

/// Runs a study. The running program must also provide `serve` and the hidden commands of [`Command`]: studies start it again as
/// their servers and clients.
///
/// # Errors
/// [`BenchError`] if the study cannot run, or its checks fail.
pub fn run(command: Command, common: Common) -> Result<(), BenchError> {
    match command {
        Command::Rmw(args) => {
            rmw::run(&rmw::Args { store: common.store.or(args.store), print_json: common.json, ..*args })
        }
        Command::RmwClient => rmw::client_main(),
        Command::Reflect(args) => reflect::run(&reflect::Args { print_json: common.json, ..*args }),
        Command::ReflectServe => reflect::serve_main(),
        Command::Locks(args) => locks::run(&locks::Args { print_json: common.json, ..*args }),
        Command::LocksClient => locks::client_main(),
        Command::Walk(args) => walk::run(&walk::Args { print_json: common.json, ..*args }),
        Command::WalkTree(args) => walk::make_tree(&walk::TreeArgs { print_json: common.json, ..*args }),
        Command::WalkFloor(args) => walk::floor_main(&args),
    }
}

/// Runs `work` to its end, unless SIGINT or SIGTERM arrives: then it is dropped, which ends everything that it started.
async fn until_interrupted<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(BenchError::io("wait for SIGTERM"))?;
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => Err(BenchError::Process("interrupted".into())),
        _ = terminate.recv() => Err(BenchError::Process("terminated".into())),
    }
}
