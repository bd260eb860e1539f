//! The replay of an object: brings a copy from its version to the original's, step by step.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::look::ObjectSnapshot;
use super::pairs::{Pairs, payload_bytes};
use super::plan::{Replacement, Step};
use super::{Copy, MARK};
use crate::limit::{EXTENTS_PER_TRANSACTION_MAX, OPERATIONS_MAX, TRANSACTION_BYTES_MAX};
use crate::*;

/// The prefix of the names of the copy's own staged forks; a number follows.
const STAGED: &str = ".nacre.copy.";
/// The number of bytes at the beginning of such a stage that say what it holds. The fork's own first bytes come in the
/// last transaction.
const LABEL_BYTES: u64 = 512;
/// Payload of one staging transaction, in bytes: there must be few, because each takes a version.
const STAGED_BYTES: u64 = TRANSACTION_BYTES_MAX as u64 - LABEL_BYTES;

/// The maximum number of ranges that one read is conditional on.
const GUARDS_MAX: usize = 1000;

/// The progress of a copy.
struct State {
    version: u64,
    pairs: Pairs,
    /// The fence to be raised first; 0 if it is as high.
    fence: u64,
    /// The sessions to be fenced first.
    fenced: Vec<u64>,
    mark: Fork,
}

impl Copy<'_> {
    /// Applies the steps to the destination. Returns `None` if the source changed meanwhile.
    pub(super) async fn replay(
        &mut self,
        from: &ObjectSnapshot,
        to: &ObjectSnapshot,
        steps: BTreeMap<u64, Step>,
    ) -> Result<Option<()>, StoreError> {
        // What the destination had before a removal will be gone by then.
        let fresh = to.stat.version == 0 || steps.values().any(|step| step.remove);
        let fenced = from.fenced_beside(to);
        // Every change makes an object exist, except its removal: there they have to come before it.
        let (with_keys, first) = if from.stat.exists { (fenced, Vec::new()) } else { (Vec::new(), fenced) };
        let mut state = State {
            version: to.stat.version,
            pairs: Pairs::new(from, fresh, with_keys),
            fence: if from.stat.fence > to.stat.fence { from.stat.fence } else { 0 },
            fenced: first,
            mark: Fork::try_from(MARK)?,
        };
        let mut marked = to.marked;
        for (target, step) in steps {
            let mut staged = Vec::new();
            for (number, new) in step.replaced.iter().enumerate() {
                let Some(rest) = self.stage(from, &mut state, number, new, target).await? else {
                    return Ok(None);
                };
                staged.push(rest);
                marked = true;
            }
            // Keys that do not fit into the steps of extents take versions of their own.
            while !step.remove && state.version + 1 < target {
                let room = (OPERATIONS_MAX - 8, TRANSACTION_BYTES_MAX);
                let Some(changes) = state.pairs.next(self, from, room.0, room.1).await? else {
                    return Ok(None);
                };
                if changes.is_empty() {
                    break;
                }
                self.write(&mut state, changes, None, true).await?;
                marked = true;
            }
            let mut writes = Vec::new();
            if step.remove {
                writes.push(WriteOp::Remove);
                marked = false;
            }
            writes.extend(staged.into_iter().flatten());
            writes.extend(step.changes.iter().cloned());
            for (fork, ranges) in &step.data {
                let Some(extents) = self.read(from, fork, ranges, target).await? else { return Ok(None) };
                writes.push(WriteOp::Extents { fork: fork.clone(), extents });
            }
            if step.last {
                let empty = from.forks.iter().filter(|(_, fork)| fork.size == Some(0));
                writes.extend(
                    empty.map(|(fork, _)| WriteOp::Extents { fork: fork.clone(), extents: Vec::new() }),
                );
                if marked {
                    writes.push(WriteOp::RemoveFork { fork: state.mark.clone() });
                }
            }
            let taken: usize = writes.iter().map(payload_bytes).sum();
            // Beside them stand a guard, a fence and a mark, where there are any.
            let guards = usize::from(target > state.version + 1);
            let beside = writes.len() + guards + usize::from(state.fence > 0) + usize::from(!step.last);
            let room = (OPERATIONS_MAX.saturating_sub(beside), TRANSACTION_BYTES_MAX.saturating_sub(taken));
            let Some(changes) = state.pairs.next(self, from, room.0, room.1).await? else { return Ok(None) };
            writes.extend(changes);
            if step.last {
                match state.pairs.is_empty(self, from).await? {
                    None => return Ok(None),
                    Some(true) => {}
                    Some(false) => {
                        let text = "its keys and attributes do not fit into as few transactions as its version \
                                    leaves room for";
                        return Err(StoreError::new(ErrorKind::Unsupported, text));
                    }
                }
                if writes.is_empty() {
                    writes.push(WriteOp::Create);
                }
            }
            self.write(&mut state, writes, Some(target), !step.last && from.stat.exists).await?;
            marked |= !step.last;
        }
        Ok(Some(()))
    }

    /// Stages the content of a fork that is more than one transaction holds, at versions below `target`; returns the
    /// changes that remain to be made at that version. What an earlier attempt staged stays.
    async fn stage(
        &mut self,
        from: &ObjectSnapshot,
        state: &mut State,
        number: usize,
        new: &Replacement,
        target: u64,
    ) -> Result<Option<Vec<WriteOp>>, StoreError> {
        let fork = Fork::try_from(format!("{STAGED}{number}").as_str())?;
        let label = label(target, &new.fork);
        let mut left: Vec<ByteRange> = new.data.iter().filter_map(|range| behind_label(*range)).collect();
        let mut begin = vec![
            WriteOp::RemoveFork { fork: fork.clone() },
            WriteOp::Truncate { fork: fork.clone(), size: new.size },
            WriteOp::Extents { fork: fork.clone(), extents: vec![(0, label.clone())] },
        ];
        if let Some(staged) = self.staged(&fork, &label).await? {
            begin.clear();
            left = left.into_iter().flat_map(|range| without(range, &staged)).collect();
        }
        let mut pieces = cut(left).into_iter().peekable();
        let mut last = Vec::new();
        while let Some(piece) = pieces.next() {
            let Some(extents) = self.read(from, &new.fork, &piece, target).await? else { return Ok(None) };
            let mut writes = std::mem::take(&mut begin);
            writes.push(WriteOp::Extents { fork: fork.clone(), extents });
            if state.version + 1 < target {
                self.write(state, writes, None, true).await?;
            } else if pieces.peek().is_none() {
                // There is no version left below, but room beside the replacement itself.
                last = writes;
            } else {
                let text = "its content was written in fewer transactions than it takes to copy it";
                return Err(StoreError::new(ErrorKind::Unsupported, text));
            }
        }
        last.splice(0..0, begin);
        last.push(WriteOp::Zero { fork: fork.clone(), range: ByteRange::new(0, LABEL_BYTES) });
        let first: Vec<ByteRange> = new.data.iter().filter_map(|range| within_label(*range)).collect();
        let Some(extents) = self.read(from, &new.fork, &first, target).await? else { return Ok(None) };
        if !extents.is_empty() {
            last.push(WriteOp::Extents { fork: fork.clone(), extents });
        }
        last.push(WriteOp::ReplaceFork { fork: new.fork.clone(), from: fork });
        Ok(Some(last))
    }

    /// Returns the ranges that a stage of the destination holds, if it has this label.
    async fn staged(&self, fork: &Fork, label: &Bytes) -> Result<Option<Vec<ByteRange>>, StoreError> {
        let mut at = ByteRange::ALL;
        let mut ranges = Vec::new();
        loop {
            let read = Transaction::new().read_range(fork.clone(), ByteRange::new(0, LABEL_BYTES));
            let read = read.read(ReadOp::Extents { fork: fork.clone(), range: at });
            let Outcome::Done(done) = self.destination.apply(self.object, read).await? else {
                return Ok(None);
            };
            let [Answer::Range(head), Answer::Range(found)] = &done.answers[..] else { return Ok(None) };
            if head.data != label {
                return Ok(None);
            }
            let data = found.extents.iter().filter(|extent| extent.kind == ExtentKind::Data);
            ranges.extend(data.map(|extent| extent.range));
            match found.next {
                Some(next) => at = ByteRange::from(next..ByteRange::ALL.end()),
                None => return Ok(Some(ranges)),
            }
        }
    }

    /// Reads the bytes of ranges of the original that are not newer than `version`, as they were at the look. Returns
    /// `None` if they changed since.
    async fn read(
        &self,
        from: &ObjectSnapshot,
        fork: &Fork,
        ranges: &[ByteRange],
        version: u64,
    ) -> Result<Option<Vec<(u64, Bytes)>>, StoreError> {
        let mut extents = Vec::new();
        for range in ranges {
            if let Some(data) = from.held(fork, *range) {
                extents.push((range.offset, data));
                continue;
            }
            // Elsewhere the object may change as it likes: also between these bytes, where something newer goes over them.
            let mut guards = from.unchanged(fork, *range, version);
            if guards.len() > GUARDS_MAX {
                guards = vec![*range];
            }
            let region = |range| Guard::Region { fork: fork.clone(), range, version: from.stat.version };
            let guards: Vec<Guard> = guards.into_iter().map(region).collect();
            let mut at = *range;
            while at.len > 0 {
                let read = Transaction { guards: guards.clone(), ..Transaction::new() };
                let read = read.read_range(fork.clone(), at);
                let Outcome::Done(done) = self.source.apply(self.object, read).await? else {
                    return Ok(None);
                };
                let Some(Answer::Range(found)) = done.answers.into_iter().next() else { return Ok(None) };
                if found.data.is_empty() && done.version != from.stat.version {
                    // Its end was cut off.
                    return Ok(None);
                }
                if found.data.is_empty() {
                    let text = format!("bytes of fork \"{fork}\" at {} are missing", at.offset);
                    return Err(StoreError::new(ErrorKind::Corrupt, text));
                }
                let read = found.data.len() as u64;
                extents.push((at.offset, found.data));
                at = ByteRange::new(at.offset + read, at.len - read);
            }
        }
        Ok(Some(extents))
    }

    /// Applies changes to the copy, which must get exactly the target's version, or else the next one. `more` says that
    /// the copy is not complete after that.
    async fn write(
        &mut self,
        state: &mut State,
        mut writes: Vec<WriteOp>,
        target: Option<u64>,
        more: bool,
    ) -> Result<(), StoreError> {
        let version = target.unwrap_or(state.version + 1);
        if more {
            let mark = WriteOp::Extents { fork: state.mark.clone(), extents: Vec::new() };
            // A removal of the object takes its mark along.
            let at = writes.iter().rposition(|write| matches!(write, WriteOp::Remove)).map_or(0, |at| at + 1);
            writes.insert(at, mark);
        }
        let fenced = std::mem::take(&mut state.fenced).into_iter();
        writes.splice(0..0, fenced.map(|session| WriteOp::FenceSession { session }));
        if state.fence > 0 {
            writes.insert(0, WriteOp::RaiseFence { token: std::mem::take(&mut state.fence) });
        }
        let bytes: usize =
            writes.iter().filter(|write| matches!(write, WriteOp::Extents { .. })).map(payload_bytes).sum();
        let mut transaction = Transaction { writes, ..Transaction::default() };
        let range = ByteRange::new(0, 0);
        // The next version comes by itself, where there is no room to ask for it.
        if version > state.version + 1 || transaction.writes.len() < OPERATIONS_MAX {
            transaction.guards.push(Guard::Proposal { fork: Fork::DEFAULT, range, version });
        }
        match self.destination.apply(self.object, transaction).await? {
            Outcome::Done(done) if done.version == version => {
                state.version = version;
                (self.wrote)(bytes as u64);
                Ok(())
            }
            Outcome::Done(Done { version, .. }) | Outcome::Refused(Refusal { version, .. }) => {
                let text = format!("another client is writing the copy, which has version {version} by now");
                Err(StoreError::new(ErrorKind::Busy, text))
            }
        }
    }
}

