//! `nacre apply`: transactions as JSON.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use nacre::{
    Answer, ByteRange, Check, Done, Fork, Found, Guard, Intent, Key, KeyRange, ObjectId, Outcome, ReadOp,
    Refusal, Store, Transaction, WriteOp, limit, stage,
};
use nacre_quantity::{Escaped, unescape};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::{Map, Value, json};

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
          {"key_version": {"key": K, "version": N}}, {"fence": SESSION}
  CHECK   "present", "absent", or {"equal": V}, and likewise "not_equal", "less", "less_or_equal", "greater", "greater_or_equal"
  reads   {"range": RANGE}, {"extents": RANGE}, "stat", {"forks": {"after", "limit"}}, {"key": K}, {"versioned_key": K},
          {"keys": {"after", "before", "prefix", "limit", "values"}}, "versioned_keys" likewise, {"attribute": K},
          "attributes", "fences"
  writes  "create", {"write": {"fork", "offset", "data": V}}, {"zero": RANGE}, {"truncate": {"fork", "size"}},
          {"remove_fork": F}, {"replace_fork": {"fork", "from"}}, {"set_key": {"key", "value"}}, {"remove_key": K},
          {"set_attribute": {"name", "value"}}, {"remove_attribute": K}, {"raise_fence": N}, {"fence_session": N}, "remove"
  RANGE   {"fork": F, "offset": N, "length": N}: defaults are the default fork, 0 and the rest
  outcome {"object", "done": true, "version", "existed", "answers": one for each read}, or {"object", "done": false, "guard": which one, from 0,
          "found": the current state, "object_version"}. Bytes that are not text are in "data_base64" or "value_base64". If an answer
          was cut, "next" is where to continue, or "more" is true: all answers of a transaction together have at most 16 MiB
  V       a text, or {"base64": "…"}; K, F and the object's name are strings in which \\xNN (typed "\\\\xNN" in JSON) is a byte"#;

/// The most bytes of one transaction's text: the payload that a transaction may carry as base64, and as much for the rest.
const TEXT_BYTES_MAX: u64 = 4 * limit::TRANSACTION_BYTES_MAX as u64;

