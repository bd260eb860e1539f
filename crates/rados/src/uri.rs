//! The location of a store: `rados://POOL?conf=FILE&id=USER&keyring=FILE&ns=NAMESPACE&timeout_ms=MILLISECONDS`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use nacre_object::{ErrorKind, StoreError};

/// The timeout of an operation unless the uri gives one: longer than a stock cluster needs to notice that an OSD is
/// gone.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The time between two looks at a watched object unless the uri gives one.
const WATCH_POLL: Duration = Duration::from_secs(1);

/// A pool of a Ceph cluster, with the parameters of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The pool.
    pub pool: String,
    /// The configuration file; Ceph's own search path if there is none.
    pub conf: Option<String>,
    /// The user, without `client.`; `admin` by default.
    pub id: String,
    /// The file with the user's key, if the configuration does not name it.
    pub keyring: Option<String>,
    /// The namespace within the pool: stores in different ones do not see each other.
    pub namespace: String,
    /// The timeout of an operation; librados counts it in whole seconds, rounded up.
    pub timeout: Duration,
    /// True if clients of this process that race for a region take turns: `pacing=off` lets them race.
    pub pacing: bool,
    /// True if RADOS' own operations are used where they suffice: `native=off` makes everything a call of the class,
    /// which is slower, and equal in all else. For tests and for measuring.
    pub native: bool,
    /// The time between two looks at the version of a watched object, for changes that their writers did not announce.
    pub watch_poll: Duration,
    /// True if this client announces its changes of watched objects: `announce=off` leaves them to the looks of the
    /// watchers. For tests and for measuring.
    pub announce: bool,
}

impl Location {
    /// Creates the location of a pool, with the defaults for everything else.
    pub fn new(pool: impl Into<String>) -> Self {
        Self {
            pool: pool.into(),
            conf: None,
            id: "admin".into(),
            keyring: None,
            namespace: String::new(),
            timeout: TIMEOUT,
            pacing: true,
            native: true,
            watch_poll: WATCH_POLL,
            announce: true,
        }
    }

    /// Parses a uri; [`ErrorKind::Invalid`] if it is malformed.
    pub fn parse(uri: &str) -> Result<Self, StoreError> {
        let invalid = |why: &str| {
            let form = "rados://POOL?conf=FILE&id=USER&keyring=FILE&ns=NAMESPACE&timeout_ms=MILLISECONDS";
            StoreError::new(
                ErrorKind::Invalid,
                format!("{uri}: {why}; a pool of a Ceph cluster is written {form}"),
            )
        };
        let rest = uri.strip_prefix("rados://").ok_or_else(|| invalid("it does not begin with rados://"))?;
        let (pool, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pool =
            decoded(pool.trim_end_matches('/')).ok_or_else(|| invalid("the pool's name is not text"))?;
        if pool.is_empty() {
            return Err(invalid("there is no pool"));
        }
        let mut location = Self::new(pool);
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| invalid(&format!("\"{part}\" has no value")))?;
            let value = decoded(value).ok_or_else(|| invalid(&format!("the value of {name} is not text")))?;
            match name {
                "conf" => location.conf = Some(value),
                "id" => location.id = value,
                "keyring" => location.keyring = Some(value),
                "ns" => location.namespace = value,
                "timeout_ms" | "watch_poll_ms" => {
                    let ms = value.parse().ok().filter(|ms| (1..=86_400_000).contains(ms));
                    let ms =
                        ms.ok_or_else(|| invalid(&format!("{name} is not a number from 1 to 86400000")))?;
                    let time = match name {
                        "timeout_ms" => &mut location.timeout,
                        _ => &mut location.watch_poll,
                    };
                    *time = Duration::from_millis(ms);
                }
                "pacing" | "native" | "announce" => {
                    let on = match &value[..] {
                        "on" => true,
                        "off" => false,
                        _ => return Err(invalid(&format!("{name} is neither on nor off"))),
                    };
                    let switch = match name {
                        "pacing" => &mut location.pacing,
                        "native" => &mut location.native,
                        _ => &mut location.announce,
                    };
                    *switch = on;
                }
                _ => return Err(invalid(&format!("nothing is called \"{name}\""))),
            }
        }
        Ok(location)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rados://{}", encoded(&self.pool))?;
        let standard = Self::new("");
        let timeout_ms = (self.timeout != standard.timeout).then(|| self.timeout.as_millis().to_string());
        let watch_poll_ms =
            (self.watch_poll != standard.watch_poll).then(|| self.watch_poll.as_millis().to_string());
        let parameters = [
            ("conf", self.conf.clone()),
            ("id", (self.id != standard.id).then(|| self.id.clone())),
            ("keyring", self.keyring.clone()),
            ("ns", (!self.namespace.is_empty()).then(|| self.namespace.clone())),
            ("timeout_ms", timeout_ms),
            ("pacing", (!self.pacing).then(|| "off".to_string())),
            ("native", (!self.native).then(|| "off".to_string())),
            ("watch_poll_ms", watch_poll_ms),
            ("announce", (!self.announce).then(|| "off".to_string())),
        ];
        let given = parameters.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
        for (index, (name, value)) in given.enumerate() {
            write!(f, "{}{name}={}", if index == 0 { '?' } else { '&' }, encoded(&value))?;
        }
        Ok(())
    }
}

impl FromStr for Location {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        Self::parse(text)
    }
}

/// Encodes as `%XX` the characters that would end a value, or have a meaning of their own.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if c.is_control() || matches!(c, ' ' | '%' | '&' | '?' | '#') {
            let mut buffer = [0; 4];
            out.extend(c.encode_utf8(&mut buffer).bytes().map(|byte| format!("%{byte:02X}")));
        } else {
            out.push(c);
        }
    }
    out
}

/// Decodes `%XX`. Zero bytes end strings in C, so there can be none.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read() {
        let location =
            Location::parse("rados://my%20pool?conf=/etc/ceph/c.conf&id=nacre&ns=job-7&timeout_ms=1500")
                .unwrap();
        assert_eq!(location.pool, "my pool");
        assert_eq!(location.conf.as_deref(), Some("/etc/ceph/c.conf"));
        assert_eq!((location.id.as_str(), location.namespace.as_str()), ("nacre", "job-7"));
        assert_eq!(location.timeout, Duration::from_millis(1500));
        assert_eq!(Location::parse("rados://p").unwrap(), Location::new("p"));
        let text = "rados://my%20pool?conf=/etc/c.conf&id=nacre&keyring=/a%26b&ns=job-7&timeout_ms=1500&pacing=off&native=off";
        assert_eq!(Location::parse(text).unwrap().to_string(), text);
        let text = "rados://p?watch_poll_ms=250&announce=off";
        let location = Location::parse(text).unwrap();
        assert_eq!((location.watch_poll, location.announce), (Duration::from_millis(250), false));
        assert_eq!(location.to_string(), text);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (uri, why) in [
            ("rados://", "there is no pool"),
            ("rados://p?colour=red", "nothing is called \"colour\""),
            ("rados://p?conf", "\"conf\" has no value"),
            ("rados://p?timeout_ms=0", "timeout_ms is not a number"),
            ("rados://p%00", "the pool's name is not text"),
        ] {
            let error = Location::parse(uri).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(why), "{error}");
        }
    }
}
