//! The index of a sweep, beside a walk.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nacre_index::{Earlier, Ending, Format, Settings, SweepRecorder, Writer};
use nacre_quantity::Escaped;
use nacre_walk::collect::Collector;
use nacre_walk_cli::{CommandError, Plan};

// The flags of an index. A documentation comment would become the description of the whole command.
#[derive(clap::Args, Clone, Debug)]
#[group(skip)]
pub struct Args {
    /// Write the sweep to this file: FILE.sqlite is a database, for "nacre query" and "nacre diff", and FILE.parquet is for
    /// other programs; an existing index is replaced when the sweep is complete
    #[arg(
        long,
        help_heading = "Index",
        value_name = "FILE",
        conflicts_with_all = ["list", "checkpoint", "resume"]
    )]
    index: Option<PathBuf>,
    /// Reuse the files of directories that have the same times as in this earlier index; files that were written in
    /// place since keep their old size, time and owner
    #[arg(long, help_heading = "Index", value_name = "INDEX", requires = "index")]
    since: Option<PathBuf>,
    /// Keep the layouts of files on Lustre in the index: stripes, pool and object storage targets
    #[arg(long, help_heading = "Index", requires = "index")]
    layouts: bool,
}

impl Args {
    /// Checks that the index is one of a tree that is in no file system.
    ///
    /// # Errors
    /// [`CommandError::Usage`].
    pub fn check_without_file_system(&self) -> Result<(), CommandError> {
        let refused = match (&self.since, self.layouts) {
            (Some(_), _) => {
                "--since is for file systems: the times of a directory of a namespace do not prove that its entries are the same"
            }
            (None, true) => "--layouts is for file systems: the namespace of a store is not on Lustre",
            (None, false) => return Ok(()),
        };
        Err(CommandError::Usage(refused.to_owned()))
    }
}

/// The number of batches that wait for the writer, for each thread.
const BATCHES_PER_THREAD: usize = 4;

/// An index that is being written.
pub struct Sweep {
    writer: Writer,
    since: Option<PathBuf>,
}

impl Sweep {
    /// Begins to write the index, if one is asked for.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if something else has its name, or the earlier index cannot be used.
    pub fn begin(
        args: &Args,
        walk: &nacre_walk_cli::Args,
        plan: &mut Plan,
    ) -> Result<Option<Sweep>, CommandError> {
        let Some(path) = &args.index else { return Ok(None) };
        let whole = !walk.is_filtered();
        if let Some(since) = &args.since {
            if !whole {
                let sentence = "--since is for whole sweeps, without filters".to_owned();
                return Err(CommandError::Usage(sentence));
            }
            Earlier::open(since, 1).map_err(|error| CommandError::Usage(error.to_string()))?;
        }
        // What does not change is not asked for; the recorder asks for the rest.
        plan.options.metadata = args.since.is_none();
        plan.layouts |= args.layouts;
        let settings = Settings {
            roots: plan.root_bytes(),
            flags: walk.given_filters(),
            whole,
            began: plan.head.now,
            since: args.since.as_ref().map(|since| since.as_os_str().as_bytes().to_vec()),
            layouts: plan.layouts,
        };
        let batches = plan.options.threads.get() * BATCHES_PER_THREAD;
        let writer = Writer::create(path, &settings, batches)
            .map_err(|error| CommandError::Usage(error.to_string()))?;
        Ok(Some(Sweep { writer, since: args.since.clone() }))
    }

    /// Gives each thread a recorder of what it counts.
    ///
    /// # Errors
    /// [`CommandError::Usage`] if the earlier index cannot be opened.
    pub fn record(&self, collectors: &mut [Collector<'_>]) -> Result<(), CommandError> {
        let earlier = match &self.since {
            Some(since) => Earlier::open(since, collectors.len())
                .map_err(|error| CommandError::Usage(error.to_string()))?
                .into_iter()
                .map(Some)
                .collect(),
            None => collectors.iter().map(|_| None).collect::<Vec<_>>(),
        };
        for (collector, earlier) in collectors.iter_mut().zip(earlier) {
            collector.set_recorder(Box::new(SweepRecorder::new(&self.writer, earlier)));
        }
        Ok(())
    }

    /// Returns whether the index cannot be written any more.
    pub fn has_failed(&self) -> bool {
        self.writer.has_failed()
    }

    /// Returns the error with which an interrupted sweep ends.
    pub fn interrupted(&self) -> CommandError {
        let partial = Escaped::of(self.writer.partial());
        let reader = match self.writer.format() {
            Format::Sqlite => "\"nacre query --incomplete\" reads it",
            Format::Parquet => "it can be read like a complete one",
        };
        CommandError::Failed(format!(
            "interrupted; the incomplete index stays in \"{partial}\" until the next sweep; {reader}"
        ))
    }

    /// Ends the index of a walk that ended in this way.
    ///
    /// # Errors
    /// The walk's error, or that of the index, which is the cause if it has failed.
    pub fn finish(self, walked: Result<(), CommandError>) -> Result<(), CommandError> {
        let failed = self.writer.has_failed();
        let ending = if walked.is_ok() { Ending::Complete } else { Ending::Interrupted };
        let finished = self
            .writer
            .finish(ending, nacre_walk_cli::now())
            .map_err(|error| CommandError::Failed(error.to_string()));
        if failed { finished.and(walked) } else { walked.and(finished) }
    }
}
