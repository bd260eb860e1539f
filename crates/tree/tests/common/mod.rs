//! The options of copies that several tests make.

use std::num::NonZeroUsize;
use std::sync::Arc;

use nacre_tree::copy::Options;
use nacre_walk::filter::{Descent, Filter, Selection};

/// Returns the options of a copy of everything, or of a mirror.
pub fn options(mirror: bool) -> Options {
    Options {
        threads: NonZeroUsize::new(2).unwrap(),
        chunk_bytes: 64 << 20,
        checksum: false,
        force: false,
        fsync: false,
        cross_mounts: false,
        extended: true,
        mirror,
        mirror_empty: false,
        selection: Arc::new(Selection { filter: Filter::default().ready(), descent: Descent::default() }),
    }
}
