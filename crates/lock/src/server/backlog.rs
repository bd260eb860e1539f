//! The outputs of a server that wait for records to be durable.

use std::collections::{BTreeMap, HashMap};

use super::{Output, Record, ReportedBytes};
use crate::message::{FileName, Reply, SessionId};
use crate::table::Mode;

/// The place between a lock server and whoever carries out its outputs, where those stay that must not be told yet.
///
/// Records may take any time to be written: a store may be slow or full. Meanwhile everything else goes on, above all
/// renewals, so that nobody loses a lease because somebody else has a new file. A reply waits only
///
/// - if it opens a session, or tells that bytes are held, in an epoch that is not on record: a successor would grant the
///   bytes at once, and might count the same epoch again;
/// - if it tells a session of bytes that it holds exclusively in a file, until the record is durable that the session may
///   write this file ([`Record::Uses`]): a successor would neither take the assertion of the lock nor raise the fence;
/// - if it tells of bytes in a file from which a lapsed session is being struck off, until that is durable
///   ([`Record::Left`]): a successor would take the assertion of a session whose bytes are another's by now.
///
/// Nothing else waits: a fence may be up before the session is on record, and what only says that something is over
/// (released, refused, ended) may be told in any order, because a client matches replies to its calls by their numbers,
/// and takes no reply to a call that it has replaced. Records themselves become durable in their order. The replies
/// about one request keep theirs: what a reply waits for, later ones about the same file and session wait for too.
#[derive(Clone, Debug, Default)]
pub struct Backlog {
    /// True once the epoch is on record.
    begun: bool,
    /// The replies that wait for the epoch.
    early: Vec<Output>,
    /// The records that are not being written yet.
    records: Vec<Record>,
    /// The number of records so far, and how many of them are being written or durable, and durable.
    created: u64,
    taken: u64,
    durable: u64,
    /// The latest record of a session's use of a file that is not durable.
    uses: HashMap<(SessionId, FileName), u64>,
    /// The latest record that strikes a session off a file and is not durable.
    left: HashMap<FileName, u64>,
    /// The replies that wait for a record, by its number.
    waiting: BTreeMap<u64, Vec<Output>>,
}

impl Backlog {
    /// Returns whether the epoch is on record.
    pub fn has_begun(&self) -> bool {
        self.begun
    }

    /// Returns whether a reply waits for the epoch to be on record.
    pub fn needs_epoch(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns whether a reply that told a session of bytes in a file would have to wait for a record.
    pub fn withholds(&self, session: SessionId, file: &FileName, mode: Mode) -> bool {
        !self.begun || self.needs(&ReportedBytes { session, file: file.clone(), mode }) > self.durable
    }

    /// The number of records that are not durable.
    pub fn records(&self) -> u64 {
        self.created - self.durable
    }

    /// Returns whether there is something to be made durable that is not being written yet.
    pub fn has_work(&self) -> bool {
        self.needs_epoch() || !self.records.is_empty()
    }

    /// Takes an output in, and returns it if it can be carried out at once. Outputs are to be given in their order.
    pub fn pass(&mut self, output: Output) -> Option<Output> {
        let (reply, reported_bytes) = match output {
            Output::Record(record) => {
                self.note(record);
                return None;
            }
            Output::Reply { ref reply, ref reported_bytes, .. } => (reply, reported_bytes.as_ref()),
            Output::Raise { .. } | Output::Cycle { .. } => return Some(output),
        };
        if !self.begun && (reported_bytes.is_some() || matches!(reply, Reply::Open { .. })) {
            self.early.push(output);
            return None;
        }
        let needs = reported_bytes.map_or(0, |reported_bytes| self.needs(reported_bytes));
        if needs > self.durable {
            self.waiting.entry(needs).or_default().push(output);
            return None;
        }
        Some(output)
    }

    fn note(&mut self, record: Record) {
        self.created += 1;
        match &record {
            Record::Uses { session, file } => {
                _ = self.uses.insert((*session, file.clone()), self.created);
            }
            Record::Left { file, .. } => _ = self.left.insert(file.clone(), self.created),
            Record::Gone { .. } | Record::Floor { .. } => {}
        }
        self.records.push(record);
    }

    /// The number of the record that has to be durable before it is told.
    fn needs(&self, ReportedBytes { session, file, mode }: &ReportedBytes) -> u64 {
        if self.uses.is_empty() && self.left.is_empty() {
            return 0;
        }
        let left = self.left.get(file).copied().unwrap_or(0);
        match mode {
            Mode::Shared => left,
            Mode::Exclusive => self.uses.get(&(*session, file.clone())).copied().unwrap_or(0).max(left),
        }
    }

    /// Takes out the records to be written next, in their order. [`Backlog::written`] is to be called when they are
    /// durable, and before any others are taken.
    pub fn take(&mut self) -> Vec<Record> {
        debug_assert_eq!(self.taken, self.durable, "one write at a time");
        self.taken = self.created;
        std::mem::take(&mut self.records)
    }

    /// Notes that the records that were taken are durable. Returns the replies that waited for them.
    pub fn written(&mut self) -> Vec<Output> {
        self.durable = self.taken;
        let durable = self.durable;
        self.uses.retain(|_, number| *number > durable);
        self.left.retain(|_, number| *number > durable);
        let later = self.waiting.split_off(&(durable + 1));
        std::mem::replace(&mut self.waiting, later).into_values().flatten().collect()
    }

    /// Notes that the epoch is on record. Returns the replies that waited for that, and for nothing else.
    pub fn begin(&mut self) -> Vec<Output> {
        self.begun = true;
        let early = std::mem::take(&mut self.early);
        early.into_iter().filter_map(|output| self.pass(output)).collect()
    }
}
