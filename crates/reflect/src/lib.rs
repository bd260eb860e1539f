//! A datagram reflector: a member of a group sends one UDP datagram, and every other member of the group gets it,
//! without IP multicast (Bauer and Rooney, "The Performance of Software Multicast-Reflector Implementations for
//! Multi-Player Online Games", 2003).
//!
//! - [`table`] holds groups, lanes and members: the single source of truth, which everything else follows.
//! - [`host`] is the interface to the forwarder, which is in `nacre-planes`.
//! - [`relay`] carries a location's datagrams from one reflector to another while its members move.
//! - [`control`] decides who may join, and [`member`] is its counterpart at the client, both without sockets or clocks.
//! - [`client`] is a member with a real socket: the only part of this crate that does any I/O. The reflector that runs is
//!   a role of `nacre-daemon`.
//!
//! A group is a UDP port of the reflector, or an id on a port that several groups share. A datagram that begins with
//! the magic of the control protocol is for the reflector; any other is payload, and is copied as it is.

#![forbid(unsafe_code)]

pub mod client;
pub mod control;
pub mod cookie;
pub mod host;
pub mod location;
pub mod member;
pub mod pages;
pub mod rate;
pub mod relay;
pub mod state;
pub mod table;
pub mod token;
pub mod wire;
