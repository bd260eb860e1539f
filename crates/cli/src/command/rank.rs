//! `nacre rank`: the metadata ranks of a store, and which of them has authority over what.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nacre::ErrorKind;
use nacre::rank::{Mode, RANK_MAX, RankLoad, RankNumber, RankStatus};
use nacre::sequencer::{SEQUENCER_PREFIX, Sequencer};
use nacre_quantity::{Escaped, unescape};
use serde_json::{Map, Value, json};

use super::fs::typed;
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::session::Context;

const AFTER_HELP: &str = "\
A rank is a \"nacre serve\" with the role meta; --meta-rank gives its number, and daemons of the same number on one store stand by \
for each other. A sequencer begins at rank 0, or at the rank of the nearest pinned directory above it, and stays where it is \
until it is moved.

Modes, which say how programs reach a sequencer that was moved:
  client      they are redirected to the new rank
  proxy       the old rank stays their contact and forwards all requests; nothing is cached by way of it
  proxy-half  the same for every second program; the others are redirected";

/// The time that a rank has for telling its load.
const LOAD_MAX: Duration = Duration::from_secs(2);

/// Show metadata ranks, and move sequencers between them while programs use them
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// List the ranks: their daemons, standbys, load, and busiest sequencers
    ///
    /// REQUESTS is the number per second of about the last 5 seconds. What programs take from their caches is no request.
    /// QUEUE is the number of requests that wait. A rank that does not answer is shown without a load.
    Ls {
        /// List up to this number of sequencers of each rank too, the busiest first
        #[arg(long, value_name = "COUNT", default_value = "0", value_parser = nacre_quantity::count_parser::<usize>(0..=1000))]
        sequencers: usize,
    },
    /// Move a sequencer, or all sequencers below a path, to another rank
    ///
    /// Programs that use them wait for a moment and see no error. No position is handed out twice.
    Move {
        /// The sequencer, or a path in the namespace, which begins with a slash
        name: OsString,
        /// The rank
        #[arg(value_parser = number())]
        rank: RankNumber,
        /// How programs reach them, as described below
        #[arg(long, value_name = "MODE", default_value = "client")]
        mode: Mode,
    },
    /// Give a rank all sequencers below a directory: those that are there, and those that will be created there
    ///
    /// The nearest pinned directory above a new sequencer counts. What is moved later stays where it was moved to, unless a policy
    /// that balances load is in force: then the directory moves as a whole, and what is below it is kept at its rank.
    Pin {
        /// The directory in the namespace
        path: OsString,
        /// The rank
        #[arg(value_parser = number())]
        rank: RankNumber,
    },
    /// Free a directory: what will be created below it is no longer the rank's; what is there stays where it is
    Unpin {
        /// The directory in the namespace
        path: OsString,
    },
}

/// Returns a parser of numbers of ranks.
pub fn number() -> impl Fn(&str) -> Result<RankNumber, String> + Clone + Send + Sync + 'static {
    nacre_quantity::count_parser::<RankNumber>(0..=u64::from(RANK_MAX))
}

/// Runs `nacre rank`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?.patient();
    let done = match args.action {
        Action::Ls { sequencers } => list(session, &store, sequencers).await,
        Action::Move { name, rank, mode } => move_all(&store, &name, rank, mode).await,
        Action::Pin { path, rank } => pin(&store, &path, rank).await,
        Action::Unpin { path } => {
            let directory = typed::pinned_directory(&store, &path, "unpin").await?;
            Ok(store.set_rank_pin(directory, None).await?)
        }
    };
    store.end_sequencers().await;
    done
}

async fn pin(store: &nacre::Store, path: &OsStr, rank: RankNumber) -> Result<(), Failure> {
    let directory = typed::pinned_directory(store, path, "pin").await?;
    // What is created at a rank that nobody acts for cannot be used, nor moved away.
    if store.ranks().await?.iter().all(|found| found.rank != rank) {
        let text = format!(
            "cannot pin {} to rank {rank}: there is no metadata rank {rank}; \"nacre rank ls\" lists those that are there",
            Escaped(path.as_bytes())
        );
        return Err(Failure::Failed(text));
    }
    store.set_rank_pin(directory, Some(rank)).await?;
    move_below(store, path, rank, Mode::Client).await
}

async fn move_all(store: &nacre::Store, name: &OsStr, rank: RankNumber, mode: Mode) -> Result<(), Failure> {
    if name.as_bytes().starts_with(b"/") {
        return move_below(store, name, rank, mode).await;
    }
    let bytes = unescape(name.as_bytes()).map_err(Failure::Usage)?;
    let sequencer = store.sequencer(&bytes).await?;
    migrate(&sequencer, &Escaped(&bytes).to_string(), rank, mode).await
}

/// Moves the sequencers at and below a path.
async fn move_below(store: &nacre::Store, path: &OsStr, rank: RankNumber, mode: Mode) -> Result<(), Failure> {
    for (path, sequencer) in typed::sequencers_below(store, path, "move").await? {
        migrate(&sequencer, &path, rank, mode).await?;
    }
    Ok(())
}

