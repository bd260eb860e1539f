//! Nacre's studies: each regenerates one paper's experiments on the machine at hand.
//!
//! `nacre bench …` mounts [`Command`]. Every study gives a table, raw results as JSON, and the paper's figures; it
//! starts the servers, the client processes and the peers that it needs, and ends them by their process ids. Ratios
//! between what was measured in one run are worth quoting; absolute figures only with the machine they came from.

#![deny(unsafe_code)]

mod error;
mod figure;
mod goal;
mod latency;
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
    /// One client process of that study, which gives it its orders
    #[command(hide = true)]
    RmwClient,
    /// Copy datagrams to groups: the reflector's planes beside each other
    Reflect(Box<reflect::Args>),
    /// The reflector of that study, which gives it its orders
    #[command(hide = true)]
    ReflectServe,
    /// Walk a large tree: Nacre against find, du, bfs, fd and the system's calls alone
    Walk(Box<walk::Args>),
    /// Make the tree of that study, and leave it there
    WalkTree(Box<walk::TreeArgs>),
    /// The system's calls alone
    #[command(hide = true)]
    WalkFloor(walk::FloorArgs),
}

/// What a program that mounts [`Command`] knows from flags that all its commands share.
#[derive(Clone, Debug, Default)]
pub struct Common {
    /// A store to use instead of starting servers, if the user named one on the command line.
    pub store: Option<String>,
    /// Print JSON instead of tables.
    pub json: bool,
}

/// Runs a study. The program must be one that answers `serve` and `bench rmw-client` too: studies run it again as
/// their servers and clients.
pub fn run(command: Command, common: Common) -> Result<(), BenchError> {
    match command {
        Command::Rmw(args) => {
            rmw::run(&rmw::Args { store: common.store.or(args.store), print_json: common.json, ..*args })
        }
        Command::RmwClient => rmw::client_main(),
        Command::Reflect(args) => reflect::run(&reflect::Args { print_json: common.json, ..*args }),
        Command::ReflectServe => reflect::serve_main(),
        Command::Walk(args) => walk::run(&walk::Args { print_json: common.json, ..*args }),
        Command::WalkTree(args) => walk::make_tree(&walk::TreeArgs { print_json: common.json, ..*args }),
        Command::WalkFloor(args) => walk::floor_main(&args),
    }
}

/// Runs to the end, unless the user or the system ends the program: then everything that it started is ended first.
async fn until_interrupted<T>(work: impl Future<Output = Result<T, BenchError>>) -> Result<T, BenchError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).map_err(BenchError::io("wait for SIGTERM"))?;
    tokio::select! {
        result = work => result,
        _ = tokio::signal::ctrl_c() => Err(BenchError::Process("interrupted".into())),
        _ = terminate.recv() => Err(BenchError::Process("terminated".into())),
    }
}
