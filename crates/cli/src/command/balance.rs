//! `nacre balance`: policies that balance load between ranks are put into force, tried and explained.

mod figure;
mod missing;
mod shown;
mod typed;

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nacre_balance::limit::{MOVES_PER_TICK_MAX, POLICY_BYTES_MAX, TICK_MAX, TICK_MIN};
use nacre_balance::{
    BalanceError, Balancer, InForce, Ledger, Metrics, Migration, Mode, Participants, Pattern, Policy,
    Published, Registry, ResourceId, SHIPPED, Selector, Settings, Tick, Trace, participants, present,
    published, published_reflectors, shipped, simulate,
};
use nacre_map::ProposeError;
use nacre_map::log::{Entry, Level, Log};
use nacre_object::StoreError;
use nacre_quantity::Escaped;
use serde_json::json;

use self::shown::{
    Explained, explained, in_force_json, print_history, print_in_force, print_moves, print_simulated,
};
pub use self::shown::{migration_json, migration_text};
use super::map::default_author;
use crate::arguments;
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::quantity::Time;
use crate::session::Context;

const AFTER_HELP: &str = "\
A policy is a Lua script that says how much load a rank sends to each of the others, in the form of Ceph's balancer or in that \
of the paper. POLICY is a file if it contains a slash or ends with .lua, - for standard input, and otherwise the name of one \
that ships (\"nacre balance ls\").

Resources are named KIND:NAME, such as sequencer:orders, subtree:/home or group:harbour; kinds are subtree, sequencer and group. \
A subtree is a directory that \"nacre rank pin\" has given to a rank, with all sequencers below it, and is named by its path from \
the root, typed as it is. A group is named by its location, and for groups a rank is the number of a reflector, which \"nacre \
balance explain\" prints.";

/// Balance load between metadata ranks, and between reflectors, by policies in Lua
///
/// All ranks and reflectors use the same version of a policy. One that fails leaves in force what was in force before.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// List the policies that ship
    Ls,
    /// Put a policy into force, or change settings; prints the version
    Set {
        /// The policy; without it, only settings are changed
        #[arg(value_name = "POLICY")]
        policy: Option<PathBuf>,
        /// Name of the policy [default: the file's name without its extension]
        #[arg(long, requires = "policy")]
        name: Option<String>,
        #[command(flatten)]
        settings: SettingArgs,
    },
    /// Print the policy in force, the settings, and the moves that are under way
    Show {
        /// Print the script itself
        #[arg(long)]
        text: bool,
    },
    /// List the changes that are kept, or the latest moves, oldest first
    History {
        /// Print only the last COUNT of them
        #[arg(short = 'n', long, value_name = "COUNT", value_parser = arguments::at_least_one)]
        count: Option<usize>,
        /// List the latest moves of sequencers, subtrees and groups instead
        #[arg(long)]
        moves: bool,
    },
    /// Put an earlier policy into force again, as a new version; prints it
    Rollback {
        /// The version to bring back [default: the latest with another policy]
        version: Option<u64>,
    },
    /// Stop balancing; pins and other settings are kept
    Off,
    /// Keep a resource at a rank: it is moved there, and stays
    ///
    /// The resource may come later. As long as there is none, the command says so.
    Pin {
        /// The resource
        #[arg(value_parser = typed::resource())]
        resource: ResourceId,
        /// The rank
        #[arg(value_parser = super::rank::number())]
        rank: u32,
    },
    /// Leave a resource to the policy again
    Unpin {
        /// The resource
        #[arg(value_parser = typed::resource())]
        resource: ResourceId,
    },
    /// Limit the ranks that a resource may be moved to; without ranks, remove the limit
    Mask {
        /// The resource, or all of a kind, such as sequencer:*
        #[arg(value_parser = typed::pattern())]
        resource: Pattern,
        /// The ranks
        #[arg(value_name = "RANK", value_parser = super::rank::number())]
        ranks: Vec<u32>,
    },
    /// Simulate a policy on a trace, and print loads and moves over time
    ///
    /// A trace is a file of JSON objects, one a line: {"at": 0, "kind": "sequencer", "name": "orders", "load": 7, "rank": 0}.
    /// The page on balancing has the details.
    Simulate {
        /// The trace; - is standard input
        trace: PathBuf,
        /// Number of ranks [default: that of the trace, or 3]
        #[arg(long, value_name = "COUNT", value_parser = arguments::at_least_one)]
        ranks: Option<usize>,
        /// The policy
        #[arg(long, value_name = "POLICY", default_value = "adaptable")]
        policy: PathBuf,
        #[command(flatten)]
        settings: SettingArgs,
        /// Also draw the loads over time into this file, as SVG
        #[arg(long, value_name = "FILE")]
        figure: Option<PathBuf>,
    },
    /// Explain what the next tick would do, and why, by what ranks and reflectors have published
    Explain {
        /// Try this policy instead of the one in force
        #[arg(long, value_name = "POLICY")]
        policy: Option<PathBuf>,
    },
}

