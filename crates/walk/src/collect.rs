//! The visitor that filters entries, and counts or lists them.

use std::sync::Arc;

use crate::directory::Directory;
use crate::entry::Entry;
use crate::error::Operation;
use crate::filter::{Choice, Selection};
use crate::list::{self, Lister, Output};
use crate::lustre::LayoutReader;
use crate::record::Recorder;
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
    /// The counts since the last batch of a directory.
    current: Tally,
    lister: Option<Lister<'a>>,
    errors: Option<&'a Output>,
    recorder: Option<Box<dyn Recorder + 'a>>,
    layouts: Option<LayoutReader>,
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
            recorder: None,
            layouts: None,
            queue: Arc::clone(queue),
            shared: Arc::clone(shared),
        }
    }

    /// Sets the recorder, which is passed everything that is counted.
    pub fn set_recorder(&mut self, recorder: Box<dyn Recorder + 'a>) {
        self.recorder = Some(recorder);
    }

    /// Sets the reader of layouts, by which that of every selected file is read. Needed if the filter, the lister or the recorder
    /// uses layouts.
    pub fn set_layouts(&mut self, layouts: LayoutReader) {
        self.layouts = Some(layouts);
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
        if let Some(recorder) = &mut self.recorder
            && !recorder.flush()
        {
            self.queue.stop();
        }
    }

    /// Counts or lists an entry that is selected, if its layout is too.
    fn take_in(&mut self, entry: &Entry<'_, Sums>) {
        let filter = &self.request.selection.filter;
        let Some(layouts) = &mut self.layouts else {
            if filter.matches_layout(None) {
                self.count(entry);
            }
            return;
        };
        match layouts.read(entry) {
            Ok(layout) if filter.matches_layout(layout.as_ref()) => {
                self.count(&Entry { layout: layout.as_ref(), ..*entry });
            }
            Ok(_) => {}
            Err(errno) => {
                let mut path = Vec::new();
                entry.write_path(&mut path);
                let error = WalkError::new(path, Operation::Layout, errno);
                // It is there, and only its layout is unknown.
                if !filter.needs_layout() && !error.vanished() {
                    self.count(entry);
                }
                self.failed(error);
            }
        }
    }

    /// Counts or lists an entry.
    fn count(&mut self, entry: &Entry<'_, Sums>) {
        match &mut self.lister {
            Some(lister) => lister.list(entry),
            None => self.report.count(entry, &mut self.current, &mut self.links),
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record(entry);
        }
        if entry.directory.is_none() {
            // A root is in no directory that is walked.
            self.current = Tally::default();
        }
    }
}

impl Visitor for Collector<'_> {
    type State = Sums;

    fn enter(&mut self, directory: &Opened<'_, Sums>) -> Option<Sums> {
        Some(Sums::at(self.recorder.as_mut().and_then(|recorder| recorder.enter(directory))))
    }

    fn visit(&mut self, entry: &Entry<'_, Sums>) -> Verdict {
        if let (Some(recorder), None) = (&mut self.recorder, entry.metadata) {
            // The walk does not read metadata, because the recorder knows most of it.
            return match recorder.metadata(entry) {
                Ok(Some(known)) => {
                    let choice = self.request.selection.choose(entry);
                    if choice.selected {
                        self.take_in(&Entry { metadata: Some(&known), kind: known.kind(), ..*entry });
                    }
                    choice.verdict
                }
                Ok(None) => Verdict::Pass,
                Err(errno) => {
                    if let Some(directory) = entry.directory {
                        recorder.incomplete(directory);
                    }
                    let mut path = Vec::new();
                    entry.write_path(&mut path);
                    self.failed(WalkError::new(path, Operation::Stat, errno));
                    Verdict::Pass
                }
            };
        }
        let Choice { selected, verdict } = self.request.selection.choose(entry);
        if selected {
            self.take_in(entry);
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
        if let Some(recorder) = &mut self.recorder
            && !recorder.pause()
        {
            self.queue.stop();
        }
    }

    fn incomplete(&mut self, directory: &Directory<Sums>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.incomplete(directory);
        }
    }

    fn leave(&mut self, directory: &Directory<Sums>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.leave(directory);
        }
        if self.lister.is_none() {
            self.report.leave(directory, &self.shared.partial);
        }
    }

    fn pack(state: &Sums, _child: &Sums, packed: &mut Vec<u8>) -> bool {
        state.pack(packed)
    }

    fn unpack(packed: &[u8], _child: &Sums) -> Sums {
        Sums::unpack(packed)
    }

    fn mount_point(&mut self, path: Vec<u8>) {
        if let Some(recorder) = &mut self.recorder {
            recorder.mount_point(&path);
        }
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
            if let Some(recorder) = &mut self.recorder {
                recorder.failed(&error);
            }
        }
        self.report.fail(error);
    }
}
