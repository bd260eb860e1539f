//! The names that a listener answers to.
//!
//! A browser sends the host name of the page's address as `Host`. If that name was made to point at this machine by an
//! attacker, a script of theirs could read the answer; so only names are accepted that no third party controls.

use std::net::{IpAddr, SocketAddr};

/// The names that were given to a listener, besides those that it always has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    /// Returns these names, and that in the listener's `address`, if it has one: whoever started the listener chose it. An
    /// IP address in its place is that on which requests arrive, or stands for all.
    pub(crate) fn new(names: &[String], address: &str) -> Hosts {
        let own = address.rsplit_once(':').map(|(host, _)| host);
        let own = own.filter(|host| !host.starts_with('[') && host.parse::<IpAddr>().is_err());
        Hosts(names.iter().cloned().chain(own.map(str::to_owned)).collect())
    }

    /// Returns whether a `Host` means this listener: a loopback name or address, the address `local` on which the
    /// request arrived, or one of the names given. The port does not matter.
    pub(crate) fn include(&self, host: &str, local: SocketAddr) -> bool {
        let Some(name) = without_port(host) else { return false };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if let Ok(address) = bare.parse::<IpAddr>() {
            let address = address.to_canonical();
            if address.is_loopback() || address == local.ip().to_canonical() {
                return true;
            }
        }
        name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|known| known.eq_ignore_ascii_case(name) || known == bare)
    }
}

/// Returns whether a name can be that of a host in a request: an address, or labels of letters, digits, dashes and
/// underscores, and no port, scheme or path.
pub(crate) fn is_host(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    if bare.parse::<IpAddr>().is_ok() {
        return true;
    }
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(of_name);
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Returns a host without its port; `None` if it is not a host with or without a port.
fn without_port(host: &str) -> Option<&str> {
    let end = match host.starts_with('[') {
        true => host.find(']')? + 1,
        false => host.find(':').unwrap_or(host.len()),
    };
    let (name, port) = host.split_at(end);
    let digits = port.is_empty() || port.strip_prefix(':')?.bytes().all(|byte| byte.is_ascii_digit());
    (digits && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_nobody_else_hands_out_are_accepted() {
        let names = ["status.example".to_owned(), "2001:db8::7".to_owned()];
        let hosts = Hosts::new(&names, "192.0.2.9:80");
        let local: SocketAddr = "192.0.2.9:80".parse().unwrap();
        for host in [
            "localhost",
            "LocalHost:6471",
            "127.0.0.1",
            "127.3.2.1:1",
            "[::1]",
            "[::1]:6471",
            "192.0.2.9",
            "192.0.2.9:99",
            "Status.Example:80",
            "[::ffff:192.0.2.9]",
            "[2001:db8::7]:1",
        ] {
            assert!(hosts.include(host, local), "{host}");
        }
        for host in [
            "",
            ":80",
            "evil.example",
            "localhost.evil.example",
            "evil.localhost",
            "localhost:80:80",
            "localhost:x",
            "localhost@evil.example",
            "192.0.2.8",
            "[::1",
            "[::1]x",
            "::1:x",
            "127.0.0.1.evil.example",
        ] {
            assert!(!hosts.include(host, local), "{host}");
        }
    }

    #[test]
    fn a_name_in_the_address_is_accepted_and_an_address_that_stands_for_all_is_not() {
        let local: SocketAddr = "192.0.2.9:6471".parse().unwrap();
        assert!(Hosts::new(&[], "store.example:6471").include("store.example:6471", local));
        assert!(!Hosts::new(&[], "store.example:6471").include("other.example", local));
        assert!(!Hosts::new(&[], "0.0.0.0:6471").include("0.0.0.0:6471", local));
        assert!(!Hosts::new(&[], "[::]:6471").include("[::]:6471", local));
    }

    #[test]
    fn what_no_request_can_name_is_no_host() {
        for right in ["status.example", "localhost", "a_b-c", "192.0.2.9", "2001:db8::7", "[2001:db8::7]"] {
            assert!(is_host(right), "{right}");
        }
        let long = "a".repeat(64);
        for wrong in
            ["", "*", "*.example", "a:80", "http://a", "a/b", "a b", "a..b", "a.", "[::1]:80", "größe", &long]
        {
            assert!(!is_host(wrong), "{wrong}");
        }
    }
}
