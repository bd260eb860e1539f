//! The identity of the file that a path leads to: the file system and the inode, so that two spellings or links of one file are one.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nacre_quantity::Escaped;

/// A file system and an inode in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The number of the file system, which is the same on all nodes where the file system gives itself one.
    pub file_system: u64,
    /// The number of the inode.
    pub inode: u64,
    /// True if the file system gives itself no number, so that its number is of this node alone.
    pub is_of_one_node: bool,
}

/// File systems whose clients keep what was written or read to themselves for a while, by the numbers that statfs(2) shows, with their
/// names.
const NOT_COHERENT: [(i64, &str); 8] = [
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB"),
    (0xFF53_4D42, "SMB"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x0102_1997, "9P"),
];

impl Identity {
    /// Returns the name by which the file's bytes are locked.
    pub fn name(&self) -> String {
        format!("mpiio/{:016x}-{}", self.file_system, self.inode)
    }

    /// Returns the identity as bytes.
    pub fn to_bytes(self) -> [u8; 17] {
        let mut bytes = [u8::from(self.is_of_one_node); 17];
        let both = u128::from(self.file_system) << 64 | u128::from(self.inode);
        bytes[1..].copy_from_slice(&both.to_le_bytes());
        bytes
    }

    /// Returns the identity that bytes stand for.
    pub fn from_bytes(bytes: [u8; 17]) -> Identity {
        let [is_of_one_node, both @ ..] = bytes;
        let both = u128::from_le_bytes(both);
        Identity { file_system: (both >> 64) as u64, inode: both as u64, is_of_one_node: is_of_one_node == 1 }
    }
}

/// Returns the path of a file's name, which MPI allows to begin with the name of a driver, as in `ufs:results`.
pub fn path(name: &Path) -> PathBuf {
    let bytes = name.as_os_str().as_bytes();
    if !name.exists()
        && let Some(at) = bytes.iter().position(|byte| *byte == b':')
        && !bytes[..at].contains(&b'/')
    {
        return OsStr::from_bytes(&bytes[at + 1..]).into();
    }
    name.to_owned()
}

/// Returns which file a path leads to.
///
/// # Errors
///
/// The reason why its bytes cannot be locked.
pub fn of_path(path: &Path) -> Result<Identity, String> {
    // It is not opened, so that whoever may only write it can ask too.
    let failed = |error: String| format!("cannot find {}: {error}", Escaped::of(path));
    let metadata = path.metadata().map_err(|error| failed(error.to_string()))?;
    let kind = rustix::fs::statfs(path).map_err(|error| failed(error.to_string()))?.f_type;
    let statistics = rustix::fs::statvfs(path).map_err(|error| failed(error.to_string()))?;
    identity(&metadata, kind as i64, statistics.f_fsid).map_err(failed)
}

/// Returns which file an open one is.
///
/// # Errors
///
/// The reason why its bytes cannot be locked.
pub fn of_file(file: &File) -> Result<Identity, String> {
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let kind = rustix::fs::fstatfs(file).map_err(|error| error.to_string())?.f_type;
    let statistics = rustix::fs::fstatvfs(file).map_err(|error| error.to_string())?;
    identity(&metadata, kind as i64, statistics.f_fsid)
}

fn identity(metadata: &std::fs::Metadata, kind: i64, number: u64) -> Result<Identity, String> {
    if let Some((_, name)) = NOT_COHERENT.iter().find(|(other, _)| *other == kind & 0xFFFF_FFFF) {
        return Err(format!(
            "it is on {name}, whose clients may show old bytes to each other; atomic mode is for local and cluster file systems"
        ));
    }
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    // A file system that gives itself no number is known by its device.
    let file_system = if number == 0 { metadata.dev() } else { number };
    Ok(Identity { file_system, inode: metadata.ino(), is_of_one_node: number == 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_whose_clients_show_old_bytes_are_refused_by_name() {
        let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
        // Numbers with a leading one bit come as negative ones where the field has 32 bits.
        for (kind, name) in
            [(0x6969, "NFS"), (0xFF53_4D42, "SMB"), (i64::from(0xFF53_4D42_u32 as i32), "SMB")]
        {
            let sentence = identity(&metadata, kind, 7).unwrap_err();
            assert!(sentence.contains(name) && sentence.contains("old bytes"), "{sentence}");
        }
        // ext4.
        assert_eq!(identity(&metadata, 0xEF53, 7).unwrap().file_system, 7);
        assert!(identity(&metadata, 0xEF53, 0).unwrap().is_of_one_node);
    }

    #[test]
    fn a_name_may_begin_with_its_driver_whatever_its_bytes() {
        let path = |name: &[u8]| path(Path::new(OsStr::from_bytes(name))).into_os_string();
        assert_eq!(path(b"ufs:/no/such\xff"), OsStr::from_bytes(b"/no/such\xff"));
        assert_eq!(path(b"/no/such:\xff"), OsStr::from_bytes(b"/no/such:\xff"));
    }
}
