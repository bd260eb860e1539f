//! The superblock, `nacre-store`: the file that identifies a folder as a store, with its format and its identity.
//!
//! It is written once, in two copies.

use bytes::Bytes;
use nacre_object::{ErrorKind, StoreError};

use crate::codec::crc32c;
use crate::disk::Disk;
use crate::segment::FORMAT_VERSION;
use crate::snapshot::read_file;

/// The file's name.
pub const SUPERBLOCK: &str = "nacre-store";

const COPY_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"NACRESTO";

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The version of the format.
    pub format: u32,
    /// The store's random identity.
    pub store: [u8; 16],
}

impl Superblock {
    /// Encodes both copies.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::with_capacity(2 * COPY_BYTES);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.format.to_le_bytes());
        out.extend_from_slice(&self.store);
        out.resize(COPY_BYTES - 4, 0);
        let crc = crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_within(..);
        out.into()
    }

    /// Decodes the first copy that is sound.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.chunks_exact(COPY_BYTES).take(2).find_map(decode_copy)
    }

    /// Returns the number of sound copies: 0 to 2.
    pub fn sound_copies(bytes: &[u8]) -> usize {
        bytes.chunks_exact(COPY_BYTES).take(2).filter_map(decode_copy).count()
    }

    /// Reads the file, or writes it if the folder has no files of a store. A superblock without other files may come
    /// from an opening that could not make its name durable, and is written again. A store of an older format becomes
    /// one of this program's format: later writes may be unreadable to a program of that format.
    pub fn load_or_create(disk: &dyn Disk, files: &[(String, u64)]) -> Result<Self, StoreError> {
        let path = disk.describe(SUPERBLOCK);
        let io = |error| StoreError::new(ErrorKind::Io, format!("cannot read or write {path}: {error}"));
        let used =
            files.iter().any(|(name, _)| name.starts_with("segment-") || name.starts_with("snapshot-"));
        if files.iter().any(|(name, _)| name == SUPERBLOCK) {
            let bytes = read_file(disk, SUPERBLOCK).map_err(io)?;
            let Some(superblock) = Self::decode(&bytes) else {
                let text =
                    format!("{path} is damaged in both its copies, or is not the file of a Nacre store");
                return Err(StoreError::new(ErrorKind::Corrupt, text).with_place(path, 0));
            };
            if superblock.format > FORMAT_VERSION {
                let text = format!(
                    "{path} is of format {}, and this program knows formats up to {FORMAT_VERSION}; use a newer program",
                    superblock.format
                );
                return Err(StoreError::new(ErrorKind::Unsupported, text));
            }
            if !used || superblock.format < FORMAT_VERSION {
                let superblock = Self { format: FORMAT_VERSION, ..superblock };
                superblock.write(disk).map_err(io)?;
                return Ok(superblock);
            }
            return Ok(superblock);
        }
        if used {
            let text = format!("{path} is missing, but the folder has other files of a store; restore it");
            return Err(StoreError::new(ErrorKind::Corrupt, text));
        }
        let superblock = Self { format: FORMAT_VERSION, store: identity()? };
        superblock.write(disk).map_err(io)?;
        Ok(superblock)
    }

    /// Writes the file, replacing any earlier one.
    pub fn write(&self, disk: &dyn Disk) -> std::io::Result<()> {
        let temporary = temporary();
        // What an opening left that did not come to its end; usually there is nothing.
        let _ = disk.remove(&temporary);
        let file = disk.create(&temporary, 0)?;
        file.write_at(0, &[self.encode()])?;
        file.sync()?;
        disk.rename(&temporary, SUPERBLOCK)?;
        disk.sync_names()
    }
}

/// Returns the name that the file has until it is complete.
fn temporary() -> String {
    format!("{SUPERBLOCK}.tmp")
}

/// Returns whether a file of this name is a superblock that was not completed.
pub fn is_temporary(name: &str) -> bool {
    name == temporary()
}

fn decode_copy(bytes: &[u8]) -> Option<Superblock> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    if body.first_chunk::<8>()? != MAGIC || crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let format = u32::from_le_bytes(*body[8..].first_chunk()?);
    Some(Superblock { format, store: *body[12..].first_chunk()? })
}

/// Returns sixteen random bytes.
pub fn identity() -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes[..], rustix::rand::GetRandomFlags::empty()).map_err(|error| {
        StoreError::new(ErrorKind::Io, format!("the system gives no random bytes: {error}"))
    })?;
    Ok(bytes)
}
