//! The settings of a reflector: the flags of `nacre reflect serve`, which are also the keys of the section `[reflect]`
//! of the configuration file, and of `--reflect` of `nacre serve`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, FromArgMatches};
use nacre_daemon::reflect::ServerOptions;
use nacre_planes::forward::ForwardOptions;
use nacre_planes::plane::{PlaneKind, PlaneOptions};
use nacre_quantity::Escaped;
use nacre_reflect::control::{ControlOptions, StateOptions, Suppliers};
use nacre_reflect::location::{IDS_MAX, check_address};
use nacre_reflect::rate::Rate;
use nacre_reflect::table::{GroupId, GroupOptions};
use nacre_reflect::token::PublicKey;

use super::store::open_store;
use super::target::PORT_DEFAULT;
use crate::arguments::setting_error;
use crate::complete;
use crate::failure::Failure;
use crate::quantity::{self, Size, Time};

/// The default address of the HTTP listener, if the reflector listens on its default address.
pub const HTTP_DEFAULT: &str = "127.0.0.1:7480";
/// The settings of which those in the file and those on the command line both hold, as they are of different groups.
pub const ACCUMULATED: &[&str] = &["group"];
/// The default interval between requests for a group's state.
const STATE_EVERY: Duration = Duration::from_secs(30);
/// The default number of groups on the shared port.
const IDS_DEFAULT: u32 = 1024;
/// The longest interval between heartbeats, and the longest time after which a silent member is gone.
const SILENCE_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// The smallest number of bytes that may wait for full devices: one datagram of the greatest length.
const BACKLOG_BYTES_MIN: u64 = 64 << 10;

/// The settings of a reflector.
#[derive(clap::Args, Clone, Debug, Default)]
#[allow(missing_docs, reason = "each setting is described where its flag is")]
pub struct Settings {
    // These two are flags of every command.
    #[arg(skip)]
    pub store: Option<OsString>,
    #[arg(skip)]
    pub key: Option<PathBuf>,
    /// Listen on this address, ADDRESS:PORT; groups with ids share its port, and port 0 picks a free one; may be
    /// repeated. An address that others can reach requires --token-key or --open [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub listen: Vec<SocketAddr>,
    /// Ports that are groups of their own, on the same addresses
    #[arg(long, value_name = "PORT[-PORT]", value_delimiter = ',')]
    pub groups: Vec<Ports>,
    /// Options of one group: an id on the shared port, a port of --groups, PORT/ID, or * for all others; may be
    /// repeated. Options are sequence, token (requires --token-key), open, members=N (0 lets nobody join), max-age=TIME
    /// (as --max-age), and limits per second, where 0 means no limit: rate=COPIES[/BURST] of each member, address-rate
    /// of all members at one address, and group-rate
    #[arg(long = "group", value_name = "GROUP:OPTION,…")]
    pub group: Vec<GroupSetting>,
    /// Number of groups on the shared port, with ids from 0; 0 for none, which requires --groups [default: 1024]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(..=i64::from(IDS_MAX)))]
    pub ids: Option<u32>,
    /// Require tokens made with the key pair of this public key: 64 hexadecimal digits, as "nacre reflect token-key"
    /// prints them; may be repeated
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
    pub token_key: Vec<PublicKey>,
    /// Let anyone who can reach the reflector join, without a token
    #[arg(long)]
    pub open: bool,
    /// Members that are asked for a group's state, among those that offer it: members for any, tokens for those whose
    /// token grants the right, none, or those at the given addresses [default: tokens where members need one, else
    /// members]
    #[arg(long, value_name = "WHO", value_parser = suppliers)]
    pub state_from: Option<Suppliers>,
    /// Plane that makes the copies: sendto, batch, ring, kernel, xdp, or auto for the best that works here [default:
    /// auto]
    #[arg(long, value_name = "PLANE", add = complete::planes())]
    pub plane: Option<PlaneChoice>,
    /// Network devices that members are behind, for planes in the kernel [default: all but loopback]
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub device: Vec<String>,
    /// Interval of members' heartbeats [default: 16ms per member, at least 500ms, at most 15s]
    #[arg(long, value_name = "TIME")]
    pub heartbeat: Option<Time>,
    /// Time after which silent members are removed [default: two heartbeats and 2s; four heartbeats with --heartbeat]
    #[arg(long, value_name = "TIME")]
    pub expiry: Option<Time>,
    /// Interval at which a member is asked for the group's state; 0s for never [default: 30s]
    #[arg(long, value_name = "TIME")]
    pub state_every: Option<Time>,
    /// Name of this reflector in the map of locations, if it is not its address; may be repeated
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub advertise: Vec<SocketAddr>,
    /// Standby: a reflector that members of locations here may join when this one is gone; may be repeated
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    pub standby: Vec<SocketAddr>,
    /// Let members on loopback addresses join [default: only where the reflector listens on nothing else]
    #[arg(long)]
    pub allow_loopback: bool,
    /// Let members with ports below 1024 join
    #[arg(long)]
    pub allow_privileged: bool,
    /// Maximum joins per second from one address, at least 1 [default: 50]
    #[arg(long, value_name = "COUNT", value_parser = nacre_quantity::count_parser::<u32>(1..=u64::MAX))]
    pub joins_per_second: Option<u32>,
    /// Time after which a datagram that waits for a full device is dropped, and counted as too old; 0s for never
    /// [default: 1s]
    #[arg(long, value_name = "TIME")]
    pub max_age: Option<Time>,
    /// Maximum size of the datagrams of all groups together that wait for full devices, at least 64KiB [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub backlog_bytes: Option<Size>,
}

