//! The cluster key: the secret that the members of a cluster share.

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nacre_object::{ErrorKind, Escaped, StoreError};
use rand::TryRngCore;
use rustix::fs::{MemfdFlags, Mode, fchmod, memfd_create};

/// The bytes of a cluster key.
pub const KEY_BYTES: usize = 32;

/// A secret of 32 random bytes, kept in a file as 64 hexadecimal digits that only its owner may read.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; KEY_BYTES]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(…)")
    }
}

impl ClusterKey {
    /// Generates a key from the operating system's random numbers.
    ///
    /// # Errors
    ///
    /// `Io` if the system gives no random numbers.
    pub fn generate() -> Result<ClusterKey, StoreError> {
        let mut bytes = [0; KEY_BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(|error| {
            StoreError::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(ClusterKey(bytes))
    }

    /// Creates a key from the given bytes.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> ClusterKey {
        ClusterKey(bytes)
    }

    /// Returns the bytes of the key, for proofs and signatures.
    pub fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Reads a key from the text that its file holds; `None` if that is not 64 hexadecimal digits.
    pub fn from_hex(text: &[u8]) -> Option<ClusterKey> {
        parse(text.trim_ascii()).map(ClusterKey)
    }

    /// Returns the text that the file of the key holds.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Writes the key to a file that is in memory alone, for interfaces that take the path of one. It leaves nothing behind.
    ///
    /// # Errors
    ///
    /// `Io` if the system makes no such file.
    pub fn in_memory(&self) -> Result<MemoryKey, StoreError> {
        let create = || -> io::Result<File> {
            let mut file = File::from(memfd_create("nacre-key", MemfdFlags::CLOEXEC)?);
            fchmod(&file, Mode::RUSR | Mode::WUSR)?;
            writeln!(file, "{}", self.to_hex())?;
            Ok(file)
        };
        create().map(MemoryKey).map_err(|error| {
            StoreError::new(ErrorKind::Io, format!("cannot keep the key in memory: {error}"))
        })
    }

    /// Writes the key to a new file that only the owner may read.
    ///
    /// # Errors
    ///
    /// `Io` if the file exists, or cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), StoreError> {
        let save = || -> io::Result<()> {
            let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            writeln!(file, "{}", self.to_hex())?;
            file.sync_all()
        };
        save().map_err(|error| {
            StoreError::new(ErrorKind::Io, format!("cannot write the key to {}: {error}", Escaped::of(path)))
        })
    }

    /// Reads the key from a file. A file that others than its owner may access is refused, because its contents are not
    /// secret.
    ///
    /// # Errors
    /// `Denied` if others may access it; `Invalid` if it is missing, for other users, or no key; `Io` if it cannot be read.
    pub fn load(path: &Path) -> Result<ClusterKey, StoreError> {
        let about =
            |kind, why: String| StoreError::new(kind, format!("key file {}: {why}", Escaped::of(path)));
        // One that is not there, or is for others, is not there the next time either.
        let unread = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
                about(ErrorKind::Invalid, error.to_string())
            }
            _ => about(ErrorKind::Io, error.to_string()),
        };
        let metadata = std::fs::metadata(path).map_err(unread)?;
        if !metadata.is_file() {
            return Err(about(ErrorKind::Invalid, "it is not a file".to_owned()));
        }
        let mode = metadata.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            let why = format!("others than its owner may read it (mode {mode:03o}); run chmod 600 on it");
            return Err(about(ErrorKind::Denied, why));
        }
        let text = std::fs::read(path).map_err(unread)?;
        ClusterKey::from_hex(&text).ok_or_else(|| {
            about(
                ErrorKind::Invalid,
                "it does not hold 64 hexadecimal digits; make one with nacre keygen".to_owned(),
            )
        })
    }
}

/// A key in a file in memory, which is there until this is dropped.
#[derive(Debug)]
pub struct MemoryKey(File);

impl MemoryKey {
    /// Returns the path by which this process reads the file.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

fn parse(text: &[u8]) -> Option<[u8; KEY_BYTES]> {
    let digit = |c: u8| (c as char).to_digit(16).map(|digit| digit as u8);
    if text.len() != 2 * KEY_BYTES {
        return None;
    }
    let mut bytes = [0; KEY_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_kept_in_private_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let key = ClusterKey::generate().unwrap();
        assert!(key != ClusterKey::generate().unwrap());
        key.save(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(ClusterKey::load(&path).unwrap() == key);
        assert!(key.save(&path).unwrap_err().message.contains("exists"));
        assert_eq!(format!("{key:?}"), "ClusterKey(…)");

        let in_memory = key.in_memory().unwrap();
        assert!(ClusterKey::load(&in_memory.path()).unwrap() == key);
        assert!(ClusterKey::from_hex(key.to_hex().as_bytes()).unwrap() == key);
        assert!(ClusterKey::from_hex(b"00").is_none());

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(ClusterKey::load(&path).unwrap_err().kind, ErrorKind::Denied);
        let error = ClusterKey::load(folder.path()).unwrap_err().message;
        assert!(error.contains("not a file") && !error.contains("chmod"), "{error}");
        let short = folder.path().join("short");
        std::fs::write(&short, "00").unwrap();
        std::fs::set_permissions(&short, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(ClusterKey::load(&short).unwrap_err().message.contains("64 hexadecimal digits"));
        assert_eq!(ClusterKey::load(&folder.path().join("missing")).unwrap_err().kind, ErrorKind::Invalid);
    }
}
