//! `nacre serve`: runs a daemon of one or several roles.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use nacre::{Durability, Engine, Uri};
use nacre_daemon::reflect as reflector;
use nacre_daemon::{
    Beacons, Daemon, HTTP_ADDRESS_DEFAULT, Indexing, LEASE_MAX, LEASE_MIN, META_LEASE_MAX, META_LEASE_MIN,
    META_TAKEOVER_MAX, META_TAKEOVER_MIN, ServerOptions,
};
use nacre_quantity::Escaped;
use nacre_rpc::Address;
use serde_json::{Value, json};

use super::{daemon, reflect};
use crate::arguments::Common;
use crate::configuration;
use crate::failure::{Failure, advise_for_ceph};
use crate::output;
use crate::quantity::Time;
use crate::quantity::parse_size;

const AFTER_HELP: &str = "\
On SIGTERM, SIGHUP or Ctrl-C, the daemon accepts nothing more, finishes what it has accepted, and ends; a second signal, \
half a second later or more, ends it at once.";

/// Run a daemon that serves a store, reflects datagrams, or both, until Ctrl-C or SIGTERM
///
/// Here --store names what holds the objects: a folder, file:FOLDER, mem: for a store that is lost when the daemon
/// ends, or any other store, which the daemon then serves as a front end. The default is file:nacre-data. NACRE_STORE
/// is for clients, and is not read. Prints the addresses when clients can connect (with --json, as one line of JSON).
/// Every flag can also be set in nacre.toml by its name; the command line takes precedence.
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Read the settings from this file, which only its owner and group may be able to change [default: nacre.toml, if
    /// it exists; it must be yours or root's, and nobody else may be able to change it]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// A role of a daemon.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serve a store to clients
    Store,
    /// Grant locks on the store's objects
    Lock,
    /// Keep sequencers, or stand by for a daemon that does
    Meta,
    /// Reflect datagrams
    Reflect,
}

/// The way in which a lock server indexes what is held.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum LockTable {
    /// Access patterns as described
    Described,
    /// Every region individually
    Unrolled,
}