impl Settings {
    /// Parses settings from pairs `NAME=VALUE`, with the names of the flags without their dashes; a switch is its name, and
    /// may be given as `NAME=true` or `NAME=false`.
    ///
    /// # Errors
    /// A sentence about the first pair that is wrong.
    pub fn from_pairs(pairs: &[OsString]) -> Result<Settings, String> {
        let command = clap::Command::new("reflect").no_binary_name(true).disable_help_flag(true);
        let command = Settings::augment_args(command);
        let is_switch = |name: &str| {
            let mut flags = command.get_arguments().filter(|flag| flag.get_long() == Some(name));
            flags.any(|flag| matches!(flag.get_action(), clap::ArgAction::SetTrue))
        };
        let (mut store, mut key, mut words) = (None, None, Vec::new());
        for pair in pairs {
            let mut parts = pair.as_bytes().splitn(2, |byte| *byte == b'=').map(OsStr::from_bytes);
            match (parts.next().and_then(OsStr::to_str), parts.next()) {
                (Some("store"), Some(uri)) => store = Some(uri.to_owned()),
                (Some("key"), Some(path)) => key = Some(PathBuf::from(path)),
                (Some(name), Some(on)) if is_switch(name) => match on.to_str() {
                    Some("true") => words.push(OsString::from(format!("--{name}"))),
                    Some("false") => {}
                    _ => {
                        let on = Escaped::of(on);
                        return Err(format!("\"{name}\" must be true or false, not \"{on}\""));
                    }
                },
                _ => {
                    let mut word = OsString::from("--");
                    word.push(pair);
                    words.push(word);
                }
            }
        }
        let found =
            command.try_get_matches_from(words).and_then(|matches| Settings::from_arg_matches(&matches));
        let settings = found.map_err(|error| setting_error(&error))?;
        Ok(Settings { store, key, ..settings })
    }

