//! The reflector's own sockets.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::ForwardError;
use crate::system;

/// The sockets that datagrams come in and go out by. Shared by the forwarder and its plane.
#[derive(Debug)]
pub struct Listeners {
    sockets: Vec<(SocketAddr, OwnedFd)>,
    /// The place of each address, without scopes, which a path may or may not name.
    places: HashMap<(IpAddr, u16), usize>,
}

impl Listeners {
    /// Binds a socket to each address. IPv6 sockets take IPv6 only: for both, name `0.0.0.0` and `[::]` with one port.
    /// Must be called in the network namespace that the sockets are to be in.
    ///
    /// # Errors
    /// [`ForwardError::Listen`] if a socket cannot be bound.
    pub fn open(addresses: &[SocketAddr]) -> Result<Arc<Self>, ForwardError> {
        let mut listeners = Listeners { sockets: Vec::new(), places: HashMap::new() };
        for &address in addresses {
            let (address, socket) =
                system::listen(address).map_err(|why| ForwardError::Listen { address, why })?;
            listeners.places.insert((address.ip(), address.port()), listeners.sockets.len());
            listeners.sockets.push((address, socket));
        }
        Ok(Arc::new(listeners))
    }

    /// Returns the addresses as bound: a port of 0 has become a real one.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.sockets.iter().map(|(address, _)| *address)
    }

    /// Returns each address with its socket.
    pub fn sockets(&self) -> impl Iterator<Item = (SocketAddr, BorrowedFd<'_>)> {
        self.sockets.iter().map(|(address, socket)| (*address, socket.as_fd()))
    }

    /// Returns the socket that sends from an address of the reflector, and the source address to give it if it listens
    /// on all addresses. `None` if no socket listens there.
    pub fn sender(&self, local: SocketAddr) -> Option<(BorrowedFd<'_>, Option<IpAddr>)> {
        let any = match local {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        if let Some(&at) = self.places.get(&(local.ip(), local.port())) {
            return Some((self.sockets[at].1.as_fd(), None));
        }
        let &at = self.places.get(&(any, local.port()))?;
        Some((self.sockets[at].1.as_fd(), Some(local.ip())))
    }

    pub(crate) fn get(&self, at: usize) -> (SocketAddr, BorrowedFd<'_>) {
        let (address, socket) = &self.sockets[at];
        (*address, socket.as_fd())
    }
}
