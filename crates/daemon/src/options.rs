//! The settings of a daemon. The names of the fields, with dashes, are those of the flags and of the configuration
//! file.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use nacre::{Durability, Engine, Uri};
use nacre_lock::table::Indexing;
use nacre_object::pace::PaceOptions;
use nacre_object::{ErrorKind, Escaped, StoreError};
use nacre_rpc::limit::{EVENT_BYTES_MAX, EVENT_OVERHEAD_BYTES};
use nacre_rpc::socket::{self, SOCKET_MODE_DEFAULT};
use nacre_rpc::{Address, ServerLimits, SocketAccess};

/// The default address of the HTTP listener.
pub const HTTP_ADDRESS_DEFAULT: &str = "127.0.0.1:6471";
/// The default number of bytes of a file in a row that are one lock server's.
pub const LOCK_STRIPE_BYTES_DEFAULT: u64 = 64 << 10;
/// The default folder of the store.
pub const FOLDER_DEFAULT: &str = "nacre-data";

/// The smallest account of memory that a server may be given, in bytes.
const HELD_BYTES_MIN: usize = 1 << 20;
/// The smallest mailbox that a connection may be given, in bytes: one that the largest event fits into.
pub const MAILBOX_BYTES_MIN: usize = EVENT_BYTES_MAX + EVENT_OVERHEAD_BYTES;
/// The longest time for which sessions wait for their clients.
const SESSION_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The beacons of a daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beacons {
    /// One each second where several servers keep a store together, else none.
    #[default]
    Default,
    /// None.
    None,
    /// One each time that so much has passed.
    Every(Duration),
}

/// The settings of a daemon: those of each role, and the shared ones.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The store to serve, for the role `store`. A store in a folder is created if it does not exist. For a store that
    /// is neither in a folder nor in memory, the daemon acts as a front end.
    pub store: Option<Uri>,
    /// The reflector to run, for the role `reflect`. Unless it has a store of its own, it keeps states and locations in
    /// the daemon's, or without one in memory.
    pub reflect: Option<crate::reflect::ServerOptions>,
    /// Grants locks on the objects of the store: the role `lock`. Of several daemons in front of one store only
    /// one may: they know nothing of each other's locks.
    pub lock: bool,
    /// The time after which the lock session of a client that is not heard of lapses.
    pub lock_lease: Duration,
    /// The bytes of a file in a row that are one lock server's, the same at all servers of a store.
    pub lock_stripe_bytes: u64,
    /// The way in which the lock server indexes what is held. [`Indexing::Unrolled`] is there to be compared with: it keeps
    /// every region singly, and refuses patterns of more than 2^20.
    pub lock_table: Indexing,
    /// Runs a metadata rank, which keeps its state in the store: the role `meta`. Of several daemons of one rank on one store one
    /// has the authority, and the others stand by.
    pub meta: bool,
    /// The number of that rank.
    pub meta_rank: u32,
    /// The time after which the session of a client that holds capabilities and is not heard of lapses.
    pub meta_lease: Duration,
    /// The time after which a daemon that stands by takes over from a rank that it does not hear of.
    pub meta_takeover: Duration,
    /// The addresses to serve clients on: `unix:PATH`, or `HOST:PORT`, which needs `key` or `open`. If empty, the
    /// socket of the user that the server runs as: see [`nacre_rpc::socket::own_socket_for_server`].
    pub listen: Vec<OsString>,
    /// Lets the daemon run without these addresses, and so without administration, if it cannot listen on them. Not for
    /// the role `store`.
    pub listen_if_possible: bool,
    /// The mode of the Unix sockets, in octal digits. If it grants access to the owner alone, only the server's own
    /// user and root are served.
    pub socket_mode: String,
    /// The group of the Unix sockets, by name or number, instead of the process's own.
    pub socket_group: Option<String>,
    /// The address of `/metrics`, `/healthz` and the status page; `None` to serve none of them.
    pub http: Option<String>,
    /// Lets the daemon run without HTTP if the address is in use already.
    pub http_if_free: bool,
    /// Allows `http` to be an address other than loopback.
    pub http_open: bool,
    /// Further names accepted in the `Host` of HTTP requests, besides those of loopback and the listener's own address.
    pub http_hosts: Vec<String>,
    /// The file with the cluster key; with one, every client must prove that it has the key too.
    pub key: Option<PathBuf>,
    /// True if TCP addresses may be served without a key, which gives full access to anybody who can reach them.
    pub open: bool,
    /// The addresses of all servers that keep the store together. If empty, the list that the store was started with
    /// before applies, or the server keeps the store by itself.
    pub members: Vec<String>,
    /// The one of `members` that this server is; may be omitted if it is one of `listen`.
    pub member: Option<String>,
    /// The version of the list of members, which must grow when the list changes.
    pub members_version: u64,
    /// The beacons that the daemon sends.
    pub beacons: Beacons,
    /// The time without beacons after which a server is marked down.
    pub down_after: Duration,
    /// The point at which acknowledged writes are on the medium. This and the next three are settings of a store in a
    /// folder or in memory; `None` stands for the value in the uri, or the engine's default.
    pub durability: Option<Durability>,
    /// The size of a segment of the log, in bytes; 0 to derive it from the capacity, or otherwise from the volume's
    /// size.
    pub segment_bytes: Option<u32>,
    /// The most space that the store may take, in bytes: its log, its reserve and its snapshots. `None` for the whole
    /// volume.
    pub capacity: Option<u64>,
    /// The size of log that may accumulate before the index is written again, in bytes.
    pub snapshot_bytes: Option<u64>,
    /// True if updates of contended regions take turns.
    pub pacing: bool,
    /// True if attempts and failures are counted for every region, for clients to query.
    pub region_statistics: bool,
    /// The number of threads that serve clients; 0 for one per processor, and at most four.
    pub threads: usize,
    /// The time for which such a thread polls before it sleeps; `None` for that of the environment, or 200 µs.
    pub poll: Option<Duration>,
    /// The number of connections that may be open.
    pub connections_max: usize,
    /// The bytes that all connections together may hold.
    pub held_bytes_max: usize,
    /// The bytes of events and of parts of replies that may wait for one client, at least [`MAILBOX_BYTES_MIN`].
    pub mailbox_bytes_max: usize,
    /// The number of connections that may be open besides `connections_max` before they have passed the handshake.
    pub unproven_max: usize,
    /// The number of sessions that outlive their connections; 0 to keep none.
    pub sessions_max: usize,
    /// The time for which a session waits for its client to come back.
    pub session_timeout: Duration,
    /// The time that a peer has for the handshake, in milliseconds.
    pub handshake_timeout_ms: u64,
    /// The time after which a peer that leaves a request half sent, or replies unread, is disconnected, in
    /// milliseconds.
    pub stall_timeout_ms: u64,
}

