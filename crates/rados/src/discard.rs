//! The removal of an object whose header is damaged, so that nothing else can be done with it.
//!
//! Versions and fences must never go back, so a header stays: of a removed object, at a version above every one that
//! the remains of the object show, with the fenced sessions. Older keys and attributes carry no versions, and a damaged header may show a version that
//! never existed, too high or too low; hence the distance.

use std::ffi::{CStr, CString};

use nacre_object::limit::OFFSET_MAX;
use nacre_object::{ErrorKind, ObjectId, StoreError};

use crate::error::{Attempt, errno, failed, newer};
use crate::fences;
use crate::name::{behind, object_name};
use crate::native::HEADER;
use crate::record::{Author, ForkRecord, Header, NoHeader, Placed, Token, decode_key_version};
use crate::store::Inner;
use crate::sys::{ReadStep, WriteStep, flag};

/// The distance by which the object continues above the versions of its remains.
const DISTANCE: u64 = 1 << 32;
/// The greatest version that is believed of a damaged header; no object comes near it by being written.
const CREDIBLE_MAX: u64 = 1 << 61;

impl Inner {
    /// Discards a damaged object. See [`RadosStore::discard_damaged`](crate::RadosStore::discard_damaged).
    pub(crate) async fn discard_damaged(&self, object: &ObjectId, token: Token) -> Result<bool, StoreError> {
        let name = object_name(object);
        let completed = self.pool.read(&name, &[ReadStep::Xattrs], 0).await;
        if completed.code == -errno::ENOENT {
            self.pool_is_there(object)?;
            return Ok(false);
        }
        if completed.code < 0 {
            return Err(failed(completed.code, Attempt::Read, &self.location, object));
        }
        let first = completed.answers.into_iter().next();
        let attributes = first.map(|answer| answer.into_pairs().0).unwrap_or_default();
        let Some((_, remains)) = attributes.into_iter().find(|(name, _)| name == HEADER.to_bytes()) else {
            return Ok(false);
        };
        match Header::decode(&remains) {
            Err(NoHeader::Damaged) => {}
            Err(NoHeader::Newer(format)) => return Err(self.context(newer(format), object)),
            Ok(_) => {
                let error = StoreError::new(ErrorKind::Invalid, "its header is not damaged");
                return Err(self.context(error, object));
            }
        }
        let field = |at: usize| remains.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let shown = field(8).filter(|version| *version < CREDIBLE_MAX).unwrap_or(0);
        let version = shown.max(self.greatest_version(object, &name).await?) + DISTANCE;
        // A fence that damage raised would shut every writer out for ever.
        let fence = field(16).filter(|fence| *fence < CREDIBLE_MAX).unwrap_or(0);
        let completed = self.pool.read(&name, &[ReadStep::OmapKey(fences::KEY)], 0).await;
        if completed.code < 0 {
            return Err(failed(completed.code, Attempt::Read, &self.location, object));
        }
        let first = completed.answers.into_iter().next();
        let pairs = first.map(|answer| answer.into_pairs().0).unwrap_or_default();
        let sessions = fences::salvage(fence, pairs.first().map(|(_, stored)| stored));
        let header = Header {
            version,
            tombstone_version: version,
            fence,
            sessions: sessions.len() as u32,
            author: Author::Token(token),
            ..Header::default()
        };
        let (record, entry) = (header.encode(), fences::encode(&sessions));
        let mut steps = vec![
            WriteStep::IfXattr(HEADER, &remains),
            WriteStep::AllBytes(&[]),
            WriteStep::ClearOmap,
            WriteStep::SetXattr(HEADER, &record),
        ];
        if !sessions.is_empty() {
            steps.push(WriteStep::SetOmap(fences::KEY, &entry));
        }
        let mark = self.mark(object).await?;
        let completed = self.pool.write(&name, &steps, flag::FULL_TRY).await;
        match -completed.code {
            code if code <= 0 => {
                self.settle(&mark, version, false).await;
                Ok(true)
            }
            errno::ECANCELED | errno::ENOENT => {
                let error =
                    StoreError::new(ErrorKind::Busy, "another client repaired or removed it meanwhile");
                Err(self.context(error, object))
            }
            code => Err(failed(-code, Attempt::Write, &self.location, object)),
        }
    }

    /// Returns the greatest version in the part of the index that can be read.
    async fn greatest_version(&self, object: &ObjectId, name: &CStr) -> Result<u64, StoreError> {
        // Decodes every entry that is sound by itself.
        let any = Header { version: OFFSET_MAX, tail: u32::MAX, ..Header::default() };
        let (mut after, mut greatest) = (CString::default(), 0);
        loop {
            let step = ReadStep::OmapAfter { after: &after, prefix: c"", limit: 512 };
            let completed = self.pool.read(name, &[step], 0).await;
            if completed.code < 0 {
                return Err(failed(completed.code, Attempt::Read, &self.location, object));
            }
            let first = completed.answers.into_iter().next();
            let (page, more) = first.map(|answer| answer.into_pairs()).unwrap_or_default();
            for (key, value) in &page {
                let version = match key.first() {
                    Some(b'x') => Placed::decode(key, value, &any).map(|extent| extent.version),
                    Some(b'f') => ForkRecord::decode(key, value).map(|record| record.base),
                    Some(b'k') => decode_key_version(value, &any),
                    _ => None,
                };
                greatest = greatest.max(version.filter(|version| *version < CREDIBLE_MAX).unwrap_or(0));
            }
            match page.last() {
                Some((key, _)) if more => after = behind(key),
                _ => return Ok(greatest),
            }
        }
    }
}