/// The settings that flags change.
#[derive(clap::Args, Debug)]
struct SettingArgs {
    /// Time between two decisions [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = tick)]
    tick: Option<Time>,
    /// Maximum number of moves away from one rank at a tick [default: 8]
    #[arg(long, value_name = "COUNT", value_parser = nacre_quantity::count_parser::<u32>(1..=u64::from(MOVES_PER_TICK_MAX)))]
    moves: Option<u32>,
    /// Choice of resources for a policy that names none: biggest, fewest or locality [default: biggest]
    #[arg(long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// How clients reach moved sequencers: client (redirected), proxy (forwarded) or proxy-half [default: client]
    #[arg(long, value_name = "MODE")]
    mode: Option<Mode>,
}

/// Parses the time between two decisions.
fn tick(text: &str) -> Result<Time, String> {
    let time: Time = text.parse()?;
    match (TICK_MIN..=TICK_MAX).contains(&time.0) {
        true => Ok(time),
        false => Err(format!("it must be {TICK_MIN:?} to {TICK_MAX:?}")),
    }
}

impl SettingArgs {
    fn is_empty(&self) -> bool {
        self.tick.is_none() && self.moves.is_none() && self.selector.is_none() && self.mode.is_none()
    }

    fn apply(&self, mut settings: Settings) -> Settings {
        if let Some(Time(tick)) = self.tick {
            settings.tick_ms = u64::try_from(tick.as_millis()).unwrap_or(u64::MAX);
        }
        settings.moves_per_tick = self.moves.unwrap_or(settings.moves_per_tick);
        settings.selector = self.selector.unwrap_or(settings.selector);
        settings.mode = self.mode.unwrap_or(settings.mode);
        settings
    }
}

/// Runs `nacre balance`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Ls => list(session),
        Action::Set { policy, name, settings } => set(session, policy, name, &settings).await,
        Action::Show { text } => show(session, text).await,
        Action::History { count, moves: true } => {
            let registry = registry(session.open()?)?;
            let mut all = published(&**registry.store()).await?;
            all.extend(published_reflectors(&**registry.store()).await?);
            let mut moves: Vec<_> = all.into_iter().flat_map(|one| one.moves).collect();
            moves.sort_by_key(|made| made.at_ms);
            if let Some(count) = count {
                moves.drain(..moves.len().saturating_sub(count));
            }
            print_moves(session, &moves)
        }
        Action::History { count, moves: false } => {
            let mut history = registry(session.open()?)?.history().await?;
            if let Some(count) = count {
                history.drain(..history.len().saturating_sub(count));
            }
            print_history(session, &history)
        }
        Action::Rollback { version } => {
            let registry = registry(session.open()?)?;
            let in_force = registry.rollback(&default_author(), version).await.map_err(failure)?;
            changed(session, &registry, &in_force).await
        }
        Action::Off => {
            let registry = registry(session.open()?)?;
            let in_force = registry.off(&default_author()).await.map_err(failure)?;
            changed(session, &registry, &in_force).await
        }
        Action::Pin { resource, rank } => {
            let pin = |settings: &mut Settings| {
                settings.pins.insert(resource.clone(), rank);
            };
            let store = session.open_to_fill()?;
            change(session, store.clone(), pin).await?;
            missing::note(&store, &resource).await;
            Ok(())
        }
        Action::Unpin { resource } => {
            let unpin = |settings: &mut Settings| {
                settings.pins.remove(&resource);
            };
            change(session, session.open_to_fill()?, unpin).await
        }
        Action::Mask { resource, ranks } => {
            let mask = |settings: &mut Settings| {
                match ranks.is_empty() {
                    true => settings.masks.remove(&resource),
                    false => settings.masks.insert(resource.clone(), ranks.clone()),
                };
            };
            change(session, session.open_to_fill()?, mask).await
        }
        Action::Simulate { trace, ranks, policy, settings, figure } => {
            run_simulation(session, &trace, ranks, &policy, &settings, figure)
        }
        Action::Explain { policy } => explain(session, policy).await,
    }
}

