//! The reflector's way for datagrams: what receives them, decides on them by the table of `nacre-reflect`, and makes the
//! copies, in user space and in the kernel.
//!
//! - [`forward`] is the path of a datagram through user space: received, admitted or refused, copied, kept while a
//!   device is full.
//! - [`plane`] makes the copies: one trait with several implementations.
//!
//! The table, its rules, and who is a member are not decided here: a [`Host`](nacre_reflect::host::Host) owns them.

#![deny(unsafe_code)]

pub mod forward;
pub mod plane;
#[allow(unsafe_code)]
pub(crate) mod system;
#[cfg(feature = "testkit")]
pub mod testbed;
