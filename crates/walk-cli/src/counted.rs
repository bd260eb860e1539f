//! The counts of a process, which can be saved, sent and merged.

use std::path::Path;
use std::sync::Arc;

use nacre_quantity::Escaped;
use nacre_walk::checkpoint::{self, LoadError, Loaded, Saved};
use nacre_walk::collect::Collector;
use nacre_walk::list::Output;
use nacre_walk::report::link::HardLinks;
use nacre_walk::report::{Report, Shared, Sums, Tally, show_begun};
use nacre_walk::{Directory, Unit, Walk};

use crate::{CommandError, Plan};

/// The counts of this process, apart from those that its threads still hold.
#[derive(derive_more::Debug)]
#[debug("Counted")]
pub struct Counted {
    /// The report, which can be merged and sent.
    pub report: Report,
    /// The files with several names, which are sent separately.
    pub links: HardLinks,
    /// The sums of directories that are counted in parts, which are sent separately too.
    pub shared: Arc<Shared>,
}

/// The state of a stopped walk.
#[derive(Debug)]
pub struct StoppedWalk {
    /// The directories that are begun, by their node numbers in the partial sums, with their counts so far.
    pub begun: Vec<(u32, Tally)>,
    /// The work that is left.
    pub units: Vec<Unit>,
}

impl Counted {
    /// Creates empty counts.
    pub fn new(plan: &Plan) -> Counted {
        let shared = Arc::<Shared>::default();
        Counted { report: Report::new(&plan.request.shape), links: HardLinks::new(&shared.spill, 1), shared }
    }

    /// Loads a checkpoint and adds its counts, except its report, which is returned with the rest.
    ///
    /// # Errors
    /// [`LoadError`] if the file cannot be read or is no intact checkpoint.
    pub fn load(&mut self, file: &Path) -> Result<Loaded, LoadError> {
        checkpoint::load(file, &mut self.links, &mut self.shared.partial.lock())
    }

    /// Takes the counts of the threads, and makes them write what they have listed.
    ///
    /// # Errors
    /// If writing the listing failed.
    pub fn take(&mut self, collectors: &mut [Collector<'_>], output: &Output) -> Result<(), CommandError> {
        for collector in collectors {
            collector.flush();
            collector.take(&mut self.report, &mut self.links);
        }
        output.failure().map_or(Ok(()), |error| Err(CommandError::output(error)))
    }

    /// Returns the state of a stopped walk.
    pub fn stand(&self, walk: &mut Walk<Sums>) -> StoppedWalk {
        let (mut begun, mut partial) = (Vec::new(), self.shared.partial.lock());
        let units = walk.frontier(|directory| {
            show_begun(directory, &mut partial, |node, counts| begun.push((node, counts)));
        });
        StoppedWalk { begun, units }
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if it cannot be written.
    pub fn write(&self, target: &Path, plan: &Plan, standing: &StoppedWalk) -> Result<(), CommandError> {
        let StoppedWalk { begun, units } = standing;
        self.write_part(target, plan, begun, &[], units)
    }

    /// Writes a checkpoint of a walk by this process alone, in less memory: its counts are not copied.
    ///
    /// # Errors
    /// [`CommandError::Failed`] if it cannot be written.
    pub fn write_all(&self, target: &Path, plan: &Plan, walk: &mut Walk<Sums>) -> Result<(), CommandError> {
        let mut directories = Vec::new();
        let units = walk.frontier(|directory| directories.push(Arc::clone(directory)));
        // Each comes after the one that it is in.
        directories.sort_by_key(|directory| directory.depth());
        self.write_part(target, plan, &[], &directories, &units)
    }

    fn write_part(
        &self,
        target: &Path,
        plan: &Plan,
        begun: &[(u32, Tally)],
        directories: &[Arc<Directory<Sums>>],
        units: &[Unit],
    ) -> Result<(), CommandError> {
        let saved = Saved {
            head: &plan.head,
            report: &self.report,
            partial: &self.shared.partial.lock(),
            begun,
            directories,
            units,
            links: &self.links,
        };
        checkpoint::save(target, &saved).map_err(|error| {
            CommandError::Failed(format!("cannot save the checkpoint \"{}\": {error}", Escaped::of(target)))
        })
    }
}

/// Quotes a path for a shell. One that a terminal could not show is quoted as `$'…'`, in which shells read the escapes.
pub fn quoted(path: &Path) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    let escaped = Escaped::of(path).to_string();
    match path.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(plain) => text.to_owned(),
        // Backslashes are no reason: the other quotes keep them.
        Some(text) if escaped == text.replace('\\', "\\\\") => format!("'{}'", text.replace('\'', "'\\''")),
        _ => format!("$'{}'", escaped.replace('\'', "\\'")),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_shell_reads_what_is_quoted_as_the_same_path() {
        for (path, text) in [
            (&b"/a/b-1.ckpt"[..], "/a/b-1.ckpt"),
            (b"", "''"),
            (b"it's $HOME", "'it'\\''s $HOME'"),
            (b"a\\x0a", "'a\\x0a'"),
            (b"a'\n\\\xff", "$'a\\'\\x0a\\\\\\xff'"),
        ] {
            assert_eq!(quoted(Path::new(OsStr::from_bytes(path))), text);
        }
    }
}