async fn migrate(sequencer: &Sequencer, shown: &str, rank: RankNumber, mode: Mode) -> Result<(), Failure> {
    let moved = sequencer.migrate(rank, mode).await;
    moved.map_err(|mut error| {
        if error.kind == ErrorKind::Invalid && error.message.contains("no such sequencer") {
            error.message.push_str("; \"nacre sequencer ls\" lists those that are there");
        }
        error.context(format_args!("cannot move sequencer \"{shown}\" to rank {rank}")).into()
    })
}

async fn list(session: &Context, store: &nacre::Store, sequencers: usize) -> Result<(), Failure> {
    let pins = store.rank_pins().await?;
    let mut found = Vec::new();
    for rank in store.ranks().await? {
        let load = match tokio::time::timeout(LOAD_MAX, store.rank_load(rank.rank)).await {
            Ok(Ok(load)) if load.epoch > 0 => Some(load),
            _ => None,
        };
        found.push((rank, load));
    }
    if session.json {
        let rows: Vec<Value> = found
            .iter()
            .map(|(rank, load)| {
                let pinned = pins.iter().filter(|(_, pinned)| **pinned == rank.rank).map(|(ino, _)| ino.0);
                let mut row = row_json(rank, load.as_ref(), sequencers);
                row.insert("pinned_inodes".to_owned(), pinned.collect::<Vec<u64>>().into());
                Value::Object(row)
            })
            .collect();
        return Ok(output::line(&Value::from(rows).to_string())?);
    }
    let mut table =
        Table::new(&["rank", "epoch", "daemon", "standbys", "pins", "sequencers", "requests", "queue"]);
    for (rank, load) in &found {
        let pinned = pins.values().filter(|pinned| **pinned == rank.rank).count();
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        table.row([
            rank.rank.to_string(),
            rank.epoch.to_string(),
            daemon(rank),
            rank.standbys.len().to_string(),
            pinned.to_string(),
            shown(load.as_ref().map(|load| load.resources.len().to_string())),
            shown(load.as_ref().map(|load| format!("{:.0}", load.requests_per_second))),
            shown(load.as_ref().map(|load| load.queue.to_string())),
        ]);
    }
    table.print()?;
    if sequencers == 0 {
        return Ok(());
    }
    let mut table = Table::new(&["rank", "sequencer", "requests", "waiting", "state"]);
    for load in found.iter().filter_map(|(_, load)| load.as_ref()) {
        for resource in load.resources.iter().take(sequencers) {
            table.row([
                load.rank.to_string(),
                name_of(resource.id.as_bytes()),
                format!("{:.0}", resource.requests_per_second),
                resource.waiting.to_string(),
                state(resource.held, resource.moving).to_owned(),
            ]);
        }
    }
    output::line("")?;
    Ok(table.print()?)
}

/// Returns who has the authority of a rank, as it is printed.
fn daemon(rank: &RankStatus) -> String {
    match (rank.free, &rank.addresses[..]) {
        (true, _) => "none".to_owned(),
        (false, []) => "the store's server".to_owned(),
        (false, addresses) => Escaped(addresses.join(",").as_bytes()).to_string(),
    }
}

/// Returns a sequencer's object as it is printed: by its name, or the object of one of the namespace.
fn name_of(id: &[u8]) -> String {
    Escaped(id.strip_prefix(SEQUENCER_PREFIX.as_bytes()).unwrap_or(id)).to_string()
}

fn state(held: bool, moving: bool) -> &'static str {
    match (held, moving) {
        (_, true) => "moving",
        (true, false) => "held",
        (false, false) => "-",
    }
}

fn row_json(rank: &RankStatus, load: Option<&RankLoad>, sequencers: usize) -> Map<String, Value> {
    let mut row = Map::new();
    for (name, value) in [
        ("rank", json!(rank.rank)),
        ("epoch", json!(rank.epoch)),
        ("name", json!(rank.name)),
        ("addresses", json!(rank.addresses)),
        ("free", json!(rank.free)),
        ("standbys", json!(rank.standbys)),
    ] {
        row.insert(name.to_owned(), value);
    }
    let Some(load) = load else { return row };
    for (name, value) in [
        ("requests_per_second", json!(load.requests_per_second)),
        ("forwarded_per_second", json!(load.forwarded_per_second)),
        ("queue", json!(load.queue)),
        ("sessions", json!(load.sessions)),
        ("sequencers", json!(load.resources.len())),
    ] {
        row.insert(name.to_owned(), value);
    }
    if sequencers > 0 {
        let busiest = load.resources.iter().take(sequencers).map(|resource| {
            let mut row = Map::new();
            output::put_bytes(&mut row, "object", resource.id.as_bytes());
            row.insert("requests_per_second".to_owned(), json!(resource.requests_per_second));
            row.insert("waiting".to_owned(), json!(resource.waiting));
            row.insert("held".to_owned(), json!(resource.held));
            row.insert("moving".to_owned(), json!(resource.moving));
            Value::Object(row)
        });
        row.insert("busiest".to_owned(), busiest.collect::<Vec<Value>>().into());
    }
    row
}
