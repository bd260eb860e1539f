//! `nacre keys` and `nacre attr`: the two maps of an object, the ordered one and the small one.

use std::io::Read as _;

use bytes::Bytes;
use nacre::{
    Check, Found, Guard, Key, KeyRange, Object, ObjectId, Outcome, Refusal, Transaction, WriteOp, limit,
};
use nacre_quantity::Escaped;
use serde_json::{Map, Value, json};

use crate::failure::{Failure, Refused};
use crate::output::{Array, Table};
use crate::session::{self, Context};
use crate::{complete, name, output, quantity};

/// Get, set, remove and list an object's keys
#[derive(clap::Args, Debug)]
pub struct KeysArgs {
    #[command(subcommand)]
    action: Action,
}

/// Get, set, remove and list an object's attributes
#[derive(clap::Args, Debug)]
pub struct AttrArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Print a value
    Get {
        #[command(flatten)]
        place: KeyArgs,
    },
    /// Set a value; prints the object's new version
    Set {
        #[command(flatten)]
        place: KeyArgs,
        /// The value, used unchanged; - is standard input
        #[arg(value_parser = name::value(), allow_hyphen_values = true)]
        value: Bytes,
        #[command(flatten)]
        conditions: Conditions,
    },
    /// Remove a name and its value; prints the object's new version
    Rm {
        #[command(flatten)]
        place: KeyArgs,
        #[command(flatten)]
        conditions: Conditions,
    },
    /// List names with their values
    Ls {
        /// The object
        #[arg(value_parser = name::object(), add = complete::objects())]
        object: ObjectId,
        /// List only names that begin with this
        #[arg(default_value = "", hide_default_value = true, value_parser = name::prefix())]
        prefix: Bytes,
        /// List only names after this one
        #[arg(long, value_name = "NAME", value_parser = name::key())]
        after: Option<Key>,
        /// List at most this many names
        #[arg(long, value_name = "COUNT")]
        limit: Option<u64>,
    },
}

#[derive(clap::Args, Debug)]
struct KeyArgs {
    /// The object
    #[arg(value_parser = name::object(), add = complete::objects())]
    object: ObjectId,
    /// The name
    #[arg(value_parser = name::key())]
    name: Key,
}

#[derive(clap::Args, Debug)]
#[group(multiple = false)]
struct Conditions {
    /// Only if this is the current value
    #[arg(long, value_name = "VALUE", value_parser = name::value(), allow_hyphen_values = true)]
    if_value: Option<Bytes>,
    /// Only if there is currently no value
    #[arg(long)]
    if_absent: bool,
    /// Only if there is currently a value
    #[arg(long)]
    if_present: bool,
}

/// The two maps of an object.
#[derive(Clone, Copy, PartialEq)]
enum MapKind {
    Key,
    Attribute,
}

impl MapKind {
    fn noun(self) -> &'static str {
        match self {
            MapKind::Key => "key",
            MapKind::Attribute => "attribute",
        }
    }

    fn guard(self, name: Key, check: Check) -> Guard {
        match self {
            MapKind::Key => Guard::Key { key: name, check },
            MapKind::Attribute => Guard::Attribute { name, check },
        }
    }
}

impl Conditions {
    fn check(&self) -> Option<Check> {
        match self {
            Conditions { if_value: Some(value), .. } => Some(Check::Equal(value.clone())),
            Conditions { if_absent: true, .. } => Some(Check::Absent),
            Conditions { if_present: true, .. } => Some(Check::Present),
            _ => None,
        }
    }
}

/// Runs `nacre keys`.
pub async fn keys(session: &Context, args: KeysArgs) -> Result<(), Failure> {
    run(session, MapKind::Key, args.action).await
}

/// Runs `nacre attr`.
pub async fn attr(session: &Context, args: AttrArgs) -> Result<(), Failure> {
    run(session, MapKind::Attribute, args.action).await
}

