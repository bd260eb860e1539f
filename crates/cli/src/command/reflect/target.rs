//! The names of targets to join: a group at a reflector, or a location.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use nacre_quantity::Escaped;
use nacre_reflect::table::GroupId;

use crate::failure::Failure;

/// The port that groups with ids share, unless another one is named.
pub const PORT_DEFAULT: u16 = 7400;

/// A target to join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A group at a reflector.
    Group {
        /// The reflector's name or address.
        host: String,
        /// The group there.
        group: GroupId,
    },
    /// A location, whose place reflectors know.
    Location {
        /// Its name.
        name: String,
        /// The reflector to ask, if one was named.
        reflector: Option<(String, u16)>,
    },
}

fn is_numeric(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'/')
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let location = |name: &str, reflector| match name {
            "" => Err(format!("'{text}' names neither a group nor a location")),
            name => Ok(Target::Location { name: name.to_owned(), reflector }),
        };
        if let Some(name) = text.strip_prefix("location:") {
            return match name.rsplit_once('@') {
                Some((name, at)) => location(name, Some(host_and_port(at)?)),
                None => location(name, None),
            };
        }
        let Some((target, at)) = text.rsplit_once('@') else {
            // HOST:PORT and HOST:PORT/ID are groups, whatever else is a location.
            let (at, id) = text.split_once('/').unwrap_or((text, "0"));
            return match (host_and_port(at), id.parse()) {
                (Ok((host, port)), Ok(id)) if at.contains(':') => {
                    Ok(Target::Group { host, group: GroupId { port, id } })
                }
                // Nobody who writes two numbers means a location.
                _ if is_numeric(text) => Err(format!(
                    "'{text}' is not a group at a reflector, ID@HOST:PORT or PORT/ID@HOST; a location of \
                     this name is location:{text}"
                )),
                _ => location(text, None),
            };
        };
        if !is_numeric(target) {
            return location(target, Some(host_and_port(at)?));
        }
        if let (Some(port), false) = (port_of(at)?, target.contains('/')) {
            // Where the port is said, the group is an id on it.
            let id = target.parse().map_err(|_| format!("'{target}' is not a group's id"))?;
            let (host, _) = host_and_port(at)?;
            return Ok(Target::Group { host, group: GroupId { port, id } });
        }
        match port_of(at)? {
            None => Ok(Target::Group { host: unbracketed(at).to_owned(), group: target.parse()? }),
            Some(_) => Err(format!("'{text}' names two ports: write ID@HOST:PORT or PORT/ID@HOST")),
        }
    }
}

/// Parses `HOST:PORT`, or `HOST` with the shared port.
pub fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("'{text}' is not an address: HOST or HOST:PORT, with [] around an IPv6 address");
    let port = port_of(text)?;
    let host = match port {
        Some(_) => text.rsplit_once(':').ok_or_else(wrong)?.0,
        None => text,
    };
    match unbracketed(host) {
        "" => Err(wrong()),
        host if host.contains(':') && host.parse::<IpAddr>().is_err() => Err(wrong()),
        host => Ok((host.to_owned(), port.unwrap_or(PORT_DEFAULT))),
    }
}

/// Returns the port in an address, if it has one.
fn port_of(text: &str) -> Result<Option<u16>, String> {
    let bare = text.parse::<IpAddr>().is_ok() || text.ends_with(']');
    match text.rsplit_once(':') {
        Some((_, port)) if !bare => {
            port.parse().map(Some).map_err(|_| format!("'{port}' in '{text}' is not a port"))
        }
        _ => Ok(None),
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Resolves the address of a host by name.
pub fn resolve(host: &str, port: u16) -> Result<SocketAddr, Failure> {
    let cannot =
        |why: String| Failure::Failed(format!("cannot find the address of \"{}\": {why}", Escaped::of(host)));
    let mut addresses = (host, port).to_socket_addrs().map_err(|error| {
        let why = error.to_string();
        // What was attempted is said before.
        cannot(why.trim_start_matches("failed to lookup address information: ").to_owned())
    })?;
    addresses.next().ok_or_else(|| cannot("it has none".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_locations_are_told_apart() {
        let group =
            |host: &str, port, id| Target::Group { host: host.to_owned(), group: GroupId { port, id } };
        let location = |name: &str, at: Option<(&str, u16)>| Target::Location {
            name: name.to_owned(),
            reflector: at.map(|(host, port)| (host.to_owned(), port)),
        };
        for (text, expected) in [
            ("5@127.0.0.1:7400", group("127.0.0.1", 7400, 5)),
            ("5@[::1]:7400", group("::1", 7400, 5)),
            ("7500@example", group("example", 7500, 0)),
            ("7500/3@::1", group("::1", 7500, 3)),
            ("7500/3@[::1]", group("::1", 7500, 3)),
            ("127.0.0.1:7500", group("127.0.0.1", 7500, 0)),
            ("[::1]:7500/9", group("::1", 7500, 9)),
            ("harbour", location("harbour", None)),
            ("harbour@example:81", location("harbour", Some(("example", 81)))),
            ("harbour@example", location("harbour", Some(("example", PORT_DEFAULT)))),
            ("location:17@[::1]:3", location("17", Some(("::1", 3)))),
            ("a/b", location("a/b", None)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for wrong in [
            "",
            "@",
            "@a:1",
            "5@a:b",
            "7/5@a:1",
            "location:",
            "99999999999@a:1",
            "x@a:1:b",
            "x@a:1:2",
            "70000@a",
            "99999/5",
            "7400/5",
        ] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }
}
