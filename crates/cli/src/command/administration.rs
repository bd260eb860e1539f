//! `nacre info`, `nacre scrub`, `nacre compact` and `nacre purge`: the commands on a store as a whole, in all its parts.

use std::collections::BTreeMap;
use std::time::Duration;

use nacre::Report;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output::Table;
use crate::progress::Bar;
use crate::session::Context;
use crate::{output, quantity};

/// Show a store's segments, live bytes, write amplification, durability and versions
#[derive(clap::Args, Debug)]
pub struct InfoArgs {
    /// Show the outcomes of conditional writes instead and, if the server was started with --region-statistics, the
    /// regions with the longest runs of failures
    #[arg(long)]
    regions: bool,
}

/// Check every byte that a store has written, reading from the device; exit with 1 if damage is found
///
/// A store in a folder is checked even if it is too damaged to be opened. Nothing in the folder is changed.
#[derive(clap::Args, Debug)]
pub struct ScrubArgs {
    /// Repair what can be repaired, and report what is lost. Only for a store in a folder (--store file:FOLDER) that no
    /// server has open. Files that are no longer needed are kept under names that begin with "damaged-"
    #[arg(long)]
    repair: bool,
}

/// Reclaim the space of overwritten and removed data
#[derive(clap::Args, Debug)]
pub struct CompactArgs {}

/// Take away the versions that removed objects leave behind in a pool of a Ceph cluster
///
/// Other stores forget removed objects by themselves. Clients may go on meanwhile, but those of versions of Nacre without this
/// command must never be used on the pool's namespace again: what they make could get versions that removed objects had.
#[derive(clap::Args, Debug)]
pub struct PurgeArgs {
    /// Leave objects that were removed less than this time ago
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = quantity::parse_time)]
    older_than: Duration,
    /// Change nothing, and print what would be taken away
    #[arg(long)]
    dry_run: bool,
}

/// The number of regions that `nacre info --regions` shows.
const REGIONS: usize = 50;

/// Runs `nacre info`.
pub async fn info(session: &Context, args: InfoArgs) -> Result<(), Failure> {
    let store = session.open()?;
    let parts = match args.regions {
        true => store.regions_of_each(REGIONS).await?,
        false => store.info_of_each().await?,
    };
    let (mut reports, mut missing) = (Vec::new(), Vec::new());
    for (server, said) in parts {
        match said {
            Ok(report) => reports.push(Report { server, report }),
            Err(error) => missing.push((server, error)),
        }
    }
    let servers = reports.len() + missing.len();
    print(session, &reports)?;
    match (missing.len(), missing.pop()) {
        (_, None) => Ok(()),
        // A store of one part is told of as everywhere else.
        (1, Some((_, error))) if servers == 1 => Err(error.into()),
        (count, Some((server, error))) => Err(Failure::Failed(format!(
            "{count} of {servers} servers did not answer, {server} among them: {}",
            error.message
        ))),
    }
}

/// Runs `nacre compact`.
pub async fn compact(session: &Context, _args: CompactArgs) -> Result<(), Failure> {
    let reports = session.open()?.compact().await?;
    print(session, &reports)
}

/// Runs `nacre purge`.
pub async fn purge(session: &Context, args: PurgeArgs) -> Result<(), Failure> {
    let mut bar = Bar::entries();
    let progress = move |part: Report| {
        let number = |name: &str| part.report.get(name).and_then(Value::as_u64).unwrap_or_default();
        bar.set(number("objects"), number("total_objects"));
    };
    let reports = session.open()?.purge(args.older_than, args.dry_run, progress).await?;
    print(session, &reports)
}

/// Prints the reports of all parts.
fn print(session: &Context, reports: &[Report]) -> Result<(), Failure> {
    if session.json {
        return print_json(reports);
    }
    for (index, part) in reports.iter().enumerate() {
        if index > 0 {
            output::line("")?;
        }
        if reports.len() > 1 {
            output::line(&part.server)?;
        }
        match &part.report {
            Value::Object(fields) => print_fields(fields)?,
            other => output::line(&other.to_string())?,
        }
    }
    Ok(())
}

/// Prints one part's report: a line for each field, and a table for each list.
fn print_fields(fields: &Map<String, Value>) -> Result<(), Failure> {
    let width = fields.iter().filter(|(_, value)| !value.is_array()).map(|(name, _)| name.len()).max();
    for (name, value) in fields {
        let Value::Array(entries) = value else {
            let name = format!("{:1$}", name.replace('_', " "), width.unwrap_or(0));
            output::line(format!("{name}  {}", text(&name, value)).trim_end())?;
            continue;
        };
        let Some(Value::Object(first)) = entries.first() else { continue };
        let mut table = Table::new(&first.keys().map(String::as_str).collect::<Vec<_>>());
        for entry in entries {
            table.row(first.keys().map(|column| match &entry[column] {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            }));
        }
        table.print()?;
    }
    Ok(())
}

/// Formats a value for people: large numbers of bytes also with a suitable unit.
fn text(name: &str, value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if name.trim_end().ends_with("bytes") && bytes >= 1024 => {
                format!("{} ({})", quantity::grouped(bytes), quantity::size(bytes))
            }
            Some(whole) => quantity::grouped(whole),
            None => format!("{:.2}", number.as_f64().unwrap_or_default()),
        },
        other => other.to_string(),
    }
}

fn print_json(reports: &[Report]) -> Result<(), Failure> {
    let parts: Vec<Value> =
        reports.iter().map(|part| json!({ "place": part.server, "report": part.report })).collect();
    Ok(output::line(&Value::from(parts).to_string())?)
}

