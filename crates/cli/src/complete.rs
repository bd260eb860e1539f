//! Completion of words of the command line by what is there: names of objects.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc;
use std::time::Duration;

use clap_complete::engine::{ArgValueCandidates, ArgValueCompleter, CompletionCandidate};
use nacre::{Engine, ObjectId, Store, Uri};
use nacre_planes::plane::PlaneKind;
use nacre_quantity::unescape;

use crate::session;

/// The environment variable by which a shell asks for completions. Others use `COMPLETE`, and mean something else.
pub const VARIABLE: &str = "NACRE_COMPLETE";
/// The longest time for which a store is asked. A shell waits meanwhile.
const PATIENCE: Duration = Duration::from_millis(500);
/// The maximum number of names that are offered.
const NAMES_MAX: usize = 200;

/// Returns the completer of an object's name: those in the store that the command line or the environment names. Nothing is
/// offered if it is not on servers, because opening a folder would keep others from it, or does not answer at once.
pub fn objects() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let Ok(prefix) = unescape(current.as_bytes()) else { return Vec::new() };
        let words: Vec<OsString> = std::env::args_os().collect();
        let (send, receive) = mpsc::channel();
        // The thread ends with the program.
        std::thread::spawn(move || send.send(names(&words, &prefix)));
        let found = receive.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default();
        found.iter().map(|id| CompletionCandidate::new(id.to_string())).collect()
    })
}

/// Returns the completer of a plane's name.
pub fn planes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let names = PlaneKind::ALL.into_iter().map(PlaneKind::name);
        names.chain(["auto"]).map(CompletionCandidate::new).collect()
    })
}

/// Returns the names of the store's objects that begin with `prefix`; `None` if they cannot be had.
fn names(words: &[OsString], prefix: &[u8]) -> Option<Vec<ObjectId>> {
    let flag = |flag: &str| {
        let at = words.iter().position(|word| word == flag).map(|at| at + 1);
        let joined = format!("{flag}=");
        let value = |word: &OsString| {
            word.as_bytes().strip_prefix(joined.as_bytes()).map(|value| OsStr::from_bytes(value).to_owned())
        };
        at.and_then(|at| words.get(at).cloned()).or_else(|| words.iter().find_map(value))
    };
    let uri = flag("--store").unwrap_or_else(session::default_uri);
    let mut uri = Uri::from_os_str(&uri).ok()?;
    if !matches!(uri.engine, Engine::Servers(_)) {
        return None;
    }
    let key = flag("--key").or_else(|| std::env::var_os("NACRE_KEY"));
    uri.options.key = uri.options.key.take().or(key.map(Into::into));
    let store = Store::open_apart(&uri).ok()?.blocking();
    // The first name with a prefix may be the prefix itself, so the list begins before it.
    let before = match prefix.split_last() {
        Some((last, front)) if *last > 0 => [front, &[last - 1], &[0xff][..]].concat(),
        _ => Vec::new(),
    };
    let objects = match ObjectId::new(before) {
        Ok(before) => store.list_after(before),
        Err(_) => store.list(),
    };
    let mut found = Vec::new();
    for id in objects {
        let id = id.ok()?;
        if id.as_bytes().starts_with(prefix) {
            found.extend(Some(id).filter(|id| is_plain(&id.to_string())));
        } else if id.as_bytes() > prefix {
            break;
        }
        if found.len() == NAMES_MAX {
            break;
        }
    }
    Some(found)
}

/// Returns whether a name is no more than a name to a shell, which puts it into the command line as it is. Whoever may make objects
/// names them, and `$(…)` or a flag among the names would be carried out with the line.
fn is_plain(name: &str) -> bool {
    let plain = |letter: char| letter.is_alphanumeric() || "._/:@%+=,-".contains(letter);
    !name.starts_with(['-', '=', '%', '+']) && name.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn names_that_a_shell_would_carry_out_are_not_offered() {
        for name in ["a", "run-7/rank=3.dat", "größe", "a:b@c", "x,y%20+z"] {
            assert!(is_plain(name), "{name}");
        }
        for name in [
            "--force", "=ls", "$(id)", "a;id", "a b", "`id`", "a|b", "a>b", "~", "a*", "a\\nb", "a'b", "!1",
            "a&",
        ] {
            assert!(!is_plain(name), "{name}");
        }
    }
}
