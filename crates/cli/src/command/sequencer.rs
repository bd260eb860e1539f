//! `nacre sequencer`: counters from which many programs take positions.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use nacre::fs::{READ, WRITE};
use nacre::sequencer::{Policy, Sequencer, Shown};
use nacre::{ErrorKind, Key};
use nacre_quantity::{Escaped, unescape};
use serde_json::{Map, Value, json};

use super::fs::typed;
use crate::failure::Failure;
use crate::output::{self, Table};
use crate::session::Context;

const AFTER_HELP: &str = "\
Policies, which say how long a program that caches the sequencer keeps it when others wait:
  best-effort      give it back at once
  hold=10ms        keep it for at least 10 ms
  quota=1000/50ms  hand out up to 1000 positions, within 50 ms (default: 100 ms)
  round-trip       never cache it: each request goes to the metadata rank
  lua=NAME         as the script NAME of the map \"policies\" decides

Positions begin at 0, and none is handed out twice. After a crash, some may be skipped.

A name that begins with a slash is a path in the namespace (\"nacre fs\"), taken as it is, whose permissions apply: \"next\" \
and changing the policy need write permission, everything else read permission.";

/// The map with the scripts of policies.
const SCRIPTS: &str = "policies";
/// The most positions that one command takes: as many as a rank hands out in a row.
pub const COUNT_MAX: u64 = 1 << 40;
/// The number of positions that are taken before they are printed.
const BATCH: u64 = 1000;
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
        name: OsString,
        /// Policy of the sequencer, as described below
        #[arg(long, value_name = "POLICY", default_value = "best-effort")]
        policy: Policy,
    },
    /// Take and print the next position, or several, one per line
    ///
    /// Up to 1000 positions are in a row. More of them are taken 1000 at a time, once those before are printed, so others may take
    /// positions in between; if the command is interrupted, at most 1000 are taken and not printed. With --json, all are in a row,
    /// and taken at once.
    Next {
        /// The sequencer
        name: OsString,
        /// Number of positions
        #[arg(short = 'n', long, value_name = "COUNT", default_value = "1", value_parser = nacre_quantity::count_parser::<u64>(1..=COUNT_MAX))]
        count: u64,
    },
    /// Print the tail, the next position
    Read {
        /// The sequencer
        name: OsString,
    },
    /// Print the policy, or change it, also for the current holder
    Policy {
        /// The sequencer; a path that ends with a slash is for all that are below it now
        name: OsString,
        /// The policy, as in "nacre sequencer --help"
        policy: Option<Policy>,
    },
    /// List sequencers, without asking their holders; those in the namespace only if named
    ///
    /// TAIL is the next position; for a held sequencer, the first position that its holder was lent. No position at or
    /// above RESERVED has been handed out.
    Ls {
        /// List only these
        names: Vec<OsString>,
    },
    /// Remove a sequencer, once nobody holds it; one created later under its name continues above its positions
    Rm {
        /// The sequencer
        #[arg(required = true)]
        names: Vec<OsString>,
    },
}

/// Runs `nacre sequencer`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let store = session.open()?.patient();
    let done = act(session, &store, args.action).await;
    store.end_sequencers().await;
    done
}

/// Returns the failure to do something with a sequencer, by its name as it is printed.
fn failed(verb: &str, shown: impl std::fmt::Display, error: nacre::Error) -> Failure {
    let advice = match error.kind {
        ErrorKind::Invalid => "; \"nacre sequencer ls\" lists those that are there",
        _ => "",
    };
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

/// Returns whether a word is a path in the namespace. Any other one is a name as it is printed.
fn is_path(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"/")
}

/// Returns the directory of a path that stands for all sequencers below it.
fn below(word: &OsStr) -> Option<&OsStr> {
    let path = word.as_bytes().strip_suffix(b"/").filter(|_| is_path(word))?;
    Some(OsStr::from_bytes(if path.is_empty() { &b"/"[..] } else { path }))
}

/// Returns a handle on the sequencer of a name.
async fn named(store: &nacre::Store, word: &OsStr) -> Result<Sequencer, Failure> {
    Ok(store.sequencer(unescape(word.as_bytes()).map_err(Failure::Usage)?).await?)
}

/// Returns how a sequencer that a word names is printed.
fn shown(word: &OsStr) -> String {
    match unescape(word.as_bytes()) {
        Ok(name) if !is_path(word) => Escaped(&name).to_string(),
        _ => Escaped::of(word).to_string(),
    }
}

/// Returns a handle on the sequencer of a name or at a path; at a path for a user with the `wanted` rights.
async fn open(store: &nacre::Store, word: &OsStr, wanted: u32) -> Result<Sequencer, Failure> {
    match is_path(word) {
        true => typed::sequencer(store, word, wanted).await,
        false => named(store, word).await,
    }
}

