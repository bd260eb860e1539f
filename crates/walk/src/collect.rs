//! The visitor that filters entries, and counts or lists them.

use std::sync::Arc;

use crate::directory::Directory;
use crate::entry::Entry;
use crate::filter::{Choice, Selection};
use crate::list::{self, Lister, Output};
use crate::report::link::HardLinks;
use crate::report::{Report, Shape, Shared, Sums, Tally};
use crate::{Opened, Queue, Verdict, Visitor, WalkError};

/// The entries that visitors count or list, and the form of the result.
#[derive(Debug)]
pub struct Request {
    /// The entries to count or list.
    pub selection: Selection,
    /// The parameters of the report.
    pub shape: Shape,
    /// True if errors are written as JSON.
    pub json: bool,
}

/// The visitor of one thread, which counts or lists entries.
#[derive(derive_more::Debug)]
#[debug("Collector")]
pub struct Collector<'a> {
    request: &'a Request,
    /// The counts.
    pub report: Report,
    /// The files with several names that it met.
    pub links: HardLinks,
    /// The counts since the last portion of a directory.
    current: Tally,
    lister: Option<Lister<'a>>,
    errors: Option<&'a Output>,
    queue: Arc<Queue<Sums>>,
    shared: Arc<Shared>,
}

impl<'a> Collector<'a> {
    /// Returns the visitor of one of `threads` threads, with its outputs for entries and errors.
    pub fn new(
        request: &'a Request,
        (lister, errors): (Option<Lister<'a>>, Option<&'a Output>),
        queue: &Arc<Queue<Sums>>,
        shared: &Arc<Shared>,
        threads: usize,
    ) -> Collector<'a> {
        Collector {
            request,
            report: Report::new(&request.shape),
            links: HardLinks::new(&shared.spill, threads),
            current: Tally::default(),
            lister,
            errors,
            queue: Arc::clone(queue),
            shared: Arc::clone(shared),
        }
    }

    /// Moves the counts and links into `into` and `links`, leaving none here.
    pub fn take(&mut self, into: &mut Report, links: &mut HardLinks) {
        into.merge(std::mem::replace(&mut self.report, Report::new(&self.request.shape)));
        links.merge(self.links.take());
    }

    /// Writes the buffered list entries; stops the walk if the output is closed.
    pub fn flush(&mut self) {
        if let Some(lister) = &mut self.lister
            && !lister.flush()
        {
            self.queue.stop();
        }
    }
}

impl Visitor for Collector<'_> {
    type State = Sums;

    fn enter(&mut self, _directory: &Opened<'_, Sums>) -> Option<Sums> {
        Some(Sums::default())
    }

    fn visit(&mut self, entry: &Entry<'_, Sums>) -> Verdict {
        let Choice { selected, verdict } = self.request.selection.choose(entry);
        if !selected {
            return verdict;
        }
        match &mut self.lister {
            Some(lister) => lister.list(entry),
            None => self.report.count(entry, &mut self.current, &mut self.links),
        }
        if entry.directory.is_none() {
            // A root is in no directory that is walked.
            self.current = Tally::default();
        }
        verdict
    }

    fn visited(&mut self, directory: &Directory<Sums>) {
        directory.state().add(&self.current);
        self.current = Tally::default();
        if let Some(lister) = &mut self.lister
            && !lister.pause()
        {
            self.queue.stop();
        }
    }

    fn leave(&mut self, directory: &Directory<Sums>) {
        if self.lister.is_none() {
            self.report.leave(directory, &self.shared.partial);
        }
    }

    fn mount_point(&mut self, path: Vec<u8>) {
        self.report.mount_point(path);
    }

    fn failed(&mut self, error: WalkError) {
        if !error.vanished() {
            if let Some(errors) = self.errors {
                // As they come: there are few, and what is written is not lost if the walk is killed.
                errors.write(&list::error_record(&error, self.request.json));
            }
            if let Some(lister) = &mut self.lister {
                lister.list_error(&error);
            }
        }
        self.report.fail(error);
    }
}