async fn run(session: &Context, kind: MapKind, action: Action) -> Result<(), Failure> {
    match action {
        Action::Get { place } => get(session, kind, place).await,
        Action::Set { place, value, conditions } => {
            let value = if value == "-" { read_value(kind)?.into() } else { value };
            let name = place.name.clone();
            let write = match kind {
                MapKind::Key => WriteOp::SetKey { key: name, value },
                MapKind::Attribute => WriteOp::SetAttribute { name, value },
            };
            change(session, kind, place, conditions, write, "set").await
        }
        Action::Rm { place, conditions } => {
            let name = place.name.clone();
            let write = match kind {
                MapKind::Key => WriteOp::RemoveKey { key: name },
                MapKind::Attribute => WriteOp::RemoveAttribute { name },
            };
            change(session, kind, place, conditions, write, "removed").await
        }
        Action::Ls { object, prefix, after, limit } => {
            let object = session.open()?.object(&object)?;
            session::existing(&object).await?;
            let limit = limit.unwrap_or(u64::MAX);
            list(session, kind, &object, prefix, after, limit).await
        }
    }
}

async fn get(session: &Context, kind: MapKind, place: KeyArgs) -> Result<(), Failure> {
    let object = session.open()?.object(&place.object)?;
    let value = match kind {
        MapKind::Key => object.key(&place.name).await?,
        MapKind::Attribute => object.attribute(&place.name).await?,
    };
    match value {
        None => {
            session::existing(&object).await?;
            Err(no_such(kind, &object, &place.name))
        }
        Some(value) if session.json => Ok(output::line(&entry(&place.name, &value).to_string())?),
        Some(value) => Ok(output::foreign(&value)?),
    }
}

fn no_such(kind: MapKind, object: &Object, name: &Key) -> Failure {
    let (noun, id, store) = (kind.noun(), object.id(), object.store().name());
    let command = if kind == MapKind::Key { "keys" } else { "attr" };
    Failure::Failed(format!(
        "object \"{id}\" of {store} has no {noun} \"{name}\"; \"nacre {command} ls\" lists those that it has"
    ))
}

/// Reads a value from standard input, up to the size that the store accepts.
fn read_value(kind: MapKind) -> Result<Vec<u8>, Failure> {
    let limit = match kind {
        MapKind::Key => limit::VALUE_BYTES_MAX,
        MapKind::Attribute => limit::ATTRIBUTE_BYTES_MAX,
    } as u64;
    let mut value = Vec::new();
    let read = std::io::stdin().lock().take(limit + 1).read_to_end(&mut value);
    read.map_err(Failure::io("read standard input"))?;
    if value.len() as u64 > limit {
        let text =
            format!("standard input holds more than the {} that a value may have", quantity::size(limit));
        return Err(Failure::Failed(text));
    }
    Ok(value)
}

async fn change(
    session: &Context,
    kind: MapKind,
    place: KeyArgs,
    conditions: Conditions,
    write: WriteOp,
    participle: &str,
) -> Result<(), Failure> {
    let removal = matches!(write, WriteOp::RemoveKey { .. } | WriteOp::RemoveAttribute { .. });
    let store = if removal { session.open()? } else { session.open_to_fill()? };
    let object = store.object(&place.object)?;
    let mut transaction = Transaction::new();
    if removal {
        transaction = transaction.guard(Guard::Exists);
        // Without a condition, a name to be removed must at least exist.
        if conditions.check().is_none() {
            transaction = transaction.guard(kind.guard(place.name.clone(), Check::Present));
        }
    }
    let conditional = conditions.check().is_some();
    if let Some(check) = conditions.check() {
        transaction = transaction.guard(kind.guard(place.name.clone(), check));
    }
    let attempted = format!("change {} \"{}\" of", kind.noun(), place.name);
    match session::apply(&object, transaction.change(write), &attempted).await? {
        Outcome::Done(done) => {
            match session.json {
                true => output::line(&json!({ "done": true, "version": done.version }).to_string())?,
                false => output::line(&done.version.to_string())?,
            }
            Ok(())
        }
        Outcome::Refused(Refusal { found: Found::Object { .. }, .. }) => {
            Err(session::no_such_object(&object))
        }
        Outcome::Refused(Refusal { found: Found::Value(value), version, .. }) => match conditional {
            true => Err(refused(kind, &object, &place.name, value, version, participle)),
            false => Err(no_such(kind, &object, &place.name)),
        },
        Outcome::Refused(_) => Err(session::nonsense(&object)),
    }
}