    /// Returns the settings as options of a reflector.
    ///
    /// # Errors
    /// `Usage` if settings contradict each other or would make the reflector unsafe, `Failed` if the key cannot be read
    /// or the store cannot be opened.
    pub fn options(&self) -> Result<ServerOptions, Failure> {
        self.check()?;
        let shared = self.shared();
        // Neither is longer than a day, so that the milliseconds fit.
        let heartbeat_ms = self.heartbeat.map_or(0, |time| time.0.as_millis() as u32);
        let expiry_ms = self.expiry.map_or(heartbeat_ms.saturating_mul(4), |time| time.0.as_millis() as u32);
        let joins = u64::from(self.joins_per_second.unwrap_or(50));
        let state_every = self.state_every.map_or(STATE_EVERY, |time| time.0);
        let backlog_bytes = self.backlog_bytes.map(|size| size.0 as usize);
        let forward = ForwardOptions::default();
        Ok(ServerOptions {
            ports: self.ports().into_iter().collect(),
            ids: self.ids(),
            group: self.default_group(),
            groups: self.named_groups(&shared),
            plane: match self.plane {
                None | Some(PlaneChoice::Auto) => None,
                Some(PlaneChoice::Only(kind)) => Some(kind),
            },
            plane_options: PlaneOptions { devices: self.device.clone(), ..PlaneOptions::default() },
            forward: ForwardOptions {
                backlog_bytes: backlog_bytes.unwrap_or(forward.backlog_bytes),
                ..forward
            },
            control: ControlOptions {
                heartbeat_ms,
                expiry_ms,
                joins_per_source: Rate::per_second(joins, joins.saturating_mul(4)),
                privileged: self.allow_privileged,
                advertised: self.advertise.clone(),
                token_keys: self.token_key.clone(),
                suppliers: self.state_from.clone().unwrap_or_default(),
                ..ControlOptions::default()
            },
            loopback: self.allow_loopback,
            state: (state_every > Duration::ZERO).then(|| StateOptions {
                every_ms: state_every.as_millis() as u64,
                ..StateOptions::default()
            }),
            standbys: self.standby.clone(),
            store: self.store.as_deref().map(|uri| open_store(uri, self.key.as_deref())).transpose()?,
            shared,
        })
    }

    /// Returns the addresses with shared ports.
    pub fn shared(&self) -> Vec<SocketAddr> {
        match self.listen.is_empty() {
            true => vec![SocketAddr::from(([127, 0, 0, 1], PORT_DEFAULT))],
            false => self.listen.clone(),
        }
    }

    /// Returns the ports that are groups of their own.
    pub fn ports(&self) -> BTreeSet<u16> {
        self.groups.iter().flat_map(|ports| ports.first..=ports.last).collect()
    }

    /// Checks that the settings agree and are safe.
    ///
    /// # Errors
    /// [`Failure::Usage`] otherwise.
    pub fn check(&self) -> Result<(), Failure> {
        let public = self.shared().into_iter().find(|address| !address.ip().is_loopback());
        if let (Some(address), true, false) = (public, self.token_key.is_empty(), self.open) {
            return Err(Failure::Usage(format!(
                "{address} can be reached by others: name the key that signs members' tokens with --token-key (\"nacre \
                 reflect token-key\" prints it), or let anybody join with --open"
            )));
        }
        let usage = |text: String| Err(Failure::Usage(text));
        if let Some(expiry) = self.expiry {
            let Some(heartbeat) = self.heartbeat else {
                return usage("--expiry needs --heartbeat: give both".to_owned());
            };
            if expiry.0 < heartbeat.0 * 2 {
                return usage(format!(
                    "--expiry must be at least two heartbeats, of {} ms each, or losing one datagram removes a member",
                    heartbeat.0.as_millis()
                ));
            }
        }
        for (name, time) in [("heartbeat", self.heartbeat), ("expiry", self.expiry)] {
            if time.is_some_and(|time| time.0 < Duration::from_millis(10) || time.0 > SILENCE_MAX) {
                return usage(format!("--{name} must be at least 10ms, and at most a day"));
            }
        }
        if let Some(Err(why)) = self.max_age.map(|age| check_age(age.0)) {
            return usage(format!("--max-age: {why}"));
        }
        if self.backlog_bytes.is_some_and(|size| size.0 < BACKLOG_BYTES_MIN) {
            return usage(format!("--backlog-bytes must be at least {BACKLOG_BYTES_MIN}, one long datagram"));
        }
        if self.ids() == 0 && self.groups.is_empty() {
            return usage("--ids 0 leaves no group; name ports that are groups with --groups".to_owned());
        }
        for (name, addresses) in [("advertise", &self.advertise), ("standby", &self.standby)] {
            for address in addresses {
                check_address(address).map_err(|why| Failure::Usage(format!("--{name} {address}: {why}")))?;
            }
        }
        self.check_groups()
    }

