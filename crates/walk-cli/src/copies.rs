//! The flags of copies, for `nacre copy` and `nacre-mpi copy`.

use std::num::NonZeroUsize;
use std::sync::Arc;

use nacre_tree::copy::Options;
use nacre_walk::filter::Selection;

/// The smallest chunk, in bytes.
const CHUNK_BYTES_MIN: u64 = 4096;

/// The flags that copies by one process and by ranks share.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct CopyFlags {
    /// Detect differences by contents instead of by sizes and times of modification
    #[arg(long)]
    checksum: bool,
    /// Afterwards, compare everything with its copy, including contents
    #[arg(long)]
    pub verify: bool,
    /// Replace links and files that are in the way of a directory, and devices, pipes and sockets that are in the way
    /// of anything else
    #[arg(long, short)]
    force: bool,
    /// Sync every file to disk before it gets its name, and everything before the command ends
    #[arg(long)]
    fsync: bool,
    /// Descend into other file systems that are mounted below the source
    #[arg(long)]
    cross_mounts: bool,
    /// Do not copy extended attributes and ACLs
    #[arg(long)]
    no_xattrs: bool,
    /// With --mirror: empty the destination if the source is empty, and what is the copy of a mount point in /etc/fstab that has
    /// nothing mounted on it. Both is refused otherwise: the file system that belongs there may not be mounted
    #[arg(long, requires = "mirror")]
    mirror_empty: bool,
    /// Split files larger than this into chunks of this size, which are copied in parallel
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_chunk)]
    chunk: u64,
}

impl CopyFlags {
    /// Returns the options of a copy by so many threads.
    pub fn options(&self, threads: NonZeroUsize, mirror: bool, selection: Selection) -> Options {
        Options {
            threads,
            chunk_bytes: self.chunk,
            checksum: self.checksum,
            force: self.force,
            fsync: self.fsync,
            cross_mounts: self.cross_mounts,
            extended: !self.no_xattrs,
            mirror,
            mirror_empty: self.mirror_empty,
            selection: Arc::new(selection),
        }
    }
}

/// Parses the size of a chunk.
///
/// # Errors
/// The text of the error, for a message.
pub fn parse_chunk(text: &str) -> Result<u64, String> {
    match nacre_quantity::parse_size(text)? {
        size if size < CHUNK_BYTES_MIN => Err("chunks must have at least 4096 bytes".to_owned()),
        size => Ok(size),
    }
}