/// A transaction as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a transaction is an object with \"object\"")]
struct Written {
    object: Name<ObjectId>,
    #[serde(default)]
    guards: Vec<GuardText>,
    #[serde(default)]
    reads: Vec<ReadText>,
    #[serde(default)]
    writes: Vec<WriteText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum GuardText {
    Exists,
    Absent,
    Region(VersionedRange),
    Proposal(VersionedRange),
    Key { key: Name<Key>, check: CheckText },
    Attribute { name: Name<Key>, check: CheckText },
    Version(u64),
    KeyVersion { key: Name<Key>, version: u64 },
    Fence(u64),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum CheckText {
    Present,
    Absent,
    Equal(Data),
    NotEqual(Data),
    Less(Data),
    LessOrEqual(Data),
    Greater(Data),
    GreaterOrEqual(Data),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum ReadText {
    Range(RangeText),
    Extents(RangeText),
    Stat,
    Forks {
        after: Option<Name<Fork>>,
        #[serde(default = "page")]
        limit: u32,
    },
    Key(Name<Key>),
    Keys(KeysText),
    Attribute(Name<Key>),
    Attributes,
    VersionedKey(Name<Key>),
    VersionedKeys(KeysText),
    Fences,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum WriteText {
    Create,
    Write {
        #[serde(default)]
        fork: Name<Fork>,
        #[serde(default)]
        offset: u64,
        data: Data,
    },
    Zero(RangeText),
    Truncate {
        #[serde(default)]
        fork: Name<Fork>,
        size: u64,
    },
    RemoveFork(Name<Fork>),
    ReplaceFork {
        #[serde(default)]
        fork: Name<Fork>,
        from: Name<Fork>,
    },
    SetKey {
        key: Name<Key>,
        value: Data,
    },
    RemoveKey(Name<Key>),
    SetAttribute {
        name: Name<Key>,
        value: Data,
    },
    RemoveAttribute(Name<Key>),
    RaiseFence(u64),
    FenceSession(u64),
    Remove,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RangeText {
    #[serde(default)]
    fork: Name<Fork>,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionedRange {
    #[serde(default)]
    fork: Name<Fork>,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
    version: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysText {
    after: Option<Data>,
    before: Option<Data>,
    #[serde(default)]
    prefix: Data,
    #[serde(default = "page")]
    limit: u32,
    #[serde(default = "yes")]
    values: bool,
}

fn page() -> u32 {
    limit::PAGE_ENTRIES_MAX as u32
}

fn yes() -> bool {
    true
}

fn range(offset: u64, length: Option<u64>) -> ByteRange {
    ByteRange::new(offset, length.unwrap_or(ByteRange::ALL.end().saturating_sub(offset)))
}

/// A name with the escapes that commands print.
#[derive(Default)]
struct Name<T>(T);

/// A kind of name, made of its bytes.
trait Named: Sized {
    fn named(bytes: Vec<u8>) -> Result<Self, nacre::Error>;
}

impl Named for ObjectId {
    fn named(bytes: Vec<u8>) -> Result<Self, nacre::Error> {
        ObjectId::new(bytes)
    }
}

impl Named for Fork {
    fn named(bytes: Vec<u8>) -> Result<Self, nacre::Error> {
        Fork::new(bytes)
    }
}

impl Named for Key {
    fn named(bytes: Vec<u8>) -> Result<Self, nacre::Error> {
        Key::new(bytes)
    }
}

impl<'de, T: Named> Deserialize<'de> for Name<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = unescape(text.as_bytes()).map_err(D::Error::custom)?;
        T::named(bytes).map(Name).map_err(|error| D::Error::custom(error.message))
    }
}

/// Bytes: a text, or `{"base64": "…"}`.
#[derive(Default)]
struct Data(Bytes);

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, deny_unknown_fields, expecting = "a text or {\"base64\": \"…\"} is expected")]
        enum Form {
            Text(String),
            Coded { base64: String },
        }
        match Form::deserialize(deserializer)? {
            Form::Text(text) => Ok(Data(text.into())),
            Form::Coded { base64 } => {
                let bytes = STANDARD.decode(base64);
                bytes
                    .map(|bytes| Data(bytes.into()))
                    .map_err(|error| D::Error::custom(format!("base64: {error}")))
            }
        }
    }
}

impl From<GuardText> for Guard {
    fn from(guard: GuardText) -> Guard {
        match guard {
            GuardText::Exists => Guard::Exists,
            GuardText::Absent => Guard::Absent,
            GuardText::Region(VersionedRange { fork, offset, length, version }) => {
                Guard::Region { fork: fork.0, range: range(offset, length), version }
            }
            GuardText::Proposal(VersionedRange { fork, offset, length, version }) => {
                Guard::Proposal { fork: fork.0, range: range(offset, length), version }
            }
            GuardText::Key { key, check } => Guard::Key { key: key.0, check: check.into() },
            GuardText::Attribute { name, check } => Guard::Attribute { name: name.0, check: check.into() },
            GuardText::Version(version) => Guard::Version { version },
            GuardText::KeyVersion { key, version } => Guard::KeyVersion { key: key.0, version },
            GuardText::Fence(token) => Guard::Fence { token },
        }
    }
}

impl From<CheckText> for Check {
    fn from(check: CheckText) -> Check {
        match check {
            CheckText::Present => Check::Present,
            CheckText::Absent => Check::Absent,
            CheckText::Equal(value) => Check::Equal(value.0),
            CheckText::NotEqual(value) => Check::NotEqual(value.0),
            CheckText::Less(value) => Check::Less(value.0),
            CheckText::LessOrEqual(value) => Check::LessOrEqual(value.0),
            CheckText::Greater(value) => Check::Greater(value.0),
            CheckText::GreaterOrEqual(value) => Check::GreaterOrEqual(value.0),
        }
    }
}

impl From<ReadText> for ReadOp {
    fn from(read: ReadText) -> ReadOp {
        let keys = |keys: KeysText| {
            let bound = |bound: Option<Data>| bound.map(|bound| bound.0);
            let range =
                KeyRange { after: bound(keys.after), before: bound(keys.before), prefix: keys.prefix.0 };
            (range, keys.limit, keys.values)
        };
        match read {
            ReadText::Range(RangeText { fork, offset, length }) => {
                ReadOp::Range { fork: fork.0, range: range(offset, length), intent: Intent::Look }
            }
            ReadText::Extents(RangeText { fork, offset, length }) => {
                ReadOp::Extents { fork: fork.0, range: range(offset, length) }
            }
            ReadText::Stat => ReadOp::Stat,
            ReadText::Forks { after, limit } => ReadOp::Forks { after: after.map(|after| after.0), limit },
            ReadText::Key(key) => ReadOp::Key { key: key.0 },
            ReadText::Keys(text) => {
                let (range, limit, values) = keys(text);
                ReadOp::Keys { range, limit, values }
            }
            ReadText::Attribute(name) => ReadOp::Attribute { name: name.0 },
            ReadText::Attributes => ReadOp::Attributes,
            ReadText::VersionedKey(key) => ReadOp::VersionedKey { key: key.0 },
            ReadText::VersionedKeys(text) => {
                let (range, limit, values) = keys(text);
                ReadOp::VersionedKeys { range, limit, values }
            }
            ReadText::Fences => ReadOp::Fences,
        }
    }
}

impl From<WriteText> for WriteOp {
    fn from(write: WriteText) -> WriteOp {
        match write {
            WriteText::Create => WriteOp::Create,
            WriteText::Write { fork, offset, data } => {
                WriteOp::Extents { fork: fork.0, extents: vec![(offset, data.0)] }
            }
            WriteText::Zero(RangeText { fork, offset, length }) => {
                WriteOp::Zero { fork: fork.0, range: range(offset, length) }
            }
            WriteText::Truncate { fork, size } => WriteOp::Truncate { fork: fork.0, size },
            WriteText::RemoveFork(fork) => WriteOp::RemoveFork { fork: fork.0 },
            WriteText::ReplaceFork { fork, from } => WriteOp::ReplaceFork { fork: fork.0, from: from.0 },
            WriteText::SetKey { key, value } => WriteOp::SetKey { key: key.0, value: value.0 },
            WriteText::RemoveKey(key) => WriteOp::RemoveKey { key: key.0 },
            WriteText::SetAttribute { name, value } => WriteOp::SetAttribute { name: name.0, value: value.0 },
            WriteText::RemoveAttribute(name) => WriteOp::RemoveAttribute { name: name.0 },
            WriteText::RaiseFence(token) => WriteOp::RaiseFence { token },
            WriteText::FenceSession(session) => WriteOp::FenceSession { session },
            WriteText::Remove => WriteOp::Remove,
        }
    }
}

impl Written {
    /// Returns the object and the transaction. Writes to reserved forks are refused.
    fn decode(self) -> Result<(ObjectId, Transaction), String> {
        let transaction = Transaction {
            guards: self.guards.into_iter().map(Guard::from).collect(),
            reads: self.reads.into_iter().map(ReadOp::from).collect(),
            writes: self.writes.into_iter().map(WriteOp::from).collect(),
        };
        for write in &transaction.writes {
            let forks = match write {
                WriteOp::Extents { fork, .. }
                | WriteOp::Zero { fork, .. }
                | WriteOp::Truncate { fork, .. } => [Some(fork), None],
                WriteOp::RemoveFork { fork } => [Some(fork), None],
                WriteOp::ReplaceFork { fork, from } => [Some(fork), Some(from)],
                _ => [None, None],
            };
            if forks.into_iter().flatten().any(stage::is_reserved) {
                let text = format!("names of forks that begin with \"{}\" are reserved", stage::RESERVED);
                return Err(text);
            }
        }
        transaction.validate().map_err(|error| error.message)?;
        Ok((self.object.0, transaction))
    }
}

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
            WriteOp::Extents { fork, .. } | WriteOp::Truncate { fork, .. } => {
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
            (Box::new(BufReader::new(file)), shown)
        }
    };
    let read = Rc::new(Cell::new(0));
    let source = Bounded { source, read: Rc::clone(&read) };
    let mut texts = serde_json::Deserializer::from_reader(BufReader::new(source)).into_iter::<Written>();
    let mut store: Option<(Store, bool)> = None;
    let mut is_read = true;
    for number in 1.. {
        read.set(0);
        let Some(written) = texts.next() else {
            if number == 1 {
                return Err(Failure::Usage(format!("{shown} holds no transaction (see --help)")));
            }
            break;
        };
        let wrong = |why: String| Failure::Usage(format!("transaction {number} of {shown}: {why}"));
        let (object, transaction) =
            written.map_err(|error| unreadable(&error)).and_then(Written::decode).map_err(wrong)?;
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

/// Returns the reason why a text is no transaction.
fn unreadable(error: &serde_json::Error) -> String {
    let place = format!("line {}, column {}", error.line(), error.column());
    match error.classify() {
        Category::Io => error.to_string(),
        Category::Eof => {
            format!("it ends too early, at {place}: a bracket or a quotation mark is not closed")
        }
        Category::Syntax => format!("it is not JSON from {place} on"),
        Category::Data => {
            let (line, column) = (error.line(), error.column());
            let text = error.to_string();
            let why = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
            let why = ["u32", "u64"].iter().fold(why.to_owned(), |why, kind| {
                why.replace(
                    &format!("expected {kind}"),
                    "expected a whole number from 0 on that is not too large",
                )
            });
            format!("{why} ({place})")
        }
    }
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

/// A source that fails when one transaction takes more bytes than any may.
struct Bounded {
    source: Box<dyn io::Read>,
    /// Bytes read since the last transaction.
    read: Rc<Cell<u64>>,
}

impl io::Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.read.get() > TEXT_BYTES_MAX {
            return Err(io::Error::other(format!("it is longer than {TEXT_BYTES_MAX} bytes")));
        }
        let count = self.source.read(buffer)?;
        self.read.set(self.read.get() + count as u64);
        Ok(count)
    }
}
