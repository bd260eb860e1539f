//! The commands: one file for each, or for a pair that belongs together.

pub mod across;
pub mod administration;
pub mod apply;
pub mod balance;
pub mod bench;
pub mod browse;
mod child;
pub mod class;
pub mod compare;
pub mod copy;
pub mod copy_tree;
pub mod daemon;
pub mod diff;
pub mod extents;
pub mod fail;
pub mod fence;
pub mod fs;
pub mod keygen;
pub mod keys;
pub mod lock;
pub mod locks;
pub mod log;
pub mod ls;
pub mod map;
pub mod mount;
pub mod mpirun;
pub mod ping;
pub mod query;
pub mod rank;
pub mod read;
pub mod reflect;
pub mod remove;
pub mod rm;
pub mod sequencer;
pub mod serve;
pub mod shell;
pub mod stat;
pub mod status;
pub mod top;
pub mod tour;
pub mod transfer;
mod tree_path;
pub mod walk;
pub mod watch;
pub mod watchdog;
pub mod write;
pub mod zlog;

use crate::arguments::{Command, Line};
use crate::failure::{Failure, advise_without_variable};
use crate::session::Context;

/// Runs the command that the line names.
pub fn run(line: Line) -> Result<(), Failure> {
    // These run until a signal asks them to end, and may fail at that.
    let serves = matches!(line.command, Command::Serve(_) | Command::Reflect(_) | Command::Mount(_));
    dispatch(line).map_err(|failure| if serves { failure } else { failure.of_work() })
}

fn dispatch(line: Line) -> Result<(), Failure> {
    let session = Context::new(&line.common);
    if matches!(line.command, Command::Serve(_) | Command::Reflect(_) | Command::Bench(_)) {
        advise_without_variable();
    }
    match line.command {
        Command::Serve(args) => serve::run(&line.common, *args),
        Command::Copy(args) => copy_tree::run(&session, args),
        Command::Compare(args) => compare::run(&session, args),
        Command::Remove(args) => remove::run(&session, args),
        Command::Keygen(args) => keygen::run(args),
        Command::Walk(args) => walk::run(&session, &args),
        Command::Query(args) => query::run(&session, &args),
        Command::Browse(args) => browse::run(&session, &args),
        Command::Diff(args) => diff::run(&session, &args),
        Command::Reflect(command) => reflect::run(&line.common, command),
        Command::Bench(args) => bench::run(&line.common, args),
        Command::Mount(args) => mount::run(&session, &args),
        Command::Mpirun(args) => mpirun::run(&line.common, args),
        Command::MpirunLauncher(args) => mpirun::attached::run(&args),
        Command::MpirunNode(args) => mpirun::node::run(&args),
        Command::MpirunWatchdog(args) => watchdog::run(&args),
        Command::Tour(args) => tour::run(&session, args),
        Command::TourClient(args) => tour::client(&session, args),
        Command::Completions(args) => shell::completions(args),
        Command::Man(args) => shell::man(args),
        command => block_on(on_objects(&session, command)),
    }
}

/// Runs a command on objects. Each is a handful of requests, which one thread serves best.
async fn on_objects(session: &Context, command: Command) -> Result<(), Failure> {
    match command {
        Command::Put(args) => transfer::put(session, args).await,
        Command::Get(args) => transfer::get(session, args).await,
        Command::Write(args) => write::run(session, args).await,
        Command::Apply(args) => apply::run(session, args).await,
        Command::Read(args) => read::run(session, args).await,
        Command::Extents(args) => extents::run(session, args).await,
        Command::Stat(args) => stat::run(session, args).await,
        Command::Fence(args) => fence::run(session, args).await,
        Command::Fs(args) => fs::run(session, args).await,
        Command::Ls(args) => ls::run(session, args).await,
        Command::Rm(args) => rm::run(session, args).await,
        Command::Keys(args) => keys::keys(session, args).await,
        Command::Attr(args) => keys::attr(session, args).await,
        Command::Info(args) => administration::info(session, args).await,
        Command::Scrub(args) => administration::scrub(session, args).await,
        Command::Compact(args) => administration::compact(session, args).await,
        Command::Purge(args) => administration::purge(session, args).await,
        Command::CopyObjects(args) => copy::run(session, args).await,
        Command::Class(args) => class::run(session, args).await,
        Command::Map(args) => map::run(session, args).await,
        Command::Balance(args) => balance::run(session, args).await,
        Command::Ping(args) => ping::run(session, args).await,
        Command::Status(args) => status::run(session, args).await,
        Command::Top(args) => top::run(session, args).await,
        Command::Log(args) => log::run(session, args).await,
        Command::Zlog(args) => zlog::run(session, args).await,
        Command::Lock(args) => lock::run(session, args).await,
        Command::Locks(args) => locks::run(session, args).await,
        Command::Sequencer(args) => sequencer::run(session, args).await,
        Command::Fail(args) => fail::run(session, args).await,
        Command::Rank(args) => rank::run(session, args).await,
        Command::Watch(args) => watch::watch(session, args).await,
        Command::Notify(args) => watch::notify(session, args).await,
        Command::Serve(_)
        | Command::Copy(_)
        | Command::Compare(_)
        | Command::Remove(_)
        | Command::Keygen(_)
        | Command::Walk(_)
        | Command::Query(_)
        | Command::Browse(_)
        | Command::Diff(_)
        | Command::Reflect(_)
        | Command::Bench(_)
        | Command::Mount(_)
        | Command::Mpirun(_)
        | Command::MpirunLauncher(_)
        | Command::MpirunNode(_)
        | Command::MpirunWatchdog(_)
        | Command::Tour(_)
        | Command::TourClient(_)
        | Command::Completions(_)
        | Command::Man(_) => unreachable!("these are run without a runtime around them"),
    }
}

/// Runs a future to completion on this thread.
pub fn block_on<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::io("start the program's runtime"))?;
    let result = runtime.block_on(future);
    // A read of standard input that is no longer needed must not keep the program from ending.
    runtime.shutdown_background();
    result
}
