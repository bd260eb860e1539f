//! `nacre write`: writes bytes at an offset or at the end, atomically, on a condition if one is given.

use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nacre::{
    Answer, ByteRange, Fork, Found, Guard, Object, ObjectId, Outcome, ReadOp, Refusal, Transaction, limit,
};
use nacre_quantity::Escaped;
use serde_json::{Map, json};

use crate::arguments::ForkArgs;
use crate::failure::{Failure, Refused};
use crate::session::{self, Context};
use crate::{complete, name, output, quantity};

/// Write bytes into an object, optionally on a condition
///
/// Prints the version that the bytes now carry. If the condition does not hold, nothing is written, the current version
/// of the range is printed, and the exit code is 3.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// The bytes, used unchanged [default: those of --file, or standard input]
    #[arg(value_parser = name::value(), conflicts_with = "file", allow_hyphen_values = true)]
    data: Option<Bytes>,
    /// File with the bytes; - is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Offset to write at
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = quantity::parse_size)]
    offset: u64,
    /// Write at the end, wherever that is, and print the offset too
    #[arg(long, conflicts_with_all = ["offset", "if_version", "propose", "guard_range"])]
    append: bool,
    #[command(flatten)]
    fork: ForkArgs,
    /// Only if nothing in the range is newer than this version
    #[arg(long, value_name = "VERSION", help_heading = "Conditions")]
    if_version: Option<u64>,
    /// Only if this version is greater than that of the range, which then gets it (or a greater one)
    #[arg(long, value_name = "VERSION", help_heading = "Conditions", conflicts_with = "if_version")]
    propose: Option<u64>,
    /// Apply the condition to this range instead of the one that is written
    #[arg(
        long, value_name = "OFFSET+LENGTH", value_parser = parse_range, help_heading = "Conditions"
    )]
    guard_range: Option<ByteRange>,
    /// Only if the object does not exist yet
    #[arg(long, help_heading = "Conditions")]
    create: bool,
}

/// Parses a range such as `4KiB+64KiB`.
fn parse_range(text: &str) -> Result<ByteRange, String> {
    let Some((offset, length)) = text.split_once('+') else {
        return Err("write it as OFFSET+LENGTH, like 0+64KiB".to_owned());
    };
    Ok(ByteRange::new(quantity::parse_size(offset)?, quantity::parse_size(length)?))
}

/// Runs `nacre write`.
pub async fn run(session: &Context, mut args: Args) -> Result<(), Failure> {
    if args.guard_range.is_some() && args.if_version.is_none() && args.propose.is_none() {
        return Err(Failure::Usage(
            "--guard-range needs --if-version or --propose to say what it guards".into(),
        ));
    }
    let object = session.object_to_fill(&args.object, &args.fork.own()?)?;
    let data = match args.data.take() {
        Some(data) => data,
        None => read_all(args.file.as_deref())?.into(),
    };
    let transaction = transaction(&args, object.fork_name(), data);
    match session::apply(&object, transaction, "write to").await? {
        Outcome::Done(done) => {
            let mut json = json!({ "done": true, "version": done.version });
            let mut line = done.version.to_string();
            if let [Answer::Range(before)] = &done.answers[..] {
                json["offset"] = before.size.into();
                line = format!("{line} at {}", before.size);
            }
            output::line(&if session.json { json.to_string() } else { line })?;
            Ok(())
        }
        Outcome::Refused(refusal) => Err(refused(&object, &args, refusal)),
    }
}

fn transaction(args: &Args, fork: &Fork, data: Bytes) -> Transaction {
    let range = args.guard_range.unwrap_or(ByteRange::new(args.offset, data.len() as u64));
    let mut transaction = Transaction::new();
    if args.create {
        transaction = transaction.guard(Guard::Absent);
    }
    if let Some(version) = args.if_version {
        transaction = transaction.if_version(fork.clone(), range, version);
    }
    if let Some(version) = args.propose {
        transaction = transaction.guard(Guard::Proposal { fork: fork.clone(), range, version });
    }
    if args.append {
        let size = ReadOp::Extents { fork: fork.clone(), range: ByteRange::new(0, 0) };
        return transaction.read(size).append(fork.clone(), data);
    }
    transaction.write(fork.clone(), args.offset, data)
}

/// Reads all bytes to be written: at most as many as fit into one transaction, because a write is one transaction.
fn read_all(file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let limit = limit::TRANSACTION_BYTES_MAX as u64;
    let mut data = Vec::new();
    let (read, shown) = match file {
        Some(path) if path != Path::new("-") => {
            let shown = Escaped::of(path).to_string();
            let file = std::fs::File::open(path).map_err(Failure::io(format!("open {shown}")))?;
            (file.take(limit + 1).read_to_end(&mut data), shown)
        }
        _ => {
            let stdin = std::io::stdin();
            if file.is_none() && stdin.is_terminal() {
                let text = "there is nothing to write: give the bytes as an argument, with --file, or on standard input";
                return Err(Failure::Usage(text.into()));
            }
            (stdin.lock().take(limit + 1).read_to_end(&mut data), "standard input".to_owned())
        }
    };
    read.map_err(Failure::io(format!("read {shown}")))?;
    if data.len() as u64 > limit {
        return Err(Failure::Failed(format!(
            "{shown} holds more than the {} that one write may carry; \"nacre put\" takes streams of any length",
            quantity::size(limit)
        )));
    }
    Ok(data)
}

fn refused(object: &Object, args: &Args, refusal: Refusal) -> Failure {
    let (id, store) = (object.id(), object.store().name());
    let mut json = Map::new();
    json.insert("done".into(), false.into());
    json.insert("object_version".into(), refusal.version.into());
    let (sentence, current) = match refusal.found {
        Found::Region(region) => {
            output::put_range(&mut json, &region);
            let now = region.version;
            let why = match (args.if_version, args.propose) {
                (Some(version), _) => format!("the range is at version {now}, not at {version}"),
                (_, Some(version)) => {
                    format!("the range is at version {now}, and {version} is not above that")
                }
                (None, None) => format!("the range is at version {now}"),
            };
            (format!("{why}; read it again, then write with --if-version {now}"), now)
        }
        _ => {
            json.insert("exists".into(), true.into());
            json.insert("version".into(), refusal.version.into());
            let now = refusal.version;
            (format!("it exists already, at version {now}; write without --create to change it"), now)
        }
    };
    let sentence = format!("object \"{id}\" of {store} was not written: {sentence}");
    Failure::Refused(Refused { sentence, current: current.to_string(), json: json.into() })
}