fn refused(
    kind: MapKind,
    object: &Object,
    name: &Key,
    value: Option<Bytes>,
    version: u64,
    participle: &str,
) -> Failure {
    let now = match &value {
        None => "it has no value".to_owned(),
        Some(value) => format!("its value now has {}", quantity::count(value.len() as u64, "byte")),
    };
    let sentence = format!(
        "{} \"{name}\" of object \"{}\" of {} was not {participle}, because its value does not meet the condition: {now}, at \
         version {version} of the object; get it again, then decide",
        kind.noun(),
        object.id(),
        object.store().name()
    );
    let mut json = Map::new();
    json.insert("done".into(), false.into());
    json.insert("version".into(), version.into());
    match &value {
        None => drop(json.insert("value".into(), Value::Null)),
        Some(value) => output::put_bytes(&mut json, "value", value),
    }
    Failure::Refused(Refused { sentence, current: version.to_string(), json: json.into() })
}

fn entry(name: &Key, value: &[u8]) -> Value {
    let mut map = Map::new();
    map.insert("name".into(), name.to_string().into());
    output::put_bytes(&mut map, "value", value);
    map.into()
}

/// The number of entries that are printed as one table.
const PAGE: usize = 1000;

async fn list(
    session: &Context,
    kind: MapKind,
    object: &Object,
    prefix: Bytes,
    after: Option<Key>,
    mut left: u64,
) -> Result<(), Failure> {
    let range = KeyRange { after: after.map(|key| key.to_bytes()), before: None, prefix };
    let mut array = if session.json { Some(Array::begin()?) } else { None };
    let mut keys = object.keys(range.clone());
    let mut attributes = match kind {
        MapKind::Key => Vec::new(),
        MapKind::Attribute => object.attributes().await?,
    }
    .into_iter()
    .filter(|(name, _)| range.contains(name.as_bytes()));
    loop {
        let mut page = Vec::new();
        while page.len() < PAGE && left > 0 {
            let next = match kind {
                MapKind::Key => keys.next().await?,
                MapKind::Attribute => attributes.next(),
            };
            let Some(next) = next else { break };
            page.push(next);
            left -= 1;
        }
        let whole = page.len() < PAGE;
        match &mut array {
            Some(array) => {
                for (name, value) in &page {
                    array.entry(&entry(name, value))?;
                }
            }
            None if page.is_empty() => {}
            None => {
                let mut table = Table::new(&["NAME", "BYTES", "VALUE"]);
                for (name, value) in &page {
                    table.row([name.to_string(), value.len().to_string(), brief(value)]);
                }
                table.print()?;
            }
        }
        if whole {
            break;
        }
    }
    if let Some(array) = array {
        array.end()?;
    }
    Ok(())
}

/// Returns the beginning of a value, as one line of text.
fn brief(value: &[u8]) -> String {
    const SHOWN: usize = 60;
    if value.len() <= SHOWN {
        return Escaped(value).to_string();
    }
    let mut cut = &value[..SHOWN];
    // A character is shown as a whole or not at all.
    if let Err(error) = std::str::from_utf8(cut)
        && error.error_len().is_none()
    {
        cut = &cut[..error.valid_up_to()];
    }
    format!("{}…", Escaped(cut))
}
