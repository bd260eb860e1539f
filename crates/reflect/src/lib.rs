//! A datagram reflector: a member of a group sends one UDP datagram, and every other member of the group gets it,
//! without IP multicast (Bauer and Rooney, "The Performance of Software Multicast-Reflector Implementations for
//! Multi-Player Online Games", 2003).
//!
//! - [`table`] holds groups, lanes and members: the single source of truth, which everything else follows.
//! - [`forward`] is the path of a datagram through user space: received, admitted or refused, copied, kept while a
//!   device is full.
//! - [`plane`] makes the copies: one trait with several implementations, in user space and in the kernel.
//! - [`relay`] carries a location's datagrams from one reflector to another while its members move.
//! - [`control`] decides who may join, and [`member`] is its counterpart at the client, both without sockets or clocks.
//! - [`client`] is a member with a real socket, and `server` (feature `server`) a running reflector.
//!
//! A group is a UDP port of the reflector, or an id on a port that several groups share. A datagram that begins with
//! the magic of the control protocol is for the reflector; any other is payload, and is copied as it is.

#![deny(unsafe_code)]

pub mod client;
pub mod control;
pub mod cookie;
pub mod forward;
#[cfg(feature = "testkit")]
pub mod lab;
pub mod location;
pub mod member;
mod pages;
pub mod plane;
pub mod rate;
pub mod relay;
#[cfg(feature = "server")]
pub mod server;
pub mod state;
#[allow(unsafe_code)]
pub(crate) mod system;
pub mod table;
pub mod token;
pub mod wire;
