//! `nacre zlog`: shared logs are created, appended to, read, followed, trimmed and recovered.

use std::collections::VecDeque;
use std::fmt::Display;

use bytes::Bytes;
use nacre::Store;
use nacre::limit::PAGE_ENTRIES_MAX;
use nacre::zlog::limit::{ENTRY_BYTES_MAX, UNIT_MAX, WIDTH_MAX};
use nacre::zlog::{
    Appending, Directory, Entry, FollowOptions, Followed, Info, Log, LogError, Options, Recovered, Shape,
    Slot,
};
use nacre_quantity::Escaped;
use nacre_shell::Signals;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::failure::{Failure, Refused};
use crate::output::{self, Array, Table};
use crate::session::Context;
use crate::{arguments, name};

/// The number of entries that wait to be told their positions.
const APPENDING_MAX: usize = 16_384;
/// The end of the message of an append of which no entry is in the log.
const NOTHING_APPENDED: &str = "nothing was appended";

/// Append to, read and follow shared logs: many writers, one order
///
/// Each entry has a position. Entries are spread over objects of the store. docs/zlog.md describes the guarantees.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Create a log
    Create {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        #[command(flatten)]
        shape: ShapeArgs,
    },
    /// List logs
    Ls,
    /// Append entries, and print their positions in order
    Append {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// Entries; without any, each line of standard input is one
        #[arg(value_parser = name::value(), value_name = "ENTRY")]
        entries: Vec<Bytes>,
        /// Tag the entries; may be repeated
        #[arg(long = "tag", value_parser = name::prefix(), value_name = "TAG")]
        tags: Vec<Bytes>,
        /// Append all of standard input as one entry
        #[arg(long, conflicts_with = "entries")]
        whole: bool,
        /// Do not print positions
        #[arg(long, short)]
        quiet: bool,
    },
    /// Print the entry at a position, or the entries of a range of positions
    Read {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// The position, or the first one of the range
        from: u64,
        /// The end of the range, exclusive
        to: Option<u64>,
        /// Print only entries with this tag; the content of others is not read
        #[arg(long, value_parser = name::prefix(), value_name = "TAG")]
        tag: Option<Bytes>,
    },
    /// Print the next position to be handed out
    Tail {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
    },
    /// Print entries in order as they are appended, until Ctrl-C
    Follow {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// The position to start at [default: the tail]
        #[arg(long, value_name = "POSITION")]
        from: Option<u64>,
        /// Print only entries with this tag; others are not read
        #[arg(long, value_parser = name::prefix(), value_name = "TAG")]
        tag: Option<Bytes>,
        /// Stop after this many entries
        #[arg(long, value_name = "COUNT", value_parser = arguments::at_least_one)]
        count: Option<usize>,
        /// Print each entry after its position and a tab
        #[arg(long, short)]
        positions: bool,
        /// Change nothing, not even positions whose writers are gone
        #[arg(long)]
        read_only: bool,
    },
    /// Remove the entry at a position, or with --before all entries before it
    Trim {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// The position
        position: u64,
        /// Remove all entries before the position
        #[arg(long)]
        before: bool,
    },
    /// Fill a position whose writer is gone, so that nothing is ever written there
    Fill {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// The position
        position: u64,
    },
    /// Print a log's epoch, positions and views
    Info {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
    },
    /// Seal a log's objects with a new epoch and determine its tail; recovers a log without a sequencer
    Seal {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
    },
    /// Spread future entries over other objects
    Reshape {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// Number of objects to spread entries over [default: as before]
        #[arg(long, value_name = "COUNT", value_parser = count_to(WIDTH_MAX))]
        width: Option<u32>,
        /// Number of consecutive positions in one object [default: as before]
        #[arg(long, value_name = "COUNT", value_parser = count_to(UNIT_MAX))]
        unit: Option<u32>,
    },
    /// Read a whole log, and count what it contains
    Check {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
    },
    /// Rename a log
    Mv {
        /// The log
        #[arg(value_parser = name::log())]
        log: String,
        /// Its new name
        #[arg(value_parser = name::log())]
        to: String,
    },
    /// Delete logs with all their entries
    Rm {
        /// The logs
        #[arg(required = true, value_name = "LOG", value_parser = name::log())]
        logs: Vec<String>,
    },
}

