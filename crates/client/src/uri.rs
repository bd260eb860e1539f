//! The location of a store, as text.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use nacre_object::{ErrorKind, Escaped, StoreError};
#[cfg(feature = "rados")]
use nacre_rados::Location;
use nacre_rpc::Address;

/// The location of a store, with options. Made by parsing text, or field by field.
///
/// ```
/// use nacre::{Durability, Engine, Uri};
///
/// let mut uri: Uri = "file:data?durability=50ms".parse()?;
/// assert_eq!(uri.engine, Engine::Folder("data".into()));
/// uri.options.durability = Some(Durability::None);
/// assert_eq!(uri.to_string(), "file:data?durability=none");
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The engine that keeps the objects.
    pub engine: Engine,
    /// The options of the store.
    pub options: Options,
}

/// The engine that keeps the objects.
///
/// ```
/// use nacre::{Engine, Uri};
///
/// assert_eq!("mem:".parse::<Uri>()?.engine, Engine::Memory);
/// let Engine::Servers(servers) = "nacre://one,two".parse::<Uri>()?.engine else { panic!("it is another engine") };
/// assert_eq!(servers.len(), 2);
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Engine {
    /// `mem:`, this process's memory.
    Memory,
    /// `file:PATH`, a folder.
    Folder(PathBuf),
    /// `nacre://…` or `unix:…`, one server or several; `unix:` alone is the user's own server.
    Servers(Vec<Address>),
    /// `rados://POOL?…`, a pool of a Ceph cluster. Its parameters are its own; [`Location`] lists them. Beside them there are those
    /// options that say how its metadata ranks are reached: `key`, `owner` and `repeat_timeout`. There only with the feature
    /// `rados`.
    #[cfg(feature = "rados")]
    Rados(Location),
}

/// Options of a store. Each is a parameter of the uri of the same name; one that does not apply to an engine is
/// refused.
///
/// ```
/// use std::time::Duration;
///
/// use nacre::{Engine, Options, Store, Uri};
///
/// let options = Options { capacity: Some(64 << 20), ..Options::default() };
/// let store = Store::open(&Uri { engine: Engine::Memory, options })?;
/// assert_eq!(store.name(), "mem:?capacity=67108864");
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `durability=always`, `none`, or an interval such as `50ms`: the latest time at which a folder's writes are on
    /// the medium. The default is `always`.
    pub durability: Option<Durability>,
    /// `create=yes` or `no`: whether a folder's store is created where there is none; a folder that holds other files
    /// never becomes a store. The default is `no`, so that a misspelt path is an error, and not an empty store.
    pub create: Option<bool>,
    /// `owner=USER`: the user that the server at a Unix socket runs as, by name or number. The default is the user of
    /// this process, or root; a server of any other user is not trusted.
    pub owner: Option<u32>,
    /// `capacity=SIZE`, such as `64MiB`: the maximum number of bytes that a folder or memory may be filled with. The default is the
    /// volume's space.
    pub capacity: Option<u64>,
    /// `key=PATH`: the file that holds the cluster's key, for servers that ask for it. Of a pool of Ceph it is that of the daemons
    /// which are its metadata ranks.
    pub key: Option<PathBuf>,
    /// `connections=N`: the number of connections to each server, 1 to 64. The default is 1.
    pub connections: Option<usize>,
    /// `connect_timeout=TIME`: the longest time that connecting may take. The default is `5s`.
    pub connect_timeout: Option<Duration>,
    /// `silence_timeout=TIME`: the longest time that a server may be silent. The default is `30s`.
    pub silence_timeout: Option<Duration>,
    /// `repeat_timeout=TIME`: the longest time for which a write whose reply was lost is repeated before it ends as
    /// `Unknown`, and for which servers that are away are waited for: by a `put` that has begun, by the first lock or sequencer of a
    /// program, and by [`Store::patient`](crate::Store::patient). The default is `10s`.
    pub repeat_timeout: Option<Duration>,
}

