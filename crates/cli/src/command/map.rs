//! `nacre map`: named maps of versioned entries are looked at, changed, watched and configured.

mod shown;

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::pin::pin;

use bytes::Bytes;
use nacre::map::{
    ClusterMap, Committed, Followed, Limits, ProposeError, Proposer, Record, Refused, State, Update,
    Validator, limit,
};
use nacre::{Engine, Key, Store};
use nacre_quantity::{Escaped, unescape};
use nacre_shell::Signals;
use serde_json::{Map as Object, Value, json};

use self::shown::{change_json, entry_json, print_record, print_snapshot, put_entry};
use crate::failure::{Failure, Refused as Guard};
use crate::output::{self, Array, Table};
use crate::quantity::parse_size;
use crate::session::Context;
use crate::{arguments, name, presence};

/// View, change and watch maps: small named state that all programs agree on
///
/// A map holds entries, each with a version. Every change, to one entry or to several at once, creates a new epoch of
/// the map.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// List maps
    Ls,
    /// Print the value of one entry, or a table of all entries or the named ones
    Get {
        /// The map
        map: String,
        /// The entries
        #[arg(value_parser = name::entry(), value_name = "ENTRY")]
        entries: Vec<Key>,
    },
    /// Set entries, all in one epoch; prints the epoch
    Set {
        /// The map
        map: String,
        /// Entries with their values, used unchanged; - reads such lines from standard input
        #[arg(required = true, value_name = "ENTRY=VALUE")]
        entries: Vec<OsString>,
        /// Only if none of the entries exists
        #[arg(long, conflicts_with = "if_version")]
        absent: bool,
        #[command(flatten)]
        conditions: Conditions,
    },
    /// Remove entries, all in one epoch; prints the epoch
    Rm {
        /// The map
        map: String,
        /// The entries
        #[arg(required = true, value_parser = name::entry(), value_name = "ENTRY")]
        entries: Vec<Key>,
        #[command(flatten)]
        conditions: Conditions,
    },
    /// Watch a map: print every epoch in order, until Ctrl-C
    ///
    /// Begins with the whole current map, which is printed again if missed epochs are no longer kept. A server that is away is
    /// waited for, which is said on standard error.
    Watch {
        /// The map
        map: String,
        /// Begin with the epochs after this one, as far as they are kept
        #[arg(long, value_name = "EPOCH")]
        since: Option<u64>,
        /// Stop after this many epochs
        #[arg(long, value_name = "COUNT", value_parser = arguments::at_least_one)]
        count: Option<usize>,
    },
    /// Print the epochs that are kept, in order: who changed what, from which value to which
    History {
        /// The map
        map: String,
        /// Print only epochs after this one
        #[arg(long, value_name = "EPOCH")]
        since: Option<u64>,
        /// Print only the last COUNT epochs
        #[arg(short = 'n', long, value_name = "COUNT", value_parser = arguments::at_least_one)]
        count: Option<usize>,
    },
    /// Print a map's limits, or change some of them
    Limits {
        /// The map
        map: String,
        /// Number of epochs kept in the history
        #[arg(long, value_name = "COUNT")]
        history: Option<u64>,
        /// Maximum number of entries
        #[arg(long, value_name = "COUNT")]
        entries: Option<u64>,
        /// Maximum bytes of all names and values together
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        bytes: Option<u64>,
    },
    /// Manage validators: Lua functions that can refuse or replace new values
    #[command(subcommand)]
    Validator(ValidatorAction),
}

#[derive(clap::Subcommand, Debug)]
enum ValidatorAction {
    /// List a map's validators
    Ls {
        /// The map
        map: String,
    },
    /// Install or replace a validator; prints the epoch
    Put {
        /// The map
        map: String,
        /// The validator's name
        validator: String,
        /// The Lua script, which defines the function validate(change); - is standard input
        file: PathBuf,
        /// Limit it to entries whose names begin with this
        #[arg(long, value_name = "PREFIX", value_parser = name::prefix(), default_value = "", hide_default_value = true)]
        prefix: Bytes,
    },
    /// Print the script of a validator
    Show {
        /// The map
        map: String,
        /// The validator's name
        validator: String,
    },
    /// Remove a validator
    Rm {
        /// The map
        map: String,
        /// The validator's name
        validator: String,
    },
}

