//! Names of objects, forks, keys and attributes. All are byte strings; programs usually use UTF-8.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use bytes::Bytes;
use nacre_quantity::Escaped;

use crate::limit::{FORK_NAME_BYTES_MAX, KEY_BYTES_MAX, OBJECT_ID_BYTES_MAX};
use crate::{ErrorKind, StoreError};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $subject:literal, $range:expr) => {
        $(#[$doc])*
        #[derive(Clone)]
        pub struct $name(Bytes);

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.0.len() == other.0.len() && self.cmp(other) == Ordering::Equal
            }
        }

        impl Eq for $name {}

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                // An empty `Bytes` points nowhere, where the vector instructions of `memcmp` take some 200 ns.
                if self.0.is_empty() || other.0.is_empty() {
                    return self.0.len().cmp(&other.0.len());
                }
                self.0.cmp(&other.0)
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Creates the name from bytes.
            ///
            /// # Errors
            /// [`ErrorKind::Invalid`] if their number is not allowed.
            pub fn new(bytes: impl Into<Bytes>) -> Result<Self, StoreError> {
                let bytes = bytes.into();
                if $range.contains(&bytes.len()) {
                    return Ok(Self(bytes));
                }
                let text = format!(
                    concat!($subject, " is {} bytes long; it must be {} to {} bytes"),
                    bytes.len(), $range.start(), $range.end(),
                );
                Err(StoreError::new(ErrorKind::Invalid, text))
            }

            /// Returns the name's bytes.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }

            /// Returns the name's bytes, shared rather than copied.
            pub fn to_bytes(&self) -> Bytes {
                self.0.clone()
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                &self.0
            }
        }

        impl std::borrow::Borrow<[u8]> for $name {
            fn borrow(&self) -> &[u8] {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = StoreError;
            fn try_from(text: &str) -> Result<Self, StoreError> {
                Self::new(Bytes::copy_from_slice(text.as_bytes()))
            }
        }

        impl std::str::FromStr for $name {
            type Err = StoreError;
            fn from_str(text: &str) -> Result<Self, StoreError> {
                Self::try_from(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&Escaped(&self.0), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"")?;
                fmt::Display::fmt(&Escaped(&self.0), f)?;
                f.write_str("\"")
            }
        }
    };
}

name! {
    /// The name of an object: 1 to 255 bytes.
    ObjectId, "object id", (1..=OBJECT_ID_BYTES_MAX)
}
name! {
    /// The name of a fork of an object: 0 to 255 bytes. The empty name is the default fork.
    Fork, "fork name", (0..=FORK_NAME_BYTES_MAX)
}
name! {
    /// The name of a key or an attribute of an object: 1 to 1024 bytes, ordered bytewise.
    Key, "key", (1..=KEY_BYTES_MAX)
}

impl ObjectId {
    /// The beginning of the names of the objects in which Nacre's own services keep what they know.
    pub const SERVICES: &str = "nacre/";

    /// Returns whether stores remember the object for ever after its removal. Nacre's own services tell by that what was removed from
    /// what never was: a file that somebody else is about to make for the first time, say.
    pub fn is_remembered(&self) -> bool {
        self.0.starts_with(Self::SERVICES.as_bytes())
    }
}

impl Fork {
    /// The default, unnamed fork.
    pub const DEFAULT: Fork = Fork(Bytes::new());
}

impl Default for Fork {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_bounded() {
        assert!(ObjectId::new("").is_err());
        assert!(ObjectId::new(vec![b'a'; 255]).is_ok());
        let error = ObjectId::new(vec![b'a'; 256]).unwrap_err();
        assert_eq!(error.to_string(), "object id is 256 bytes long; it must be 1 to 255 bytes");
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(Fork::new("").is_ok());
        assert!(Fork::new(vec![0; 256]).is_err());
        assert!(Key::new("").is_err());
        assert!(Key::new(vec![0; 1025]).is_err());
    }

    #[test]
    fn unprintable_bytes_are_escaped() {
        let id = ObjectId::new(&b"a\\b\n\xffz\xc3\xa9"[..]).unwrap();
        assert_eq!(id.to_string(), "a\\\\b\\x0a\\xffzé");
    }
}