/// Runs `nacre scrub`.
pub async fn scrub(session: &Context, args: ScrubArgs) -> Result<(), Failure> {
    let mut bar = Bar::bytes(Some(0));
    let mut parts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let progress = move |part: Report| {
        let number = |name: &str| part.report.get(name).and_then(Value::as_u64).unwrap_or_default();
        parts.insert(part.server.clone(), (number("bytes"), number("total_bytes")));
        let sum = |pick: fn(&(u64, u64)) -> u64| parts.values().map(pick).sum();
        bar.set(sum(|part| part.0), sum(|part| part.1));
    };
    let reports = match session.folder()? {
        Some(uri) if args.repair => vec![nacre::repair_folder(&uri, progress).map_err(scrub_failure)?],
        None if args.repair => {
            let text = "a repair needs the files of the store: stop its server, and name the folder, as in \
                        \"nacre scrub --repair --store file:nacre-data\"";
            return Err(Failure::Usage(text.into()));
        }
        Some(uri) => vec![nacre::scrub_folder(&uri, progress).map_err(scrub_failure)?],
        None => session.open()?.scrub(progress).await.map_err(scrub_failure)?,
    };
    let damaged: usize = reports.iter().map(|part| list(part, "findings").len()).sum();
    let losses: usize = reports.iter().map(|part| list(part, "lost").len()).sum();
    let named = |part: &Report| list(part, "findings").iter().any(|finding| !is_empty(&finding["objects"]));
    let is_lost = losses > 0 || reports.iter().any(named);
    let unopened = reports.iter().find_map(unopened);
    if session.json {
        print_json(&reports)?;
    } else {
        print_scrub(&reports, damaged)?;
        if args.repair && reports.iter().all(|part| list(part, "repaired").is_empty()) {
            output::line("nothing was repaired")?;
        }
    }
    match unopened {
        None if damaged == 0 && !is_lost => Ok(()),
        None => Err(Failure::Failed(format!(
            "the scrub of {} found {}; {}",
            session.shown_uri(),
            match damaged {
                0 => "that something is lost".to_owned(),
                _ => quantity::count(damaged as u64, "damaged piece"),
            },
            match is_lost {
                true => "undamaged objects stay readable, those named must be written again",
                false => "no object has lost anything",
            }
        ))),
        Some(why) => Err(Failure::Failed(format!(
            "{why}; \"nacre scrub --repair\" repairs what can be repaired, and keeps what it does not need"
        ))),
    }
}

/// Returns the failure of a scrub, without the advice to scrub.
fn scrub_failure(error: nacre::Error) -> Failure {
    match error.kind {
        nacre::ErrorKind::Corrupt => Failure::Failed(error.message),
        _ => error.into(),
    }
}

/// Returns the reason why the part cannot be opened, if it cannot.
fn unopened(part: &Report) -> Option<&str> {
    part.report.get("unopened")?.as_str()
}

fn is_empty(list: &Value) -> bool {
    list.as_array().is_none_or(Vec::is_empty)
}

/// The number of names that are shown of a list; `--json` gives all of them.
const NAMES_SHOWN: usize = 20;

fn names(list: &[Value]) -> String {
    let shown = list.iter().take(NAMES_SHOWN).filter_map(Value::as_str).collect::<Vec<_>>().join(", ");
    match list.len().saturating_sub(NAMES_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn list(part: &Report, name: &str) -> Vec<Value> {
    part.report.get(name).and_then(Value::as_array).cloned().unwrap_or_default()
}

/// Prints the findings of scrubs, the repairs, and the losses.
fn print_scrub(reports: &[Report], damaged: usize) -> Result<(), Failure> {
    let mut table = Table::new(&["PLACE", "FILE", "OFFSET", "LENGTH", "WHAT", "OBJECTS"]);
    for part in reports {
        for finding in list(part, "findings") {
            let cell = |name: &str| match &finding[name] {
                Value::String(text) => text.clone(),
                Value::Array(list) if list.is_empty() => match unopened(part) {
                    Some(_) => "none known".to_owned(),
                    None => "none lost".to_owned(),
                },
                Value::Array(list) => names(list),
                other => other.to_string(),
            };
            let cells = ["file", "offset", "bytes", "what", "objects"].map(cell);
            table.row([part.server.clone()].into_iter().chain(cells));
        }
    }
    if damaged > 0 {
        table.print()?;
    }
    for part in reports {
        for line in list(part, "repaired") {
            output::line(&format!("repaired: {}", line.as_str().unwrap_or_default()))?;
        }
        for loss in list(part, "lost") {
            let field = |name: &str| loss[name].as_str().unwrap_or_default().to_owned();
            output::line(&format!("lost of {}: {}", field("object"), field("what")))?;
        }
    }
    let sum = |name: &str| reports.iter().filter_map(|part| part.report.get(name)?.as_u64()).sum::<u64>();
    let source = |part: &Report| match part.report.get("source").and_then(Value::as_str) {
        Some("emptied-cache") => Some("through the page cache, emptied first"),
        Some("memory") => Some("from memory"),
        Some("osds") => Some("from the OSDs"),
        _ => None,
    };
    Ok(output::line(&format!(
        "{} in {} read {} and checked, {}",
        quantity::size(sum("bytes")),
        quantity::count(sum("files"), "file"),
        reports.iter().find_map(source).unwrap_or("from the device"),
        match damaged {
            0 if reports.iter().any(|part| unopened(part).is_some()) =>
                "the store cannot be opened".to_owned(),
            0 => "no damage found".to_owned(),
            _ => quantity::count(damaged as u64, "damaged piece"),
        }
    ))?)
}