/// The conditions of a change.
#[derive(clap::Args, Debug)]
struct Conditions {
    /// Only if the entry has this version; 0 means that it does not exist. Takes exactly one entry
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Only if the map is at this epoch
    #[arg(long, value_name = "EPOCH")]
    if_epoch: Option<u64>,
    /// Name to pass to validators and to record in the history [default: the user and the machine]
    #[arg(long = "as", value_name = "NAME")]
    who: Option<String>,
}

impl Conditions {
    /// Begins an update of these entries.
    fn update(&self, entries: &[Key]) -> Result<Update, Failure> {
        let mut update = Update::new(self.who.clone().unwrap_or_else(default_author));
        if let Some(epoch) = self.if_epoch {
            update = update.if_epoch(epoch);
        }
        match (self.if_version, entries) {
            (None, _) => Ok(update),
            (Some(version), [entry]) => Ok(update.if_version(entry.clone(), version)),
            (Some(_), _) => {
                let text = "--if-version applies to one entry; for several, use --if-epoch";
                Err(Failure::Usage(text.to_owned()))
            }
        }
    }
}

/// Returns the name of whoever runs the program.
pub(super) fn default_author() -> String {
    let user = ["USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|user| !user.is_empty()));
    let user = user.unwrap_or_else(|| format!("uid {}", rustix::process::getuid().as_raw()));
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut author = format!("{user}@{machine}");
    author.truncate(
        (0..=limit::AUTHOR_BYTES_MAX.min(author.len()))
            .rev()
            .find(|at| author.is_char_boundary(*at))
            .unwrap_or(0),
    );
    author
}

/// Runs `nacre map`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Ls => list(session).await,
        Action::Get { map, entries } => get(session, &map, &entries).await,
        Action::Set { map, entries, absent, conditions } => {
            set(session, &map, entries, absent, &conditions).await
        }
        Action::Rm { map, entries, conditions } => {
            let update = entries
                .iter()
                .fold(conditions.update(&entries)?, |update, entry| update.remove(entry.clone()));
            let proposed = proposer(&session.open()?, &map)?.propose(update).await;
            print_committed(session, &map, &proposed.map_err(failure)?)
        }
        Action::Watch { map, since, count } => watch(session, &map, since, count).await,
        Action::History { map, since, count } => history(session, &map, since, count).await,
        Action::Limits { map, history, entries, bytes } => {
            limits(session, &map, history, entries, bytes).await
        }
        Action::Validator(action) => validator(session, action).await,
    }
}

fn proposer(store: &Store, map: &str) -> Result<Proposer, Failure> {
    Ok(store.map(map)?.proposer(Default::default()))
}

fn failure(error: ProposeError) -> Failure {
    match error {
        ProposeError::Store(error) => error.into(),
        ProposeError::Refused(refused) => {
            let sentence = format!("{refused}; nothing was changed");
            match refused {
                Refused::Epoch { found, .. } => {
                    let (current, json) = (found.to_string(), json!({ "epoch": found }));
                    Failure::Refused(Guard { sentence, current, json })
                }
                Refused::Version { name, found, .. } => {
                    let version = found.as_ref().map_or(0, |found| found.version);
                    let mut fields = Object::new();
                    fields.insert("entry".to_owned(), name.to_string().into());
                    match &found {
                        Some(found) => put_entry(&mut fields, found),
                        None => drop(fields.insert("version".to_owned(), 0.into())),
                    }
                    Failure::Refused(Guard { sentence, current: version.to_string(), json: fields.into() })
                }
                Refused::Rejected { .. } | Refused::Limit(_) => Failure::Failed(sentence),
            }
        }
        error => Failure::Failed(error.to_string()),
    }
}

/// Prints the epoch that an update made.
fn print_committed(session: &Context, map: &str, committed: &Committed) -> Result<(), Failure> {
    let line = match session.json {
        true => {
            let changes: Vec<Value> = committed.changes.iter().map(change_json).collect();
            json!({ "map": map, "epoch": committed.epoch, "changes": changes }).to_string()
        }
        false => committed.epoch.to_string(),
    };
    Ok(output::line(&line)?)
}

