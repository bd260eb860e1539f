//! `nacre apply`: transactions as JSON.

mod decode;
mod node;

use std::collections::BTreeSet;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use nacre::{
    Answer, Done, Fork, Found, Key, ObjectId, Outcome, ReadOp, Refusal, Store, Transaction, WriteOp,
};
use nacre_quantity::Escaped;
use serde_json::{Map, Value, json};

use self::node::{Nodes, Unreadable};
use crate::failure::{Failure, Refused};
use crate::output;
use crate::session::Context;

/// Apply transactions written as JSON, each atomically to one object
///
/// Each transaction is a JSON object with "object" and the optional lists "guards", "reads" and "writes". Transactions
/// are applied in order, and the outcome of each is printed as a line of JSON. The command stops at the first one that
/// is refused (exit code 3) or fails; earlier ones stay applied.
#[derive(clap::Args, Debug)]
#[command(after_long_help = FORMAT)]
pub struct Args {
    /// File with the transactions; - is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
}

const FORMAT: &str = r#"Transactions:
  {"object": "a",
   "guards": [{"region": {"offset": 0, "length": 4096, "version": 7}}],
   "reads":  ["stat"],
   "writes": [{"write": {"offset": 0, "data": "text"}}, {"set_key": {"key": "k", "value": {"base64": "AAEC"}}}]}

  guards  "exists", "absent", {"version": N}, {"region": RANGE and "version"}, {"proposal": RANGE and "version"},
          {"key": {"key": K, "check": CHECK}}, {"attribute": {"name": K, "check": CHECK}},
          {"key_version": {"key": K, "version": N}}, {"size": {"fork", "size"}}, {"fence": SESSION}
  CHECK   "present", "absent", or {"equal": V}, and likewise "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"
  reads   {"range": RANGE}, {"extents": RANGE}, "stat", {"forks": {"after", "limit"}}, {"key": K}, {"versioned_key": K},
          {"keys": {"after", "before", "prefix", "limit", "values"}}, "versioned_keys" likewise, {"attribute": K},
          "attributes", "fences"
  writes  "create", {"write": {"fork", "offset", "data": V}}, {"append": {"fork", "data": V}}, {"zero": RANGE},
          {"truncate": {"fork", "size"}}, {"remove_fork": F}, {"replace_fork": {"fork", "from"}}, {"set_key": {"key", "value"}},
          {"remove_key": K}, {"set_attribute": {"name", "value"}}, {"remove_attribute": K}, {"raise_fence": N}, {"fence_session": N},
          "remove"
  RANGE   {"fork": F, "offset": N, "length": N}: defaults are the default fork, 0 and the rest
  outcome {"object", "done": true, "version", "existed", "answers": one for each read}, or {"object", "done": false, "guard": which one, from 0,
          "found": the current state, "object_version"}. Bytes that are not text are in "data_base64" or "value_base64". If an answer
          was cut, "next" is where to continue, or "more" is true: all answers of a transaction together have at most 16 MiB
  V       a text, or {"base64": "…"}; K, F and the object's name are strings in which \\xNN (typed "\\\\xNN" in JSON) is a byte"#;

