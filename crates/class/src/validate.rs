//! The check of a class before it is installed.

use std::sync::Arc;

use bytes::Bytes;

use crate::bounds::Bounds;
use crate::call::{Call, View};
use crate::catalogue::{Catalogue, Class, METHODS_MAX, Method, TEXT_BYTES_MAX, check_name};
use crate::error::ClassError;
use crate::runtime::Runtime;
use crate::vm::{Ended, Fatal};

/// Checks a class: its name, that its text compiles under Lua 5.3 and 5.4, that it can be run, and that it registers
/// methods. Returns the class, at version 0.
///
/// # Errors
///
/// [`ClassError::Refused`] with the reason.
pub fn validate(runtime: &Runtime, name: &str, text: Bytes, bounds: Bounds) -> Result<Class, ClassError> {
    let refused = |reason: String| ClassError::Refused { name: name.to_owned(), reason };
    check_name(name).map_err(refused)?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(refused(format!("its text is {} bytes long; the limit is {TEXT_BYTES_MAX}", text.len())));
    }
    sound(runtime, name, text, bounds)
}

/// Checks the text of a class, of any length. Returns the class, at version 0.
pub(crate) fn sound(runtime: &Runtime, name: &str, text: Bytes, bounds: Bounds) -> Result<Class, ClassError> {
    let refused = |reason: String| ClassError::Refused { name: name.to_owned(), reason };
    if text.first() == Some(&0x1b) {
        return Err(refused("it is bytecode; only texts are accepted".to_owned()));
    }
    if let Some(line) = attribute_line(&text) {
        let text =
            "variables with attributes (<const>, <close>) are not in Lua 5.3, which Ceph's servers run";
        return Err(refused(format!("line {line}: {text}")));
    }
    let mut class = Class::new(name.to_owned(), 0, text, Vec::new(), bounds);
    let (ended, found) = runtime.machines().with(|vm| {
        let call = Call::new(View::default(), Arc::new(Catalogue::default()));
        let done = vm.inspect(call, &class, &class.bounds);
        let keep = !matches!(done.0, Ended::Fatal(_));
        (done, keep)
    });
    match ended {
        Ended::Returned(_) => {}
        Ended::Failed(_, message) => return Err(refused(message)),
        Ended::Fatal(Fatal::Bound(bound)) => {
            return Err(refused(format!("its text does not end: {}", bound.sentence(&class.bounds))));
        }
        Ended::Fatal(Fatal::Missing) => {
            return Err(refused("its text reads the object while it is loaded; only methods can".to_owned()));
        }
        Ended::Fatal(Fatal::Panic(text)) => return Err(refused(format!("a bug in the runtime: {text}"))),
    }
    let methods: Vec<Method> = found
        .chunks_exact(5)
        .map(|field| Method {
            name: field[0].clone(),
            writes: field[1] == "write",
            about: field[2].clone(),
            input: field[3].clone(),
            output: field[4].clone(),
        })
        .collect();
    if methods.is_empty() {
        return Err(refused(
            "it registers no method: call objclass.register(f) for each global function that is to be one"
                .to_owned(),
        ));
    }
    if methods.len() > METHODS_MAX {
        return Err(refused(format!("it has {} methods; the limit is {METHODS_MAX}", methods.len())));
    }
    class.methods = methods;
    Ok(class)
}

/// Returns the line of the first variable with an attribute: `local`, a name, and `<`, outside of strings and comments.
fn attribute_line(text: &[u8]) -> Option<usize> {
    let line_of = |at: usize| text[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    // True behind `local` and the names and commas after it.
    let mut declares = false;
    let mut named = false;
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        match rest[0] {
            byte if byte.is_ascii_whitespace() => at += 1,
            b'-' if rest.starts_with(b"--") => {
                at += match long_bracket(&rest[2..]) {
                    Some(len) => 2 + len,
                    None => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
                };
            }
            b'[' if long_bracket(rest).is_some() => {
                at += long_bracket(rest).unwrap_or(1);
                (declares, named) = (false, false);
            }
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < text.len() && text[at] != quote {
                    at += if text[at] == b'\\' { 2 } else { 1 };
                }
                at += 1;
                (declares, named) = (false, false);
            }
            byte if is_name(byte) => {
                let len = rest.iter().position(|byte| !is_name(*byte)).unwrap_or(rest.len());
                (declares, named) = match &rest[..len] {
                    b"local" => (true, false),
                    b"function" => (false, false),
                    _ => (declares && !named, declares && !named),
                };
                at += len;
            }
            b'<' if declares && named => return Some(line_of(at)),
            b',' if declares => {
                named = false;
                at += 1;
            }
            _ => {
                (declares, named) = (false, false);
                at += 1;
            }
        }
    }
    None
}

/// Returns the length of a long bracket (`[[…]]`, `[=[…]=]`) at the beginning of a text; to its end if it is not closed.
fn long_bracket(text: &[u8]) -> Option<usize> {
    let level = text.strip_prefix(b"[")?.iter().take_while(|byte| **byte == b'=').count();
    if text.get(1 + level) != Some(&b'[') {
        return None;
    }
    let close = [&b"]"[..], &vec![b'='; level], b"]"].concat();
    let start = 2 + level;
    let end = text[start..].windows(close.len()).position(|window| window == close);
    Some(end.map_or(text.len(), |end| start + end + close.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_outside_of_strings_and_comments() {
        assert_eq!(attribute_line(b"local x <const> = 1"), Some(1));
        assert_eq!(attribute_line(b"local y = 1\nlocal a, b\t<close> = nil, f()"), Some(2));
        assert_eq!(attribute_line(b"local a, b = 1, 2 if a <b then end"), None);
        assert_eq!(attribute_line(b"local a = b < c"), None);
        assert_eq!(
            attribute_line(b"-- local x <const>\n--[[ local x <const> ]] local y = 'local z <close>'"),
            None
        );
        assert_eq!(attribute_line(b"local s = [==[\nlocal x <const>]==] s = s"), None);
        assert_eq!(attribute_line(b"local function f() end f = 1 < 2"), None);
        assert_eq!(attribute_line(b"--[[ not closed"), None);
        assert_eq!(attribute_line(b"local x = '\\"), None);
    }
}
