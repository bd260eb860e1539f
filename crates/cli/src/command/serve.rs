//! `nacre serve`: the server.

use std::fmt;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nacre::ErrorKind;
use nacre_daemon::{Daemon, ServerOptions};
use nacre_rpc::Address;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tracing_subscriber::EnvFilter;

use crate::arguments::Common;
use crate::failure::Failure;
use crate::{output, quantity};

/// Serve a store to clients, until Ctrl-C or SIGTERM
///
/// Here --store says what keeps the objects: a folder, file:FOLDER, or mem: for a store that is gone when the server ends;
/// file:nacre-data by default. Prints the addresses when clients can connect (with --json, as one line of JSON). Every
/// flag may stand in nacre.toml under its name; what is said on the command line wins.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Read the settings from this file [default: nacre.toml, if there is one]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// What can be set, on the command line and in the file alike.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Settings {
    // These two are flags of every command.
    #[arg(skip)]
    store: Option<String>,
    #[arg(skip)]
    key: Option<PathBuf>,
    /// Another command's part of the file.
    #[arg(skip)]
    reflect: IgnoredAny,
    /// Listen on this address: unix:PATH, or HOST:PORT, where port 0 is any free one, and which needs --key or --open; may
    /// be given several times [default: the user's own socket, in $XDG_RUNTIME_DIR/nacre, /run/user/UID/nacre, or
    /// /tmp/nacre-UID, where clients of that user look for it]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    listen: Vec<String>,
    /// Let everybody who can reach an address HOST:PORT read and change everything, every user of this machine included,
    /// where there is no --key
    #[arg(long)]
    open: bool,
    /// Mode of the Unix sockets; with one that lets others than the owner in, they are not asked who they are [default:
    /// 0600]
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
    /// Group of the Unix sockets, by name or number
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// The addresses of all servers that keep the store together, this one included, as clients are to reach them [default:
    /// what the store was started with before, else none but this one]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    members: Vec<String>,
    /// Which of --members this server is [default: the one that is in --listen]
    #[arg(long, value_name = "ADDRESS")]
    member: Option<String>,
    /// Version of the list of members, which must grow when the list is changed [default: 1]
    #[arg(long, value_name = "NUMBER")]
    members_version: Option<u64>,
    /// Serve /metrics, /healthz and a status page over HTTP on this address, or "none" [default: 127.0.0.1:6471 if it is
    /// free and --listen is not given, else none]
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// When a write is acknowledged: "always" when it is on the device; "none" when the system has it; or a time such
    /// as 50ms: when the system has it, which then has so long to sync it [default: always]
    #[arg(long, value_name = "WHEN")]
    durability: Option<String>,
    /// The most that the store may take: its log, what it keeps in reserve, and its snapshots [default: what the volume
    /// has]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Size>,
    /// Size of the segments of the log [default: a 256th of what the store may take, up to 64MiB]
    #[arg(long, value_name = "SIZE")]
    segment_bytes: Option<Size>,
    /// Write the index down after so much log: what a start has to replay at most [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    snapshot_bytes: Option<Size>,
    /// Do not let updates of contended regions take turns
    #[arg(long)]
    no_pacing: bool,
    /// Count attempts and failures for every region, for "nacre info --regions"
    #[arg(long)]
    region_statistics: bool,
    /// Threads that serve connections [default: one for each processor, at most 4]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Connections that may be open at once [default: 10000]
    #[arg(long, value_name = "COUNT", value_parser = crate::arguments::at_least_one)]
    connections_max: Option<usize>,
    /// Memory that all connections together may hold
    #[arg(long, value_name = "SIZE")]
    held_bytes_max: Option<Size>,
    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as nacre_rpc=debug [default:
    /// info]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
}

