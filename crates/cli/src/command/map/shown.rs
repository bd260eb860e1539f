//! The output of `nacre map`: entries, changes and epochs.

use bytes::Bytes;
use nacre::Key;
use nacre::map::{Change, Record, Space, State, Value as Entry};
use nacre_quantity::Escaped;
use serde_json::{Map as Object, Value, json};

use crate::failure::Failure;
use crate::output;
use crate::session::Context;

/// Adds an entry to a JSON object.
pub fn put_entry(fields: &mut Object<String, Value>, entry: &Entry) {
    output::put_bytes(fields, "value", &entry.value);
    fields.insert("version".to_owned(), entry.version.into());
    fields.insert("epoch".to_owned(), entry.epoch.into());
}

/// Returns an entry as JSON.
pub fn entry_json(name: &Key, entry: &Entry) -> Object<String, Value> {
    let mut fields = Object::new();
    fields.insert("entry".to_owned(), name.to_string().into());
    put_entry(&mut fields, entry);
    fields
}

/// Returns a change as JSON.
pub fn change_json(change: &Change) -> Value {
    let mut fields = Object::new();
    let name = if change.space == Space::Entry { "entry" } else { "setting" };
    fields.insert(name.to_owned(), change.name.to_string().into());
    fields.insert("version".to_owned(), change.version.into());
    match &change.new {
        Some(new) => output::put_bytes(&mut fields, "value", new),
        None => drop(fields.insert("removed".to_owned(), true.into())),
    }
    if let Some(old) = &change.old {
        output::put_bytes(&mut fields, "old_value", &old.value);
        fields.insert("old_version".to_owned(), old.version.into());
    }
    fields.into()
}

/// Prints the record of an epoch.
pub fn print_record(session: &Context, record: &Record) -> Result<(), Failure> {
    if session.json {
        let updates: Vec<Value> = record
            .updates
            .iter()
            .map(|update| {
                let changes: Vec<Value> = update.changes.iter().map(change_json).collect();
                json!({ "id": update.id.to_string(), "who": update.author, "changes": changes })
            })
            .collect();
        let (epoch, created_ms) = (record.epoch, record.created_ms);
        let line = json!({ "event": "epoch", "epoch": epoch, "made_ms": created_ms, "updates": updates });
        return Ok(output::line(&line.to_string())?);
    }
    for update in &record.updates {
        for change in &update.changes {
            let name = match change.space {
                Space::Entry => change.name.to_string(),
                Space::Setting => format!("setting {}", change.name),
            };
            // Texts of validators and the like are not for a line.
            let shown = |value: &Bytes| {
                if change.space == Space::Entry { Escaped(value).to_string() } else { "…".to_owned() }
            };
            let old = change.old.as_ref().map(|old| shown(&old.value));
            let description = match (&change.new, old) {
                (Some(new), None) => format!("{name} = {}", shown(new)),
                (Some(new), Some(old)) => format!("{name} = {}, was {old}", shown(new)),
                (None, old) => format!("{name} removed, was {}", old.unwrap_or_default()),
            };
            let author = Escaped::of(&update.author);
            output::line(&format!("epoch {}  {author}  {description}", record.epoch))?;
        }
    }
    Ok(())
}

/// Prints a whole map.
pub fn print_snapshot(session: &Context, state: &State) -> Result<(), Failure> {
    let entries = state.entries();
    if session.json {
        let list: Vec<Value> = entries.iter().map(|(name, entry)| entry_json(name, entry).into()).collect();
        let line = json!({ "event": "snapshot", "epoch": state.epoch(), "entries": list });
        return Ok(output::line(&line.to_string()).and_then(|()| output::flush())?);
    }
    let count = match entries.len() {
        1 => "1 entry".to_owned(),
        count => format!("{count} entries"),
    };
    output::line(&format!("epoch {}  as it is, {count}", state.epoch()))?;
    for (name, entry) in entries {
        output::line(&format!("epoch {}  {name} = {}", state.epoch(), Escaped(&entry.value)))?;
    }
    Ok(output::flush()?)
}
