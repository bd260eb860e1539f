//! `nacre serve`: the server.

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use nacre::ObjectStore;
use nacre_logstore::{Durability, LogStore, Options};
use nacre_wire::server::ServerOptions;
use nacre_wire::{Address, PORT_DEFAULT, Server};
use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
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
    /// What keeps the objects: a folder, file:FOLDER, or mem: for a store that is gone when the server ends
    /// [default: file:nacre-data]
    #[arg(skip)]
    store: Option<String>,
    #[arg(skip)]
    key: Option<PathBuf>,
    /// Listen on this address: HOST:PORT, where port 0 is any free one, or unix:PATH; may be given several times
    /// [default: 127.0.0.1:6470]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    listen: Vec<String>,
    /// When a write is acknowledged: "always" when it is on the device; "none" when the system has it; or a time such
    /// as 50ms: when the system has it, which then has so long to sync it [default: always]
    #[arg(long, value_name = "WHEN")]
    durability: Option<String>,
    /// Size of the segments of the log [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    segment_size: Option<Size>,
    /// Write the index down after so much log: what a start has to replay at most [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    snapshot_size: Option<Size>,
    /// Threads that serve connections [default: one for each processor, at most 4]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// What to log on standard error: error, warn, info, debug, trace, or a filter such as nacre_wire=debug [default:
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
            listen: if self.listen.is_empty() { other.listen } else { self.listen },
            durability: self.durability.or(other.durability),
            segment_size: self.segment_size.or(other.segment_size),
            snapshot_size: self.snapshot_size.or(other.snapshot_size),
            threads: self.threads.or(other.threads),
            log: self.log.or(other.log),
        }
    }
}

/// Where the served store is.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Folder(PathBuf),
}

fn place(store: &str) -> Result<Place, Failure> {
    match store.split_once(':') {
        None if !store.is_empty() => Ok(Place::Folder(store.into())),
        Some(("mem", "")) => Ok(Place::Memory),
        Some(("file", path)) if !path.is_empty() => Ok(Place::Folder(path.into())),
        _ => Err(Failure::Usage(format!(
            "\"{store}\" is not what a server can keep objects in; name a folder, file:FOLDER or mem:"
        ))),
    }
}

fn parse_durability(text: &str) -> Result<Durability, Failure> {
    match text {
        "always" => Ok(Durability::Always),
        "none" => Ok(Durability::None),
        _ => match quantity::parse_time(text) {
            Ok(time) => Ok(Durability::Interval(time)),
            Err(_) => Err(Failure::Usage(format!(
                "durability \"{text}\" is neither always nor none nor a time such as 50ms"
            ))),
        },
    }
}

/// Runs `nacre serve`.
pub fn run(common: &Common, args: Args) -> Result<(), Failure> {
    let mut settings = args.settings;
    (settings.store, settings.key) = (common.store.clone(), common.key.clone());
    let settings = settings.or(Settings::read(args.config.as_deref())?);
    log_to_stderr(settings.log.as_deref().unwrap_or("info"))?;
    let usage = |error: nacre::Error| Failure::Usage(error.message);

    let default = format!("127.0.0.1:{PORT_DEFAULT}");
    let listen = if settings.listen.is_empty() { vec![default] } else { settings.listen };
    let listen: Vec<Address> =
        listen.iter().map(|text| text.parse().map_err(usage)).collect::<Result<_, _>>()?;
    let mut options = Options::default();
    if let Some(durability) = &settings.durability {
        options.durability = parse_durability(durability)?;
    }
    if let Some(Size(bytes)) = settings.segment_size {
        options.segment_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
    }
    if let Some(Size(bytes)) = settings.snapshot_size {
        options.snapshot_bytes = bytes;
    }
    let place = place(settings.store.as_deref().unwrap_or("file:nacre-data"))?;

    let store = match &place {
        Place::Memory => LogStore::memory(options),
        Place::Folder(path) => LogStore::open(path, options)?,
    };
    let objects: Arc<dyn ObjectStore> = Arc::new(store.clone());
    let threads = settings.threads.unwrap_or(0);
    let server = Server::start(objects, ServerOptions { listen, threads, ..ServerOptions::default() })?;

    super::block_on(async {
        // The signals are caught before anybody is told that the server is up, so that it can be ended properly from
        // that moment on.
        let caught = |error| Failure::Failed(format!("cannot catch signals: {error}"));
        let mut interrupt = signal(SignalKind::interrupt()).map_err(caught)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(caught)?;
        announce(common.json, server.addresses())?;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        Ok(())
    })?;
    tracing::info!("stopping: finishing what was accepted");
    server.stop();
    store.close()?;
    tracing::info!("stopped");
    Ok(())
}

/// Says that clients can connect, and where.
fn announce(json: bool, addresses: &[Address]) -> Result<(), Failure> {
    let uris: Vec<String> = addresses.iter().map(uri).collect();
    if json {
        let line = json!({ "ready": true, "pid": std::process::id(), "addresses": uris });
        output::line(&line.to_string())?;
    } else {
        for uri in &uris {
            output::line(&format!("listening on {uri}"))?;
        }
        output::line("ready")?;
    }
    Ok(output::flush()?)
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
            "listen = [\"127.0.0.1:1\"]\nstore = \"file:x\"\nsegment-size = \"64KiB\"\nsnapshot-size = 1024\nlog = \"warn\"",
        )
        .unwrap();
        let line = Settings { log: Some("debug".into()), ..Settings::default() };
        let both = line.or(file);
        assert_eq!(both.log.as_deref(), Some("debug"));
        assert_eq!(both.listen, ["127.0.0.1:1"]);
        assert_eq!((both.segment_size, both.snapshot_size), (Some(Size(65536)), Some(Size(1024))));
    }

    #[test]
    fn unknown_and_wrong_settings_are_refused() {
        for wrong in ["colour = \"red\"", "segment-size = -1", "segment-size = \"large\"", "listen = 5", "[x"]
        {
            assert!(toml::from_str::<Settings>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durability_is_a_word_or_a_time() {
        assert_eq!(parse_durability("always").unwrap(), Durability::Always);
        assert_eq!(
            parse_durability("50ms").unwrap(),
            Durability::Interval(std::time::Duration::from_millis(50))
        );
        assert!(parse_durability("sometimes").is_err() && parse_durability("0ms").is_err());
    }

    #[test]
    fn a_store_is_a_folder_or_memory() {
        assert_eq!(place("data").unwrap(), Place::Folder("data".into()));
        assert_eq!(place("file:/a:b").unwrap(), Place::Folder("/a:b".into()));
        assert_eq!(place("mem:").unwrap(), Place::Memory);
        for wrong in ["", "file:", "mem:x", "nacre://a"] {
            assert!(place(wrong).is_err(), "{wrong}");
        }
    }
}