/// Returns a parser of counts of at least one, up to a limit.
fn count_to(most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    nacre_quantity::count_parser::<u32>(1..=u64::from(most))
}

/// The shape of a view.
#[derive(clap::Args, Debug)]
struct ShapeArgs {
    /// Number of objects to spread entries over
    #[arg(long, value_name = "COUNT", default_value_t = Shape::default().width, value_parser = count_to(WIDTH_MAX))]
    width: u32,
    /// Number of consecutive positions in one object
    #[arg(long, value_name = "COUNT", default_value_t = Shape::default().unit, value_parser = count_to(UNIT_MAX))]
    unit: u32,
}

impl ShapeArgs {
    fn shape(&self) -> Shape {
        Shape { width: self.width, unit: self.unit }
    }
}

/// Runs `nacre zlog`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    match args.action {
        Action::Create { log, shape } => {
            let id = directory(session, &session.open_to_fill()?)?.create(&log, shape.shape()).await?;
            if session.json {
                output::line(&json!({ "log": shown(&log), "id": id.to_string() }).to_string())?;
            }
            Ok(())
        }
        Action::Ls => list(session).await,
        Action::Append { log, entries, tags, whole, quiet } => {
            append(session, &log, entries, tags, whole, quiet).await
        }
        Action::Read { log, from, to: None, tag } => read(session, &log, from, tag).await,
        Action::Read { log, from, to: Some(to), tag } => read_range(session, &log, from, to, tag).await,
        Action::Tail { log } => {
            let tail = open(session, &log, true).await?.tail().await?;
            let line = if session.json {
                json!({ "log": shown(&log), "tail": tail }).to_string()
            } else {
                tail.to_string()
            };
            Ok(output::line(&line)?)
        }
        Action::Follow { log, from, tag, count, positions, read_only } => {
            let log = open(session, &log, read_only).await?;
            follow(session, &log, from, tag, count, positions).await
        }
        Action::Trim { log, position, before } => {
            let log = open(session, &log, false).await?;
            match before {
                true => Ok(log.trim_prefix(position).await?),
                false => Ok(log.trim(position).await?),
            }
        }
        Action::Fill { log, position } => fill(session, &log, position).await,
        Action::Info { log } => info(session, &open(session, &log, true).await?.info().await?),
        Action::Seal { log } => {
            let recovered = open(session, &log, false).await?.seal().await?;
            print_recovered(session, &log, &recovered)
        }
        Action::Reshape { log: name, width, unit } => {
            let log = open(session, &name, false).await?;
            let before = log.shape();
            let shape = Shape { width: width.unwrap_or(before.width), unit: unit.unwrap_or(before.unit) };
            print_recovered(session, &name, &log.reshape(shape).await?)
        }
        Action::Check { log } => check(session, &log).await,
        Action::Mv { log, to } => Ok(directory(session, &session.open()?)?.rename(&log, &to).await?),
        Action::Rm { logs } => {
            let directory = directory(session, &session.open()?)?;
            let mut failures: Vec<Failure> = Vec::new();
            // A log that cannot be deleted does not keep the others from being deleted.
            for log in &logs {
                if let Err(error) = directory.delete(log).await {
                    failures.push(error.into());
                }
            }
            let last = failures.pop();
            for failure in failures {
                failure.report(false);
            }
            last.map_or(Ok(()), Err)
        }
    }
}

async fn open(session: &Context, log: &str, read_only: bool) -> Result<Log, Failure> {
    Ok(session.open()?.log_with(log, options(session, read_only)).await?)
}

/// Returns the settings of a handle on a log.
fn options(session: &Context, read_only: bool) -> Options {
    let options = Options { read_only, ..Options::default() };
    Options { patience: session.repeat_timeout().unwrap_or(options.patience), ..options }
}

