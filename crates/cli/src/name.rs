//! Names of objects, forks, keys, attributes and logs as words of a command line.
//!
//! A name may consist of any bytes, and is typed as it is printed: with the escapes of `nacre_quantity::Escaped`.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use bytes::Bytes;
use clap::builder::{OsStringValueParser, TypedValueParser};
use nacre::{Fork, Key, ObjectId};
use nacre_quantity::{Escaped, unescape};

fn parser<T: Clone + Send + Sync + 'static>(
    make: impl Fn(Vec<u8>) -> Result<T, nacre::Error> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    OsStringValueParser::new()
        .try_map(move |word: OsString| make(unescape(word.as_bytes())?).map_err(|error| error.message))
}

/// Returns a parser of object ids.
pub fn object() -> impl TypedValueParser<Value = ObjectId> {
    parser(ObjectId::new)
}

/// Returns a parser of the names of files that are locked: names of objects in UTF-8.
pub fn file() -> impl TypedValueParser<Value = String> {
    parser(|bytes| {
        let file = ObjectId::new(bytes)?;
        String::from_utf8(file.as_bytes().to_vec()).map_err(|_| {
            let text = format!("\"{file}\" is not UTF-8, as the name of a file that is locked has to be");
            nacre::Error::new(nacre::ErrorKind::Invalid, text)
        })
    })
}

/// Returns a parser of the names of logs, which are in UTF-8.
pub fn log() -> impl TypedValueParser<Value = String> {
    parser(|bytes| {
        String::from_utf8(bytes).map_err(|error| {
            let text =
                format!("\"{}\" is not UTF-8, as the name of a log has to be", Escaped(error.as_bytes()));
            nacre::Error::new(nacre::ErrorKind::Invalid, text)
        })
    })
}

/// Returns a parser of the names of entries of maps.
pub fn entry() -> impl TypedValueParser<Value = Key> {
    parser(entry_name)
}

/// Checks the name of an entry of a map, which is shorter than other keys may be.
pub fn entry_name(bytes: Vec<u8>) -> Result<Key, nacre::Error> {
    let most = nacre::map::limit::ENTRY_NAME_BYTES_MAX;
    match bytes.len() {
        len if (1..=most).contains(&len) => Key::new(bytes),
        len => {
            let text = format!("the name of an entry has 1 to {most} bytes, and this one {len}");
            Err(nacre::Error::new(nacre::ErrorKind::Invalid, text))
        }
    }
}

/// Returns a parser of fork names.
pub fn fork() -> impl TypedValueParser<Value = Fork> {
    parser(Fork::new)
}

/// Returns a parser of the names of keys and attributes.
pub fn key() -> impl TypedValueParser<Value = Key> {
    parser(Key::new)
}

/// Returns a parser of prefixes of names, which may be empty.
pub fn prefix() -> impl TypedValueParser<Value = Bytes> {
    parser(|bytes| Ok(Bytes::from(bytes)))
}

/// Returns a parser of values, which are the word's bytes without changes.
pub fn value() -> impl TypedValueParser<Value = Bytes> {
    OsStringValueParser::new().map(|word| Bytes::from(word.into_vec()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn the_name_of_a_locked_file_is_that_of_its_object_and_utf_8() {
        let parse = |word: &[u8]| {
            let command = clap::Command::new("nacre").arg(clap::Arg::new("file").value_parser(file()));
            let words = [OsStr::new("nacre"), OsStr::from_bytes(word)];
            let matches = command.try_get_matches_from(words).map_err(|error| error.to_string())?;
            Ok(matches.get_one::<String>("file").unwrap().clone())
        };
        for typed in [&b"caf\\xc3\\xa9"[..], "café".as_bytes()] {
            assert_eq!(parse(typed), Ok::<_, String>("café".to_owned()));
        }
        assert_eq!(parse(b"a\\\\b\\x0a").unwrap(), "a\\b\n");
        for wrong in [&b"caf\\xc3"[..], b"caf\xc3"] {
            let said = parse(wrong).unwrap_err();
            assert!(said.contains("UTF-8") && said.contains("caf\\xc3"), "{said}");
        }
        assert!(parse(b"").is_err() && parse(&[b'x'; 256]).is_err());
    }
}
