//! `nacre remove --from`: the removal of what an earlier list names.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::Ordering;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nacre_quantity::Escaped;
use nacre_tree::listed::{Listed, ListedRemoval};
use nacre_tree::remove::default_threads;
use nacre_walk::FileKind;
use serde_json::{Map, Value, json};

use crate::command::remove::{Args, complain, entries, failure_json};
use crate::failure::Failure;
use crate::session::Context;
use crate::{interrupt, output, quantity};

/// The maximum length of a line.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Runs `nacre remove --from`.
pub fn run(session: &Context, args: &Args, from: &Path) -> Result<(), Failure> {
    if !args.yes && !args.dry_run {
        let text = "nothing was removed: removing a list needs --yes; check first with --dry-run";
        return Err(Failure::Usage(text.into()));
    }
    let selection = args.filters.selection(nacre_walk_cli::now()).map_err(Failure::Usage)?;
    let filter = args.filters.is_given().then_some(&selection.filter);
    let source: Box<dyn Read + Send> = match from.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(from).map_err(|error| {
            Failure::Usage(format!("cannot read the list \"{}\": {error}", Escaped::of(from)))
        })?),
    };
    let mut lines = Lines { source: BufReader::new(source), number: 0, line: Vec::new() };
    let threads = args.threads.unwrap_or_else(default_threads);
    let removal = ListedRemoval::default();
    let done = interrupt::stopping(
        || removal.control.stop(),
        || removal.run(threads, filter, args.dry_run, || lines.next()),
    )?;
    report(session, args, &removal)?;
    done.map_err(|reason| {
        Failure::Failed(format!("line {} of \"{}\": {reason}", lines.number, Escaped::of(from)))
    })?;
    if removal.control.is_stopped() {
        return Err(Failure::Failed("interrupted; run the same command again to continue".into()));
    }
    match removal.failures.count() {
        0 => Ok(()),
        failures => {
            complain(&removal.failures);
            let kept = quantity::count(failures, "listed path");
            Err(Failure::Failed(format!("not removed: {kept}")))
        }
    }
}

fn report(session: &Context, args: &Args, removal: &ListedRemoval) -> Result<(), Failure> {
    let count = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    let (removed, bytes) = (count(&removal.removed), count(&removal.bytes));
    let (vanished, passed) = (count(&removal.vanished), count(&removal.passed));
    if session.json {
        let errors: Vec<Value> = removal.failures.first().iter().map(failure_json).collect();
        let json = json!({
            "dry_run": args.dry_run, "removed": removed, "bytes": bytes, "vanished": vanished, "not_selected": passed,
            "errors": removal.failures.count(), "first_errors": errors, "interrupted": removal.control.is_stopped(),
        });
        return Ok(output::line(&json.to_string())?);
    }
    let mut line = match args.dry_run {
        true => format!("would remove {} of {}", entries(removed), quantity::size(bytes)),
        false => format!("{} of {} removed", entries(removed), quantity::size(bytes)),
    };
    if vanished > 0 {
        line += &format!(", {} gone already", quantity::grouped(vanished));
    }
    if passed > 0 {
        line += &format!(", {} not selected", quantity::grouped(passed));
    }
    Ok(output::line(&line)?)
}

/// The entries of a list, one on each line.
struct Lines {
    source: BufReader<Box<dyn Read + Send>>,
    number: u64,
    line: Vec<u8>,
}

impl Lines {
    fn next(&mut self) -> Option<Result<Listed, String>> {
        loop {
            self.line.clear();
            self.number += 1;
            match (&mut self.source).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line) {
                Err(error) => return Some(Err(format!("it cannot be read: {error}"))),
                Ok(0) => return None,
                Ok(_) if self.line.trim_ascii().is_empty() => {}
                Ok(length) if length as u64 == LINE_BYTES_MAX => return Some(Err("it is too long".into())),
                Ok(_) => return Some(parse(&self.line)),
            }
        }
    }
}