/// Returns the fork that a transaction would take as another's content although there is none, of which the store would
/// say nothing. Guards decide about what changes at the same time.
async fn missing_source(
    store: &Store,
    object: &ObjectId,
    transaction: &Transaction,
) -> Result<Option<Fork>, Failure> {
    if !transaction.writes.iter().any(|write| matches!(write, WriteOp::ReplaceFork { .. })) {
        return Ok(None);
    }
    let found = store.object(object)?;
    let mut forks: BTreeSet<Fork> = match found.stat().await?.exists {
        true => found.forks().await?.into_iter().map(|(fork, _)| fork).collect(),
        false => BTreeSet::new(),
    };
    for write in &transaction.writes {
        match write {
            WriteOp::Extents { fork, .. } | WriteOp::Append { fork, .. } | WriteOp::Truncate { fork, .. } => {
                forks.insert(fork.clone());
            }
            WriteOp::RemoveFork { fork } => drop(forks.remove(fork)),
            WriteOp::Remove => forks.clear(),
            WriteOp::ReplaceFork { fork, from } => {
                if !forks.remove(from) {
                    return Ok(Some(from.clone()));
                }
                forks.insert(fork.clone());
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Runs `nacre apply`.
pub async fn run(session: &Context, args: Args) -> Result<(), Failure> {
    let (source, shown): (Box<dyn io::Read>, _) = match args.file == Path::new("-") {
        true if io::stdin().is_terminal() => {
            let text =
                "there is nothing to apply: name a file, or give transactions on standard input (see --help)";
            return Err(Failure::Usage(text.into()));
        }
        true => (Box::new(io::stdin().lock()), "standard input".to_owned()),
        false => {
            let shown = Escaped::of(&args.file).to_string();
            let file = std::fs::File::open(&args.file).map_err(Failure::io(format!("open {shown}")))?;
            (Box::new(file), shown)
        }
    };
    let mut nodes = Nodes::new(source);
    let mut store: Option<(Store, bool)> = None;
    let mut is_read = true;
    for number in 1.. {
        let wrong = |why: String| Failure::Usage(format!("transaction {number} of {shown}: {why}"));
        let node = match nodes.read() {
            Ok(Some(node)) => node,
            Ok(None) if number == 1 => {
                return Err(Failure::Usage(format!("{shown} holds no transaction (see --help)")));
            }
            Ok(None) => break,
            Err(Unreadable::Io(error)) => return Err(Failure::io(format!("read {shown}"))(error)),
            Err(Unreadable::Text(why)) => return Err(wrong(why)),
        };
        let (object, transaction) = decode::transaction(node)
            .map_err(|why| wrong(format!("{why}; \"nacre apply --help\" describes transactions")))?;
        let writes = !transaction.writes.is_empty();
        if !matches!(&store, Some((_, fills)) if *fills || !writes) {
            // A folder is for one at a time, so the store is closed before it is opened for writing.
            drop(store.take());
            store = Some((if writes { session.open_to_fill()? } else { session.open()? }, writes));
        }
        let Some((store, _)) = &store else { continue };
        if let Some(from) = missing_source(store, &object, &transaction).await? {
            let fork = match from == Fork::DEFAULT {
                true => "default fork".to_owned(),
                false => format!("fork \"{from}\""),
            };
            return Err(Failure::Failed(format!(
                "cannot apply transaction {number} of {shown}: object \"{object}\" has no {fork} to take"
            )));
        }
        let with_values: Vec<bool> = transaction.reads.iter().map(with_values).collect();
        let outcome = store.apply(&object, transaction).await.map_err(Failure::store(format!(
            "apply transaction {number} of {shown} to object \"{object}\" of {}",
            store.name()
        )))?;
        match outcome {
            // Whoever does not read what became of them has asked for them all the same.
            Outcome::Done(done) if is_read => {
                match output::line(&describe(&object, done, &with_values).to_string()) {
                    Err(error) if error.kind() == io::ErrorKind::BrokenPipe => is_read = false,
                    printed => printed?,
                }
            }
            Outcome::Done(_) => {}
            Outcome::Refused(refusal) => {
                let sentence = format!(
                    "transaction {number} of {shown}: guard {} (from 0) of object \"{object}\" does not hold; nothing of it was applied",
                    refusal.guard
                );
                let json = refused(&object, refusal);
                return Err(Failure::Refused(Refused { sentence, current: json.to_string(), json }));
            }
        }
    }
    Ok(())
}

/// Returns the outcome of a transaction that was applied.
fn describe(object: &ObjectId, done: Done, with_values: &[bool]) -> Value {
    let Done { version, existed, answers } = done;
    let mut json =
        json!({ "object": object.to_string(), "done": true, "version": version, "existed": existed });
    if !answers.is_empty() {
        let answers = answers.into_iter().zip(with_values);
        json["answers"] = answers.map(|(found, with_values)| answer(found, *with_values)).collect();
    }
    json
}

/// Returns the outcome of a transaction that was refused.
fn refused(object: &ObjectId, refusal: Refusal) -> Value {
    let mut found = Map::new();
    match refusal.found {
        Found::Object { exists } => _ = found.insert("exists".into(), exists.into()),
        Found::Region(region) => output::put_range(&mut found, &region),
        Found::Value(None) => _ = found.insert("value".into(), Value::Null),
        Found::Value(Some(value)) => output::put_bytes(&mut found, "value", &value),
        Found::Fence(fence) => _ = found.insert("fence".into(), fence.into()),
        Found::KeyVersion(version) => _ = found.insert("version".into(), version.into()),
        Found::Size(size) => _ = found.insert("size".into(), size.into()),
    }
    let (guard, version) = (refusal.guard, refusal.version);
    json!({ "object": object.to_string(), "done": false, "guard": guard, "found": found, "object_version": version })
}

/// Returns whether the answer to a read has the values of keys.
fn with_values(read: &ReadOp) -> bool {
    !matches!(read, ReadOp::Keys { values: false, .. } | ReadOp::VersionedKeys { values: false, .. })
}

fn answer(answer: Answer, with_values: bool) -> Value {
    let mut json = Map::new();
    match answer {
        Answer::Range(range) => output::put_range(&mut json, &range),
        Answer::Stat(stat) => {
            return json!({
                "exists": stat.exists,
                "version": stat.version,
                "fence": stat.fence,
                "forks": stat.forks,
                "bytes": stat.bytes,
                "keys": stat.keys,
                "attributes": stat.attributes,
            });
        }
        Answer::Forks(page) => {
            let forks =
                page.entries.iter().map(|(fork, size)| json!({ "fork": fork.to_string(), "size": size }));
            return json!({ "forks": forks.collect::<Value>(), "more": page.more });
        }
        Answer::Value(None) | Answer::VersionedValue(None) => _ = json.insert("value".into(), Value::Null),
        Answer::Value(Some(value)) => output::put_bytes(&mut json, "value", &value),
        Answer::VersionedValue(Some(versioned)) => {
            output::put_bytes(&mut json, "value", &versioned.value);
            json.insert("version".into(), versioned.version.into());
        }
        Answer::Keys(page) => {
            let entries =
                page.entries.into_iter().map(|(key, value)| entry(&key, with_values.then_some(&value), None));
            return json!({ "keys": entries.collect::<Value>(), "more": page.more });
        }
        Answer::VersionedKeys(page) => {
            let entries = page
                .entries
                .into_iter()
                .map(|(key, found)| entry(&key, with_values.then_some(&found.value), Some(found.version)));
            return json!({ "keys": entries.collect::<Value>(), "more": page.more });
        }
        Answer::Fences(fences) => return json!({ "fence": fences.fence, "sessions": fences.sessions }),
    }
    json.into()
}

fn entry(key: &Key, value: Option<&Bytes>, version: Option<u64>) -> Value {
    let mut json = Map::new();
    json.insert("key".into(), key.to_string().into());
    if let Some(value) = value {
        output::put_bytes(&mut json, "value", value);
    }
    if let Some(version) = version {
        json.insert("version".into(), version.into());
    }
    json.into()
}
