//! `nacre sequencer`: counters from which many programs take positions.

use nacre::ErrorKind;
use nacre::fs::{READ, WRITE};
use nacre::sequencer::{Policy, Sequencer, Shown};
use nacre_object::Escaped;
use serde_json::json;

use super::fs::typed;
use crate::failure::Failure;
use crate::name;
use crate::output::{self, Table};
use crate::session::Context;

const AFTER_HELP: &str = "\
Policies, which say how long a program that caches the sequencer keeps it when others wait:
  best-effort      give it back at once
  hold=10ms        keep it for at least 10 ms
  quota=1000/50ms  hand out up to 1000 positions, within 50 ms (default: 100 ms)
  round-trip       never cache it: each request goes to the metadata rank

Positions begin at 0, and none is handed out twice. After a crash, some may be skipped.

A name that begins with a slash is a path in the namespace (\"nacre fs\"), whose permissions apply: \"next\" and changing
the policy need write permission, everything else read permission.";

/// The number of names that are asked for at once.
const PAGE: usize = 1000;

/// Create sequencers, and take positions from them
///
/// A sequencer is a counter that many programs share. Each of its positions is handed out once. Programs that use it
/// heavily cache it; its policy says for how long.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Create a sequencer
    Create {
        /// The sequencer
        name: String,
        /// Policy of the sequencer, as described below
        #[arg(long, value_name = "POLICY", default_value = "best-effort")]
        policy: Policy,
    },
    /// Take and print the next position, or several in a row, one per line
    Next {
        /// The sequencer
        name: String,
        /// Number of positions
        #[arg(short = 'n', long, value_name = "COUNT", default_value = "1", value_parser = nacre_quantity::count_parser::<u64>(1..=u64::MAX))]
        count: u64,
    },
    /// Print the tail, the next position
    Read {
        /// The sequencer
        name: String,
    },
    /// Print the policy, or change it, also for the current holder
    Policy {
        /// The sequencer
        name: String,
        /// The policy, as in "nacre sequencer --help"
        policy: Option<Policy>,
    },
    /// List sequencers, without asking their holders; those in the namespace only if named
    ///
    /// TAIL is the next position; for a held sequencer, the first position that its holder was lent. No position at or
    /// above RESERVED has been handed out.
    Ls {
        /// List only these
        names: Vec<String>,
    },
    /// Remove a sequencer, once nobody holds it; one created later under its name continues above its positions
    Rm {
        /// The sequencer
        #[arg(required = true)]
        names: Vec<String>,
    },
}

/// Runs `nacre sequencer`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?.patient();
    let done = act(session, &store, args.action).await;
    store.end_sequencers().await;
    done
}

fn failed(verb: &str, name: &str, error: nacre::Error) -> Failure {
    let advice = match error.kind {
        ErrorKind::Invalid => "; \"nacre sequencer ls\" lists those that are there",
        _ => "",
    };
    let shown = name::shown(name);
    if let ErrorKind::OutOfSpace = error.kind
        && error.message.contains("positions left")
    {
        // Room on a disk would not help.
        let text = format!("cannot {verb} sequencer \"{shown}\": {}; take fewer at once", error.message);
        return Failure::Failed(text);
    }
    error.context(format_args!("cannot {verb} sequencer \"{shown}\"")).into_failure(advice)
}

/// The failure of an error with advice behind it.
trait Advised {
    fn into_failure(self, advice: &str) -> Failure;
}

impl Advised for nacre::Error {
    fn into_failure(mut self, advice: &str) -> Failure {
        self.message.push_str(advice);
        self.into()
    }
}

/// Returns whether a name is a path in the namespace.
fn is_path(name: &str) -> bool {
    name.starts_with('/')
}

/// Returns a handle on the sequencer of a name or at a path; at a path for a user with the `wanted` rights.
async fn open(store: &nacre::Store, name: &str, wanted: u32) -> Result<Sequencer, Failure> {
    match is_path(name) {
        true => typed::sequencer(store, name, wanted).await,
        false => Ok(store.sequencer(name).await?),
    }
}