/// The point at which writes are on the medium.
///
/// ```
/// use std::time::Duration;
///
/// use nacre::{Durability, Uri};
///
/// let durability = |uri: &str| uri.parse::<Uri>().map(|uri| uri.options.durability);
/// assert_eq!(durability("file:data?durability=always")?, Some(Durability::Always));
/// assert_eq!(durability("file:data?durability=1s")?, Some(Durability::Interval(Duration::from_secs(1))));
/// # Ok::<(), nacre::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Synced before they are acknowledged.
    Always,
    /// Synced at most this much later.
    Interval(Duration),
    /// Synced when the operating system chooses.
    None,
}

fn invalid(text: String) -> StoreError {
    StoreError::new(ErrorKind::Invalid, text)
}

impl FromStr for Uri {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        Uri::from_os_str(OsStr::new(text))
    }
}

impl Uri {
    /// Reads a uri as [`FromStr`] does; the paths in it may have any bytes.
    ///
    /// ```
    /// use std::ffi::OsStr;
    /// use std::os::unix::ffi::OsStrExt;
    ///
    /// use nacre::Uri;
    ///
    /// let uri = Uri::from_os_str(OsStr::from_bytes(b"file:data\xff"))?;
    /// assert_eq!(uri.to_os_string(), OsStr::from_bytes(b"file:data\xff"));
    /// assert_eq!(uri.to_string(), "file:data\\xff");
    /// # Ok::<(), nacre::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is none.
    pub fn from_os_str(given: &OsStr) -> Result<Uri, StoreError> {
        let bytes = given.as_bytes();
        let (address, query) = match bytes.iter().position(|byte| *byte == b'?') {
            Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
            None => (bytes, None),
        };
        let about = |why: String| invalid(format!("store \"{}\": {why}", Escaped(bytes)));
        if bytes.starts_with(b"rados:") {
            #[cfg(feature = "rados")]
            {
                // Ceph's names and paths are text to its library.
                let text = given.to_str();
                let text =
                    text.ok_or_else(|| about("the uri of a pool of Ceph has to be UTF-8".to_owned()))?;
                return pool(text).map_err(|error| error.context("store"));
            }
            #[cfg(not(feature = "rados"))]
            return Err(crate::engine::not_built("stores in Ceph clusters", "rados")
                .context(format_args!("store \"{}\"", Escaped(bytes))));
        }
        let server = |server: &[u8]| {
            Address::from_os_str(OsStr::from_bytes(server)).map_err(|error| about(error.message))
        };
        let engine = if address == b"mem:" {
            Engine::Memory
        } else if let Some(path) = address.strip_prefix(b"file:") {
            if path.is_empty() {
                return Err(about("the path is missing; write file:PATH".to_owned()));
            }
            if path.starts_with(b"//") && !path.starts_with(b"///") {
                let why = "a folder is on this machine: write file:PATH or file:///PATH";
                return Err(about(why.to_owned()));
            }
            Engine::Folder(OsStr::from_bytes(path).into())
        } else if address == b"unix:" {
            Engine::Servers(vec![Address::Unix(nacre_rpc::socket::own_socket())])
        } else if address.starts_with(b"unix:") {
            Engine::Servers(vec![server(address)?])
        } else if let Some(mut list) = address.strip_prefix(b"nacre://") {
            while let Some(rest) = list.strip_suffix(b"/") {
                list = rest;
            }
            Engine::Servers(list.split(|byte| *byte == b',').map(server).collect::<Result<_, _>>()?)
        } else {
            let schemes = "mem:, file:PATH, nacre://HOST:PORT,…, unix:PATH or rados://POOL";
            return Err(about(format!("it names no kind of store that is known; write {schemes}")));
        };
        let mut options = Options::default();
        for parameter in query.into_iter().flat_map(|query| query.split(|byte| *byte == b'&')) {
            let Some(at) = parameter.iter().position(|byte| *byte == b'=') else {
                let shown = Escaped(parameter);
                return Err(about(format!("parameter \"{shown}\" has no value; write NAME=VALUE")));
            };
            // No name that is known has anything to escape.
            let (name, value) =
                (Escaped(&parameter[..at]).to_string(), OsStr::from_bytes(&parameter[at + 1..]));
            options.set(&engine, &name, value).map_err(|error| about(error.message))?;
        }
        Ok(Uri { engine, options })
    }