fn registry(store: nacre::Store) -> Result<Registry, Failure> {
    Ok(Registry::new(Arc::new(store))?)
}

fn failure(error: BalanceError) -> Failure {
    match error {
        BalanceError::Store(error) | BalanceError::Propose(ProposeError::Store(error)) => error.into(),
        BalanceError::Policy(error) => Failure::Failed(format!("{error}; nothing was changed")),
        BalanceError::Propose(error) => Failure::Failed(format!("{error}; nothing was changed")),
        error => Failure::Failed(error.to_string()),
    }
}

fn list(session: &Context) -> Result<(), Failure> {
    if session.json {
        let list: Vec<_> =
            SHIPPED.iter().map(|one| json!({ "name": one.name, "about": one.about })).collect();
        return Ok(output::line(&json!(list).to_string())?);
    }
    let mut table = Table::new(&["policy", "about"]);
    for one in &SHIPPED {
        table.row([one.name.to_owned(), one.about.to_owned()]);
    }
    Ok(table.print()?)
}

/// Returns the name and the text of a policy that the command line names.
fn policy_text(policy: &Path, name: Option<String>) -> Result<(String, String), Failure> {
    let word = policy.to_string_lossy();
    let is_file = word == "-" || word.contains('/') || word.ends_with(".lua");
    let Some(shipped) = shipped(&word).filter(|_| !is_file) else {
        if !is_file {
            let names: Vec<&str> = SHIPPED.iter().map(|one| one.name).collect();
            let text = format!("no policy \"{}\" ships; there are {}", Escaped::of(policy), names.join(", "));
            return Err(Failure::Usage(format!("{text}. A file is named with a slash, or ends with .lua")));
        }
        let mut text = Vec::new();
        let most = POLICY_BYTES_MAX as u64 + 1;
        let read = match word == "-" {
            true => std::io::stdin().lock().take(most).read_to_end(&mut text),
            false => File::open(policy).and_then(|file| file.take(most).read_to_end(&mut text)),
        };
        let shown = Escaped::of(policy);
        read.map_err(Failure::io(format_args!("read {shown}")))?;
        let text =
            String::from_utf8(text).map_err(|_| Failure::Failed(format!("{shown} is not valid UTF-8")))?;
        let stem = policy.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let name = match (name, stem) {
            (Some(name), _) => name,
            (None, Some(stem)) if word != "-" => stem,
            _ => "policy".to_owned(),
        };
        return Ok((name, text));
    };
    Ok((name.unwrap_or_else(|| shipped.name.to_owned()), shipped.text.to_owned()))
}

async fn set(
    session: &Context,
    policy: Option<PathBuf>,
    name: Option<String>,
    settings: &SettingArgs,
) -> Result<(), Failure> {
    let Some(policy) = policy else {
        if settings.is_empty() {
            let text =
                "name a policy, or settings to change; \"nacre balance ls\" lists the policies that ship";
            return Err(Failure::Usage(text.to_owned()));
        }
        let apply = |known: &mut Settings| *known = settings.apply(std::mem::take(known));
        return change(session, session.open_to_fill()?, apply).await;
    };
    let (name, text) = policy_text(&policy, name)?;
    let registry = registry(session.open_to_fill()?)?;
    let author = default_author();
    // Settings first: the policy then begins with its own. Where the policy cannot be, they stay as well.
    if !settings.is_empty() {
        let version = registry.current().await?.version.saturating_add(1);
        Policy::new(&name, version, &text).map_err(|error| failure(error.into()))?;
        let changed = registry
            .change(&author, |mut known| {
                known.settings = settings.apply(known.settings);
                Ok(known)
            })
            .await;
        changed.map_err(failure)?;
    }
    let in_force = registry.set(&author, &name, &text).await.map_err(failure)?;
    changed(session, &registry, &in_force).await
}