impl Default for ServerOptions {
    fn default() -> Self {
        let limits = ServerLimits::default();
        Self {
            store: Some(Uri { engine: Engine::Folder(FOLDER_DEFAULT.into()), options: Default::default() }),
            reflect: None,
            lock: false,
            lock_lease: nacre_lock::server::Settings::default().lease,
            lock_stripe_bytes: LOCK_STRIPE_BYTES_DEFAULT,
            lock_table: Indexing::default(),
            meta: false,
            meta_rank: 0,
            meta_lease: nacre_meta::role::LEASE_DEFAULT,
            meta_takeover: nacre_meta::role::TAKEOVER_DEFAULT,
            listen: Vec::new(),
            listen_if_possible: false,
            socket_mode: format!("{SOCKET_MODE_DEFAULT:04o}"),
            socket_group: None,
            http: Some(HTTP_ADDRESS_DEFAULT.to_owned()),
            http_if_free: false,
            http_open: false,
            http_hosts: Vec::new(),
            key: None,
            open: false,
            members: Vec::new(),
            member: None,
            members_version: 1,
            beacons: Beacons::default(),
            down_after: nacre_map::health::Settings::default().silence,
            durability: None,
            segment_bytes: None,
            capacity: None,
            snapshot_bytes: None,
            pacing: true,
            region_statistics: false,
            threads: 0,
            poll: None,
            connections_max: limits.connections_max,
            held_bytes_max: limits.held_bytes_max,
            mailbox_bytes_max: limits.mailbox_bytes_max,
            unproven_max: limits.unproven_max,
            sessions_max: limits.sessions_max,
            session_timeout: limits.session_timeout,
            handshake_timeout_ms: limits.handshake_timeout.as_millis() as u64,
            stall_timeout_ms: limits.stall_timeout.as_millis() as u64,
        }
    }
}

impl ServerOptions {
    /// Returns the addresses to listen on, which may be none.
    pub(crate) fn addresses(&self) -> Result<Vec<Address>, StoreError> {
        if self.listen.is_empty() {
            return Ok(vec![Address::Unix(socket::own_socket_for_server()?)]);
        }
        match &self.listen[..] {
            [none] if none == "none" => Ok(Vec::new()),
            listen => listen.iter().map(|address| Address::from_os_str(address)).collect(),
        }
    }

