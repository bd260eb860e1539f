//! Resources as words of a command line: each name is typed as elsewhere, and kept as it is printed.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser};
use nacre_balance::{Kind, Pattern, ResourceId};
use nacre_quantity::{Escaped, excerpt, unescape};

/// Returns a parser of resources.
pub fn resource() -> impl TypedValueParser<Value = ResourceId> {
    OsStringValueParser::new().try_map(|word: OsString| one(word.as_bytes()))
}

/// Returns a parser of resources, or of all of a kind.
pub fn pattern() -> impl TypedValueParser<Value = Pattern> {
    OsStringValueParser::new().try_map(|word: OsString| match word.as_bytes().strip_suffix(b":*") {
        Some(kind) => String::from_utf8_lossy(kind).parse().map(Pattern::All),
        None => one(word.as_bytes()).map(Pattern::One),
    })
}

fn one(word: &[u8]) -> Result<ResourceId, String> {
    let Some(at) = word.iter().position(|byte| *byte == b':') else {
        let word = excerpt(&String::from_utf8_lossy(word));
        return Err(format!("\"{word}\" is not KIND:NAME, such as sequencer:orders or subtree:/home"));
    };
    let kind: Kind = String::from_utf8_lossy(&word[..at]).parse()?;
    let name = &word[at + 1..];
    let name = match kind {
        Kind::Subtree => Cow::Owned(subtree(name)?),
        // As "nacre sequencer" takes it, with escapes.
        Kind::Sequencer => Cow::Owned(Escaped(&unescape(name)?).to_string()),
        Kind::Group => String::from_utf8_lossy(name),
    };
    ResourceId::new(kind, &name)
}

/// Returns the name of a subtree by its path, which is typed as it is, or by the object of its inode.
fn subtree(path: &[u8]) -> Result<String, String> {
    if path.starts_with(b"nacre/fs/i/") {
        return Ok(Escaped(path).to_string());
    }
    if !path.starts_with(b"/") {
        return Err("a subtree is named by its path from the root, such as subtree:/home".to_owned());
    }
    let mut name = String::new();
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".") {
        if part == b".." {
            return Err("a subtree is named by its path without \"..\"".to_owned());
        }
        name.push('/');
        name.push_str(&Escaped(part).to_string());
    }
    if name.is_empty() {
        name.push('/');
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_as_they_are_printed() {
        for (typed, kept) in [
            (&b"subtree:/a\nb"[..], "subtree:/a\\x0ab"),
            (b"subtree:/a\\b\xff", "subtree:/a\\\\b\\xff"),
            (b"subtree://home/./b/", "subtree:/home/b"),
            (b"subtree:/", "subtree:/"),
            (b"subtree:nacre/fs/i/0000000000000017", "subtree:nacre/fs/i/0000000000000017"),
            (b"sequencer:a\nb", "sequencer:a\\x0ab"),
            (b"sequencer:a\\x0ab", "sequencer:a\\x0ab"),
            (b"group:harbour", "group:harbour"),
        ] {
            let id = one(typed).unwrap();
            assert_eq!(id.to_string(), kept);
            // The map has the same form.
            assert_eq!(kept.parse::<ResourceId>().unwrap(), id);
        }
    }

    #[test]
    fn what_can_be_no_resource_is_refused() {
        for (typed, part) in [
            (&b"orders"[..], "KIND:NAME"),
            (b"lock:a", "kind of resource"),
            (b"subtree:home", "from the root"),
            (b"subtree:/a/../b", "without"),
            (b"sequencer:a\\q", "begins neither"),
            (b"sequencer:", "empty"),
        ] {
            let said = one(typed).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }
}