/// The settings that both the command line and the file may contain.
#[derive(clap::Args, Clone, Debug)]
struct Settings {
    /// Roles of the daemon, in any combination [default: store,lock,meta; only store in front of another store, unless
    /// --members names the daemons in front of it]
    #[arg(long, value_name = "ROLE", value_delimiter = ',', value_enum)]
    roles: Vec<Role>,
    /// Time after which a silent client loses its locks, 500ms to 1h [default: 10s]
    #[arg(long, value_name = "TIME")]
    lock_lease: Option<Time>,
    /// Consecutive bytes of a file that belong to one lock server; must be the same at all servers of the store
    /// [default: 64KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    lock_stripe: Option<u64>,
    /// Form in which the lock server keeps held locks; "unrolled" exists for comparison [default: described]
    #[arg(long, value_name = "KIND", value_enum)]
    lock_table: Option<LockTable>,
    /// Metadata rank that this daemon acts or stands by for, 0 to 1023 [default: 0]
    #[arg(long, value_name = "RANK", value_parser = super::rank::number())]
    meta_rank: Option<u32>,
    /// Time after which a silent client loses what it caches, such as a sequencer, 300ms to 1h [default: 3s]
    #[arg(long, value_name = "TIME")]
    meta_lease: Option<Time>,
    /// Time after which a standby takes over a silent metadata rank, 200ms to 1min [default: 600ms]
    #[arg(long, value_name = "TIME")]
    meta_takeover: Option<Time>,
    /// Setting of the role reflect: a flag of "nacre reflect serve" without its dashes, such as listen=0.0.0.0:7400;
    /// may be repeated. In the file, these settings are in the table [reflect]
    #[arg(long, value_name = "NAME[=VALUE]")]
    reflect: Vec<OsString>,
    /// Listen on this address: unix:PATH, or HOST:PORT, which requires --key or --open; port 0 picks a free one; may be
    /// repeated [default: the user's own socket, in $XDG_RUNTIME_DIR/nacre, /run/user/UID/nacre, or /tmp/nacre-UID,
    /// where clients of that user look for it]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    listen: Vec<OsString>,
    /// Without --key, let everyone who can reach an address HOST:PORT read and change everything, including every user
    /// of this machine
    #[arg(long)]
    open: bool,
    /// Mode of the Unix sockets; with one that lets in others than the owner, they are not authenticated [default:
    /// 0600]
    #[arg(long, value_name = "MODE")]
    socket_mode: Option<String>,
    /// Group of the Unix sockets, by name or number
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Addresses of all servers that form the store, including this one, as clients reach them [default: those of the
    /// store's last start, else only this one]
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    members: Vec<String>,
    /// The one of --members that this server is [default: the one in --listen]
    #[arg(long, value_name = "ADDRESS")]
    member: Option<String>,
    /// Version of the list in --members; must be raised when the list changes [default: 1]
    #[arg(long, value_name = "NUMBER", value_parser = nacre_quantity::count_parser::<u64>(1..=u64::MAX))]
    members_version: Option<u64>,
    /// Interval between beacons, by which the servers of a store monitor each other, at least 100ms, or "none"
    /// [default: 1s where several servers form the store, else none]
    #[arg(long, value_name = "TIME")]
    beacons: Option<String>,
    /// Time without beacons after which a server is marked down in the map "servers" [default: 3s]
    #[arg(long, value_name = "TIME")]
    down_after: Option<Time>,
    /// Condition for acknowledging a write: "always", it is on the device; "none", the system has it; or a time such as
    /// 50ms, the system has it and syncs it within that time [default: always]
    #[arg(long, value_name = "WHEN")]
    durability: Option<Durability>,
    /// Maximum size of the store: its log, its reserve and its snapshots [default: the space of the volume]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    capacity: Option<u64>,
    /// Size of a log segment [default: a 256th of the store's maximum size, up to 64MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    segment_bytes: Option<u64>,
    /// Write a snapshot of the index after this much log, the most that a start has to replay [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    snapshot_bytes: Option<u64>,
    /// Do not make updates of contended regions take turns
    #[arg(long)]
    no_pacing: bool,
    /// Count attempts and failures of every region, for "nacre info --regions"
    #[arg(long)]
    region_statistics: bool,
    /// Number of threads that serve connections, at most 1024 [default: one per processor, at most 4]
    #[arg(long, value_name = "COUNT", value_parser = crate::arguments::threads)]
    threads: Option<usize>,
    /// Time for which a thread that serves connections polls before it sleeps, at most 10ms; 0us to sleep at once
    /// [default: NACRE_POLL, which also applies to clients, else 200us]
    #[arg(long, value_name = "TIME", value_parser = nacre_rpc::poll::parse_time)]
    poll: Option<Duration>,
    /// Maximum number of open connections [default: 10000]
    #[arg(long, value_name = "COUNT", value_parser = crate::arguments::at_least_one)]
    connections_max: Option<usize>,
    /// Maximum memory of all connections together, at least 1MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    held_bytes_max: Option<u64>,
    /// Maximum size of the events and parts of replies that wait for one client, at least 65600 bytes; further events
    /// are dropped, and the client is told how many [default: 256KiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    mailbox_bytes_max: Option<u64>,
    /// Maximum number of connections that have not proven the key yet, in addition to --connections-max [default: 1000]
    #[arg(long, value_name = "COUNT", value_parser = crate::arguments::at_least_one)]
    unproven_max: Option<usize>,
    /// Maximum number of client sessions that outlive their connections; 0 for none [default: 20000]
    #[arg(long, value_name = "COUNT", value_parser = crate::arguments::count)]
    sessions_max: Option<usize>,
    /// Time for which a session waits for its client to reconnect, such as 30s, at most a day [default: 30s]
    #[arg(long, value_name = "TIME")]
    session_timeout: Option<Time>,
    #[command(flatten)]
    daemon: daemon::Settings,
}

/// The shortest time between two beacons.
const BEACONS_MIN: Duration = Duration::from_millis(100);
/// The longest stripe of a file: positions in a round of stripes can be counted for 4,096 servers.
const LOCK_STRIPE_MAX: u64 = 1 << 50;

impl Settings {
    /// Checks the settings of the role lock, which the daemon is to have or not.
    fn check_lock(&self, lock: bool) -> Result<(), Failure> {
        let given = [
            ("lock-lease", self.lock_lease.is_some()),
            ("lock-stripe", self.lock_stripe.is_some()),
            ("lock-table", self.lock_table.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given && !lock) {
            let text = format!("--{name} needs the role lock: give --roles store,lock");
            return Err(Failure::Usage(text));
        }
        if self.lock_lease.as_ref().is_some_and(|lease| !(LEASE_MIN..=LEASE_MAX).contains(&lease.0)) {
            return Err(Failure::Usage("--lock-lease is a time from 500ms to 1h".to_owned()));
        }
        if self.lock_stripe.is_some_and(|stripe| stripe == 0 || stripe > LOCK_STRIPE_MAX) {
            return Err(Failure::Usage("--lock-stripe is a size from 1 byte to 1PiB".to_owned()));
        }
        Ok(())
    }

    /// Checks the settings of the role meta, which the daemon is to have or not.
    fn check_meta(&self, meta: bool) -> Result<(), Failure> {
        let given = [
            ("meta-rank", self.meta_rank.is_some()),
            ("meta-lease", self.meta_lease.is_some()),
            ("meta-takeover", self.meta_takeover.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given && !meta) {
            let text = format!("--{name} needs the role meta: give --roles store,meta");
            return Err(Failure::Usage(text));
        }
        let lease = META_LEASE_MIN..=META_LEASE_MAX;
        if self.meta_lease.as_ref().is_some_and(|time| !lease.contains(&time.0)) {
            return Err(Failure::Usage("--meta-lease is a time from 300ms to 1h".to_owned()));
        }
        let takeover = META_TAKEOVER_MIN..=META_TAKEOVER_MAX;
        if self.meta_takeover.as_ref().is_some_and(|time| !takeover.contains(&time.0)) {
            return Err(Failure::Usage("--meta-takeover is a time from 200ms to 1min".to_owned()));
        }
        Ok(())
    }

    /// Checks the settings of beacons, and returns which are to be sent.
    fn beacons(&self) -> Result<Beacons, Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let down_after = self.down_after.as_ref().map_or(ServerOptions::default().down_after, |time| time.0);
        let beacons = match self.beacons.as_deref() {
            None => return Ok(Beacons::Default),
            Some("none") => return Ok(Beacons::None),
            Some(text) => match text.parse::<Time>() {
                Ok(time) => time.0,
                Err(error) => return usage(format!("--beacons {text}: {error}")),
            },
        };
        if beacons < BEACONS_MIN || beacons * 2 > down_after {
            return usage(format!("--beacons is at least {BEACONS_MIN:?}, and at most half of --down-after"));
        }
        Ok(Beacons::Every(beacons))
    }

    /// Converts the settings to the daemon's options.
    fn options(self, common: &Common) -> Result<ServerOptions, Failure> {
        let has = |role| self.roles.contains(&role) || self.roles.is_empty() && role == Role::Store;
        let default = ServerOptions::default();
        let store = match &common.store {
            Some(store) if has(Role::Store) => Some(store_uri(store, common)?),
            Some(store) => {
                let shown = Escaped::of(store);
                let text = format!(
                    "--store {shown}: a daemon without the role store keeps no objects; name a reflector's store \
                                    with --reflect store={shown}"
                );
                return Err(Failure::Usage(text));
            }
            None => default.store.clone().filter(|_| has(Role::Store)),
        };
        let lock = match &store {
            _ if !self.roles.is_empty() => has(Role::Lock),
            // Several of them would know nothing of each other's locks.
            Some(Uri { engine: Engine::Servers(_) | Engine::Rados(_), .. }) => !self.members.is_empty(),
            store => store.is_some(),
        };
        self.check_lock(lock)?;
        let meta = if self.roles.is_empty() { lock } else { has(Role::Meta) };
        self.check_meta(meta)?;
        let beacons = self.beacons()?;
        let reflect = match has(Role::Reflect) {
            true => Some(reflect_options(&self.reflect, common)?),
            false if self.reflect.is_empty() => None,
            false => {
                let text = "--reflect needs the role reflect: give --roles store,reflect or --roles reflect";
                return Err(Failure::Usage(text.into()));
            }
        };
        if self.members_version.is_some() && self.members.is_empty() {
            let text = "--members-version needs the list it applies to: give --members too";
            return Err(Failure::Usage(text.into()));
        }
        // A server on an address of its own must not collide with the one on the default address.
        let http = self.listen.is_empty().then_some(HTTP_ADDRESS_DEFAULT);
        let segment_bytes = self.segment_bytes.map(|bytes| u32::try_from(bytes).unwrap_or(u32::MAX));
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut options = ServerOptions {
            store,
            reflect,
            lock,
            lock_lease: self.lock_lease.map_or(default.lock_lease, |time| time.0),
            lock_stripe_bytes: self.lock_stripe.unwrap_or(default.lock_stripe_bytes),
            lock_table: match self.lock_table {
                Some(LockTable::Described) => Indexing::Described,
                Some(LockTable::Unrolled) => Indexing::Unrolled,
                None => default.lock_table,
            },
            meta,
            meta_rank: self.meta_rank.unwrap_or(default.meta_rank),
            meta_lease: self.meta_lease.map_or(default.meta_lease, |time| time.0),
            meta_takeover: self.meta_takeover.map_or(default.meta_takeover, |time| time.0),
            listen: self.listen,
            open: self.open,
            socket_mode: self.socket_mode.unwrap_or(default.socket_mode.clone()),
            socket_group: self.socket_group,
            members: self.members,
            member: self.member,
            members_version: self.members_version.unwrap_or(default.members_version),
            beacons,
            down_after: self.down_after.map_or(default.down_after, |time| time.0),
            key: common.key.clone(),
            durability: self.durability,
            capacity: self.capacity,
            segment_bytes,
            snapshot_bytes: self.snapshot_bytes,
            pacing: !self.no_pacing,
            region_statistics: self.region_statistics,
            threads: self.threads.unwrap_or(default.threads),
            poll: self.poll,
            connections_max: self.connections_max.unwrap_or(default.connections_max),
            held_bytes_max: self.held_bytes_max.map_or(default.held_bytes_max, bytes),
            mailbox_bytes_max: self.mailbox_bytes_max.map_or(default.mailbox_bytes_max, bytes),
            unproven_max: self.unproven_max.unwrap_or(default.unproven_max),
            sessions_max: self.sessions_max.unwrap_or(default.sessions_max),
            session_timeout: self.session_timeout.map_or(default.session_timeout, |time| time.0),
            ..default
        };
        self.daemon.apply(http, &mut options);
        Ok(options)
    }
}

/// Returns the uri of a store to be served, given as a uri or as a folder.
fn store_uri(text: &OsStr, common: &Common) -> Result<Uri, Failure> {
    if !text.is_empty() && !text.as_bytes().contains(&b':') {
        return Ok(Uri { engine: Engine::Folder(text.into()), options: Default::default() });
    }
    let mut uri = Uri::from_os_str(text)
        .map_err(|error| Failure::Usage(format!("{}; a server can also be given a folder", error.message)))?;
    match &uri.engine {
        Engine::Servers(_) if uri.options.key.is_none() => uri.options.key.clone_from(&common.key),
        Engine::Rados(_) => advise_for_ceph(),
        _ => {}
    }
    Ok(uri)
}

/// Returns the reflector's options. It opens its store with the daemon's key, unless it has one of its own.
fn reflect_options(pairs: &[OsString], common: &Common) -> Result<reflector::ServerOptions, Failure> {
    let mut settings = configuration::reflect_settings(pairs)?;
    settings.key = settings.key.or_else(|| common.key.clone());
    settings.options()
}

/// Runs `nacre serve`.
pub fn run(common: &Common, args: Args) -> Result<(), Failure> {
    daemon::log_to_stderr(&args.settings.daemon)?;
    let format = args.settings.daemon.log_format;
    let serve = || {
        let options = args.settings.options(common)?;
        let (json, open) = (common.json, options.open);
        // A server goes on, even if nothing reads its output.
        daemon::run(options, |daemon| drop(announce(json, open, daemon)))
    };
    daemon::logged(format, serve())
}

/// Announces that clients can connect, at which addresses, and whether access is open to everybody.
fn announce(json: bool, open: bool, daemon: &Daemon) -> io::Result<()> {
    let http = daemon.http_address().map(|address| format!("http://{address}"));
    let metrics = http.as_ref().map(|http| format!("{http}/metrics"));
    let reflecting = reflect::reflecting(daemon);
    if json {
        let uris: Vec<Value> = daemon.addresses().iter().map(daemon::uri_json).collect();
        let open = open && daemon.addresses().iter().any(|address| matches!(address, Address::Tcp(_)));
        let pid = std::process::id();
        let mut line = json!({
            "ready": true, "pid": pid, "addresses": uris, "open": open, "metrics": metrics, "http": http
        });
        if !reflecting.is_null() {
            line["reflect"] = reflecting;
        }
        output::line(&line.to_string())?;
    } else {
        for address in daemon.addresses() {
            let whom = match address {
                Address::Tcp(_) if open => ", open: whoever can reach it may read and change everything",
                _ => "",
            };
            output::line(&format!("listening on {}{whom}", Escaped::of(&daemon::uri(address))))?;
        }
        if let Some(reflector) = daemon.reflector() {
            for address in reflector.addresses() {
                output::line(&format!("reflecting on {address}, by the {} plane", reflector.plane()))?;
            }
        }
        if let Some(metrics) = metrics {
            output::line(&format!("metrics at {metrics}"))?;
        }
        output::line("ready")?;
    }
    output::flush()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn options(words: &[&str], store: Option<&str>) -> Result<ServerOptions, Failure> {
        let line = Line::try_parse_from([&["serve"], words].concat()).unwrap();
        let common = Common { store: store.map(OsString::from), key: None, fence: None, json: false };
        line.args.settings.options(&common)
    }

    #[test]
    fn http_is_on_by_default_only_where_the_address_is_the_default() {
        let http = |words: &[&str]| options(words, None).unwrap().http;
        assert_eq!(http(&[]).as_deref(), Some("127.0.0.1:6471"));
        assert_eq!(http(&["--listen", "127.0.0.1:0"]), None);
        assert_eq!(
            http(&["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]).as_deref(),
            Some("127.0.0.1:0")
        );
        assert_eq!(http(&["--http", "none"]), None);
        assert_eq!(http(&["--metrics", "none"]), None, "the name of before");
    }

    #[test]
    fn a_store_is_a_folder_or_a_uri() {
        let engine = |store: &str| options(&[], Some(store)).unwrap().store.unwrap().engine;
        assert_eq!(engine("data"), Engine::Folder("data".into()));
        assert_eq!(engine("file:/a:b"), Engine::Folder("/a:b".into()));
        let raw = OsStr::from_bytes(b"data\xff");
        let common = Common { store: Some(raw.to_owned()), key: None, fence: None, json: false };
        let line = Line::try_parse_from(["serve"]).unwrap();
        let store = line.args.settings.options(&common).unwrap().store.unwrap();
        assert_eq!(store.engine, Engine::Folder(raw.into()));
        assert_eq!(engine("mem:"), Engine::Memory);
        assert!(matches!(engine("nacre://a"), Engine::Servers(_)));
        assert!(matches!(engine("rados://pool"), Engine::Rados(_)));
        for wrong in ["", "file:", "mem:x", "x:y"] {
            assert!(matches!(options(&[], Some(wrong)), Err(Failure::Usage(_))), "{wrong}");
        }
    }

    #[test]
    fn roles_are_what_is_asked_for() {
        let roles = |words: &[&str]| {
            let options = options(words, None).unwrap();
            (options.store.is_some(), options.reflect.is_some())
        };
        assert_eq!(roles(&[]), (true, false));
        assert_eq!(roles(&["--roles", "store,reflect"]), (true, true));
        assert_eq!(roles(&["--roles", "reflect", "--reflect", "listen=127.0.0.1:0"]), (false, true));
        for words in [
            &["--reflect", "open"][..],
            &["--roles", "reflect", "--reflect", "colour=red"],
            &["--roles", "reflect", "--reflect", "listen=0.0.0.0:0"],
        ] {
            assert!(matches!(options(words, None), Err(Failure::Usage(_))), "{words:?}");
        }
        assert!(matches!(options(&["--roles", "reflect"], Some("mem:")), Err(Failure::Usage(_))));
    }
}