    /// Returns the uri as it is read, with all bytes of the paths in it.
    ///
    /// ```
    /// use nacre::Uri;
    ///
    /// let uri: Uri = "unix:/run/nacre.sock?connections=2".parse()?;
    /// assert_eq!(Uri::from_os_str(&uri.to_os_string())?, uri);
    /// # Ok::<(), nacre::Error>(())
    /// ```
    pub fn to_os_string(&self) -> OsString {
        let mut text = match &self.engine {
            Engine::Memory => OsString::from("mem:"),
            Engine::Folder(path) => joined("file:", path),
            #[cfg(feature = "rados")]
            Engine::Rados(location) => location.to_string().into(),
            Engine::Servers(servers) => match &servers[..] {
                [server @ Address::Unix(_)] => server.to_os_string(),
                servers => {
                    let mut text = OsString::from("nacre://");
                    for (index, server) in servers.iter().enumerate() {
                        text.push(if index == 0 { "" } else { "," });
                        text.push(server.to_os_string());
                    }
                    text
                }
            },
        };
        let Options {
            durability,
            create,
            capacity,
            key,
            owner,
            connections,
            connect_timeout,
            silence_timeout,
            repeat_timeout,
        } = &self.options;
        let parameters: [Option<OsString>; 9] = [
            durability.map(|durability| format!("durability={durability}").into()),
            create.map(|create| format!("create={}", if create { "yes" } else { "no" }).into()),
            capacity.map(|bytes| format!("capacity={bytes}").into()),
            owner.map(|user| format!("owner={user}").into()),
            key.as_ref().map(|key| joined("key=", key)),
            connections.map(|count| format!("connections={count}").into()),
            connect_timeout.map(|time| format!("connect_timeout={}ms", time.as_millis()).into()),
            silence_timeout.map(|time| format!("silence_timeout={}ms", time.as_millis()).into()),
            repeat_timeout.map(|time| format!("repeat_timeout={}ms", time.as_millis()).into()),
        ];
        // Those of the pool itself come first.
        let mut has_some = is_pool(&self.engine) && text.as_bytes().contains(&b'?');
        for parameter in parameters.into_iter().flatten() {
            text.push(if std::mem::replace(&mut has_some, true) { "&" } else { "?" });
            text.push(parameter);
        }
        text
    }
}

/// Reads the uri of a pool of Ceph: the options of its metadata ranks, and the pool's own parameters.
#[cfg(feature = "rados")]
fn pool(text: &str) -> Result<Uri, StoreError> {
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let is_option = |parameter: &&str| {
        let name = parameter.split_once('=').map_or("", |(name, _)| name);
        matches!(name, "key" | "owner" | "repeat_timeout")
    };
    let (of_ranks, of_pool): (Vec<&str>, Vec<&str>) = query.split('&').partition(is_option);
    let location: Location = match of_ranks.is_empty() {
        true => text.parse()?,
        false => format!("{place}?{}", of_pool.join("&")).parse()?,
    };
    let (engine, mut options) = (Engine::Rados(location), Options::default());
    for (name, value) in of_ranks.into_iter().filter_map(|parameter| parameter.split_once('=')) {
        options.set(&engine, name, OsStr::new(value))?;
    }
    Ok(Uri { engine, options })
}

/// Returns whether an engine is a pool of Ceph.
fn is_pool(engine: &Engine) -> bool {
    match engine {
        #[cfg(feature = "rados")]
        Engine::Rados(_) => true,
        Engine::Memory | Engine::Folder(_) | Engine::Servers(_) => false,
    }
}

/// Returns a text with a path behind it.
fn joined(text: &str, path: impl AsRef<OsStr>) -> OsString {
    let mut joined = OsString::from(text);
    joined.push(path);
    joined
}

