//! The administration of a reflector, over the daemon's own connection.

use std::path::PathBuf;

use bytes::Bytes;
use nacre::{Engine, Uri};
use nacre_remote::{RemoteOptions, RemoteStore};
use nacre_rpc::{ClusterKey, socket};
use serde::Serialize;
use serde_json::Value;

use super::{CommandError, Common};

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
    /// The daemon's address, unix:PATH or nacre://HOST:PORT, which asks for --key [default: the user's own reflector, at
    /// reflect.sock in the folder of the user's sockets]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
}

impl Admin {
    /// Calls a method of the daemon, and returns its answer.
    pub fn call(
        &self,
        common: &Common,
        method: &str,
        argument: &impl Serialize,
    ) -> Result<Value, CommandError> {
        let text = match &self.admin {
            Some(text) if text.starts_with("unix:") || text.contains("://") => text.clone(),
            Some(text) => format!("nacre://{text}"),
            None => format!("unix:{}", socket::own_socket().with_file_name(SOCKET).display()),
        };
        let wrong = |why: &str| CommandError::Usage(format!("--admin {text}: {why}"));
        let uri: Uri = text.parse().map_err(|error: nacre::Error| wrong(&error.message))?;
        let Engine::Servers(servers) = &uri.engine else {
            return Err(wrong("that is no address of a daemon; write unix:PATH or nacre://HOST:PORT"));
        };
        let [address] = &servers[..] else { return Err(wrong("one daemon is asked, and not several")) };
        let failed = |error: nacre::Error| {
            let more = match (error.kind, &self.admin) {
                (nacre::ErrorKind::Unavailable, None) => {
                    "; name the daemon with --admin, or the store with --store"
                }
                _ => "",
            };
            CommandError::Failed(format!("{}{more}", error.message))
        };
        let key = uri.options.key.as_deref().or(common.key.as_deref()).map(ClusterKey::load);
        let key = key.transpose().map_err(failed)?;
        let options = RemoteOptions { key, owner: uri.options.owner, ..RemoteOptions::default() };
        let daemon = RemoteStore::new(std::slice::from_ref(address), options).map_err(failed)?;
        let argument =
            serde_json::to_vec(argument).map_err(|error| CommandError::Failed(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(CommandError::io("start the program's runtime"))?;
        let answer = runtime.block_on(async {
            // A daemon that keeps a store with others has its own name among them.
            let address = match &daemon.addresses().await?[..] {
                [only] => only.clone(),
                _ => address.clone(),
            };
            daemon.call(&address, method, Bytes::from(argument), |_| ()).await
        });
        let answer = answer.map_err(failed)?;
        serde_json::from_slice(&answer)
            .map_err(|error| CommandError::Failed(format!("the answer of {text} is no JSON: {error}")))
    }
}
