//! Paths in the namespace of a store, given to commands on file trees: `nacre:/results`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nacre_quantity::Escaped;

use crate::failure::Failure;

/// The prefix of paths of the namespace. The slash that follows belongs to the path.
pub const PREFIX: &[u8] = b"nacre:";

/// Returns the path in the namespace that a path such as `nacre:/results` stands for; `None` for one on this machine, such as one in a
/// local directory of the name `nacre:`.
///
/// # Errors
/// `Usage` for what looks like the URI of a store.
pub fn in_namespace(path: &Path) -> Result<Option<OsString>, Failure> {
    let Some(below) = path.as_os_str().as_bytes().strip_prefix(PREFIX) else { return Ok(None) };
    if !below.starts_with(b"/") || Path::new(OsStr::from_bytes(PREFIX)).symlink_metadata().is_ok() {
        return Ok(None);
    }
    if below.starts_with(b"//") {
        return Err(Failure::Usage(format!(
            "\"{}\" looks like the URI of a store: name the store with --store, and a path in its namespace as nacre:/PATH",
            Escaped::of(path)
        )));
    }
    Ok(Some(OsStr::from_bytes(below).to_owned()))
}