impl Uri {
    /// Returns the name of the store in messages: the uri, without the option that only says whether to create it.
    pub(crate) fn name(&self) -> String {
        let options = Options { create: None, ..self.options.clone() };
        Uri { engine: self.engine.clone(), options }.to_string()
    }
}

impl Options {
    fn set(&mut self, engine: &Engine, name: &str, given: &OsStr) -> Result<(), StoreError> {
        let applies = match name {
            "durability" | "create" => matches!(engine, Engine::Folder(_)),
            "capacity" => matches!(engine, Engine::Folder(_) | Engine::Memory),
            "key" | "owner" | "repeat_timeout" => matches!(engine, Engine::Servers(_)) || is_pool(engine),
            "connections" | "connect_timeout" | "silence_timeout" => matches!(engine, Engine::Servers(_)),
            _ => {
                let known = "durability, create, capacity, key, owner, connections, connect_timeout, silence_timeout and repeat_timeout";
                return Err(invalid(format!("there is no parameter \"{name}\"; there are {known}")));
            }
        };
        if !applies {
            return Err(invalid(format!("parameter \"{name}\" does not apply to this kind of store")));
        }
        let shown = Escaped::of(given);
        let value = match given.to_str() {
            Some(value) => value,
            // Only a path may be something else than text.
            None if name == "key" => "",
            None => return Err(invalid(format!("{name}={shown} is not UTF-8"))),
        };
        let given = match name {
            "durability" => self.durability.replace(value.parse()?).is_some(),
            "create" => match value {
                "yes" => self.create.replace(true).is_some(),
                "no" => self.create.replace(false).is_some(),
                _ => return Err(invalid(format!("create={shown} is neither yes nor no"))),
            },
            "capacity" => match nacre_quantity::parse_size(value) {
                Ok(bytes) => self.capacity.replace(bytes).is_some(),
                Err(why) => return Err(invalid(format!("capacity={shown}: {why}"))),
            },
            "owner" => match nacre_rpc::socket::user_number(value) {
                Some(user) => self.owner.replace(user).is_some(),
                None => return Err(invalid(format!("owner={shown} is not a user of this machine"))),
            },
            "key" => self.key.replace(given.into()).is_some(),
            "connections" => match value.parse() {
                Ok(count) if (1..=64).contains(&count) => self.connections.replace(count).is_some(),
                _ => return Err(invalid(format!("connections={shown} is not a number from 1 to 64"))),
            },
            "connect_timeout" => self.connect_timeout.replace(parse_time(value)?).is_some(),
            "repeat_timeout" => self.repeat_timeout.replace(parse_time(value)?).is_some(),
            _ => self.silence_timeout.replace(parse_time(value)?).is_some(),
        };
        if given {
            return Err(invalid(format!("parameter \"{name}\" is given twice")));
        }
        Ok(())
    }
}

impl FromStr for Durability {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        match text {
            "always" => Ok(Durability::Always),
            "none" => Ok(Durability::None),
            _ => parse_time(text).map(Durability::Interval).map_err(|_| {
                invalid(format!("durability \"{text}\" is neither always nor none nor a time such as 50ms"))
            }),
        }
    }
}

/// Parses a time that is not zero.
fn parse_time(text: &str) -> Result<Duration, StoreError> {
    match nacre_quantity::parse_time(text).map_err(invalid)? {
        Duration::ZERO => {
            Err(invalid(format!("\"{text}\" is not a time above zero; write it like 50ms or 2s")))
        }
        time => Ok(time),
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Always => f.write_str("always"),
            Durability::None => f.write_str("none"),
            Durability::Interval(time) => write!(f, "{}ms", time.as_millis()),
        }
    }
}

