//! The reflector's own sockets.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::ForwardError;

/// The sockets that datagrams come in by, and go out by. Shared by the forwarder and its plane.
#[derive(Debug)]
pub struct Listeners {
    /// Each address, as bound (a port of 0 has become a real one), with its socket.
    pub(crate) sockets: Vec<(SocketAddr, OwnedFd)>,
}

impl Listeners {
    /// Binds a socket to each address. IPv6 sockets take IPv6 only: for both, name `0.0.0.0` and `[::]` with one port.
    pub fn open(addresses: &[SocketAddr]) -> Result<Arc<Self>, ForwardError> {
        let _ = addresses;
        todo!()
    }

    /// The addresses, as bound.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.iter().map(|(address, _)| *address)
    }

    /// Each socket, for those who need to know which sockets are the reflector's.
    pub fn sockets(&self) -> impl Iterator<Item = &OwnedFd> {
        self.sockets.iter().map(|(_, socket)| socket)
    }
}
