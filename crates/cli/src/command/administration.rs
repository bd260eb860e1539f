//! `nacre info`, `nacre scrub` and `nacre compact`: what concerns a store as a whole, in every part that it has.

use std::collections::BTreeMap;

use nacre::Report;
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::output::Table;
use crate::progress::Bar;
use crate::session::Session;
use crate::{output, quantity};

/// Show a store's segments, live bytes, write amplification, durability and versions
#[derive(clap::Args, Debug)]
pub struct InfoArgs {
    /// Show what conditional writes came to instead, and the regions with the longest runs of failures, where the
    /// server was started with --region-statistics
    #[arg(long)]
    regions: bool,
}

/// Have a store read and check every byte that it wrote; the exit code is 1 if it finds damage
#[derive(clap::Args, Debug)]
pub struct ScrubArgs {}

/// Have a store give back the space of what was overwritten and removed
#[derive(clap::Args, Debug)]
pub struct CompactArgs {}

/// Regions that `nacre info --regions` shows.
const REGIONS: usize = 50;

/// Runs `nacre info`.
pub async fn info(session: &Session, args: InfoArgs) -> Result<(), Failure> {
    let store = session.open()?;
    let reports = if args.regions { store.regions(REGIONS).await? } else { store.info().await? };
    print(session, &reports)
}

/// Runs `nacre compact`.
pub async fn compact(session: &Session, _args: CompactArgs) -> Result<(), Failure> {
    let reports = session.open()?.compact().await?;
    print(session, &reports)
}

/// Prints the reports of all parts.
fn print(session: &Session, reports: &[Report]) -> Result<(), Failure> {
    if session.json {
        return print_json(reports);
    }
    for (index, part) in reports.iter().enumerate() {
        if index > 0 {
            output::line("")?;
        }
        if reports.len() > 1 {
            output::line(&part.place)?;
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

/// A value for people: bytes with the unit that suits them too.
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
        reports.iter().map(|part| json!({ "place": part.place, "report": part.report })).collect();
    Ok(output::line(&Value::from(parts).to_string())?)
}

/// Runs `nacre scrub`.
pub async fn scrub(session: &Session, _args: ScrubArgs) -> Result<(), Failure> {
    let store = session.open()?;
    let mut bar = Bar::bytes(Some(0));
    let mut parts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let progress = move |part: Report| {
        let number = |name: &str| part.report.get(name).and_then(Value::as_u64).unwrap_or_default();
        parts.insert(part.place.clone(), (number("bytes"), number("total_bytes")));
        let sum = |pick: fn(&(u64, u64)) -> u64| parts.values().map(pick).sum();
        bar.set(sum(|part| part.0), sum(|part| part.1));
    };
    let reports = store.scrub(progress).await?;
    let findings =
        |part: &Report| part.report.get("findings").and_then(Value::as_array).cloned().unwrap_or_default();
    let damaged: usize = reports.iter().map(|part| findings(part).len()).sum();
    if session.json {
        print_json(&reports)?;
    } else {
        let mut table = Table::new(&["PLACE", "FILE", "OFFSET", "LENGTH", "WHAT", "OBJECTS"]);
        for part in &reports {
            for finding in findings(part) {
                let cell = |name: &str| match &finding[name] {
                    Value::String(text) => text.clone(),
                    Value::Array(list) if list.is_empty() => "none lost".to_owned(),
                    Value::Array(list) => {
                        list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", ")
                    }
                    other => other.to_string(),
                };
                let cells = ["file", "offset", "bytes", "what", "objects"].map(cell);
                table.row([part.place.clone()].into_iter().chain(cells));
            }
        }
        if damaged > 0 {
            table.print()?;
        }
        let sum = |name: &str| reports.iter().filter_map(|part| part.report.get(name)?.as_u64()).sum::<u64>();
        output::line(&format!(
            "{} in {} read and checked, {}",
            quantity::size(sum("bytes")),
            quantity::count(sum("files"), "file"),
            if damaged == 0 {
                "no damage found".to_owned()
            } else {
                quantity::count(damaged as u64, "damaged piece")
            }
        ))?;
    }
    if damaged == 0 {
        return Ok(());
    }
    Err(Failure::Failed(format!(
        "the scrub of {} found {}; undamaged objects stay readable, those named have to be written again",
        store.name(),
        quantity::count(damaged as u64, "damaged piece")
    )))
}