/// Changes settings, and prints what is in force then.
async fn change(
    session: &Context,
    store: nacre::Store,
    change: impl Fn(&mut Settings),
) -> Result<(), Failure> {
    let (registry, author) = (registry(store)?, default_author());
    let changed = registry.change(&author, |mut known| {
        change(&mut known.settings);
        Ok(known)
    });
    let in_force = changed.await.map_err(failure)?;
    if session.json {
        Ok(output::line(&in_force_json(&in_force).to_string())?)
    } else {
        print_in_force(&in_force)
    }
}

/// Prints the version of a policy that has come into force, and says so in the cluster log.
async fn changed(session: &Context, registry: &Registry, in_force: &InForce) -> Result<(), Failure> {
    let version = in_force.version;
    let text = match &in_force.policy {
        Some(stored) => format!("policy \"{}\" is in force as version {version}", stored.name),
        None => format!("nothing is balanced since version {version}"),
    };
    let log = Log::new(registry.store().clone(), Default::default())?;
    // What was changed is changed, even if the log cannot be written.
    let source = format!("{}, balancer", default_author());
    if let Err(error) = log.append(&[Entry::new(&source, Level::Info, &text)]).await {
        output::complain(&format!("nacre: the cluster log does not show it: {error}"));
    }
    let line = if session.json { in_force_json(in_force).to_string() } else { version.to_string() };
    Ok(output::line(&line)?)
}

async fn show(session: &Context, text: bool) -> Result<(), Failure> {
    let registry = registry(session.open()?)?;
    let in_force = registry.current().await?;
    if text {
        let stored = in_force.policy.as_ref().ok_or_else(no_policy)?;
        return Ok(output::foreign_text(registry.text(stored).await?.as_bytes())?);
    }
    let migrations = migrations(&registry).await?;
    if session.json {
        let mut all = in_force_json(&in_force);
        all["migrations"] = migrations.iter().map(migration_json).collect();
        return Ok(output::line(&all.to_string())?);
    }
    print_in_force(&in_force)?;
    for migration in &migrations {
        output::line(&format!("{:9} {}", "moving", migration_text(migration)))?;
    }
    Ok(())
}

/// Returns the moves that are under way at the ranks and reflectors of a store.
pub async fn under_way(store: &nacre::Store) -> Result<Vec<Migration>, StoreError> {
    migrations(&Registry::new(Arc::new(store.clone()))?).await
}