    /// Returns the access to the Unix sockets.
    pub(crate) fn socket_access(&self) -> Result<SocketAccess, StoreError> {
        let invalid = |text: String| StoreError::new(ErrorKind::Invalid, text);
        let digits = self.socket_mode.bytes().all(|digit| digit.is_ascii_digit());
        let mode = u32::from_str_radix(&self.socket_mode, 8).ok().filter(|mode| digits && *mode <= 0o777);
        let mode = mode.ok_or_else(|| {
            invalid(format!(
                "socket mode \"{}\" is not octal digits such as 0660",
                Escaped::of(&self.socket_mode)
            ))
        })?;
        let group = match &self.socket_group {
            None => None,
            Some(name) => Some(socket::group_number(name).ok_or_else(|| {
                invalid(format!("socket group \"{}\" is not a group of this machine", Escaped::of(name)))
            })?),
        };
        Ok(SocketAccess { mode, group })
    }

    pub(crate) fn pace_options(&self) -> PaceOptions {
        PaceOptions { pacing: self.pacing, statistics: self.region_statistics, ..Default::default() }
    }

    /// Returns the limits of connections.
    pub(crate) fn limits(&self) -> Result<ServerLimits, StoreError> {
        let invalid = |text: String| Err(StoreError::new(ErrorKind::Invalid, text));
        let (held, mailbox) = (self.held_bytes_max, self.mailbox_bytes_max);
        if held < HELD_BYTES_MIN {
            return invalid(format!(
                "held-bytes-max is {held} bytes, and a server needs at least {HELD_BYTES_MIN} for the requests of its clients"
            ));
        }
        if mailbox < MAILBOX_BYTES_MIN {
            return invalid(format!(
                "mailbox-bytes-max is {mailbox} bytes; at least {MAILBOX_BYTES_MIN} are needed, so that the largest event fits"
            ));
        }
        if mailbox > held {
            return invalid(format!(
                "mailbox-bytes-max is {mailbox} bytes, more than the {held} of held-bytes-max, which all connections together \
                 may hold"
            ));
        }
        if self.connections_max == 0 || self.unproven_max == 0 {
            return invalid(
                "connections-max and unproven-max must be at least 1, or no client can connect".to_owned(),
            );
        }
        if self.session_timeout > SESSION_TIMEOUT_MAX {
            return invalid(format!(
                "session-timeout is {} s; a session waits for its client for a day at most",
                self.session_timeout.as_secs()
            ));
        }
        Ok(ServerLimits {
            connections_max: self.connections_max,
            held_bytes_max: held,
            mailbox_bytes_max: mailbox,
            unproven_max: self.unproven_max,
            sessions_max: self.sessions_max,
            session_timeout: self.session_timeout,
            handshake_timeout: Duration::from_millis(self.handshake_timeout_ms.max(1)),
            stall_timeout: Duration::from_millis(self.stall_timeout_ms.max(2)),
            ..Default::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_make_no_sense_are_refused_with_a_sentence() {
        assert!(ServerOptions::default().limits().is_ok());
        let default = ServerOptions::default;
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(ServerOptions { session_timeout: day, sessions_max: 0, ..default() }.limits().is_ok());
        for (name, wrong) in [
            ("held-bytes-max", ServerOptions { held_bytes_max: 0, ..default() }),
            ("mailbox-bytes-max", ServerOptions { mailbox_bytes_max: EVENT_BYTES_MAX, ..default() }),
            ("held-bytes-max", ServerOptions { mailbox_bytes_max: 2 << 30, ..default() }),
            ("connections-max", ServerOptions { connections_max: 0, ..default() }),
            ("unproven-max", ServerOptions { unproven_max: 0, ..default() }),
            ("session-timeout", ServerOptions { session_timeout: day * 2, ..default() }),
        ] {
            let error = wrong.limits().unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && error.message.contains(name), "{error}");
        }
    }

    #[test]
    fn the_mode_and_the_group_of_sockets_are_checked() {
        let access = |mode: &str, group: Option<&str>| {
            let (socket_mode, socket_group) = (mode.to_owned(), group.map(str::to_owned));
            ServerOptions { socket_mode, socket_group, ..Default::default() }.socket_access()
        };
        assert_eq!(access("0660", Some("0")).unwrap(), SocketAccess { mode: 0o660, group: Some(0) });
        assert_eq!(ServerOptions::default().socket_access().unwrap(), SocketAccess::default());
        for (mode, group) in
            [("", None), ("rw", None), ("+7", None), ("8", None), ("1777", None), ("600", Some("?"))]
        {
            assert!(access(mode, group).is_err(), "{mode} {group:?}");
        }
    }
}