/// Returns the logs of a store.
fn directory(session: &Context, store: &Store) -> Result<Directory, Failure> {
    Ok(store.logs()?.with_patience(options(session, true).patience))
}

async fn list(session: &Context) -> Result<(), Failure> {
    let store = session.open()?;
    let logs = directory(session, &store)?.list().await?;
    let mut rows = Vec::with_capacity(logs.len().min(PAGE_ENTRIES_MAX));
    for listed in logs {
        let info = match store.log_with(&listed.name, options(session, true)).await {
            Ok(log) => log.info().await,
            Err(error) => Err(error),
        };
        match info {
            Ok(info) => rows.push(info),
            // One that was deleted since is none any more.
            Err(LogError::Missing(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if session.json {
        let mut array = Array::begin()?;
        for info in &rows {
            array.entry(&info_json(info))?;
        }
        return Ok(array.end()?);
    }
    let mut table = Table::new(&["log", "begin", "tail", "epoch", "views", "width"]);
    for info in &rows {
        let width = info.views.last().map_or(0, |view| view.width);
        table.row([
            shown(&info.name),
            info.begin.to_string(),
            info.tail.to_string(),
            epoch_text(info),
            info.views.len().to_string(),
            width.to_string(),
        ]);
    }
    Ok(table.print()?)
}

/// Submits entries, and prints their positions as they become known, in order.
struct Positions<'a> {
    log: &'a Log,
    /// Each with the number of its entry, from 1.
    waiting: VecDeque<(u64, Appending)>,
    /// The first failure of an entry. Nothing behind that entry is in the log.
    failure: Option<Failure>,
    /// The numbers of the first and the last entry that may or may not be in the log.
    uncertain: Option<(u64, u64)>,
    /// The number of the first entry that is certainly not in the log.
    missing: Option<u64>,
    json: bool,
    quiet: bool,
}

impl Positions<'_> {
    /// Submits the next entry. Does nothing once one before it has failed.
    async fn submit(&mut self, number: u64, entry: Entry) -> Result<(), Failure> {
        if self.failure.is_some() {
            return Ok(());
        }
        match self.log.appender().submit(entry).await {
            Ok(appending) => self.waiting.push_back((number, appending)),
            Err(error @ LogError::Behind { .. }) => {
                // The failure of the earlier one is on its way.
                self.print_all().await?;
                self.note_failure(number, error);
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Waits for the first position, and prints it. A call that is dropped loses nothing.
    async fn print(&mut self) -> Result<(), Failure> {
        let Some((number, appending)) = self.waiting.front_mut() else { return Ok(()) };
        let (number, position) = (*number, appending.await);
        self.waiting.pop_front();
        let position = match position {
            Ok(position) => position,
            Err(error) => {
                self.note_failure(number, error);
                return Ok(());
            }
        };
        match (self.quiet, self.json) {
            (true, _) => {}
            (false, true) => output::line(&json!({ "position": position }).to_string())?,
            (false, false) => output::line(&position.to_string())?,
        }
        if self.waiting.is_empty() {
            output::flush()?;
        }
        Ok(())
    }

    fn note_failure(&mut self, number: u64, error: LogError) {
        if error.kind().is_uncertain() {
            let first = self.uncertain.map_or(number, |(first, _)| first);
            self.uncertain = Some((first, number));
        } else {
            self.missing.get_or_insert(number);
        }
        self.failure.get_or_insert_with(|| error.into());
    }

    /// Waits for all positions, and prints them, also those after a failure to print one, which is returned.
    async fn print_all(&mut self) -> Result<(), Failure> {
        let mut result = Ok(());
        while !self.waiting.is_empty() {
            let printed = self.print().await;
            result = result.and(printed);
        }
        result
    }

    /// Prints which entries are not in the log, if one failed.
    fn complain(&self) {
        let text = match (self.uncertain, self.missing) {
            (None, None) => return,
            (None, Some(1)) => NOTHING_APPENDED.to_owned(),
            (None, Some(first)) => format!("entry {first} and those behind it are not in the log"),
            (Some((first, last)), _) if first == last => {
                format!("entry {first} may or may not be in the log; those behind it are not")
            }
            (Some((first, last)), _) => {
                format!("entries {first} to {last} may or may not be in the log; those behind them are not")
            }
        };
        output::complain(&format!("nacre: {text}"));
    }
}

/// Checks that something can be the content of an entry. `what` names it in the message, and `missing` says what is not in the log.
fn check_content(what: impl Display, content: &[u8], missing: &str) -> Result<(), Failure> {
    let is = match content.len() {
        0 => "is empty",
        1..=ENTRY_BYTES_MAX => return Ok(()),
        _ => "is too long",
    };
    Err(Failure::Failed(format!("{what} {is}, and an entry has 1 to {ENTRY_BYTES_MAX} bytes; {missing}")))
}

async fn append(
    session: &Context,
    log: &str,
    entries: Vec<Bytes>,
    tags: Vec<Bytes>,
    whole: bool,
    quiet: bool,
) -> Result<(), Failure> {
    let log = open(session, log, false).await?;
    let mut positions = Positions {
        log: &log,
        waiting: VecDeque::new(),
        failure: None,
        uncertain: None,
        missing: None,
        json: session.json,
        quiet,
    };
    let submitted = submit(entries, &tags, whole, &mut positions).await;
    // Whatever failed, entries that are under way get into the log; otherwise their positions would be lost.
    let printed = positions.print_all().await;
    positions.complain();
    match positions.failure {
        Some(failure) => Err(failure),
        None => submitted.and(printed),
    }
}

/// Submits entries, or without any what is on standard input, until one fails. What cannot be an entry is found before it takes a
/// position.
async fn submit(
    entries: Vec<Bytes>,
    tags: &[Bytes],
    whole: bool,
    positions: &mut Positions<'_>,
) -> Result<(), Failure> {
    let entry = |data: Bytes| Entry { tags: tags.to_vec(), data };
    // The tags of all entries are the same: they are checked with any content.
    entry(Bytes::from_static(b"content")).check()?;
    if !entries.is_empty() {
        for (number, data) in (1..).zip(&entries) {
            check_content(format_args!("entry {number}"), data, NOTHING_APPENDED)?;
        }
        for (number, data) in (1..).zip(entries) {
            positions.submit(number, entry(data)).await?;
        }
        return Ok(());
    }
    if whole {
        let mut data = Vec::new();
        let mut input = tokio::io::stdin().take(ENTRY_BYTES_MAX as u64 + 1);
        input.read_to_end(&mut data).await.map_err(Failure::io("read standard input"))?;
        check_content("standard input", &data, NOTHING_APPENDED)?;
        return positions.submit(1, entry(data.into())).await;
    }
    let mut input = BufReader::with_capacity(256 << 10, tokio::io::stdin());
    let (mut line, mut number) = (Vec::new(), 0_u64);
    while positions.failure.is_none() {
        // A line that is not complete yet stays in `line` if a position comes first.
        let mut limited = (&mut input).take((ENTRY_BYTES_MAX + 2 - line.len()) as u64);
        let read = tokio::select! {
            biased;
            read = limited.read_until(b'\n', &mut line) => read.map_err(Failure::io("read standard input"))?,
            printed = positions.print(), if !positions.waiting.is_empty() => {
                printed?;
                continue;
            }
        };
        let ended = read == 0;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if !ended && line.len() <= ENTRY_BYTES_MAX {
            continue;
        }
        if ended && line.is_empty() {
            return Ok(());
        }
        number += 1;
        let missing =
            if number == 1 { NOTHING_APPENDED } else { "it and those behind it are not in the log" };
        check_content(format_args!("line {number}"), &line, missing)?;
        let data = Bytes::from(std::mem::take(&mut line));
        positions.submit(number, entry(data)).await?;
        if positions.waiting.len() >= APPENDING_MAX {
            positions.print().await?;
        }
        if ended {
            break;
        }
    }
    Ok(())
}

/// Returns an entry as JSON.
fn entry_json(position: u64, entry: &Entry) -> Value {
    let mut fields = Map::new();
    fields.insert("position".to_owned(), position.into());
    if !entry.tags.is_empty() {
        let tags = entry.tags.iter().map(|tag| json!({ "tag": Escaped(tag).to_string() }));
        fields.insert("tags".to_owned(), tags.collect());
    }
    output::put_bytes(&mut fields, "data", &entry.data);
    fields.into()
}

/// Returns the word for a position without an entry.
fn state(slot: &Slot) -> &'static str {
    match slot {
        Slot::Entry(_) => "entry",
        Slot::Filled => "filled",
        Slot::Trimmed => "trimmed",
        Slot::Unwritten => "unwritten",
    }
}

async fn read(session: &Context, log: &str, position: u64, tag: Option<Bytes>) -> Result<(), Failure> {
    let slot = open(session, log, true).await?.read(position).await?;
    match slot {
        Slot::Entry(entry) if tag.as_ref().is_none_or(|tag| entry.tags.contains(tag)) => match session.json {
            true => Ok(output::line(&entry_json(position, &entry).to_string())?),
            false => Ok(output::foreign(&entry.data)?),
        },
        slot => {
            let state = if matches!(slot, Slot::Entry(_)) { "without that tag" } else { state(&slot) };
            let sentence = format!("position {position} of log \"{}\" is {state}", Escaped::of(log));
            let json = json!({ "position": position, "state": state });
            Err(Failure::Refused(Refused { sentence, current: state.to_owned(), json }))
        }
    }
}

async fn read_range(
    session: &Context,
    log: &str,
    from: u64,
    to: u64,
    tag: Option<Bytes>,
) -> Result<(), Failure> {
    let log = open(session, log, true).await?;
    let mut next = from;
    while next < to {
        let slots = match &tag {
            Some(tag) => {
                let tagged = log.read_tagged(tag.clone(), next, to).await?;
                next = tagged.next;
                tagged.slots
            }
            None => {
                let slots = log.read_range(next, to).await?;
                next = slots.last().map_or(to, |(position, _)| position + 1);
                slots
            }
        };
        for (position, slot) in slots {
            match slot {
                Slot::Entry(entry) => print(session, position, &entry, false)?,
                // Beyond the tail there is nothing else.
                Slot::Unwritten if position >= log.tail().await? => return Ok(output::flush()?),
                _ => {}
            }
        }
    }
    Ok(output::flush()?)
}

fn print(session: &Context, position: u64, entry: &Entry, positions: bool) -> Result<(), Failure> {
    if session.json {
        return Ok(output::line(&entry_json(position, entry).to_string())?);
    }
    if positions {
        output::raw(format!("{position}\t").as_bytes())?;
    }
    output::foreign(&entry.data)?;
    Ok(output::raw(b"\n")?)
}

async fn follow(
    session: &Context,
    log: &Log,
    from: Option<u64>,
    tag: Option<Bytes>,
    count: Option<usize>,
    positions: bool,
) -> Result<(), Failure> {
    // The signals are caught only when the tail is known: until then they end the command, also while it waits for a server.
    let from = match from {
        Some(from) => from,
        None => log.tail().await?,
    };
    let mut signals = Signals::catch()?;
    let mut follower = log.follow(from, FollowOptions { tag, ..FollowOptions::default() });
    let mut left = count.unwrap_or(usize::MAX);
    while left > 0 {
        let step = tokio::select! {
            step = follower.next() => step?,
            () = signals.next() => return Ok(()),
        };
        match step {
            Followed::Entry { position, entry } => {
                print(session, position, &entry, positions)?;
                left -= 1;
            }
            Followed::Trimmed { from, to } => {
                output::flush()?;
                output::complain(&format!("nacre: positions {from} to {} were trimmed", to - 1));
            }
        }
        if !follower.is_ready() {
            output::flush()?;
        }
    }
    Ok(output::flush()?)
}

async fn fill(session: &Context, log: &str, position: u64) -> Result<(), Failure> {
    let slot = open(session, log, false).await?.fill(position).await?;
    let (state, json) = (state(&slot), json!({ "position": position, "state": state(&slot) }));
    match slot {
        Slot::Filled if session.json => Ok(output::line(&json.to_string())?),
        Slot::Filled => Ok(()),
        _ => {
            let sentence = format!("position {position} is not filled: there is an entry, or it was trimmed");
            Err(Failure::Refused(Refused { sentence, current: state.to_owned(), json }))
        }
    }
}

/// Returns the name of a log as it is printed and typed.
fn shown(log: &str) -> String {
    Escaped::of(log).to_string()
}

fn info_json(info: &Info) -> Value {
    let views = info.views.iter().map(|view| {
        json!({
            "start": view.start,
            "epoch": view.epoch,
            "width": view.width,
            "unit": view.unit,
            "generation": format!("{:016x}", view.generation),
        })
    });
    json!({
        "log": shown(&info.name),
        "id": info.id.to_string(),
        "epoch": info.epoch,
        "recovering": info.recovering,
        "begin": info.begin,
        "tail": info.tail,
        "views": views.collect::<Vec<_>>(),
    })
}

fn epoch_text(info: &Info) -> String {
    match info.recovering {
        true => format!("{}, in recovery", info.epoch),
        false => info.epoch.to_string(),
    }
}

fn info(session: &Context, info: &Info) -> Result<(), Failure> {
    if session.json {
        return Ok(output::line(&info_json(info).to_string())?);
    }
    output::line(&format!("id      {}", info.id))?;
    output::line(&format!("epoch   {}", epoch_text(info)))?;
    output::line(&format!("begin   {}", info.begin))?;
    output::line(&format!("tail    {}", info.tail))?;
    let mut table = Table::new(&["view", "epoch", "width", "unit"]);
    for view in &info.views {
        table.row([
            view.start.to_string(),
            view.epoch.to_string(),
            view.width.to_string(),
            view.unit.to_string(),
        ]);
    }
    Ok(table.print()?)
}

fn print_recovered(session: &Context, log: &str, recovered: &Recovered) -> Result<(), Failure> {
    let Recovered { epoch, tail, sealed } = recovered;
    let line = match session.json {
        true => json!({ "log": shown(log), "epoch": epoch, "tail": tail, "sealed": sealed }).to_string(),
        false => format!("epoch {epoch}, tail {tail}, {sealed} objects sealed"),
    };
    Ok(output::line(&line)?)
}

async fn check(session: &Context, name: &str) -> Result<(), Failure> {
    let log = open(session, name, true).await?;
    let info = log.info().await?;
    let (mut entries, mut bytes, mut filled, mut trimmed, mut unwritten) =
        (0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let mut next = info.begin;
    while next < info.tail {
        for (position, slot) in log.read_range(next, info.tail).await? {
            next = position + 1;
            match slot {
                Slot::Entry(entry) => {
                    entries += 1;
                    bytes += entry.data.len() as u64;
                }
                Slot::Filled => filled += 1,
                Slot::Trimmed => trimmed += 1,
                Slot::Unwritten => unwritten += 1,
            }
        }
    }
    if session.json {
        let line = json!({
            "log": shown(name),
            "begin": info.begin,
            "tail": info.tail,
            "entries": entries,
            "bytes": bytes,
            "filled": filled,
            "trimmed": trimmed,
            "unwritten": unwritten,
        });
        return Ok(output::line(&line.to_string())?);
    }
    let text = format!(
        "{entries} entries of {bytes} bytes from {} to {}, {filled} filled, {trimmed} trimmed, {unwritten} not written",
        info.begin, info.tail
    );
    Ok(output::line(&text)?)
}