async fn act(session: &Context, store: &nacre::Store, action: Action) -> Result<(), Failure> {
    match action {
        Action::Create { name, policy } if is_path(&name) => {
            typed::create_sequencer(store, &name, policy).await
        }
        Action::Create { name, policy } => {
            let created = store.sequencer(&name).await?.create(policy).await;
            created.map_err(|error| failed("create", &name, error))
        }
        Action::Next { name, count } => {
            let sequencer = open(store, &name, WRITE).await?;
            let first = sequencer.next_many_by_rank(count).await;
            let first = first.map_err(|error| failed("take a position of", &name, error))?;
            if session.json {
                return Ok(output::line(&json!({ "first": first, "count": count }).to_string())?);
            }
            for position in first..first + count {
                output::line(&position.to_string())?;
            }
            Ok(())
        }
        Action::Read { name } => {
            let tail = open(store, &name, READ).await?.read().await;
            let tail = tail.map_err(|error| failed("read", &name, error))?;
            let line = if session.json { json!({ "tail": tail }).to_string() } else { tail.to_string() };
            Ok(output::line(&line)?)
        }
        Action::Policy { name, policy } => {
            let sequencer = open(store, &name, if policy.is_some() { WRITE } else { READ }).await?;
            match policy {
                Some(policy) => {
                    let set = sequencer.set_policy(policy).await;
                    set.map_err(|error| failed("change the policy of", &name, error))
                }
                None => {
                    let shown = sequencer.look().await.map_err(|error| failed("look at", &name, error))?;
                    let policy = shown.policy.to_string();
                    let line = if session.json { json!({ "policy": policy }).to_string() } else { policy };
                    Ok(output::line(&line)?)
                }
            }
        }
        Action::Ls { names } => list(session, store, names).await,
        Action::Rm { names } => {
            for name in names {
                if is_path(&name) {
                    typed::remove_sequencer(store, &name).await?;
                    continue;
                }
                let removed = store.sequencer(&name).await?.remove().await;
                removed.map_err(|error| failed("remove", &name, error))?;
            }
            Ok(())
        }
    }
}

async fn list(session: &Context, store: &nacre::Store, names: Vec<String>) -> Result<(), Failure> {
    let all = names.is_empty();
    let mut page: Vec<Vec<u8>> = names.into_iter().map(String::into_bytes).collect();
    if all {
        page = store.sequencers(None, PAGE).await?;
    }
    let mut table = Table::new(&["name", "policy", "tail", "reserved", "holder", "waiting"]);
    let mut rows = Vec::new();
    while let Some(last) = page.last().cloned() {
        for name in &page {
            let text = Escaped(name).to_string();
            let sequencer = match all {
                true => store.sequencer(name).await?,
                // Names on the command line are in UTF-8.
                false => open(store, &String::from_utf8_lossy(name), READ).await?,
            };
            let shown = match sequencer.look().await {
                Ok(shown) => shown,
                // It was removed meanwhile.
                Err(error) if all && error.kind == ErrorKind::Invalid => continue,
                Err(error) => return Err(failed("look at", &String::from_utf8_lossy(name), error)),
            };
            match session.json {
                true => rows.push(row_json(&text, &shown)),
                false => table.row(row(&text, &shown)),
            }
        }
        page = if all { store.sequencers(Some(&last), PAGE).await? } else { Vec::new() };
    }
    match session.json {
        true => Ok(output::line(&serde_json::Value::from(rows).to_string())?),
        false => Ok(table.print()?),
    }
}

fn holder(shown: &Shown) -> String {
    match (shown.held, shown.holder) {
        (false, _) => "-".to_owned(),
        (true, 0) => "unknown".to_owned(),
        (true, session) => format!("{session:x}"),
    }
}

fn row(name: &str, shown: &Shown) -> [String; 6] {
    [
        name.to_owned(),
        shown.policy.to_string(),
        shown.tail.to_string(),
        shown.reserved.to_string(),
        holder(shown),
        shown.waiting.to_string(),
    ]
}

fn row_json(name: &str, shown: &Shown) -> serde_json::Value {
    json!({
        "name": name,
        "policy": shown.policy.to_string(),
        "tail": shown.tail,
        "reserved": shown.reserved,
        "held": shown.held,
        "holder": holder(shown),
        "waiting": shown.waiting,
    })
}