    /// Checks that the groups that have settings of their own exist, and that members can join each of them.
    fn check_groups(&self) -> Result<(), Failure> {
        let shared = self.shared();
        let (ports, ids) = (self.ports(), self.ids());
        let exists = |group: &Named| match *group {
            Named::Others => true,
            Named::Number(number) => {
                number < ids || u16::try_from(number).is_ok_and(|port| ports.contains(&port))
            }
            Named::Full(GroupId { port, id }) => {
                let is_shared = shared.iter().any(|address| address.port() == port);
                is_shared && id < ids || ports.contains(&port) && id == 0
            }
        };
        for setting in &self.group {
            if !exists(&setting.group) {
                let on_shared = match ids {
                    0 => "there are no ids on the shared port".to_owned(),
                    ids => format!("ids on the shared port go up to {} (--ids)", ids - 1),
                };
                return Err(Failure::Usage(format!(
                    "--group {}: this reflector has no such group; {on_shared}, and a port is a group if --groups names it",
                    setting.group
                )));
            }
        }
        let named = self.named_groups(&shared).into_iter().map(|(id, options)| (id.to_string(), options));
        let all = [("*".to_owned(), self.default_group())].into_iter().chain(named);
        for (name, options) in all {
            if options.token && self.token_key.is_empty() {
                return Err(Failure::Usage(format!(
                    "--group {name}: nobody could join it: no token is valid without the key that signs tokens, which --token-key names"
                )));
            }
        }
        Ok(())
    }

    /// Returns the number of groups on each shared port.
    fn ids(&self) -> u32 {
        self.ids.unwrap_or(IDS_DEFAULT)
    }

    /// Returns the options of the groups without settings of their own.
    pub fn default_group(&self) -> GroupOptions {
        let token = !self.token_key.is_empty() && !self.open;
        let max_age = self.max_age.map(|time| time.0.as_millis() as u32);
        let defaults = GroupOptions::default();
        let mut options =
            GroupOptions { token, max_age_ms: max_age.unwrap_or(defaults.max_age_ms), ..defaults };
        for setting in &self.group {
            if setting.group == Named::Others {
                setting.apply(&mut options);
            }
        }
        options
    }

    /// Returns the groups with settings of their own, on the ports that were found for those given as 0.
    pub fn named_groups(&self, shared: &[SocketAddr]) -> Vec<(GroupId, GroupOptions)> {
        let ports = self.ports();
        let mut found: Vec<(GroupId, GroupOptions)> = Vec::new();
        let shared: BTreeSet<u16> = shared.iter().map(SocketAddr::port).collect();
        for setting in &self.group {
            let ids: Vec<GroupId> = match setting.group {
                Named::Others => continue,
                Named::Full(id) => vec![id],
                Named::Number(number) => match u16::try_from(number).ok().filter(|port| ports.contains(port))
                {
                    Some(port) => vec![GroupId { port, id: 0 }],
                    None => shared.iter().map(|port| GroupId { port: *port, id: number }).collect(),
                },
            };
            for id in ids {
                match found.iter_mut().find(|(other, _)| *other == id) {
                    Some((_, options)) => setting.apply(options),
                    None => {
                        let mut options = self.default_group();
                        setting.apply(&mut options);
                        found.push((id, options));
                    }
                }
            }
        }
        found
    }
}

/// Parses the value of `--state-from`.
fn suppliers(text: &str) -> Result<Suppliers, String> {
    Ok(match text {
        "members" => Suppliers::Members,
        "tokens" => Suppliers::Tokens,
        "none" => Suppliers::Nobody,
        list => {
            let list: Result<Vec<_>, _> = list.split(',').map(|ip| ip.trim().parse()).collect();
            let wrong = |_| format!("'{text}' is neither members, tokens, none, nor a list of addresses");
            Suppliers::Addresses(list.map_err(wrong)?)
        }
    })
}

