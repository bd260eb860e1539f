//! Tools for testing engines.
//!
//! - [`Model`] says what every transaction must do, as plainly as possible; [`MemoryStore`] is a store made of it.
//! - [`history`] makes random transactions from a seed.
//! - [`conformance`] is the suite that every [`ObjectStore`](crate::ObjectStore) must pass.
//! - [`race`] has clients count on blocks of a store, and checks that no increment is lost.
//! - [`linear`] checks that what concurrent clients saw of an object could have happened one after another.
//!
//! Nothing here needs an async runtime: [`block_on`] waits for a reply on the calling thread.

pub mod conformance;
pub mod history;
pub mod linear;
mod memory;
mod model;
pub mod race;
mod wait;

pub use memory::MemoryStore;
pub use model::{Model, ObjectState};
pub use wait::{block_on, block_on_for};