/// Reads an entry of a list.
fn parse(line: &[u8]) -> Result<Listed, String> {
    let object: Map<String, Value> =
        serde_json::from_slice(line).map_err(|_| "it is not a JSON object".to_owned())?;
    let number = |key: &str| object.get(key).filter(|value| !value.is_null());
    // SQL has no numbers beyond 2^63: those are negative there.
    let unsigned = |key: &str| {
        let bits = |value: &Value| value.as_u64().or_else(|| value.as_i64().map(|number| number as u64));
        number(key).map(|value| bits(value).ok_or(format!("{key:?} is not a whole number"))).transpose()
    };
    if object.contains_key("error") {
        return Err("it is an error, not an entry".into());
    }
    let path = match (object.get("path_base64"), object.get("path")) {
        (Some(coded), _) => coded.as_str().and_then(|coded| STANDARD.decode(coded).ok()),
        (None, path) => path.and_then(Value::as_str).map(|path| path.as_bytes().to_vec()),
    };
    let time = |key: &str| match number(key) {
        None => Ok(None),
        // A query gives whole nanoseconds, a walk seconds with a fraction, which are as exact as such numbers are.
        Some(Value::Number(time)) if time.is_f64() => {
            Ok(time.as_f64().map(|seconds| ((seconds * 1e9) as i128, 1_000)))
        }
        Some(time) => match time.as_i64() {
            Some(time) => Ok(Some((i128::from(time), 0))),
            None => Err(format!("{key:?} is not a number")),
        },
    };
    let path = path.filter(|path| !path.is_empty()).ok_or("it has no path")?;
    let inode = unsigned("inode")?.ok_or("it has no inode, which identifies the entry")?;
    let (size, modified_ns, changed_ns) = (unsigned("size")?, time("mtime")?, time("ctime")?);
    if changed_ns.is_none() && (modified_ns.is_none() || size.is_none()) {
        let text = "it has neither \"ctime\" nor both \"mtime\" and \"size\"; by the inode alone a new file could be taken \
                    for the listed one, as numbers of inodes are used again";
        return Err(text.into());
    }
    Ok(Listed {
        path,
        inode,
        device: unsigned("device")?,
        kind: object.get("type").and_then(Value::as_str).map(kind).transpose()?,
        size,
        modified_ns,
        changed_ns,
    })
}

fn kind(word: &str) -> Result<FileKind, String> {
    Ok(match word {
        "f" | "file" => FileKind::File,
        "d" | "directory" => FileKind::Directory,
        "l" | "link" => FileKind::Link,
        "p" | "pipe" => FileKind::Pipe,
        "s" | "socket" => FileKind::Socket,
        "c" | "character-device" => FileKind::CharacterDevice,
        "b" | "block-device" => FileKind::BlockDevice,
        word => return Err(format!("\"{}\" is not a type", Escaped::of(word))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_wrong_ones_are_refused() {
        let listed =
            parse(br#"{"path":"a\nb","type":"f","size":3,"mtime":1700000000123456789,"device":5,"inode":7}"#);
        let expected = Listed {
            path: b"a\nb".to_vec(),
            inode: 7,
            device: Some(5),
            kind: Some(FileKind::File),
            size: Some(3),
            modified_ns: Some((1_700_000_000_123_456_789, 0)),
            changed_ns: None,
        };
        assert_eq!(listed, Ok(expected));
        assert_eq!(
            parse(br#"{"path_base64":"/w==","path":"x","inode":-1,"ctime":1}"#).unwrap().path,
            b"\xff"
        );
        for wrong in [
            &b"a"[..],
            b"[]",
            b"{}",
            br#"{"path":"a"}"#,
            br#"{"path":"a","inode":1.5,"ctime":1}"#,
            br#"{"path":"","inode":1,"ctime":1}"#,
            br#"{"path":"a","inode":1,"ctime":1,"type":"x"}"#,
            br#"{"path":"a","inode":1,"ctime":1,"mtime":"x"}"#,
            br#"{"path":"a","error":"stat","inode":1,"ctime":1}"#,
            br#"{"path":"a","inode":1}"#,
            br#"{"path":"a","inode":1,"size":1}"#,
            br#"{"path":"a","inode":1,"mtime":1}"#,
            br#"{"path":"a","inode":1,"ctime":null,"mtime":1}"#,
            br#"{"path":"a","inode":1,"ctime":"x","mtime":1,"size":1}"#,
        ] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }
}
