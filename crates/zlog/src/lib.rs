//! A shared log: many clients append entries to it, and all read them in the same order.
//!
//! CORFU as Sevilla et al. describe it (*Malacology*, section 5.2): a [`Sequencer`] gives out positions, and the entries are spread over
//! the objects of a store, which take each position once. Every request carries the log's epoch; a recovery installs the next one at
//! the objects, learns from them where the log ends, and goes on from there.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let store = std::sync::Arc::new(nacre_object::testkit::MemoryStore::new());
//! use nacre_zlog::{Directory, Entry, Log, Shape, Slot};
//!
//! Directory::new(store.clone())?.create("orders", Shape::default()).await?;
//! let log = Log::open(store, "orders", Default::default()).await?;
//! let position = log.append(Entry::new("tea").tag("kitchen")).await?;
//! assert_eq!(log.read(position).await?, Slot::Entry(Entry::new("tea").tag("kitchen")));
//!
//! let mut follower = log.follow(0, Default::default());
//! assert_eq!(follower.next().await?.position(), position);
//! # Ok(())
//! # }
//! ```
//!
//! `docs/zlog.md` has the promises, the formats and the commands.

#![forbid(unsafe_code)]

mod append;
mod directory;
mod entry;
mod error;
mod follow;
#[doc(hidden)]
pub mod fuzz;
pub mod layout;
pub mod limit;
mod log;
mod read;
mod recover;
#[doc(hidden)]
pub mod reserved;
pub mod sequencer;
mod state;
mod stripe;
mod trim;

pub use append::{Appender, Appending};
pub use directory::{Directory, Listed};
pub use entry::{Entry, Slot};
pub use error::LogError;
pub use follow::{FollowOptions, Followed, Follower};
pub use layout::{LogId, View};
pub use log::{Info, Log, Options, Recovered, Tagged};
pub use nacre_map::Random;
pub use sequencer::{Sequencer, SequencerError, StoreSequencer};
pub use state::{DIRECTORY, Shape, Views};