async fn migrations(registry: &Registry) -> Result<Vec<Migration>, StoreError> {
    let in_force = registry.current().await?;
    if in_force == InForce::default() {
        return Ok(Vec::new());
    }
    let (store, tick, now) = (&**registry.store(), in_force.settings.tick(), now());
    // What was under way when somebody ended is not any more.
    let mut all = present(published(store).await?, now, tick);
    all.extend(present(published_reflectors(store).await?, now, tick));
    Ok(all.into_iter().flat_map(|one| one.migrations).collect())
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn no_policy() -> Failure {
    Failure::Failed("no policy is in force; \"nacre balance set\" puts one into force".to_owned())
}

/// Compiles a policy that the command line names.
fn named_policy(policy: &Path, version: u64) -> Result<Arc<Policy>, Failure> {
    let (name, text) = policy_text(policy, None)?;
    let policy = Policy::new(&name, version, &text).map_err(|error| Failure::Failed(error.to_string()))?;
    Ok(Arc::new(policy))
}

fn run_simulation(
    session: &Context,
    trace: &Path,
    ranks: Option<usize>,
    policy: &Path,
    settings: &SettingArgs,
    figure: Option<PathBuf>,
) -> Result<(), Failure> {
    let shown = Escaped::of(trace);
    let read = match trace.as_os_str() == "-" {
        true => Trace::read(std::io::stdin().lock()),
        false => {
            let file = File::open(trace).map_err(Failure::io(format_args!("open {shown}")))?;
            Trace::read(BufReader::new(file))
        }
    };
    let read = read.map_err(|why| Failure::Failed(format!("trace {shown}: {why}")))?;
    let policy = named_policy(policy, 1)?;
    let ranks = ranks.or(read.ranks).unwrap_or(3);
    let simulated =
        simulate(&read, &policy, &settings.apply(Settings::default()), ranks).map_err(Failure::Failed)?;
    if let Some(file) = figure {
        let svg = figure::svg(&simulated).map_err(Failure::Failed)?;
        std::fs::write(&file, svg).map_err(Failure::io(format_args!("write {}", Escaped::of(&file))))?;
    }
    print_simulated(session, &simulated)
}

async fn explain(session: &Context, policy: Option<PathBuf>) -> Result<(), Failure> {
    let registry = registry(session.open()?)?;
    let in_force = registry.current().await?;
    let policy = match (&policy, &in_force.policy) {
        (Some(policy), _) => named_policy(policy, in_force.version)?,
        (None, Some(stored)) => {
            let text = registry.text(stored).await?;
            let policy = Policy::new(&stored.name, in_force.version, &text);
            Arc::new(policy.map_err(|error| Failure::Failed(error.to_string()))?)
        }
        (None, None) => return Err(no_policy()),
    };
    let (settings, now) = (&in_force.settings, now());
    let reflectors = published_reflectors(&**registry.store()).await?;
    let reflectors = present(reflectors, now, settings.tick());
    let (ranks, silent) = match participants(published(&**registry.store()).await?, now, settings.tick()) {
        Participants::All(ranks) if ranks.is_empty() && reflectors.is_empty() => {
            let text = "no rank has published its load lately; ranks and reflectors that balance do so at every tick";
            return Err(Failure::Failed(format!(
                "{text}: after the first \"nacre balance set\", wait for one tick"
            )));
        }
        Participants::All(ranks) => (ranks, None),
        Participants::Silent { rank, since } => {
            let since = since.map_or(String::new(), |since| format!(" for {} s", since.as_secs()));
            let text =
                format!("rank {rank} has not published its load{since}, and without it nothing is moved");
            if reflectors.is_empty() {
                return Err(Failure::Failed(text));
            }
            (Vec::new(), Some(text))
        }
    };
    let ranks = decide(&policy, settings, &ranks, now);
    let reflectors = decide(&policy, settings, &reflectors, now);
    explained(session, &policy, &ranks, silent.as_deref(), &reflectors)
}

/// Returns what each rank, or each reflector, would decide.
fn decide<'a>(
    policy: &Arc<Policy>,
    settings: &Settings,
    ranks: &'a [Published],
    now: Duration,
) -> Vec<Explained<'a>> {
    let mut ledger = Ledger::default();
    for past in ranks.iter().flat_map(|rank| &rank.moves).filter(|past| !past.made.is_pin) {
        ledger.observe(&past.made, Duration::from_millis(past.at_ms).min(now), settings.tick());
    }
    let metrics: Vec<Metrics> = ranks.iter().map(|rank| rank.metrics.clone()).collect();
    let numbers: Vec<usize> = ranks.iter().map(|rank| rank.rank).collect();
    let decide = |published: &'a Published| {
        let mut balancer = Balancer::new(published.rank);
        balancer.install(policy.clone());
        let tick = Tick { now, ranks: &metrics, numbers: &numbers, resources: &published.resources };
        // The ranks do not see each other's decisions of the same tick.
        let settings = settings.with_strays(&published.strays);
        let decision = balancer.tick(&tick, &settings, &mut ledger.clone());
        Explained { published, decision }
    };
    ranks.iter().map(decide).collect()
}
