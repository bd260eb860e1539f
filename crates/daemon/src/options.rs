//! The settings of a daemon. The names of the fields, with dashes, are those of the flags and of the configuration
//! file.

use std::path::PathBuf;
use std::time::Duration;

use nacre::{Durability, Engine, Uri};
use nacre_object::pace::PaceOptions;
use nacre_object::{ErrorKind, StoreError};
use nacre_rpc::socket::{self, SOCKET_MODE_DEFAULT};
use nacre_rpc::{Address, ServerLimits, SocketAccess};

/// The default address of the HTTP listener.
pub const HTTP_ADDRESS_DEFAULT: &str = "127.0.0.1:6471";
/// The default folder of the store.
pub const FOLDER_DEFAULT: &str = "nacre-data";

/// The settings of a daemon: those of each role, and the shared ones.
#[derive(Clone)]
pub struct ServerOptions {
    /// The store to serve, for the role `store`. A store in a folder is created if it does not exist. For a store that
    /// is neither in a folder nor in memory, the daemon acts as a front end.
    pub store: Option<Uri>,
    /// The reflector to run, for the role `reflect`. Unless it has a store of its own, it keeps states and locations in
    /// the daemon's, or without one in memory.
    pub reflect: Option<nacre_reflect::server::ServerOptions>,
    /// The addresses to serve clients on: `unix:PATH`, or `HOST:PORT`, which needs `key` or `open`. If empty, the
    /// socket of the user that the server runs as: see [`nacre_rpc::socket::own_socket_for_server`].
    pub listen: Vec<String>,
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
    /// Whether TCP addresses may be served without a key, which gives full access to anybody who can reach them.
    pub open: bool,
    /// The addresses of all servers that keep the store together. If empty, the list that the store was started with
    /// before applies, or the server keeps the store by itself.
    pub members: Vec<String>,
    /// The one of `members` that this server is; may be omitted if it is one of `listen`.
    pub member: Option<String>,
    /// The version of the list of members, which must grow when the list changes.
    pub members_version: u64,
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
    /// The number of connections that may be open.
    pub connections_max: usize,
    /// The bytes that all connections together may hold.
    pub held_bytes_max: usize,
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
            durability: None,
            segment_bytes: None,
            capacity: None,
            snapshot_bytes: None,
            pacing: true,
            region_statistics: false,
            threads: 0,
            connections_max: limits.connections_max,
            held_bytes_max: limits.held_bytes_max,
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
            listen => listen.iter().map(|text| text.parse()).collect(),
        }
    }

    /// Returns the access to the Unix sockets.
    pub(crate) fn socket_access(&self) -> Result<SocketAccess, StoreError> {
        let invalid = |text: String| StoreError::new(ErrorKind::Invalid, text);
        let digits = self.socket_mode.bytes().all(|digit| digit.is_ascii_digit());
        let mode = u32::from_str_radix(&self.socket_mode, 8).ok().filter(|mode| digits && *mode <= 0o777);
        let mode = mode.ok_or_else(|| {
            invalid(format!("socket mode \"{}\" is not octal digits such as 0660", self.socket_mode))
        })?;
        let group = match &self.socket_group {
            None => None,
            Some(name) => Some(
                socket::group_number(name)
                    .ok_or_else(|| invalid(format!("socket group \"{name}\" is no group of this machine")))?,
            ),
        };
        Ok(SocketAccess { mode, group })
    }

    pub(crate) fn pace_options(&self) -> PaceOptions {
        PaceOptions { pacing: self.pacing, statistics: self.region_statistics, ..Default::default() }
    }

    pub(crate) fn limits(&self) -> ServerLimits {
        ServerLimits {
            connections_max: self.connections_max,
            held_bytes_max: self.held_bytes_max,
            handshake_timeout: Duration::from_millis(self.handshake_timeout_ms.max(1)),
            stall_timeout: Duration::from_millis(self.stall_timeout_ms.max(2)),
            ..Default::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