/// A size, written as a number of bytes or with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size(u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        quantity::parse_size(text).map(Size)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Size;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 4096 or \"64KiB\"")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Size, E> {
                u64::try_from(number).map(Size).map_err(|_| E::custom("a size is not negative"))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl Settings {
    /// Reads the file with the settings.
    fn read(path: Option<&Path>) -> Result<Settings, Failure> {
        let default = Path::new("nacre.toml");
        let path = match path {
            Some(path) => path,
            None if default.exists() => default,
            None => return Ok(Settings::default()),
        };
        let shown = path.display();
        let text =
            std::fs::read_to_string(path).map_err(Failure::io(format!("read the settings in {shown}")))?;
        toml::from_str(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            let why = error.message().replace('\n', " ");
            Failure::Usage(format!(
                "line {line} of {shown}: {why}; \"nacre serve --help\" explains the settings"
            ))
        })
    }

    /// These settings, completed by others.
    fn or(self, other: Settings) -> Settings {
        Settings {
            store: self.store.or(other.store),
            key: self.key.or(other.key),
            reflect: IgnoredAny,
            listen: if self.listen.is_empty() { other.listen } else { self.listen },
            open: self.open || other.open,
            socket_mode: self.socket_mode.or(other.socket_mode),
            socket_group: self.socket_group.or(other.socket_group),
            members: if self.members.is_empty() { other.members } else { self.members },
            member: self.member.or(other.member),
            members_version: self.members_version.or(other.members_version),
            metrics: self.metrics.or(other.metrics),
            durability: self.durability.or(other.durability),
            capacity: self.capacity.or(other.capacity),
            segment_bytes: self.segment_bytes.or(other.segment_bytes),
            snapshot_bytes: self.snapshot_bytes.or(other.snapshot_bytes),
            no_pacing: self.no_pacing || other.no_pacing,
            region_statistics: self.region_statistics || other.region_statistics,
            threads: self.threads.or(other.threads),
            connections_max: self.connections_max.or(other.connections_max),
            held_bytes_max: self.held_bytes_max.or(other.held_bytes_max),
            log: self.log.or(other.log),
        }
    }
}

impl Settings {
    /// The same as the server understands it.
    fn options(self) -> Result<ServerOptions, Failure> {
        let default = ServerOptions::default();
        let metrics = match self.metrics.as_deref() {
            // A server on an address of its own must not collide with the one on the default address.
            None if self.listen.is_empty() => default.metrics,
            None | Some("none") => None,
            Some(address) => Some(address.to_owned()),
        };
        let data = match &self.store {
            Some(store) => folder(store)?,
            None => default.data,
        };
        Ok(ServerOptions {
            data,
            metrics,
            metrics_if_free: self.metrics.is_none(),
            listen: self.listen,
            open: self.open,
            socket_mode: self.socket_mode.unwrap_or(default.socket_mode),
            socket_group: self.socket_group,
            members: self.members,
            member: self.member,
            members_version: self.members_version.unwrap_or(default.members_version),
            key: self.key,
            durability: self.durability.unwrap_or(default.durability),
            capacity: self.capacity.map(|size| size.0).or(default.capacity),
            segment_bytes: self
                .segment_bytes
                .map_or(default.segment_bytes, |size| u32::try_from(size.0).unwrap_or(u32::MAX)),
            snapshot_bytes: self.snapshot_bytes.map_or(default.snapshot_bytes, |size| size.0),
            pacing: !self.no_pacing,
            region_statistics: self.region_statistics,
            threads: self.threads.unwrap_or(default.threads),
            connections_max: self.connections_max.unwrap_or(default.connections_max),
            held_bytes_max: self.held_bytes_max.map_or(default.held_bytes_max, |size| size.0 as usize),
            ..default
        })
    }
}

/// The folder that a store is in, or `None` for one in memory.
fn folder(store: &str) -> Result<Option<PathBuf>, Failure> {
    match store.split_once(':') {
        None if !store.is_empty() => Ok(Some(store.into())),
        Some(("mem", "")) => Ok(None),
        Some(("file", path)) if !path.is_empty() => Ok(Some(path.into())),
        _ => Err(Failure::Usage(format!(
            "\"{store}\" is not what a server can keep objects in; name a folder, file:FOLDER or mem:"
        ))),
    }
}

/// Runs `nacre serve`.
pub fn run(common: &Common, args: Args) -> Result<(), Failure> {
    let mut settings = args.settings;
    (settings.store, settings.key) = (common.store.clone(), common.key.clone());
    let settings = settings.or(Settings::read(args.config.as_deref())?);
    log_to_stderr(settings.log.as_deref().unwrap_or("info"))?;
    let options = settings.options()?;
    let (json, open) = (common.json, options.open);
    super::block_on(async {
        // The signals are caught before anybody is told that the server is up, so that it can be stopped in good order
        // from that moment on.
        let stop = nacre_daemon::signalled()?;
        // A server goes on, even if nobody reads what it says.
        let served = nacre_daemon::run(options, |daemon| drop(announce(json, open, daemon)), stop).await;
        served.map_err(|error| match error.kind {
            ErrorKind::Invalid => Failure::Usage(error.message),
            _ => error.into(),
        })
    })
}