async fn list(session: &Context) -> Result<(), Failure> {
    let store = session.open()?;
    let mut rows = Vec::new();
    for name in nacre::map::list(&store).await? {
        // One that was removed since is none any more.
        if let Some(header) = store.map(&name)?.header().await? {
            rows.push((name, header));
        }
    }
    if session.json {
        let mut array = Array::begin()?;
        for (name, header) in rows {
            array.entry(&json!({
                "map": name,
                "epoch": header.epoch,
                "entries": header.entries,
                "bytes": header.bytes,
                "oldest_kept": header.oldest,
            }))?;
        }
        return Ok(array.end()?);
    }
    let mut table = Table::new(&["map", "epoch", "entries", "bytes"]);
    for (name, header) in rows {
        table.row([name, header.epoch.to_string(), header.entries.to_string(), header.bytes.to_string()]);
    }
    Ok(table.print()?)
}

fn no_such_map(map: &ClusterMap) -> Failure {
    let name = Escaped::of(map.name());
    Failure::Failed(format!("there is no map \"{name}\"; \"nacre map ls\" lists the existing ones"))
}

/// Returns the state of a map that must exist.
async fn existing(map: &ClusterMap) -> Result<State, Failure> {
    let state = map.state().await?;
    // The first change of a map makes its first epoch.
    if state.epoch() == 0 { Err(no_such_map(map)) } else { Ok(state) }
}

fn no_such_entry(map: &ClusterMap, entry: &Key) -> Failure {
    let text = format!(
        "map \"{}\" has no entry \"{entry}\"; \"nacre map get {}\" shows all",
        map.name(),
        map.name()
    );
    Failure::Failed(text)
}

async fn get(session: &Context, map: &str, entries: &[Key]) -> Result<(), Failure> {
    let map = session.open()?.map(map)?;
    if let [entry] = entries {
        let (found, epoch) = map.get(entry).await?;
        if epoch == 0 {
            return Err(no_such_map(&map));
        }
        let found = found.ok_or_else(|| no_such_entry(&map, entry))?;
        if !session.json {
            // As it is, with a line's end for people; and for these escaped.
            output::foreign(&found.value)?;
            return Ok(output::raw(b"\n")?);
        }
        let mut fields = entry_json(entry, &found);
        fields.insert("map_epoch".to_owned(), epoch.into());
        return Ok(output::line(&Value::Object(fields).to_string())?);
    }
    let state = existing(&map).await?;
    let mut shown = Vec::new();
    match entries {
        [] => shown.extend(state.entries()),
        entries => {
            for entry in entries {
                shown.push((entry, state.get(entry.as_bytes()).ok_or_else(|| no_such_entry(&map, entry))?));
            }
        }
    }
    if session.json {
        let list: Vec<Value> = shown.iter().map(|(name, entry)| entry_json(name, entry).into()).collect();
        return Ok(output::line(&json!({ "epoch": state.epoch(), "entries": list }).to_string())?);
    }
    let mut table = Table::new(&["entry", "version", "epoch", "value"]);
    for (name, entry) in shown {
        let (version, epoch) = (entry.version.to_string(), entry.epoch.to_string());
        table.row([name.to_string(), version, epoch, Escaped(&entry.value).to_string()]);
    }
    Ok(table.print()?)
}

async fn set(
    session: &Context,
    map: &str,
    words: Vec<OsString>,
    absent: bool,
    conditions: &Conditions,
) -> Result<(), Failure> {
    let mut pairs = Vec::new();
    for word in &words {
        if word != "-" {
            pairs.push(pair(word.as_bytes())?);
            continue;
        }
        for line in lines()?.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            pairs.push(pair(line)?);
        }
    }
    let names: Vec<Key> = pairs.iter().map(|(name, _)| name.clone()).collect();
    let mut update = conditions.update(&names)?;
    for (name, value) in pairs {
        if absent {
            update = update.if_absent(name.clone());
        }
        update = update.set(name, value);
    }
    let proposed = proposer(&session.open_to_fill()?, map)?.propose(update).await;
    print_committed(session, map, &proposed.map_err(failure)?)
}

