//! The mapping of Nacre's names, which are any bytes, to names of RADOS objects and keys of an omap, which must hold no
//! zero byte.
//!
//! Objects are named `nacre.` and the id, with everything but plain ASCII as `%XX`, so that `rados ls` is readable and
//! other objects in the pool are told apart. Keys are escaped so that their order is preserved: 00 becomes 01 02, and
//! 01 becomes 01 03. Since no escape begins like 01 01, that ends a fork's name inside a key.

use std::ffi::CString;

use bytes::Bytes;
use nacre_object::ObjectId;

/// The prefix of the name of every RADOS object of Nacre's.
pub(crate) const OBJECT_PREFIX: &str = "nacre.";

/// Returns the name of an object's RADOS object.
pub(crate) fn object_name(id: &ObjectId) -> CString {
    let mut name = String::with_capacity(OBJECT_PREFIX.len() + id.as_bytes().len());
    name.push_str(OBJECT_PREFIX);
    for &byte in id.as_bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            name.push(char::from(byte));
        } else {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    // A zero byte is not graphic, so there is none: the conversion cannot fail.
    CString::new(name).unwrap_or_default()
}

/// Returns the object of a RADOS object, if it is one of Nacre's.
pub(crate) fn object_id(name: &[u8]) -> Option<ObjectId> {
    let mut rest = name.strip_prefix(OBJECT_PREFIX.as_bytes())?;
    let mut id = Vec::with_capacity(rest.len());
    while let Some((&first, after)) = rest.split_first() {
        if first != b'%' {
            id.push(first);
            rest = after;
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        id.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    let id = ObjectId::new(id).ok()?;
    // Only the one spelling that we make ourselves: two objects never share an id.
    (object_name(&id).as_bytes() == name).then_some(id)
}

/// Appends the escaped form of a name.
pub(crate) fn escape_into(name: &[u8], out: &mut Vec<u8>) {
    for &byte in name {
        match byte {
            0 => out.extend([1, 2]),
            1 => out.extend([1, 3]),
            byte => out.push(byte),
        }
    }
}

/// Returns the key of the omap for a name: a letter, if any, and the escaped name.
pub(crate) fn keyed(letter: Option<u8>, name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    out.extend(letter);
    escape_into(name, &mut out);
    out
}

/// Returns the key of the extent that ends before `end`, of the fork with a stem.
pub(crate) fn extent_key(stem: &[u8], end: u64) -> Vec<u8> {
    let mut key = extent_prefix(stem);
    key.extend(format!("{end:016x}").bytes());
    key
}

/// Returns the prefix of the keys of all extents of the fork with a stem. A stem is escaped already.
pub(crate) fn extent_prefix(stem: &[u8]) -> Vec<u8> {
    [b"x", stem, &[1, 1]].concat()
}

/// Returns the place from which a walk over an omap goes on behind a key. Somebody else's key may hold a zero byte, which ends
/// the place of librados: then it is behind all keys that begin like that one up to there, none of which is Nacre's.
pub(crate) fn behind(key: &[u8]) -> CString {
    let (place, foreign) = match key.iter().position(|byte| *byte == 0) {
        Some(zero) => (&key[..zero], &b"\x01"[..]),
        None => (key, &b""[..]),
    };
    // There is no zero byte left: the conversion cannot fail.
    CString::new([place, foreign].concat()).unwrap_or_default()
}

/// Returns the name that was escaped; `None` if [`escape_into`] does not make this text.
pub(crate) fn unescaped(text: &[u8]) -> Option<Bytes> {
    let mut name = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        name.push(match byte {
            0 => return None,
            1 => match bytes.next() {
                Some(2) => 0,
                Some(3) => 1,
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn escaped(name: &[u8]) -> Vec<u8> {
        keyed(None, name)
    }

    #[test]
    fn object_names_are_their_own_inverse_and_readable() {
        for id in [&b"plain/name-1"[..], b"\0\x01\xff %41", "größe".as_bytes(), &[0; 255], b"%"] {
            let id = ObjectId::new(id.to_vec()).unwrap();
            let name = object_name(&id);
            assert_eq!(object_id(name.as_bytes()).as_ref(), Some(&id), "{name:?}");
        }
        assert_eq!(object_name(&"a b".try_into().unwrap()).to_str().unwrap(), "nacre.a%20b");
    }

    #[test]
    fn foreign_names_are_no_objects() {
        for name in [
            &b"rbd_header.1"[..],
            b"nacre.",
            b"nacre.%4",
            b"nacre.%zz",
            b"nacre.%41",
            b"nacre.%ff",
            b"nacre. ",
        ] {
            assert_eq!(object_id(name), None, "{}", String::from_utf8_lossy(name));
        }
    }

    #[test]
    fn a_walk_goes_on_behind_every_key() {
        let keys = [&b"n"[..], b"n\0", b"n\0\0a", b"n\x01\x02", b"na", b"na\0", b"nb"];
        for pair in keys.windows(2) {
            let place = behind(pair[0]);
            assert!(place.as_bytes() >= pair[0], "{pair:?}");
            assert!(pair[1].contains(&0) || place.as_bytes() < pair[1], "{pair:?}");
        }
    }

    #[test]
    fn escaping_keeps_order_and_is_undone() {
        let names: Vec<Vec<u8>> = vec![
            vec![],
            vec![0],
            vec![0, 0],
            vec![0, 255],
            vec![1],
            vec![1, 0],
            vec![1, 1],
            vec![1, 2],
            vec![2],
            vec![255],
        ];
        for pair in names.windows(2) {
            assert!(escaped(&pair[0]) < escaped(&pair[1]), "{pair:?}");
            let (last, first) = (escaped(&pair[0]), escaped(&pair[1]));
            assert!(extent_key(&last, u64::MAX >> 1) < extent_key(&first, 0), "{pair:?}");
        }
        for name in &names {
            assert!(!escaped(name).contains(&0));
            assert_eq!(unescaped(&escaped(name)).unwrap(), name);
        }
        assert_eq!(unescaped(&[1, 1]), None);
        assert_eq!(unescaped(&[1]), None);
        assert_eq!(unescaped(&[0]), None);
    }
}
