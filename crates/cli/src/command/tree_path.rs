//! Paths in the namespace of a store, given to commands on the file trees of this machine.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nacre_quantity::Escaped;

use crate::failure::Failure;

/// Refuses paths such as `nacre:/results`, with what to do instead. A local directory of the name `nacre:` may be meant.
///
/// # Errors
/// `Usage`.
pub fn refuse_namespace<'a>(paths: impl IntoIterator<Item = &'a Path>, instead: &str) -> Result<(), Failure> {
    for path in paths {
        let is_meant = path.as_os_str().as_bytes().starts_with(b"nacre:/");
        if is_meant && Path::new("nacre:").symlink_metadata().is_err() {
            return Err(Failure::Usage(format!(
                "\"{}\" is not on this machine: this command works on mounted file systems. Mount the namespace with \"nacre mount DIR\" \
                 and name a path in DIR, or use {instead}",
                Escaped::of(path)
            )));
        }
    }
    Ok(())
}
