//! A walk through the heads of a segment's records.

use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};

use crate::record::{self, Found, Record};
use crate::scan::{Item, Scan};
use crate::segment::Segment;

/// A walk through the heads of a segment's records, which reads hardly more than those where they are far apart, and
/// many at a time where they are close together. It continues past damage as a scrub does.
pub(crate) struct Heads<'a> {
    segment: &'a Segment,
    at: u64,
    end: u64,
    /// Bytes that were read ahead, and the offset of the first.
    ahead: Bytes,
    ahead_at: u64,
    /// The length of the last record in bytes.
    record_bytes: u64,
    scan: Option<Scan>,
}

/// The number of bytes that are read of a head at first. Most heads are shorter.
const HEAD_GUESS_BYTES: u64 = 256;
/// The number of bytes that are read at a time where records are short, and the length of such records.
const AHEAD_BYTES: u64 = 64 << 10;
const SHORT_RECORD_BYTES: u64 = 4 << 10;

impl<'a> Heads<'a> {
    /// Begins a walk at the offset of a record.
    pub(crate) fn from(segment: &'a Segment, at: u64) -> Self {
        let end = segment.end.load(Ordering::Relaxed).min(segment.capacity);
        Self { segment, at, end, ahead: Bytes::new(), ahead_at: 0, record_bytes: u64::MAX, scan: None }
    }

    /// Returns the offset of the next record; `None` behind damage.
    pub(crate) fn position(&self) -> Option<u64> {
        self.scan.is_none().then_some(self.at)
    }

    fn read(&mut self, at: u64, len: u64) -> std::io::Result<Bytes> {
        let len = len.min(self.end - at);
        let is_ahead =
            |walk: &Self| walk.ahead_at <= at && at + len <= walk.ahead_at + walk.ahead.len() as u64;
        if !is_ahead(self) {
            let wanted = if self.record_bytes <= SHORT_RECORD_BYTES { len.max(AHEAD_BYTES) } else { len };
            let mut bytes = BytesMut::zeroed(wanted.min(self.end - at) as usize);
            self.segment.file.read_at(at, &mut bytes)?;
            (self.ahead, self.ahead_at) = (bytes.freeze(), at);
        }
        let from = (at - self.ahead_at) as usize;
        Ok(self.ahead.slice(from..from + len as usize))
    }

    /// Returns the record at `at`, if its head is sound.
    fn head(&mut self) -> std::io::Result<Option<Record>> {
        let guess = self.read(self.at, HEAD_GUESS_BYTES)?;
        let bytes = match record::head_bytes(&guess, self.segment.binding) {
            Some(len) if len as u64 > HEAD_GUESS_BYTES => self.read(self.at, len as u64)?,
            Some(_) => guess,
            None => return Ok(None),
        };
        Ok(match record::decode(&bytes, self.segment.binding, self.at) {
            Some(Found::Head(record)) if self.at + u64::from(record.record_bytes) <= self.end => Some(record),
            _ => None,
        })
    }
}

impl Iterator for Heads<'_> {
    type Item = std::io::Result<(u64, Record)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.scan.is_none() {
            if self.at >= self.end {
                return None;
            }
            match self.head() {
                Ok(Some(record)) => {
                    let at = self.at;
                    self.record_bytes = u64::from(record.record_bytes);
                    self.at += u64::from(record.record_bytes);
                    return Some(Ok((at, record)));
                }
                Ok(None) => match self.read(0, self.end) {
                    Ok(bytes) => self.scan = Some(Scan::new(bytes, self.segment.binding, self.at as usize)),
                    Err(error) => return self.stop(error),
                },
                Err(error) => return self.stop(error),
            }
        }
        self.scan.as_mut()?.find_map(|item| match item {
            Item::Record { at, record, .. } => Some(Ok((at as u64, record))),
            Item::Gap { .. } => None,
        })
    }
}

impl Heads<'_> {
    fn stop(&mut self, error: std::io::Error) -> Option<std::io::Result<(u64, Record)>> {
        self.at = self.end;
        Some(Err(error))
    }
}