/// A range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a range of ports: PORT, or PORT-PORT");
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first == 0 || last < first {
            return Err(wrong());
        }
        Ok(Ports { first, last })
    }
}

/// A choice of plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneChoice {
    /// The best plane that works.
    Auto,
    /// This plane and no other.
    Only(PlaneKind),
}

impl FromStr for PlaneChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(PlaneChoice::Auto),
            text => text.parse().map(PlaneChoice::Only).map_err(|error: String| format!("{error}, auto")),
        }
    }
}

/// The groups that a setting is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    /// All groups without settings of their own.
    Others,
    /// An id on the shared port, or a port.
    Number(u32),
    /// `PORT/ID`.
    Full(GroupId),
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Others => f.write_str("*"),
            Named::Number(number) => write!(f, "{number}"),
            Named::Full(id) => write!(f, "{id}"),
        }
    }
}

/// The value of `--group`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSetting {
    group: Named,
    options: Vec<GroupOption>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupOption {
    Sequence,
    Token(bool),
    Members(u32),
    Rate(Rate),
    AddressRate(Rate),
    GroupRate(Rate),
    MaxAge(Duration),
}

impl GroupSetting {
    fn apply(&self, options: &mut GroupOptions) {
        for option in &self.options {
            match *option {
                GroupOption::Sequence => options.sequence = true,
                GroupOption::Token(token) => options.token = token,
                GroupOption::Members(count) => options.members_max = count,
                GroupOption::Rate(rate) => options.member_rate = rate,
                GroupOption::AddressRate(rate) => options.address_rate = Some(rate),
                GroupOption::GroupRate(rate) => options.group_rate = rate,
                GroupOption::MaxAge(age) => options.max_age_ms = age.as_millis() as u32,
            }
        }
    }
}

impl FromStr for GroupSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (group, options) = text
            .split_once(':')
            .ok_or_else(|| format!("'{text}' is not GROUP:OPTION,…, such as 5:sequence,members=100"))?;
        let group = match group {
            "*" => Named::Others,
            group if group.contains('/') => Named::Full(group.parse()?),
            group => Named::Number(group.parse().map_err(|_| format!("'{group}' is not a group"))?),
        };
        let options = options.split(',').map(str::trim).filter(|option| !option.is_empty());
        Ok(GroupSetting { group, options: options.map(group_option).collect::<Result<_, _>>()? })
    }
}

fn group_option(text: &str) -> Result<GroupOption, String> {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    let wrong = || {
        format!(
            "'{text}' is not an option of a group: sequence, token, open, members=N, rate=N, address-rate=N, \
             group-rate=N, max-age=TIME"
        )
    };
    let rate = |value: &str| {
        let (copies, burst) =
            value.split_once('/').map_or((value, None), |(copies, burst)| (copies, Some(burst)));
        let copies: u64 = copies.parse().map_err(|_| wrong())?;
        // A fifth of a second at once, unless said otherwise.
        let burst = burst.map_or(Ok(copies / 5), |burst| burst.parse().map_err(|_| wrong()))?;
        Ok::<_, String>(Rate::per_second(copies, burst))
    };
    match (name, value) {
        ("sequence", None) => Ok(GroupOption::Sequence),
        ("token", None) => Ok(GroupOption::Token(true)),
        ("open", None) => Ok(GroupOption::Token(false)),
        ("members", Some(count)) => count.parse().map(GroupOption::Members).map_err(|_| wrong()),
        ("rate", Some(value)) => rate(value).map(GroupOption::Rate),
        ("address-rate", Some(value)) => rate(value).map(GroupOption::AddressRate),
        ("group-rate", Some(value)) => rate(value).map(GroupOption::GroupRate),
        ("max-age", Some(value)) => {
            let age = quantity::parse_time(value).map_err(|why| format!("{}: {why}", wrong()))?;
            check_age(age).map(|()| GroupOption::MaxAge(age))
        }
        _ => Err(wrong()),
    }
}