async fn act(session: &Context, store: &nacre::Store, action: Action) -> Result<(), Failure> {
    match action {
        Action::Create { name, policy } if is_path(&name) => {
            typed::create_sequencer(store, &name, policy).await?;
            note_missing_script(store, policy).await;
            Ok(())
        }
        Action::Create { name, policy } => {
            let created = named(store, &name).await?.create(policy).await;
            created.map_err(|error| failed("create", shown(&name), error))?;
            note_missing_script(store, policy).await;
            Ok(())
        }
        Action::Next { name, count } => {
            let sequencer = open(store, &name, WRITE).await?;
            let failed = |error| failed("take a position of", shown(&name), error);
            print_next(&sequencer, count, session.json, failed).await
        }
        Action::Read { name } => {
            let tail = open(store, &name, READ).await?.read().await;
            let tail = tail.map_err(|error| failed("read", shown(&name), error))?;
            let line = if session.json { json!({ "tail": tail }).to_string() } else { tail.to_string() };
            Ok(output::line(&line)?)
        }
        Action::Policy { name, policy } => {
            if let (Some(directory), Some(policy)) = (below(&name), policy) {
                let found = typed::sequencers_below(store, directory, "change the policies below").await?;
                for (path, sequencer) in found {
                    let set = sequencer.set_policy(policy).await;
                    set.map_err(|error| failed("change the policy of", path, error))?;
                }
                note_missing_script(store, policy).await;
                return Ok(());
            }
            let sequencer = open(store, &name, if policy.is_some() { WRITE } else { READ }).await?;
            match policy {
                Some(policy) => {
                    let set = sequencer.set_policy(policy).await;
                    set.map_err(|error| failed("change the policy of", shown(&name), error))?;
                    note_missing_script(store, policy).await;
                    Ok(())
                }
                None => {
                    let looked = sequencer.look().await;
                    let policy =
                        looked.map_err(|error| failed("look at", shown(&name), error))?.policy.to_string();
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
                let removed = named(store, &name).await?.remove().await;
                removed.map_err(|error| failed("remove", shown(&name), error))?;
            }
            Ok(())
        }
    }
}

/// Takes positions and prints them. A signal ends the program, and with it the taking: so few are taken ahead of those that are
/// printed.
pub async fn print_next(
    sequencer: &Sequencer,
    count: u64,
    json: bool,
    failed: impl Fn(nacre::Error) -> Failure,
) -> Result<(), Failure> {
    if json {
        let first = sequencer.next_many_by_rank(count).await.map_err(&failed)?;
        return Ok(output::line(&json!({ "first": first, "count": count }).to_string())?);
    }
    let mut left = count;
    while left > 0 {
        let batch = left.min(BATCH);
        let first = sequencer.next_many_by_rank(batch).await.map_err(&failed)?;
        for position in first..first + batch {
            output::line(&position.to_string())?;
        }
        left -= batch;
    }
    Ok(())
}

/// Says so on standard error if the script of a policy that was set is not there yet: until it is, nobody is asked for it.
async fn note_missing_script(store: &nacre::Store, policy: Policy) {
    let Policy::Lua(name) = policy else { return };
    let (Ok(map), Ok(entry)) = (store.map(SCRIPTS), Key::new(name.as_str().to_owned())) else { return };
    // The policy is set, whether the map can be read or not.
    if let Ok((None, _)) = map.get(&entry).await {
        output::complain(&format!(
            "nacre: map \"{SCRIPTS}\" has no entry \"{}\" yet; \"nacre map set {SCRIPTS} {}=SCRIPT\" makes one",
            name.as_str(),
            name.as_str()
        ));
    }
}

async fn list(session: &Context, store: &nacre::Store, names: Vec<OsString>) -> Result<(), Failure> {
    let mut table = Table::new(&["name", "policy", "tail", "reserved", "holder", "waiting"]);
    let mut rows = Vec::new();
    // In JSON, paths stand as they are, and names as they are typed.
    let mut add = |name: &str, path: Option<&OsStr>, looked: &Shown| match session.json {
        true => rows.push(row_json(path.map_or(name.as_bytes(), OsStr::as_bytes), looked)),
        false => table.row(row(name, looked)),
    };
    for word in &names {
        let looked = open(store, word, READ).await?.look().await;
        let looked = looked.map_err(|error| failed("look at", shown(word), error))?;
        add(&shown(word), Some(word.as_os_str()).filter(|word| is_path(word)), &looked);
    }
    let mut page = if names.is_empty() { store.sequencers(None, PAGE).await? } else { Vec::new() };
    while let Some(last) = page.last().cloned() {
        for name in &page {
            let text = Escaped(name).to_string();
            match store.sequencer(name).await?.look().await {
                Ok(looked) => add(&text, None, &looked),
                // It was removed meanwhile.
                Err(error) if error.kind == ErrorKind::Invalid => {}
                Err(error) => return Err(failed("look at", text, error)),
            }
        }
        page = store.sequencers(Some(&last), PAGE).await?;
    }
    match session.json {
        true => Ok(output::line(&Value::from(rows).to_string())?),
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

fn row_json(name: &[u8], shown: &Shown) -> Value {
    let mut row = Map::new();
    output::put_bytes(&mut row, "name", name);
    row.insert("policy".to_owned(), shown.policy.to_string().into());
    row.insert("tail".to_owned(), shown.tail.into());
    row.insert("reserved".to_owned(), shown.reserved.into());
    row.insert("held".to_owned(), shown.held.into());
    row.insert("holder".to_owned(), holder(shown).into());
    row.insert("waiting".to_owned(), shown.waiting.into());
    Value::Object(row)
}
