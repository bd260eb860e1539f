//! Sweeps of file trees kept as SQLite databases: written while a walk goes on, queried, and compared. For other programs a
//! sweep is written as a Parquet file instead.
//!
//! The walk's threads pass what they meet in batches to one thread that writes ([`Writer`]); the file appears under its
//! name as a whole once the sweep is done. [`Index`] opens a database to be read only. `docs/index.md` has the schema.

#![forbid(unsafe_code)]

mod columns;
pub mod contents;
pub mod difference;
mod linked;
pub mod ncdu;
pub mod open;
pub mod query;
pub mod record;
pub mod schema;
pub mod since;
pub mod write;

pub use open::{Index, OpenError};
pub use record::SweepRecorder;
pub use since::Earlier;
pub use write::{Ending, Format, Settings, WriteError, Writer};
