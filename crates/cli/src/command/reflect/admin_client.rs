//! The administration of a reflector, over the daemon's own connection.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nacre::{Engine, Uri};
use nacre_daemon::reflect::{Expulsion, Relocation, expel_at, relocate_at};
use nacre_quantity::Escaped;
use nacre_rpc::{Address, ClusterKey, socket};

use crate::arguments::Common;
use crate::failure::Failure;

/// The name of the socket of a daemon that is only a reflector, beside that of the user's own server.
const SOCKET: &str = "reflect.sock";

/// Returns the default path of the socket for the administration of this user's reflector. Its folder is made.
///
/// # Errors
/// `Denied` if the folder is not the user's alone, `Io` if it cannot be made.
pub fn own_socket_for_server() -> Result<PathBuf, nacre::Error> {
    Ok(socket::own_socket_for_server()?.with_file_name(SOCKET))
}

/// The address of the administration of a reflector.
#[derive(clap::Args, Clone, Debug)]
pub struct Admin {
    /// Administrative address of the daemon: unix:PATH, or nacre://HOST:PORT, which requires --key [default: the user's
    /// own reflector, at reflect.sock in the folder of the user's sockets]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<OsString>,
}

impl Admin {
    /// Returns whether the command line names a daemon.
    pub fn is_named(&self) -> bool {
        self.admin.is_some()
    }

    /// Asks the daemon to change the map of locations, and returns the map's new epoch.
    pub fn relocate(&self, common: &Common, change: Relocation) -> Result<u64, Failure> {
        self.order(common, true, move |address, key, owner| relocate_at(address, key, owner, change))
    }

    /// Asks the daemon to remove members, and returns the number of those that were removed.
    pub fn expel(&self, common: &Common, order: Expulsion) -> Result<u64, Failure> {
        self.order(common, false, move |address, key, owner| expel_at(address, key, owner, order))
    }

    /// Gives an order to the daemon. `by_store` says whether the store could be told instead.
    fn order<F: Future<Output = Result<u64, nacre::Error>>>(
        &self,
        common: &Common,
        by_store: bool,
        order: impl FnOnce(Address, Option<ClusterKey>, Option<u32>) -> F,
    ) -> Result<u64, Failure> {
        let text = match &self.admin {
            Some(text)
                if text.as_bytes().starts_with(b"unix:")
                    || text.to_str().is_some_and(|text| text.contains("://")) =>
            {
                text.clone()
            }
            Some(address) => {
                let mut text = OsString::from("nacre://");
                text.push(address);
                text
            }
            None => Address::Unix(socket::own_socket().with_file_name(SOCKET)).to_os_string(),
        };
        let wrong = |why: &str| Failure::Usage(format!("--admin {}: {why}", Escaped::of(&text)));
        let uri = Uri::from_os_str(&text).map_err(|error| wrong(&error.message))?;
        let Engine::Servers(servers) = &uri.engine else {
            return Err(wrong("not the address of a daemon; write unix:PATH or nacre://HOST:PORT"));
        };
        let [address] = &servers[..] else { return Err(wrong("give one daemon, not several")) };
        let failed = |error: nacre::Error| {
            let more = match (error.kind, &self.admin) {
                (nacre::ErrorKind::Unavailable, None) if by_store => {
                    "; name the daemon with --admin, or the store with --store"
                }
                (nacre::ErrorKind::Unavailable, None) => "; name the daemon with --admin",
                _ => "",
            };
            Failure::Failed(format!("{}{more}", error.message))
        };
        let key = uri.options.key.as_deref().or(common.key.as_deref()).map(ClusterKey::load);
        let key = key.transpose().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::io("start the program's runtime"))?;
        runtime.block_on(order(address.clone(), key, uri.options.owner)).map_err(failed)
    }
}