/// Reads an entry with its value.
fn pair(word: &[u8]) -> Result<(Key, Bytes), Failure> {
    let usage = |text: String| Failure::Usage(text);
    let Some(at) = word.iter().position(|byte| *byte == b'=') else {
        return Err(usage(format!("\"{}\" is not ENTRY=VALUE", Escaped(word))));
    };
    let name = unescape(&word[..at]).map_err(usage)?;
    let name = name::entry_name(name).map_err(|error| usage(error.message))?;
    Ok((name, Bytes::copy_from_slice(&word[at + 1..])))
}

/// Reads standard input, which may have as much as one epoch can hold.
fn lines() -> Result<Vec<u8>, Failure> {
    let mut input = Vec::new();
    let most = limit::RECORD_BYTES_MAX as u64;
    let read = std::io::stdin().lock().take(most + 1).read_to_end(&mut input);
    read.map_err(Failure::io("read standard input"))?;
    if input.len() as u64 > most {
        let text = format!("standard input holds more than the {most} bytes that one epoch may change");
        return Err(Failure::Failed(text));
    }
    Ok(input)
}

async fn watch(
    session: &Context,
    map: &str,
    since: Option<u64>,
    count: Option<usize>,
) -> Result<(), Failure> {
    let uri = session.parsed_uri()?;
    if matches!(uri.engine, Engine::Folder(_) | Engine::Memory) {
        let text = format!(
            "{uri} is open in one program only, so nobody else could change a map while it is watched; serve it with \"nacre \
             serve\", or see what was changed with \"nacre map history\""
        );
        return Err(Failure::Usage(text));
    }
    let map = session.open()?.map(map)?;
    let mut left = count.unwrap_or(usize::MAX);
    let mut signals = Signals::catch()?;
    let mut follower = map.follow(Default::default());
    let mut since = since;
    let mut reports = pin!(presence::report(async || map.header().await.map(drop)));
    while left > 0 {
        let followed = tokio::select! {
            followed = follower.next() => followed?,
            () = signals.next() => return Ok(()),
            // They never end.
            () = &mut reports => return Ok(()),
        };
        match (followed, since.take()) {
            (Followed::Epoch(record), _) => {
                print_record(session, &record)?;
                left -= 1;
            }
            (Followed::Snapshot, Some(since)) if since <= follower.state().epoch() => {
                let known = follower.state().epoch();
                let (mut reached, mut wanted) = (since, left);
                while reached < known && wanted > 0 {
                    let page = page(&map, reached, known).await?;
                    // Where they are not kept, the whole map says more than a part of its history.
                    if page.first().is_none_or(|first| first.epoch > reached + 1) {
                        print_snapshot(session, follower.state())?;
                        break;
                    }
                    for record in page.iter().take(wanted) {
                        print_record(session, record)?;
                    }
                    reached = page.last().map_or(known, |last| last.epoch);
                    wanted = wanted.saturating_sub(page.len());
                }
                left = wanted;
            }
            (Followed::Snapshot, _) => print_snapshot(session, follower.state())?,
        }
        output::flush()?;
    }
    Ok(())
}

/// Returns records after an epoch up to `last`, as far as they are kept and fit into one reply.
async fn page(map: &ClusterMap, after: u64, last: u64) -> Result<Vec<Record>, Failure> {
    let mut records = map.history(after, 256).await?;
    // Those up to the last may have been removed meanwhile, so that only later ones are left.
    records.retain(|record| record.epoch <= last);
    Ok(records)
}

async fn history(
    session: &Context,
    map: &str,
    since: Option<u64>,
    count: Option<usize>,
) -> Result<(), Failure> {
    let map = session.open()?.map(map)?;
    let header = map.header().await?.ok_or_else(|| no_such_map(&map))?;
    let last_ones = count.map_or(0, |count| header.epoch.saturating_sub(count as u64));
    let mut reached = since.unwrap_or(0).max(last_ones);
    // What is not kept at the beginning is not missing.
    let mut is_first = true;
    while reached < header.epoch {
        let page = page(&map, reached, header.epoch).await?;
        let next = page.first().map_or(header.epoch + 1, |first| first.epoch);
        if !is_first && next > reached + 1 {
            let missing = next - reached - 1;
            output::complain(&format!(
                "nacre: {missing} epochs were removed from the history before they could be read"
            ));
        }
        for record in &page {
            print_record(session, record)?;
        }
        output::flush()?;
        reached = page.last().map_or(header.epoch, |last| last.epoch);
        is_first = false;
    }
    Ok(())
}