/// Says that clients can connect, and where; and if anybody can.
fn announce(json: bool, open: bool, daemon: &Daemon) -> io::Result<()> {
    let uris: Vec<String> = daemon.addresses().iter().map(uri).collect();
    let metrics = daemon.metrics_address().map(|address| format!("http://{address}/metrics"));
    if json {
        let open = open && daemon.addresses().iter().any(|address| matches!(address, Address::Tcp(_)));
        let pid = std::process::id();
        let line = json!({ "ready": true, "pid": pid, "addresses": uris, "open": open, "metrics": metrics });
        output::line(&line.to_string())?;
    } else {
        for (uri, address) in uris.iter().zip(daemon.addresses()) {
            let whom = match address {
                Address::Tcp(_) if open => ", open: whoever can reach it may read and change everything",
                _ => "",
            };
            output::line(&format!("listening on {uri}{whom}"))?;
        }
        if let Some(metrics) = metrics {
            output::line(&format!("metrics at {metrics}"))?;
        }
        output::line("ready")?;
    }
    output::flush()
}

/// An address as a client names it.
fn uri(address: &Address) -> String {
    match address {
        Address::Tcp(address) => format!("nacre://{address}"),
        Address::Unix(_) => address.to_string(),
    }
}

fn log_to_stderr(filter: &str) -> Result<(), Failure> {
    let filter: EnvFilter = filter.parse().map_err(|error| {
        Failure::Usage(format!(
            "\"{filter}\" says nothing about what to log: {error}; write --log info, for example"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_the_names_of_the_flags_and_the_line_wins() {
        let file: Settings = toml::from_str(
            "listen = [\"127.0.0.1:1\"]\nstore = \"file:x\"\nsegment-bytes = \"64KiB\"\ncapacity = \"1GiB\"\nsnapshot-bytes = 1024\nno-pacing = true\nlog = \"warn\"\n[reflect]\nopen = true",
        )
        .unwrap();
        let line = Settings { log: Some("debug".into()), ..Settings::default() };
        let both = line.or(file);
        assert_eq!(both.log.as_deref(), Some("debug"));
        assert_eq!(both.listen, ["127.0.0.1:1"]);
        assert!(both.no_pacing && !both.region_statistics);
        assert_eq!(both.capacity, Some(Size(1 << 30)));
        assert_eq!((both.segment_bytes, both.snapshot_bytes), (Some(Size(65536)), Some(Size(1024))));
    }

    #[test]
    fn unknown_and_wrong_settings_are_refused() {
        for wrong in
            ["colour = \"red\"", "segment-bytes = -1", "segment-bytes = \"large\"", "listen = 5", "[x"]
        {
            assert!(toml::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn metrics_are_on_by_default_only_where_the_address_is_the_default() {
        let metrics = |listen: &[&str], metrics: Option<&str>| {
            let listen = listen.iter().map(|text| text.to_string()).collect();
            let metrics = metrics.map(str::to_owned);
            Settings { listen, metrics, ..Settings::default() }.options().unwrap().metrics
        };
        assert_eq!(metrics(&[], None).as_deref(), Some("127.0.0.1:6471"));
        assert_eq!(metrics(&["127.0.0.1:0"], None), None);
        assert_eq!(metrics(&["127.0.0.1:0"], Some("127.0.0.1:0")).as_deref(), Some("127.0.0.1:0"));
        assert_eq!(metrics(&[], Some("none")), None);
    }

    #[test]
    fn a_store_is_a_folder_or_memory() {
        assert_eq!(folder("data").unwrap(), Some("data".into()));
        assert_eq!(folder("file:/a:b").unwrap(), Some("/a:b".into()));
        assert_eq!(folder("mem:").unwrap(), None);
        for wrong in ["", "file:", "mem:x", "nacre://a"] {
            assert!(folder(wrong).is_err(), "{wrong}");
        }
    }
}
