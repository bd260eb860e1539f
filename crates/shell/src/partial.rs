//! A file that gets its name when it is complete.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use rustix::io::Errno;

/// A file on its way to its name. Dropped before, it leaves nothing behind; nor does a process that is killed, where the
/// file system has files without names.
#[derive(derive_more::Debug)]
#[debug("Partial")]
pub struct Partial {
    file: File,
    target: PathBuf,
    /// Its name meanwhile, where it has to have one.
    name: Option<PathBuf>,
}

impl Partial {
    /// Creates a file beside `target`.
    pub fn beside(target: &Path) -> io::Result<Partial> {
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        match open(folder, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => Ok(Partial { file: file.into(), target: target.to_owned(), name: None }),
            // What file systems and kernels without such files say.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let name = Self::free_name(target);
                let file = File::options().write(true).create_new(true).open(&name)?;
                Ok(Partial { file, target: target.to_owned(), name: Some(name) })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file its name, in place of the file that had it.
    pub fn complete(mut self) -> io::Result<()> {
        if self.name.is_none() {
            let link = |name: &Path| {
                let own = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.file));
                linkat(CWD, own, CWD, name, AtFlags::SYMLINK_FOLLOW)
            };
            match link(&self.target) {
                Ok(()) => return Ok(()),
                // A link replaces nothing, and a rename needs a name.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
            let name = Self::free_name(&self.target);
            link(&name)?;
            self.name = Some(name);
        }
        if let Some(name) = &self.name {
            std::fs::rename(name, &self.target)?;
            self.name = None;
        }
        Ok(())
    }

    /// Returns a name that nobody has.
    fn free_name(target: &Path) -> PathBuf {
        let mut name = OsString::from(".");
        name.push(target.file_name().unwrap_or_default());
        // Names of files have at most 255 bytes.
        let name = match name.len() > 200 {
            true => OsString::from(".nacre"),
            false => name,
        };
        let mut name = name;
        name.push(format!(".{:016x}.partial", rand::random::<u64>()));
        target.with_file_name(name)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // There is nothing else to do about it here.
            let _ = std::fs::remove_file(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_gets_its_name_when_it_is_complete_and_leaves_nothing_before() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        let names = || {
            std::fs::read_dir(folder.path())
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect::<Vec<_>>()
        };
        drop(Partial::beside(&target).unwrap());
        assert!(names().is_empty());
        for content in ["new", "newer"] {
            let partial = Partial::beside(&target).unwrap();
            partial.file().write_all(content.as_bytes()).unwrap();
            partial.complete().unwrap();
            assert_eq!(std::fs::read_to_string(&target).unwrap(), content);
        }
        // Where files have to have names.
        let name = Partial::free_name(&target);
        let partial =
            Partial { file: File::create_new(&name).unwrap(), target: target.clone(), name: Some(name) };
        assert_eq!(names().len(), 2);
        partial.complete().unwrap();
        let name = Partial::free_name(&target);
        drop(Partial { file: File::create_new(&name).unwrap(), target: target.clone(), name: Some(name) });
        assert_eq!((names().len(), std::fs::read(&target).unwrap().len()), (1, 0));
        assert!(Partial::beside(&folder.path().join("no/such")).is_err());
        assert!(Partial::free_name(&folder.path().join("x".repeat(255))).file_name().unwrap().len() < 100);
    }
}