/// The uri for people: the bytes of paths are escaped as those of all names are, so that it is read again only where there is nothing to
/// escape. [`Uri::to_os_string`] returns it for programs.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Escaped::of(&self.to_os_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_uris_survive_being_written_and_read() {
        for text in [
            "mem:",
            "file:data",
            "file:/var/lib/nacre?durability=none",
            "file:data?durability=50ms",
            "file:data?durability=none&create=yes",
            "file:data?durability=none&capacity=400000000",
            "mem:?capacity=1048576",
            "unix:/run/nacre.socket",
            "unix:/run/nacre.socket?owner=33",
            "nacre://unix:/run/a.socket,unix:/run/b.socket",
            #[cfg(feature = "rados")]
            "rados://scratch?conf=/etc/ceph/ceph.conf&id=nacre&ns=job-7",
            #[cfg(feature = "rados")]
            "rados://scratch?id=nacre&key=/etc/nacre.key&repeat_timeout=500ms",
            #[cfg(feature = "rados")]
            "rados://scratch?owner=33",
            "nacre://localhost:6470",
            "nacre://a:1,b:2,[::1]:3?key=/etc/nacre.key&connections=2&connect_timeout=250ms",
        ] {
            let uri: Uri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
        assert_eq!("nacre://Host".parse::<Uri>().unwrap().to_string(), "nacre://host:6470");
    }

    #[test]
    fn paths_have_any_bytes() {
        for (bytes, shown) in [
            (&b"file:/a\\b\n\xff?durability=none"[..], "file:/a\\\\b\\x0a\\xff?durability=none"),
            (b"unix:/\xff", "unix:/\\xff"),
            (
                b"nacre://unix:/\xff,a:1?key=/\xfe&connections=2",
                "nacre://unix:/\\xff,a:1?key=/\\xfe&connections=2",
            ),
        ] {
            let given = OsStr::from_bytes(bytes);
            let uri = Uri::from_os_str(given).unwrap();
            assert_eq!(uri.to_os_string(), given);
            assert_eq!(uri.to_string(), shown);
        }
        let uri = Uri::from_os_str(OsStr::from_bytes(b"file:/\xff")).unwrap();
        assert_eq!(uri.engine, Engine::Folder(OsStr::from_bytes(b"/\xff").into()));
        for (wrong, part) in [
            (&b"\xff"[..], "store \"\\xff\": it names no kind of store"),
            (b"nacre://\xff", "the host is not a name"),
            (b"file:/\xff?colour\xff=1", "no parameter \"colour\\xff\""),
            (b"nacre://a?connections=\xff", "connections=\\xff is not UTF-8"),
            #[cfg(feature = "rados")]
            (b"rados://\xff", "has to be UTF-8"),
        ] {
            let error = Uri::from_os_str(OsStr::from_bytes(wrong)).unwrap_err();
            assert!(error.message.contains(part) && error.message.contains("\\xff"), "{error}");
        }
    }

    #[test]
    fn bad_uris_are_refused_with_a_sentence() {
        for (text, part) in [
            ("", "names no kind of store"),
            ("http://a", "names no kind of store"),
            ("file:", "the path is missing"),
            ("nacre://", "the host is missing"),
            ("nacre://a,,b", "the host is missing"),
            ("nacre://a:x", "the port is not a number"),
            ("mem:?durability=always", "does not apply"),
            ("mem:?", "has no value"),
            ("file:x?key=y", "does not apply"),
            ("unix:/x?capacity=1", "does not apply"),
            ("file:x?capacity=much", "is not a unit"),
            ("file:x?durability=0ms", "neither always nor none"),
            ("file:x?durability=sometimes", "neither always nor none"),
            ("file:x?create=maybe", "neither yes nor no"),
            ("unix:/x?create=yes", "does not apply"),
            ("unix:/x?owner=no such user", "not a user of this machine"),
            ("nacre://a?connections=0", "1 to 64"),
            ("nacre://a?connections=1&connections=2", "given twice"),
            ("nacre://a?connect_timeout=5", "is not a time"),
            ("nacre://a?colour=red", "there is no parameter"),
            #[cfg(feature = "rados")]
            ("rados://p?colour=red&key=/k", "nothing is called \"colour\""),
            #[cfg(feature = "rados")]
            ("rados://p?key=/k&key=/l", "given twice"),
            #[cfg(feature = "rados")]
            ("rados://p?connections=2", "nothing is called \"connections\""),
        ] {
            let error = text.parse::<Uri>().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.contains(part), "{text}: {error}");
        }
    }
}