/// Checks that an age limit is none, or one that counts in milliseconds.
fn check_age(age: Duration) -> Result<(), String> {
    match age.is_zero() || (Duration::from_millis(1)..=SILENCE_MAX).contains(&age) {
        true => Ok(()),
        false => Err("an age limit is 0s, for none, or at least 1ms, and at most a day".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use nacre_reflect::token::TokenKey;
    use nacre_rpc::ClusterKey;

    use super::*;

    #[test]
    fn settings_are_given_as_pairs_too() {
        let pairs =
            |words: &[&str]| Settings::from_pairs(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let settings = pairs(&[
            "listen=127.0.0.1:1",
            "groups=7500",
            "groups=7600-7610",
            "group=5:sequence",
            "group=7600:members=7",
            "plane=batch",
            "heartbeat=1s",
            "open",
            "store=mem:",
            "key=some/file",
        ])
        .unwrap();
        assert_eq!(settings.plane, Some(PlaneChoice::Only(PlaneKind::Batch)));
        assert_eq!(settings.heartbeat, Some(Time(Duration::from_secs(1))));
        assert_eq!(settings.ports().len(), 12);
        assert_eq!((settings.store, settings.key), (Some("mem:".into()), Some("some/file".into())));
        assert!(settings.open);
        let settings = Settings {
            key: None,
            ..pairs(&["listen=127.0.0.1:1", "groups=7600", "group=5:sequence", "group=7600:members=7"])
                .unwrap()
        };
        let groups = settings.named_groups(&settings.shared());
        assert_eq!(groups[0].0, GroupId { port: 1, id: 5 });
        assert!(groups[0].1.sequence);
        assert_eq!((groups[1].0, groups[1].1.members_max), (GroupId { port: 7600, id: 0 }, 7));
        for wrong in ["colour=1", "plane=steam", "groups=0", "open=perhaps", "listen", "http=none"] {
            assert!(pairs(&[wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn groups_are_described_on_the_command_line() {
        let setting: GroupSetting = "*:sequence,token,members=3,rate=100/7,group-rate=0".parse().unwrap();
        let ninth = "9:open,max-age=0s".parse().unwrap();
        let max_age = Some("250ms".parse().unwrap());
        let settings = Settings { group: vec![setting, ninth], max_age, ..Settings::default() };
        let others = settings.default_group();
        assert!(others.sequence && others.token && others.members_max == 3);
        assert_eq!(others.member_rate, Rate::per_second(100, 7));
        assert_eq!(others.group_rate, Rate::UNLIMITED);
        let [(id, ninth)] = settings.named_groups(&settings.shared())[..] else { panic!() };
        assert_eq!(id, GroupId { port: PORT_DEFAULT, id: 9 });
        assert!(ninth.sequence && !ninth.token);
        assert_eq!((others.max_age_ms, ninth.max_age_ms), (250, 0));
        for wrong in [
            "5:max-age=2days",
            "5:max-age=1us",
            "5:max-age",
            "",
            "5",
            "x:token",
            "5:colour",
            "5:members",
            "5:members=-1",
            "5:rate=",
            "5:sequence=1",
        ] {
            assert!(wrong.parse::<GroupSetting>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_others_reach_needs_a_key_or_an_explicit_word() {
        let listening =
            |address: &str| Settings { listen: vec![address.parse().unwrap()], ..Settings::default() };
        assert!(listening("127.0.0.1:0").check().is_ok());
        assert!(listening("[::1]:0").check().is_ok());
        assert!(listening("0.0.0.0:0").check().is_err());
        let key = TokenKey::new(&ClusterKey::from_bytes([1; 32])).public();
        let keyed = Settings { token_key: vec![key], ..listening("192.0.2.1:7400") };
        assert!(keyed.check().is_ok() && keyed.default_group().token);
        // The cluster's key signs no tokens.
        let cluster = Settings { key: Some("key".into()), ..listening("192.0.2.1:7400") };
        assert!(cluster.check().is_err() && !cluster.default_group().token);
        let open = Settings { open: true, ..listening("[::]:0") };
        assert!(open.check().is_ok() && !open.default_group().token);
        let both = Settings { open: true, token_key: vec![key], ..listening("[::]:0") };
        assert!(!both.default_group().token);
    }
}