/// Returns the label of a stage: the fork whose content it holds, and the version of that content.
fn label(version: u64, fork: &Fork) -> Bytes {
    let mut label = b"NACRCOPY".to_vec();
    label.extend_from_slice(&version.to_le_bytes());
    label.push(fork.as_bytes().len() as u8);
    label.extend_from_slice(fork.as_bytes());
    label.resize(LABEL_BYTES as usize, 0);
    label.into()
}

fn within_label(range: ByteRange) -> Option<ByteRange> {
    let range = ByteRange::from(range.offset..range.end().min(LABEL_BYTES));
    (range.len > 0).then_some(range)
}

fn behind_label(range: ByteRange) -> Option<ByteRange> {
    let range = ByteRange::from(range.offset.max(LABEL_BYTES)..range.end());
    (range.len > 0).then_some(range)
}

/// Returns the parts of a range that are in none of `others`, which are in order.
fn without(range: ByteRange, others: &[ByteRange]) -> Vec<ByteRange> {
    let mut left = Vec::new();
    let mut at = range.offset;
    for other in others.iter().filter(|other| other.end() > range.offset && other.offset < range.end()) {
        left.extend((other.offset > at).then(|| ByteRange::from(at..other.offset)));
        at = at.max(other.end());
    }
    left.extend((at < range.end()).then(|| ByteRange::from(at..range.end())));
    left
}

/// Cuts ranges into pieces of one transaction each.
fn cut(ranges: Vec<ByteRange>) -> Vec<Vec<ByteRange>> {
    let mut pieces: Vec<Vec<ByteRange>> = Vec::new();
    let mut room = 0;
    for mut range in ranges {
        while range.len > 0 {
            if room == 0 || pieces.last().is_none_or(|piece| piece.len() >= EXTENTS_PER_TRANSACTION_MAX / 2) {
                pieces.push(Vec::new());
                room = STAGED_BYTES;
            }
            let len = range.len.min(room);
            if let Some(piece) = pieces.last_mut() {
                piece.push(ByteRange::new(range.offset, len));
            }
            range = ByteRange::new(range.offset + len, range.len - len);
            room -= len;
        }
    }
    pieces
}