async fn limits(
    session: &Context,
    map: &str,
    history: Option<u64>,
    entries: Option<u64>,
    bytes: Option<u64>,
) -> Result<(), Failure> {
    let is_change = history.is_some() || entries.is_some() || bytes.is_some();
    let store = if is_change { session.open_to_fill()? } else { session.open()? };
    let limits = match is_change {
        true => {
            let change = |known: Limits| Limits {
                history: history.unwrap_or(known.history),
                entries: entries.unwrap_or(known.entries),
                bytes: bytes.unwrap_or(known.bytes),
            };
            proposer(&store, map)?.change_limits(&default_author(), change).await.map_err(failure)?
        }
        false => existing(&store.map(map)?).await?.limits()?,
    };
    let Limits { history, entries, bytes } = limits;
    if session.json {
        return Ok(output::line(
            &json!({ "history": history, "entries": entries, "bytes": bytes }).to_string(),
        )?);
    }
    for (name, value) in [("history", history), ("entries", entries), ("bytes", bytes)] {
        output::line(&format!("{name:7}  {value}"))?;
    }
    Ok(())
}

async fn validator(session: &Context, action: ValidatorAction) -> Result<(), Failure> {
    match action {
        ValidatorAction::Put { map, validator, file, prefix } => {
            let mut text = Vec::new();
            let most = limit::VALIDATOR_BYTES_MAX as u64 + 1;
            let read = match file.as_os_str() == "-" {
                true => std::io::stdin().lock().take(most).read_to_end(&mut text),
                false => std::fs::File::open(&file).and_then(|file| file.take(most).read_to_end(&mut text)),
            };
            let shown = Escaped::of(&file);
            read.map_err(Failure::io(format_args!("read {shown}")))?;
            let text = String::from_utf8(text)
                .map_err(|_| Failure::Failed(format!("{shown} is not valid UTF-8")))?;
            let proposer = proposer(&session.open_to_fill()?, &map)?;
            let committed =
                proposer.set_validator(&default_author(), &validator, &Validator { prefix, text }).await;
            print_committed(session, &map, &committed.map_err(failure)?)
        }
        ValidatorAction::Ls { map } => {
            let state = existing(&session.open()?.map(&map)?).await?;
            let validators = state.validators()?;
            if session.json {
                let mut array = Array::begin()?;
                for (name, validator, version) in &validators {
                    let mut fields = Object::new();
                    fields.insert("validator".to_owned(), name.as_str().into());
                    fields.insert("version".to_owned(), (*version).into());
                    fields.insert("prefix".to_owned(), Escaped(&validator.prefix).to_string().into());
                    array.entry(&Value::Object(fields))?;
                }
                return Ok(array.end()?);
            }
            let mut table = Table::new(&["validator", "version", "bytes", "prefix"]);
            for (name, validator, version) in validators {
                let bytes = validator.text.len().to_string();
                let (name, prefix) = (Escaped::of(&name).to_string(), Escaped(&validator.prefix).to_string());
                table.row([name, version.to_string(), bytes, prefix]);
            }
            Ok(table.print()?)
        }
        ValidatorAction::Show { map, validator } => {
            let state = session.open()?.map(&map)?.state().await?;
            let found = state.validators()?.into_iter().find(|(name, ..)| *name == validator);
            let (_, found, _) = found.ok_or_else(|| no_such_validator(&map, &validator))?;
            Ok(output::foreign_text(found.text.as_bytes())?)
        }
        ValidatorAction::Rm { map, validator } => {
            let removed =
                proposer(&session.open()?, &map)?.remove_validator(&default_author(), &validator).await;
            match removed.map_err(failure)? {
                true => Ok(()),
                false => Err(no_such_validator(&map, &validator)),
            }
        }
    }
}

fn no_such_validator(map: &str, validator: &str) -> Failure {
    let text = format!(
        "map \"{map}\" has no validator \"{}\"; \"nacre map validator ls {map}\" shows all",
        Escaped::of(validator)
    );
    Failure::Failed(text)
}
